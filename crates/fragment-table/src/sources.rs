//! Counts the held frames of each source.
//!
//! The counts are exact and use a fixed amount of memory. A source is stored only while it has a
//! held frame, so there are never more sources than hold slots. With approximate counts per hash
//! bucket, one source could block other sources in its bucket. Here, two sources share a count only
//! if all 64 bits of their hashes are the same.
//!
//! Invariant: the sum of the counts is the number of hold slots in use.

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
    /// Creates an empty set with room for `slots` sources. Returns `None` if the allocation fails.
    pub(crate) fn new(slots: usize) -> Option<Self> {
        Some(Self { chains: Chains::new(slots)?, records: filled(slots, Record { hash: 0, frames: 0 })? })
    }

    pub(crate) fn bytes(slots: usize) -> usize {
        Chains::bytes(slots) + slots * size_of::<Record>()
    }

    pub(crate) fn frames(&self, hash: u64) -> u32 {
        self.find(hash).map_or(0, |place| self.records[place as usize].frames)
    }

    /// Increments the count of a source. Returns the index to pass to [`Sources::leave`].
    pub(crate) fn enter(&mut self, hash: u64) -> u32 {
        let place = self.find(hash).unwrap_or_else(|| {
            let place = self.chains.take(hash);
            self.records[place as usize] = Record { hash, frames: 0 };
            place
        });
        self.records[place as usize].frames += 1;
        place
    }

    /// Decrements the count of the source at index `place`.
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
