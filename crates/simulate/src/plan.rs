//! The list of events in a simulation. A [`Plan`] collects the events from a script (`script`) or a
//! configuration (`own`), and builds the lists of a [`Scenario`](crate::Scenario).

use crate::random::{Stream, draw};
use crate::scenario::{Backend, BackendState, Change, Event, FlowTables, Machine, Version};

/// A cluster before the first event.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// The name in the report.
    pub label: String,
    /// The machines of the cluster.
    pub machines: Vec<Machine>,
    /// The backends, including the backends that a change adds later.
    pub backends: Vec<Backend>,
    /// The version of the configuration that is active at the start.
    pub version: Version,
    /// The flow table of each machine.
    pub flow_tables: FlowTables,
    /// The change to the configuration. `None` if all events come from the script.
    pub change: Option<Rollout>,
}

/// The change from one cluster configuration to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// The version that the reload activates. Removed backends drain in this version.
    pub reloaded: Version,
    /// The version after the drain time. `None` if this version is the same as `reloaded`.
    pub drained: Option<Version>,
    /// The drain time in milliseconds.
    pub drain_ms: u32,
    /// The indexes of the machines that the change adds.
    pub joining: Vec<usize>,
    /// The indexes of the machines that the change removes.
    pub leaving: Vec<usize>,
}

/// The events that were added, and the state of the cluster after these events.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) machines: Vec<Machine>,
    pub(crate) backends: Vec<Backend>,
    pub(crate) versions: Vec<Version>,
    pub(crate) events: Vec<Event>,
    is_there: Vec<bool>,
    is_dead: Vec<bool>,
    seed: u64,
}

/// The time at which a change starts, and the duration until all machines have adopted it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Takeover {
    pub(crate) at_ms: u32,
    pub(crate) skew_ms: u32,
}

impl Plan {
    pub(crate) fn new(cluster: &Cluster, seed: u64) -> Self {
        Self {
            is_there: cluster.machines.iter().map(|machine| machine.is_there).collect(),
            is_dead: vec![false; cluster.backends.len()],
            machines: cluster.machines.clone(),
            backends: cluster.backends.clone(),
            versions: vec![cluster.version.clone()],
            events: Vec::new(),
            seed,
        }
    }

    pub(crate) fn is_there(&self, machine: usize) -> bool {
        self.is_there[machine]
    }

    pub(crate) fn is_dead(&self, backend: usize) -> bool {
        self.is_dead[backend]
    }

    pub(crate) fn push(&mut self, at_ms: u32, label: String, change: Change) {
        self.events.push(Event { at_ms, label, change });
    }

    /// Adds an event in which a machine joins or leaves the cluster.
    pub(crate) fn route(&mut self, at_ms: u32, machine: usize, joins: bool) {
        let name = &self.machines[machine].name;
        let label = if joins { format!("{name} joins") } else { format!("{name} leaves") };
        self.is_there[machine] = joins;
        self.push(at_ms, label, if joins { Change::Join(machine) } else { Change::Leave(machine) });
    }

    pub(crate) fn add_machine(&mut self, name: &str) -> usize {
        self.machines.push(Machine { name: name.to_owned(), is_there: false });
        self.is_there.push(false);
        self.machines.len() - 1
    }

    pub(crate) fn down(&mut self, takeover: Takeover, backend: usize) {
        let label = format!("{} is down{}", self.backends[backend].name, known(takeover));
        self.is_dead[backend] = true;
        self.push(takeover.at_ms, label, Change::Die(backend));
        self.set(takeover, None, backend, BackendState::Gone);
    }

    pub(crate) fn up(&mut self, takeover: Takeover, backend: usize) {
        let label = format!("{} is up{}", self.backends[backend].name, known(takeover));
        let weight = self.versions.iter().rev().find_map(|version| match version.states[backend] {
            BackendState::Serving(weight) if weight > 0 => Some(weight),
            _ => None,
        });
        if std::mem::take(&mut self.is_dead[backend]) {
            self.push(takeover.at_ms, label.clone(), Change::Revive(backend));
            self.set(takeover, None, backend, BackendState::Serving(weight.unwrap_or(1)));
        } else {
            self.set(takeover, Some(label), backend, BackendState::Serving(weight.unwrap_or(1)));
        }
    }

    pub(crate) fn drain(&mut self, takeover: Takeover, backend: usize) {
        let label = format!("{} drains{}", self.backends[backend].name, known(takeover));
        self.set(takeover, Some(label), backend, BackendState::Draining);
    }

    pub(crate) fn weigh(&mut self, takeover: Takeover, backend: usize, weight: u32) {
        let label = format!("{} has weight {weight}{}", self.backends[backend].name, known(takeover));
        self.set(takeover, Some(label), backend, BackendState::Serving(weight));
    }

    /// Adds an event that changes the hash key. The new key is derived from the seed.
    pub(crate) fn rekey(&mut self, takeover: Takeover) {
        let key = key(self.seed, self.versions.len() as u64);
        let label = format!("the hash key changes{}", known(takeover));
        let version = Version { key, ..self.newest().clone() };
        self.adopt(takeover, Some(label), version);
    }

    /// Adds the events of a reload that activates a different configuration.
    pub(crate) fn roll_out(&mut self, takeover: Takeover, rollout: &Rollout) {
        let at_ms = takeover.at_ms;
        self.adopt(
            takeover,
            Some(format!("the new configuration is loaded{}", known(takeover))),
            rollout.reloaded.clone(),
        );
        rollout.joining.iter().for_each(|machine| self.route(at_ms, *machine, true));
        rollout.leaving.iter().for_each(|machine| self.route(at_ms, *machine, false));
        if let Some(drained) = &rollout.drained {
            let later = Takeover { at_ms: at_ms.saturating_add(rollout.drain_ms), ..takeover };
            self.adopt(later, Some(format!("the drain time ends{}", known(takeover))), drained.clone());
        }
    }

    fn newest(&self) -> &Version {
        &self.versions[self.versions.len() - 1]
    }

    fn set(&mut self, takeover: Takeover, label: Option<String>, backend: usize, state: BackendState) {
        let mut version = self.newest().clone();
        version.states[backend] = state;
        self.adopt(takeover, label, version);
    }

    /// Adds a version of the configuration. A version without a label belongs to the previous
    /// event.
    fn adopt(&mut self, takeover: Takeover, label: Option<String>, version: Version) {
        self.versions.push(version);
        let change = Change::Adopt { version: self.versions.len() - 1, skew_ms: takeover.skew_ms };
        self.push(takeover.at_ms, label.unwrap_or_default(), change);
    }
}

fn known(takeover: Takeover) -> String {
    match takeover.skew_ms {
        0 => String::new(),
        skew => format!(", on all machines within {}", in_words(skew)),
    }
}

/// Formats a time as a duration in TOML.
pub(crate) fn in_words(time_ms: u32) -> String {
    config_text::format_duration(std::time::Duration::from_millis(u64::from(time_ms)))
}

/// Derives a hash key from the seed.
pub(crate) fn key(seed: u64, place: u64) -> [u8; 16] {
    let mut key = [0; 16];
    let (high, low) = key.split_at_mut(8);
    high.copy_from_slice(&draw(seed, Stream::Key, 2 * place).to_be_bytes());
    low.copy_from_slice(&draw(seed, Stream::Key, 2 * place + 1).to_be_bytes());
    key
}
