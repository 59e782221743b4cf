//! What is simulated: machines, backends, traffic, and what changes when.
//!
//! In: values of the caller's, or of a script or a configuration (`plan`). Out: a [`Scenario`], checked before it is run.
//! Not here: what becomes of flows. Times are milliseconds from the start.

use crate::random::{Stream, draw, mix, unit};

/// A cluster, its traffic, and a script of events.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// What it is called in the report.
    pub label: String,
    /// All that is random follows from it.
    pub seed: u64,
    /// How long it goes on: to 24 h.
    pub duration_ms: u32,
    /// The flows.
    pub traffic: Traffic,
    /// How routers spread flows over machines.
    pub router: Router,
    /// The flow table of each machine.
    pub flow_tables: FlowTables,
    /// All machines that are ever there: 1 to [`MAX_MACHINES`].
    pub machines: Vec<Machine>,
    /// All backends that are ever there: 1 to 65,535.
    pub backends: Vec<Backend>,
    /// The states of the configuration; the first is in force at the start. At most 65,535.
    pub versions: Vec<Version>,
    /// What changes, in the order of time.
    pub events: Vec<Event>,
}

/// Flows: all send a packet at each interval, from the first to the last that their lifetime has room for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// How many live at the start, as after a long time of such traffic; their first packets fall evenly into the first interval.
    pub flows: u32,
    /// How many begin in a second on average, at random times (Poisson).
    pub arrivals: f64,
    /// The mean lifetime: from 1.
    pub lifetime_ms: u32,
    /// How lifetimes vary.
    pub lifetimes: Lifetimes,
    /// Between two packets of a flow: from 1, below the idle timeout of flow tables.
    pub packet_interval_ms: u32,
}

/// A distribution of lifetimes, by its mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetimes {
    /// All are the mean.
    Fixed,
    /// Exponential: what is left of a flow does not depend on its age.
    Exponential,
    /// Log-normal with a sigma of [`SIGMA`]: most flows are short, and most packets are of long ones.
    LogNormal,
}

/// How a router spreads flows over its next hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Router {
    /// Hash modulo the number of next hops, in the order of the machines.
    Plain,
    /// Hash modulo a number of buckets, each with a next hop. A change moves as few buckets as shares that are even to a bucket allow, all
    /// at once: a router that waits until a bucket is idle moves fewer flows.
    Resilient {
        /// From 1, and no less than machines.
        buckets: u32,
    },
}

/// The flow table of a machine: all its packet threads' together.
///
/// Differs from the crate `conntrack` in this: any place may hold any flow (there, two buckets of four); a new flow
/// never displaces one on probation; time-outs do not shrink while the table fills; a flow that found no place asks again after
/// the next event, not by its next packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTables {
    /// Places for flows; `None`: as many as it takes.
    pub places: Option<u32>,
    /// How long a flow is remembered that sends no more by this machine.
    pub idle_ms: u32,
    /// How long one is that ended.
    pub closing_ms: u32,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Whether it is there at the start.
    pub is_there: bool,
}

/// A backend: a server that a flow can be broken away from. The same name under two addresses are two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// What it is called.
    pub name: String,
    /// What hashing knows it by.
    pub hash_name: String,
}

/// One state of the configuration: all that the choice of a backend depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The cluster's hash key.
    pub key: [u8; 16],
    /// Slots of the tables: a prime.
    pub table_size: u32,
    /// By backend.
    pub states: Vec<BackendState>,
}

/// What a machine makes of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendState {
    /// New flows go there, by its weight; 0: none.
    Serving(u32),
    /// Known flows go on.
    Draining,
    /// Nothing goes there: it is down, or not configured.
    Gone,
}

/// What changes, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// At which time.
    pub at_ms: u32,
    /// In words.
    pub label: String,
    /// What changes.
    pub change: Change,
}

/// A change of the cluster. Numbers are places in the scenario's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Routers send to a machine, whose flow table is empty; it has the newest version.
    Join(usize),
    /// Routers send to a machine no more.
    Leave(usize),
    /// A backend dies, and its flows with it.
    Die(usize),
    /// It lives again, as another: old flows are not known to it.
    Revive(usize),
    /// Machines take a version over, one after the other in their order: number k of n at `skew_ms * k / n` after the event.
    Adopt {
        /// The version.
        version: usize,
        /// How far the machines are apart.
        skew_ms: u32,
    },
    /// A flow table takes no new flows for a time, as in a flood.
    Full {
        /// The machine; `None`: all.
        machine: Option<usize>,
        /// How long.
        for_ms: u32,
    },
}

/// Why a scenario cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// A number is out of its range.
    #[error("found {found} {what}, allowed {allowed}")]
    Range {
        /// Of what.
        what: &'static str,
        /// How many.
        found: u64,
        /// What is allowed.
        allowed: String,
    },
    /// An event is out of order, or names what is not there.
    #[error("event {event}: {what}")]
    Event {
        /// Its place, from 0.
        event: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A table cannot be built.
    #[error("version {version}: {cause}")]
    Table {
        /// Its place, from 0.
        version: usize,
        /// Why.
        cause: String,
    },
}

/// What a number may be.
struct Range {
    what: &'static str,
    found: u64,
    from: u64,
    to: u64,
}

