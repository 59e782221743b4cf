//! The cache of a packet thread, and what it keeps of a value that a backend is asked for.
//!
//! Not here: how reads are answered and backends asked (`pipeline::cache`), copies and leases (`kv_switch::Cache`).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use kv_switch::Cache;

use crate::{Flow, Keyed, Service, Snapshot};

/// One packet thread's copies.
pub type ValueCache = Cache<AskedAt>;

/// Where clients ask for a key that is fetched: the VIP, whose service says how its backend is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedAt {
    /// As in [`Flow`].
    vip: [u8; 16],
    port: u16,
}

impl AskedAt {
    /// A VIP's address and UDP port.
    #[must_use]
    pub const fn new(vip: SocketAddr) -> Self {
        let address = match vip.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Self { vip: address.octets(), port: vip.port() }
    }

    /// The destination of a flow.
    pub(crate) const fn of(flow: &Flow) -> Self {
        Self { vip: flow.destination, port: flow.destination_port }
    }

    pub(crate) fn vip(&self) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::from(self.vip).to_canonical(), self.port)
    }

    /// The service there, as it is now.
    pub(crate) fn keyed<'a>(&self, snapshot: &'a Snapshot) -> Option<(&'a Service, &'a Keyed)> {
        let service = snapshot.vips.find(&self.vip, packet::protocol::UDP, self.port)?;
        let service = snapshot.service(service);
        Some((service, service.keyed.as_deref()?))
    }
}
