//! The cache from which one packet thread answers reads of frequently requested values.
//!
//! [`Cache`] decides whether a cached value may answer a read, and which keys to fetch from their
//! servers. The caller sends the fetches and provides the time in nanoseconds.
//!
//! A cached value is no longer served if its lease has ended, if the configuration generation has
//! changed, or if this machine has forwarded a write to its key or the answer to such a write. Each
//! key has at most one fetch in progress. The number of fetches is at most 5 % of the number of
//! hits, plus [`FREE_FETCHES`] per second. All memory is reserved when the cache is created.
//!
//! The leases follow Gray and Cheriton, SOSP 1989. Servers do not notify the cache of changes, so
//! the cache compares versions instead.

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

/// The parameters of a [`Cache`].
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// The memory for cached values and their metadata, in bytes.
    pub memory: usize,
    /// The write epochs, shared by all packet threads.
    pub epochs: Arc<Epochs>,
    /// A random secret for nonces. Use a new secret for each cache and after each restart.
    pub seed: [u64; 2],
    /// A function that is called with each allocated address range before its first use. The
    /// function can request huge pages from the kernel.
    pub advise: fn(Range<usize>),
    /// A function that is called once for each prepared reply, for example to compute a checksum.
    /// The cache stores the result with the value.
    pub sum: fn(&[u8]) -> u16,
}

/// A cache of hot values. `T` is the type by which the caller identifies the address and port to
/// which a fetch is sent. Processes on different ports of a server may store different values for a
/// key, so `T` is part of the lookup key of each cached value.
#[derive(Debug)]
pub struct Cache<T> {
    epochs: Arc<Epochs>,
    shard: Shard<T>,
    sketch: Sketch,
    fills: Fills<T>,
    credit: Credit,
    useless: Useless<T>,
    counts: CacheCounts,
    sum: fn(&[u8]) -> u16,
}

/// A client's read of one key.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a, T> {
    /// The keyed hash of the key. All packet threads must use the same secret, because they use
    /// this hash to look up the shared [`Epochs`].
    pub hash: u64,
    /// The caller's identifier for the server that stores the key.
    pub server: u32,
    /// The key.
    pub key: &'a [u8],
    /// The lease for cached values of this key.
    pub lease: Lease,
    /// The maximum number of fetches from this server that this thread may have in progress.
    pub fills_per_server: u16,
    /// The current configuration generation. Values that were cached in a different generation are
    /// not served.
    pub generation: u64,
    /// The address and port to which requests for the server are sent. Values that were fetched
    /// from a different address or port are not served.
    pub asked: T,
}

impl<T: Copy> Read<'_, T> {
    fn name(&self) -> Name<'_, T> {
        Name { hash: self.hash, server: self.server, asked: self.asked, key: self.key }
    }
}

/// Counters of cache events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheCounts {
    /// Reads that were answered from the cache.
    pub hits: u64,
    /// Fetches that the cache requested.
    pub asked: u64,
    /// Values that were stored in the cache.
    pub fills: u64,
    /// Cached values whose lease was renewed because the server still had the same version.
    pub renewals: u64,
    /// Cached or fetched values that were not served because their key had been written.
    pub stale_avoided: u64,
    /// Cached values that were evicted to make room for others.
    pub evictions: u64,
    /// Bytes of keys and values in the cache.
    pub bytes: u64,
}

impl<T: Copy + PartialEq> Cache<T> {
    /// Creates an empty cache.
    ///
    /// # Cost
    /// Reserves [`CacheConfig::memory`] plus 370 KB.
    #[must_use]
    pub fn new(config: &CacheConfig) -> Self {
        let [first, second] = config.seed;
        Self {
            epochs: Arc::clone(&config.epochs),
            shard: Shard::new(config.memory, config.advise),
            sketch: Sketch::new(SKETCH_WIDTH),
            fills: Fills::new(KeyHash::sip(first, second)),
            credit: Credit::default(),
            useless: Useless(vec![None; USELESS_KEYS].into()),
            counts: CacheCounts::default(),
            sum: config.sum,
        }
    }

