//! Implements the decision of the steering program in Rust, for replays without a kernel.
//! `tests/bpf` checks that this implementation agrees with `whose` in `bpf/whose.h`.

use std::net::{IpAddr, Ipv6Addr};

use super::{Filter, TunnelEndpoints};

/// Returns `true` if the steering program redirects a frame to a packet thread, and `false` if the
/// program passes the frame to the kernel.
#[must_use]
pub fn takes(frame: &[u8], filter: &Filter, ends: &TunnelEndpoints) -> bool {
    taken(frame, filter, ends).is_some()
}

fn taken(frame: &[u8], filter: &Filter, ends: &TunnelEndpoints) -> Option<()> {
    let (ethertype, ip) = network(frame)?;
    if frame.first()? & 1 == 1 {
        return None;
    }
    let destination = match (ethertype, ip.first()? >> 4) {
        (0x0800, 4) if ip.len() >= V4_HEADER => IpAddr::from(*ip.get(16..)?.first_chunk::<4>()?),
        (0x86dd, 6) => v6(ip, 24)?,
        _ => return None,
    };
    let is_answer = || ends.answers.contains(&destination) && is_for_source_port(ip, ends);
    let is_taken = filter.takes(destination) || is_tunnel_endpoint(ip, destination, ends) || is_answer();
    (is_taken && !is_neighbour_discovery(ip)).then_some(())
}

/// Skips up to two VLAN tags. Returns the EtherType and the bytes that follow it.
fn network(frame: &[u8]) -> Option<(u16, &[u8])> {
    let mut at = 12;
    loop {
        let ethertype = u16::from_be_bytes(*frame.get(at..)?.first_chunk()?);
        at += 2;
        if at > 14 + 4 || !matches!(ethertype, 0x8100 | 0x88a8) {
            return Some((ethertype, frame.get(at..)?));
        }
        at += 2;
    }
}

/// Returns the IPv6 address at offset `at`. Returns `None` for an IPv4-mapped address (RFC 4291
/// §2.5.5.2).
fn v6(ip: &[u8], at: usize) -> Option<IpAddr> {
    let address = Ipv6Addr::from(*ip.get(..V6_HEADER)?.get(at..)?.first_chunk::<16>()?);
    address.to_ipv4_mapped().is_none().then_some(address.into())
}

fn is_tunnel_endpoint(ip: &[u8], destination: IpAddr, ends: &TunnelEndpoints) -> bool {
    let Some((source, by, is_error)) = (if destination.is_ipv4() { upper_v4(ip) } else { upper_v6(ip) })
    else {
        return false;
    };
    let allowed = ends.sources.iter().filter(|(prefix, _)| prefix.contains(source));
    let allowed = allowed.fold(0, |allowed, (_, carriers)| allowed | carriers.bits());
    let may = if by == 0 { is_error } else { allowed & by != 0 };
    may && ends.addresses.iter().any(|prefix| prefix.contains(destination))
}

fn is_for_source_port(ip: &[u8], ends: &TunnelEndpoints) -> bool {
    let upper = if ip.first().is_some_and(|first| first >> 4 == 4) {
        let whole = ip.get(6..8).is_some_and(|field| field[0] & 0x3f == 0 && field[1] == 0);
        (whole && ip.first() == Some(&0x45) && ip.get(9) == Some(&UDP)).then(|| ip.get(V4_HEADER..))
    } else {
        (ip.get(6) == Some(&UDP)).then(|| v6(ip, 8).and_then(|_| ip.get(V6_HEADER..)))
    };
    let port = upper.flatten().filter(|udp| udp.len() >= 8).and_then(|udp| udp.get(2..4)?.first_chunk());
    port.is_some_and(|port| ends.source_ports.contains(&u16::from_be_bytes(*port)))
}

/// Returns the source address, the encapsulation of the packet as returned by [`carried_by`], and
/// `true` if the packet is an ICMP error about a tunnel packet.
fn upper_v4(ip: &[u8]) -> Option<(IpAddr, u8, bool)> {
    let (header, upper) = ip.split_first_chunk::<V4_HEADER>()?;
    let is_whole = u16::from_be_bytes([header[6], header[7]]) & 0x3fff == 0;
    if header[0] & 15 != 5 || !is_whole {
        return None;
    }
    let source = IpAddr::from(*header.get(12..)?.first_chunk::<4>()?);
    let quoted = upper.get(8..).and_then(|quote| quote.split_first_chunk::<V4_HEADER>());
    let is_about_tunnel = quoted.is_some_and(|(quoted, behind)| carried_by(quoted[9], behind) != 0);
    let is_error = header[9] == ICMP && upper.starts_with(&[3, 4]) && is_about_tunnel;
    Some((source, carried_by(header[9], upper), is_error))
}

fn upper_v6(ip: &[u8]) -> Option<(IpAddr, u8, bool)> {
    let (header, upper) = ip.split_first_chunk::<V6_HEADER>()?;
    let quoted = upper.get(8..).and_then(|quote| quote.split_first_chunk::<V6_HEADER>());
    let is_about_tunnel = quoted.is_some_and(|(quoted, behind)| carried_by(quoted[6], behind) != 0);
    let is_error = header[6] == ICMPV6 && upper.first() == Some(&2) && is_about_tunnel;
    Some((v6(ip, 8)?, carried_by(header[6], upper), is_error))
}

/// Returns the bit of [`forwarder::TunnelProtocols`] for the encapsulation of a packet. Returns 0
/// if the packet is not tunneled.
fn carried_by(protocol: u8, upper: &[u8]) -> u8 {
    match protocol {
        47 => 1,
        4 | 41 => 2,
        17 if upper.len() >= 8 && upper.get(2..4) == Some(&GUE_PORT.to_be_bytes()) => 4,
        _ => 0,
    }
}

fn is_neighbour_discovery(ip: &[u8]) -> bool {
    let is_v6 = ip.first().is_some_and(|first| first >> 4 == 6) && ip.get(6) == Some(&ICMPV6);
    is_v6 && ip.get(V6_HEADER).is_some_and(|kind| (133..=137).contains(kind))
}

const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;
const ICMP: u8 = 1;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const GUE_PORT: u16 = 6080;
