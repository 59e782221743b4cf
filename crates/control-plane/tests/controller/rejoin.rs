//! Tests that the server of a keyed pool is flushed when necessary, and that it does not serve
//! before the flush.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use health::Flushed;
use proptest::prelude::*;

use super::*;

const KEYED: &str = "checks = [\"tcp\"]\nkv = { protocol = \"memcached\", clients = [\"198.51.100.0/24\"], \
                     routes = [{ prefix = \"log:\", pool = \"logs\" }] }";

fn by_key(host: u8, pool: &str) -> String {
    format!(
        "[vip.{pool}]\naddresses = [\"203.0.113.{host}\"]\nservices = [\
         {{ ports = [11211, \"11300-11301\"], protocol = \"udp\", pool = \"{pool}\" }}, \
         {{ ports = [11211], protocol = \"tcp\", pool = \"{pool}\", tcp = \"by-flow\" }}]\n"
    )
}

/// Creates a pool `users` with the given number of servers, and a pool `logs` with one server that
/// receives some of the keys of `users`.
fn text(users: u8) -> String {
    pool("users", 1, users, KEYED) + &pool("logs", 2, 1, "checks = [\"tcp\"]") + &by_key(10, "users")
}

impl Bed {
    /// Returns the addresses of the servers that must be flushed.
    fn flushes(&self) -> BTreeSet<String> {
        self.controller.flushes().iter().map(|flush| flush.server.to_string()).collect()
    }

    fn flushed(&mut self, numbers: impl IntoIterator<Item = u64>, result: Result<(), &str>) {
        let outcome = |number| Flushed { number, result: result.map_err(str::to_owned) };
        let outcomes: Vec<_> = numbers.into_iter().map(outcome).collect();
        if let Some(next) = self.controller.flushed(&outcomes, &self.live, Duration::ZERO).unwrap() {
            self.live = next;
        }
    }

    fn empty_all(&mut self) {
        let numbers: Vec<u64> = self.controller.flushes().iter().map(|flush| flush.number).collect();
        self.flushed(numbers, Ok(()));
    }
}

fn started(text: &str) -> Bed {
    let mut bed = Bed::new(config(text));
    for backend in ["users", "logs"] {
        bed.say(backend, HealthState::Up, 1);
    }
    bed.settle(1);
    bed
}

#[test]
fn returning_server_serves_after_flush_of_each_port() {
    let mut bed = started(&text(2));
    assert_eq!(bed.flushes(), BTreeSet::new(), "no flush after the first result");
    for (backend, net) in [("users-1", "198.18.1.1"), ("logs-1", "198.18.2.1")] {
        bed.say(backend, HealthState::Down, 2);
        assert_eq!((bed.state(backend), bed.flushes()), (SlotState::Down, BTreeSet::new()));
        bed.say(backend, HealthState::Up, 3);
        let ports = [11_211, 11_300, 11_301].map(|port| format!("{net}:{port}"));
        assert_eq!((bed.state(backend), bed.flushes()), (SlotState::Draining, ports.into()));
        let numbers: Vec<u64> = bed.controller.flushes().iter().map(|flush| flush.number).collect();
        bed.flushed(numbers[..2].iter().copied(), Ok(()));
        bed.flushed([numbers[2]], Err("connection refused"));
        assert_eq!(bed.state(backend), SlotState::Draining);
        let (_, flushing) = bed.controller.flushed_for(numbers[2]).unwrap();
        assert_eq!(flushing.last_error.as_deref(), Some("connection refused"));
        bed.flushed([numbers[2]], Ok(()));
        assert_eq!((bed.state(backend), bed.flushes()), (SlotState::Serving, BTreeSet::new()));
        assert!(bed.settle(3), "the tables are rebuilt");
    }
    // The first result of the server was `Down`, so other servers have received its keys.
    let mut bed = Bed::new(config(&text(2)));
    bed.say("users-1", HealthState::Down, 1);
    bed.say("users-2", HealthState::Up, 1);
    bed.say("users-1", HealthState::Up, 2);
    assert_eq!((bed.state("users-1"), bed.flushes().len()), (SlotState::Draining, 3));
}

