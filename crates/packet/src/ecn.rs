//! Congestion marks when an outer header goes away. Source: RFC 6040 §4.2.

use crate::{Family, checksum};

/// Gives the inner packet at the start of `ip` the ECN field that RFC 6040 makes of its own and of the outer header's
/// TOS or traffic class, and repairs the IPv4 checksum. The other bits of the inner TOS stay.
///
/// `false`, with `ip` untouched: the packet met congestion and its sender does not know ECN, so it must be dropped; or
/// `ip` is shorter than the IP header.
#[must_use]
pub fn merge_ecn(ip: &mut [u8], family: Family, outer_tos: u8) -> bool {
    match family {
        Family::V4 => ip.first_chunk_mut::<20>().is_some_and(|h| {
            let Some(ecn) = merged(h[1] & ECN, outer_tos & ECN) else { return false };
            let old = u16::from_be_bytes([h[0], h[1]]);
            h[1] = h[1] & !ECN | ecn;
            let new = u16::from_be_bytes([h[0], h[1]]);
            if old != new {
                let sum = checksum::update(u16::from_be_bytes([h[10], h[11]]), old, new);
                [h[10], h[11]] = sum.to_be_bytes();
            }
            true
        }),
        Family::V6 => ip.first_chunk_mut::<40>().is_some_and(|h| {
            let Some(ecn) = merged(h[1] >> 4 & ECN, outer_tos & ECN) else { return false };
            h[1] = h[1] & !(ECN << 4) | ecn << 4;
            true
        }),
    }
}

/// The table of RFC 6040 §4.2, figure 4. `None`: drop.
const fn merged(inner: u8, outer: u8) -> Option<u8> {
    match (inner, outer) {
        // A sender without ECN learns of congestion by a loss alone.
        (NOT_ECT, CE) => None,
        (ECT_0 | ECT_1, CE) => Some(CE),
        (ECT_0, ECT_1) => Some(ECT_1),
        _ => Some(inner),
    }
}

const ECN: u8 = 0b11;
const NOT_ECT: u8 = 0b00;
const ECT_1: u8 = 0b01;
const ECT_0: u8 = 0b10;
const CE: u8 = 0b11;

#[cfg(test)]
mod tests;
