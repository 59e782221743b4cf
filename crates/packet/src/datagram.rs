//! Writes and updates UDP datagrams, and verifies received checksums of UDP and UDP-Lite.
//!
//! [`write_udp`] writes the IP and UDP headers in front of a payload. [`refit_udp`] corrects
//! lengths and checksums after the payload has changed. Link headers and fragmentation are handled
//! by other modules.
//!
//! The formats are defined in RFC 768, RFC 3828, RFC 791 §3.1 and RFC 8200 §3 and §8.1.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::checksum::{Sum, checksum};
use crate::icmp_error::ip_checksum_ok;
use crate::tcp_reset::pseudo;
use crate::{Family, Parsed, protocol};

/// Returns the length of the IP header and the UDP header together, in bytes.
#[must_use]
pub const fn udp_headers_len(family: Family) -> usize {
    family.header_len() as usize + UDP_HEADER
}

/// Writes the IP and UDP headers at the start of `ip`. The payload must already follow them. The
/// TTL or hop limit is 64, DF is set in IPv4, and all checksums are filled in.
///
/// Returns `false` if source and destination have different families, or if `ip` is shorter than
/// the headers or longer than an IP packet can be.
#[must_use]
pub fn write_udp(ip: &mut [u8], source: SocketAddr, destination: SocketAddr) -> bool {
    let headers = udp_headers_len(if source.is_ipv4() { Family::V4 } else { Family::V6 });
    let payload = ip.get(headers..).map(|payload| Sum::new().add_bytes(payload));
    payload.is_some_and(|payload| write_udp_over(ip, source, destination, payload))
}

/// Writes the same headers as [`write_udp`], but does not read the payload. Instead, the caller
/// passes the ones' complement sum of the payload bytes in `payload`.
#[inline]
#[must_use]
pub fn write_udp_over(ip: &mut [u8], source: SocketAddr, destination: SocketAddr, payload: Sum) -> bool {
    let payload = payload.add_word(source.port()).add_word(destination.port());
    let ports = [source.port(), destination.port()];
    let written = match (source, destination) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => write_v4(ip, [*from.ip(), *to.ip()], ports, payload),
        (SocketAddr::V6(from), SocketAddr::V6(to)) => write_v6(ip, [*from.ip(), *to.ip()], ports, payload),
        _ => None,
    };
    written.is_some()
}

/// Writes the IPv4 and UDP headers. `behind` is the ones' complement sum of the ports and the
/// payload. The header checksum is computed from the field values, because reading the header back
/// would stall until the preceding single-byte stores complete.
#[inline]
fn write_v4(ip: &mut [u8], [from, to]: [Ipv4Addr; 2], ports: [u16; 2], behind: Sum) -> Option<()> {
    let total = u16::try_from(ip.len()).ok()?;
    let (header, udp) = ip.split_first_chunk_mut::<20>()?;
    let len = u16::try_from(udp.len()).ok()?;
    write_header(udp, ports, len, behind.add_pseudo_v4(from, to, protocol::UDP, len))?;
    let hops_and_protocol = u16::from_be_bytes([HOPS, protocol::UDP]);
    let addresses = Sum::new().add_bytes(&from.octets()).add_bytes(&to.octets());
    let sum = addresses.add_word(0x4500).add_word(total).add_word(DONT_FRAGMENT).add_word(hops_and_protocol);
    let ([t0, t1], [c0, c1]) = (total.to_be_bytes(), sum.finish().to_be_bytes());
    let ([d0, d1], [a, b, c, d]) = (DONT_FRAGMENT.to_be_bytes(), from.octets());
    let [e, f, g, h] = to.octets();
    // The identification is 0, as RFC 6864 §4.1 permits for packets with DF.
    *header = [0x45, 0, t0, t1, 0, 0, d0, d1, HOPS, protocol::UDP, c0, c1, a, b, c, d, e, f, g, h];
    Some(())
}

