//! Tests of the controller: how health states, overrides, fallbacks, slow start and reloads change
//! the snapshot for packet threads.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a failed unwrap fails the test")]

#[path = "controller/leaving.rs"]
mod leaving;
#[path = "controller/on_drain.rs"]
mod on_drain;
#[path = "controller/rejoin.rs"]
mod rejoin;
#[path = "controller/vips.rs"]
mod vips;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use compile::{Mode, Override, OverrideKey, PoolView};
use config::{Config, parse};
use control_plane::{Controller, Running, Side, changes};
use forwarder::{Decision, Flow, SlotState, Snapshot};
use health::{Advice, HealthState, TargetKey};
use maglev_hash::disruption;
use next_hop::Table;

const HEAD: &str = r#"
[cluster]
name = "test"
hash_key_file = "hash.key"
[machine.lb1]
addresses = ["192.0.2.1", "2001:db8::1"]
interfaces = ["eth0"]
[check.tcp]
tcp = { port = 80 }
[check.vip]
tcp = { port = 80 }
via = "vip"
"#;

fn config(rest: &str) -> Arc<Config> {
    parse_config(&format!("{HEAD}{rest}"))
}

fn parse_config(text: &str) -> Arc<Config> {
    let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
    match parse(text, Path::new("test.toml"), &secret) {
        Ok((config, _)) => Arc::new(config),
        Err(problems) => panic!("{problems}"),
    }
}

fn pool(name: &str, net: u8, backends: u8, more: &str) -> String {
    let backends: Vec<String> = (1..=backends)
        .map(|n| format!("{{ name = \"{name}-{n}\", address = \"198.18.{net}.{n}\" }}"))
        .collect();
    format!("[pool.{name}]\n{more}\nbackends = [{}]\n", backends.join(", "))
}

fn vip(name: &str, host: u8, pool: &str) -> String {
    format!(
        "[vip.{name}]\naddresses = [\"203.0.113.{host}\"]\nservices = [{{ ports = [80], protocol = \"tcp\", pool = \"{pool}\" }}]\n"
    )
}

struct Bed {
    controller: Controller,
    live: Snapshot,
}

impl Bed {
    fn new(config: Arc<Config>) -> Self {
        let (controller, live) = Controller::start(config, "lb1", Arc::default(), Duration::ZERO).unwrap();
        Self { controller, live }
    }

    /// Returns the health check targets of all backends whose name starts with `backend`.
    fn targets(&self, backend: &str) -> Vec<TargetKey> {
        let watched = self.controller.watched();
        watched.into_iter().filter(|w| w.backend.starts_with(backend)).map(|w| w.key).collect()
    }

    fn say(&mut self, backend: &str, state: HealthState, now: u64) {
        let changed: Vec<_> = self.targets(backend).into_iter().map(|key| (key, state)).collect();
        assert!(!changed.is_empty(), "{backend}");
        let now = Duration::from_secs(now);
        if let Some(next) = self.controller.health_states(&changed, &self.live, now).unwrap() {
            self.live = next;
        }
    }

    fn order(&mut self, backend: &str, pool: Option<&str>, says: Option<Override>) {
        let key = OverrideKey { backend: Arc::from(backend), pool: pool.map(Arc::from) };
        if let Some(next) = self
            .controller
            .override_backends(vec![(key, says.unwrap_or_default())], &self.live, Duration::ZERO)
            .unwrap()
        {
            self.live = next;
        }
    }

    fn advise(&mut self, backend: &str, drains: bool, tenths: u8) {
        let advice = Advice { drains, tenths };
        let advised: Vec<_> = self.targets(backend).into_iter().map(|key| (key, advice)).collect();
        if let Some(next) = self.controller.advise(&advised, &self.live, Duration::ZERO).unwrap() {
            self.live = next;
        }
    }

    fn tick(&mut self, now: u64) {
        if let Some(next) = self.controller.tick(&self.live, Duration::from_secs(now)).unwrap() {
            self.live = next;
        }
    }

