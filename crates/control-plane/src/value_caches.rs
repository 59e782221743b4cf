//! Creates the value caches of the packet threads. `kv-switch` implements the cache, and
//! `questions` sends the caches to the threads.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::sync::Arc;

use forwarder::ValueCache;
use kv_switch::{CacheConfig, Epochs};
use packet::checksum::folded_sum;

use crate::questions::Caches;

/// Creates one cache for each packet thread. Together, the caches use `memory` bytes. `advise` is
/// called with the address range of each large allocation before the range is used.
///
/// # Cost
/// Reserves `memory` bytes of address space. The kernel allocates most pages when they are first
/// used.
#[must_use]
pub fn value_caches(memory: usize, epochs: &Arc<Epochs>, threads: usize, advise: fn(Range<usize>)) -> Caches {
    let cache = |_| {
        // The seed is random, because a client that knew the seed could predict the content of
        // replies.
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