fn write_v6(ip: &mut [u8], [from, to]: [Ipv6Addr; 2], ports: [u16; 2], behind: Sum) -> Option<()> {
    let (header, udp) = ip.split_first_chunk_mut::<40>()?;
    let len = u16::try_from(udp.len()).ok()?;
    write_header(udp, ports, len, behind.add_pseudo_v6(from, to, protocol::UDP, len))?;
    let (first, addresses) = header.split_first_chunk_mut::<8>()?;
    let [hi, lo] = len.to_be_bytes();
    *first = [0x60, 0, 0, 0, hi, lo, protocol::UDP, HOPS];
    let (source, destination) = addresses.split_first_chunk_mut::<16>()?;
    *source = from.octets();
    destination.copy_from_slice(&to.octets());
    Some(())
}

/// Writes the UDP header. `all` is the sum of all bytes covered by the checksum, except the length
/// field in the UDP header.
#[inline]
fn write_header(udp: &mut [u8], [from, to]: [u16; 2], len: u16, all: Sum) -> Option<()> {
    let ([a, b], [c, d], [l0, l1]) = (from.to_be_bytes(), to.to_be_bytes(), len.to_be_bytes());
    let [s0, s1] = sent(all.add_word(len)).to_be_bytes();
    *udp.first_chunk_mut::<UDP_HEADER>()? = [a, b, c, d, l0, l1, s0, s1];
    Some(())
}

/// Sets the lengths and checksums of a UDP packet to match its current content, after its payload
/// has changed. `udp` is the offset of the UDP header in `ip`. The packet must not be a fragment. A
/// UDP checksum of 0, which means that the sender computed no checksum, stays 0.
///
/// Returns `false` if `ip` does not have these headers or is longer than an IP packet can be.
#[must_use]
pub fn refit_udp(ip: &mut [u8], udp: usize) -> bool {
    refit(ip, udp).is_some()
}

fn refit(ip: &mut [u8], at: usize) -> Option<()> {
    let length = ip.len();
    let (header, udp) = ip.split_at_mut_checked(at)?;
    let len = u16::try_from(udp.len()).ok()?;
    let pseudo = match header.first()? >> 4 {
        4 => {
            let total = u16::try_from(length).ok()?.to_be_bytes();
            let own = usize::from(header.first()? & 0xf) * 4;
            let header = header.get_mut(..own)?;
            header.get_mut(2..4)?.copy_from_slice(&total);
            header.get_mut(10..12)?.fill(0);
            let sum = checksum(header).to_be_bytes();
            header.get_mut(10..12)?.copy_from_slice(&sum);
            Sum::new().add_bytes(header.get(12..20)?)
        }
        6 => {
            let payload = u16::try_from(length.checked_sub(40)?).ok()?.to_be_bytes();
            header.get_mut(4..6)?.copy_from_slice(&payload);
            Sum::new().add_bytes(header.get(8..40)?)
        }
        _ => return None,
    };
    let [_, _, _, _, hi, lo, sum @ ..] = udp.first_chunk_mut::<UDP_HEADER>()?;
    [*hi, *lo] = len.to_be_bytes();
    if *sum == [0, 0] {
        return Some(());
    }
    *sum = [0, 0];
    write_checksum(udp, pseudo.add_word(protocol::UDP.into()).add_word(len))
}

/// Returns `true` if the UDP checksum and the IPv4 header checksum of a received packet are
/// acceptable. The packet must not be a fragment, and `parsed` must be the result of
/// [`crate::parse`] for `frame`.
///
/// A UDP checksum is acceptable if it is correct, or if it is 0 in an IPv4 packet. A partial
/// checksum, which covers only the pseudo-header, is also acceptable, but then the payload is not
/// verified. Linux writes a partial checksum when it expects the NIC to complete it
/// (`CHECKSUM_PARTIAL`).
#[must_use]
pub fn udp_checksum_ok(frame: &[u8], parsed: &Parsed) -> bool {
    if !ip_checksum_ok(frame, parsed) {
        return false;
    }
    let Some(udp) = frame.get(usize::from(parsed.l4)..usize::from(parsed.end)) else { return false };
    let Some(&[_, _, _, _, _, _, hi, lo]) = udp.first_chunk::<UDP_HEADER>() else { return false };
    let field = u16::from_be_bytes([hi, lo]);
    if field == 0 {
        return parsed.family == Family::V4;
    }
    let Ok(len) = u16::try_from(udp.len()) else { return false };
    let pseudo = pseudo(frame, parsed, len);
    pseudo.fold() == field || pseudo.add_bytes(udp).finish() == 0
}

