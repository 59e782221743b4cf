//! Translation of the addresses and ports of a UDP packet, as in NAT.
//!
//! Only the addresses, the ports, the first word of the payload and the checksums change. The
//! receiver can still detect damage, because a wrong checksum stays wrong. A UDP checksum of 0,
//! which means that the sender computed no checksum, stays 0.
//!
//! The checksum rules are in RFC 1624 §3, RFC 768 and RFC 3022 §4.1.

use core::net::{IpAddr, SocketAddr};

use crate::checksum::Sum;

/// Replaces the source and destination of a UDP packet and the first 16-bit word of its payload.
/// `ip` starts at the IP header, and `udp` is the offset of the UDP header. The packet must not be
/// a fragment.
///
/// Returns `false` and leaves `ip` unchanged if an address has the wrong family, or if the packet
/// ends before the first word of the payload.
///
/// # Cost
/// Two sums over the addresses, one before and one after the change. The payload is not read.
#[must_use]
pub fn readdress_udp(
    ip: &mut [u8],
    udp: usize,
    source: SocketAddr,
    destination: SocketAddr,
    first: u16,
) -> bool {
    let Some((header, datagram)) = ip.split_at_mut_checked(udp) else { return false };
    let Some(datagram) = datagram.first_chunk_mut::<10>() else { return false };
    let Some(addresses) = readdress_ip(header, source.ip(), destination.ip()) else { return false };
    let [source, destination] = [source.port(), destination.port()].map(u16::to_be_bytes);
    let [s0, s1, d0, d1, _, _, check @ .., w0, w1] = datagram;
    let before = [*s0, *s1, *d0, *d1, *w0, *w1];
    [*s0, *s1, *d0, *d1] = [source[0], source[1], destination[0], destination[1]];
    [*w0, *w1] = first.to_be_bytes();
    let changed = addresses.and(&before, &[*s0, *s1, *d0, *d1, *w0, *w1]);
    //= RFC 768
    //# An all zero  transmitted checksum  value means that the transmitter  generated  no checksum
    if *check != [0, 0] {
        changed.apply(Some(check));
        if *check == [0, 0] {
            *check = [0xff; 2];
        }
    }
    true
}

/// Replaces the addresses of an IP header and updates the IPv4 checksum. Returns the difference
/// between the old and the new pseudo-header sums.
///
/// Returns `None` and leaves the header unchanged if an address has the wrong family or if the
/// header is too short.
#[inline]
fn readdress_ip(header: &mut [u8], source: IpAddr, destination: IpAddr) -> Option<Change> {
    match (source, destination, header.first()? >> 4) {
        (IpAddr::V4(source), IpAddr::V4(destination), 4) => {
            let (front, addresses) = header.first_chunk_mut::<20>()?.split_at_mut(12);
            let changed = Change::of(addresses, source.octets(), destination.octets());
            changed.apply(front.last_chunk_mut());
            Some(changed)
        }
        (IpAddr::V6(source), IpAddr::V6(destination), 6) => {
            let (_, addresses) = header.first_chunk_mut::<40>()?.split_at_mut(8);
            Some(Change::of(addresses, source.octets(), destination.octets()))
        }
        _ => None,
    }
}

/// The difference between the checksum before and after a change.
#[derive(Clone, Copy)]
struct Change(Sum);

impl Change {
    /// Replaces both addresses of a header and returns the difference.
    #[inline]
    fn of<const N: usize>(addresses: &mut [u8], source: [u8; N], destination: [u8; N]) -> Self {
        let before = Sum::new().add_bytes(addresses).fold();
        let (first, second) = addresses.split_at_mut(N);
        first.copy_from_slice(&source);
        second.copy_from_slice(&destination);
        //= RFC 1624 §3
        //# HC' = ~(~HC + ~m + m')
        Self(Sum::new().add_word(!before).add_bytes(addresses))
    }

    fn and(self, before: &[u8], after: &[u8]) -> Self {
        Self(self.0.add_word(!Sum::new().add_bytes(before).fold()).add_bytes(after))
    }

