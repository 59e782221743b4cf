//! Turns an ICMP echo request into its reply in place.

use crate::icmp_error::ip_checksum_ok;
use crate::source::words;
use crate::{Family, Fragment, Parsed, checksum, is_martian, protocol};

/// Turns the ICMP echo request in `frame` into its reply. Swaps the MAC and IP addresses, changes
/// the ICMP type, sets the TTL or hop limit to 64, and updates the checksums incrementally.
/// `parsed` is the result of [`crate::parse`] for `frame`.
///
/// Returns `false` and leaves `frame` unchanged if the packet is not an echo request, is a
/// fragment, or has IPv4 options or extension headers. Also returns `false` if a MAC address is a
/// group address (RFC 1122 §3.2.2.6), if the source IP address is martian ([`is_martian`]), or if
/// the IPv4 header checksum is wrong (RFC 1122 §3.2.1.2).
#[must_use]
pub fn echo_reply(frame: &mut [u8], parsed: &Parsed) -> bool {
    let l3 = usize::from(parsed.l3);
    let Some(frame) = frame.get_mut(..usize::from(parsed.end)) else { return false }; // no padding
    if parsed.fragment != Fragment::None {
        return false;
    }
    if usize::from(parsed.l4) != l3 + usize::from(parsed.family.header_len()) {
        return false;
    }
    if is_martian(parsed.family, words(parsed.addresses(frame).src)) || !ip_checksum_ok(frame, parsed) {
        return false;
    }
    let Some((link, ip)) = frame.split_at_mut_checked(l3) else { return false };
    let Some(&mut [dst, _, _, _, _, _, src, ..]) = link.first_chunk_mut::<12>() else { return false };
    if (dst | src) & 1 != 0 {
        return false;
    }
    let turned = match parsed.family {
        Family::V4 => parsed.protocol == protocol::ICMP && turn_v4(ip),
        Family::V6 => parsed.protocol == protocol::ICMPV6 && turn_v6(ip),
    };
    turned && swap_halves::<6>(link)
}

fn turn_v4(ip: &mut [u8]) -> bool {
    let Some((h, icmp)) = ip.split_first_chunk_mut::<20>() else { return false };
    if !turn_icmp(icmp, 8, 0) {
        return false;
    }
    let old = u16::from_be_bytes([h[8], h[9]]);
    h[8] = HOPS;
    let new = u16::from_be_bytes([h[8], h[9]]);
    let sum = checksum::update(u16::from_be_bytes([h[10], h[11]]), old, new);
    [h[10], h[11]] = sum.to_be_bytes();
    // Swapping the addresses does not change the header checksum.
    h.last_chunk_mut::<8>().is_some_and(|both| swap_halves::<4>(both))
}

fn turn_v6(ip: &mut [u8]) -> bool {
    let Some((h, icmp)) = ip.split_first_chunk_mut::<40>() else { return false };
    if !turn_icmp(icmp, 128, 129) {
        return false;
    }
    h[7] = HOPS;
    h.last_chunk_mut::<32>().is_some_and(|both| swap_halves::<16>(both))
}

/// Changes the type of an ICMP message with code 0 and updates its checksum.
fn turn_icmp(icmp: &mut [u8], request: u8, reply: u8) -> bool {
    let Some(h) = icmp.first_chunk_mut::<8>() else { return false };
    if [h[0], h[1]] != [request, 0] {
        return false;
    }
    let sum = u16::from_be_bytes([h[2], h[3]]);
    let sum = checksum::update(sum, u16::from_be_bytes([request, 0]), u16::from_be_bytes([reply, 0]));
    h[0] = reply;
    [h[2], h[3]] = sum.to_be_bytes();
    // The checksum of an all-zero message is 0xffff (RFC 1071). An incremental update cannot
    // distinguish 0xffff from 0, so this case is handled here.
    if sum == 0 && icmp.iter().all(|byte| *byte == 0) {
        icmp.iter_mut().skip(2).take(2).for_each(|byte| *byte = 0xff);
    }
    true
}

/// Swaps the first two groups of `N` bytes.
pub(crate) fn swap_halves<const N: usize>(bytes: &mut [u8]) -> bool {
    let Some((first, rest)) = bytes.split_first_chunk_mut::<N>() else { return false };
    let Some(second) = rest.first_chunk_mut::<N>() else { return false };
    core::mem::swap(first, second);
    true
}

const HOPS: u8 = 64;

#[cfg(test)]
mod tests;
