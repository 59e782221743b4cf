//! Decapsulates packets in place. [`decapsulate_in_place`] removes the outer headers of a tunneled
//! packet.
//!
//! The result is an ordinary frame that [`crate::parse`] can read. If an error is returned, the
//! frame stays unchanged. The caller must check that the outer source address is allowed to send
//! tunneled packets.

use core::ops::Range;

use crate::{Tunnelled, merge_ecn};

/// Removes the outer headers from a frame. Moves the link header with its VLAN tags in front of the
/// inner packet, and sets its Ethernet type to that of the inner packet. Also merges the ECN field
/// of the outer header into the inner packet.
///
/// `l3` is the length of the link header in bytes. `tunnelled` is the result of
/// [`crate::decapsulate`] for `frame[l3..]`.
///
/// Returns the range of `frame` that contains the decapsulated frame. The range does not include
/// outer headers or padding.
///
/// # Errors
/// Returns [`DecapsulateError`] and leaves `frame` unchanged.
pub fn decapsulate_in_place(
    frame: &mut [u8],
    l3: usize,
    tunnelled: &Tunnelled,
) -> Result<Range<usize>, DecapsulateError> {
    let Tunnelled { inner, end, family, tos, .. } = *tunnelled;
    let decapsulated = inner..l3.checked_add(end).ok_or(DecapsulateError::Bounds)?;
    if !matches!(l3, 14 | 18 | 22) || inner >= end || decapsulated.end > frame.len() {
        return Err(DecapsulateError::Bounds);
    }
    let ip = frame.get_mut(l3 + inner..decapsulated.end).ok_or(DecapsulateError::Bounds)?;
    if ip.len() < usize::from(family.header_len()) {
        return Err(DecapsulateError::Bounds);
    }
    if !merge_ecn(ip, family, tos) {
        return Err(DecapsulateError::Congestion);
    }
    frame.copy_within(..l3, inner);
    let link = frame.get_mut(inner..inner + l3).and_then(|link| link.last_chunk_mut::<2>());
    *link.ok_or(DecapsulateError::Bounds)? = family.ethertype().to_be_bytes();
    Ok(decapsulated)
}

/// The reason why the outer headers could not be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecapsulateError {
    /// The inner packet is shorter than an IP header, or the offsets are outside the frame.
    #[error("inner packet is shorter than an IP header, or the offsets are outside the frame")]
    Bounds,
    /// The outer header carries the ECN congestion mark (CE), but the inner packet is not
    /// ECN-capable.
    #[error("outer header marks congestion, but the inner packet is not ECN-capable")]
    Congestion,
}

#[cfg(test)]
mod tests;
