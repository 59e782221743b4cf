//! Runs a scenario, flow by flow.
//!
//! All packets of a flow in one epoch reach the same machine and the same tables, so only the first
//! packet in each epoch is examined. If a packet would reach a different backend than the first
//! packet of its flow, the flow is broken and its simulation ends. An entry in a flow table
//! therefore always refers to the backend that received the first packet of the flow. One bit per
//! flow and machine is enough to store whether the machine's flow table has an entry.
//!
//! If flow tables have no size limit, flows do not affect each other, so each flow is simulated
//! completely before the next flow. With a limit, flows are processed in order of time. Packets in
//! the same millisecond are processed in the order of flow indexes.

use crate::flow::{Arrivals, Begun, Flow};
use crate::load::Loads;
use crate::outcome::{Counts, Outcome, SPANS};
use crate::places::Places;
use crate::scenario::BackendState;
use crate::world::World;

/// Runs the scenario.
///
/// # Cost
/// Processing a flow takes about 50 ns for each epoch in which the flow sends packets. With a
/// limited flow table, each live flow needs 40 bytes of memory.
pub(crate) fn run(world: &World<'_>, with_tables: bool) -> Outcome {
    let scenario = world.scenario;
    let limit = scenario.flow_tables.places.filter(|_| with_tables);
    let mut run = Run {
        world,
        with_tables,
        arrivals: Arrivals::new(scenario),
        places: Places::new(limit, scenario.machines.len()),
        loads: Loads::new(world),
        outcome: Outcome::new(world.hashing, with_tables, scenario.events.len()),
        epoch: 0,
    };
    if limit.is_some() {
        run.in_order();
    } else {
        run.one_by_one();
    }
    let Run { loads, mut outcome, .. } = run;
    (outcome.backends, outcome.machines) = loads.balances(world);
    outcome.settle();
    outcome
}

struct Run<'a> {
    world: &'a World<'a>,
    with_tables: bool,
    arrivals: Arrivals<'a>,
    places: Places,
    loads: Loads,
    outcome: Outcome,
    epoch: usize,
}

/// A flow, and the time at which it is examined next.
#[derive(Clone, Copy)]
struct Due {
    at_ms: u32,
    flow: Flow,
}

/// The time of one packet in a flow, and the machine that received the packet.
#[derive(Clone, Copy)]
struct Visit {
    epoch: usize,
    at_ms: u32,
    machine: Option<u16>,
}

