//! The types that describe targets and their reports.
//!
//! Checks with identical keys run only once. A backend that is in several pools is therefore
//! checked once (Maglev paper §2.2).

use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use forwarder::SlotId;

use config::Check;

use crate::HopNeighbour;

/// The key of a target. Two checks with identical keys probe the same address in the same way on
/// the same path. The name of the check is not part of the key.
#[derive(Clone, Debug)]
pub struct TargetKey {
    /// The address of the backend.
    pub address: IpAddr,
    /// The check to run.
    pub check: Arc<Check>,
    /// The VIP and the encapsulation for checks that take the same path as client packets. The
    /// value is `None` for checks that are sent directly.
    pub through: Option<ProxiedTargetKey>,
}

/// A path to a backend that both client packets and checks take.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProxiedTargetKey {
    /// The destination of the inner packet.
    pub vip: IpAddr,
    /// The name of the encapsulation.
    pub encapsulation: Arc<str>,
}

/// A watched target with its serial number and its lineage.
#[derive(Debug)]
pub(super) struct Spec {
    pub(super) watched: Watched,
    /// A number that uniquely identifies this target. The number is needed because the ID of a
    /// removed target is reused.
    pub(super) serial: u64,
    /// The serial number of the first target in a series of targets with the same probe. When a
    /// target is replaced by a target with a different interval, the new target takes over the
    /// health state.
    pub(super) lineage: u64,
    /// The hops that were failing in the previous process.
    pub(super) failing_hops: Vec<HopNeighbour>,
}

/// The difference between two sets of targets. Each entry has the ID of a target, and the new
/// target or `None` if the target was removed.
pub(super) type Difference = Vec<(u32, Option<Arc<Spec>>)>;

impl PartialEq for TargetKey {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&*self.check, &*other.check);
        self.address == other.address
            && self.through == other.through
            && (Arc::ptr_eq(&self.check, &other.check)
                || (a.kind == b.kind
                    && a.via == b.via
                    && a.interval == b.interval
                    && a.fast_interval == b.fast_interval
                    && a.timeout == b.timeout
                    && a.rise == b.rise
                    && a.fall == b.fall
                    && a.jitter_percent == b.jitter_percent))
    }
}

impl Eq for TargetKey {}

impl Hash for TargetKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The hash of a check covers only the kind and the interval, because they distinguish
        // nearly all checks. The other fields are compared by `eq`.
        self.address.hash(state);
        self.through.hash(state);
        self.check.kind.hash(state);
        self.check.interval.hash(state);
    }
}

/// A target that should be watched.
#[derive(Clone, Debug)]
pub struct Watched {
    /// The address to probe and the check to run.
    pub key: TargetKey,
    /// The slot that supplies the outer header of the packets, if [`TargetKey::through`] is set.
    pub slot: Option<SlotId>,
    /// The name of the backend.
    pub backend: Arc<str>,
    /// The names of the leaf pools to which the target belongs.
    pub pools: Vec<Arc<str>>,
    /// `true` if the backend is already in service. A new target then becomes Down only after
    /// `fall` failures instead of after the first failure.
    pub serving: bool,
}

/// The health state of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HealthState {
    /// The health state has not been determined yet.
    #[default]
    Unknown,
    /// The backend is healthy.
    Up,
    /// The backend is unhealthy.
    Down,
}

/// A report of one target.
#[derive(Clone, Debug)]
pub struct TargetReport {
    /// The key of the target.
    pub key: TargetKey,
    /// The name of the backend.
    pub backend: Arc<str>,
    /// The names of the leaf pools to which the target belongs.
    pub pools: Vec<Arc<str>>,
    /// The current health state.
    pub state: HealthState,
    /// The time of the last state change.
    pub since: Instant,
    /// The time of the last state change by the wall clock, for display. Later changes to the wall
    /// clock do not affect this value.
    pub since_wall: SystemTime,
    /// `true` if the last attempt passed. `None` if no attempt has finished.
    pub last: Option<bool>,
    /// The reason for the last failed attempt. The reason is kept when later attempts pass.
    pub last_error: Option<String>,
    /// The time of the last failed attempt.
    pub last_error_at: Option<Instant>,
    /// The reason for the last failed attempt, as one of [`super::super::Failure::REASONS`].
    pub last_reason: Option<&'static str>,
    /// The duration of the last attempt.
    pub last_latency: Option<Duration>,
    /// The last 16 results, oldest first.
    pub history: Vec<bool>,
    /// The number of consecutive passes.
    pub passes: u32,
    /// The number of consecutive failures, except for those during a local failure.
    pub fails: u32,
    /// `true` if the state Down is due but not applied until a check of any target passes.
    pub held: bool,
    /// The number of finished attempts since the target was added.
    pub attempts: u64,
    /// The number of failed attempts since the target was added.
    pub failures: u64,
}
