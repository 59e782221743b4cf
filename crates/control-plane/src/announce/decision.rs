//! Decides which VIPs are announced. The code performs no I/O and takes the time as an argument.
//!
//! A VIP *qualifies* while it meets the conditions for an announcement. A VIP that no longer
//! qualifies is withdrawn immediately, with one exception: while a stall of the forwarder is short,
//! an announced VIP stays announced with the graceful-shutdown community. Routers then prefer other
//! machines, but keep the routes if all machines stall.
//!
//! A withdrawn VIP is announced again after it has qualified for the hold-down time, with at least
//! `return_serving` backends for each service. Each cause of withdrawals has its own hold-down
//! (`damping`). The first announcement has no hold-down. Drains, stalls of the forwarder and
//! withdrawals shortly after a reload start no hold-down, so the affected VIPs are announced again
//! as soon as they qualify. Invariant: a VIP that does not qualify is not announced without the
//! graceful-shutdown community.

mod damping;
mod handed;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use packet::Family;
use serde::{Deserialize, Serialize};

use super::vip_overrides::{VipOverride, VipOverrides};
use damping::Damping;
pub use handed::HandedAnnouncements;

/// The conditions for announcing a VIP, or one address family of a VIP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The name of the VIP.
    pub vip: Arc<str>,
    /// The address family to which the rules apply, or `None` for all addresses. Each family has
    /// its own rules if backends are checked through the VIP's addresses.
    pub family: Option<Family>,
    /// `true` if the VIP has an `announce` key in the configuration.
    pub announced: bool,
    /// `true` if this machine is a backup for the VIP and announces its routes with a higher MED.
    pub backup: bool,
    /// The minimum number of backends in service that each service needs while the VIP is
    /// announced.
    pub min_serving: usize,
    /// The minimum number of backends in service that each service needs before the VIP is
    /// announced again after a withdrawal.
    pub return_serving: usize,
    /// `true` if the VIP may also be announced while its services redirect flows to another
    /// cluster.
    pub remotes: bool,
    /// `true` if at least one BGP peer of this machine accepts routes of the VIP.
    pub heard: bool,
}

/// The times of hold-downs and stalls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The hold-down after the first withdrawal.
    pub hold_down: Duration,
    /// The maximum hold-down, regardless of the number of withdrawals of the VIP.
    pub longest: Duration,
    /// The time in which the penalty of earlier withdrawals halves.
    pub half_life: Duration,
    /// The duration of a stall after which VIPs are withdrawn.
    pub max_stall: Duration,
}

/// The stage of this machine's drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// The machine is not draining.
    #[default]
    Serving,
    /// Routes carry the graceful-shutdown community (RFC 8326).
    Leaving,
    /// All routes are withdrawn.
    Left,
}

/// The observed state from which the decisions are made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The fault of the forwarder, or `None` if the forwarder is healthy.
    pub fault: Option<Fault>,
    /// `true` once every check had its first result, or the time limit for first results has
    /// passed.
    pub set_up: bool,
    /// The services of each VIP, by VIP name.
    pub services: BTreeMap<String, Vec<ServiceSeen>>,
}

/// A fault of the forwarder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// The description of the fault.
    pub why: String,
    /// The time for which the forwarder has been stalled, if it may resume at any time. `None` if
    /// the forwarder certainly cannot forward packets, for example because the XDP program is
    /// missing.
    pub stalled: Option<Duration>,
}

impl Fault {
    /// Returns `true` if VIPs must be withdrawn because of the fault.
    pub(super) fn withdraws(&self, times: Times) -> bool {
        self.stalled.is_none_or(|stalled| stalled >= times.max_stall)
    }
}

/// The observed state of one service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceSeen {
    /// The name of the service.
    pub name: String,
    /// The address family for which the service was observed, or `None` for both families.
    pub family: Option<Family>,
    /// The number of serving backends. Backends of an active fallback pool are included. Backends
    /// with an unknown health state are not included.
    pub serving: usize,
    /// `true` if flows of the service are redirected to another cluster.
    pub elsewhere: bool,
}

/// The announcement status of a VIP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VipStatus {
    /// The routes are announced.
    Announced,
    /// The routes are announced with the graceful-shutdown community, and the value is the reason.
    Marked(Why),
    /// The VIP qualifies, but the hold-down has not passed yet. The value is the remaining time.
    HeldDown(Duration),
    /// The VIP does not qualify, and the value is the reason.
    Withdrawn(Why),
}

