//! Frames that are built byte by byte, without using the code under test.

use std::net::IpAddr;

use crate::bed::{FAR_MAC, NEAR_MAC};

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns an Ethernet frame to `near` with `tags` VLAN tags. The outer tag is an 802.1ad tag.
pub(crate) fn frame(tags: usize, packet: &[u8]) -> Vec<u8> {
    let mut frame = [NEAR_MAC, FAR_MAC].concat();
    for tag in 0..tags {
        let kind = if tag == 0 && tags > 1 { 0x88a8_u16 } else { 0x8100 };
        frame.extend(kind.to_be_bytes());
        frame.extend([0x20, 100 + u8::try_from(tag).unwrap()]);
    }
    let kind = if packet[0] >> 4 == 6 { 0x86dd_u16 } else { 0x0800 };
    frame.extend(kind.to_be_bytes());
    frame.extend(packet);
    frame
}

/// Returns an IP packet. The IP version follows from the addresses.
pub(crate) fn packet(from: IpAddr, to: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet;
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
            packet.extend(from.octets());
            packet.extend(to.octets());
            let length = u16::try_from(20 + payload.len()).unwrap();
            packet[2..4].copy_from_slice(&length.to_be_bytes());
            let sum = packet.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
            // the ones' complement sum equals the sum modulo 65,535
            let sum = !u16::try_from(sum % 0xffff).unwrap();
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            packet = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
            packet.extend(from.octets());
            packet.extend(to.octets());
            let length = u16::try_from(payload.len()).unwrap();
            packet[4..6].copy_from_slice(&length.to_be_bytes());
        }
        _ => panic!("two families: {from}, {to}"),
    }
    packet.extend(payload);
    packet
}

/// Sets the TOS or traffic class of a packet, and updates the IPv4 header checksum.
pub(crate) fn with_tos(mut packet: Vec<u8>, tos: u8) -> Vec<u8> {
    if packet[0] >> 4 == 6 {
        (packet[0], packet[1]) = (0x60 | tos >> 4, tos << 4);
        return packet;
    }
    packet[1] = tos;
    packet[10..12].fill(0);
    let sum: u32 = packet[..20].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    // the ones' complement sum equals the sum modulo 65,535
    packet[10..12].copy_from_slice(&(!u16::try_from(sum % 0xffff).unwrap()).to_be_bytes());
    packet
}

/// Returns a UDP datagram without a checksum.
pub(crate) fn udp(to_port: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).unwrap();
    let mut datagram = vec![0x30, 0x39];
    datagram.extend(to_port.to_be_bytes());
    datagram.extend(length.to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    datagram
}

/// Returns a GRE packet as in RFC 2784, with the given flags.
pub(crate) fn gre(flags: u16, inner: &[u8]) -> Vec<u8> {
    let kind = if inner[0] >> 4 == 6 { [0x86, 0xdd] } else { [0x08, 0x00] };
    [&flags.to_be_bytes(), &kind, inner].concat()
}

/// Returns a UDP datagram with a GUE header of variant 0.
pub(crate) fn gue(inner: &[u8]) -> Vec<u8> {
    udp(6080, &[&[0, ip_in_ip(inner), 0, 0], inner].concat())
}

/// Returns the protocol number for `inner` in an IP-in-IP tunnel.
pub(crate) fn ip_in_ip(inner: &[u8]) -> u8 {
    if inner[0] >> 4 == 6 { 41 } else { 4 }
}
