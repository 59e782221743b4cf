//! A slow reference simulation that processes each packet and stores flow tables as lists. This
//! simulation does not use epochs.
//!
//! The reference shares no code with the crate. Random numbers, hashes, next hops and versions are
//! reimplemented from the documentation.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::cast_possible_truncation, reason = "small numbers")]

use proptest::prelude::*;
use simulate::{
    Backend, BackendState, Change, Counts, Event, FlowTables, Hashing, Lifetimes, Machine, Router, SPANS,
    Scenario, Traffic, Version,
};

/// The finalizer of SplitMix64.
fn scatter(z: u64) -> u64 {
    let z = (z ^ z >> 30).wrapping_mul(0xbf58476d1ce4e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d049bb133111eb);
    z ^ z >> 31
}

fn number(seed: u64, stream: u64, place: u64) -> u64 {
    let step = 0x9e3779b97f4a7c15_u64;
    scatter(scatter(seed.wrapping_add(step.wrapping_mul(stream))).wrapping_add(step.wrapping_mul(place)))
}

fn fraction(bits: u64) -> f64 {
    ((bits / 4096) as f64 + 0.5) / 4_503_599_627_370_496.0
}

/// Returns the time of the first and the last packet of each flow.
fn flows(scenario: &Scenario) -> Vec<(u32, u32)> {
    let (traffic, mut flows, mut clock) = (&scenario.traffic, Vec::new(), 0.0);
    for n in 0_u64.. {
        let is_old = n < u64::from(traffic.flows);
        let first = if is_old {
            (n * u64::from(traffic.packet_interval_ms) / u64::from(traffic.flows)) as u32
        } else if traffic.arrivals > 0.0 {
            clock += -fraction(number(scenario.seed, 6, n)).ln() * 1_000.0 / traffic.arrivals;
            (clock + f64::from(traffic.packet_interval_ms)) as u32
        } else {
            break;
        };
        if first >= scenario.duration_ms {
            break;
        }
        let part = fraction(number(scenario.seed, 3, n));
        let life = match traffic.lifetimes {
            Lifetimes::Fixed if is_old => {
                f64::from(traffic.lifetime_ms) * fraction(number(scenario.seed, 5, n))
            }
            Lifetimes::Fixed => f64::from(traffic.lifetime_ms),
            _ => -f64::from(traffic.lifetime_ms) * part.ln(),
        } as u32;
        let mut last = first;
        while last + traffic.packet_interval_ms <= first + life {
            last += traffic.packet_interval_ms;
        }
        flows.push((first, last));
    }
    flows
}

/// A change to a single part of the cluster.
#[derive(Clone, Copy)]
enum Turn {
    There(usize, bool),
    Dead(usize, bool),
    Newest(usize),
    View(usize, usize),
    Full(usize, bool),
}

fn turns(scenario: &Scenario) -> Vec<(u32, Turn)> {
    let (n, mut turns) = (scenario.machines.len(), Vec::new());
    for event in &scenario.events {
        let at = event.at_ms;
        match event.change {
            Change::Join(m) => turns.push((at, Turn::There(m, true))),
            Change::Leave(m) => turns.push((at, Turn::There(m, false))),
            Change::Die(b) => turns.push((at, Turn::Dead(b, true))),
            Change::Revive(b) => turns.push((at, Turn::Dead(b, false))),
            Change::Adopt { version, skew_ms } => {
                turns.push((at, Turn::Newest(version)));
                for m in 0..n {
                    turns.push((at + skew_ms * m as u32 / n as u32, Turn::View(m, version)));
                }
            }
            Change::Full { machine, for_ms } => {
                for m in (0..n).filter(|m| machine.is_none_or(|one| one == *m)) {
                    turns.push((at, Turn::Full(m, true)));
                    turns.push((at + for_ms, Turn::Full(m, false)));
                }
            }
        }
    }
    turns.sort_by_key(|turn| turn.0);
    turns
}

struct Entry {
    flow: usize,
    last: u32,
    is_closing: bool,
    is_readable: bool,
}

/// The current state of the cluster.
struct Cluster<'a> {
    scenario: &'a Scenario,
    there: Vec<bool>,
    hops: Vec<usize>,
    newest: usize,
    views: Vec<usize>,
    full: Vec<bool>,
    dead: Vec<bool>,
    tables: Vec<Vec<Entry>>,
}

