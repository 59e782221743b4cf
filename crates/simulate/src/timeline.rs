//! Divides the time of a scenario into epochs. An epoch is a time span in which routers, versions,
//! flow tables and backends do not change.
//!
//! In one epoch, all packets of a flow are forwarded in the same way, so the simulation examines
//! only one packet per flow and epoch. Epochs are ordered by time, and the first epoch starts at
//! time 0.

use crate::router::next_hops;
use crate::scenario::{Change, Scenario};

/// The state of the cluster during one epoch.
#[derive(Clone, Debug)]
pub(crate) struct Epoch {
    /// The start of the epoch, in milliseconds.
    pub(crate) from_ms: u32,
    /// The index of the last event before the epoch, or `None` if there is no earlier event.
    pub(crate) event: Option<usize>,
    /// The machine that each next hop leads to.
    pub(crate) hops: Vec<u16>,
    /// The index of the version that each machine uses.
    pub(crate) views: Vec<u16>,
    /// For each machine, the first epoch from which flow table entries can still be found. Earlier
    /// entries were added with a different hash key.
    pub(crate) readable: Vec<usize>,
    /// For each machine, the epoch in which it joined. When a machine joins, its flow table is
    /// empty.
    pub(crate) emptied: Vec<usize>,
    /// `true` for each machine whose flow table accepts no new flows.
    pub(crate) full: Vec<bool>,
    /// `true` for each backend that is down.
    pub(crate) dead: Vec<bool>,
}

/// The epochs of a scenario.
#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) epochs: Vec<Epoch>,
    /// The start times of the epochs, in a compact vector that is searched for each examined
    /// packet.
    starts: Vec<u32>,
    duration_ms: u32,
}

/// A change to a single part of the cluster.
#[derive(Clone, Copy, Debug)]
enum Step {
    Join(usize),
    Leave(usize),
    Dead(usize, bool),
    /// The version that machines use if they join after this step.
    Newest(usize),
    View(usize, usize),
    Full(usize, bool),
}

impl Timeline {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let mut now = State::new(scenario);
        let mut epochs: Vec<Epoch> = vec![now.epoch.clone()];
        for (at, step) in steps(scenario) {
            let event = scenario.events.iter().rposition(|event| event.at_ms <= at);
            if at == now.epoch.from_ms {
                epochs.pop();
            }
            (now.epoch.from_ms, now.epoch.event) = (at, event);
            now.take(scenario, step, epochs.len());
            epochs.push(now.epoch.clone());
        }
        let starts = epochs.iter().map(|epoch| epoch.from_ms).collect();
        Self { epochs, starts, duration_ms: scenario.duration_ms }
    }

    /// Returns the time in milliseconds at which an epoch ends. The epoch does not include its end
    /// time.
    pub(crate) fn end_ms(&self, epoch: usize) -> u32 {
        self.starts.get(epoch + 1).copied().unwrap_or(self.duration_ms)
    }

    /// Returns the epoch that contains `at_ms`, which must not be before the epoch `earliest`. The
    /// search begins at `earliest`.
    #[inline]
    pub(crate) fn epoch_from(&self, at_ms: u32, earliest: usize) -> usize {
        earliest + self.starts[earliest + 1..].partition_point(|start| *start <= at_ms)
    }

    /// Returns the epoch that contains `at_ms`, which must not be after the epoch `latest`. The
    /// search ends at `latest`.
    #[inline]
    pub(crate) fn epoch_at(&self, at_ms: u32, latest: usize) -> usize {
        self.starts[1..=latest].partition_point(|start| *start <= at_ms)
    }
}

/// The current epoch, and the data from which the next epoch is computed.
struct State {
    epoch: Epoch,
    is_there: Vec<bool>,
    newest: usize,
}

impl State {
    fn new(scenario: &Scenario) -> Self {
        let machines = scenario.machines.len();
        let is_there: Vec<bool> = scenario.machines.iter().map(|machine| machine.is_there).collect();
        let epoch = Epoch {
            from_ms: 0,
            event: None,
            hops: next_hops(scenario.router, &[], &live(&is_there)),
            views: vec![0; machines],
            readable: vec![0; machines],
            emptied: vec![0; machines],
            full: vec![false; machines],
            dead: vec![false; scenario.backends.len()],
        };
        Self { epoch, is_there, newest: 0 }
    }

    /// Applies a step. `number` is the index of the epoch in which the step takes effect.
    fn take(&mut self, scenario: &Scenario, step: Step, number: usize) {
        let epoch = &mut self.epoch;
        match step {
            Step::Join(machine) => {
                (epoch.views[machine], epoch.readable[machine]) = (place(self.newest), number);
                epoch.emptied[machine] = number;
                self.route(scenario, machine, true);
            }
            Step::Leave(machine) => self.route(scenario, machine, false),
            Step::Dead(backend, is_dead) => epoch.dead[backend] = is_dead,
            Step::Newest(version) => self.newest = version,
            Step::View(machine, version) => {
                let before = usize::from(std::mem::replace(&mut epoch.views[machine], place(version)));
                if scenario.versions[before].key != scenario.versions[version].key {
                    epoch.readable[machine] = number;
                }
            }
            Step::Full(machine, is_full) => epoch.full[machine] = is_full,
        }
    }

    fn route(&mut self, scenario: &Scenario, machine: usize, is_there: bool) {
        self.is_there[machine] = is_there;
        self.epoch.hops = next_hops(scenario.router, &self.epoch.hops, &live(&self.is_there));
    }
}

/// Converts an index to 16 bits. A scenario that was checked has at most 65,535 machines, backends
/// and versions.
#[expect(clippy::cast_possible_truncation, reason = "checked: below 2^16")]
fn place(number: usize) -> u16 {
    number as u16
}

fn live(is_there: &[bool]) -> Vec<u16> {
    (0..).zip(is_there).filter(|(_, there)| **there).map(|(machine, _)| machine).collect()
}

/// Returns all steps, ordered by time. Steps with the same time have the order of their events.
/// Steps at or after the end of the scenario are dropped.
fn steps(scenario: &Scenario) -> Vec<(u32, Step)> {
    let machines = scenario.machines.len();
    let mut steps = Vec::new();
    for event in &scenario.events {
        let now = event.at_ms;
        match event.change {
            Change::Join(machine) => steps.push((now, Step::Join(machine))),
            Change::Leave(machine) => steps.push((now, Step::Leave(machine))),
            Change::Die(backend) => steps.push((now, Step::Dead(backend, true))),
            Change::Revive(backend) => steps.push((now, Step::Dead(backend, false))),
            Change::Adopt { version, skew_ms } => {
                steps.push((now, Step::Newest(version)));
                steps.extend(
                    (0..machines).map(|machine| {
                        (after(now, skew_ms, machine, machines), Step::View(machine, version))
                    }),
                );
            }
            Change::Full { machine, for_ms } => {
                for machine in machine.map_or(0..machines, |machine| machine..machine + 1) {
                    steps.push((now, Step::Full(machine, true)));
                    steps.push((now.saturating_add(for_ms), Step::Full(machine, false)));
                }
            }
        }
    }
    steps.retain(|(at, _)| *at < scenario.duration_ms);
    steps.sort_by_key(|(at, _)| *at);
    steps
}

/// Returns the time at which one machine applies a change. `number` is the index of the machine,
/// and `machines` is the number of machines.
fn after(now: u32, skew_ms: u32, number: usize, machines: usize) -> u32 {
    let late = u64::from(skew_ms) * number as u64 / machines as u64;
    now.saturating_add(u32::try_from(late).unwrap_or(u32::MAX))
}
