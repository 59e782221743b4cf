//! Figure 7: a simulated day of connections to a set of endpoints, through the product's table and connection table.
//!
//! In: [`Assumptions`]. Out: connections and packets of each endpoint in each five minutes, and what became of the connections.
//! Not here: what comes when (`day/traffic`), how the day is drawn and told (`day/account`).
//! Connections stick to their endpoint by the connection table; each endpoint fails once.

mod account;
mod balancer;
mod traffic;

use std::time::Instant;

use conntrack::{Signal, TICKS_PER_SECOND, Tick};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

pub(crate) use self::account::{draw, draw_rates, run, run_rates, section, section_rates};

use self::balancer::Balancer;
use self::traffic::{Connection, Traffic};

/// What is assumed of a day.
#[derive(Clone, Copy, Debug)]
struct Assumptions {
    endpoints: u32,
    slots: u32,
    /// Connections a second that each endpoint gets on average of the day.
    arrivals: f64,
    /// How long it goes on, from midnight.
    seconds: u32,
    /// Before midnight, so that the day begins with connections under way.
    warm_up_seconds: u32,
    /// Of the failure that each endpoint has once.
    outage_seconds: u32,
    /// Places of the connection table.
    flows: usize,
    seed: u64,
}

/// Five minutes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interval {
    /// Opened, by endpoint.
    connections: Vec<u32>,
    /// From clients, by endpoint.
    packets: Vec<u32>,
}

/// What became of the connections of a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcome {
    connections: u64,
    packets: u64,
    /// Went to another endpoint, since theirs had failed.
    moved_off_failed: u64,
    /// Went to another endpoint though theirs had not failed.
    moved_needlessly: u64,
    /// Stayed on theirs, while the table alone would have moved them.
    kept_by_tracking: u64,
}

/// A connection under way.
struct Flow {
    connection: Connection,
    endpoint: u32,
    /// Counted in [`Outcome::kept_by_tracking`].
    was_kept: bool,
}

/// A simulation under way.
struct Simulation {
    balancer: Balancer,
    traffic: Traffic,
    /// Connections by the tick of their next packets, modulo its length.
    wheel: Vec<Vec<Flow>>,
    interval: Interval,
    outcome: Outcome,
}

/// Runs a day; `each` has every interval from midnight on.
fn simulate(assumed: &Assumptions, each: &mut dyn FnMut(&Interval)) -> Outcome {
    let start = Instant::now();
    let mut day = Simulation::new(assumed);
    let warm_up = assumed.warm_up_seconds * TICKS_PER_SECOND;
    let ticks = warm_up + assumed.seconds * TICKS_PER_SECOND;
    let mut outages = outages(assumed, warm_up..ticks).into_iter().peekable();
    for tick in 0..ticks {
        while let Some((_, endpoint, serves)) = outages.next_if(|(at, ..)| *at == tick) {
            day.balancer.set_serving(endpoint, serves);
        }
        // The first tick of the day is that of midnight.
        let second = f64::from(tick) - f64::from(warm_up);
        day.turn(Tick::new(tick), second / f64::from(TICKS_PER_SECOND));
        let since_midnight = (tick + 1).checked_sub(warm_up);
        if since_midnight.is_some_and(|ticks| ticks % INTERVAL_TICKS == 0) {
            // What opened before midnight is in no interval.
            if since_midnight != Some(0) {
                each(&day.interval);
            }
            day.interval = Interval::new(assumed.endpoints);
        }
        if tick % (6 * 3_600 * TICKS_PER_SECOND) == 0 {
            let hours = tick / (3_600 * TICKS_PER_SECOND);
            eprintln!("{hours} h of the day: {:.1} s", start.elapsed().as_secs_f64());
        }
    }
    day.outcome
}