    /// Rebuilds the tables if necessary. Returns `true` if a job ran.
    fn settle(&mut self, now: u64) -> bool {
        let wanted = self.controller.wants_job();
        if wanted {
            self.job(None, now);
        }
        wanted
    }

    fn job(&mut self, config: Option<Arc<Config>>, now: u64) {
        let now = Duration::from_secs(now);
        let job = self.controller.job(config, Arc::new(Table::default()), self.live.states().to_vec(), now);
        self.live = self.controller.finish(job.unwrap().run(), now).unwrap();
    }

    fn state(&self, backend: &str) -> SlotState {
        let found =
            self.controller.index().memberships().iter().find(|m| &*m.key.backend == backend).unwrap();
        self.live.state(found.slot)
    }

    /// Counts how many of 2,000 new flows to a VIP each backend receives.
    fn spread(&self, host: u8) -> BTreeMap<String, usize> {
        let mut spread = BTreeMap::new();
        for port in 0..2_000 {
            let flow = Flow::new(([198, 51, 100, 7], port), ([203, 0, 113, host], 80), 6).unwrap();
            if let Decision::Chosen { selection, .. } = self.live.decide(&flow) {
                let backend = self.live.slots()[selection.slot.0 as usize].backend.to_string();
                *spread.entry(backend).or_insert(0) += 1;
            }
        }
        spread
    }

    fn served(&self, host: u8) -> Vec<String> {
        self.spread(host).into_keys().collect()
    }
}

/// A VIP does not reject packets while a backend may serve soon: before its first check results,
/// and until the tables contain it.
#[test]
fn packets_are_rejected_only_when_no_backend_can_serve() {
    let vip = |pool| vip("www", 10, pool).replace("services", "on_no_backend = \"reject\"\nservices");
    let spare = pool("spare", 2, 1, "checks = [\"tcp\"]");
    let text =
        pool("web", 1, 2, "checks = [\"tcp\"]\nfallback = { pool = \"spare\" }") + &spare + &vip("web");
    let mut bed = Bed::new(config(&text));
    let rejects = |bed: &Bed| bed.live.services()[0].rejects.no_backend;
    assert!(!rejects(&bed), "no backend has check results");
    bed.say("web-1", HealthState::Down, 1);
    bed.say("web-2", HealthState::Down, 1);
    assert!(!rejects(&bed), "the fallback has no check results");
    bed.say("spare", HealthState::Down, 1);
    assert!(rejects(&bed), "all backends are down");
    bed.settle(1);
    assert!(rejects(&bed) && bed.served(10).is_empty());
    bed.say("web-2", HealthState::Up, 2);
    assert!(!rejects(&bed) && bed.served(10).is_empty(), "the tables do not contain the backend yet");
    bed.settle(2);
    assert_eq!(bed.served(10), ["web-2"]);
    bed.say("web-2", HealthState::Down, 3);
    assert!(rejects(&bed));
    bed.settle(3);
    let new = pool("new", 3, 1, "checks = [\"tcp\"]") + &vip("new");
    bed.job(Some(config(&new)), 4);
    assert!(!rejects(&bed), "a reload has replaced the pool");
    bed.order("new-1", None, Some(Override { mode: Some(Mode::Down), weight: None }));
    assert!(rejects(&bed), "an operator has taken the backend down");
}

#[test]
fn backend_serves_after_first_result_and_leaves_when_down() {
    let text = pool("web", 1, 3, "checks = [\"tcp\"]") + &vip("www", 10, "web");
    let mut bed = Bed::new(config(&text));
    assert_eq!((bed.controller.unknown(), bed.served(10).len()), (3, 0));
    bed.say("web", HealthState::Up, 1);
    assert_eq!(bed.controller.unknown(), 0);
    assert!(bed.settle(1), "the tables are rebuilt");
    assert_eq!(bed.served(10), ["web-1", "web-2", "web-3"]);
    bed.say("web-2", HealthState::Down, 2);
    assert_eq!((bed.state("web-2"), bed.served(10)), (SlotState::Down, vec!["web-1".into(), "web-3".into()]));
    let before = bed.live.services()[0].pool.table.clone().unwrap();
    assert!(bed.settle(2) && !bed.settle(2));
    let after = bed.live.services()[0].pool.table.clone().unwrap();
    assert_eq!(disruption(&before, &after).unwrap().backend_gone, before.shares().nth(1).unwrap().1);
    bed.say("web-2", HealthState::Up, 3);
    assert_eq!(bed.served(10), ["web-1", "web-3"], "web-2 serves after its table is rebuilt");
    assert!(bed.settle(3));
    assert_eq!(bed.served(10).len(), 3);
}

