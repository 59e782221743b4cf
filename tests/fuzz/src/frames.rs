//! Seeds for fuzz targets: valid frames of every kind that packet threads parse.

use std::net::IpAddr;

use etherparse::{IpNumber, PacketBuilder, icmpv4};
use packet::{Encapsulation, Family, Inner, Outer, Template};

use crate::bed::{OURS, ROUTER, VIP4, VIP6, ip, tagged, tcp, udp};

const CLIENT4: &str = "198.51.100.7";
const CLIENT6: &str = "2001:db8:9::7";
/// The offset of the IP header in a frame without VLAN tags.
const L3: usize = 14;

/// Returns TCP, UDP and SCTP frames over IPv4 and IPv6, including VLAN tags, IP options, fragments,
/// extension headers and echo requests.
pub(crate) fn plain() -> Vec<Vec<u8>> {
    let (v4, v6) = (tcp(CLIENT4, 1000, VIP4, 80, "S"), tcp(CLIENT6, 1000, VIP6, 80, "FA"));
    let (dns, quic) = (udp(CLIENT4, 1000, VIP4, 53, b"query"), udp(CLIENT6, 1000, VIP6, 443, b"hello"));
    let twice = tagged(&tagged(&quic, 0x8100, 5), 0x88a8, 6);
    let mut all = vec![tagged(&v4, 0x8100, 7), twice, echo4(), echo6(), sctp_init()];
    all.extend([piece4(&dns, 0x2000), piece4(&dns, 2), with_options(&v4)]);
    // The tested extension headers are hop-by-hop options, routing, first fragment, later fragment,
    // AH and destination options.
    let padded = [0, 0, 1, 4, 0, 0, 0, 0];
    for kind in [0, 43, 60] {
        all.push(extended(&v6, kind, &padded));
    }
    all.push(extended(&quic, 44, &[0, 0, 0, 1, 0, 0, 0, 9]));
    all.push(extended(&quic, 44, &[0, 0, 0, 9, 0, 0, 0, 9]));
    all.push(extended(&v6, 51, &[0, 1, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1]));
    all.push(extended(&extended(&v6, 60, &padded), 0, &padded));
    all.extend([v4, v6, dns, quic]);
    all
}

/// Returns an SCTP packet with an INIT chunk.
fn sctp_init() -> Vec<u8> {
    let ports_and_tag = [0x0f, 0xa0, 0x0f, 0x1c, 0, 0, 0, 0, 0, 0, 0, 0];
    let init = [1, 0, 0, 20, 9, 8, 7, 6, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 7];
    let mut packet = [&ports_and_tag[..], &init].concat();
    let sum = packet::sctp_checksum(&packet).expect("the packet has a header");
    packet[8..12].copy_from_slice(&sum);
    let mut frame = vec![];
    let step = PacketBuilder::ethernet2(ROUTER, OURS).ipv4([198, 51, 100, 7], [203, 0, 113, 10], 64);
    step.write(&mut frame, IpNumber(132), &packet).expect("a vector has room");
    frame
}

/// Returns ICMP errors from routers. Each error quotes either a reply from a VIP or an encapsulated
/// packet that the balancer sent.
pub(crate) fn errors() -> Vec<Vec<u8>> {
    let (v4, v6) = (udp(VIP4, 53, CLIENT4, 1000, b"answer"), tcp(VIP6, 80, CLIENT6, 1000, "A"));
    let outer = tunnelled();
    let quotes = [v4.clone(), piece4(&v4, 0x2000), piece4(&v4, 2), v6.clone()];
    let longer = [extended(&v6, 60, &[0, 0, 1, 4, 0, 0, 0, 0]), extended(&v6, 44, &[0, 0, 0, 1, 0, 0, 0, 9])];
    quotes.iter().chain(&longer).chain(&outer).map(|frame| error(&frame[L3..])).collect()
}

/// Returns frames with each kind of encapsulation. The frames cover all combinations of IPv4 and
/// IPv6 as outer and inner protocol.
pub(crate) fn tunnelled() -> Vec<Vec<u8>> {
    let inner = [tcp(CLIENT4, 1000, VIP4, 80, "A"), udp(CLIENT6, 1000, VIP6, 443, b"hello")];
    let outer = [("198.18.0.1", "192.0.2.1"), ("2001:db8::77", "2001:db8::1")];
    let kinds = [
        Encapsulation::Gre,
        Encapsulation::Ipip,
        Encapsulation::Gue { udp_checksum: false },
        Encapsulation::Gue { udp_checksum: true },
    ];
    let pairs = inner.iter().flat_map(|frame| outer.map(|ends| (frame, ends)));
    pairs.flat_map(|(frame, ends)| kinds.map(|kind| wrapped(frame, kind, ends))).collect()
}