/// Returns `true` if the checksum of a UDP-Lite packet covers at least its header and is correct,
/// and the IPv4 header checksum is correct. The packet must not be a fragment, and `parsed` must be
/// the result of [`crate::parse`] for `frame`.
#[must_use]
pub fn udp_lite_checksum_ok(frame: &[u8], parsed: &Parsed) -> bool {
    let Some(packet) = frame.get(usize::from(parsed.l4)..usize::from(parsed.end)) else { return false };
    let Some(&[_, _, _, _, c0, c1, hi, lo]) = packet.first_chunk::<UDP_HEADER>() else { return false };
    // The coverage 0 stands for the whole packet, and 1 to 7 are invalid (RFC 3828 §3.1).
    let covered = match usize::from(u16::from_be_bytes([c0, c1])) {
        0 => Some(packet),
        coverage => packet.get(..coverage).filter(|covered| covered.len() >= UDP_HEADER),
    };
    // The value 0 is not allowed (RFC 3828 §3.1). The pseudo-header contains the length of the
    // packet, not the coverage (§3.2).
    let (Some(covered), Ok(len)) = (covered, u16::try_from(packet.len())) else { return false };
    let is_right = [hi, lo] != [0, 0] && pseudo(frame, parsed, len).add_bytes(covered).finish() == 0;
    is_right && ip_checksum_ok(frame, parsed)
}

fn write_checksum(udp: &mut [u8], pseudo: Sum) -> Option<()> {
    let [hi, lo] = sent(pseudo.add_bytes(udp)).to_be_bytes();
    let [_, _, _, _, _, _, to_hi, to_lo] = udp.first_chunk_mut::<UDP_HEADER>()?;
    (*to_hi, *to_lo) = (hi, lo);
    Some(())
}

#[inline]
fn sent(sum: Sum) -> u16 {
    //= RFC 768
    //# If the computed  checksum  is zero,  it is transmitted  as all ones
    match sum.finish() {
        0 => u16::MAX,
        sum => sum,
    }
}

