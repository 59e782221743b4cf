//! What memberships and pools are known by.
//!
//! A check through a VIP finds something about that VIP's addresses of one family. So a membership that has such checks, and a
//! pool that holds it, stand once for each family of each VIP; all others stand once.

use std::net::IpAddr;
use std::sync::Arc;

use config::{Member, Via};
use packet::Family;

/// What a slot's number stands for. A backend under a new address is another membership.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotKey {
    /// The leaf pool.
    pub pool: Arc<str>,
    /// The backend's name.
    pub backend: Arc<str>,
    /// Its address.
    pub address: IpAddr,
    /// The addresses through which it is checked, where there are such checks: what these find is said of them alone.
    pub vip: Option<VipFamily>,
}

/// The addresses of one family of a VIP.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VipFamily {
    /// The VIP's name.
    pub vip: Arc<str>,
    /// The family.
    pub family: Family,
}

impl SlotKey {
    /// That of a pool's member, as these addresses of a VIP see it; `None`: as all do.
    #[must_use]
    pub fn of(member: &Member, vip: Option<&VipFamily>) -> Self {
        Self {
            pool: Arc::clone(&member.leaf),
            backend: Arc::clone(&member.backend.name),
            address: member.backend.address,
            vip: vip.filter(|_| is_checked_through_vip(member)).cloned(),
        }
    }

    /// Whether it is another machine of the shard, and no backend.
    #[must_use]
    pub fn is_peer(&self) -> bool {
        config::is_of_peers(&self.pool)
    }

    /// The membership itself, whichever VIP sees it.
    #[must_use]
    pub fn membership(&self) -> Self {
        Self { vip: None, ..self.clone() }
    }
}

/// Whether a check of it goes through the VIPs that use it.
#[must_use]
pub fn is_checked_through_vip(member: &Member) -> bool {
    member.checks.iter().any(|check| check.via == Via::Vip)
}

/// A pool as some addresses see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolView {
    /// The pool's name.
    pub pool: Arc<str>,
    /// The addresses; `None`: all that use it.
    pub vip: Option<VipFamily>,
}

impl PoolView {
    /// As all see it.
    #[must_use]
    pub fn of_all(pool: &Arc<str>) -> Self {
        Self { pool: Arc::clone(pool), vip: None }
    }

    /// What a backend of the pool is numbered by.
    #[must_use]
    pub fn key(&self, member: &Member) -> SlotKey {
        SlotKey::of(member, self.vip.as_ref())
    }
}
