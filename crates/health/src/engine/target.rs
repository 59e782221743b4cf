//! What is watched, and what is known of it.
//!
//! In: an address, a check, the way there, the pools that it counts for. Out: the key under which equal checks are one.
//! Not here: how a verdict comes about (`verdicts`), when attempts are made (`runner`).
//! Source: Maglev paper §2.2: a backend in several pools is checked once.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use forwarder::SlotId;

use config::Check;

/// What makes two checks one: the same address, asked the same, reached the same way. A check's name makes no difference.
#[derive(Clone, Debug)]
pub struct TargetKey {
    /// The backend's.
    pub address: IpAddr,
    /// What is asked, and when.
    pub check: Arc<Check>,
    /// How clients' packets go there; `None`: straight.
    pub through: Option<ThroughKey>,
}

/// A way that clients' packets take.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ThroughKey {
    /// The destination of the inner packet.
    pub vip: IpAddr,
    /// Name of the encapsulation.
    pub encapsulation: Arc<str>,
}

/// A target as it is watched.
#[derive(Debug)]
pub(super) struct Spec {
    pub(super) watched: Watched,
    /// Another for each target that ever was: a number may stand for one target and later for another.
    pub(super) serial: u64,
    /// The serial of the first of those that asked the same: a target that asks it at another pace takes over what is known.
    pub(super) lineage: u64,
}

/// What to do to the running set: under a number a target, or none any more.
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
        // The kind and the interval distinguish nearly all checks; `eq` does the rest.
        self.address.hash(state);
        self.through.hash(state);
        self.check.kind.hash(state);
        self.check.interval.hash(state);
    }
}

/// One target of the set to be watched.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Which address is probed, with which check.
    pub key: TargetKey,
    /// With [`TargetKey::through`]: whose outer header the packets get.
    pub slot: Option<SlotId>,
    /// Name of the backend.
    pub backend: Arc<str>,
    /// Names of the leaf pools that it counts for.
    pub pools: Vec<Arc<str>>,
    /// It serves already: of a target that is new, `fall` failures say that it is down, and not the first one.
    pub serving: bool,
}

/// What is known of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HealthState {
    /// No result yet that decides.
    #[default]
    Unknown,
    /// It serves.
    Up,
    /// It does not.
    Down,
}

/// All that is known of one target at one moment.
#[derive(Clone, Debug)]
pub struct TargetReport {
    /// Which.
    pub key: TargetKey,
    /// Name of its backend.
    pub backend: Arc<str>,
    /// Names of the leaf pools that it counts for.
    pub pools: Vec<Arc<str>>,
    /// The verdict in force.
    pub state: HealthState,
    /// Since when.
    pub since: Instant,
    /// Likewise by the wall clock, for display: setting the clock does not move it.
    pub since_wall: SystemTime,
    /// Whether the last attempt passed; `None`: there was none.
    pub last: Option<bool>,
    /// Why the last attempt that failed did so; it stays when later ones pass.
    pub last_error: Option<String>,
    /// When that was.
    pub last_error_at: Option<Instant>,
    /// Likewise, one of [`super::super::Failure::REASONS`].
    pub last_reason: Option<&'static str>,
    /// How long the last attempt took.
    pub last_latency: Option<Duration>,
    /// The last 16 results, oldest first.
    pub history: Vec<bool>,
    /// Passes in a row, up to now.
    pub passes: u32,
    /// Failures in a row, up to now, that count; those of a local failure do not.
    pub fails: u32,
    /// A Down verdict is due and waits for a pass of any target.
    pub held: bool,
    /// Attempts that ended, since the target was added.
    pub attempts: u64,
    /// Of those, the ones that failed.
    pub failures: u64,
}
