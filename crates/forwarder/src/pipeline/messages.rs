//! The messages of a batch's flows, gathered so that they are hashed side by side.
//!
//! Not here: what a message says (`classifier`), the hash (`sip-lanes`).
//! Invariant: message `n` stands in lane `n % LANES` of group `n / LANES`; what lies behind the last is of earlier batches.

use sip_lanes::{HashMany, LANES, Lanes, SipKey};

/// Messages of `WORDS` words, each with the place of its packet in the batch.
#[derive(Debug)]
pub(super) struct Messages<const WORDS: usize> {
    groups: Box<[Lanes<WORDS>]>,
    hashes: Box<[[u64; LANES]]>,
    places: Box<[u16]>,
    count: usize,
}

/// Hashes in the order of `push`, and the places of their packets.
pub(super) struct Hashed<'a> {
    pub(super) places: &'a [u16],
    pub(super) hashes: &'a [u64],
}

impl<const WORDS: usize> Messages<WORDS> {
    /// For batches of at most `packets`.
    pub(super) fn new(packets: usize) -> Self {
        let groups = packets.div_ceil(LANES);
        Self {
            groups: vec![[[0; LANES]; WORDS]; groups].into(),
            hashes: vec![[0; LANES]; groups].into(),
            places: vec![0; packets].into(),
            count: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// The message of the packet at `place`; there is room for a batch.
    #[inline(always)]
    pub(super) fn push(&mut self, place: usize, words: [u64; WORDS]) {
        let (group, lane) = (self.count / LANES, self.count % LANES);
        let (Some(group), Some(at)) = (self.groups.get_mut(group), self.places.get_mut(self.count)) else {
            return;
        };
        for (to, word) in group.iter_mut().zip(words) {
            to[lane] = word;
        }
        #[expect(clippy::cast_possible_truncation, reason = "a batch is far below 65,536 packets")]
        let place = place as u16;
        *at = place;
        self.count += 1;
    }

    /// Hashes them all.
    #[inline(always)]
    pub(super) fn hash(&mut self, key: SipKey, hash_many: HashMany<WORDS>) -> Hashed<'_> {
        let groups = self.count.div_ceil(LANES);
        if let (Some(groups), Some(hashes)) = (self.groups.get(..groups), self.hashes.get_mut(..groups)) {
            hash_many(key, groups, hashes);
        }
        let hashes = self.hashes.as_flattened().get(..self.count).unwrap_or_default();
        Hashed { places: self.places.get(..self.count).unwrap_or_default(), hashes }
    }
}
