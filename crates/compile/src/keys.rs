//! Keys that identify pool members and pools.
//!
//! A health check through a VIP sends its probes to the VIP address through the tunnel to the
//! backend. The result of such a check applies only to one address family of that VIP. A backend
//! with such a check, and each pool that contains this backend, therefore have a separate key for
//! each address family of each VIP. All other backends have one key per leaf pool, and all other
//! pools have one key.

use std::net::IpAddr;
use std::sync::Arc;

use config::{Member, Via};
use packet::Family;

/// Identifies a pool member, which is one backend in one leaf pool and has one slot. A backend
/// whose address changes gets a different key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotKey {
    /// The name of the leaf pool.
    pub pool: Arc<str>,
    /// The name of the backend.
    pub backend: Arc<str>,
    /// The address of the backend.
    pub address: IpAddr,
    /// The VIP addresses through which the backend is checked, or `None` if no check goes through a
    /// VIP.
    pub vip: Option<VipFamily>,
}

/// The addresses of one VIP that belong to one address family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VipFamily {
    /// The name of the VIP.
    pub vip: Arc<str>,
    /// The address family.
    pub family: Family,
}

impl SlotKey {
    /// Returns the key of a pool member for the VIP addresses `vip`. `None` stands for all
    /// addresses. `vip` is ignored if no check of the member goes through a VIP.
    #[must_use]
    pub fn of(member: &Member, vip: Option<&VipFamily>) -> Self {
        Self {
            pool: Arc::clone(&member.leaf),
            backend: Arc::clone(&member.backend.name),
            address: member.backend.address,
            vip: vip.filter(|_| is_checked_through_vip(member)).cloned(),
        }
    }

    /// Returns `true` if the key identifies a peer, or `false` if it identifies a backend.
    #[must_use]
    pub fn is_peer(&self) -> bool {
        config::is_of_peers(&self.pool)
    }

    /// Returns the same key without VIP addresses.
    #[must_use]
    pub fn membership(&self) -> Self {
        Self { vip: None, ..self.clone() }
    }
}

/// Returns `true` if the member has a health check with `via = "vip"`.
#[must_use]
pub fn is_checked_through_vip(member: &Member) -> bool {
    member.checks.iter().any(|check| check.via == Via::Vip)
}

/// A pool as seen by its users. If members of a pool are checked through VIPs, each VIP and address
/// family that uses the pool has its own view. Any other pool has one view for all its users.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolView {
    /// The name of the pool.
    pub pool: Arc<str>,
    /// The VIP addresses to which the view applies, or `None` if all users of the pool share the
    /// view.
    pub vip: Option<VipFamily>,
}

impl PoolView {
    /// Returns the view of a pool that all its users share.
    #[must_use]
    pub fn of_all(pool: &Arc<str>) -> Self {
        Self { pool: Arc::clone(pool), vip: None }
    }

    /// Returns the slot key that a pool member has in this view.
    #[must_use]
    pub fn key(&self, member: &Member) -> SlotKey {
        SlotKey::of(member, self.vip.as_ref())
    }
}
