//! The cache of a packet thread, and what it keeps of a value that a backend is asked for.
//!
//! Not here: how reads are answered and backends asked (`pipeline::cache`), copies and leases (`kv_switch::Cache`).

use std::net::{IpAddr, SocketAddr};

use kv_switch::Cache;
use packet::Family;

use crate::{Keyed, Service, Snapshot};

/// One packet thread's copies.
pub type ValueCache = Cache<AskedAt>;

/// Where clients ask for a key that is fetched: the VIP, whose service says how its backend is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedAt(pub(crate) SocketAddr);

impl AskedAt {
    /// A VIP's address and UDP port.
    #[must_use]
    pub const fn new(vip: SocketAddr) -> Self {
        Self(vip)
    }

    /// The service there, as it is now.
    pub(crate) fn keyed<'a>(&self, snapshot: &'a Snapshot) -> Option<(&'a Service, &'a Keyed)> {
        let address = match self.0.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        let service = snapshot.vips.find(&address, packet::protocol::UDP, self.0.port())?;
        let service = snapshot.service(service);
        Some((service, service.keyed.as_deref()?))
    }

    pub(crate) fn family(&self) -> Family {
        if self.0.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}