impl Run<'_> {
    fn one_by_one(&mut self) {
        let timeline = &self.world.timeline;
        let mut first = 0;
        while let Some(begun) = self.arrivals.next_before(self.world.scenario.duration_ms) {
            first = timeline.epoch_from(begun.first_ms, first);
            self.epoch = first;
            let mut next = self.begin(begun);
            while let Some(Due { at_ms, flow }) = next {
                self.epoch = timeline.epoch_from(at_ms, self.epoch);
                next = self.look(flow, at_ms);
            }
        }
    }

    fn in_order(&mut self) {
        let timeline = &self.world.timeline;
        let mut waiting: Vec<Vec<Due>> = vec![Vec::new(); timeline.epochs.len()];
        for number in 0..timeline.epochs.len() {
            self.epoch = number;
            let emptied = &timeline.epochs[number].emptied;
            let anew = (0..emptied.len()).filter(|machine| number > 0 && emptied[*machine] == number);
            anew.for_each(|machine| self.places.empty(machine));
            let mut due = std::mem::take(&mut waiting[number]);
            due.sort_unstable_by_key(|due| (due.at_ms, due.flow.number));
            for Due { at_ms, flow } in due {
                self.arrive_before(at_ms, &mut waiting);
                let next = self.look(flow, at_ms);
                self.wait(next, &mut waiting);
            }
            self.arrive_before(timeline.end_ms(number), &mut waiting);
        }
    }

    fn arrive_before(&mut self, at_ms: u32, waiting: &mut [Vec<Due>]) {
        while let Some(begun) = self.arrivals.next_before(at_ms) {
            let next = self.begin(begun);
            self.wait(next, waiting);
        }
    }

    fn wait(&self, next: Option<Due>, waiting: &mut [Vec<Due>]) {
        if let Some(due) = next {
            waiting[self.world.timeline.epoch_from(due.at_ms, self.epoch)].push(due);
        }
    }

    /// Processes the first packet of a flow.
    fn begin(&mut self, begun: Begun) -> Option<Due> {
        let (world, now) = (self.world, begun.first_ms);
        let epoch = &world.timeline.epochs[self.epoch];
        self.places.pass_until(now);
        self.outcome.flows += 1;
        let machine = world.machine(begun.number, self.epoch);
        let chosen =
            machine.and_then(|machine| world.choice(begun.number, epoch.views[usize::from(machine)]));
        let (Some(machine), Some(backend)) = (machine, chosen) else {
            self.counts().unserved += 1;
            return None;
        };
        if epoch.dead[usize::from(backend)] {
            self.counts().lost += 1;
            return None;
        }
        let mut flow = Flow::new(begun, backend);
        if self.with_tables && !self.hold(&mut flow, machine) {
            self.counts().untracked += 1;
        }
        self.leave_if_done(&flow, machine);
        self.go_on(flow, now)
    }

    /// Processes the first packet that an existing flow sends in the current epoch.
    fn look(&mut self, mut flow: Flow, now: u32) -> Option<Due> {
        self.places.pass_until(now);
        let machine = self.world.machine(flow.number, self.epoch);
        let before = self.last_visit(&flow, now);
        let stays = before.machine == machine;
        let is_lost = self.world.timeline.epochs[self.epoch].dead[usize::from(flow.backend)];
        if !stays || is_lost {
            self.release(&flow, before);
        }
        if is_lost {
            self.counts().lost += 1;
            return None;
        }
        if let Some(machine) = machine {
            self.counts().moved += u64::from(!stays);
            if !self.reaches_its_backend(&mut flow, machine, before) {
                return None;
            }
        }
        self.go_on(flow, now)
    }

    /// Returns `true` if the machine sends the packet to the backend that received the first packet
    /// of the flow. Otherwise, the flow is counted as broken.
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

    /// Adds the flow to the load, and returns the time at which the flow is examined next. Returns
    /// `None` if the flow or the scenario ends before that time.
    #[inline]
    fn go_on(&mut self, flow: Flow, now: u32) -> Option<Due> {
        let at_ms = flow.packet_from(self.world.timeline.end_ms(self.epoch), self.world.interval_ms());
        let goes_on = at_ms <= flow.last_ms && at_ms < self.world.scenario.duration_ms;
        let until = if goes_on { at_ms } else { flow.last_ms };
        self.loads.add(self.world, &flow, now..=until);
        goes_on.then_some(Due { at_ms, flow })
    }

    /// Returns the last packet before `now` and the machine that received it.
    #[inline]
    fn last_visit(&self, flow: &Flow, now: u32) -> Visit {
        let at_ms = now - self.world.interval_ms();
        let epoch = self.world.timeline.epoch_at(at_ms, self.epoch);
        Visit { epoch, at_ms, machine: self.world.machine(flow.number, epoch) }
    }

    /// Returns the last packet of the flow that `machine` received. The search begins with `visit`,
    /// which is the packet before the current packet.
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

    /// Returns `true` if the flow table of the machine contains a valid entry for the flow.
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
            // The hash key has changed, so lookups no longer find the entry and it expires.
            (false, true) if epoch.emptied[usize::from(machine)] <= visit.epoch => {
                self.places.free_at(visit.at_ms + idle, machine);
            }
            _ => {}
        }
        is_known
    }

    /// Adds the flow to the flow table of the machine. Returns `false` if the table is full.
    fn hold(&mut self, flow: &mut Flow, machine: u16) -> bool {
        let is_full = self.world.timeline.epochs[self.epoch].full[usize::from(machine)];
        let is_held = !is_full && self.places.take(machine);
        flow.set_held(machine, is_held);
        is_held
    }

    /// Schedules the release of the entry on the machine in `visit`, because the flow no longer
    /// uses that machine.
    fn release(&mut self, flow: &Flow, visit: Visit) {
        let Some(machine) = visit.machine.filter(|machine| flow.is_held(*machine)) else { return };
        if self.world.timeline.epochs[self.epoch].emptied[usize::from(machine)] <= visit.epoch {
            self.places.free_at(visit.at_ms + self.world.scenario.flow_tables.idle_ms, machine);
        }
    }

    /// If the flow ends in this epoch, schedules the release of its entry.
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
}
