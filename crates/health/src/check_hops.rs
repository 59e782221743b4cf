//! The next hops through which backends with a multipath route are checked. The control plane sets
//! the hops, the module `engine` checks the backend through each hop, and the module `tunnel` sends
//! the check packets.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use forwarder::NextHop;

use crate::lock;

/// The index of the interface and the IP address of the neighbor that receives the frames of a hop.
pub type HopNeighbour = (u32, IpAddr);

/// A next hop of a backend, through which the backend is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckHop {
    /// The neighbor, which identifies the hop.
    pub neighbour: HopNeighbour,
    /// The addresses, interface and VLAN tags of the frames.
    pub next_hop: NextHop,
    /// The MTU of the hop in bytes.
    pub mtu: u16,
}

/// The hops of all backends that have a multipath route. The control plane replaces the set, and
/// the health thread reads it at each attempt. Clones share the set.
#[derive(Clone, Debug, Default)]
pub struct CheckHops(Arc<Mutex<HashMap<IpAddr, Arc<[CheckHop]>>>>);

impl CheckHops {
    /// Replaces the hops of all backends. A backend that is not in `hops` is checked along the
    /// route that the kernel chooses.
    pub fn replace(&self, hops: HashMap<IpAddr, Arc<[CheckHop]>>) {
        *lock(&self.0) = hops;
    }

    /// Returns `true` if no backend has a multipath route.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    pub(crate) fn of(&self, address: IpAddr) -> Option<Arc<[CheckHop]>> {
        lock(&self.0).get(&address).cloned()
    }
}
