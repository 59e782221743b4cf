//! What the packets of a batch are for, found before all else: where many look-ups follow each other and nothing stands
//! between, what one waits for from memory comes while the others go on.
//!
//! Untagged frames alone are read here, by their fixed places; a packet that turns out to be for another address is looked up
//! as if nothing had been found. Not here: whether a frame is sound (`packet::parse`).
//! Invariant: a place's answer is that of the table whose stamp it has, so a new snapshot needs no clearing.

use super::{EMPTY, VipTable};

/// An answer for each place of a batch.
#[derive(Debug)]
pub(crate) struct Ahead(Box<[Place]>);

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    address: [u8; 16],
    /// 0: none; no table has it.
    stamp: u64,
    /// The first of the VIP's intervals, or [`EMPTY`].
    ports: u32,
}

impl Ahead {
    /// For batches of at most `packets`.
    pub(crate) fn new(packets: usize) -> Self {
        Self(vec![Place::default(); packets].into())
    }

    /// Looks up the frames of a batch, if the table has groups at all: an address of its own is found soon enough.
    #[inline]
    pub(crate) fn look_up<'a>(&mut self, table: &VipTable, frames: impl Iterator<Item = &'a [u8]>) {
        let Some(groups) = &table.groups else { return };
        for (place, frame) in self.0.iter_mut().zip(frames) {
            let Some(address) = destination(frame) else { continue };
            let ports = table.ports(&address).unwrap_or(EMPTY);
            *place = Place { address, stamp: groups.stamp, ports };
        }
    }

    /// What was found for the packet at `place`, if that was for `address` and in the table with `stamp`.
    #[inline]
    pub(super) fn get(&self, place: usize, stamp: u64, address: &[u8; 16]) -> Option<u32> {
        let known = self.0.get(place)?;
        (known.stamp == stamp && known.address == *address).then_some(known.ports)
    }
}

/// The destination of an untagged frame, v4-mapped, if it is one of IP.
#[inline]
fn destination(frame: &[u8]) -> Option<[u8; 16]> {
    match frame.get(12..14)? {
        [0x86, 0xdd] => frame.get(38..)?.first_chunk().copied(),
        [0x08, 0x00] => {
            let [a, b, c, d] = *frame.get(30..)?.first_chunk()?;
            Some([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
        }
        _ => None,
    }
}
