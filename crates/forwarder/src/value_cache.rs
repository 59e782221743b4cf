//! The cache of a packet thread for the values of hot keys. This module also stores the VIP to
//! which each fetch belongs. `pipeline::cache` answers requests from the cache and sends fetches.
//! `kv_switch::Cache` stores values and leases.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use kv_switch::Cache;

use crate::{Flow, Keyed, Service, Snapshot};

/// The cached values of one packet thread.
pub type ValueCache = Cache<AskedAt>;

/// The VIP address and port that receive the requests for a key. The service at this VIP determines
/// how the value is fetched from a backend. A backend may run different servers at different
/// addresses and ports, so a value that was fetched through one address and port is not used for
/// requests to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedAt {
    /// The VIP address in the format of [`Flow`].
    vip: [u8; 16],
    port: u16,
}

impl AskedAt {
    /// Creates the value for the address and UDP port of a VIP.
    #[must_use]
    pub const fn new(vip: SocketAddr) -> Self {
        let address = match vip.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Self { vip: address.octets(), port: vip.port() }
    }

    /// Creates the value for the destination of a flow.
    pub(crate) const fn of(flow: &Flow) -> Self {
        Self { vip: flow.destination, port: flow.destination_port }
    }

    pub(crate) fn vip(&self) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::from(self.vip).to_canonical(), self.port)
    }

    /// Returns the service that `snapshot` has for this VIP address and port, or `None` if there is
    /// no keyed service.
    pub(crate) fn keyed<'a>(&self, snapshot: &'a Snapshot) -> Option<(&'a Service, &'a Keyed)> {
        let service = snapshot.vips.find(&self.vip, packet::protocol::UDP, self.port)?;
        let service = snapshot.service(service);
        Some((service, service.keyed.as_deref()?))
    }
}