/// Encapsulates the IP packet of an untagged frame.
fn wrapped(frame: &[u8], kind: Encapsulation, (from, to): (&str, &str)) -> Vec<u8> {
    let inner = &frame[L3..];
    let family = if inner[0] >> 4 == 4 { Family::V4 } else { Family::V6 };
    let outer = match (ip(from), ip(to)) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Outer::V4 { source, destination },
        (IpAddr::V6(source), IpAddr::V6(destination)) => Outer::V6 { source, destination },
        _ => panic!("the address families differ"),
    };
    let template = Template::new(kind, outer, family, true);
    let mut packet = vec![0; template.len()];
    let len = u16::try_from(inner.len()).expect("the seed fits 16 bits");
    let written = template.write(&mut packet, &Inner { len, tos: 0, flow_hash: 7, identification: 9 });
    written.expect("the buffer has room for the outer headers");
    packet.extend(inner);
    assert!(template.finish_checksum(&mut packet));
    [&frame[..12], &template.ethertype().to_be_bytes(), &packet].concat()
}

fn echo4() -> Vec<u8> {
    let link = PacketBuilder::ethernet2(ROUTER, OURS);
    let step = link.ipv4([198, 51, 100, 7], [203, 0, 113, 10], 64).icmpv4_echo_request(7, 1);
    let mut frame = Vec::new();
    step.write(&mut frame, b"ping").expect("writing to a vector succeeds");
    frame
}

fn echo6() -> Vec<u8> {
    let (IpAddr::V6(from), IpAddr::V6(to)) = (ip(CLIENT6), ip(VIP6)) else { panic!("IPv6") };
    let link = PacketBuilder::ethernet2(ROUTER, OURS);
    let mut frame = Vec::new();
    let step = link.ipv6(from.octets(), to.octets(), 64).icmpv6_echo_request(7, 1);
    step.write(&mut frame, b"ping").expect("writing to a vector succeeds");
    frame
}

/// Returns a packet-too-big error that quotes the packet and is addressed to its source.
fn error(quoted: &[u8]) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(ROUTER, OURS);
    let mut frame = Vec::new();
    let written = if quoted[0] >> 4 == 4 {
        let kind = icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: 1400 };
        let to = [quoted[12], quoted[13], quoted[14], quoted[15]];
        let step = link.ipv4([198, 18, 0, 1], to, 60);
        step.icmpv4(etherparse::Icmpv4Type::DestinationUnreachable(kind)).write(&mut frame, quoted)
    } else {
        let mut to = [0; 16];
        to.copy_from_slice(&quoted[8..24]);
        let IpAddr::V6(router) = ip("2001:db8::77") else { panic!("IPv6") };
        let step = link.ipv6(router.octets(), to, 60);
        step.icmpv6(etherparse::Icmpv6Type::PacketTooBig { mtu: 1400 }).write(&mut frame, quoted)
    };
    written.expect("writing to a vector succeeds");
    frame
}

/// Turns an untagged IPv4 frame into a fragment. Writes `word` into the field with the flags and
/// the fragment offset, and updates the checksum.
fn piece4(frame: &[u8], word: u16) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[L3 + 4..L3 + 8].copy_from_slice(&[[0, 9], word.to_be_bytes()].concat());
    checksummed(frame)
}

/// Adds four bytes of IP options to an untagged IPv4 frame.
fn with_options(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[L3] += 1;
    frame[L3 + 3] += 4;
    frame.splice(L3 + 20..L3 + 20, [1, 1, 1, 0]);
    checksummed(frame)
}

fn checksummed(mut frame: Vec<u8>) -> Vec<u8> {
    let (header, _) = etherparse::Ipv4Header::from_slice(&frame[L3..]).expect("a header");
    frame[L3 + 10..L3 + 12].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
    frame
}

/// Inserts an extension header directly after the IPv6 header of an untagged frame.
fn extended(frame: &[u8], kind: u8, header: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let len = u16::from_be_bytes([frame[L3 + 4], frame[L3 + 5]]);
    let len = len + u16::try_from(header.len()).expect("the seed fits 16 bits");
    frame[L3 + 4..L3 + 6].copy_from_slice(&len.to_be_bytes());
    let mut header = header.to_vec();
    header[0] = std::mem::replace(&mut frame[L3 + 6], kind);
    frame.splice(L3 + 40..L3 + 40, header);
    frame
}
