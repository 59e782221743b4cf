//! What a packet thread keeps for requests of keyed services, beside the connection table that these never enter.

use kv_switch::{CacheCounts, HotKeys};

use super::expiry::ShortLived;
use super::own_requests::OwnTable;
use crate::ValueCache;

/// What a thread keeps for requests of keyed services.
#[derive(Debug)]
pub(super) struct KeyedState {
    pub(super) hot_keys: Option<Box<HotKeys>>,
    pub(super) own: Option<Box<OwnTable>>,
    pub(super) short_lived: ShortLived,
    pub(super) cache: Option<Box<ValueCache>>,
    /// What the cache had counted when that was last published.
    pub(super) counted: CacheCounts,
    /// A read of this batch may be answered from a copy.
    pub(super) has_cached_reads: bool,
}

impl KeyedState {
    /// Nothing is counted, and nothing is cached.
    pub(super) fn new(own: Option<Box<OwnTable>>, short_lived: ShortLived) -> Self {
        let (hot_keys, cache, counted) = (None, None, CacheCounts::default());
        Self { hot_keys, own, short_lived, cache, counted, has_cached_reads: false }
    }
}
