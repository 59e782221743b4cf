//! Whether a VIP's routes are announced: pure, with the time as an argument.
//!
//! In: the rules of each VIP, what is seen now, the time. Out: how each VIP stands, and why.
//! A VIP that no longer qualifies goes at once. It comes back when it has qualified for the hold-down without a break, with
//! `return_serving` backends. The hold-down doubles at each withdrawal, and is forgotten once the VIP has stayed announced for
//! the longest one: a backend that goes up and down moves no route more often than that. The first announcement waits for
//! nothing. A fault of the forwarder is such a withdrawal for every VIP; a drain is none, and neither is what an operator's reload
//! brings about: a VIP that goes shortly after one comes back as soon as it qualifies.
//! Invariant: a VIP that does not qualify now is not announced.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use packet::Family;

/// When a VIP qualifies, or its addresses of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The VIP's name.
    pub vip: Arc<str>,
    /// The family, where backends are checked through the VIP's addresses of both. `None`: all its addresses.
    pub family: Option<Family>,
    /// Whether the file announces it.
    pub announced: bool,
    /// Whether the machine stands behind others for it.
    pub anchor: bool,
    /// So many backends must serve each service.
    pub min_serving: usize,
    /// So many after a withdrawal.
    pub return_serving: usize,
    /// Whether another cluster is enough.
    pub remotes: bool,
    /// Whether it is announced to a peer of this machine.
    pub heard: bool,
}

/// How long a VIP stays away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// After the first withdrawal.
    pub hold_down: Duration,
    /// At most.
    pub longest: Duration,
}

/// How far a drain of the machine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// There is none.
    #[default]
    Serving,
    /// Routes are announced as about to go (RFC 8326).
    Leaving,
    /// They are withdrawn.
    Left,
}

/// What is seen now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// What is wrong with the forwarder; `None`: it is healthy.
    pub forwarder_fault: Option<String>,
    /// Every check has had its first result, or the time for it is over.
    pub set_up: bool,
    /// The services of each VIP, by its name.
    pub services: BTreeMap<String, Vec<ServiceSeen>>,
}

/// A service now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceSeen {
    /// Its name.
    pub name: String,
    /// At the addresses of this family; `None`: of both.
    pub family: Option<Family>,
    /// Backends that serve it, those of a fallback in place included; one that is not known to serve is none.
    pub serving: usize,
    /// Whether another cluster serves it in their place.
    pub elsewhere: bool,
}

/// How a VIP stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VipStatus {
    /// Its routes are announced.
    Announced,
    /// It qualifies, and waits for so long yet.
    HeldDown(Duration),
    /// It does not qualify.
    Away(Why),
}

/// Why a VIP does not qualify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The file does not announce it.
    NotWanted,
    /// It is announced to no peer of this machine.
    NoPeer,
    /// Not every check has had its first result.
    Starting,
    /// The forwarder is not healthy.
    Forwarder(String),
    /// A service has too few backends.
    TooFew {
        /// The service.
        service: String,
        /// Backends that serve it.
        serving: usize,
        /// As many as are needed.
        wanted: usize,
    },
    /// Nothing is known of it yet.
    Unknown,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWanted => f.write_str("the file does not announce it"),
            Self::NoPeer => f.write_str("it is announced to no peer of this machine"),
            Self::Starting => f.write_str("waiting for the first results of health checks"),
            Self::Forwarder(fault) => write!(f, "the forwarder is unhealthy: {fault}"),
            Self::TooFew { service, serving, wanted } => {
                write!(f, "{service} has {serving} of the {wanted} backends that it needs")
            }
            Self::Unknown => f.write_str("nothing is known of it yet"),
        }
    }
}

/// What is remembered of VIPs.
#[derive(Clone, Debug, Default)]
pub struct Decider {
    vips: BTreeMap<Arc<str>, Memory>,
    /// Until then withdrawals are a reload's.
    reloaded_until: Duration,
}

#[derive(Clone, Debug, Default)]
struct Memory {
    announced: bool,
    /// Of the last announcement or withdrawal.
    since: Duration,
    /// Since when it has qualified again.
    qualifies: Option<Duration>,
    /// The hold-down in force; `None`: it was never withdrawn, or long ago.
    wait: Option<Duration>,
    withdrawals: u64,
}

impl Decider {
    /// A configuration has come into force at `now`.
    pub fn reloaded(&mut self, now: Duration) {
        self.reloaded_until = now + RELOADED_FOR;
    }

    /// Decides for every VIP that has rules; others are forgotten. `now` counts from any start and does not go back.
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
                    VipStatus::Away(why)
                }
            };
            statuses.insert(Arc::clone(name), status);
        }
        statuses
    }

    /// What is remembered under one name is from now on that of another, which is new.
    pub fn inherit(&mut self, from: &str, name: &Arc<str>) {
        if let Some(memory) = self.vips.get(from).filter(|_| !self.vips.contains_key(name)).cloned() {
            self.vips.insert(Arc::clone(name), memory);
        }
    }

    /// How often a VIP was withdrawn.
    #[must_use]
    pub fn withdrawals(&self, vip: &str) -> u64 {
        self.vips.get(vip).map_or(0, |memory| memory.withdrawals)
    }

    /// When a VIP was last announced or withdrawn.
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

/// A new backend has had its first result by then, with the checks that most have.
const RELOADED_FOR: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