#[test]
fn health_state_during_a_job_is_not_lost() {
    let text = pool("web", 1, 3, "checks = [\"tcp\"]") + &vip("www", 10, "web");
    let mut bed = Bed::new(config(&text));
    bed.say("web", HealthState::Up, 1);
    let states = bed.live.states().to_vec();
    let job = bed.controller.job(None, Arc::default(), states, Duration::from_secs(1)).unwrap();
    let done = job.run();
    bed.say("web-1", HealthState::Down, 2);
    assert_eq!(bed.state("web-1"), SlotState::Down);
    assert!(!bed.controller.wants_job(), "a job is running");
    bed.live = bed.controller.finish(done, Duration::from_secs(3)).unwrap();
    assert_eq!(bed.state("web-1"), SlotState::Down);
    assert_eq!(bed.served(10), ["web-2", "web-3"]);
    assert!(bed.settle(3), "the tables of the job still contain web-1");
}

#[test]
fn pools_share_targets_but_tunnels_and_vips_do_not() {
    let text = format!(
        "{}[pool.a]\nchecks = [\"tcp\"]\npools = [{{ pool = \"leaf\" }}]\n[pool.b]\nchecks = [\"tcp\", \"vip\"]\npools = [{{ pool = \"leaf\" }}]\n{}{}",
        pool("leaf", 1, 2, ""),
        vip("one", 10, "a"),
        vip("two", 11, "b")
    );
    let bed = Bed::new(config(&text));
    let watched = bed.controller.watched();
    let direct = watched.iter().filter(|w| w.key.through.is_none()).count();
    let vips: HashSet<_> =
        watched.iter().filter_map(|w| Some((w.key.through.as_ref()?.vip, w.key.address))).collect();
    // A leaf pool inherits the checks of all pools that contain it. The backends of the leaf pool
    // are therefore checked through the addresses of both VIPs.
    assert_eq!((direct, vips.len(), watched.len()), (2, 4, 6));
    assert!(watched.iter().all(|w| w.slot.is_some() == w.key.through.is_some()));
}

#[test]
fn backend_is_up_if_all_checks_pass() {
    let text = pool("web", 1, 1, "checks = [\"tcp\", \"vip\"]") + &vip("www", 10, "web");
    let mut bed = Bed::new(config(&text));
    let targets = bed.targets("web-1");
    let one = |bed: &mut Bed, at: usize, state| {
        let next =
            bed.controller.health_states(&[(targets[at].clone(), state)], &bed.live, Duration::ZERO).unwrap();
        if let Some(next) = next {
            bed.live = next;
        }
        bed.state("web-1")
    };
    assert_eq!(one(&mut bed, 0, HealthState::Up), SlotState::Down, "the other check has no result");
    assert_eq!(one(&mut bed, 1, HealthState::Up), SlotState::Serving);
    assert_eq!(one(&mut bed, 0, HealthState::Down), SlotState::Down);
    assert_eq!(one(&mut bed, 0, HealthState::Up), SlotState::Serving);
}

