//! Where addresses of a VIP are served elsewhere, as a pool that nobody writes.
//!
//! Not here: remotes as written, and what VIPs make of them (`remote`).

use std::sync::Arc;

use serde::Serialize;

use forwarder::Prefix;

use super::canonical;
use super::pool::Pool;

/// Where some addresses of a VIP are served elsewhere: those of one family that are its own, or in its group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RemotePool {
    #[serde(serialize_with = "canonical::set")]
    pub(super) ours: Vec<Prefix>,
    pub(super) pool: Arc<Pool>,
    #[serde(serialize_with = "canonical::list")]
    pub(super) theirs: Vec<Prefix>,
}

impl RemotePool {
    /// The addresses here.
    pub fn ours(&self) -> &[Prefix] {
        &self.ours
    }

    /// The clusters as a pool that nobody writes; each has the address of the VIP there.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// What stands there in front of an address's own last bits; in the order of the pool's members.
    pub fn theirs(&self) -> &[Prefix] {
        &self.theirs
    }
}
