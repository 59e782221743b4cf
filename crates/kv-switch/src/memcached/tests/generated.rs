//! Tests with generated requests, whose keys and effects are known, and with damaged requests.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{FORWARDED, READ, binary, framed, oracle};
use crate::{Application, Datagram, Effect, KeyRoom, Memcached, Plan};

/// A generated request with its keys and its effect.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) command: Vec<u8>,
    keys: Vec<Vec<u8>>,
    effect: Effect,
}

/// Generates keys without the bytes that end a word or a line.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("ends a word or a line", |byte| !b"\0\n ".contains(byte));
    prop_oneof![vec(byte.clone(), 1..=40), vec(byte, 250)]
}

fn spaces() -> impl Strategy<Value = String> {
    (1..4_usize).prop_map(|count| " ".repeat(count))
}

fn noreply() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", " noreply"])
}

fn retrieval() -> impl Strategy<Value = Written> {
    let verb = prop::sample::select(vec![
        ("get", READ),
        ("gets", FORWARDED),
        ("gat 60", Effect::Write),
        ("gats 0", Effect::Write),
    ]);
    (verb, vec((spaces(), key()), 1..=32), prop::sample::select(vec!["", " "])).prop_map(
        |((verb, effect), keys, tail)| {
            let mut command = verb.as_bytes().to_vec();
            keys.iter().for_each(|(space, key)| command.extend([space.as_bytes(), key].concat()));
            command.extend([tail.as_bytes(), b"\r\n"].concat());
            Written { command, keys: keys.into_iter().map(|(_, key)| key).collect(), effect }
        },
    )
}

fn storage() -> impl Strategy<Value = Written> {
    let verb = prop::sample::select(vec!["set", "add", "replace", "append", "prepend", "cas"]);
    let value = prop_oneof![vec(any::<u8>(), 0..100), vec(any::<u8>(), 2_000..2_010)];
    (verb, key(), any::<u32>(), any::<i32>(), value, noreply()).prop_map(
        |(verb, key, flags, seconds, value, noreply)| {
            let seconds = seconds.max(-i32::MAX);
            let cas = if verb == "cas" { " 77" } else { "" };
            let numbers = format!(" {flags} {seconds} {}{cas}{noreply}\r\n", value.len());
            let command = [verb.as_bytes(), b" ", &key, numbers.as_bytes(), &value, b"\r\n"].concat();
            let effect = if verb == "set" { Effect::Write } else { Effect::Conditional };
            Written { command, keys: vec![key], effect }
        },
    )
}

fn counting() -> impl Strategy<Value = Written> {
    let verb = prop::sample::select(vec![
        ("delete", "", Effect::Write),
        ("delete", " 0", Effect::Write),
        ("incr", " 5", Effect::Conditional),
        ("decr", " 18446744073709551615", Effect::Conditional),
        ("touch", " -7", Effect::Write),
    ]);
    (verb, key(), noreply()).prop_map(|((verb, argument, effect), key, noreply)| {
        let command =
            [verb.as_bytes(), b" ", &key, argument.as_bytes(), noreply.as_bytes(), b"\r\n"].concat();
        Written { command, keys: vec![key], effect }
    })
}

fn quiet() -> impl Strategy<Value = Written> {
    vec((prop::sample::select(vec![0x09, 0x0d]), vec(any::<u8>(), 1..=250)), 1..=32).prop_map(|gets| {
        let mut command: Vec<u8> =
            gets.iter().flat_map(|(opcode, key)| binary(*opcode, b"", key, b"")).collect();
        command.extend(binary(0x0a, b"", b"", b""));
        Written { command, keys: gets.into_iter().map(|(_, key)| key).collect(), effect: READ }
    })
}

fn binary_storage() -> impl Strategy<Value = Written> {
    (prop::sample::select(vec![1, 2, 0x11, 0x13]), vec(any::<u8>(), 1..=250), vec(any::<u8>(), 0..2_000))
        .prop_map(|(opcode, key, value)| {
            let effect = if opcode & 0x0f == 1 { Effect::Write } else { Effect::Conditional };
            Written { command: binary(opcode, &[7; 8], &key, &value), keys: vec![key], effect }
        })
}