    /// Loads the memory that [`Self::look_up`] will read for these hashes into the CPU caches. A
    /// lookup needs three memory accesses, and each access depends on the previous one. This method
    /// performs the first access for all hashes, then the second and then the third, so that the
    /// cache misses overlap.
    ///
    /// # Cost
    /// The time of three cache misses, and about thirty instructions per key. At most 64 hashes are
    /// taken from the iterator.
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
        // The results of the loads are not used, so the compiler would remove the loads without
        // `black_box`.
        std::hint::black_box((epochs, copies, blocks));
    }

    /// Returns the index of the cached value that may answer this read. Returns `None` if the
    /// server must answer. If reads of an uncached key are frequent, this method requests a fetch.
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

    /// Returns the cached value with this index.
    #[must_use]
    pub fn copy(&self, number: u32) -> Option<Copied<'_>> {
        let copy = self.shard.copy(number)?;
        let state = &copy.state;
        let stored = Stored { flags: state.flags, cas: state.cas, bytes: self.shard.value_of(copy) };
        let (key, prepared) = (self.shard.key_of(copy), self.shard.prepared_of(copy));
        Some(Copied { key, stored, ttl: state.ttl, is_base64: state.is_base64, prepared, sum: copy.sum })
    }

    /// Counts a read that was answered from the cached value with index `number`. Returns `true` if
    /// the lease ends soon. The caller must then call [`Self::renew`].
    #[inline]
    #[must_use]
    pub fn served(&mut self, now: u64, number: u32) -> bool {
        self.counts.hits += 1;
        self.credit.earn();
        let Some(copy) = self.shard.warm(number) else { return false };
        copy.state.reads = copy.state.reads.saturating_add(1);
        now >= copy.state.lease.renewed_at(copy.state.until) && !copy.is_asked_for
    }

    /// Requests a fetch that renews a cached value whose lease ends soon.
    #[cold]
    pub fn renew(&mut self, now: u64, read: &Read<'_, T>, number: u32) {
        let Some(reads) = self.shard.copy(number).map(|copy| copy.state.reads) else { return };
        self.want(now, read, reads >= COST);
    }

    /// Handles a read of an uncached key, and requests a fetch if the key is read often.
    fn miss(&mut self, now: u64, read: &Read<'_, T>) {
        let rate = self.sketch.count(now, read.hash);
        if rate >= read.lease.worth_asking() {
            let epoch = self.epochs.of(read.hash, read.server);
            if !self.useless.has(now, &read.name(), epoch) {
                self.want(now, read, rate >= read.lease.pays());
            }
        }
    }

    /// Handles a read whose cached value may not be served, and requests a fetch if the key was
    /// read often enough since the last fetch.
    fn stale(&mut self, now: u64, read: &Read<'_, T>, number: u32) {
        let Some(copy) = self.shard.copy_mut(number) else { return };
        copy.state.reads = copy.state.reads.saturating_add(1);
        let reads = copy.state.reads;
        if reads >= READS_A_FILL && !copy.is_asked_for {
            self.want(now, read, reads >= COST);
        }
    }

    /// Requests a fetch if the fetch budget suffices and the fetch table has room.
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

    /// Returns the event counts since the cache was created. The field `bytes` is not a count of
    /// events, but the current number of bytes.
    #[must_use]
    pub fn counts(&self) -> CacheCounts {
        CacheCounts { evictions: self.shard.evictions, bytes: self.shard.used_bytes, ..self.counts }
    }
}

/// The budget for fetches. Each hit earns one credit, and each fetch costs [`COST`] credits.
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

    /// Returns `true` if the credit suffices for one fetch. `pays` is `true` if the key is read so
    /// often that its hits earn enough credits for its own fetches. All other fetches must leave
    /// at least [`RESERVE`] credits.
    fn is_enough(&mut self, now: u64, pays: bool) -> bool {
        if self.given.is_none_or(|given| now.saturating_sub(given) >= SECOND) {
            self.given = Some(now);
            self.left = self.left.max(FREE_FETCHES * COST);
        }
        self.left >= if pays { COST } else { COST + RESERVE }
    }
}

/// Frequently read keys that cannot be cached because their value is missing or too long. Such a
/// key is not fetched again for one second, unless it is written.
#[derive(Debug)]
struct Useless<T>(Box<[Option<UselessKey<T>>]>);

#[derive(Clone, Copy, Debug)]
struct UselessKey<T> {
    hash: u64,
    server: u32,
    asked: T,
    until: u64,
    epoch: Epoch,
}

impl<T: Copy + PartialEq> Useless<T> {
    fn has(&self, now: u64, name: &Name<'_, T>, epoch: Epoch) -> bool {
        let known = self.0.get(Self::place(name.hash)).and_then(Option::as_ref);
        known.is_some_and(|known| {
            (known.hash, known.server, known.asked) == (name.hash, name.server, name.asked)
                && now < known.until
                && known.epoch == epoch
        })
    }

    fn add(&mut self, now: u64, name: &Name<'_, T>, epoch: Epoch) {
        if let Some(place) = self.0.get_mut(Self::place(name.hash)) {
            let &Name { hash, server, asked, .. } = name;
            *place = Some(UselessKey { hash, server, asked, until: now.saturating_add(SECOND), epoch });
        }
    }

    fn place(hash: u64) -> usize {
        usize::try_from(hash % USELESS_KEYS as u64).unwrap_or(0)
    }
}

/// The cost of a fetch in credits. A hit earns one credit, so fetches are limited to 5 % of hits.
const COST: u32 = 20;
/// The number of fetches per second that are allowed without credit, so that an empty cache can be
/// filled.
pub const FREE_FETCHES: u32 = 16;
const MOST_CREDIT: u32 = 128 * COST;
const RESERVE: u32 = FREE_FETCHES / 2 * COST;
const SKETCH_WIDTH: usize = 1 << 15;
const USELESS_KEYS: usize = 1 << 10;
const SECOND: u64 = 1_000_000_000;
/// The maximum number of packets in a batch.
const LOADED_AT_ONCE: usize = 64;
