//! Where addresses of a VIP are served elsewhere, as a pool that is in no file.
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
    /// The addresses here.
    #[serde(serialize_with = "canonical::set")]
    pub ours: Vec<Prefix>,
    /// The clusters as a pool that is in no file; each has the address of the VIP there.
    pub pool: Arc<Pool>,
    /// What stands there in front of an address's own last bits; in the order of the pool's members.
    #[serde(serialize_with = "canonical::list")]
    pub theirs: Vec<Prefix>,
}
