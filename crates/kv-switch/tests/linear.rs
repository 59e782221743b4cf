//! Checks that the cost of reading requests and answers is linear in the length of a datagram.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::hint::black_box;
use std::ops::ControlFlow;

use kv_switch::{
    Application, Ask, Datagram, Fetch, Header, KeyRoom, Memcached, Offset, OwnId, Plan, Request, ShortLife,
    Stored,
};
use steps::Case;

// Promise: linear-time
#[test]
fn datagrams_are_read_in_linear_time() {
    steps::check("datagrams_are_read_in_linear_time", &CASES);
}

const MEMCACHED: Memcached = Memcached::new(u16::MAX).refusing_versions();
const OWN: OwnId = OwnId { request: 7, nonce: 0x1234 };

/// Reads a request in all ways in which a packet thread may read it.
fn request(payload: &[u8]) {
    let whole = Datagram::whole(payload);
    let _ = black_box((Offset::new(0, 9).read(whole), Header::new(b'g').read(whole)));
    let piece = Datagram::first_piece(payload, u16::try_from(payload.len() + 9).unwrap());
    let _ = black_box(MEMCACHED.read(piece));
    let Ok(ask) = MEMCACHED.read(whole) else { return };
    let (request, mut out) = (Request { payload, ask: &ask }, vec![0; 1 << 17]);
    let life = ShortLife { seconds: 9, now: 1_700_000_000 };
    let mut items = Vec::new();
    MEMCACHED.items(payload, &ask, &mut |item| {
        black_box(MEMCACHED.key(payload, &item, &mut KeyRoom::default()));
        items.push(item);
        ControlFlow::Continue(())
    });
    let found = |_| Some(Stored { flags: 1, cas: 2, bytes: b"value" });
    black_box(MEMCACHED.write_part(&request, &mut items.into_iter(), OWN, &mut out));
    black_box((
        MEMCACHED.reply_datagrams(&request, &found),
        MEMCACHED.write_reply(&request, &found, 0, &mut out),
    ));
    black_box((MEMCACHED.shorten_life(&request, life, &mut out), MEMCACHED.has_answer(&request)));
    black_box((MEMCACHED.replicated(&request), MEMCACHED.write_replica(&request, Some(life), OWN, &mut out)));
    black_box((MEMCACHED.is_acknowledged(&request), MEMCACHED.write_unsupported(&request, &mut out)));
}

/// Reads an answer as an answer to each kind of upstream request.
fn answer(payload: &[u8]) {
    black_box(MEMCACHED.answer_frame(payload));
    for text in [&b"get a b\r\n"[..], b"gat 9 a b\r\n", b"set a 0 0 1\r\nx\r\n", b"md a\r\n"] {
        let payload_of_request = datagram(text);
        let ask: Ask = MEMCACHED.read(Datagram::whole(&payload_of_request)).unwrap();
        let request = Request { payload: &payload_of_request, ask: &ask };
        let _ = black_box(MEMCACHED.read_outcome(&request, OWN, payload));
        if ask.plan == Plan::Join {
            let _ = black_box(MEMCACHED.read_answer(&request, OWN, payload, &mut KeyRoom::default()));
        }
    }
    for known in [None, Some(3)] {
        let fetch = Fetch::new(b"a", known, false);
        let _ = black_box(MEMCACHED.read_fetched(&fetch, OWN, payload, &mut KeyRoom::default()));
    }
}

const CASES: [Case<'_>; 17] = [
    ("keys", |n| datagram(&[&b"get"[..], &b" key"[..].repeat(n)[..], b"\r\n"].concat()), request),
    (
        "keys with versions",
        |n| datagram(&[&b"gats 9"[..], &b" k"[..].repeat(n)[..], b"\r\n"].concat()),
        request,
    ),
    ("spaces", |n| datagram(&[&b"get k"[..], &b" "[..].repeat(20 * n)[..], b"k\r\n"].concat()), request),
    ("a long key", |n| datagram(&[&b"get "[..], &b"k"[..].repeat(20 * n)[..], b"\r\n"].concat()), request),
    ("a line without an end", |n| datagram(&b"get k "[..].repeat(n)), request),
    (
        "a value",
        |n| {
            let head = format!("set k 0 0 {}\r\n", 40 * n);
            datagram(&[head.as_bytes(), &b"\r"[..].repeat(40 * n), b"\r\n"].concat())
        },
        request,
    ),
    (
        "spaces behind a value's key",
        |n| datagram(&[&b"set k"[..], &b" "[..].repeat(20 * n)[..], b"0 0 1\r\nx\r\n"].concat()),
        request,
    ),
    (
        "meta flags",
        |n| datagram(&[&b"ms k 1"[..], &b" Oaa k q T9"[..].repeat(n)[..], b"\r\nx\r\n"].concat()),
        request,
    ),
    (
        "one meta flag",
        |n| datagram(&[&b"mg k v P"[..], &b"p"[..].repeat(20 * n)[..], b"\r\n"].concat()),
        request,
    ),
    (
        "quiet binary reads",
        |n| datagram(&[&binary(0x09, b"k").repeat(n)[..], &binary(0x0a, b"")].concat()),
        request,
    ),
    ("a binary value", |n| datagram(&binary(0x01, &b"k"[..].repeat(40 * n))), request),
    ("random bytes", |n| datagram(&[0x80, 0xff, 0, 1].repeat(10 * n)), request),
    ("flags of an answer", |n| datagram(&[&b"HD"[..], &b" W X"[..].repeat(n)[..], b"\r\n"].concat()), answer),
    (
        "spaces in an answer",
        |n| datagram(&[&b"VA 1"[..], &b" "[..].repeat(20 * n)[..], b"\r\nx\r\n"].concat()),
        answer,
    ),
    (
        "a value in an answer",
        |n| {
            let head = format!("VA {} ka f1 c2 t-1 O{:016x}\r\n", 40 * n, OWN.nonce);
            datagram(&[head.as_bytes(), &b"\r"[..].repeat(40 * n), b"\r\n"].concat())
        },
        answer,
    ),
    (
        "an error in an answer",
        |n| datagram(&[&b"SERVER_ERROR "[..], &b"too larg"[..].repeat(5 * n)[..], b"\r\n"].concat()),
        answer,
    ),
    ("answers without an end", |n| datagram(&b"HD k"[..].repeat(n)), answer),
];

/// Returns a datagram with a command: request ID, number 0 of 1 datagrams.
fn datagram(command: &[u8]) -> Vec<u8> {
    [&[0, 7, 0, 0, 0, 1, 0, 0][..], command].concat()
}

fn binary(opcode: u8, key: &[u8]) -> Vec<u8> {
    let [.., high, low] = key.len().to_be_bytes();
    let mut command = vec![0x80, opcode, high, low, 0, 0, 0, 0, 0, 0, high, low];
    command.extend([0; 12]);
    command.extend(key);
    command
}
