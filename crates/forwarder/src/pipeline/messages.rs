//! Buffers for the hash inputs (messages) of a batch. The words of several messages are interleaved
//! in lanes, so that `sip-lanes` can hash these messages in parallel. `classifier` defines the
//! content of a message.
//!
//! Message `n` is in lane `n % LANES` of group `n / LANES`. The lanes after the last message
//! contain data from earlier batches.

use sip_lanes::{HashMany, LANES, Lanes, SipKey};

/// Messages of `WORDS` words each. For each message, the buffer also stores the batch index of its
/// packet.
#[derive(Debug)]
pub(super) struct Messages<const WORDS: usize> {
    groups: Box<[Lanes<WORDS>]>,
    hashes: Box<[[u64; LANES]]>,
    places: Box<[u16]>,
    count: usize,
}

/// The hashes in the order of the `push` calls, with the batch indexes of their packets.
pub(super) struct Hashed<'a> {
    pub(super) places: &'a [u16],
    pub(super) hashes: &'a [u64],
}

impl<const WORDS: usize> Messages<WORDS> {
    /// Creates buffers for batches of up to `packets` packets.
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

    /// Adds the message of the packet with batch index `place`. If the buffer is full, the message
    /// is ignored.
    #[inline(always)]
    pub(super) fn push(&mut self, place: usize, words: [u64; WORDS]) {
        let (group, lane) = (self.count / LANES, self.count % LANES);
        let (Some(group), Some(at)) = (self.groups.get_mut(group), self.places.get_mut(self.count)) else {
            return;
        };
        for (to, word) in group.iter_mut().zip(words) {
            to[lane] = word;
        }
        #[expect(clippy::cast_possible_truncation, reason = "a batch has fewer than 65,536 packets")]
        let place = place as u16;
        *at = place;
        self.count += 1;
    }

    /// Returns the hashes of all messages.
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