/// A reason why a VIP does not qualify for an announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The configuration does not announce the VIP.
    NotWanted,
    /// No BGP peer of this machine accepts the routes.
    NoPeer,
    /// At least one health check has no result yet.
    Starting,
    /// The forwarder is unhealthy. The text describes the fault.
    Forwarder(String),
    /// A service has too few backends in service.
    TooFew {
        /// The name of the service.
        service: String,
        /// The number of serving backends.
        serving: usize,
        /// The required number of backends.
        wanted: usize,
    },
    /// The state of the services is not known yet.
    Unknown,
    /// An operator withdrew the VIP.
    Operator {
        /// The client that set the override.
        by: String,
        /// The reason given by the operator.
        reason: Option<String>,
        /// The remaining time in seconds.
        seconds: u64,
    },
}

impl Why {
    fn of(given: &VipOverride, now: Duration) -> Self {
        let (by, reason, left) = (given.by.clone(), given.reason.clone(), given.left(now));
        Self::Operator { by, reason, seconds: left.as_secs() + u64::from(left.subsec_nanos() > 0) }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWanted => f.write_str("the configuration does not announce this VIP"),
            Self::NoPeer => f.write_str("no BGP peer of this machine accepts its routes"),
            Self::Starting => f.write_str("waiting for the first health check results"),
            Self::Forwarder(fault) => write!(f, "forwarder unhealthy ({fault})"),
            Self::TooFew { service, serving, wanted } => {
                write!(f, "service \"{service}\" has {serving} of {wanted} required backends")
            }
            Self::Unknown => f.write_str("the state of its services is not known yet"),
            Self::Operator { by, reason, seconds } => {
                write!(f, "withdrawn by {by}, {seconds} s left")?;
                reason.iter().try_for_each(|reason| write!(f, ", reason: {reason}"))
            }
        }
    }
}

/// A cause of withdrawals. Each cause has its own penalty and hold-down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Backends,
    Forwarder,
}

/// The announcement history of all VIPs, from which hold-downs are computed.
#[derive(Clone, Debug, Default)]
pub struct Decider {
    vips: BTreeMap<Arc<str>, Memory>,
    /// The time until which withdrawals are attributed to the last reload and do not start a
    /// hold-down.
    reloaded_until: Duration,
    /// The time of the last decision.
    decided: Option<Duration>,
    /// The overrides of operators.
    pub(crate) overrides: VipOverrides,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Memory {
    announced: bool,
    /// The time of the last announcement or withdrawal.
    since: Duration,
    /// The penalties and hold-downs, indexed by [`Cause`].
    damping: [Damping; 2],
    #[serde(skip)]
    withdrawals: u64,
    #[serde(skip)]
    not_announced: Duration,
}

impl Decider {
    /// Records that a new configuration was applied at `now`.
    pub fn reloaded(&mut self, now: Duration) {
        self.reloaded_until = now + RELOADED_FOR;
    }

    /// Decides for every VIP in `rules` whether it is announced. The history of all other VIPs is
    /// deleted. `now` must not decrease from call to call.
    pub fn decide(
        &mut self,
        rules: &BTreeMap<Arc<str>, Rules>,
        times: Times,
        seen: &Seen,
        now: Duration,
    ) -> BTreeMap<Arc<str>, VipStatus> {
        self.vips.retain(|name, _| rules.contains_key(name));
        let is_flap = now >= self.reloaded_until;
        let passed = now.saturating_sub(self.decided.replace(now).unwrap_or(now));
        let mut statuses = BTreeMap::new();
        for (name, rules) in rules {
            let memory = self.vips.entry(Arc::clone(name)).or_default();
            if rules.announced && !memory.announced {
                memory.not_announced += passed;
            }
            let given = self.overrides.of(&rules.vip);
            statuses.insert(Arc::clone(name), memory.decide(rules, times, seen, (now, is_flap), given));
        }
        statuses
    }

    /// Copies the history of the VIP `from` to `name`, unless `name` has a history already.
    pub fn inherit(&mut self, from: &str, name: &Arc<str>) {
        if let Some(memory) = self.vips.get(from).filter(|_| !self.vips.contains_key(name)).cloned() {
            self.vips.insert(Arc::clone(name), memory);
        }
    }

    /// Deletes all penalties and hold-downs of a VIP, for all of its address families. The VIP is
    /// announced as soon as it qualifies.
    pub fn clear(&mut self, vip: &str) {
        // The names of VIPs contain no spaces, and a name may be followed by an address family.
        let is_meant = |name: &str| name.split(' ').next() == Some(vip);
        let of_vip = self.vips.iter_mut().filter(|(name, _)| is_meant(name));
        of_vip.for_each(|(_, memory)| memory.damping = Default::default());
    }

    /// Returns the number of times that the VIP was withdrawn.
    #[must_use]
    pub fn withdrawals(&self, vip: &str) -> u64 {
        self.vips.get(vip).map_or(0, |memory| memory.withdrawals)
    }

    /// Returns the time of the VIP's last announcement or withdrawal.
    #[must_use]
    pub fn since(&self, vip: &str) -> Duration {
        self.vips.get(vip).map_or(Duration::ZERO, |memory| memory.since)
    }