#[test]
fn reload_flushes_added_and_returning_servers_only() {
    let mut bed = started(&text(2));
    bed.job(Some(config(&text(3))), 2);
    bed.say("users-3", HealthState::Up, 2);
    assert_eq!((bed.state("users-3"), bed.flushes().len()), (SlotState::Draining, 3), "added to the pool");
    assert_eq!(bed.state("users-1"), SlotState::Serving);
    bed.empty_all();
    assert_eq!(bed.state("users-3"), SlotState::Serving);
    for (users, flushes) in [(2, 0), (3, 3)] {
        bed.job(Some(config(&text(users))), 3);
        bed.say("users", HealthState::Up, 3);
        assert_eq!(bed.flushes().len(), flushes, "{users}");
    }
    bed.empty_all();
    // A reload without changes does not start another flush.
    bed.job(Some(config(&text(3))), 4);
    assert_eq!((bed.state("users-3"), bed.flushes().len()), (SlotState::Serving, 0));
    // A reload without changes does not affect a pending flush.
    bed.say("users-1", HealthState::Down, 5);
    bed.say("users-1", HealthState::Up, 6);
    let before = bed.controller.flushes();
    bed.job(Some(config(&text(3))), 7);
    assert_eq!((bed.state("users-1"), bed.controller.flushes()), (SlotState::Draining, before));
    // If the ports change, all ports are flushed again.
    let ports = text(3).replace("11300-11301", "11300-11302");
    let numbers =
        |bed: &Bed| bed.controller.flushes().iter().map(|flush| flush.number).collect::<BTreeSet<_>>();
    let before = numbers(&bed);
    bed.job(Some(config(&ports)), 7);
    assert_eq!((bed.flushes().len(), before.is_disjoint(&numbers(&bed))), (4, true));
    // With `rejoin = "serve"`, the server serves without a flush and keeps its stored values.
    let serve = text(3).replace("clients", "rejoin = \"serve\", clients");
    bed.job(Some(config(&serve)), 8);
    assert_eq!((bed.state("users-1"), bed.flushes().len()), (SlotState::Serving, 0));
    bed.say("users-1", HealthState::Down, 9);
    bed.job(Some(config(&text(3))), 10);
    bed.say("users-1", HealthState::Up, 11);
    assert_eq!((bed.state("users-1"), bed.flushes().len()), (SlotState::Draining, 3), "was down before");
}

#[test]
fn new_keyed_pool_needs_no_flush() {
    let mut bed = Bed::new(config(&text(2).replace("kv = ", "#kv = ")));
    bed.say("users", HealthState::Up, 1);
    bed.job(Some(config(&text(2))), 2);
    bed.say("logs", HealthState::Up, 2);
    assert_eq!((bed.state("users-1"), bed.flushes().len()), (SlotState::Serving, 0));
    let more = pool("more", 3, 1, &KEYED.replace("logs", "users")) + &by_key(20, "more");
    bed.job(Some(config(&(text(2) + &more))), 3);
    bed.say("more", HealthState::Up, 3);
    assert_eq!((bed.state("more-1"), bed.flushes().len()), (SlotState::Serving, 0));
}

#[test]
fn server_without_weight_is_flushed_when_it_gets_weight() {
    let light = text(2).replace("address = \"198.18.1.1\"", "address = \"198.18.1.1\", weight = 0");
    let mut bed = started(&light);
    assert_eq!((bed.state("users-1"), bed.flushes().len()), (SlotState::Serving, 0));
    bed.job(Some(config(&text(2))), 2);
    assert_eq!((bed.state("users-1"), bed.flushes().len()), (SlotState::Draining, 3));
    bed.empty_all();
    assert_eq!(bed.state("users-1"), SlotState::Serving);
}

/// A random event that affects one of the three backends.
#[derive(Clone, Debug)]
enum Step {
    Verdict(usize, bool),
    Order(usize, Option<Mode>, Option<u32>),
    /// The flush that the index selects succeeds or fails.
    Flushed(prop::sample::Index, bool),
    Tables,
}