/// The DF flag in the 16-bit word of flags and fragment offset.
const DONT_FRAGMENT: u16 = 0x4000;
const UDP_HEADER: usize = 8;
const HOPS: u8 = 64;

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    use super::*;
    use crate::parse;

    /// Builds the same datagram with the `etherparse` crate.
    fn by_etherparse(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
        let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let step = match (source, destination) {
            (SocketAddr::V4(from), SocketAddr::V4(to)) => link.ip(etherparse::IpHeaders::Ipv4(
                etherparse::Ipv4Header {
                    dont_fragment: true,
                    ..etherparse::Ipv4Header::new(
                        0,
                        64,
                        etherparse::IpNumber::UDP,
                        from.ip().octets(),
                        to.ip().octets(),
                    )
                    .unwrap()
                },
                etherparse::Ipv4Extensions::default(),
            )),
            (SocketAddr::V6(from), SocketAddr::V6(to)) => link.ipv6(from.ip().octets(), to.ip().octets(), 64),
            _ => panic!("one family"),
        };
        let mut bytes = Vec::new();
        step.udp(source.port(), destination.port()).write(&mut bytes, payload).unwrap();
        bytes
    }

    fn ends() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
        let v4 = (any::<(Ipv4Addr, u16)>(), any::<(Ipv4Addr, u16)>())
            .prop_map(|(from, to)| (SocketAddr::from(from), SocketAddr::from(to)));
        let v6 = (any::<(Ipv6Addr, u16)>(), any::<(Ipv6Addr, u16)>())
            .prop_map(|(from, to)| (SocketAddr::from(from), SocketAddr::from(to)));
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn write_udp_matches_etherparse_and_detects_bit_flips(
            (source, destination) in ends(),
            payload in prop::collection::vec(any::<u8>(), 0..1500),
            place: prop::sample::Index,
            bit in 0..8u8,
        ) {
            let wanted = by_etherparse(source, destination, &payload);
            let family = if source.is_ipv4() { Family::V4 } else { Family::V6 };
            let mut frame = wanted[..14].to_vec();
            frame.resize(14 + udp_headers_len(family), 0xaa);
            frame.extend(&payload);
            prop_assert!(write_udp(&mut frame[14..], source, destination));
            prop_assert_eq!(&frame, &wanted);
            let parsed = parse(&frame).unwrap();
            prop_assert!(udp_checksum_ok(&frame, &parsed));
            if source.is_ipv4() {
                // The TTL and the header checksum are not part of the UDP checksum.
                let at = 14 + [8, 10, 11][place.index(3)];
                frame[at] ^= 1 << bit;
                prop_assert!(!udp_checksum_ok(&frame, &parsed));
                frame[at] ^= 1 << bit;
            }
            if !payload.is_empty() {
                let at = frame.len() - payload.len() + place.index(payload.len());
                frame[at] ^= 1 << bit;
                prop_assert!(!udp_checksum_ok(&frame, &parsed));
            }
        }
    }

    #[test]
    fn udp_checksum_ok_accepts_zero_and_partial_checksums() {
        for (source, destination) in
            [("192.0.2.1:5", "203.0.113.9:6"), ("[2001:db8::1]:5", "[2001:db8::9]:6")]
        {
            let (source, destination): (SocketAddr, SocketAddr) =
                (source.parse().unwrap(), destination.parse().unwrap());
            let mut frame = by_etherparse(source, destination, b"hello");
            let parsed = parse(&frame).unwrap();
            let field = usize::from(parsed.l4) + 6;
            frame[field..field + 2].fill(0);
            assert_eq!(udp_checksum_ok(&frame, &parsed), source.is_ipv4());
            let pseudo = match (source.ip(), destination.ip()) {
                (core::net::IpAddr::V4(from), core::net::IpAddr::V4(to)) => {
                    Sum::new().add_pseudo_v4(from, to, protocol::UDP, 13)
                }
                (core::net::IpAddr::V6(from), core::net::IpAddr::V6(to)) => {
                    Sum::new().add_pseudo_v6(from, to, protocol::UDP, 13)
                }
                _ => panic!("one family"),
            };
            frame[field..field + 2].copy_from_slice(&pseudo.fold().to_be_bytes());
            assert!(udp_checksum_ok(&frame, &parsed));
        }
    }

    /// Returns a UDP-Lite packet with this coverage, in a frame. The checksum is computed by hand.
    fn udp_lite(v6: bool, payload: &[u8], coverage: usize) -> Vec<u8> {
        let length = u16::try_from(8 + payload.len()).unwrap().to_be_bytes();
        let coverage_field = u16::try_from(coverage).unwrap().to_be_bytes();
        let mut packet = [&[1, 2, 3, 4], &coverage_field[..], &[0, 0], payload].concat();
        let (link, [from, to]) = (PacketBuilder::ethernet2([2; 6], [4; 6]), [[7; 16], [8; 16]]);
        let width = if v6 { 16 } else { 4 };
        let covered = if coverage == 0 { packet.len() } else { coverage.min(packet.len()) };
        let summed = [&from[..width], &to[..width], &[0, 136], &length, &packet[..covered]].concat();
        let sum = crate::oracle::checksum(&summed);
        packet[6..8].copy_from_slice(&(if sum == 0 { 0xffff } else { sum }).to_be_bytes());
        let step = if v6 { link.ipv6(from, to, 64) } else { link.ipv4([7; 4], [8; 4], 64) };
        let mut frame = Vec::new();
        step.write(&mut frame, etherparse::IpNumber(136), &packet).unwrap();
        frame
    }

    proptest! {
        #[test]
        fn udp_lite_checksum_ok_verifies_the_covered_bytes(
            v6: bool, payload in prop::collection::vec(any::<u8>(), 1..200), place: prop::sample::Index, bit in 0..8_u8,
        ) {
            let length = 8 + payload.len();
            let at = place.index(length);
            for coverage in [0, 8, 9, length / 2, length - 1, length].into_iter().filter(|n| *n == 0 || *n >= 8) {
                let mut frame = udp_lite(v6, &payload, coverage);
                let parsed = parse(&frame).unwrap();
                prop_assert!(udp_lite_checksum_ok(&frame, &parsed));
                frame[usize::from(parsed.l4) + at] ^= 1 << bit;
                let is_covered = coverage == 0 || at < coverage;
                // A damaged coverage field changes the covered bytes too.
                if !(4..6).contains(&at) {
                    prop_assert_eq!(udp_lite_checksum_ok(&frame, &parsed), !is_covered);
                }
            }
            for coverage in [1, 7, length + 1] {
                let frame = udp_lite(v6, &payload, coverage);
                prop_assert!(!udp_lite_checksum_ok(&frame, &parse(&frame).unwrap()));
            }
            let mut frame = udp_lite(v6, &payload, 8);
            let parsed = parse(&frame).unwrap();
            frame[usize::from(parsed.l4) + 6..][..2].fill(0);
            prop_assert!(!udp_lite_checksum_ok(&frame, &parsed));
        }
    }

    proptest! {
        #[test]
        fn refit_udp_matches_a_packet_built_with_the_new_payload(
            (source, destination) in ends(),
            before in prop::collection::vec(any::<u8>(), 0..300),
            after in prop::collection::vec(any::<u8>(), 0..300),
            has_checksum: bool,
        ) {
            let mut frame = by_etherparse(source, destination, &before);
            let mut wanted = by_etherparse(source, destination, &after);
            let udp = usize::from(parse(&frame).unwrap().l4);
            if !has_checksum && source.is_ipv4() {
                frame[udp + 6..udp + 8].fill(0);
                wanted[udp + 6..udp + 8].fill(0);
            }
            frame.truncate(udp + 8);
            frame.extend(&after);
            prop_assert!(refit_udp(&mut frame[14..], udp - 14));
            prop_assert_eq!(&frame, &wanted);
        }
    }

    #[test]
    fn refit_udp_rejects_invalid_packets() {
        let v4: SocketAddr = "192.0.2.1:5".parse().unwrap();
        let frame = by_etherparse(v4, v4, b"hello");
        for (length, udp) in [(27, 20), (19, 20), (33, 19), (33, 30), (0, 0)] {
            let mut ip = frame[14..].to_vec();
            ip.truncate(length);
            assert!(!refit_udp(&mut ip, udp), "{length} {udp}");
        }
        let mut long = frame[14..].to_vec();
        long.resize(65_536, 0);
        assert!(!refit_udp(&mut long, 20));
    }

    #[test]
    fn write_udp_sends_a_zero_checksum_as_all_ones() {
        for (end, family) in [("192.0.2.1:5", Family::V4), ("[2001:db8::1]:5", Family::V6)] {
            let end: SocketAddr = end.parse().unwrap();
            let payload = udp_headers_len(family);
            let mut ip = vec![0; payload + 2];
            assert!(write_udp(&mut ip, end, end));
            let field = payload - 2..payload;
            // With this payload, the sum is 0xffff and its complement is 0.
            ip.copy_within(field.clone(), payload);
            assert!(write_udp(&mut ip, end, end));
            assert_eq!(ip[field], [0xff, 0xff]);
        }
    }

    #[test]
    fn write_udp_rejects_mixed_families_and_short_buffers() {
        let (v4, v6): (SocketAddr, SocketAddr) =
            ("192.0.2.1:5".parse().unwrap(), "[2001:db8::1]:5".parse().unwrap());
        assert!(!write_udp(&mut [0; 100], v4, v6));
        assert!(!write_udp(&mut [0; 27], v4, v4));
        assert!(!write_udp(&mut [0; 47], v6, v6));
        assert!(write_udp(&mut [0; 28], v4, v4));
    }
}