#[test]
fn fallback_serves_immediately_and_ends_after_hold() {
    let text =
        pool("web", 1, 3, "checks = [\"tcp\"]\nfallback = { pool = \"spare\", below = 2, hold = \"30s\" }")
            + &pool("spare", 2, 1, "checks = [\"tcp\"]")
            + &vip("www", 10, "web");
    let mut bed = Bed::new(config(&text));
    bed.say("spare", HealthState::Up, 1);
    bed.settle(1);
    assert_eq!(bed.served(10), [""; 0], "the state of web is unknown");
    bed.say("web", HealthState::Up, 2);
    bed.settle(2);
    assert_eq!(bed.served(10).len(), 3, "no hold time at the start");
    bed.say("web-1", HealthState::Down, 3);
    assert_eq!(bed.served(10), ["web-2", "web-3"]);
    bed.say("web-2", HealthState::Down, 4);
    assert_eq!(bed.served(10), ["spare-1"], "before a table is rebuilt");
    bed.settle(4);
    assert_eq!(bed.served(10), ["spare-1"]);
    bed.say("web-2", HealthState::Up, 10);
    bed.settle(10);
    bed.tick(39);
    assert_eq!(bed.served(10), ["spare-1"]);
    bed.tick(40);
    assert_eq!(bed.served(10), ["web-2", "web-3"]);
    bed.say("web", HealthState::Down, 50);
    bed.say("spare", HealthState::Down, 51);
    assert_eq!(bed.served(10), [""; 0]);
    bed.say("web-3", HealthState::Up, 52);
    bed.settle(52);
    assert_eq!(bed.served(10), ["web-3"], "one serving backend is preferred to an empty fallback");
}

#[test]
fn slow_start_increases_the_share_in_quarters() {
    let text = pool("web", 1, 4, "checks = [\"tcp\"]\nslow_start = \"40s\"") + &vip("www", 10, "web");
    let mut bed = Bed::new(config(&text));
    bed.say("web", HealthState::Up, 0);
    bed.settle(0);
    let whole = bed.live.services()[0].pool.table.clone().unwrap();
    assert_eq!(bed.served(10).len(), 4, "no slow start at the start of the process");
    bed.say("web-1", HealthState::Down, 1);
    bed.settle(1);
    bed.say("web-1", HealthState::Up, 100);
    let mut tables = vec![bed.live.services()[0].pool.table.clone().unwrap()];
    for now in [100, 110, 120, 130, 140] {
        bed.tick(now);
        if bed.settle(now) {
            tables.push(bed.live.services()[0].pool.table.clone().unwrap());
        }
    }
    let size = tables[0].size();
    let shares: Vec<u32> = tables.iter().map(|table| table.shares().next().unwrap().1).collect();
    let quarter = |quarters: u32| size * quarters / (12 + quarters);
    assert_eq!(shares.len(), 5, "{shares:?}");
    for (share, quarters) in shares.iter().zip(0..) {
        assert!(share.abs_diff(quarter(quarters)) <= 1, "{shares:?}");
    }
    for pair in tables.windows(2) {
        let moved = disruption(&pair[0], &pair[1]).unwrap();
        assert!(moved.moved_needlessly < size / 20, "{moved:?}");
    }
    assert_eq!(disruption(&whole, &tables[4]).unwrap().changed(), 0, "the final table equals the first one");
}

/// A drain pauses slow start. It does not end it, whether an agent or an operator requests it.
#[test]
fn drain_pauses_slow_start() {
    let text = pool("web", 1, 4, "checks = [\"tcp\"]\nslow_start = \"40s\"") + &vip("www", 10, "web");
    for by_agent in [true, false] {
        let mut bed = Bed::new(config(&text));
        bed.say("web", HealthState::Up, 0);
        bed.settle(0);
        bed.say("web-1", HealthState::Down, 1);
        bed.say("web-1", HealthState::Up, 100);
        let drain = |bed: &mut Bed, drains| match by_agent {
            true => bed.advise("web-1", drains, 10),
            false => {
                let drain = Override { mode: Some(Mode::Drain), weight: None };
                bed.order("web-1", None, drains.then_some(drain));
            }
        };
        let quarters = |bed: &mut Bed, now| {
            bed.tick(now);
            bed.controller.runtime_state().quarters.values().copied().collect::<Vec<_>>()
        };
        assert_eq!(quarters(&mut bed, 111), [1]);
        drain(&mut bed, true);
        assert_eq!(quarters(&mut bed, 150), [1]);
        drain(&mut bed, false);
        assert_eq!((quarters(&mut bed, 158), quarters(&mut bed, 160)), (vec![1], vec![2]));
        assert_eq!((quarters(&mut bed, 178), quarters(&mut bed, 179)), (vec![3], vec![]));
        drain(&mut bed, true);
        bed.say("web-1", HealthState::Down, 200);
        bed.say("web-1", HealthState::Up, 201);
        bed.say("web-1", HealthState::Down, 202);
        assert_eq!(quarters(&mut bed, 203), [0; 0]);
    }
}

