//! What one thread found in groups of late, by address: a look-up that is repeated costs one cache line.
//!
//! Invariant: an entry counts only for the table whose stamp it has, so a new snapshot needs no clearing.

use super::Block;
use super::longest::hash;

/// Two addresses a cache line; one that comes in pushes out the older. 512 KiB, of which only what is used is touched.
#[derive(Debug)]
pub(crate) struct Recent(Box<[Line]>);

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line([Place; 2]);

#[derive(Clone, Copy, Debug)]
struct Place {
    address: [u8; 16],
    stamp: u64,
    block: Block,
}

impl Recent {
    pub(crate) fn new() -> Self {
        let place = Place { address: [0; 16], stamp: 0, block: Block { start: 0, len: 0 } };
        Self(vec![Line([place; 2]); LINES].into())
    }

    /// What is known of `address` under `stamp`, else what `find` says, which is kept.
    #[inline]
    pub(super) fn or_find(
        &mut self,
        stamp: u64,
        address: &[u8; 16],
        find: impl FnOnce() -> Option<Block>,
    ) -> Option<Block> {
        let at = hash(0, u128::from_be_bytes(*address), 0) & (LINES - 1);
        let Line([newer, older]) = self.0.get_mut(at)?;
        for place in [&*newer, &*older] {
            if place.address == *address && place.stamp == stamp {
                return Some(place.block);
            }
        }
        let block = find()?;
        *older = std::mem::replace(newer, Place { address: *address, stamp, block });
        Some(block)
    }
}

const LINES: usize = 8_192;
