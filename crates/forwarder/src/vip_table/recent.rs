//! What one thread found in groups of late, by address: a look-up that is repeated costs one cache line.
//!
//! Invariant: an entry counts only for the table whose stamp it has, so a new snapshot needs no clearing.

use super::Block;
use super::longest::hash;

/// Direct-mapped: an address that comes in pushes out the one in its place. 128 KiB.
#[derive(Debug)]
pub(crate) struct Recent(Box<[Place]>);

#[derive(Clone, Copy, Debug)]
struct Place {
    address: [u8; 16],
    stamp: u64,
    block: Block,
}

impl Recent {
    pub(crate) fn new() -> Self {
        Self(vec![Place { address: [0; 16], stamp: 0, block: Block { start: 0, len: 0 } }; PLACES].into())
    }

    /// What is known of `address` under `stamp`, else what `find` says, which is kept.
    #[inline]
    pub(super) fn or_find(
        &mut self,
        stamp: u64,
        address: &[u8; 16],
        find: impl FnOnce() -> Option<Block>,
    ) -> Option<Block> {
        let at = hash(0, u128::from_be_bytes(*address), 0) & (PLACES - 1);
        let place = self.0.get_mut(at)?;
        if place.stamp == stamp && place.address == *address {
            return Some(place.block);
        }
        let block = find()?;
        *place = Place { address: *address, stamp, block };
        Some(block)
    }
}

const PLACES: usize = 4_096;
