//! Tests of SCTP and UDP-Lite: their services have ports, and all packets of a flow, its fragments
//! and ICMP errors about it reach one backend. The expected backend is computed with an independent
//! hash implementation.

use std::hash::Hasher;
use std::net::IpAddr;

use forwarder::*;
use proptest::prelude::*;
use siphasher::sip::SipHasher13;

use crate::bed::*;
use crate::icmp::error;
use crate::pieces::Datagram;

const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;
const SERVED: u16 = 3868;

fn parts_with_services() -> Parts {
    let mut parts = parts(gre_slots(5), &[1; 5]);
    for vip in [VIP4, VIP6] {
        parts.bindings.push(binding(vip, SCTP, SERVED..=SERVED, 0));
        parts.bindings.push(binding(vip, UDP_LITE, SERVED..=SERVED + 9, 0));
    }
    parts
}

/// Returns an SCTP packet with one chunk, or a UDP-Lite datagram whose checksum covers its header.
/// The checksums are wrong, because the load balancer does not verify them in packets that it
/// forwards.
fn payload(protocol: u8, ports: (u16, u16), data: usize) -> Vec<u8> {
    let mut bytes = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
    if protocol == SCTP {
        bytes.extend([0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 0, 3, 0, 16]);
    } else {
        bytes.extend([0, 8, 0x12, 0x34]);
    }
    bytes.extend((0..data).map(|n| (n * 7 + n / 251) as u8));
    bytes
}

/// The initiate tag of [`sctp_init`].
pub(crate) const INITIATE_TAG: [u8; 4] = [9, 8, 7, 6];

/// Computes the CRC32c of an SCTP packet bit by bit, with an empty checksum field.
pub(crate) fn crc32c(packet: &[u8]) -> [u8; 4] {
    let bytes = packet[..8].iter().chain(&[0; 4]).chain(&packet[12..]);
    let bits = bytes.flat_map(|byte| (0..8).map(move |bit| u32::from(byte >> bit & 1)));
    let crc = bits.fold(u32::MAX, |crc, bit| crc >> 1 ^ if (crc ^ bit) & 1 == 1 { 0x82f6_3b78 } else { 0 });
    (!crc).to_le_bytes()
}