/// Tick, endpoint and whether it serves from then on, by time.
fn outages(assumed: &Assumptions, within: std::ops::Range<u32>) -> Vec<(u32, u32, bool)> {
    let mut random = Pcg64Mcg::seed_from_u64(assumed.seed ^ 1);
    let mut order: Vec<u32> = (0..assumed.endpoints).collect();
    order.shuffle(&mut random);
    let lasts = assumed.outage_seconds * TICKS_PER_SECOND;
    let mut changes: Vec<_> = order
        .into_iter()
        .flat_map(|endpoint| {
            let at = random.random_range(within.clone());
            [(at, endpoint, false), (at + lasts, endpoint, true)]
        })
        .collect();
    changes.sort_unstable();
    changes
}

impl Simulation {
    fn new(assumed: &Assumptions) -> Self {
        Self {
            balancer: Balancer::new(assumed.endpoints, assumed.slots, assumed.flows),
            traffic: Traffic::new(assumed.seed, assumed.arrivals * f64::from(assumed.endpoints)),
            wheel: std::iter::repeat_with(Vec::new).take(WHEEL).collect(),
            interval: Interval::new(assumed.endpoints),
            outcome: Outcome::default(),
        }
    }

    /// One tick: connections under way, then new ones.
    fn turn(&mut self, now: Tick, second: f64) {
        let place = now.number() as usize % WHEEL;
        let mut due = std::mem::take(&mut self.wheel[place]);
        for mut flow in due.drain(..) {
            self.go_on(&mut flow, now);
            self.come_back(flow, now);
        }
        self.wheel[place] = due;
        for _ in 0..self.traffic.arrivals(second) {
            let connection = self.traffic.connection();
            let endpoint = self.balancer.packet(connection.hash, Signal::Syn, now);
            self.outcome.connections += 1;
            self.outcome.packets += 1;
            self.interval.connections[endpoint as usize] += 1;
            self.interval.packets[endpoint as usize] += 1;
            self.come_back(Flow { connection, endpoint, was_kept: false }, now);
        }
        self.balancer.sweep(now);
    }

    /// The packets that are due.
    fn go_on(&mut self, flow: &mut Flow, now: Tick) {
        let connection = &mut flow.connection;
        for _ in 0..connection.burst.min(connection.left) {
            connection.left -= 1;
            let signal = if connection.left == 0 { Signal::FinOrRst } else { Signal::Data };
            let endpoint = self.balancer.packet(connection.hash, signal, now);
            self.outcome.packets += 1;
            self.interval.packets[endpoint as usize] += 1;
            if endpoint != flow.endpoint {
                let moved = if self.balancer.serves(flow.endpoint) {
                    &mut self.outcome.moved_needlessly
                } else {
                    &mut self.outcome.moved_off_failed
                };
                *moved += 1;
                flow.endpoint = endpoint;
            }
        }
        let kept = flow.endpoint != self.balancer.by_table(connection.hash);
        self.outcome.kept_by_tracking += u64::from(kept && !flow.was_kept);
        flow.was_kept |= kept;
    }

    fn come_back(&mut self, mut flow: Flow, now: Tick) {
        if flow.connection.left > 0 {
            let at = now.number() as usize + flow.connection.next_gap();
            self.wheel[at % WHEEL].push(flow);
        }
    }
}

impl Interval {
    fn new(endpoints: u32) -> Self {
        Self { connections: vec![0; endpoints as usize], packets: vec![0; endpoints as usize] }
    }
}