    fn apply(self, field: Option<&mut [u8; 2]>) {
        if let Some(field) = field {
            *field = self.0.add_word(!u16::from_be_bytes(*field)).finish().to_be_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    use super::*;
    use crate::{parse, udp_checksum_ok};

    /// Builds the same datagram with the `etherparse` crate, starting at Ethernet.
    fn by_etherparse(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
        let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let step = match (source, destination) {
            (SocketAddr::V4(from), SocketAddr::V4(to)) => link.ipv4(from.ip().octets(), to.ip().octets(), 9),
            (SocketAddr::V6(from), SocketAddr::V6(to)) => link.ipv6(from.ip().octets(), to.ip().octets(), 9),
            _ => panic!("one family"),
        };
        let mut bytes = Vec::new();
        step.udp(source.port(), destination.port()).write(&mut bytes, payload).unwrap();
        bytes
    }

    fn ends() -> impl Strategy<Value = [SocketAddr; 4]> {
        let v4 = any::<[(Ipv4Addr, u16); 4]>().prop_map(|ends| ends.map(SocketAddr::from));
        let v6 = any::<[(Ipv6Addr, u16); 4]>().prop_map(|ends| ends.map(SocketAddr::from));
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn readdress_udp_matches_a_packet_built_with_the_new_addresses(
            [source, destination, new_source, new_destination] in ends(),
            payload in prop::collection::vec(any::<u8>(), 3..1500),
            first: u16,
            place: prop::sample::Index,
        ) {
            let mut frame = by_etherparse(source, destination, &payload);
            let udp = usize::from(parse(&frame).unwrap().l4 - 14);
            let mut wanted = payload.clone();
            wanted[..2].copy_from_slice(&first.to_be_bytes());
            let wanted = by_etherparse(new_source, new_destination, &wanted);
            let mut wrong = frame.clone();
            prop_assert!(readdress_udp(&mut frame[14..], udp, new_source, new_destination, first));
            prop_assert_eq!(&frame, &wanted);
            // A packet with a wrong checksum still has a wrong checksum.
            let at = wrong.len() - 1 - place.index(payload.len() - 2);
            wrong[at] ^= 0x40;
            prop_assert!(readdress_udp(&mut wrong[14..], udp, new_source, new_destination, first));
            let parsed = parse(&wrong).unwrap();
            prop_assert!(!udp_checksum_ok(&wrong, &parsed));
        }
    }

    #[test]
    fn readdress_udp_sends_a_zero_checksum_as_all_ones() {
        let [a, b]: [SocketAddr; 2] = ["192.0.2.1:5", "203.0.113.9:6"].map(|end| end.parse().unwrap());
        let frame = by_etherparse(a, b, b"hello");
        let with = |first: u16| by_etherparse(b, a, &[&first.to_be_bytes(), &b"llo"[..]].concat());
        let first = (0..=u16::MAX).find(|first| with(*first)[40..42] == [0xff; 2]).unwrap();
        let mut changed = frame;
        assert!(readdress_udp(&mut changed[14..], 20, b, a, first));
        assert_eq!(changed[40..42], [0xff; 2]);
    }

    #[test]
    fn readdress_udp_keeps_a_zero_checksum() {
        let [a, b]: [SocketAddr; 2] = ["192.0.2.1:5", "203.0.113.9:6"].map(|end| end.parse().unwrap());
        let mut frame = by_etherparse(a, b, b"hello");
        frame[40..42].fill(0);
        assert!(readdress_udp(&mut frame[14..], 20, b, a, 7));
        assert_eq!((&frame[40..42], &frame[42..44]), (&[0, 0][..], &[0, 7][..]));
    }

    #[test]
    fn readdress_udp_rejects_wrong_families_and_short_packets() {
        let [a, b, c]: [SocketAddr; 3] =
            ["192.0.2.1:5", "203.0.113.9:6", "[2001:db8::1]:5"].map(|end| end.parse().unwrap());
        let frame = by_etherparse(a, b, b"hello");
        for (length, udp, source, destination) in
            [(43, 20, b, a), (29, 20, b, a), (47, 40, b, a), (47, 10, b, a), (47, 20, c, c), (47, 20, a, c)]
        {
            let mut ip = frame[14..].to_vec();
            ip.truncate(length - 14);
            let before = ip.clone();
            assert!(!readdress_udp(&mut ip, udp, source, destination, 7), "{length} {udp}");
            assert_eq!(ip, before);
        }
    }
}
