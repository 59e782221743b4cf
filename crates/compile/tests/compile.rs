//! Tests that compile several generations, and check what changes from one generation to the next.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a failed unwrap fails the test")]

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use compile::{
    CompileError, CompileInput, Compiled, Compiler, PathMtus, RuntimeState, destinations, refresh_next_hops,
};
use config::{Config, parse};
use forwarder::{Decision, DropReason, Flow, Generation, Guard, NextHopMode, SlotState, Snapshot, Tagging};
use next_hop::{Resolved, Table, Unresolved};
use packet::{Tag, Tags};

const HEAD: &str = r#"
[cluster]
name = "test"
hash_key_file = "hash.key"
drain_time = "60s"
[machine.lb1]
addresses = ["192.0.2.1", "2001:db8::1"]
interfaces = ["eth0"]
[machine.lb2]
addresses = ["192.0.2.3", "2001:db8::3"]
interfaces = ["eth1"]
"#;

const VIPS: &str = r#"
[vip.www]
addresses = ["203.0.113.10", "2001:db8:f::10"]
services = [{ ports = [80, "8000-8099"], protocol = "tcp", pool = "web" }, { protocol = "gre", pool = "web" }]
[vip.api]
addresses = ["203.0.113.11"]
services = [{ ports = "any", protocol = "udp", pool = "same" }]
"#;

fn config(pools: &str) -> Config {
    let text = format!("{HEAD}{pools}{VIPS}");
    let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
    match parse(&text, Path::new("test.toml"), &secret) {
        Ok((config, _)) => config,
        Err(problems) => panic!("{problems}"),
    }
}

/// Creates two pools. In `web`, b1 has weight 1. The weight of b2 is 6 (2 times 3), because b2 is
/// in a nested pool. `same` has the same backends and weights in a different order.
fn pools(b2: &str) -> String {
    format!(
        r#"
[pool.web]
backends = [{{ name = "b1", address = "198.18.1.1" }}]
pools = [{{ pool = "inner", weight = 2 }}]
[pool.inner]
encapsulation = "ipip"
backends = [{{ name = "b2", address = "{b2}", weight = 3 }}]
[pool.same]
backends = [{{ name = "b2", address = "{b2}", weight = 6 }}, {{ name = "b1", address = "198.18.1.1" }}]
"#
    )
}

fn compile(compiler: &mut Compiler, config: &Config, now: u64) -> Snapshot {
    compile_for(compiler, config, "lb1", &Table::default(), now).unwrap()
}

/// Compiles `config` with a runtime state in which all backends serve.
fn compile_for(
    compiler: &mut Compiler,
    config: &Config,
    machine: &str,
    next_hops: &Table,
    now: u64,
) -> Result<Snapshot, CompileError> {
    let (runtime_state, states) = (RuntimeState::default(), vec![SlotState::Serving; 16]);
    let (generation, now) = (Generation(now + 1), Duration::from_secs(now));
    let from =
        CompileInput { generation, machine, next_hops, runtime_state: &runtime_state, states: &states, now };
    compiler.compile(config, from).map(|compiled| compiled.snapshot)
}

/// Compiles `config` like [`compile`], and returns the index too.
fn compiled(compiler: &mut Compiler, config: &Config, now: u64) -> Compiled {
    let (runtime_state, states) = (RuntimeState::default(), vec![SlotState::Serving; 16]);
    let (generation, now) = (Generation(now + 1), Duration::from_secs(now));
    let (machine, next_hops, runtime_state) = ("lb1", &Table::default(), &runtime_state);
    let from = CompileInput { generation, machine, next_hops, runtime_state, states: &states, now };
    compiler.compile(config, from).unwrap()
}

