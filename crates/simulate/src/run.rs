//! One run through a scenario: epoch by epoch, flow by flow.
//!
//! In: a [`World`], with flow tables or without. Out: an [`Outcome`]. A flow is looked at once an epoch, at its first packet
//! there: all its packets in an epoch meet the same machine and the same tables. A flow table holds where a living flow began:
//! where it says anything else, the flow is broken, and is followed no further. So a bit a machine is all that is kept.
//! Invariant: with a limit of places flows ask for them in the order of time, and of their numbers in one millisecond.

use crate::flow::{Arrivals, Begun, Flow};
use crate::outcome::{Counts, Outcome, SPANS};
use crate::places::Places;
use crate::scenario::BackendState;
use crate::world::World;

/// Runs it.
///
/// # Cost
/// Some 50 ns for each living flow and epoch; 32 bytes a living flow, with a limit of places 16 more for each
/// that sends in an epoch.
pub(crate) fn run(world: &World<'_>, with_tables: bool) -> Outcome {
    let scenario = world.scenario;
    let limit = scenario.flow_tables.places.filter(|_| with_tables);
    let mut run = Run {
        world,
        with_tables,
        flows: Vec::new(),
        arrivals: Arrivals::new(scenario),
        places: Places::new(limit, scenario.machines.len()),
        outcome: Outcome::new(world.hashing, with_tables, scenario.events.len()),
        epoch: 0,
    };
    for epoch in 0..world.timeline.epochs.len() {
        run.pass(epoch);
    }
    run.weigh(scenario.duration_ms);
    run.outcome.settle();
    run.outcome
}

struct Run<'a> {
    world: &'a World<'a>,
    with_tables: bool,
    flows: Vec<Flow>,
    arrivals: Arrivals<'a>,
    places: Places,
    outcome: Outcome,
    /// The one under way.
    epoch: usize,
}

/// Where a packet of a flow went.
#[derive(Clone, Copy)]
struct Visit {
    epoch: usize,
    at_ms: u32,
    machine: Option<u16>,
}