/// Returns an SCTP packet with an INIT chunk, whose first parameter is padding with these bytes.
pub(crate) fn sctp_init(ports: (u16, u16), padding: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| u16::try_from(bytes).unwrap().to_be_bytes();
    let mut packet = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
    packet.extend([0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    packet.extend(length(24 + padding.len()));
    packet.extend(INITIATE_TAG);
    packet.extend([0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 7, 0x80, 0x05]);
    packet.extend(length(4 + padding.len()));
    packet.extend(padding);
    let sum = crc32c(&packet);
    packet[8..12].copy_from_slice(&sum);
    packet
}

/// Returns a UDP-Lite packet whose checksum covers the whole packet.
pub(crate) fn udp_lite(source: &str, vip: &str, ports: (u16, u16), data: &[u8]) -> Vec<u8> {
    let mut packet = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
    packet.extend([0; 4]);
    packet.extend(data);
    let octets = |address: &str| match ip(address) {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let length = u32::try_from(packet.len()).unwrap().to_be_bytes();
    let summed = [&octets(source), &octets(vip), &length[..], &[0, UDP_LITE], &packet].concat();
    let words =
        summed.chunks(2).map(|word| u64::from(word[0]) << 8 | word.get(1).map_or(0, |low| u64::from(*low)));
    let sum = !((words.sum::<u64>() % 0xffff) as u16);
    packet[6..8].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Returns an unfragmented packet from `source` to `vip`.
pub(crate) fn packet(source: &'static str, vip: &'static str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = udp(source, 1, vip, 2, &payload[8..]);
    let at = if vip == VIP4 { 34 } else { 54 };
    frame.truncate(at);
    frame.extend(payload);
    frame[if vip == VIP4 { 23 } else { 20 }] = protocol;
    if vip == VIP4 { crate::icmp::refresh(frame) } else { frame }
}

/// Computes the backend of a flow from the message that `FlowHasher` documents.
fn by_hand(source: &str, ports: (u16, u16), vip: &str, protocol: u8) -> u8 {
    let mut hasher = SipHasher13::new_with_key(&[5; 16]);
    let little = |address: [u8; 4]| u32::from_be_bytes(address).to_le_bytes();
    match (ip(source), ip(vip)) {
        (IpAddr::V4(source), IpAddr::V4(vip)) => {
            hasher.write(&little(vip.octets()));
            hasher.write(&little(source.octets()));
            hasher.write(&[1, protocol, 1, 0]);
        }
        (IpAddr::V6(source), IpAddr::V6(vip)) => {
            hasher.write(&source.octets());
            hasher.write(&vip.octets());
            hasher.write(&[1, protocol, 0, 0]);
        }
        _ => panic!("families"),
    }
    hasher.write(&ports.1.to_le_bytes());
    hasher.write(&ports.0.to_le_bytes());
    let table = pool(&gre_slots(5), &[1; 5]);
    let rank = table.table.as_ref().unwrap().lookup_uniform(hasher.finish());
    u8::try_from(table.slots[rank.index_by_name()].0 + 1).unwrap()
}

/// Returns a quote of the reply that a backend sends to a packet with this payload.
fn quote(source: &'static str, vip: &'static str, protocol: u8, ports: (u16, u16), len: usize) -> Vec<u8> {
    let reply = payload(protocol, (ports.1, ports.0), 600);
    let mut ip_packet = packet(source, vip, protocol, &reply).split_off(14);
    let (at, width) = if vip == VIP4 { (12, 4) } else { (8, 16) };
    let (from, to) = ip_packet[at..at + 2 * width].split_at(width);
    let swapped = [to, from].concat();
    ip_packet[at..at + 2 * width].copy_from_slice(&swapped);
    ip_packet.truncate(len);
    ip_packet
}

proptest! {
    #[test]
    fn packets_fragments_and_errors_of_a_flow_reach_its_backend(
        v6: bool,
        protocol in prop::sample::select(vec![SCTP, UDP_LITE]),
        source_port: u16,
        order in Just(vec![0, 1, 2]).prop_shuffle(),
        has_fast_path: bool,
    ) {
        let (source, vip) = if v6 { ("2001:db8:9::7", VIP6) } else { ("198.51.100.7", VIP4) };
        let mut bed = Bed::with(parts_with_services(), crate::icmp::generous());
        if !has_fast_path {
            bed.pipeline = bed.pipeline.without_fast_path();
        }
        let ports = (source_port, SERVED);
        let expected = by_hand(source, ports, vip, protocol);
        let sent = packet(source, vip, protocol, &payload(protocol, ports, 40));
        let (verdict, out) = bed.send(24, &sent);
        prop_assert_eq!((verdict, out[14 + 19]), (Verdict::Tx, expected));
        // The payload, and with it the checksum of SCTP, is unchanged.
        let inner = if v6 { 40 } else { 20 };
        prop_assert_eq!(&out[14 + 24 + inner..], &sent[14 + inner..]);
        prop_assert_eq!(bed.pipeline.flows().len(), 1);

        let whole = Datagram { source, vip, protocol, id: 7, payload: payload(protocol, ports, 1_300) };
        let pieces = whole.cut(512);
        let delivered: Vec<_> = order.iter().flat_map(|place| bed.all(&pieces[*place])).collect();
        prop_assert_eq!(delivered.len(), 3);
        for (verdict, out) in &delivered {
            prop_assert_eq!((*verdict, out[14 + 19]), (Verdict::Tx, expected));
        }
        for length in [inner + 8, 200] {
            let kind = if v6 { (1, 3) } else { (3, 1) };
            let (verdict, out) = bed.send(24, &error(vip, kind, &quote(source, vip, protocol, ports, length)));
            prop_assert_eq!((verdict, out[14 + 19]), (Verdict::Tx, expected));
        }
    }
}

#[test]
fn other_ports_have_no_service_and_tiny_fragments_are_dropped() {
    let mut bed = Bed::new(parts_with_services());
    for (source, vip) in [("198.51.100.7", VIP4), ("2001:db8:9::7", VIP6)] {
        for (protocol, port, verdict) in [
            (SCTP, SERVED, Verdict::Tx),
            (SCTP, SERVED + 1, Verdict::Drop(DropReason::NoVip)),
            (UDP_LITE, SERVED + 9, Verdict::Tx),
            (UDP_LITE, SERVED + 10, Verdict::Drop(DropReason::NoVip)),
            (33, SERVED, Verdict::Drop(DropReason::NoVip)),
        ] {
            let sent = packet(source, vip, protocol, &payload(protocol, (4000, port), 40));
            assert_eq!(bed.send(24, &sent).0, verdict, "{protocol} {port}");
        }
        for (protocol, carried) in [(SCTP, 8), (UDP_LITE, 0)] {
            let payload = payload(protocol, (4000, SERVED), 100);
            let piece = Datagram { source, vip, protocol, id: 9, payload }.piece(0, carried);
            // A fragment without its ports is malformed, and a fragment with a part of the header
            // is too small.
            let reason = if carried == 0 { DropReason::Malformed } else { DropReason::FragmentTiny };
            assert_eq!(bed.all(&piece)[0].0, Verdict::Drop(reason));
        }
    }
}