impl<'a> Cluster<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let n = scenario.machines.len();
        let there: Vec<bool> = scenario.machines.iter().map(|machine| machine.is_there).collect();
        let mut new = Self {
            scenario,
            there,
            hops: Vec::new(),
            newest: 0,
            views: vec![0; n],
            full: vec![false; n],
            dead: vec![false; scenario.backends.len()],
            tables: (0..n).map(|_| Vec::new()).collect(),
        };
        new.route();
        new
    }

    fn route(&mut self) {
        let live: Vec<usize> = (0..self.there.len()).filter(|m| self.there[*m]).collect();
        let Router::Resilient { buckets } = self.scenario.router else {
            self.hops = live;
            return;
        };
        let buckets = buckets as usize;
        if live.is_empty() {
            self.hops.clear();
        } else if self.hops.is_empty() {
            self.hops = (0..buckets).map(|bucket| live[bucket % live.len()]).collect();
        } else {
            let has = |hops: &[usize], m: usize| hops.iter().filter(|hop| **hop == m).count();
            let mut most = live.clone();
            most.sort_by_key(|m| -(has(&self.hops, *m) as i64));
            let quota = |m: usize| {
                let place = most.iter().position(|one| *one == m).unwrap();
                buckets / live.len() + usize::from(place < buckets % live.len())
            };
            let old = std::mem::take(&mut self.hops);
            let mut new: Vec<Option<usize>> = vec![None; buckets];
            for bucket in 0..buckets {
                let held = new[..bucket].iter().filter(|hop| **hop == Some(old[bucket])).count();
                if live.contains(&old[bucket]) && held < quota(old[bucket]) {
                    new[bucket] = Some(old[bucket]);
                }
            }
            for bucket in 0..buckets {
                if new[bucket].is_none() {
                    let held = |m: usize| new.iter().filter(|hop| **hop == Some(m)).count();
                    new[bucket] = live.iter().copied().find(|m| held(*m) < quota(*m));
                }
            }
            self.hops = new.into_iter().map(Option::unwrap).collect();
        }
    }

    fn turn(&mut self, turn: Turn) {
        match turn {
            Turn::There(m, is_there) => {
                self.there[m] = is_there;
                if is_there {
                    self.views[m] = self.newest;
                    self.tables[m].clear();
                }
                self.route();
            }
            Turn::Dead(b, is_dead) => self.dead[b] = is_dead,
            Turn::Newest(version) => self.newest = version,
            Turn::View(m, version) => {
                let keys = [self.views[m], version].map(|version| self.scenario.versions[version].key);
                if keys[0] != keys[1] {
                    self.tables[m].iter_mut().for_each(|entry| entry.is_readable = false);
                }
                self.views[m] = version;
            }
            Turn::Full(m, is_full) => self.full[m] = is_full,
        }
    }

    fn machine(&self, flow: usize) -> Option<usize> {
        let hash = number(self.scenario.seed, 1, flow as u64) >> 32;
        (!self.hops.is_empty()).then(|| self.hops[(hash % self.hops.len() as u64) as usize])
    }
}

/// Returns the backend that the version selects for a flow. `owners` is the table of the version.
fn choice(scenario: &Scenario, version: usize, owners: &[usize], flow: usize) -> Option<usize> {
    let half =
        |from: usize| u64::from_be_bytes(scenario.versions[version].key[from..from + 8].try_into().unwrap());
    let salt = scatter(scatter(half(0)) ^ half(8));
    let hash = scatter(number(scenario.seed, 2, flow as u64) ^ salt);
    owners.get(((u128::from(hash) * owners.len() as u128) >> 64) as usize).copied()
}

