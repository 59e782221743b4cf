//! Ourselves, as every session says.

use std::net::Ipv4Addr;

/// Our AS number and identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    pub(crate) asn: u32,
    pub(crate) router_id: Ipv4Addr,
}
