//! Figure 7: a simulated day of connections to a set of endpoints, with Sluicegate's Maglev table
//! and connection table.
//!
//! For every five minutes, the simulation counts the connections and packets of each endpoint. The
//! simulation also counts connections that move to a different endpoint. Each endpoint fails once
//! during the day. `day/traffic` generates the connections, and `day/account` evaluates the counts.

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

/// The parameters of a simulated day.
#[derive(Clone, Copy, Debug)]
struct Assumptions {
    endpoints: u32,
    slots: u32,
    /// The mean number of new connections per second per endpoint over the day.
    arrivals: f64,
    /// The length of the day from midnight, in seconds.
    seconds: u32,
    /// The length of the simulated time before midnight, in seconds. The simulation opens
    /// connections during this time that already exist when the day begins.
    warm_up_seconds: u32,
    /// The duration of a failure in seconds. Each endpoint fails once.
    outage_seconds: u32,
    /// The number of entries in the connection table.
    flows: usize,
    seed: u64,
}

/// The counts for one five-minute interval.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interval {
    /// The number of new connections of each endpoint.
    connections: Vec<u32>,
    /// The number of packets from clients to each endpoint.
    packets: Vec<u32>,
}

/// The number of connections in a day, and the number of connections that moved to a different
/// endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcome {
    connections: u64,
    packets: u64,
    /// Connections that moved to a different endpoint because their endpoint had failed.
    moved_off_failed: u64,
    /// Connections that moved to a different endpoint although their endpoint was up.
    moved_needlessly: u64,
    /// Connections that stayed on their endpoint only because of the connection table: the Maglev
    /// table had assigned them to a different endpoint.
    kept_by_tracking: u64,
}

/// An established connection.
struct Flow {
    connection: Connection,
    endpoint: u32,
    /// `true` if [`Outcome::kept_by_tracking`] already counts the connection.
    was_kept: bool,
}

/// The state of a running simulation.
struct Simulation {
    balancer: Balancer,
    traffic: Traffic,
    /// A timer wheel. Each element contains the connections that send their next packets at that
    /// tick.
    wheel: Vec<Vec<Flow>>,
    interval: Interval,
    outcome: Outcome,
}

/// Simulates a day, and calls `each` for every five-minute interval of the day.
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
        // The first tick of the day starts at midnight.
        let second = f64::from(tick) - f64::from(warm_up);
        day.turn(Tick::new(tick), second / f64::from(TICKS_PER_SECOND));
        let since_midnight = (tick + 1).checked_sub(warm_up);
        if since_midnight.is_some_and(|ticks| ticks % INTERVAL_TICKS == 0) {
            // Connections that opened before midnight are not counted.
            if since_midnight != Some(0) {
                each(&day.interval);
            }
            day.interval = Interval::new(assumed.endpoints);
        }
        if tick % (6 * 3_600 * TICKS_PER_SECOND) == 0 {
            let hours = tick / (3_600 * TICKS_PER_SECOND);
            eprintln!("simulated {hours} h in {:.1} s", start.elapsed().as_secs_f64());
        }
    }
    day.outcome
}

/// Returns all failures and recoveries of endpoints as tuples (tick, endpoint, new state), sorted
/// by tick.
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

    /// Simulates one tick. Established connections send their packets before new ones open.
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

    /// Sends the packets that a connection has to send at this tick.
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
/// The number of ticks of the timer wheel. The wheel spans more ticks than the longest idle gap
/// of a connection.
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

    /// Returns all packets as tuples: the tick, `true` for the first packet of its connection, and
    /// the flow hash.
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

    /// The expected result is computed independently of the simulation: from a map without expiry,
    /// tables built by the paper's pseudocode, and one list of all packets.
    #[test]
    fn small_day_matches_a_map_and_the_pseudocode() {
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
    fn same_seed_repeats_the_day_and_another_changes_it() {
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