/// Returns the backend of each slot.
fn owners(scenario: &Scenario, hashing: Hashing, version: usize) -> Vec<usize> {
    let Version { key, table_size, states } = &scenario.versions[version];
    let weights = states.iter().map(|state| match state {
        BackendState::Serving(weight) => *weight,
        _ => 0,
    });
    let mut serving: Vec<(usize, &str, u32)> = weights
        .enumerate()
        .filter(|(_, weight)| *weight > 0)
        .map(|(b, weight)| (b, scenario.backends[b].hash_name.as_str(), weight))
        .collect();
    if serving.is_empty() {
        return Vec::new();
    }
    let half = |from: usize| u64::from_be_bytes(key[from..from + 8].try_into().unwrap());
    let salt = scatter(scatter(half(0)) ^ half(8));
    let slots = (0..*table_size).map(|slot| scatter(u64::from(slot) + 1));
    match hashing {
        Hashing::Maglev => {
            serving.sort_by_key(|one| one.1);
            let given: Vec<maglev_hash::Backend<'_>> = serving
                .iter()
                .map(|(_, name, weight)| maglev_hash::Backend { name: name.as_bytes(), weight: *weight })
                .collect();
            let mut options = maglev_hash::Options::new(maglev_hash::Seed::new(*key));
            (options.size, options.allow_coarse) = (*table_size, true);
            maglev_hash::build(&given, &options)
                .unwrap()
                .iter()
                .map(|rank| serving[rank.index_by_name()].0)
                .collect()
        }
        Hashing::Ketama => {
            let servers: Vec<kv_switch::Server<'_>> = serving
                .iter()
                .map(|(_, ring_name, weight)| kv_switch::Server {
                    ring_name,
                    weight: *weight,
                    is_ejected: false,
                })
                .collect();
            let ring = kv_switch::Ring::build(&servers).unwrap();
            slots.map(|hash| serving[usize::from(ring.lookup(hash >> 32))].0).collect()
        }
        Hashing::Rendezvous => {
            let score = |slot: u64, name: &str, weight: u32| {
                let mut hash = salt;
                name.bytes().for_each(|byte| hash = scatter(hash ^ u64::from(byte)));
                -f64::from(weight) / fraction(scatter(hash ^ slot)).ln()
            };
            let owner = |slot: u64| {
                let scores = serving.iter().map(|(b, name, weight)| (score(slot, name, *weight), *b));
                scores.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap().1
            };
            slots.map(owner).collect()
        }
    }
}

/// The state of a flow.
struct State {
    backend: usize,
    before: Option<(u32, Option<usize>)>,
    has_ended: bool,
}

struct Slow {
    flows: u64,
    by_event: Vec<Counts>,
    broken_over_time: Vec<u64>,
    /// The balance over backends and the balance over machines, for each measurement.
    excess: Vec<[f64; 2]>,
}

/// Returns the balance over backends and the balance over machines at the time `now`.
fn excess(cluster: &Cluster<'_>, flows: &[(u32, u32)], states: &[State], now: u32) -> [f64; 2] {
    let scenario = cluster.scenario;
    let (mut backends, mut machines) = (vec![0.0; scenario.backends.len()], vec![0.0; cluster.there.len()]);
    for (flow, state) in states.iter().enumerate() {
        if flows[flow].0 < now && now <= flows[flow].1 && !state.has_ended {
            backends[state.backend] += 1.0;
            cluster.machine(flow).into_iter().for_each(|m| machines[m] += 1.0);
        }
    }
    let Some(first) = cluster.hops.first() else { return [0.0; 2] };
    let states = &scenario.versions[cluster.views[*first]].states;
    let weights: Vec<f64> = states
        .iter()
        .map(|state| if let BackendState::Serving(weight) = state { f64::from(*weight) } else { 0.0 })
        .collect();
    let there: Vec<f64> = (0..machines.len()).map(|m| f64::from(cluster.hops.contains(&m))).collect();
    let most = |loads: &[f64], wanted: &[f64]| {
        let fair: Vec<usize> = (0..loads.len()).filter(|n| wanted[*n] > 0.0).collect();
        let load: f64 = fair.iter().map(|n| loads[*n]).sum();
        let want: f64 = fair.iter().map(|n| wanted[*n]).sum();
        if load == 0.0 {
            return 0.0;
        }
        fair.iter().map(|n| loads[*n] / (wanted[*n] * load / want)).fold(0.0, f64::max)
    };
    [most(&backends, &weights), most(&machines, &there)]
}

