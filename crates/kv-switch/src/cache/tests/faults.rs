//! Tests for faults in the code of BMC, an in-kernel cache of memcached replies (Ghigoff et al.,
//! NSDI 2021).

use std::ops::ControlFlow;

use super::*;
use crate::{Ask, Copied, Datagram, Effect, Plan, Refusal, Request};

/// Parses a request and records a write in the epochs, as the forwarder does before it sends the
/// request.
fn pass(epochs: &Epochs, now: u64, datagram: Datagram<'_>) -> Result<Ask, Refusal> {
    let ask = MEMCACHED.read(datagram)?;
    if matches!(ask.effect, Effect::Write | Effect::Conditional) {
        let mut room = KeyRoom::default();
        MEMCACHED.items(datagram.payload(), &ask, &mut |item| {
            epochs.key_written(now, hash(MEMCACHED.key(datagram.payload(), &item, &mut room)));
            ControlFlow::Continue(())
        });
    }
    Ok(ask)
}

fn framed(command: &[u8]) -> Vec<u8> {
    [b"\x12\x34\0\0\0\x01\0\0", command].concat()
}

fn binary(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = u8::try_from(extras.len() + key.len() + value.len()).unwrap();
    let (key_len, extras_len) = (u8::try_from(key.len()).unwrap(), u8::try_from(extras.len()).unwrap());
    [&[0x80, opcode, 0, key_len, extras_len, 0, 0, 0, 0, 0, 0, body], &[0; 12][..], extras, key, value]
        .concat()
}

fn hit(command: &[u8], copied: &Copied<'_>) -> Option<Vec<u8>> {
    let (payload, mut out) = (framed(command), [0; 2_048]);
    let ask = MEMCACHED.read(Datagram::whole(&payload)).unwrap();
    let length = MEMCACHED.write_hit(&Request { payload: &payload, ask: &ask }, copied, &mut out)?;
    Some(out[..length].to_vec())
}

fn copied<'a>(bytes: &'a [u8]) -> Copied<'a> {
    Copied::new(b"k", Stored { flags: 5, cas: 9, bytes })
}

/// BMC fault 1: entries had no time to live.
#[test]
fn a_copy_ends_before_its_value_expires() {
    let epochs = Arc::new(Epochs::new());
    let (mut cache, now) = (cache(&epochs), 10 * SECOND);
    let long = |key| Read { lease: Lease::from_nanos(SECOND), ..read(key) };
    let ask = |cache: &mut Cache<u16>, now| {
        (0..1_000).for_each(|_| assert!(cache.look_up(now, &long(b"k")).is_none()));
        cache.ask(now).unwrap()
    };
    // The server reports whole seconds, so a reported time of 2 s guarantees only one second.
    let number = ask(&mut cache, now);
    let answer = answered(&cache, number, "VA 2 kk f5 t2 c9|hi");
    assert_eq!(cache.answer(now, &MEMCACHED, &said(number, &answer)), Ok(Filled::Kept));
    assert!(cache.look_up(now + SECOND - 1, &long(b"k")).is_some());
    assert!(cache.look_up(now + SECOND, &long(b"k")).is_none());
    // A reported time of 1 s guarantees nothing.
    let number = ask(&mut cache, now + 2 * SECOND);
    let answer = answered(&cache, number, "VA 2 kk f5 t1 c9|hi");
    assert_eq!(cache.answer(now + 2 * SECOND, &MEMCACHED, &said(number, &answer)), Ok(Filled::Useless));
}

