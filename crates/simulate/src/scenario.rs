//! The input of a simulation: machines, backends, traffic and events.
//!
//! A [`Scenario`] is built by the caller, from a script, or from a configuration.
//! [`Scenario::check`] validates it before a run. All times are in milliseconds from the start of
//! the scenario.

use crate::random::{Stream, draw, mix, unit};

/// A cluster, its traffic and a list of events.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The label of the scenario in the report.
    pub label: String,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The simulated time in milliseconds, at most 24 h.
    pub duration_ms: u32,
    /// The traffic model of the scenario.
    pub traffic: Traffic,
    /// The router that distributes flows over machines.
    pub router: Router,
    /// The flow table of each machine.
    pub flow_tables: FlowTables,
    /// All machines, including machines that join later: 1 to [`MAX_MACHINES`].
    pub machines: Vec<Machine>,
    /// All backends, including backends that are added later: 1 to 65,535.
    pub backends: Vec<Backend>,
    /// The versions of the configuration, at most 65,535. The first version is active at the start.
    pub versions: Vec<Version>,
    /// The events, ordered by time.
    pub events: Vec<Event>,
}

/// The traffic model. Each flow sends one packet per interval until its lifetime ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// The number of live flows at the start. The remaining lifetimes of these flows are
    /// distributed as in a steady state, and their first packets are spread evenly over the first
    /// packet interval.
    pub flows: u32,
    /// The mean number of new flows per second. New flows form a Poisson process.
    pub arrivals: f64,
    /// The mean lifetime in milliseconds, at least 1.
    pub lifetime_ms: u32,
    /// The distribution of the lifetimes.
    pub lifetimes: Lifetimes,
    /// The time between two packets of a flow in milliseconds. The value is at least 1 and must be
    /// below the idle timeout of the flow tables.
    pub packet_interval_ms: u32,
}

/// The distribution of the lifetimes around their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetimes {
    /// All flows have the mean lifetime.
    Fixed,
    /// Exponential: the remaining lifetime of a flow does not depend on its age.
    Exponential,
    /// Log-normal with a sigma of [`SIGMA`]: most flows are short, but most packets belong to long
    /// flows.
    LogNormal,
}

/// The method by which a router distributes flows over its next hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Router {
    /// The router uses the hash modulo the number of next hops. The next hops are in the order of
    /// the machines.
    Plain,
    /// The router uses the hash modulo the number of buckets. Each bucket has a next hop. A change
    /// moves all buckets without delay, but only as many as even shares require. Real routers can
    /// wait until a bucket is idle, and therefore move fewer flows.
    Resilient {
        /// The number of buckets: at least 1, and at least the number of machines.
        buckets: u32,
    },
}

/// The flow table of a machine, which all its packet threads share.
///
/// The model is simpler than the crate `conntrack` in four respects:
/// - Every entry can store every flow. In `conntrack` a flow has two buckets of four entries.
/// - A new flow never evicts a flow on probation.
/// - Timeouts do not shrink when the table fills.
/// - A flow that found no free entry tries again after the next event instead of with its next
///   packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTables {
    /// The maximum number of flows. `None` means that the number is not limited.
    pub places: Option<u32>,
    /// The time in milliseconds after which the entry of an idle flow expires.
    pub idle_ms: u32,
    /// The time in milliseconds after which the entry of a closed flow expires.
    pub closing_ms: u32,
}

/// A machine of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The name of the machine.
    pub name: String,
    /// `true` if the machine is part of the cluster at the start.
    pub is_there: bool,
}

/// A backend server. Servers with the same name but different addresses are separate backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// The name that the report shows.
    pub name: String,
    /// The name that is hashed to select slots.
    pub hash_name: String,
}

/// A version of the configuration, with all data on which the selection of a backend depends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The cluster's hash key.
    pub key: [u8; 16],
    /// The number of slots in the table, a prime.
    pub table_size: u32,
    /// The state of each backend.
    pub states: Vec<BackendState>,
}

/// The state of a backend in one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendState {
    /// The backend receives new flows in proportion to this weight. With a weight of 0, the backend
    /// receives no new flows.
    Serving(u32),
    /// The backend keeps its existing flows, but receives no new flows.
    Draining,
    /// The backend is down or not configured, and receives no packets.
    Gone,
}

/// An event of the scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time in milliseconds from the start.
    pub at_ms: u32,
    /// The description that the report shows.
    pub label: String,
    /// The change that the event causes.
    pub change: Change,
}