fn simulate_slowly(scenario: &Scenario, hashing: Hashing, with_tables: bool) -> Slow {
    let flows = flows(scenario);
    let mut packets: Vec<(u32, usize)> = Vec::new();
    for (flow, (first, last)) in flows.iter().enumerate() {
        let times = (*first..=*last).step_by(scenario.traffic.packet_interval_ms as usize);
        packets.extend(times.filter(|at| *at < scenario.duration_ms).map(|at| (at, flow)));
    }
    packets.sort_unstable();
    let (turns, mut next, mut changed_at) = (turns(scenario), 0, 0);
    let mut cluster = Cluster::new(scenario);
    let mut states: Vec<State> =
        flows.iter().map(|_| State { backend: 0, before: None, has_ended: false }).collect();
    let mut slow = Slow {
        flows: flows.len() as u64,
        by_event: vec![Counts::default(); scenario.events.len() + 1],
        broken_over_time: vec![0; SPANS],
        excess: Vec::new(),
    };
    let owners: Vec<Vec<usize>> =
        (0..scenario.versions.len()).map(|version| owners(scenario, hashing, version)).collect();
    // The last element is not a packet. The last element represents the end of the scenario, so
    // that all earlier changes take effect.
    packets.push((scenario.duration_ms, usize::MAX));
    for (now, flow) in packets {
        while next < turns.len() && turns[next].0 <= now.min(scenario.duration_ms - 1) {
            let at = turns[next].0;
            let is_event = scenario.events.iter().any(|event| event.at_ms == at);
            if at != changed_at && is_event {
                slow.excess.push(excess(&cluster, &flows, &states, at));
            }
            cluster.turn(turns[next].1);
            (changed_at, next) = (at, next + 1);
        }
        if flow == usize::MAX {
            slow.excess.push(excess(&cluster, &flows, &states, now));
            break;
        }
        let event = scenario.events.iter().filter(|event| event.at_ms <= now).count();
        let counts = &mut slow.by_event[event];
        let state = &mut states[flow];
        if state.has_ended {
            continue;
        }
        let is_first = state.before.is_none();
        let machine = cluster.machine(flow);
        let moved = !is_first && state.before.unwrap().1 != machine;
        let asks = is_first || state.before.unwrap().0 < changed_at;
        state.before = Some((now, machine));
        if !is_first && cluster.dead[state.backend] {
            counts.lost += 1;
            state.has_ended = true;
            continue;
        }
        let Some(m) = machine else {
            if is_first {
                counts.unserved += 1;
                state.has_ended = true;
            }
            continue;
        };
        counts.moved += u64::from(moved);
        let chosen = choice(scenario, cluster.views[m], &owners[cluster.views[m]], flow);
        if is_first {
            match chosen {
                None => counts.unserved += 1,
                Some(b) if cluster.dead[b] => counts.lost += 1,
                Some(_) => {}
            }
            state.has_ended = chosen.is_none_or(|b| cluster.dead[b]);
            if state.has_ended {
                continue;
            }
            state.backend = chosen.unwrap();
        }
        let FlowTables { places, idle_ms, closing_ms } = scenario.flow_tables;
        let table = &mut cluster.tables[m];
        table.retain(|entry| now < entry.last + if entry.is_closing { closing_ms } else { idle_ms });
        let taken = table.len();
        let entry = table.iter_mut().find(|entry| entry.flow == flow && entry.is_readable);
        let is_gone = scenario.versions[cluster.views[m]].states[state.backend] == BackendState::Gone;
        let is_last = now == flows[flow].1;
        if chosen != Some(state.backend) && (entry.is_none() || is_gone) {
            counts.broken += 1;
            slow.broken_over_time[now as usize * SPANS / scenario.duration_ms as usize] += 1;
            state.has_ended = true;
            if let Some(entry) = entry {
                (entry.last, entry.is_closing) = (now, true);
            }
            continue;
        }
        if let Some(entry) = entry {
            (entry.last, entry.is_closing) = (now, is_last);
        } else if with_tables && asks {
            let is_room = !cluster.full[m] && places.is_none_or(|places| taken < places as usize);
            counts.untracked += u64::from(is_first && !is_room);
            if is_room {
                table.push(Entry { flow, last: now, is_closing: is_last, is_readable: true });
            }
        }
    }
    slow
}

fn change(machines: usize, backends: usize, versions: usize) -> impl Strategy<Value = Change> {
    prop_oneof![
        2 => (0..machines).prop_map(Change::Join),
        2 => (0..machines).prop_map(Change::Leave),
        1 => (0..backends).prop_map(Change::Die),
        1 => (0..backends).prop_map(Change::Revive),
        4 => (0..versions, 0..4_000_u32).prop_map(|(version, skew_ms)| Change::Adopt { version, skew_ms }),
        1 => (prop::option::of(0..machines), 0..6_000_u32)
            .prop_map(|(machine, for_ms)| Change::Full { machine, for_ms }),
    ]
}