const INTERVAL_SECONDS: u32 = 300;
const INTERVAL_TICKS: u32 = INTERVAL_SECONDS * TICKS_PER_SECOND;
/// Ticks; more than the longest time between two packets of a connection.
const WHEEL: usize = 4_096;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::maglev::{names, pseudocode, seed};

    const SMALL: Assumptions = Assumptions {
        endpoints: 7,
        slots: 1_009,
        arrivals: 0.5,
        seconds: 1_200,
        warm_up_seconds: 300,
        outage_seconds: 60,
        flows: 100_000,
        seed: 3,
    };

    /// A packet: its tick, its connection's hash.
    fn packets(assumed: &Assumptions) -> Vec<(u32, bool, u64)> {
        let mut traffic = Traffic::new(assumed.seed, assumed.arrivals * f64::from(assumed.endpoints));
        let mut packets = Vec::new();
        for tick in 0..(assumed.warm_up_seconds + assumed.seconds) * 4 {
            for _ in 0..traffic.arrivals(f64::from(tick) / 4.0 - f64::from(assumed.warm_up_seconds)) {
                let mut connection = traffic.connection();
                let mut at = tick;
                packets.push((at, true, connection.hash));
                while connection.left > 0 {
                    at += u32::try_from(connection.next_gap()).unwrap();
                    let burst = connection.burst.min(connection.left);
                    connection.left -= burst;
                    packets.extend((0..burst).map(|_| (at, false, connection.hash)));
                }
            }
        }
        packets.sort_by_key(|packet| packet.0);
        packets
    }

    /// Connections in a map that forgets nothing, tables by the paper's pseudocode, and all packets in one list.
    #[test]
    fn a_small_day_is_what_a_map_and_the_pseudocode_say() {
        let all = names(SMALL.endpoints as usize);
        let warm_up = SMALL.warm_up_seconds * 4;
        let end = warm_up + SMALL.seconds * 4;
        let changes = outages(&SMALL, warm_up..end);
        let (mut down, mut pinned, mut kept) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        let mut expected = vec![Interval::new(SMALL.endpoints); 4];
        let mut outcome = Outcome::default();
        let mut changes = changes.into_iter().peekable();
        let mut table = None;
        for (tick, opens, hash) in packets(&SMALL).into_iter().take_while(|packet| packet.0 < end) {
            while let Some((_, endpoint, serves)) = changes.next_if(|change| change.0 <= tick) {
                if serves {
                    down.retain(|gone| *gone != endpoint)
                } else {
                    down.push(endpoint)
                }
                table = None;
            }
            let left: Vec<u32> = (0..SMALL.endpoints).filter(|endpoint| !down.contains(endpoint)).collect();
            let table = table.get_or_insert_with(|| {
                let names: Vec<_> = left.iter().map(|&endpoint| all[endpoint as usize].clone()).collect();
                pseudocode(&names, SMALL.slots, &seed(0))
            });
            let slot = (u128::from(hash) * u128::from(SMALL.slots)) >> 64;
            let chosen = left[usize::from(table[usize::try_from(slot).unwrap()])];
            let endpoint = *pinned.entry(hash).or_insert(chosen);
            outcome.connections += u64::from(opens);
            outcome.packets += 1;
            if down.contains(&endpoint) {
                pinned.insert(hash, chosen);
                outcome.moved_off_failed += 1;
            }
            if pinned[&hash] != chosen {
                kept.insert(hash);
            }
            if let Some(ticks) = tick.checked_sub(warm_up) {
                let interval = &mut expected[(ticks / INTERVAL_TICKS) as usize];
                interval.connections[pinned[&hash] as usize] += u32::from(opens);
                interval.packets[pinned[&hash] as usize] += 1;
            }
        }
        let mut found = Vec::new();
        let of_simulation = simulate(&SMALL, &mut |interval| found.push(interval.clone()));
        assert_eq!(found, expected);
        outcome.kept_by_tracking = kept.len() as u64;
        assert!(outcome.moved_off_failed > 0 && outcome.kept_by_tracking > 0, "{outcome:?}");
        assert_eq!(of_simulation, outcome);
    }

    #[test]
    fn a_seed_gives_the_same_day_and_another_seed_another() {
        let day = |seed| {
            let mut intervals = Vec::new();
            let outcome =
                simulate(&Assumptions { seed, ..SMALL }, &mut |interval| intervals.push(interval.clone()));
            (outcome, intervals)
        };
        assert_eq!(day(1), day(1));
        assert_ne!(day(1), day(2));
    }
}