/// BMC fault 2: only the text command `set` invalidated entries.
#[test]
fn every_command_that_changes_a_key_ends_its_copy() {
    let text: [&[u8]; 18] = [
        b"set k 0 0 1\r\nx\r\n",
        b"set k 0 0 1 noreply\r\nx\r\n",
        b"add k 0 0 1\r\nx\r\n",
        b"replace k 0 0 1\r\nx\r\n",
        b"append k 0 0 1\r\nx\r\n",
        b"prepend k 0 0 1\r\nx\r\n",
        b"cas k 0 0 1 9\r\nx\r\n",
        b"delete k\r\n",
        b"incr k 1\r\n",
        b"decr k 1\r\n",
        b"touch k 9\r\n",
        b"gat 9 a k b\r\n",
        b"gats 9 k\r\n",
        b"ms k 1\r\nx\r\n",
        b"ms aw== 1 b\r\nx\r\n",
        b"md k q\r\n",
        b"ma k\r\n",
        b"mg k T30\r\n",
    ];
    let stored = [0; 8];
    let binaries = [
        binary(0x01, &stored, b"k", b"x"),
        binary(0x11, &stored, b"k", b"x"),
        binary(0x02, &stored, b"k", b"x"),
        binary(0x03, &stored, b"k", b"x"),
        binary(0x04, &[], b"k", b""),
        binary(0x14, &[], b"k", b""),
        binary(0x05, &[0; 20], b"k", b""),
        binary(0x16, &[0; 20], b"k", b""),
        binary(0x0e, &[], b"k", b"x"),
        binary(0x1a, &[], b"k", b"x"),
        binary(0x1c, &[0; 4], b"k", b""),
        binary(0x1d, &[0; 4], b"k", b""),
    ];
    for command in text.into_iter().chain(binaries.iter().map(Vec::as_slice)) {
        let epochs = Arc::new(Epochs::new());
        let (mut cache, now) = filled(&epochs);
        assert!(cache.look_up(now, &read(b"k")).is_some());
        pass(&epochs, now, Datagram::whole(&framed(command))).unwrap();
        assert_eq!(cache.look_up(now, &read(b"k")), None, "{}", command.escape_ascii());
    }
}

/// BMC fault 3: commands in several segments were missed.
#[test]
fn a_write_in_several_pieces_ends_the_copy_by_its_first() {
    let epochs = Arc::new(Epochs::new());
    let (mut cache, now) = filled(&epochs);
    let first = framed(b"set k 0 0 9000\r\nxxxxxxxx");
    let length = u16::try_from(framed(b"set k 0 0 9000\r\n").len() + 9_002).unwrap();
    pass(&epochs, now, Datagram::first_piece(&first, length)).unwrap();
    assert_eq!(cache.look_up(now, &read(b"k")), None);
    // A first fragment without the whole command line is refused.
    let short = framed(b"set k");
    assert_eq!(
        pass(&epochs, now, Datagram::first_piece(&short, length)).unwrap_err(),
        Refusal::FirstFragmentTooShort
    );
}

/// BMC fault 4: a fill that raced a `set` stored the old value.
#[test]
fn an_answer_that_a_write_overtook_is_not_kept() {
    let epochs = Arc::new(Epochs::new());
    let (mut cache, now) = (cache(&epochs), 10 * SECOND);
    let number = wanted(&mut cache, now, b"k");
    let answer = answered(&cache, number, "VA 3 kk f5 t-1 c9|old");
    pass(&epochs, now, Datagram::whole(&framed(b"set k 0 0 3\r\nnew\r\n"))).unwrap();
    assert_eq!(cache.answer(now + 1, &MEMCACHED, &said(number, &answer)), Ok(Filled::Stale));
    assert_eq!((cache.look_up(now + 1, &read(b"k")), cache.counts().stale_avoided), (None, 1));
}

/// BMC fault 5: a reply to `gets` was served to `get`.
#[test]
fn each_command_has_the_reply_of_its_kind() {
    let copied = copied(b"hi");
    assert_eq!(hit(b"get k\r\n", &copied), Some(framed(b"VALUE k 5 2\r\nhi\r\nEND\r\n")));
    assert_eq!(hit(b"gets k\r\n", &copied), None);
    let ask = MEMCACHED.read(Datagram::whole(&framed(b"gets k\r\n"))).unwrap();
    assert_eq!(ask.effect, Effect::Read { cacheable: false });
}

