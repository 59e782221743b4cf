//! Counts the flows on each backend and machine before each event and at the end.

use std::ops::RangeInclusive;

use crate::flow::Flow;
use crate::outcome::Balance;
use crate::world::World;

/// The measurements, ordered by time.
pub(crate) struct Loads(Vec<Load>);

struct Load {
    at_ms: u32,
    /// The index of the epoch that ends at this time.
    epoch: usize,
    backends: Vec<u64>,
    machines: Vec<u64>,
}

impl Loads {
    pub(crate) fn new(world: &World<'_>) -> Self {
        let epochs = &world.timeline.epochs;
        let before_events = (1..epochs.len()).filter(|next| epochs[*next].event != epochs[*next - 1].event);
        let load = |end: usize| Load {
            at_ms: world.timeline.end_ms(end - 1),
            epoch: end - 1,
            backends: vec![0; world.scenario.backends.len()],
            machines: vec![0; world.scenario.machines.len()],
        };
        Self(before_events.chain([epochs.len()]).map(load).collect())
    }

    /// Adds a flow that is live during the time range `lives`. A measurement in the first
    /// millisecond of this range does not include the flow.
    #[inline]
    pub(crate) fn add(&mut self, world: &World<'_>, flow: &Flow, lives: RangeInclusive<u32>) {
        for load in self.0.iter_mut().filter(|load| load.at_ms > *lives.start() && load.at_ms <= *lives.end())
        {
            load.backends[usize::from(flow.backend)] += 1;
            if let Some(machine) = world.machine(flow.number, load.epoch) {
                load.machines[usize::from(machine)] += 1;
            }
        }
    }

    /// Returns the balance over backends and the balance over machines. The expected share of a
    /// backend is proportional to its weight in the configuration version of the first machine. All
    /// machines that receive packets from routers have the same expected share.
    pub(crate) fn balances(&self, world: &World<'_>) -> (Balance, Balance) {
        let (mut backends, mut machines) = (Balance::default(), Balance::default());
        for load in &self.0 {
            let epoch = &world.timeline.epochs[load.epoch];
            let mut there = vec![0.0; load.machines.len()];
            epoch.hops.iter().for_each(|machine| there[usize::from(*machine)] = 1.0);
            machines.add(&load.machines, &there);
            let view = epoch.hops.first().map(|machine| epoch.views[usize::from(*machine)]);
            backends.add(&load.backends, &view.map(|view| world.weights(view)).unwrap_or_default());
        }
        (backends, machines)
    }
}
