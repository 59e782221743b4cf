//! Propagation of congestion marks at decapsulation (RFC 6040 §4.2).

use crate::{Family, checksum};

/// Merges the ECN field of the outer header into the inner packet at the start of `ip`, as RFC 6040
/// defines. Updates the IPv4 checksum and keeps the other bits of the inner TOS.
///
/// Returns `false` and leaves `ip` unchanged if the outer header marks congestion but the inner
/// packet is not ECN-capable. The caller must then drop the packet. Also returns `false` if `ip` is
/// shorter than the IP header.
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

/// Returns the ECN field from the table in RFC 6040 §4.2, figure 4, or `None` if the packet must be
/// dropped.
const fn merged(inner: u8, outer: u8) -> Option<u8> {
    match (inner, outer) {
        // A sender without ECN support detects congestion only by packet loss, so the packet is
        // dropped.
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