#[test]
fn advice_of_agents_changes_weights_and_drains() {
    let text = pool("web", 1, 4, "checks = [\"tcp\"]") + &vip("www", 10, "web");
    let mut bed = Bed::new(config(&text));
    bed.say("web", HealthState::Up, 0);
    bed.settle(0);
    let share = |bed: &Bed| {
        let table = bed.live.services()[0].pool.table.clone().unwrap();
        table.shares().next().unwrap().1 * 100 / table.size()
    };
    assert_eq!(share(&bed), 25);
    bed.advise("web-1", false, 5);
    assert!(bed.settle(1), "the weight has changed");
    assert_eq!(share(&bed), 14, "5 of 35 tenths");
    bed.advise("web-1", false, 5);
    assert!(!bed.settle(2), "the same advice rebuilds nothing");
    bed.advise("web-1", true, 5);
    assert_eq!(bed.state("web-1"), SlotState::Draining);
    bed.settle(3);
    assert_eq!(bed.served(10), ["web-2", "web-3", "web-4"]);
    bed.job(Some(config(&(text + &pool("more", 2, 1, "")))), 4);
    assert_eq!(bed.state("web-1"), SlotState::Draining, "advice survives a reload");
    bed.advise("web-1", false, 20);
    bed.settle(5);
    assert_eq!((bed.state("web-1"), share(&bed)), (SlotState::Serving, 40), "20 of 50 tenths");
    bed.job(Some(config(&(pool("web", 1, 4, "") + &vip("www", 10, "web")))), 6);
    bed.settle(6);
    assert_eq!(share(&bed), 25, "without the check, the configured weight applies");
}

#[test]
fn override_precedes_health_except_down_and_survives_reload() {
    let text = pool("web", 1, 3, "checks = [\"tcp\"]") + &vip("www", 10, "web");
    let mut bed = Bed::new(config(&text));
    bed.say("web", HealthState::Up, 0);
    bed.settle(0);
    bed.order("web-1", None, Some(Override { mode: Some(Mode::Drain), weight: None }));
    assert_eq!(bed.state("web-1"), SlotState::Draining);
    bed.settle(0);
    assert_eq!(bed.served(10), ["web-2", "web-3"]);
    bed.say("web-1", HealthState::Down, 1);
    assert_eq!(bed.state("web-1"), SlotState::Down, "a failed backend has lost its flows");
    bed.say("web-1", HealthState::Up, 2);
    bed.job(Some(config(&(text.clone() + &pool("more", 2, 1, "")))), 3);
    assert_eq!((bed.state("web-1"), bed.served(10).len()), (SlotState::Draining, 2));
    bed.order("web-1", None, None);
    bed.order("web-2", Some("web"), Some(Override { mode: None, weight: Some(6) }));
    bed.settle(4);
    let services = bed.live.services();
    let table = services[0].pool.table.as_ref().unwrap();
    let shares: Vec<u32> = table.shares().map(|(_, slots)| slots).collect();
    assert!(shares[1].abs_diff(65_537 * 6 / 8) <= 1, "{shares:?}");
}