pub(super) fn written() -> impl Strategy<Value = Written> {
    prop_oneof![retrieval(), storage(), counting(), quiet(), binary_storage()]
}

fn checked(missing: usize, payload: &[u8]) {
    oracle::check(&[&u16::try_from(missing).unwrap().to_be_bytes(), payload].concat());
}

proptest! {
    #[test]
    fn keys_and_effect_are_those_that_were_written(written in written()) {
        let (payload, memcached) = (framed(&written.command), Memcached::new(32));
        let ask = memcached.read(Datagram::whole(&payload)).unwrap();
        prop_assert_eq!(ask.effect, written.effect);
        prop_assert_eq!(ask.plan, if written.keys.len() == 1 { Plan::One } else { Plan::Join });
        let mut keys = Vec::new();
        memcached.items(&payload, &ask, &mut |item| {
            keys.push(memcached.key(&payload, &item, &mut KeyRoom::default()).to_vec());
            std::ops::ControlFlow::Continue(())
        });
        prop_assert_eq!(keys, written.keys);
        checked(0, &payload);
    }

    #[test]
    fn a_first_piece_has_the_same_key_or_is_refused(written in written(), at_hand in any::<prop::sample::Index>()) {
        let (payload, memcached) = (framed(&written.command), Memcached::new(32));
        let piece = &payload[..at_hand.index(payload.len())];
        let datagram = Datagram::first_piece(piece, u16::try_from(payload.len()).unwrap());
        if let Ok(ask) = memcached.read(datagram) {
            prop_assert_eq!(memcached.read(Datagram::whole(&payload)), Ok(ask));
            let mut room = KeyRoom::default();
            prop_assert_eq!(memcached.key(piece, &ask.first, &mut room), &written.keys[0]);
        }
        checked(payload.len() - piece.len(), piece);
    }

    #[test]
    fn memcached_damaged_request_is_read_like_server_or_refused(
        written in written(),
        damage in vec((any::<prop::sample::Index>(), prop_oneof![any::<u8>(), prop::sample::select(b" \r\n\0-+0159b".to_vec())]), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
        tail in vec(any::<u8>(), 0..3),
    ) {
        let mut payload = framed(&written.command);
        for (place, byte) in damage {
            let place = place.index(payload.len());
            payload[place] = byte;
        }
        if let Some(cut) = cut {
            payload.truncate(cut.index(payload.len()));
        }
        payload.extend(tail);
        checked(0, &payload);
    }

    #[test]
    fn memcached_random_words_are_read_like_server_or_refused(
        words in vec(prop::sample::select(WORDS.to_vec()), 0..8), value in vec(any::<u8>(), 0..6),
    ) {
        let line = words.concat();
        checked(0, &framed(&[line.as_bytes(), b"\r\n"].concat()));
        checked(0, &framed(&[line.as_bytes(), b"\r\n", &value, b"\r\n"].concat()));
        checked(3, &framed(&[line.as_bytes(), b"\r\n"].concat()));
    }

    #[test]
    fn any_bytes_are_read_or_refused(missing in 0..3_usize, bytes in vec(any::<u8>(), 0..80)) {
        checked(missing, &bytes);
        checked(missing, &framed(&bytes));
        checked(missing, &framed(&[&[0x80], &bytes[..]].concat()));
    }
}

/// Words from which test lines are generated.
const WORDS: &[&str] = &[
    "get ",
    "gets ",
    "gat ",
    "set ",
    "add ",
    "cas ",
    "delete ",
    "incr ",
    "touch ",
    "mg ",
    "ms ",
    "md ",
    "ma ",
    "me ",
    "mn",
    "version",
    "version ",
    "k ",
    "aw== ",
    "0 ",
    "1 ",
    "2 ",
    "-1 ",
    "+3 ",
    "noreply",
    " ",
    "b ",
    "v ",
    "T0 ",
    "MA ",
    "O1 ",
    "\r\n",
    "\n",
    "\0",
    "flush_all",
];
