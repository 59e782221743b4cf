//! One thread's copies of hot values, by which it answers reads itself.
//!
//! In: reads of keys, each with the server that has it; what servers answer to us; the time in nanoseconds. Out: a copy that may be
//! served, and what servers are to be asked.
//! Not here: addresses and exchanges (the caller keeps `T` of each fetch), bytes of a protocol ([`Application`]).
//! Invariants: no copy is served later than a lease after its server was asked, after a write of its key (or an answer to one) came by, or under
//! another generation of the caller's; one fetch a key is under way; of a hundred hits come at most five fetches, and of each
//! second [`FREE_FETCHES`] besides. All memory is taken at the start.
//! Source: leases as of Gray and Cheriton, SOSP 1989, without the server's promise: versions are compared instead.

mod epochs;
mod fill;
mod lease;
mod shard;
mod sketch;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

pub use self::epochs::{Epoch, Epochs, SETTLE_NS};
pub use self::fill::{FetchAnswer, Filled};
pub use self::lease::Lease;

use self::fill::{Fill, Fills};
use self::lease::READS_A_FILL;
use self::shard::{Name, Shard};
use self::sketch::Sketch;
use crate::{Copied, KeyHash, MAX_KEY_BYTES, Stored};

/// What a thread's cache is made of.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Bytes that copies and what is known of them take.
    pub memory: usize,
    /// Shared by all threads.
    pub epochs: Arc<Epochs>,
    /// A secret that no other cache has and no earlier one had, for what answers are known by.
    pub seed: [u64; 2],
    /// Called with the addresses of its memory before this is touched, so that the kernel may give it in large pages.
    pub advise: fn(Range<usize>),
    /// Called once with each reply that is prepared for a copy; what it returns is told with the copy. For a checksum of what is sent
    /// as it is.
    pub sum: fn(&[u8]) -> u16,
}

/// The cache. `T`: what the caller keeps of a fetch.
#[derive(Debug)]
pub struct Cache<T> {
    epochs: Arc<Epochs>,
    shard: Shard,
    sketch: Sketch,
    fills: Fills<T>,
    credit: Credit,
    useless: Useless,
    counts: CacheCounts,
    sum: fn(&[u8]) -> u16,
}

/// A read of one key.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a, T> {
    /// Of the key, under a secret that all threads share: [`Epochs`] go by it.
    pub hash: u64,
    /// The caller's number of the server that has the key.
    pub server: u32,
    /// It.
    pub key: &'a [u8],
    /// How long a copy of it is taken for true.
    pub lease: Lease,
    /// Fetches that its server may have under way from this thread.
    pub fills_per_server: u16,
    /// Copies of another are not served.
    pub generation: u64,
    /// Goes with the fetch, if one comes of it.
    pub context: T,
}

impl<T> Read<'_, T> {
    fn name(&self) -> Name<'_> {
        Name { hash: self.hash, server: self.server, key: self.key }
    }
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheCounts {
    /// Reads that were answered.
    pub hits: u64,
    /// Fetches that were asked for.
    pub asked: u64,
    /// Values that were kept.
    pub fills: u64,
    /// Copies whose version was the server's still.
    pub renewals: u64,
    /// Copies and values that a write came by in time to keep from being served.
    pub stale_avoided: u64,
    /// Copies that gave way to others.
    pub evictions: u64,
    /// Of keys and values that there are copies of.
    pub bytes: u64,
}

impl<T: Copy> Cache<T> {
    /// An empty cache.
    ///
    /// # Cost
    /// Takes all memory that it will ever have: [`CacheConfig::memory`] and 340 KB.
    #[must_use]
    pub fn new(config: &CacheConfig) -> Self {
        let [first, second] = config.seed;
        Self {
            epochs: Arc::clone(&config.epochs),
            shard: Shard::new(config.memory, config.advise),
            sketch: Sketch::new(SKETCH_WIDTH),
            fills: Fills::new(KeyHash::sip(first, second)),
            credit: Credit::default(),
            useless: Useless(vec![(0, 0, Epoch::default()); USELESS_KEYS].into()),
            counts: CacheCounts::default(),
            sum: config.sum,
        }
    }

    /// Loads what [`Self::look_up`] will read for these keys' hashes, all of a step at once: a copy is found in three steps, each of
    /// which may wait for memory.
    ///
    /// # Cost
    /// Three waits for memory in all, and some thirty instructions a key. It takes 64 of the hashes, and leaves the others to the next call.
    pub fn load(&self, hashes: impl Iterator<Item = u64>) {
        let mut candidates = [None; LOADED_AT_ONCE];
        let mut epochs = 0;
        for (place, hash) in candidates.iter_mut().zip(hashes) {
            *place = self.shard.candidate(hash);
            epochs ^= self.epochs.load(hash);
        }
        let candidates = || candidates.iter().flatten();
        let copies = candidates().fold(0, |all, number| all ^ self.shard.load(*number));
        let blocks = candidates().fold(0, |all, number| all ^ self.shard.load_block(*number));
        // The values are not used: `black_box` keeps the compiler from leaving the loads out.
        std::hint::black_box((epochs, copies, blocks));
    }

    /// The number of the copy that may answer a read now. `None`: the server has to; if such reads come often, it is asked by us too.
    pub fn look_up(&mut self, now: u64, read: &Read<'_, T>) -> Option<u32> {
        let Some(number) = self.shard.find(&read.name()) else {
            self.miss(now, read);
            return None;
        };
        let state = &self.shard.copy(number)?.state;
        if state.until <= now || state.generation != read.generation {
            self.stale(now, read, number);
            return None;
        }
        if state.epoch != self.epochs.of(read.hash, read.server) {
            self.counts.stale_avoided += 1;
            self.shard.copy_mut(number)?.state.until = 0;
            self.stale(now, read, number);
            return None;
        }
        Some(number)
    }

