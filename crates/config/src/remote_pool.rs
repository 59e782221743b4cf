//! Defines pools of remote clusters that serve addresses of a VIP. These pools do not appear
//! in the configuration files. The module `remote` builds these pools.

use std::sync::Arc;

use serde::Serialize;

use forwarder::Prefix;

use super::canonical;
use super::pool::Pool;

/// Remote clusters that serve some addresses of a VIP: either the VIP's own addresses of one
/// family, or its addresses in a prefix group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RemotePool {
    /// The addresses of the VIP in this cluster, as prefixes.
    #[serde(serialize_with = "canonical::set")]
    pub ours: Vec<Prefix>,
    /// A pool whose members are the remote clusters. The address of a member is the address of the
    /// VIP in that cluster.
    pub pool: Arc<Pool>,
    /// The prefix of the VIP in each remote cluster, in the order of the pool's members. A
    /// redirected packet's destination address gets this prefix.
    #[serde(serialize_with = "canonical::list")]
    pub theirs: Vec<Prefix>,
}
