//! How many frames each source has in the buffer.
//!
//! In: a keyed hash of what counts as one source, for each frame that is kept or released. Out: counts.
//! Exact in fixed memory: a source is here only while it has a frame in the buffer, so there are at most as many as
//! hold slots. (Counts by bucket of a hash would let a source that fills its bucket shut out those beside it.)
//! Two sources share a count only if all 64 bits of their hashes agree.
//! Invariant: the counts add up to the slots taken.

use crate::{Chains, filled};

#[derive(Debug)]
pub(crate) struct Sources {
    chains: Chains,
    records: Box<[Record]>,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    hash: u64,
    frames: u32,
}

impl Sources {
    /// For `slots` hold slots; `None` without the memory.
    pub(crate) fn new(slots: usize) -> Option<Self> {
        Some(Self { chains: Chains::new(slots)?, records: filled(slots, Record { hash: 0, frames: 0 })? })
    }

    pub(crate) fn bytes(slots: usize) -> usize {
        Chains::bytes(slots) + slots * size_of::<Record>()
    }

    pub(crate) fn frames(&self, hash: u64) -> u32 {
        self.find(hash).map_or(0, |place| self.records[place as usize].frames)
    }

    /// One frame more; the place by which [`Sources::leave`] knows it.
    pub(crate) fn enter(&mut self, hash: u64) -> u32 {
        let place = self.find(hash).unwrap_or_else(|| {
            let place = self.chains.take(hash);
            self.records[place as usize] = Record { hash, frames: 0 };
            place
        });
        self.records[place as usize].frames += 1;
        place
    }

    /// One frame less of the source at `place`.
    pub(crate) fn leave(&mut self, place: u32) {
        let record = &mut self.records[place as usize];
        record.frames -= 1;
        if record.frames == 0 {
            self.chains.give_back(record.hash, place);
        }
    }

    fn find(&self, hash: u64) -> Option<u32> {
        self.chains.of(hash).find(|&place| self.records[place as usize].hash == hash)
    }
}
