use etherparse::{IpNumber, Ipv4Header, Ipv6FlowLabel, PacketBuilder, TcpHeader};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::parse;

const CLIENT: ([u8; 4], [u8; 16]) = ([192, 0, 2, 9], *b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x09");
const VIP: ([u8; 4], [u8; 16]) = ([198, 51, 100, 1], *b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\x01\x01");
const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn segment(v6: bool, header: TcpHeader, data: &[u8]) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(ROUTER_MAC, OUR_MAC);
    let ip = if v6 { link.ipv6(CLIENT.1, VIP.1, 9) } else { link.ipv4(CLIENT.0, VIP.0, 9) };
    let mut frame = Vec::new();
    ip.tcp_header(header).write(&mut frame, data).unwrap();
    frame
}

/// Builds the reset with etherparse.
fn expected(v6: bool, received: &TcpHeader, data: usize) -> Vec<u8> {
    let mut header = TcpHeader::new(received.destination_port, received.source_port, 0, 0);
    header.rst = true;
    if received.ack {
        header.sequence_number = received.acknowledgment_number;
    } else {
        let control = u64::from(received.syn) + u64::from(received.fin);
        let next = (u64::from(received.sequence_number) + data as u64 + control) % (1 << 32);
        (header.ack, header.acknowledgment_number) = (true, u32::try_from(next).unwrap());
    }
    let (link, mut frame) = (PacketBuilder::ethernet2(OUR_MAC, ROUTER_MAC), Vec::new());
    let step = if v6 {
        let mut ip =
            etherparse::Ipv6Header { hop_limit: 64, next_header: IpNumber::TCP, ..Default::default() };
        (ip.flow_label, ip.source, ip.destination) = (Ipv6FlowLabel::ZERO, VIP.1, CLIENT.1);
        link.ip(etherparse::IpHeaders::Ipv6(ip, Default::default()))
    } else {
        let mut ip = Ipv4Header::new(0, 64, IpNumber::TCP, VIP.0, CLIENT.0).unwrap();
        (ip.identification, ip.dont_fragment) = (0, true);
        link.ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
    };
    step.tcp_header(header).write(&mut frame, &[]).unwrap();
    frame
}

fn turned(frame: &[u8]) -> Option<Vec<u8>> {
    let parsed = parse(frame).unwrap();
    let mut buffer = frame.to_vec();
    let written = write_tcp_reset(&mut buffer, &parsed);
    assert_eq!(written.is_none(), buffer == frame);
    written.map(|length| buffer[..length].to_vec())
}

fn header() -> impl Strategy<Value = TcpHeader> {
    let numbers = (any::<u16>(), any::<u16>(), any::<u32>(), any::<u32>(), any::<u16>());
    (numbers, any::<[bool; 6]>(), 0..10_usize).prop_map(
        |((from, to, sequence, acknowledgment, window), [syn, ack, fin, psh, urg, ece], options)| {
            let mut header = TcpHeader::new(from, to, sequence, window);
            header.acknowledgment_number = acknowledgment;
            (header.syn, header.ack, header.fin) = (syn, ack, fin);
            (header.psh, header.urg, header.ece) = (psh, urg, ece);
            header.set_options_raw(&[1; 40][..options * 4]).unwrap();
            header
        },
    )
}

proptest! {
    #[test]
    fn write_tcp_reset_matches_etherparse(
        v6: bool, header in header(), data in vec(any::<u8>(), 0..1400), padding in 0..20_usize, tagged: bool,
    ) {
        let mut frame = segment(v6, header.clone(), &data);
        frame.extend(vec![0xee; padding]);
        let mut wanted = expected(v6, &header, data.len());
        if tagged {
            frame.splice(12..12, [0x81, 0, 0, 7]);
            wanted.splice(12..12, [0x81, 0, 0, 7]);
        }
        prop_assert_eq!(turned(&frame), Some(wanted));
    }

    /// Each bit of the packet is covered by a checksum, except the fields that routers change.
    #[test]
    fn damaged_segment_gets_no_reset(
        v6: bool, header in header(), data in vec(any::<u8>(), 0..40), at: prop::sample::Index, bit in 0..8,
    ) {
        let mut frame = segment(v6, header, &data);
        let start = if v6 { 14 + 40 } else { 14 + 8 };
        let at = start + at.index(frame.len() - start);
        frame[at] ^= 1_u8 << bit;
        let Ok(parsed) = parse(&frame) else { return Ok(()) };
        prop_assert_eq!(write_tcp_reset(&mut frame, &parsed), None);
    }

    #[test]
    fn any_bytes_and_any_offsets_do_not_panic(
        mut bytes in vec(any::<u8>(), 0..100), l3: u16, l4: u16, end: u16, v6: bool
    ) {
        let mut parsed = parse(&segment(v6, TcpHeader::new(1, 2, 3, 4), b"")).unwrap();
        (parsed.l3, parsed.l4, parsed.end) = (l3, l4, end);
        let old = bytes.clone();
        if write_tcp_reset(&mut bytes, &parsed).is_none() {
            prop_assert_eq!(bytes, old);
        }
    }
}

#[test]
fn resets_and_fragments_get_no_reset() {
    for v6 in [false, true] {
        for ack in [false, true] {
            let mut header = TcpHeader::new(1, 2, 3, 4);
            (header.rst, header.ack) = (true, ack);
            assert_eq!(turned(&segment(v6, header, b"")), None);
        }
    }
    let mut frame = segment(false, TcpHeader::new(1, 2, 3, 4), b"data");
    frame[20] = 0x20; // more fragments
    frame[24..26].fill(0);
    let sum = crate::oracle::checksum(&frame[14..34]).to_be_bytes();
    frame[24..26].copy_from_slice(&sum);
    assert_eq!(turned(&frame), None);
}

#[test]
fn partial_checksum_gets_a_reset() {
    let header = TcpHeader::new(1, 2, 3, 4);
    let mut frame = segment(false, header.clone(), b"data");
    let pseudo = [&CLIENT.0[..], &VIP.0, &[0, 6, 0, 24]].concat();
    frame[50..52].copy_from_slice(&(!crate::oracle::checksum(&pseudo)).to_be_bytes());
    assert_eq!(turned(&frame), Some(expected(false, &header, 4)));
}
