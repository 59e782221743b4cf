//! The script as epochs: spans of time in which nothing changes.
//!
//! In: a [`Scenario`]. Out: an [`Epoch`] for each moment at which routers, a machine's version, a table or a backend changes.
//! Not here: flows. They follow from what they meet in each epoch: so packets within one need not be looked at one by one.
//! Invariant: epochs ascend in time, and the first begins at 0.

use crate::router::next_hops;
use crate::scenario::{Change, Scenario};

/// How the cluster is from one moment to the next.
#[derive(Clone, Debug)]
pub(crate) struct Epoch {
    /// When it begins.
    pub(crate) from_ms: u32,
    /// The last event before, if there was one.
    pub(crate) event: Option<usize>,
    /// The machine at each next hop.
    pub(crate) hops: Vec<u16>,
    /// The version of each machine.
    pub(crate) views: Vec<u16>,
    /// The first epoch from which on the flow table of a machine can be read: an older entry is under another hash key.
    pub(crate) readable: Vec<usize>,
    /// The epoch in which a machine came with an empty flow table.
    pub(crate) emptied: Vec<usize>,
    /// Flow tables that take no new flows.
    pub(crate) full: Vec<bool>,
    /// Backends that are dead.
    pub(crate) dead: Vec<bool>,
}

/// All epochs of a scenario.
#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) epochs: Vec<Epoch>,
    /// Where they begin, close together: the search goes through it for each packet that is looked at.
    starts: Vec<u32>,
    duration_ms: u32,
}

/// A change of one thing.
#[derive(Clone, Copy, Debug)]
enum Step {
    Join(usize),
    Leave(usize),
    Dead(usize, bool),
    /// From now on machines come with this version.
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

    /// When an epoch ends: that is no part of it.
    pub(crate) fn end_ms(&self, epoch: usize) -> u32 {
        self.starts.get(epoch + 1).copied().unwrap_or(self.duration_ms)
    }

    /// The epoch of a time that is not before `earliest`.
    #[inline]
    pub(crate) fn epoch_from(&self, at_ms: u32, earliest: usize) -> usize {
        earliest + self.starts[earliest + 1..].partition_point(|start| *start <= at_ms)
    }

    /// The epoch of a time that is not after `latest`.
    #[inline]
    pub(crate) fn epoch_at(&self, at_ms: u32, latest: usize) -> usize {
        self.starts[1..=latest].partition_point(|start| *start <= at_ms)
    }
}

/// The epoch that is under way, and what the next one needs beside it.
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

    /// `number` is that of the epoch in which it takes effect.
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

/// A checked scenario has at most 65,535 of what is numbered so.
#[expect(clippy::cast_possible_truncation, reason = "checked: below 2^16")]
fn place(number: usize) -> u16 {
    number as u16
}

fn live(is_there: &[bool]) -> Vec<u16> {
    (0..).zip(is_there).filter(|(_, there)| **there).map(|(machine, _)| machine).collect()
}

/// All steps in the order of time, those of one moment in that of their events; what would come at the end or after is left out.
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

/// When machine `number` of `machines` follows.
fn after(now: u32, skew_ms: u32, number: usize, machines: usize) -> u32 {
    let late = u64::from(skew_ms) * number as u64 / machines as u64;
    now.saturating_add(u32::try_from(late).unwrap_or(u32::MAX))
}
