//! The state of a packet thread for keyed services. Requests to keyed services are not added to the
//! connection table.

use kv_switch::{CacheCounts, HotKeys};

use super::expiry::ShortLived;
use super::upstream_requests::UpstreamTable;
use crate::ValueCache;

/// The state of one packet thread for keyed services.
#[derive(Debug)]
pub(super) struct KeyedState {
    pub(super) hot_keys: Option<Box<HotKeys>>,
    pub(super) own: Option<Box<UpstreamTable>>,
    pub(super) short_lived: ShortLived,
    pub(super) cache: Option<Box<ValueCache>>,
    /// The cache counts that were last added to the thread counters.
    pub(super) counted: CacheCounts,
    /// `true` if the current batch contains a read that may be answered from the cache.
    pub(super) has_cached_reads: bool,
}

impl KeyedState {
    /// Creates the state without a cache and without a counter of hot keys.
    pub(super) fn new(own: Option<Box<UpstreamTable>>, short_lived: ShortLived) -> Self {
        let (hot_keys, cache, counted) = (None, None, CacheCounts::default());
        Self { hot_keys, own, short_lived, cache, counted, has_cached_reads: false }
    }
}