/// Ends the drains whose time has passed. `from` was compiled last, from `config`.
fn end(compiler: &mut Compiler, config: &Config, from: &Compiled, now: u64) -> Option<Snapshot> {
    let (runtime_state, mut services) = (RuntimeState::default(), from.snapshot.services().to_vec());
    let index = compiler.end_draining(config, &services, &from.index, Duration::from_secs(now))?;
    let states = compiler.states(&runtime_state);
    index.lead(&mut services, &runtime_state, &states);
    Some(from.snapshot.with_states(states).unwrap().with_services(services).unwrap())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn flow(port: u16) -> Flow {
    Flow::new((ip("198.51.100.7"), port), (ip("203.0.113.10"), 80), 6).unwrap()
}

fn choice(snapshot: &Snapshot, port: u16) -> Arc<str> {
    match snapshot.decide(&flow(port)) {
        Decision::Chosen { selection, .. } => {
            Arc::clone(&snapshot.slots()[selection.slot.0 as usize].backend)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn equal_pools_share_one_table_across_generations() {
    let config = config(&pools("198.18.1.2"));
    let mut compiler = Compiler::default();
    let first = compile(&mut compiler, &config, 0);
    let second = compile(&mut compiler, &config, 1);
    let tables: Vec<_> =
        [&first, &second].iter().flat_map(|s| s.services()).map(|s| s.pool.table.clone().unwrap()).collect();
    assert_eq!(tables.len(), 6);
    assert!(tables.iter().all(|table| Arc::ptr_eq(table, &tables[0])));
    assert_eq!((first.generation(), second.generation()), (Generation(1), Generation(2)));
}

#[test]
fn nested_weights_become_shares() {
    let config = config(&pools("198.18.1.2"));
    let snapshot = compile(&mut Compiler::default(), &config, 0);
    let table = snapshot.services()[0].pool.table.as_ref().unwrap();
    let shares: Vec<u32> = table.shares().map(|(_, slots)| slots).collect();
    assert_eq!(shares.iter().sum::<u32>(), 65_537);
    assert!(shares[0].abs_diff(65_537 / 7) <= 1, "{shares:?}");
}

#[test]
fn other_machine_and_other_history_choose_the_same_backend() {
    let config = config(&pools("198.18.1.2"));
    let here = compile(&mut Compiler::default(), &config, 0);
    let mut old = Compiler::default();
    compile(&mut old, &self::config(&pools("198.18.1.9")), 0);
    let there = compile_for(&mut old, &config, "lb2", &Table::default(), 5).unwrap();
    for port in 0..500 {
        assert_eq!(choice(&here, port), choice(&there, port));
    }
}

#[test]
fn backend_with_new_address_gets_new_slot_and_old_one_drains() {
    let mut compiler = Compiler::default();
    let before = compile(&mut compiler, &config(&pools("198.18.1.2")), 0);
    let moved = config(&pools("198.18.1.9"));
    let compiled = compiled(&mut compiler, &moved, 10);
    let after = &compiled.snapshot;
    let states = |snapshot: &Snapshot| -> HashMap<String, SlotState> {
        snapshot
            .slots()
            .iter()
            .zip(snapshot.states())
            .map(|(slot, state)| (slot.address.to_string(), *state))
            .collect()
    };
    assert_eq!(states(&before).get("198.18.1.9"), None);
    assert_eq!(states(after)["198.18.1.2"], SlotState::Draining);
    assert_eq!(states(after)["198.18.1.9"], SlotState::Serving);
    // Table entries depend only on backend names and weights, so each flow is assigned to the same
    // backend.
    for port in 0..200 {
        assert_eq!(choice(&before, port), choice(after, port));
    }
    let old: IpAddr = "198.18.1.2".parse().unwrap();
    assert!(!destinations(&moved, "lb1", None).contains(&old));
    assert!(
        destinations(&moved, "lb1", Some(after)).contains(&old),
        "existing flows continue, so the next hop is still needed"
    );
    let mut end = |at| end(&mut compiler, &moved, &compiled, at);
    assert!(end(69).is_none());
    let ended = end(70).expect("a drain time has passed");
    assert_eq!(states(&ended)["198.18.1.2"], SlotState::Free);
    assert_eq!(states(&ended)["198.18.1.9"], SlotState::Serving);
    assert!(!destinations(&moved, "lb1", Some(&ended)).contains(&old));
}

#[test]
fn draining_slot_keeps_its_next_hop_across_reloads() {
    let mut compiler = Compiler::default();
    compile(&mut compiler, &config(&pools("198.18.1.2")), 0);
    let way = Resolved {
        interface: 2,
        leaves_by: 2,
        tags: Tags::NONE,
        destination: [2, 0, 0, 0, 0, 9],
        source: [2, 0, 0, 0, 0, 1],
        mtu_bytes: 1500,
        gateway: None,
        preferred_source: None,
    };
    let old: IpAddr = "198.18.1.2".parse().unwrap();
    let table = Table { next_hops: HashMap::from([(old, Ok(way).into())]), ..Table::default() };
    let moved = config(&pools("198.18.1.9"));
    let after = compile_for(&mut compiler, &moved, "lb1", &table, 1).unwrap();
    let (slot, state) =
        after.slots().iter().zip(after.states()).find(|(slot, _)| slot.address == old).unwrap();
    assert_eq!((*state, slot.next_hop.is_some()), (SlotState::Draining, true));
}

/// The service `www` changes its pool from `web` to `same`, which has the same backends in other
/// slots. The service `api` still uses `web`, so the slots of `web` do not drain. The flows of
/// `www` on these slots get time to drain. Then the slots are excluded for `www`.
#[test]
fn moved_service_excludes_its_old_slots_after_drain_time() {
    let with = |first: &str, second: &str| {
        let vip = |name: &str, host: u8, pool: &str| {
            format!(
                "[vip.{name}]\naddresses = [\"203.0.113.{host}\"]\nservices = [{{ ports = [80], protocol = \"tcp\", pool = \"{pool}\" }}]\n"
            )
        };
        let text =
            format!("{HEAD}{}{}{}", pools("198.18.1.2"), vip("www", 10, first), vip("api", 11, second));
        parse(&text, Path::new("test.toml"), &|_: &_| Ok("00112233445566778899aabbccddeeff".to_owned()))
            .unwrap()
            .0
    };
    let (before, after) = (with("web", "web"), with("same", "web"));
    let mut compiler = Compiler::default();
    let first = compile(&mut compiler, &before, 0);
    let www = |snapshot: &Snapshot| {
        let service = snapshot.services().iter().find(|service| service.name.starts_with("www")).unwrap();
        (service.pool.slots.to_vec(), service.excluded_slots.to_vec())
    };
    let mut left = www(&first).0;
    left.sort_unstable();
    let second = compiled(&mut compiler, &after, 100);
    assert_ne!(www(&second.snapshot).0, www(&first).0);
    assert_eq!(www(&second.snapshot).1, []);
    let mut ended = |now| end(&mut compiler, &after, &second, now);
    assert!(ended(159).is_none());
    let excluded_slots = ended(160).expect("the drain time has passed");
    assert_eq!(www(&excluded_slots).1, left);
    assert!(
        excluded_slots
            .services()
            .iter()
            .all(|service| service.name.starts_with("www") || service.excluded_slots.is_empty())
    );
    assert!(ended(161).is_none());
    // A rebuild does not change the excluded slots. When the service moves back to the old pool,
    // its slots are no longer excluded.
    assert_eq!(www(&compile(&mut compiler, &after, 170)).1, left);
    assert_eq!(www(&compile(&mut compiler, &before, 171)).1.len(), 0, "the slots of `same` start to drain");
    let back = compiled(&mut compiler, &after, 172);
    assert_eq!(www(&back.snapshot).1, []);
    let keep = 60 + 900 + 1 + 10;
    let mut ended = |now| end(&mut compiler, &after, &back, now);
    assert_eq!(www(&ended(172 + 61).unwrap()).1, left);
    assert_eq!(www(&ended(172 + keep).unwrap()).1, [], "no flow can refer to the slots");
}

#[test]
fn services_and_slots_keep_their_numbers_across_reloads() {
    let mut compiler = Compiler::default();
    let config = config(&pools("198.18.1.2"));
    let names = |snapshot: &Snapshot| -> HashMap<String, u32> {
        snapshot.services().iter().map(|service| (service.name.to_string(), service.id.0)).collect()
    };
    let first = compile(&mut compiler, &config, 0);
    let second = compile(&mut compiler, &config, 9);
    assert_eq!(names(&first), names(&second));
    assert!(names(&first).contains_key("www tcp 80,8000-8099"));
    let slots =
        |snapshot: &Snapshot| -> Vec<IpAddr> { snapshot.slots().iter().map(|slot| slot.address).collect() };
    assert_eq!(slots(&first), slots(&second));
}

#[test]
fn refresh_next_hops_fills_slots_and_filter_has_all_vips() {
    let config = config(&pools("2001:db8:18::2"));
    let mut compiler = Compiler::default();
    let snapshot = compile(&mut compiler, &config, 0);
    assert!(snapshot.slots().iter().all(|slot| slot.next_hop.is_none()));
    let way = Resolved {
        interface: 2,
        leaves_by: 2,
        tags: Tags::NONE,
        destination: [2, 0, 0, 0, 0, 9],
        source: [2, 0, 0, 0, 0, 1],
        mtu_bytes: 9000,
        gateway: None,
        preferred_source: None,
    };
    let known: IpAddr = "198.18.1.1".parse().unwrap();
    let next_hops = destinations(&config, "lb1", None)
        .into_iter()
        .map(|address| (address, if address == known { Ok(way) } else { Err(Unresolved::NoRoute) }.into()))
        .collect();
    let table = Table { next_hops, ..Table::default() };
    let refreshed = refresh_next_hops(&snapshot, &config, "lb1", &table, &PathMtus::default()).unwrap();
    for slot in refreshed.slots() {
        assert_eq!(
            (slot.next_hop.is_some(), slot.mtu),
            if slot.address == known { (true, 9000) } else { (false, 1500) }
        );
    }
    assert!(matches!(refreshed.next_hop_mode(), NextHopMode::Resolve));
    let vips = ["203.0.113.10", "2001:db8:f::10", "203.0.113.11"].map(|vip| vip.parse().unwrap());
    assert!(vips.iter().all(|vip: &IpAddr| snapshot.filter().contains(vip)));
}

#[test]
fn unknown_machine_error_lists_known_machines() {
    let refused =
        compile_for(&mut Compiler::default(), &config(&pools("198.18.1.2")), "lb9", &Table::default(), 0);
    let Err(error @ CompileError::NoMachine { .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(error.to_string(), "unknown machine `lb9`; the configuration has lb1, lb2");
}

/// Creates the VIPs `a`, `b` and `c`, which all use the pool `web`. Each VIP has the additional
/// configuration keys in `keys`.
fn guarded(keys: [&str; 3]) -> Config {
    let vip = |(n, keys): (usize, &str)| {
        let name = ["a", "b", "c"][n];
        format!(
            "[vip.{name}]\naddresses = [\"203.0.113.{n}\"]\n{keys}\nservices = [\
             {{ ports = [80], protocol = \"tcp\", pool = \"web\" }}, {{ ports = [80], protocol = \"udp\", pool = \"web\" }}]\n"
        )
    };
    let vips: String = keys.into_iter().enumerate().map(vip).collect();
    let text = format!("{HEAD}{}{vips}", pools("198.18.1.2"));
    parse(&text, Path::new("test.toml"), &|_: &_| Ok("00112233445566778899aabbccddeeff".to_owned()))
        .unwrap()
        .0
}

/// Returns the guard of each VIP. Asserts that both services of a VIP share its guard.
fn guards(snapshot: &Snapshot) -> [Option<Arc<Guard>>; 3] {
    ["a", "b", "c"].map(|vip| {
        let of = |service: &str| {
            let name = format!("{vip} {service} 80");
            snapshot.services().iter().find(|service| *service.name == *name).unwrap().guard.clone()
        };
        let (tcp, udp) = (of("tcp"), of("udp"));
        assert!(tcp.as_ref().map(Arc::as_ptr) == udp.as_ref().map(Arc::as_ptr), "{vip}");
        tcp
    })
}

#[test]
fn equal_source_lists_share_one_set_across_reloads() {
    let deny = "deny = [\"198.51.100.0/25\", \"198.51.100.200\"]";
    let mut compiler = Compiler::default();
    let first = compile(&mut compiler, &guarded([deny, deny, ""]), 0);
    let [a, b, c] = guards(&first);
    let set = |guard: &Option<Arc<Guard>>| guard.as_ref().unwrap().deny.clone().unwrap();
    assert!(Arc::ptr_eq(&set(&a), &set(&b)) && c.is_none());
    let second = compile(&mut compiler, &guarded([deny, "deny = [\"192.0.2.0/24\"]", ""]), 1);
    let [again, other, _] = guards(&second);
    assert!(Arc::ptr_eq(&set(&a), &set(&again)) && !Arc::ptr_eq(&set(&a), &set(&other)));
    let decide = |snapshot: &Snapshot, source: &str, vip: &str| {
        let flow = Flow::new((ip(source), 7), (ip(vip), 80), 6).unwrap();
        match snapshot.decide(&flow) {
            Decision::Refused { reason, .. } => Some(reason),
            Decision::Chosen { .. } => None,
            other => panic!("{other:?}"),
        }
    };
    let sources = ["198.51.100.127", "198.51.100.128", "198.51.100.200", "192.0.2.9"];
    let denied = Some(DropReason::Denied);
    assert_eq!(sources.map(|source| decide(&second, source, "203.0.113.0")), [denied, None, denied, None]);
    assert_eq!(sources.map(|source| decide(&second, source, "203.0.113.1")), [None, None, None, denied]);
    assert_eq!(sources.map(|source| decide(&second, source, "203.0.113.2")), [None; 4]);
    let allowed = compile(&mut compiler, &guarded(["allow = [\"192.0.2.0/24\"]", "", ""]), 2);
    let refused = Some(DropReason::NotAllowed);
    assert_eq!(
        sources.map(|source| decide(&allowed, source, "203.0.113.0")),
        [refused, refused, refused, None]
    );
}

#[test]
fn vip_with_limits_keeps_its_guard_number() {
    let limit =
        "limits = { new_flows_per_second = 7, per_source = { new_flows_per_second = 2, v4_prefix = 24 } }";
    let mut compiler = Compiler::default();
    let mut ids = |keys, now| {
        let snapshot = compile(&mut compiler, &guarded(keys), now);
        guards(&snapshot).map(|guard| guard.map(|guard| guard.id.0))
    };
    assert_eq!(ids([limit, limit, ""], 0), [Some(0), Some(1), None]);
    assert_eq!(ids(["", limit, limit], 1), [None, Some(1), Some(0)], "c gets the free number of a");
    assert_eq!(ids([limit, limit, limit], 2), [Some(2), Some(1), Some(0)]);
    let snapshot = compile(&mut compiler, &guarded(["", "", limit]), 3);
    let [_, _, guard] = guards(&snapshot);
    let guard = guard.unwrap();
    let each = guard.per_source.unwrap();
    assert_eq!(guard.new_flows_per_second.map(Into::into), Some(7_u32));
    assert_eq!((each.new_flows_per_second.get(), each.v4_prefix, each.v6_prefix), (2, 24, 64));
}

#[test]
fn tags_come_from_next_hop_or_interface_policy() {
    let text = format!("{HEAD}{}{VIPS}", pools("198.18.1.2"));
    let policy = "[machine.lb1.vlan.eth0]\npolicy = \"translate\"\ntranslate = [{ from = [5], to = [7, 8] }, \
                  { to = [], from = [] }, { to = [9], outer = \"802.1ad\" }]\n[machine.lb2]";
    let text = text.replace("[machine.lb2]", policy);
    let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
    let (config, _) = parse(&text, Path::new("test.toml"), &secret).unwrap();
    let snapshot = compile(&mut Compiler::default(), &config, 0);
    let vlan = Tags::NONE.push(Tag::service(30, 0).unwrap()).unwrap();
    let way = |tags| Resolved {
        interface: 2,
        leaves_by: 2,
        tags,
        destination: [2, 0, 0, 0, 0, 9],
        source: [2, 0, 0, 0, 0, 1],
        mtu_bytes: 1500,
        gateway: None,
        preferred_source: None,
    };
    let [plain, tagged] = ["198.18.1.1", "198.18.1.2"].map(|text| text.parse::<IpAddr>().unwrap());
    let next_hops = HashMap::from([(plain, Ok(way(Tags::NONE)).into()), (tagged, Ok(way(vlan)).into())]);
    let table = Table { next_hops, ..Table::default() };
    for machine in ["lb1", "lb2"] {
        let refreshed = refresh_next_hops(&snapshot, &config, machine, &table, &PathMtus::default()).unwrap();
        for slot in refreshed.slots() {
            let hop = slot.next_hop.as_ref().unwrap();
            match (&hop.tagging, machine) {
                (tagging, _) if slot.address == tagged => assert_eq!(*tagging, Tagging::Set(vlan)),
                (Tagging::Keep, "lb2") => {}
                (Tagging::Translate(rules), "lb1") => {
                    let ids: Vec<_> = rules.iter().map(|rule| (rule.from, rule.to.ids())).collect();
                    let from = |id| Some([id, None]);
                    let two = [Some(7), Some(8)];
                    assert_eq!(ids, [(from(Some(5)), two), (from(None), [None; 2]), (None, [Some(9), None])]);
                    let kinds = |place: usize| {
                        [rules[place].to.outer(), rules[place].to.inner()].map(|tag| tag.map(Tag::is_service))
                    };
                    assert_eq!((kinds(0), kinds(2)), ([Some(true), Some(false)], [Some(true), None]));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

const REMOTES: &str = r#"
[pool.web]
backends = [{ name = "b1", address = "198.18.1.1" }]
[pool.same]
backends = [{ name = "b1", address = "198.18.1.1" }]
[prefix_group.edge]
prefixes = ["198.51.100.0/26", "198.51.100.0/24"]
[remote.r1]
sources = ["192.0.2.64/28"]
prefixes = { edge = ["198.51.100.64/26"] }
addresses = { edge = ["203.0.113.65"] }
[remote.r2]
sources = ["192.0.2.80"]
prefixes = { edge = ["198.51.100.128/26"] }
[vip.edge]
addresses = ["203.0.113.1"]
group = "edge"
suffixes = ["0.0.0.5/6", "0.0.0.6/6"]
remotes = ["r2", "r1"]
services = [{ ports = [80], protocol = "tcp", pool = "web" }]
"#;

/// Returns the name and address of the cluster to which a flow is redirected. `port` is the source
/// port of the flow.
fn away(snapshot: &Snapshot, to: &str, port: u16) -> Option<String> {
    let flow = Flow::new((ip("192.0.2.200"), port), (ip(to), 80), 6).unwrap();
    match snapshot.decide(&flow) {
        Decision::Remote { selection, .. } => {
            let slot = &snapshot.slots()[selection.slot.0 as usize];
            assert!(slot.is_redirect());
            Some(format!("{} {}", slot.backend, slot.address))
        }
        Decision::NoBackend { .. } => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn flows_are_redirected_to_clusters_with_their_vip_address() {
    let mut compiler = Compiler::default();
    let config = config(REMOTES);
    let snapshot = compile(&mut compiler, &config, 0);
    assert!(snapshot.slots().iter().filter(|slot| !slot.is_redirect()).all(|slot| &*slot.backend == "b1"));
    let mut states = snapshot.states().to_vec();
    for (slot, state) in snapshot.slots().iter().zip(&mut states) {
        *state = if slot.is_redirect() { SlotState::Serving } else { SlotState::Down };
    }
    let down = snapshot.with_states(states.clone()).unwrap();
    let seen = |to: &str| {
        (0..40).filter_map(|port| away(&down, to, port)).collect::<std::collections::BTreeSet<_>>()
    };
    let grouped = ["r1 198.51.100.69".to_owned(), "r2 198.51.100.133".to_owned()];
    assert_eq!(seen("198.51.100.5").into_iter().collect::<Vec<_>>(), grouped);
    assert_eq!(
        seen("198.51.100.70").into_iter().collect::<Vec<_>>(),
        grouped,
        "the second suffix has no slot of its own"
    );
    assert_eq!(seen("203.0.113.1").into_iter().collect::<Vec<_>>(), ["r1 203.0.113.65"]);
    assert_eq!(away(&down, "203.0.113.10", 1), None, "this VIP has no remote cluster");
    let other = compile_for(&mut Compiler::default(), &config, "lb2", &Table::default(), 0).unwrap();
    let down_there = other.with_states(states).unwrap();
    for port in 0..40 {
        assert_eq!(
            away(&down, "198.51.100.5", port),
            away(&down_there, "198.51.100.5", port),
            "every machine chooses the same cluster"
        );
    }
    let senders = |sender| snapshot.tunnels().iter().filter(|source| source.kind == sender).count();
    assert_eq!(senders(forwarder::TunnelSourceKind::Cluster), 2);
    for address in ["198.51.100.69", "198.51.100.133", "203.0.113.65"] {
        assert!(destinations(&config, "lb1", None).contains(&address.parse().unwrap()), "{address}");
    }
}

#[test]
fn smallest_path_mtu_applies_to_all_addresses_of_a_cluster() {
    let config = config(REMOTES);
    let snapshot = compile(&mut Compiler::default(), &config, 0);
    let mut paths = PathMtus::default();
    paths.follow(&snapshot, None);
    assert!(paths.learn("198.51.100.70".parse().unwrap(), 1400, Duration::ZERO));
    let news =
        (64..128).filter(|last| paths.learn([198, 51, 100, *last].into(), 1450, Duration::ZERO)).count();
    assert_eq!(news, 0, "a higher MTU of another address in the cluster must not publish a snapshot");
    let next = refresh_next_hops(&snapshot, &config, "lb1", &Table::default(), &paths).unwrap();
    let mtu = |text: &str| {
        let address: IpAddr = text.parse().unwrap();
        next.slots().iter().find(|slot| slot.address == address).unwrap().mtu
    };
    assert_eq!(
        ["198.51.100.69", "198.51.100.133", "203.0.113.65", "198.18.1.1"].map(mtu),
        [1400, 1500, 1500, 1500]
    );
}

#[test]
fn cluster_removed_from_a_vip_drains() {
    let mut compiler = Compiler::default();
    let snapshot = compile(&mut compiler, &config(REMOTES), 0);
    let next = compile(&mut compiler, &config(&REMOTES.replace("[\"r2\", \"r1\"]", "[\"r2\"]")), 10);
    let state = |name: &str| {
        let at = snapshot.slots().iter().position(|slot| slot.address.to_string() == name).unwrap();
        next.states()[at]
    };
    assert_eq!([state("198.51.100.69"), state("198.51.100.133")], [SlotState::Draining, SlotState::Serving]);
}