fn version(backends: usize) -> impl Strategy<Value = Version> {
    let state = prop_oneof![
        5 => (0..4_u32).prop_map(BackendState::Serving),
        1 => Just(BackendState::Draining),
        1 => Just(BackendState::Gone),
    ];
    let key = prop_oneof![4 => Just([7; 16]), 1 => Just([8; 16])];
    let size = prop_oneof![4 => Just(101), 1 => Just(211)];
    (key, size, prop::collection::vec(state, backends)).prop_map(|(key, table_size, states)| Version {
        key,
        table_size,
        states,
    })
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let sizes = (1..6_usize, 1..6_usize, 1..5_usize);
    sizes.prop_flat_map(|(machines, backends, versions)| {
        let traffic = (1..80_u32, 0..8_u32, 1..20_000_u32, any::<bool>(), 300..2_500_u32).prop_map(
            |(flows, arrivals, lifetime_ms, is_fixed, packet_interval_ms)| Traffic {
                flows,
                arrivals: f64::from(arrivals),
                lifetime_ms,
                lifetimes: if is_fixed { Lifetimes::Fixed } else { Lifetimes::Exponential },
                packet_interval_ms,
            },
        );
        let tables = (prop::option::of(1..30_u32), 2_500..9_000_u32, 0..4_000_u32)
            .prop_map(|(places, idle_ms, closing_ms)| FlowTables { places, idle_ms, closing_ms });
        let events = prop::collection::vec((0..20_000_u32, change(machines, backends, versions)), 0..12);
        let there = prop::collection::vec(prop::bool::weighted(0.8), machines);
        let versions = prop::collection::vec(version(backends), versions);
        let router =
            prop_oneof![Just(Router::Plain), (6..40_u32).prop_map(|buckets| Router::Resilient { buckets })];
        (any::<u64>(), traffic, router, tables, there, versions, events).prop_map(
            move |(seed, traffic, router, flow_tables, there, versions, mut events)| {
                events.sort_by_key(|event| event.0);
                let machine = |(n, is_there)| Machine { name: format!("m{n}"), is_there };
                let backend = |n| Backend { name: format!("b{n}"), hash_name: format!("b{n}") };
                let event = |(at_ms, change)| Event { at_ms, label: String::new(), change };
                Scenario {
                    label: String::new(),
                    seed,
                    duration_ms: 20_000,
                    traffic,
                    router,
                    flow_tables,
                    machines: there.into_iter().enumerate().map(machine).collect(),
                    backends: (0..backends).map(backend).collect(),
                    versions,
                    events: events.into_iter().map(event).collect(),
                }
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn run_matches_the_packet_by_packet_reference(scenario in scenario(), with_tables in prop::bool::weighted(0.8), way in 0..3_usize) {
        let hashing = Hashing::ALL[way];
        let fast = simulate::run(&scenario, hashing, with_tables).unwrap();
        let slow = simulate_slowly(&scenario, hashing, with_tables);
        prop_assert_eq!(fast.flows, slow.flows);
        prop_assert_eq!(&fast.by_event, &slow.by_event);
        prop_assert_eq!(&fast.broken_over_time, &slow.broken_over_time);
        for (balance, way) in [(fast.backends, 0), (fast.machines, 1)] {
            let taken: Vec<f64> = slow.excess.iter().map(|both| both[way]).filter(|most| *most > 0.0).collect();
            let (start, worst) = (taken.first().copied().unwrap_or(0.0), taken.iter().copied().fold(0.0, f64::max));
            let off = (balance.at_start - start).abs() + (balance.worst - worst).abs();
            prop_assert!(off < 1e-9, "{balance:?}: {start} {worst}");
        }
        // The same seed produces the same result.
        prop_assert_eq!(simulate::run(&scenario, hashing, with_tables).unwrap(), fast);
    }
}

/// A flow moves to another machine and returns before its entry expires. If the entry had been
/// released too early, another flow would have taken it.
#[test]
fn returning_flow_keeps_its_flow_table_entry() {
    let event = |at_ms, change| Event { at_ms, label: String::new(), change };
    let scenario = Scenario {
        label: String::new(),
        seed: 3,
        duration_ms: 30_000,
        traffic: Traffic {
            flows: 90,
            arrivals: 3.0,
            lifetime_ms: 60_000,
            lifetimes: Lifetimes::Exponential,
            packet_interval_ms: 1_000,
        },
        router: Router::Plain,
        flow_tables: FlowTables { places: Some(40), idle_ms: 9_000, closing_ms: 1_000 },
        machines: (0..3).map(|n| Machine { name: format!("m{n}"), is_there: true }).collect(),
        backends: vec![Backend { name: "b".into(), hash_name: "b".into() }],
        versions: vec![Version { key: [7; 16], table_size: 101, states: vec![BackendState::Serving(1)] }],
        events: vec![event(5_000, Change::Leave(2)), event(8_000, Change::Join(2))],
    };
    let fast = simulate::run(&scenario, Hashing::Maglev, true).unwrap();
    assert_eq!(fast.by_event, simulate_slowly(&scenario, Hashing::Maglev, true).by_event);
    assert!(fast.by_event[2].moved > 0 && fast.by_event[2].untracked > 0, "{fast:?}");
}