/// BMC fault 6: values with a line end were cut short.
#[test]
fn a_value_is_copied_with_all_line_ends_in_it() {
    let epochs = Arc::new(Epochs::new());
    let (mut cache, now) = (cache(&epochs), 10 * SECOND);
    let value = "a\r\nEND\r\nVALUE k 0 1\r\n\n";
    let number = wanted(&mut cache, now, b"k");
    let answer = answered(&cache, number, &format!("VA {} kk f5 t-1 c9|{value}", value.len()));
    assert_eq!(cache.answer(now, &MEMCACHED, &said(number, &answer)), Ok(Filled::Kept));
    let copy = cache.look_up(now, &read(b"k")).unwrap();
    let reply = hit(b"get k\r\n", &cache.copy(copy).unwrap()).unwrap();
    assert_eq!(reply, framed(format!("VALUE k 5 {}\r\n{value}\r\nEND\r\n", value.len()).as_bytes()));
}

/// BMC fault 7: requests for several keys were answered from entries, and the other keys were
/// reported as missing.
#[test]
fn a_request_for_several_keys_is_not_answered_from_a_copy() {
    let batch =
        [binary(0x09, &[], b"k", b""), binary(0x09, &[], b"l", b""), binary(0x0a, &[], b"", b"")].concat();
    for command in [&b"get k l\r\n"[..], b"get k k\r\n", &batch] {
        assert_eq!(hit(command, &copied(b"hi")), None);
        let ask = MEMCACHED.read(Datagram::whole(&framed(command))).unwrap();
        assert_eq!(ask.plan, Plan::Join);
    }
}

/// BMC fault 8: the headers of answers were not checked.
#[test]
fn an_answer_fills_only_what_it_answers() {
    let epochs = Arc::new(Epochs::new());
    let (mut cache, now) = (cache(&epochs), 10 * SECOND);
    let number = wanted(&mut cache, now, b"k");
    let right = answered(&cache, number, "VA 2 kk f5 t-1 c9|hi");
    let refuse = |cache: &mut Cache<u16>, answer: &[u8]| {
        cache.answer(now, &MEMCACHED, &said(number, answer)).unwrap_err()
    };
    for (at, error) in [(1, NoAnswer::OtherRequest), (3, NoAnswer::Continuation)] {
        let mut forged = right.clone();
        forged[at] ^= 1;
        assert_eq!(refuse(&mut cache, &forged), error);
    }
    let nonce = right.windows(2).position(|pair| pair == b" O").unwrap() + 2;
    for digit in nonce..nonce + 16 {
        let mut forged = right.clone();
        forged[digit] ^= 1;
        assert_eq!(refuse(&mut cache, &forged), NoAnswer::OtherNonce);
    }
    let forged = answered(&cache, number, "VA 2 kother f5 t-1 c9|hi");
    assert_eq!(refuse(&mut cache, &forged), NoAnswer::OtherKey);
    assert_eq!(refuse(&mut cache, &right[..right.len() - 1]), NoAnswer::Malformed);
    assert_eq!(refuse(&mut cache, &right[..5]), NoAnswer::Malformed);
    assert_eq!(refuse(&mut cache, b"\0\x07\0\0\0\x01\0\0ERROR\r\n"), NoAnswer::OtherNonce);
    assert_eq!(cache.look_up(now, &read(b"k")), None);
    assert_eq!(
        cache.answer(now, &MEMCACHED, &said(number, &right)),
        Ok(Filled::Kept),
        "the genuine answer must still be accepted"
    );
    assert_eq!(
        cache.answer(now, &MEMCACHED, &said(number, &right)),
        Err(NoAnswer::NeverAsked),
        "a second answer must be refused"
    );
}

/// Each fetch has a different nonce.
#[test]
fn each_fetch_has_a_nonce_of_its_own() {
    let epochs = Arc::new(Epochs::new());
    let (mut one, mut other) = (cache(&epochs), cache(&epochs));
    let said = |cache: &mut Cache<u16>| {
        let number = wanted(cache, 10 * SECOND, b"k");
        let text = asked(cache, number);
        cache.give_up(number);
        text
    };
    let (first, second) = (said(&mut one), said(&mut one));
    assert_ne!(first, second);
    assert_eq!(first, said(&mut other), "caches with the same seed use the same nonces");
}
