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
    places: Box<[[u16; LANES]]>,
    count: usize,
}

/// Adds messages to an empty buffer.
pub(super) struct Filler<'a, const WORDS: usize> {
    // Both slices have the same length, so that one bounds check covers both.
    groups: &'a mut [Lanes<WORDS>],
    places: &'a mut [[u16; LANES]],
    count: usize,
}

impl<const WORDS: usize> Filler<'_, WORDS> {
    /// Adds the message of the packet with batch index `place`. If the buffer is full, the message
    /// is ignored.
    #[inline(always)]
    pub(super) fn push(&mut self, place: usize, words: [u64; WORDS]) {
        let (group, lane) = (self.count / LANES, self.count % LANES);
        let (Some(group), Some(places)) = (self.groups.get_mut(group), self.places.get_mut(group)) else {
            return;
        };
        for (to, word) in group.iter_mut().zip(words) {
            to[lane] = word;
        }
        #[expect(clippy::cast_possible_truncation, reason = "a batch has fewer than 65,536 packets")]
        let place = place as u16;
        places[lane] = place;
        self.count += 1;
    }

    pub(super) const fn count(&self) -> usize {
        self.count
    }
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
            places: vec![[0; LANES]; groups].into(),
            count: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// Returns a writer that adds messages after the present ones. The caller must then call
    /// [`Messages::set_len`] with the number of messages.
    #[inline(always)]
    pub(super) fn filler(&mut self) -> Filler<'_, WORDS> {
        let length = self.groups.len().min(self.places.len());
        Filler { groups: &mut self.groups[..length], places: &mut self.places[..length], count: self.count }
    }

    pub(super) fn set_len(&mut self, count: usize) {
        self.count = count;
    }

    /// Adds one message, as [`Filler::push`] does.
    #[inline(always)]
    pub(super) fn push(&mut self, place: usize, words: [u64; WORDS]) {
        let mut filler = self.filler();
        filler.push(place, words);
        self.count = filler.count;
    }

    /// Returns the hashes of all messages.
    #[inline(always)]
    pub(super) fn hash(&mut self, key: SipKey, hash_many: HashMany<WORDS>) -> Hashed<'_> {
        let groups = self.count.div_ceil(LANES);
        if let (Some(groups), Some(hashes)) = (self.groups.get(..groups), self.hashes.get_mut(..groups)) {
            hash_many(key, groups, hashes);
        }
        let hashes = self.hashes.as_flattened().get(..self.count).unwrap_or_default();
        let places = self.places.as_flattened().get(..self.count).unwrap_or_default();
        Hashed { places, hashes }
    }
}