impl Scenario {
    /// Checks that it can be run.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), ScenarioError> {
        for Range { what, found, from, to } in self.ranges() {
            if !(from..=to).contains(&found) {
                return Err(ScenarioError::Range { what, found, allowed: format!("{from} to {to}") });
            }
        }
        self.check_events()
    }

    fn ranges(&self) -> [Range; 9] {
        let (traffic, machines) = (&self.traffic, self.machines.len() as u64);
        let buckets = match self.router {
            Router::Plain => MAX_BUCKETS,
            Router::Resilient { buckets } => buckets,
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let arrivals = traffic.arrivals.ceil() as u64;
        let longest = self.flow_tables.idle_ms.saturating_sub(1);
        let range = |what, found, from, to: u32| Range { what, found, from, to: u64::from(to) };
        let (most, longest_run) = (u32::from(u16::MAX), MAX_DURATION_MS);
        [
            Range { what: "machines", found: machines, from: 1, to: MAX_MACHINES as u64 },
            range("backends", self.backends.len() as u64, 1, most),
            range("versions", self.versions.len() as u64, 1, most),
            range("buckets", u64::from(buckets), machines, MAX_BUCKETS),
            range("milliseconds of duration", u64::from(self.duration_ms), 1, longest_run),
            range("flows", u64::from(traffic.flows), 0, MAX_FLOWS),
            range("arrivals a second", arrivals, 0, MAX_FLOWS),
            range("milliseconds of lifetime", u64::from(traffic.lifetime_ms), 1, longest_run),
            range("milliseconds between packets", u64::from(traffic.packet_interval_ms), 1, longest),
        ]
    }

    fn check_events(&self) -> Result<(), ScenarioError> {
        let mut before = 0;
        for (number, event) in self.events.iter().enumerate() {
            let (machines, backends) = (self.machines.len(), self.backends.len());
            let known = match event.change {
                Change::Join(machine) | Change::Leave(machine) => machine < machines,
                Change::Die(backend) | Change::Revive(backend) => backend < backends,
                Change::Adopt { version, .. } => version < self.versions.len(),
                Change::Full { machine, .. } => machine.is_none_or(|machine| machine < machines),
            };
            let wrong = |what| Err(ScenarioError::Event { event: number, what });
            if !known {
                return wrong("it names what is not in the scenario");
            }
            if event.at_ms < before || event.at_ms > self.duration_ms {
                return wrong("its time is before the one before it, or after the end");
            }
            before = event.at_ms;
        }
        let odd = self.versions.iter().position(|version| version.states.len() != self.backends.len());
        odd.map_or(Ok(()), |version| {
            let cause = "as many states as backends are wanted".to_owned();
            Err(ScenarioError::Table { version, cause })
        })
    }
}

impl Version {
    /// The backends that are in the tables, each with its weight.
    pub(crate) fn serving(&self) -> impl Iterator<Item = (u16, u32)> {
        let weight = |state: &BackendState| match state {
            BackendState::Serving(weight) => *weight,
            BackendState::Draining | BackendState::Gone => 0,
        };
        (0..).zip(self.states.iter().map(weight)).filter(|(_, weight)| *weight > 0)
    }

    /// What of the hash of a flow depends on the key.
    pub(crate) fn salt(&self) -> u64 {
        let bits = u128::from_be_bytes(self.key);
        #[expect(clippy::cast_possible_truncation, reason = "the halves of the key")]
        let (high, low) = ((bits >> 64) as u64, bits as u64);
        mix(mix(high) ^ low)
    }
}

impl Traffic {
    /// How long a flow lives, in milliseconds; `is_residual`: how long from the start, of those that live then.
    ///
    /// # Source
    /// What is left of a flow met at random: its lifetime is drawn by length, and the rest is an even share of it (the inspection
    /// paradox). By length, a log-normal of mu and sigma is one of mu + sigma^2 and sigma; an exponential's rest is exponential.
    pub(crate) fn lifetime(&self, seed: u64, number: u32, is_residual: bool) -> u32 {
        let fraction = |stream| unit(draw(seed, stream, u64::from(number)));
        let (mean, first) = (f64::from(self.lifetime_ms), fraction(Stream::Lifetime));
        let rest = |whole: f64| if is_residual { whole * fraction(Stream::Residual) } else { whole };
        let length = match self.lifetimes {
            Lifetimes::Fixed => rest(mean),
            Lifetimes::Exponential => -mean * first.ln(),
            Lifetimes::LogNormal => {
                let normal = (-2.0 * first.ln()).sqrt()
                    * (2.0 * std::f64::consts::PI * fraction(Stream::Second)).cos();
                let half = SIGMA * SIGMA / 2.0;
                let mu = if is_residual { mean.ln() + half } else { mean.ln() - half };
                rest((mu + SIGMA * normal).exp())
            }
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let length = length as u32;
        length
    }
}

/// Most machines of a scenario.
pub const MAX_MACHINES: usize = 128;
/// The sigma of log-normal lifetimes.
pub const SIGMA: f64 = 1.5;
pub(crate) const MAX_DURATION_MS: u32 = 24 * 3_600_000;
pub(crate) const MAX_FLOWS: u32 = 100_000_000;
pub(crate) const MAX_BUCKETS: u32 = 1 << 20;