/// A change to the cluster. Machines, backends and versions are indexes into the lists of the
/// scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Routers start to send packets to a machine. The machine starts with an empty flow table and
    /// the newest version.
    Join(usize),
    /// Routers stop sending packets to a machine.
    Leave(usize),
    /// A backend fails, and its flows are lost.
    Die(usize),
    /// A failed backend is up again, but has no state of its earlier flows.
    Revive(usize),
    /// Machines adopt a version one after another. Machine k of n adopts the version `skew_ms * k /
    /// n` milliseconds after the event.
    Adopt {
        /// The index of the version.
        version: usize,
        /// The time in milliseconds within which all machines adopt the version.
        skew_ms: u32,
    },
    /// A flow table does not accept new flows for some time, as during a SYN flood.
    Full {
        /// The index of the machine. `None` means all machines.
        machine: Option<usize>,
        /// The duration in milliseconds.
        for_ms: u32,
    },
}

/// The reason why a scenario is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// A value of the scenario is out of range.
    #[error("invalid scenario: {what} = {found}, but the range is {allowed}")]
    Range {
        /// The description of the value, such as "machines".
        what: &'static str,
        /// The invalid value.
        found: u64,
        /// The allowed range.
        allowed: String,
    },
    /// An event is out of order, or refers to a machine, backend or version that does not exist.
    #[error("event {event} is invalid: {what}")]
    Event {
        /// The index of the event.
        event: usize,
        /// The description of the error.
        what: &'static str,
    },
    /// The table of a version cannot be built.
    #[error("cannot build the table of version {version}: {cause}")]
    Table {
        /// The index of the version.
        version: usize,
        /// The reason why the table cannot be built.
        cause: String,
    },
}

/// A value and its allowed range.
struct Range {
    what: &'static str,
    found: u64,
    from: u64,
    to: u64,
}

impl Scenario {
    /// Checks that the scenario is valid.
    ///
    /// # Errors
    /// Returns the first problem.
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
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
        let arrivals = traffic.arrivals.ceil() as u64;
        let longest = self.flow_tables.idle_ms.saturating_sub(1);
        let range = |what, found, from, to: u32| Range { what, found, from, to: u64::from(to) };
        let (most, longest_run) = (u32::from(u16::MAX), MAX_DURATION_MS);
        [
            Range { what: "machines", found: machines, from: 1, to: MAX_MACHINES as u64 },
            range("backends", self.backends.len() as u64, 1, most),
            range("versions", self.versions.len() as u64, 1, most),
            range("router buckets", u64::from(buckets), machines, MAX_BUCKETS),
            range("duration in milliseconds", u64::from(self.duration_ms), 1, longest_run),
            range("flows", u64::from(traffic.flows), 0, MAX_FLOWS),
            range("arrivals per second", arrivals, 0, MAX_FLOWS),
            range("flow lifetime in milliseconds", u64::from(traffic.lifetime_ms), 1, longest_run),
            range("packet interval in milliseconds", u64::from(traffic.packet_interval_ms), 1, longest),
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
                return wrong("the scenario has no such machine, backend or version");
            }
            if event.at_ms < before || event.at_ms > self.duration_ms {
                return wrong("its time is earlier than the previous event, or later than the end");
            }
            before = event.at_ms;
        }
        let odd = self.versions.iter().position(|version| version.states.len() != self.backends.len());
        odd.map_or(Ok(()), |version| {
            let cause = "the number of states differs from the number of backends".to_owned();
            Err(ScenarioError::Table { version, cause })
        })
    }
}

impl Version {
    /// Returns the backends that the table contains, with their weights.
    pub(crate) fn serving(&self) -> impl Iterator<Item = (u16, u32)> {
        let weight = |state: &BackendState| match state {
            BackendState::Serving(weight) => *weight,
            BackendState::Draining | BackendState::Gone => 0,
        };
        (0..).zip(self.states.iter().map(weight)).filter(|(_, weight)| *weight > 0)
    }

    /// Returns the salt that makes flow hashes depend on the key.
    pub(crate) fn salt(&self) -> u64 {
        let bits = u128::from_be_bytes(self.key);
        #[expect(clippy::cast_possible_truncation, reason = "the casts split the key into halves")]
        let (high, low) = ((bits >> 64) as u64, bits as u64);
        mix(mix(high) ^ low)
    }
}

impl Traffic {
    /// Returns the lifetime of a flow in milliseconds. If `is_residual` is `true`, returns the
    /// remaining lifetime of a flow that is live at the start.
    ///
    /// The probability that a flow is live at a given time is proportional to its lifetime, and the
    /// age of the flow at that time is uniformly distributed over its lifetime (inspection
    /// paradox). A log-normal distribution with mu and sigma, weighted by length, is a log-normal
    /// distribution with mu + sigma^2 and sigma. For an exponential distribution, the remaining
    /// lifetime is also exponential.
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
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
        let length = length as u32;
        length
    }
}

/// The maximum number of machines in a scenario.
pub const MAX_MACHINES: usize = 128;
/// The sigma of log-normal lifetimes.
pub const SIGMA: f64 = 1.5;
pub(crate) const MAX_DURATION_MS: u32 = 24 * 3_600_000;
pub(crate) const MAX_FLOWS: u32 = 100_000_000;
pub(crate) const MAX_BUCKETS: u32 = 1 << 20;