fn step() -> impl Strategy<Value = Step> {
    let mode = prop::sample::select(vec![None, None, Some(Mode::Drain), Some(Mode::Down)]);
    let weight = prop::sample::select(vec![None, None, Some(0), Some(7)]);
    prop_oneof![
        3 => (0..3_usize, any::<bool>()).prop_map(|(at, up)| Step::Verdict(at, up)),
        2 => (0..3_usize, mode, weight).prop_map(|(at, mode, weight)| Step::Order(at, mode, weight)),
        6 => (any::<prop::sample::Index>(), prop::bool::weighted(0.8)).prop_map(|(at, ok)| Step::Flushed(at, ok)),
        1 => Just(Step::Tables),
    ]
}

/// The expected state of a backend.
#[derive(Clone, Debug, Default)]
struct Model {
    up: Option<bool>,
    says: Override,
    /// `true` if the server was unavailable after its last flush.
    dirty: bool,
    /// The ports that must still be flushed.
    left: BTreeSet<u16>,
}

impl Model {
    fn out(&self) -> bool {
        self.up == Some(false) || self.says.mode.is_some() || self.says.weight == Some(0)
    }

    fn look(&mut self) {
        let waits = |model: &Self| model.dirty && !model.out() && model.up == Some(true);
        let began = !waits(self) || self.left.is_empty();
        self.dirty |= self.out();
        if !waits(self) {
            self.left.clear();
        } else if began {
            self.left = [11_211, 11_300, 11_301].into();
        }
    }

    fn state(&self) -> SlotState {
        match (self.says.mode, self.up) {
            (Some(Mode::Down), _) | (_, None | Some(false)) => SlotState::Down,
            (Some(Mode::Drain), _) => SlotState::Draining,
            _ if !self.left.is_empty() => SlotState::Draining,
            _ => SlotState::Serving,
        }
    }
}

const NAMES: [&str; 3] = ["users-1", "users-2", "logs-1"];

proptest! {
    // Promise: rejoin-empty
    #[test]
    fn no_server_serves_between_unavailable_and_flushed(steps in prop::collection::vec(step(), 1..60)) {
        let mut bed = Bed::new(config(&text(2)));
        let mut models = [(); 3].map(|()| Model::default());
        // All flushes that were requested so far, by flush number.
        let mut wanted: BTreeMap<u64, SocketAddr> = BTreeMap::new();
        for step in steps {
            let pending: BTreeSet<u64> = bed.controller.flushes().iter().map(|flush| flush.number).collect();
            match step {
                Step::Verdict(at, up) => {
                    models[at].up = Some(up);
                    bed.say(NAMES[at], if up { HealthState::Up } else { HealthState::Down }, 1);
                    models[at].look();
                }
                Step::Order(at, mode, weight) => {
                    models[at].says = Override { mode, weight };
                    bed.order(NAMES[at], None, Some(models[at].says));
                    models[at].look();
                }
                Step::Flushed(at, ok) if !wanted.is_empty() => {
                    let (&number, server) = wanted.iter().nth(at.index(wanted.len())).unwrap();
                    bed.flushed([number], if ok { Ok(()) } else { Err("refused") });
                    let at = ["198.18.1.1", "198.18.1.2", "198.18.2.1"].iter().position(|own| *own == server.ip().to_string());
                    let model = &mut models[at.unwrap()];
                    // The result of a flush that is no longer pending has no effect.
                    if ok && pending.contains(&number) && model.left.remove(&server.port()) && model.left.is_empty() {
                        model.dirty = false;
                    }
                }
                Step::Flushed(..) => {}
                Step::Tables => _ = bed.settle(1),
            }
            wanted.extend(bed.controller.flushes().iter().map(|flush| (flush.number, flush.server)));
            let left: usize = models.iter().map(|model| model.left.len()).sum();
            prop_assert_eq!(bed.controller.flushes().len(), left);
            for (name, model) in NAMES.iter().zip(&models) {
                prop_assert_eq!(bed.state(name), model.state(), "{} {:?}", name, model);
            }
        }
    }
}