impl Run<'_> {
    fn pass(&mut self, number: usize) {
        let timeline = &self.world.timeline;
        let (epoch, end) = (&timeline.epochs[number], timeline.end_ms(number));
        if number > 0 {
            self.flows.retain(|flow| flow.last_ms >= epoch.from_ms);
            if epoch.event != timeline.epochs[number - 1].event {
                self.weigh(epoch.from_ms);
            }
            let anew = (0..epoch.emptied.len()).filter(|machine| epoch.emptied[*machine] == number);
            anew.for_each(|machine| self.places.empty(machine));
        }
        self.epoch = number;
        if self.places.are_limited() {
            let mut due: Vec<(u32, usize)> =
                (0..self.flows.len()).filter_map(|index| self.due(index)).collect();
            due.sort_unstable();
            for (at, index) in due {
                self.arrive_before(at);
                self.look(index, at);
            }
        } else {
            for index in 0..self.flows.len() {
                if let Some((at, _)) = self.due(index) {
                    self.look(index, at);
                }
            }
        }
        self.arrive_before(end);
    }

    /// When a flow sends first in this epoch, and which it is; `None`: it does not.
    #[inline]
    fn due(&self, index: usize) -> Option<(u32, usize)> {
        let (flow, timeline) = (&self.flows[index], &self.world.timeline);
        let at = flow.packet_from(timeline.epochs[self.epoch].from_ms, self.world.interval_ms());
        (at < timeline.end_ms(self.epoch) && at <= flow.last_ms).then_some((at, index))
    }

    fn arrive_before(&mut self, at_ms: u32) {
        while let Some(begun) = self.arrivals.next_before(at_ms) {
            self.begin(begun);
        }
    }

    /// A flow's first packet.
    fn begin(&mut self, begun: Begun) {
        let (world, now) = (self.world, begun.first_ms);
        let epoch = &world.timeline.epochs[self.epoch];
        self.places.pass_until(now);
        self.outcome.flows += 1;
        let machine = world.machine(begun.number, self.epoch);
        let chosen =
            machine.and_then(|machine| world.choice(begun.number, epoch.views[usize::from(machine)]));
        let (Some(machine), Some(backend)) = (machine, chosen) else {
            self.counts().unserved += 1;
            return;
        };
        if epoch.dead[usize::from(backend)] {
            self.counts().lost += 1;
            return;
        }
        let mut flow = Flow::new(begun, backend);
        if self.with_tables && !self.hold(&mut flow, machine) {
            self.counts().untracked += 1;
        }
        self.leave_if_done(&flow, machine);
        if flow.last_ms >= world.timeline.end_ms(self.epoch) {
            self.flows.push(flow);
        }
    }

    /// A flow's first packet in this epoch, which is not its first at all.
    fn look(&mut self, index: usize, now: u32) {
        self.places.pass_until(now);
        let mut flow = self.flows[index];
        let machine = self.world.machine(flow.number, self.epoch);
        let before = self.last_visit(&flow, now);
        let stays = before.machine == machine;
        let is_lost = self.world.timeline.epochs[self.epoch].dead[usize::from(flow.backend)];
        if !stays || is_lost {
            self.release(&flow, before);
        }
        let goes_on = match machine {
            _ if is_lost => {
                self.counts().lost += 1;
                false
            }
            None => true,
            Some(machine) => {
                self.counts().moved += u64::from(!stays);
                self.reaches_its_backend(&mut flow, machine, before)
            }
        };
        if !goes_on {
            flow.last_ms = 0;
        }
        self.flows[index] = flow;
    }

    /// Whether a machine sends a packet to where its flow began. If not, the flow is broken.
    fn reaches_its_backend(&mut self, flow: &mut Flow, machine: u16, before: Visit) -> bool {
        let (world, now) = (self.world, before.at_ms + self.world.interval_ms());
        let view = world.timeline.epochs[self.epoch].views[usize::from(machine)];
        let is_known = self.is_known(flow, machine, before);
        let is_kept = is_known && world.state(view, flow.backend) != BackendState::Gone;
        if !is_kept && world.choice(flow.number, view) != Some(flow.backend) {
            if is_known {
                self.places.free_at(now + world.scenario.flow_tables.closing_ms, machine);
            }
            self.breaks(now);
            return false;
        }
        if self.with_tables && !is_known {
            self.hold(flow, machine);
        }
        self.leave_if_done(flow, machine);
        true
    }

    /// Where its packet before `now` went.
    fn last_visit(&self, flow: &Flow, now: u32) -> Visit {
        let at_ms = now - self.world.interval_ms();
        let epoch = self.world.timeline.epoch_at(at_ms, self.epoch);
        Visit { epoch, at_ms, machine: self.world.machine(flow.number, epoch) }
    }

    /// The last time that a machine which may hold the flow saw it; `visit` is that of its packet before.
    fn last_visit_of(&self, flow: &Flow, machine: u16, mut visit: Visit) -> Visit {
        let (timeline, interval) = (&self.world.timeline, self.world.interval_ms());
        while visit.machine != Some(machine) {
            let from = timeline.epochs[visit.epoch].from_ms;
            if from <= flow.first_ms {
                break;
            }
            visit.at_ms = flow.packet_before(from, interval);
            visit.epoch = timeline.epoch_at(visit.at_ms, visit.epoch);
            visit.machine = self.world.machine(flow.number, visit.epoch);
        }
        visit
    }

    /// Whether the machine's flow table has the flow now.
    fn is_known(&mut self, flow: &mut Flow, machine: u16, before: Visit) -> bool {
        if !flow.is_held(machine) {
            return false;
        }
        let (epoch, idle) =
            (&self.world.timeline.epochs[self.epoch], self.world.scenario.flow_tables.idle_ms);
        let visit = self.last_visit_of(flow, machine, before);
        let stays = visit.at_ms == before.at_ms;
        let age = before.at_ms + self.world.interval_ms() - visit.at_ms;
        let is_known = epoch.readable[usize::from(machine)] <= visit.epoch && age < idle;
        if !is_known {
            flow.set_held(machine, false);
        }
        match (is_known, stays) {
            (true, false) => self.places.keep(visit.at_ms + idle, machine),
            // Under another hash key: nobody asks for it there.
            (false, true) if epoch.emptied[usize::from(machine)] <= visit.epoch => {
                self.places.free_at(visit.at_ms + idle, machine);
            }
            _ => {}
        }
        is_known
    }

    /// A place for the flow in a flow table.
    fn hold(&mut self, flow: &mut Flow, machine: u16) -> bool {
        let is_full = self.world.timeline.epochs[self.epoch].full[usize::from(machine)];
        let is_held = !is_full && self.places.take(machine);
        flow.set_held(machine, is_held);
        is_held
    }

    /// The flow sends no more by the machine of a visit.
    fn release(&mut self, flow: &Flow, visit: Visit) {
        let Some(machine) = visit.machine.filter(|machine| flow.is_held(*machine)) else { return };
        if self.world.timeline.epochs[self.epoch].emptied[usize::from(machine)] <= visit.epoch {
            self.places.free_at(visit.at_ms + self.world.scenario.flow_tables.idle_ms, machine);
        }
    }

    /// If its last packet is in this epoch, its place will be free.
    fn leave_if_done(&mut self, flow: &Flow, machine: u16) {
        if flow.last_ms < self.world.timeline.end_ms(self.epoch) && flow.is_held(machine) {
            self.places.free_at(flow.last_ms + self.world.scenario.flow_tables.closing_ms, machine);
        }
    }

    fn breaks(&mut self, now: u32) {
        self.counts().broken += 1;
        let span = u64::from(now) * SPANS as u64 / u64::from(self.world.scenario.duration_ms);
        self.outcome.broken_over_time[usize::try_from(span).unwrap_or_default().min(SPANS - 1)] += 1;
    }

    fn counts(&mut self) -> &mut Counts {
        let event = self.world.timeline.epochs[self.epoch].event;
        &mut self.outcome.by_event[event.map_or(0, |event| event + 1)]
    }

    /// How the flows that live at a time, the end of the epoch under way, are spread.
    fn weigh(&mut self, at_ms: u32) {
        let (world, epoch) = (self.world, &self.world.timeline.epochs[self.epoch]);
        let mut backends = vec![0; world.scenario.backends.len()];
        let mut machines = vec![0; world.scenario.machines.len()];
        for flow in self.flows.iter().filter(|flow| flow.last_ms >= at_ms) {
            backends[usize::from(flow.backend)] += 1;
            if let Some(machine) = world.machine(flow.number, self.epoch) {
                machines[usize::from(machine)] += 1;
            }
        }
        let mut there = vec![0.0; machines.len()];
        epoch.hops.iter().for_each(|machine| there[usize::from(*machine)] = 1.0);
        let view = epoch.hops.first().map(|machine| epoch.views[usize::from(*machine)]);
        let weights = view.map(|view| world.weights(view)).unwrap_or_default();
        self.outcome.machines.add(&machines, &there);
        self.outcome.backends.add(&backends, &weights);
    }
}
