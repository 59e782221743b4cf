//! Tests that the cost of parsing router messages is linear in their length.

use std::net::Ipv4Addr;
use std::time::{Instant, SystemTime};

use steps::Case;

use crate::bfd::BfdConfig;
use crate::bfd::handed::{Handed, HandedBfd, decoded};
use crate::bfd::session::Session;
use crate::codec::Dialect;
use crate::inbox::Inbox;

// Promise: linear-time
#[test]
fn messages_are_read_in_linear_time() {
    steps::check("linear::messages_are_read_in_linear_time", &CASES);
}

/// Reads messages as a session does, in parts of 999 bytes.
fn session(bytes: &[u8]) {
    pieces(bytes, 999);
}

fn byte_by_byte(bytes: &[u8]) {
    pieces(bytes, 1);
}

fn pieces(bytes: &[u8], length: usize) {
    let mut inbox = Inbox::default();
    for part in bytes.chunks(length) {
        inbox.push(part);
        loop {
            match inbox.next(Dialect { local_asn: 65_101, external: true, four_byte: true }) {
                Ok(Some(message)) => drop(std::hint::black_box(message)),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

fn handed(bytes: &[u8]) {
    let _ = std::hint::black_box(decoded(bytes));
}

const CASES: [Case<'_>; 14] = [
    ("KEEPALIVEs", |n| frame(4, &[]).repeat(n), session),
    ("KEEPALIVEs, byte by byte", |n| frame(4, &[]).repeat(n), byte_by_byte),
    ("one message, byte by byte", |n| update(&[], &[], &[24, 198, 51, 100].repeat(n)), byte_by_byte),
    ("announced prefixes", |n| update(&[], &attributes(&[]), &[24, 198, 51, 100].repeat(n)), session),
    ("withdrawn prefixes", |n| update(&[24, 198, 51, 100].repeat(n), &[], &[]), session),
    ("unknown attributes", |n| update(&[], &attributes(&[0xc0, 99, 1, 0].repeat(n)), &[]), session),
    (
        "attributes of all types",
        |n| {
            let each = |number: usize| [0xc0, u8::try_from(number % 256).unwrap(), 0];
            update(&[], &attributes(&(0..n).flat_map(each).collect::<Vec<_>>()), &[])
        },
        session,
    ),
    ("repeated AS paths", |n| update(&[], &attributes(&[0x40, 2, 0].repeat(n)), &[]), session),
    (
        "a long AS path",
        |n| {
            update(
                &[],
                &attributes(&long(2, &[&[2, 4][..], &[0, 0, 253, 232].repeat(4)].concat().repeat(n))),
                &[],
            )
        },
        session,
    ),
    ("communities", |n| update(&[], &attributes(&long(8, &numbers(n, 4))), &[]), session),
    ("large communities", |n| update(&[], &attributes(&long(32, &numbers(n, 12))), &[]), session),
    (
        "prefixes of another family",
        |n| {
            let next_hop = [&[0, 2, 1, 16][..], &[0x20; 16], &[0]].concat();
            update(
                &[],
                &attributes(&long(14, &[next_hop, [32, 0x20, 1, 0x0d, 0xb8].repeat(n)].concat())),
                &[],
            )
        },
        session,
    ),
    ("unknown messages", |n| frame(3, &vec![6; 20 * n]), session),
    ("sessions of BFD", sessions, handed),
];

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(19 + body.len()).unwrap().to_be_bytes();
    [&[0xff; 16][..], &length, &[kind], body].concat()
}

fn update(withdrawn: &[u8], attributes: &[u8], announced: &[u8]) -> Vec<u8> {
    let length = |part: &[u8]| u16::try_from(part.len()).unwrap().to_be_bytes();
    frame(2, &[&length(withdrawn), withdrawn, &length(attributes), attributes, announced].concat())
}

/// Returns the handover data of sessions that differ in name, peer and slot.
fn sessions(count: usize) -> Vec<u8> {
    let one = |number: usize| {
        let number = u32::try_from(number).unwrap();
        let session = Session::new(number << 16 | number, 100_000, 3, Instant::now());
        let config = BfdConfig::new(&number.to_string(), Ipv4Addr::from_bits(0xcb00_7100 + number).into());
        Handed { config, session, since: SystemTime::UNIX_EPOCH, losses: 1 }
    };
    let sessions = (0..count).map(one).collect();
    HandedBfd { hears: [false, true], sessions, sockets: Vec::new() }.to_bytes()
}

/// Returns the attributes that every announcement has, and others.
fn attributes(others: &[u8]) -> Vec<u8> {
    let own = [0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 253, 232, 0x40, 3, 4];
    [&own[..], &Ipv4Addr::new(192, 0, 2, 1).octets(), others].concat()
}

/// Returns an attribute with a length of two bytes.
fn long(kind: u8, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap().to_be_bytes();
    [&[0xd0, kind][..], &length[..], value].concat()
}

fn numbers(count: usize, length: usize) -> Vec<u8> {
    (0..count)
        .flat_map(|number| [&vec![0; length - 2][..], &u16::try_from(number).unwrap().to_be_bytes()].concat())
        .collect()
}
