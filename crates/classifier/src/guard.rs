//! Who may use a VIP, and how fast: lists of sources, and limits on new flows.
//!
//! In: a flow, a packet's time. Out: nothing, or the reason to drop. Lists are asked for every packet, so that a reload which
//! denies a source ends its flows at once; limits only for a packet that would enter a new flow into the connection table.
//! The rule of the lists: where there is an allow list, the source must be on it; and it must not be on the deny list,
//! however long the prefix that allows it.
//! Of ICMP, lists alone are asked: for an echo its sender, for an error the client of the flow that it quotes.
//! Not here: files and TOML (`config`), rates of ICMP (`forwarder`).

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

/// A guard's number: finds its meter in each packet thread. Below [`GuardId::LIMIT`]; kept over reloads, so that a reload
/// gives nobody a fresh burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuardId(pub u32);

impl GuardId {
    /// How many guards can stand at once.
    pub const LIMIT: u32 = 65_536;
}

/// What is asked of a packet for one VIP. All services of the VIP share it.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    /// Its number.
    pub id: GuardId,
    /// The only sources that are served; `None`: all.
    pub allow: Option<Arc<PrefixSet>>,
    /// Sources that are not served; goes before `allow`.
    pub deny: Option<Arc<PrefixSet>>,
    /// New flows per second of all sources together, on all packet threads together.
    pub new_flows_per_second: Option<NonZeroU32>,
    /// The same for each source prefix.
    pub per_source: Option<SourceLimit>,
}

/// A limit that each source prefix has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceLimit {
    /// New flows per second.
    pub new_flows_per_second: NonZeroU32,
    /// How many leading bits distinguish IPv4 sources, at most 32.
    pub v4_prefix: u8,
    /// The same for IPv6, at most 128.
    pub v6_prefix: u8,
}

impl Guard {
    /// Why the lists refuse a flow's source, if they do.
    ///
    /// # Cost
    /// Two [`PrefixSet`] look-ups at most.
    #[must_use]
    #[inline]
    pub fn refusal(&self, flow: &Flow) -> Option<DropReason> {
        if self.allow.as_ref().is_some_and(|allow| !allow.contains_source(flow)) {
            return Some(DropReason::NotAllowed);
        }
        self.deny.as_ref().is_some_and(|deny| deny.contains_source(flow)).then_some(DropReason::Denied)
    }

    /// Whether new flows are limited at all.
    #[must_use]
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.new_flows_per_second.is_some() || self.per_source.is_some()
    }
}
