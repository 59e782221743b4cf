//! Decides which VIPs are announced. The code has no I/O and takes the time as an argument.
//!
//! A VIP *qualifies* while it meets the conditions for an announcement. A VIP that no longer
//! qualifies is withdrawn immediately. A withdrawn VIP is announced again after it has qualified
//! without interruption for the hold-down time, with at least `return_serving` backends for each
//! service. Each withdrawal doubles the hold-down. When a VIP has stayed announced for the maximum
//! hold-down, the hold-down is reset. The first announcement has no hold-down.
//!
//! A fault of the forwarder is treated as a withdrawal of every VIP. Drains, and withdrawals
//! shortly after a reload, do not start a hold-down, so the affected VIPs are announced again as
//! soon as they qualify. Invariant: a VIP that does not qualify is not announced.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use packet::Family;

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

/// The hold-down times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The hold-down after the first withdrawal.
    pub hold_down: Duration,
    /// The maximum hold-down, regardless of the number of withdrawals of the VIP.
    pub longest: Duration,
}

/// The stage of a drain of this machine.
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
    pub forwarder_fault: Option<String>,
    /// `true` once every check had its first result, or the time limit for first results has
    /// passed.
    pub set_up: bool,
    /// The services of each VIP, by VIP name.
    pub services: BTreeMap<String, Vec<ServiceSeen>>,
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
        }
    }
}

/// The announcement history of all VIPs, from which hold-downs are computed.
#[derive(Clone, Debug, Default)]
pub struct Decider {
    vips: BTreeMap<Arc<str>, Memory>,
    /// The time until which withdrawals are attributed to the last reload and do not start a
    /// hold-down.
    reloaded_until: Duration,
}

#[derive(Clone, Debug, Default)]
struct Memory {
    announced: bool,
    /// The time of the last announcement or withdrawal.
    since: Duration,
    /// The time since which the withdrawn VIP meets the conditions for an announcement again.
    qualifies: Option<Duration>,
    /// The current hold-down. The value is `None` if the VIP was never withdrawn, or has since been
    /// announced long enough to reset the hold-down.
    wait: Option<Duration>,
    withdrawals: u64,
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
        let mut statuses = BTreeMap::new();
        for (name, rules) in rules {
            let memory = self.vips.entry(Arc::clone(name)).or_default();
            let wanted = if memory.wait.is_some() && !memory.announced {
                rules.return_serving
            } else {
                rules.min_serving
            };
            let status = match qualifies(rules, wanted, seen) {
                Ok(()) => memory.well(times, now),
                Err(why) => {
                    memory.ill(times, is_flap || matches!(why, Why::Forwarder(_)), now);
                    VipStatus::Withdrawn(why)
                }
            };
            statuses.insert(Arc::clone(name), status);
        }
        statuses
    }

    /// Copies the history of the VIP `from` to `name`, unless `name` has a history already.
    pub fn inherit(&mut self, from: &str, name: &Arc<str>) {
        if let Some(memory) = self.vips.get(from).filter(|_| !self.vips.contains_key(name)).cloned() {
            self.vips.insert(Arc::clone(name), memory);
        }
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
}

impl Memory {
    fn well(&mut self, times: Times, now: Duration) -> VipStatus {
        if self.announced {
            if now.saturating_sub(self.since) >= times.longest {
                self.wait = None;
            }
            return VipStatus::Announced;
        }
        let since = *self.qualifies.get_or_insert(now);
        let left = self.wait.unwrap_or_default().saturating_sub(now.saturating_sub(since));
        if !left.is_zero() {
            return VipStatus::HeldDown(left);
        }
        (self.announced, self.since, self.qualifies) = (true, now, None);
        VipStatus::Announced
    }

    fn ill(&mut self, times: Times, is_flap: bool, now: Duration) {
        self.qualifies = None;
        if !self.announced {
            return;
        }
        if !is_flap {
            (self.announced, self.since, self.wait) = (false, now, None);
            return;
        }
        let stayed = now.saturating_sub(self.since) >= times.longest;
        let next = self.wait.filter(|_| !stayed).map_or(times.hold_down, |wait| wait.saturating_mul(2));
        self.wait = Some(next.clamp(times.hold_down, times.longest.max(times.hold_down)));
        (self.announced, self.since) = (false, now);
        self.withdrawals += 1;
    }
}

fn qualifies(rules: &Rules, wanted: usize, seen: &Seen) -> Result<(), Why> {
    if !rules.announced {
        return Err(Why::NotWanted);
    }
    if !rules.heard {
        return Err(Why::NoPeer);
    }
    if let Some(fault) = &seen.forwarder_fault {
        return Err(Why::Forwarder(fault.clone()));
    }
    if !seen.set_up {
        return Err(Why::Starting);
    }
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
