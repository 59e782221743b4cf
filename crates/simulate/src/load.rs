//! How many flows each backend and each machine has, at the end and before each event.
//!
//! In: flows, and for how long nothing becomes of them. Out: how even that is. Not here: what befalls flows.

use std::ops::RangeInclusive;

use crate::flow::Flow;
use crate::outcome::Balance;
use crate::world::World;

/// Counts at the moments at which they are taken, in the order of time.
pub(crate) struct Loads(Vec<Load>);

struct Load {
    at_ms: u32,
    /// The epoch that ends then.
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

    /// A flow that lives through a time: what is taken at its first moment is not its.
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

    /// Over backends, by the weights that the first machine has for them, and over the machines that routers send to.
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
