//! Addresses that are not valid as the source of a packet. No reply would reach its sender, so the
//! packet is forged or damaged.
//!
//! See RFC 1122 §3.2.1.3, RFC 1812 §5.3.7, RFC 4291 §2.5 and RFC 4443 §2.4 (e.6). An address has
//! the format of [`crate::FastHeaders::source`].

use crate::Family;

/// Returns `true` if no packet on a link may have this source address (a martian source). These are
/// 0.0.0.0/8, 127.0.0.0/8, 224.0.0.0/4 and 240.0.0.0/4 for IPv4. For IPv6 they are ::, ::1,
/// ff00::/8 and ::ffff:0:0/96.
///
/// # Cost
/// At most 7 instructions for IPv4, and no memory access.
#[inline(always)]
#[must_use]
pub const fn is_martian(family: Family, source: [u64; 2]) -> bool {
    match family {
        Family::V4 => is_martian_v4(unmapped(source)),
        Family::V6 => is_martian_v6(source),
    }
}

/// Returns `true` if a packet with this source address cannot be part of a flow, because the source
/// is martian or an IPv6 link-local address (fe80::/10).
///
/// A link-local address is valid only on its own link. The reply to a forwarded packet comes from a
/// backend, which is on another link or is connected by a tunnel.
///
/// # Cost
/// At most 7 instructions for IPv4, and no memory access.
#[inline(always)]
#[must_use]
pub const fn is_unroutable(family: Family, source: [u64; 2]) -> bool {
    //= RFC 4291 §2.5.6
    //# Routers must not forward any packets with Link-Local source or destination addresses to
    //# other links.
    match family {
        Family::V4 => is_martian_v4(unmapped(source)),
        Family::V6 => is_martian_v6(source) || is_link_local(source),
    }
}

/// Returns `true` if the source of an IPv4 packet is martian. The address is a 32-bit number.
#[inline(always)]
pub(crate) const fn is_martian_v4(source: u32) -> bool {
    //= RFC 1812 §5.3.7
    //# A router SHOULD NOT forward any packet that has an invalid IP source address or a
    //# source address on network 0.
    // One comparison covers network 0 and the networks from 224, which include the limited
    // broadcast address.
    source.wrapping_sub(1 << 24) >= 223 << 24 || source >> 24 == 127
}

/// Returns an IPv4-mapped address as a 32-bit number.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lower half is wanted")]
const fn unmapped([_, second]: [u64; 2]) -> u32 {
    second.swap_bytes() as u32
}

#[inline(always)]
const fn is_martian_v6([first, second]: [u64; 2]) -> bool {
    let second = second.swap_bytes();
    first & 0xff == 0xff || first == 0 && (second <= 1 || second >> 32 == 0xffff)
}

/// Returns `true` for an address in fe80::/10. Always returns `false` for an IPv4-mapped address.
#[inline(always)]
#[must_use]
pub const fn is_link_local([first, _]: [u64; 2]) -> bool {
    first.swap_bytes() >> 54 == 0xfe80 >> 6
}

/// Returns the two words of an address that is stored in network byte order.
#[inline]
pub(crate) fn words(address: [u8; 16]) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, rest @ ..] = address;
    [u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes(rest)]
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    /// Compares the address with the prefixes, one bit at a time.
    fn is_in(address: [u8; 16], prefixes: &[(&str, usize)]) -> bool {
        let bit = |bytes: &[u8], n: usize| bytes[n / 8] >> (7 - n % 8) & 1;
        prefixes.iter().any(|(prefix, length)| match prefix.parse().unwrap() {
            IpAddr::V4(prefix) => (0..*length).all(|n| bit(&prefix.octets(), n) == bit(&address[12..], n)),
            IpAddr::V6(prefix) => (0..*length).all(|n| bit(&prefix.octets(), n) == bit(&address, n)),
        })
    }

    const V4: &[(&str, usize)] = &[("0.0.0.0", 8), ("127.0.0.0", 8), ("224.0.0.0", 4), ("240.0.0.0", 4)];
    const V6: &[(&str, usize)] = &[("::", 128), ("::1", 128), ("ff00::", 8), ("::ffff:0:0", 96)];
    const LOCAL: &[(&str, usize)] = &[("fe80::", 10)];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn martian_sources_are_those_in_the_listed_prefixes(
            address: [u8; 16],
            zeros in prop::sample::select(vec![0_usize, 0, 8, 10, 12, 15, 16]),
            first in prop::option::of(prop::sample::select(vec![0xfe_u8, 0xff, 0x20])),
            ones: bool,
        ) {
            let mut address = address;
            address[..zeros].fill(0);
            if ones {
                address[10..12].fill(0xff);
            }
            address[0] = first.filter(|_| zeros == 0).unwrap_or(address[0]);
            let is_local = is_in(address, LOCAL);
            prop_assert_eq!(is_martian(Family::V6, words(address)), is_in(address, V6));
            prop_assert_eq!(is_unroutable(Family::V6, words(address)), is_in(address, V6) || is_local);
            prop_assert_eq!(is_link_local(words(address)), is_local);
        }
    }

    #[test]
    fn martian_ipv4_sources_are_those_in_the_listed_prefixes() {
        for first in 0..=255 {
            for rest in [[0, 0, 0], [0, 0, 1], [255, 255, 255]] {
                let [a, b, c] = rest;
                let address = crate::parse::mapped([first, a, b, c]);
                assert_eq!(is_martian(Family::V4, words(address)), is_in(address, V4), "{first} {rest:?}");
                assert_eq!(is_unroutable(Family::V4, words(address)), is_in(address, V4));
            }
        }
    }
}