    /// Returns the total time for which the VIP was not announced.
    #[must_use]
    pub fn not_announced(&self, vip: &str) -> Duration {
        self.vips.get(vip).map_or(Duration::ZERO, |memory| memory.not_announced)
    }
}

impl Memory {
    fn decide(
        &mut self,
        rules: &Rules,
        times: Times,
        seen: &Seen,
        (now, is_flap): (Duration, bool),
        given: Option<&VipOverride>,
    ) -> VipStatus {
        self.damping.iter_mut().for_each(|damping| damping.shorten(times));
        if given.is_some_and(|given| !given.withdraws) {
            self.damping = Default::default();
        }
        let returns = !self.announced && self.of(Cause::Backends).is_held();
        let wanted = if returns { rules.return_serving } else { rules.min_serving };
        let served = is_served(rules, wanted, seen);
        self.of(Cause::Backends).observe(served.is_ok(), now);
        let is_certain = seen.fault.as_ref().is_some_and(|fault| fault.stalled.is_none());
        self.of(Cause::Forwarder).observe(!is_certain, now);
        let ordered = given.filter(|given| given.withdraws).map(|given| Why::of(given, now));
        match (qualifies(rules, times, seen, ordered, served), &seen.fault) {
            (Ok(()), None) => self.well(now),
            (Ok(()), Some(stall)) if self.announced => VipStatus::Marked(Why::Forwarder(stall.why.clone())),
            (Ok(()), Some(stall)) => VipStatus::Withdrawn(Why::Forwarder(stall.why.clone())),
            (Err(why), _) => {
                let cause = match &why {
                    Why::Forwarder(_) if is_certain => Some(Cause::Forwarder),
                    Why::TooFew { .. } if is_flap => Some(Cause::Backends),
                    _ => None,
                };
                if self.announced {
                    (self.announced, self.since) = (false, now);
                    let is_counted = match &why {
                        Why::Forwarder(_) => true,
                        Why::Operator { .. } => false,
                        _ => is_flap,
                    };
                    self.withdrawals += u64::from(is_counted);
                    cause.into_iter().for_each(|cause| self.of(cause).withdrawn(times, now));
                }
                VipStatus::Withdrawn(why)
            }
        }
    }

    fn of(&mut self, cause: Cause) -> &mut Damping {
        let [backends, forwarder] = &mut self.damping;
        match cause {
            Cause::Backends => backends,
            Cause::Forwarder => forwarder,
        }
    }

    fn well(&mut self, now: Duration) -> VipStatus {
        if self.announced {
            return VipStatus::Announced;
        }
        let left = self.damping.iter().map(|damping| damping.left(now)).max().unwrap_or_default();
        if !left.is_zero() {
            return VipStatus::HeldDown(left);
        }
        self.damping.iter_mut().for_each(Damping::announced);
        (self.announced, self.since) = (true, now);
        VipStatus::Announced
    }
}

/// Returns the reason why a VIP does not qualify. A short stall of the forwarder is not a reason.
/// `ordered` is the reason of an operator who withdrew the VIP, and `served` is the result of
/// [`is_served`].
fn qualifies(
    rules: &Rules,
    times: Times,
    seen: &Seen,
    ordered: Option<Why>,
    served: Result<(), Why>,
) -> Result<(), Why> {
    if !rules.announced {
        return Err(Why::NotWanted);
    }
    if !rules.heard {
        return Err(Why::NoPeer);
    }
    if let Some(why) = ordered {
        return Err(why);
    }
    if let Some(fault) = seen.fault.as_ref().filter(|fault| fault.withdraws(times)) {
        return Err(Why::Forwarder(fault.why.clone()));
    }
    if !seen.set_up {
        return Err(Why::Starting);
    }
    served
}

/// Returns the reason if a service of the VIP has too few backends.
fn is_served(rules: &Rules, wanted: usize, seen: &Seen) -> Result<(), Why> {
    let services = seen.services.get(&*rules.vip).into_iter().flatten();
    let is_meant = |service: &&ServiceSeen| {
        service.family.is_none() || rules.family.is_none() || service.family == rules.family
    };
    let mut services = services.filter(is_meant).peekable();
    services.peek().ok_or(Why::Unknown)?;
    let enough = |service: &&ServiceSeen| service.serving >= wanted || rules.remotes && service.elsewhere;
    match services.find(|service| !enough(service)) {
        None => Ok(()),
        Some(ServiceSeen { name, serving, .. }) => {
            Err(Why::TooFew { service: name.clone(), serving: *serving, wanted })
        }
    }
}

/// The time after a reload during which withdrawals do not start a hold-down. With common check
/// settings, a new backend gets its first check result within this time.
const RELOADED_FOR: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