    /// What a copy says.
    #[must_use]
    pub fn copy(&self, number: u32) -> Option<Copied<'_>> {
        let copy = self.shard.copy(number)?;
        let state = &copy.state;
        let stored = Stored { flags: state.flags, cas: state.cas, bytes: self.shard.value_of(copy) };
        let (key, prepared) = (self.shard.key_of(copy), self.shard.prepared_of(copy));
        Some(Copied { key, stored, ttl: state.ttl, is_base64: state.is_base64, prepared, sum: copy.sum })
    }

    /// A read was answered by that copy. `true`: it is near its end, and [`Self::renew`] is to be called with the read.
    #[inline]
    #[must_use]
    pub fn served(&mut self, now: u64, number: u32) -> bool {
        self.counts.hits += 1;
        self.credit.earn();
        let Some(copy) = self.shard.warm(number) else { return false };
        copy.state.reads = copy.state.reads.saturating_add(1);
        now >= copy.state.renewed_at && !copy.is_asked_for
    }

    /// Asks the server again for a copy that is near its end.
    #[cold]
    pub fn renew(&mut self, now: u64, read: &Read<'_, T>, number: u32) {
        let Some(reads) = self.shard.copy(number).map(|copy| copy.state.reads) else { return };
        self.want(now, read, reads >= COST);
    }

    /// There is no copy: asked for is what comes often.
    fn miss(&mut self, now: u64, read: &Read<'_, T>) {
        let rate = self.sketch.count(now, read.hash);
        if rate >= read.lease.worth_asking() {
            let epoch = self.epochs.of(read.hash, read.server);
            if !self.useless.has(now, read.hash, epoch) {
                self.want(now, read, rate >= read.lease.pays());
            }
        }
    }

    /// There is a copy that may not be served: what was read since it was asked for last says whether it pays to ask again.
    fn stale(&mut self, now: u64, read: &Read<'_, T>, number: u32) {
        let Some(copy) = self.shard.copy_mut(number) else { return };
        copy.state.reads = copy.state.reads.saturating_add(1);
        let reads = copy.state.reads;
        if reads >= READS_A_FILL && !copy.is_asked_for {
            self.want(now, read, reads >= COST);
        }
    }

    /// Asks for a key, if there is credit and room.
    #[cold]
    fn want(&mut self, now: u64, read: &Read<'_, T>, pays: bool) {
        let epoch = self.epochs.of(read.hash, read.server);
        let may_ask = self.credit.is_enough(now, pays) && epoch.is_settled(now);
        if !may_ask || read.key.len() > MAX_KEY_BYTES || !self.fills.has_room(read) {
            return;
        }
        self.credit.left -= COST;
        let copy = self.shard.find(&read.name()).and_then(|number| self.shard.copy_mut(number));
        self.fills.want(Fill::of(now, read, epoch, copy));
        self.counts.asked += 1;
    }

    /// What has happened since the beginning; of bytes what there is.
    #[must_use]
    pub fn counts(&self) -> CacheCounts {
        CacheCounts { evictions: self.shard.evictions, bytes: self.shard.used_bytes, ..self.counts }
    }
}

/// What fetches are paid with: a hit earns one, a fetch costs [`COST`].
#[derive(Debug, Default)]
struct Credit {
    left: u32,
    given: Option<u64>,
}

impl Credit {
    #[inline]
    fn earn(&mut self) {
        self.left = (self.left + 1).min(MOST_CREDIT);
    }

    /// For one fetch. `pays`: the key itself brings what it costs. Others leave a reserve to such.
    fn is_enough(&mut self, now: u64, pays: bool) -> bool {
        if self.given.is_none_or(|given| now.saturating_sub(given) >= SECOND) {
            self.given = Some(now);
            self.left = self.left.max(FREE_FETCHES * COST);
        }
        self.left >= if pays { COST } else { COST + RESERVE }
    }
}

/// Keys that are not kept though they come often: what is not there, or too long, is not asked for again at once unless it was
/// written since.
#[derive(Debug)]
struct Useless(Box<[(u64, u64, Epoch)]>);

impl Useless {
    fn has(&self, now: u64, hash: u64, epoch: Epoch) -> bool {
        let known = self.0.get(Self::place(hash));
        known.is_some_and(|&(known, until, of)| known == hash && now < until && of == epoch)
    }

    fn add(&mut self, now: u64, hash: u64, epoch: Epoch) {
        if let Some(place) = self.0.get_mut(Self::place(hash)) {
            *place = (hash, now.saturating_add(SECOND), epoch);
        }
    }

    fn place(hash: u64) -> usize {
        usize::try_from(hash % USELESS_KEYS as u64).unwrap_or(0)
    }
}

/// Hits that pay for a fetch: fetches are at most 5 % of them.
const COST: u32 = 20;
/// Fetches of each second that no hit pays for: how a cache begins.
pub const FREE_FETCHES: u32 = 16;
const MOST_CREDIT: u32 = 128 * COST;
const RESERVE: u32 = FREE_FETCHES / 2 * COST;
const SKETCH_WIDTH: usize = 1 << 15;
const USELESS_KEYS: usize = 1 << 10;
const SECOND: u64 = 1_000_000_000;
/// As many as a batch has packets at most.
const LOADED_AT_ONCE: usize = 64;