// Promise: reload-atomic
#[test]
fn rejected_configuration_keeps_pending_table_jobs() {
    let text = pool("web", 1, 2, "") + &vip("www", 10, "web");
    let mut bed = Bed::new(config(&text));
    bed.order("web-1", None, Some(Override { mode: Some(Mode::Drain), weight: None }));
    assert!(bed.controller.wants_job());
    let elsewhere = parse_config(&format!("{HEAD}{text}").replace("lb1", "lb2"));
    let now = Duration::ZERO;
    let states = bed.live.states().to_vec();
    let job = bed.controller.job(Some(elsewhere), Arc::default(), states, now).unwrap();
    assert!(!bed.controller.wants_job(), "a job is running");
    let generation = bed.controller.generation();
    assert!(bed.controller.finish(job.run(), now).is_err());
    assert_eq!(bed.controller.generation(), generation, "the old generation stays active");
    assert!(bed.settle(0), "the tables of the drained backend must still be rebuilt");
    let weights = bed.controller.index().pool(&PoolView::of_all(&"web".into())).unwrap().weights.to_vec();
    assert_eq!(weights, [0, 1]);
    assert!(!bed.controller.wants_job());
}

#[test]
fn weight_override_replaces_the_weight_in_the_leaf_pool() {
    // The backend web-1 has weight 3 in its leaf pool. The outer pool multiplies this weight by 2.
    let web = "[pool.web]\nbackends = [{ name = \"web-1\", address = \"198.18.1.1\", weight = 3 }]\n";
    let all = "[pool.all]\npools = [{ pool = \"web\", weight = 2 }]\n\
               backends = [{ name = \"other\", address = \"198.18.1.9\", weight = 10 }]\n";
    let mut bed =
        Bed::new(config(&(format!("{web}{all}") + &vip("www", 10, "all") + &vip("own", 11, "web"))));
    let weights = |bed: &Bed, pool: &str| {
        bed.controller.index().pool(&PoolView::of_all(&pool.into())).unwrap().weights.to_vec()
    };
    assert_eq!((weights(&bed, "all"), weights(&bed, "web")), (vec![10, 6], vec![3]));
    bed.order("web-1", None, Some(Override { mode: None, weight: Some(5) }));
    bed.settle(0);
    assert_eq!((weights(&bed, "all"), weights(&bed, "web")), (vec![10, 10], vec![5]));
}

#[test]
fn drain_override_does_not_end_but_removal_drain_does() {
    let text = |backends| pool("web", 1, backends, "") + &vip("www", 10, "web");
    let mut bed = Bed::new(config(&text(3)));
    bed.order("web-1", None, Some(Override { mode: Some(Mode::Drain), weight: None }));
    bed.settle(0);
    let gone = bed.live.slots().iter().position(|slot| &*slot.backend == "web-3").unwrap();
    bed.job(Some(config(&text(2))), 1);
    let states = |bed: &mut Bed, now| {
        bed.tick(now);
        (bed.state("web-1"), bed.live.states()[gone])
    };
    // The default drain time is 60 s.
    assert_eq!(states(&mut bed, 60), (SlotState::Draining, SlotState::Draining));
    assert_eq!(states(&mut bed, 61), (SlotState::Draining, SlotState::Free));
    assert_eq!(states(&mut bed, 100 * 3_600), (SlotState::Draining, SlotState::Free));
    bed.order("web-1", None, None);
    assert_eq!(bed.state("web-1"), SlotState::Serving);
}

#[test]
fn added_check_keeps_backends_serving_until_its_result() {
    let plain = pool("web", 1, 2, "") + &vip("www", 10, "web");
    let mut bed = Bed::new(config(&plain));
    assert_eq!(bed.served(10).len(), 2);
    let checked = pool("web", 1, 3, "checks = [\"tcp\"]") + &vip("www", 10, "web");
    bed.job(Some(config(&checked)), 1);
    assert_eq!(bed.served(10), ["web-1", "web-2"], "web-3 is unknown, the others continue");
    bed.say("web-1", HealthState::Down, 2);
    bed.say("web-3", HealthState::Up, 2);
    bed.settle(2);
    assert_eq!(bed.served(10), ["web-2", "web-3"]);
    bed.job(Some(config(&plain)), 3);
    assert_eq!(bed.served(10), ["web-1", "web-2"], "a backend without checks is up");
}

