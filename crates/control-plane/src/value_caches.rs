//! Caches for packet threads.
//!
//! In: bytes of all threads together, and the epochs that these share. Out: a cache for each thread.
//! Not here: what is cached when (`kv-switch`), how caches reach the threads (`questions`), when (`sluicegate`).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::sync::Arc;

use forwarder::ValueCache;
use kv_switch::{CacheConfig, Epochs};
use packet::checksum::folded_sum;

use crate::questions::Caches;

/// Caches for so many threads, which share `memory`. `advise` is called with the addresses of large parts before these are touched.
///
/// # Cost
/// That memory, of which the system gives most only when it is first used.
#[must_use]
pub fn value_caches(memory: usize, epochs: &Arc<Epochs>, threads: usize, advise: fn(Range<usize>)) -> Caches {
    let cache = |_| {
        // Who knew it would know what an answer has to say.
        let seed = [(); 2].map(|()| RandomState::new().build_hasher().finish());
        let memory = memory / threads.max(1);
        Box::new(ValueCache::new(&CacheConfig {
            memory,
            epochs: Arc::clone(epochs),
            seed,
            advise,
            sum: folded_sum,
        }))
    };
    (0..threads).map(cache).collect()
}
