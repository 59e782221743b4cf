//! Access lists and rate limits of a VIP.
//!
//! Access lists are checked for every packet, so a reload that denies a source also stops its
//! existing flows. If a VIP has an allow list, the source must be on the list. A source on the deny
//! list is always refused, even if the allow list contains it with a longer prefix. The rate limits
//! apply only to packets that would create a flow in the connection table.
//!
//! Access lists apply to ICMP packets, but rate limits do not. The source of an echo request is its
//! sender, and the source of an ICMP error is the client of the quoted flow.

mod limits;
mod meter;
mod prefix_set;

use std::num::NonZeroU32;
use std::sync::Arc;

pub use self::limits::Limits;
pub use self::meter::Meter;
pub use self::prefix_set::PrefixSet;

use counters::DropReason;

use crate::Flow;

/// The number of a guard (the access lists and rate limits of one VIP), which is below
/// [`GuardId::LIMIT`]. The number selects the meter of the guard in each packet thread. A guard
/// keeps its number when the configuration is reloaded, so a reload does not reset its rate limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuardId(pub u32);

impl GuardId {
    /// The maximum number of guards.
    pub const LIMIT: u32 = 65_536;
}

/// The access lists and rate limits of one VIP. All services of the VIP share these lists and
/// limits.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    /// The guard number.
    pub id: GuardId,
    /// The sources that may use the VIP. `None` allows all sources.
    pub allow: Option<Arc<PrefixSet>>,
    /// The sources that may not use the VIP. The deny list overrides `allow`.
    pub deny: Option<Arc<PrefixSet>>,
    /// The maximum number of new flows per second from all sources together, summed over all packet
    /// threads.
    pub new_flows_per_second: Option<NonZeroU32>,
    /// The maximum number of new flows per second from each source prefix.
    pub per_source: Option<SourceLimit>,
}

/// A rate limit for each source prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLimit {
    /// The maximum number of new flows per second from one source prefix.
    pub new_flows_per_second: NonZeroU32,
    /// The length of IPv4 source prefixes, at most 32.
    pub v4_prefix: u8,
    /// The length of IPv6 source prefixes, at most 128.
    pub v6_prefix: u8,
}

impl Guard {
    /// Returns the drop reason if the access lists refuse the source of the flow, or `None` if the
    /// source is allowed.
    ///
    /// # Cost
    /// At most two [`PrefixSet`] lookups.
    #[must_use]
    #[inline]
    pub fn refusal(&self, flow: &Flow) -> Option<DropReason> {
        if self.allow.as_ref().is_some_and(|allow| !allow.contains_source(flow)) {
            return Some(DropReason::NotAllowed);
        }
        self.deny.as_ref().is_some_and(|deny| deny.contains_source(flow)).then_some(DropReason::Denied)
    }

    /// Returns `true` if the guard has a limit on new flows.
    #[must_use]
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.new_flows_per_second.is_some() || self.per_source.is_some()
    }
}
