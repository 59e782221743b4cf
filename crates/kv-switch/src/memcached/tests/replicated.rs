//! Tests of replicated writes. Each upstream request must be one command with the same effect as
//! the client request. Only an answer with the nonce acknowledges the write.

use proptest::collection::vec;
use proptest::prelude::*;

use super::generated::{Written, written};
use super::{binary, framed};
use crate::{
    Application, Datagram, Effect, KeyRoom, Memcached, Outcome, OwnId, Plan, Request, ShortLife, Shortened,
};

const MEMCACHED: Memcached = Memcached::new(32);
const LIFE: ShortLife = ShortLife { seconds: 10, now: 1_790_000_000 };
const OWN: OwnId = OwnId { request: 0x5678, nonce: 0x0123_4567_89ab_cdef };

/// Generates meta, binary and classic text commands.
fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop::sample::select(vec![
        "k",
        "q",
        "b",
        "T30",
        "T0",
        "T-1",
        "T1800000000",
        "O12",
        "Oa\rb",
        "F7",
        "MS",
        "MA",
        "C7",
        "c",
        "I",
        "s",
        "Pa",
        "L",
        "E9",
        "N30",
        "v",
        "x",
    ]);
    let meta = (prop::sample::select(vec!["ms", "md", "mg"]), vec(flags, 0..4), "[a-zA-Z]{4}").prop_map(
        |(verb, flags, key)| {
            let flags: String = flags.iter().map(|flag| format!(" {flag}")).collect();
            let (bytes, value) = if verb == "ms" { (" 2", "hi\r\n") } else { ("", "") };
            format!("{verb} {key}{bytes}{flags}\r\n{value}").into_bytes()
        },
    );
    let opcodes = prop::sample::select(vec![0x01, 0x11, 0x04, 0x14, 0x1c, 0x1d, 0x05]);
    let in_binary = (opcodes, any::<u32>(), vec(any::<u8>(), 1..20), any::<bool>()).prop_map(
        |(opcode, time, key, has_version)| {
            let mut extras = time.to_be_bytes().to_vec();
            let value: &[u8] = match opcode {
                0x01 | 0x11 => {
                    extras = [&[0, 0, 0, 7], &extras[..]].concat();
                    b"hi"
                }
                0x05 => {
                    extras.extend([0; 16]);
                    b""
                }
                0x04 | 0x14 => {
                    extras.clear();
                    b""
                }
                _ => b"",
            };
            let mut command = binary(opcode, &extras, &key, value);
            command[16..24].fill(0);
            command[23] = u8::from(has_version);
            command
        },
    );
    prop_oneof![written().prop_map(|Written { command, .. }| command), meta, in_binary]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]
    #[test]
    fn replica_request_is_one_unconditional_command_for_the_key(command in any_request()) {
        let payload = framed(&command);
        let Ok(ask) = MEMCACHED.read(Datagram::whole(&payload)) else { return Ok(()) };
        let request = Request { payload: &payload, ask: &ask };
        let mut out = vec![0; payload.len() + 40];
        let replicated = MEMCACHED.replicated(&request);
        let is_quiet = command.windows(7).any(|word| word == b"noreply");
        let Some(replicated) = replicated else {
            prop_assert!(ask.effect != Effect::Write || ask.plan != Plan::One || command[0] != b's');
            prop_assert_eq!(MEMCACHED.write_replica(&request, None, OWN, &mut out), None);
            prop_assert_eq!(MEMCACHED.write_outcome(&request, Outcome::Done, &mut out), None);
            prop_assert!(MEMCACHED.read_outcome(&request, OWN, &payload).is_err());
            return Ok(());
        };
        prop_assert_eq!(ask.effect, Effect::Write);
        for life in [None, Some(LIFE)] {
            let length = MEMCACHED.write_replica(&request, life, OWN, &mut out).unwrap();
            prop_assert_eq!(MEMCACHED.write_replica(&request, life, OWN, &mut vec![0; length - 1]), None);
            let copy = &out[..length];
            let asked = MEMCACHED.read(Datagram::whole(copy)).map_err(|why| TestCaseError::fail(format!("{why}: {}", copy.escape_ascii())))?;
            prop_assert_eq!((asked.plan, asked.effect, asked.keys), (Plan::One, Effect::Write, 1));
            let (mut one, mut other) = (KeyRoom::default(), KeyRoom::default());
            prop_assert_eq!(MEMCACHED.key(copy, &asked.first, &mut one), MEMCACHED.key(&payload, &ask.first, &mut other));
            prop_assert_eq!(&copy[..8], b"\x56\x78\0\0\0\x01\0\0");
            let of_copy = Request { payload: copy, ask: &asked };
            // The upstream request must be a command to which the server sends an answer.
            let again = MEMCACHED.replicated(&of_copy).unwrap();
            prop_assert!(again.wants_answer && again.is_removal == replicated.is_removal);
            // Limiting a time to live that was already limited must not change it.
            let shortened = MEMCACHED.shorten_life(&of_copy, LIFE, &mut vec![0; length + 20]);
            prop_assert!(life.is_none() || shortened == Shortened::Unchanged, "{}", copy.escape_ascii());
        }
        if is_quiet {
            prop_assert!(!replicated.wants_answer || command[0] == 0x80);
        }
    }

    #[test]
    fn nothing_but_the_nonce_says_that_it_was_done(
        command in any_request(), says in prop::sample::select(vec![&b"HD"[..], b"EN", b"NF", b"NS", b"STORED", b"\x81\x01"]),
        nonce: u64, more in vec(any::<u8>(), 0..40), at in any::<prop::sample::Index>(),
    ) {
        let payload = framed(&command);
        let Ok(ask) = MEMCACHED.read(Datagram::whole(&payload)) else { return Ok(()) };
        let request = Request { payload: &payload, ask: &ask };
        let frame = b"\x56\x78\0\0\0\x01\0\0";
        let line = [frame, says, format!(" O{nonce:016x}\r\n").as_bytes()].concat();
        let mut noise = line.clone();
        noise.splice(8 + at.index(noise.len() - 8).., more.iter().copied());
        for datagram in [line, noise, [&frame[..], &more].concat(), more] {
            if let Ok(Outcome::Done | Outcome::NotFound) = MEMCACHED.read_outcome(&request, OWN, &datagram) {
                let text = format!("O{:016x}", OWN.nonce);
                let has_nonce = datagram.windows(17).any(|window| window == text.as_bytes());
                let has_opaque = datagram.get(20..24) == Some(&OWN.nonce.to_be_bytes()[4..]);
                let is_known = if command[0] == 0x80 { has_opaque } else { has_nonce };
                prop_assert!(is_known);
            }
        }
    }

    #[test]
    fn with_another_payload_nothing_panics(command in any_request(), bytes in vec(any::<u8>(), 0..60)) {
        let Ok(ask) = MEMCACHED.read(Datagram::whole(&framed(&command))) else { return Ok(()) };
        let mut out = [0; 200];
        for payload in [bytes.clone(), framed(&bytes), framed(&[&[0x80], &bytes[..]].concat())] {
            let request = Request { payload: &payload, ask: &ask };
            let _ = MEMCACHED.replicated(&request);
            let _ = MEMCACHED.write_replica(&request, Some(LIFE), OWN, &mut out);
            let _ = MEMCACHED.read_outcome(&request, OWN, &payload);
            let _ = MEMCACHED.write_outcome(&request, Outcome::Refused(3), &mut out);
            let _ = MEMCACHED.write_unsupported(&request, &mut out);
        }
    }
}