#[test]
fn health_state_is_applied_quickly_with_1000_pools() {
    let mut text = String::new();
    for n in 0..1_000 {
        text += &format!("[pool.p{n}]\nchecks = [\"tcp\"]\npools = [{{ pool = \"leaf{}\" }}]\n", n % 10);
        text += &format!(
            "[vip.v{n}]\naddresses = [\"203.0.113.{}\"]\nservices = [{{ ports = [{}], protocol = \"tcp\", pool = \"p{n}\" }}]\n",
            n % 250,
            1000 + n
        );
    }
    for n in 0..10 {
        text += &pool(&format!("leaf{n}"), n, 100, "");
    }
    let mut bed = Bed::new(config(&text));
    bed.say("leaf", HealthState::Up, 0);
    bed.settle(0);
    let target = bed.targets("leaf3-77").remove(0);
    let started = Instant::now();
    let next = bed
        .controller
        .health_states(&[(target, HealthState::Down)], &bed.live, Duration::ZERO)
        .unwrap()
        .unwrap();
    let took = started.elapsed();
    bed.live = next;
    println!("health state change with 1,000 pools of 100 backends: {took:?}");
    assert_eq!(bed.state("leaf3-77"), SlotState::Down);
}

#[test]
fn changes_are_reported_with_moved_slots() {
    let before = config(
        &(pool("web", 1, 3, "checks = [\"tcp\"]")
            + &pool("old", 2, 1, "")
            + &vip("www", 10, "web")
            + &vip("x", 11, "old")),
    );
    let after = config(
        &(pool("web", 1, 2, "slow_start = \"9s\"")
            + &pool("new", 3, 1, "")
            + &vip("www", 10, "web")
            + &vip("x", 11, "new")),
    );
    let (one, other) = (Bed::new(Arc::clone(&before)), Bed::new(Arc::clone(&after)));
    let [old, new] = [(&before, &one), (&after, &other)]
        .map(|(config, bed)| Side { config, index: bed.controller.index() });
    // Backends with an unknown health state have no table entries, so no table change is reported.
    let said = changes(&Running::of(&before, "lb1"), old, new, "lb1").sentences;
    let has =
        |words: &str| assert!(said.iter().any(|sentence| sentence.contains(words)), "{words}: {said:#?}");
    has("service x tcp 80: pool old -> new");
    has("pool old: removed");
    has("pool new: added, with 1 backend");
    has("pool web: backend web-3 removed");
    has("pool web: checks tcp -> none for backends web-1, web-2");
    has("pool web: slow_start: off -> 9s");
    assert_eq!(changes(&Running::of(&before, "lb1"), old, old, "lb1"), Default::default());
}

#[test]
fn changed_lists_and_limits_are_reported_by_count() {
    let with = |keys: &str| config(&(pool("web", 1, 1, "") + &vip("www", 10, "web") + keys + "\n"));
    let said = |from: &str, to: &str| {
        let (before, after) = (with(from), with(to));
        let (one, other) = (Bed::new(Arc::clone(&before)), Bed::new(Arc::clone(&after)));
        let [old, new] = [(&before, &one), (&after, &other)]
            .map(|(config, bed)| Side { config, index: bed.controller.index() });
        changes(&Running::of(old.config, "lb1"), old, new, "lb1").sentences
    };
    let three = "deny = [\"198.51.100.7\", \"198.51.100.8\", \"198.51.100.9\"]";
    let four = "deny = [\"198.51.100.7\", \"198.51.100.8\", \"198.51.100.9\", \"2001:db8::/32\"]";
    assert_eq!(said(three, four), ["vip www: deny list: 3 prefixes -> 4 prefixes"]);
    assert_eq!(said("", "allow = [\"192.0.2.1\"]"), ["vip www: allow list: none -> 1 prefix"]);
    assert_eq!(
        said("allow = [\"192.0.2.1\"]", "allow = [\"192.0.2.2\"]"),
        ["vip www: allow list: 1 prefix, content changed"]
    );
    assert_eq!(
        said(three, &format!("{three}\nlimits = {{ new_flows_per_second = 10 }}")),
        ["vip www: limits: none -> 10 new flows/s"]
    );
    assert_eq!(said(three, three), [""; 0]);
}
