//! Decrements the TTL or hop limit of a forwarded packet.

use crate::Family;

/// Decrements the TTL or hop limit in place and updates the IPv4 checksum. `ip` starts at the IP
/// header.
///
/// Returns `false` and leaves `ip` unchanged if the TTL has expired or if `ip` is shorter than the
/// header.
#[inline]
#[must_use]
pub fn decrement_ttl(ip: &mut [u8], family: Family) -> bool {
    match family {
        Family::V4 => ip.first_chunk_mut::<20>().is_some_and(decrement_v4),
        Family::V6 => ip.first_chunk_mut::<40>().is_some_and(decrement_v6),
    }
}

#[inline]
fn decrement_v4(h: &mut [u8; 20]) -> bool {
    // TTL, protocol and checksum are read and written as one word. The word is little-endian, so
    // that the TTL is its lowest byte. The checksum is in the upper half with its bytes swapped,
    // which does not matter for a ones' complement sum (RFC 1071 §2(B)).
    let Some(place) = h.get_mut(8..).and_then(|rest| rest.first_chunk_mut::<4>()) else { return false };
    let word = u32::from_le_bytes(*place);
    //= RFC 1812 §5.3.1
    //# If the TTL is reduced to zero (or less), the packet MUST be discarded
    if word & 0xff <= 1 {
        return false;
    }
    // The TTL decreases by one and the checksum increases by one. The carry of a checksum that
    // becomes 0xffff or more is added to its lowest bit.
    let carry = u32::from(word >= 0xfffe_0000) << 16;
    *place = word.wrapping_add(0x0001_0000 - 1).wrapping_add(carry).to_le_bytes();
    true
}

#[inline]
fn decrement_v6(h: &mut [u8; 40]) -> bool {
    //= RFC 8200 §3
    //# the packet is discarded if Hop Limit was zero when received or is decremented to zero
    if h[7] <= 1 {
        return false;
    }
    h[7] -= 1;
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::oracle;

    proptest! {
        #[test]
        fn agrees_with_full_recomputation(mut h: [u8; 20], options in prop::collection::vec(any::<u8>(), 0..40)) {
            h[8] = h[8].max(2);
            [h[10], h[11]] = [0, 0];
            let sum = oracle::checksum(&h);
            [h[10], h[11]] = sum.to_be_bytes();
            let mut ip = [&h[..], &options].concat();
            prop_assert!(decrement_ttl(&mut ip, Family::V4));
            let mut expected = h;
            expected[8] -= 1;
            [expected[10], expected[11]] = [0, 0];
            let sum = oracle::checksum(&expected);
            [expected[10], expected[11]] = sum.to_be_bytes();
            // In ones' complement, 0x0000 and 0xffff are the same value. A header is never all
            // zeros, so both functions write 0x0000 only for a sum of 0xffff.
            prop_assert_eq!(&ip[..20], &expected[..]);
            prop_assert_eq!(&ip[20..], &options[..]);
        }

        #[test]
        fn decrement_ttl_changes_only_the_hop_limit_of_ipv6(mut h: [u8; 40]) {
            h[7] = h[7].max(2);
            let mut ip = h;
            prop_assert!(decrement_ttl(&mut ip, Family::V6));
            h[7] -= 1;
            prop_assert_eq!(ip, h);
        }
    }

    /// Compares the checksums with RFC 1624, equation 3: HC' = ~(~HC + ~m + m').
    #[test]
    fn every_checksum_is_updated_by_the_equation() {
        for checksum in 0..=u16::MAX {
            let mut h = [0; 20];
            (h[8], h[9]) = (64, 6);
            [h[10], h[11]] = checksum.to_be_bytes();
            assert!(decrement_ttl(&mut h, Family::V4));
            assert_eq!([h[8], h[9]], [63, 6]);
            let expected = crate::checksum::update(checksum, 0x4006, 0x3f06);
            assert_eq!(u16::from_be_bytes([h[10], h[11]]), expected, "{checksum:#06x}");
        }
    }

    #[test]
    fn decrement_ttl_rejects_expired_and_short_packets() {
        for ttl in [0, 1] {
            let mut v4 = [7; 20];
            v4[8] = ttl;
            let mut v6 = [7; 40];
            v6[7] = ttl;
            let (old4, old6) = (v4, v6);
            assert!(!decrement_ttl(&mut v4, Family::V4));
            assert!(!decrement_ttl(&mut v6, Family::V6));
            assert_eq!((v4, v6), (old4, old6));
        }
        assert!(!decrement_ttl(&mut [9; 19], Family::V4));
        assert!(!decrement_ttl(&mut [9; 39], Family::V6));
    }
}
