//! Checks that the cost of the parsers is linear in the length of a frame.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use packet::{
    ErrorSpec, IcmpErrorKind, decapsulate, icmp_checksum_ok, icmp_error, network, parse, pieces_v4,
    pieces_v6, quoted_tunnel, write_icmp_error,
};
use steps::Case;

// Promise: linear-time
#[test]
fn frames_are_read_in_linear_time() {
    steps::check("frames_are_read_in_linear_time", &CASES);
}

fn read(frame: &[u8]) {
    let Ok(parsed) = parse(frame) else { return };
    std::hint::black_box((parsed.addresses(frame), parsed.fragment_start(frame)));
    if let Some(Ok(error)) = icmp_error(frame, &parsed) {
        std::hint::black_box(quoted_tunnel(frame, &error.quoted));
    }
    std::hint::black_box(icmp_checksum_ok(frame, &parsed));
    let ip = network(frame).map_or(&[][..], |(_, ip)| ip);
    std::hint::black_box(decapsulate(ip));
    let v4 = pieces_v4(ip, 68).into_iter().flatten();
    let v6 = pieces_v6(ip, 1_280, 7).into_iter().flatten();
    std::hint::black_box(v4.chain(v6).map(|piece| piece.len()).sum::<usize>());
}

fn answer(frame: &[u8]) {
    let Ok(parsed) = parse(frame) else { return };
    let source = if frame[14] >> 4 == 4 { "192.0.2.1" } else { "2001:db8::1" }.parse().unwrap();
    let order = ErrorSpec { kind: IcmpErrorKind::TimeExceeded { code: 0 }, source, identification: 7 };
    let mut buffer = [&[0; 64][..], frame].concat();
    let end = buffer.len();
    std::hint::black_box(write_icmp_error(&mut buffer, 64..end, &parsed, &order));
}

const CASES: [Case<'_>; 8] = [
    ("payload of an IPv4 packet", |n| v4(17, &udp(&vec![1; 40 * n])), read),
    ("payload of an IPv6 packet", |n| v6(17, &udp(&vec![1; 40 * n])), read),
    ("extension headers", |n| v6(60, &extensions(n, 60)), read),
    ("routing headers and authentication headers", |n| v6(43, &extensions(n, 43)), read),
    ("options of a header", |n| v6(0, &[&[59, u8::MAX][..], &vec![1; 8 * n + 2_046]].concat()), read),
    (
        "quoted extension headers",
        |n| v6(58, &[&[3, 0, 0, 0, 0, 0, 0, 0][..], &v6(60, &extensions(n, 60))[14..]].concat()),
        read,
    ),
    (
        "quoted tunnels",
        |n| {
            v4(
                1,
                &[
                    &[3, 4, 0, 0, 0, 0, 0, 0][..],
                    &v4(47, &[&[0x10, 0, 8, 0][..], &vec![0; 40 * n][..]].concat())[14..],
                ]
                .concat(),
            )
        },
        read,
    ),
    ("ICMP error about a long packet", |n| v6(17, &udp(&vec![1; 40 * n])), answer),
];

fn link(kind: [u8; 2], ip: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &kind[..], ip].concat()
}

fn word(number: usize) -> [u8; 2] {
    u16::try_from(number).unwrap().to_be_bytes()
}

/// The DF flag is not set, and the header checksum is right.
fn v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = word(20 + payload.len());
    let mut header = [0x45, 0, high, low, 0, 7, 0, 0, 64, protocol, 0, 0, 198, 51, 100, 1, 203, 0, 113, 1];
    let sum = packet::checksum::checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    link([8, 0], &[&header[..], payload].concat())
}

fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = word(payload.len());
    let address = |last| [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let header = [&[0x60, 0, 0, 0, high, low, next, 64][..], &address(1)[..], &address(2)].concat();
    link([0x86, 0xdd], &[header, payload.to_vec()].concat())
}

fn udp(payload: &[u8]) -> Vec<u8> {
    let [high, low] = word(8 + payload.len());
    [&[4, 0, 0, 80, high, low, 0, 0][..], payload].concat()
}

fn extensions(count: usize, kind: u8) -> Vec<u8> {
    [kind, 0, 1, 4, 0, 0, 0, 0].repeat(count)
}
