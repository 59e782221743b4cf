//! Taking outer headers off in place: the frame then reads as if the inner packet had come plain.
//!
//! In: a frame and what [`crate::decapsulate`] said of its IP packet. Out: where the inner packet's frame lies in it.
//! Not here: whether its sender may send us tunnelled packets (`forwarder`).
//! Invariant: on an error not a byte has changed.

use core::ops::Range;

use crate::{Tunnelled, merge_ecn};

/// Moves the link header of `l3` bytes, tags and all, in front of the inner packet, gives it the inner packet's
/// Ethernet type, and merges the outer header's ECN field into the inner packet. `tunnelled` is what
/// [`crate::decapsulate`] said of `frame[l3..]`.
///
/// Gives the range of `frame` that is the new frame: no outer header, no padding behind the inner packet.
///
/// # Errors
/// [`OpenError`], with `frame` untouched.
pub fn open_in_place(frame: &mut [u8], l3: usize, tunnelled: &Tunnelled) -> Result<Range<usize>, OpenError> {
    let Tunnelled { inner, end, family, tos, .. } = *tunnelled;
    let opened = inner..l3.checked_add(end).ok_or(OpenError::Bounds)?;
    if !matches!(l3, 14 | 18 | 22) || inner >= end || opened.end > frame.len() {
        return Err(OpenError::Bounds);
    }
    let ip = frame.get_mut(l3 + inner..opened.end).ok_or(OpenError::Bounds)?;
    if ip.len() < usize::from(family.header_len()) {
        return Err(OpenError::Bounds);
    }
    if !merge_ecn(ip, family, tos) {
        return Err(OpenError::Congestion);
    }
    frame.copy_within(..l3, inner);
    let link = frame.get_mut(inner..inner + l3).and_then(|link| link.last_chunk_mut::<2>());
    *link.ok_or(OpenError::Bounds)? = family.ethertype().to_be_bytes();
    Ok(opened)
}

/// Why an outer header stayed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The inner packet is shorter than an IP header, or the description is not that of this frame.
    #[error("inner packet ends before its header does")]
    Bounds,
    /// The outer header says that the packet met congestion, and the inner one that its sender does not know ECN.
    #[error("congestion was met by a packet that does not know ecn")]
    Congestion,
}

#[cfg(test)]
mod tests;
