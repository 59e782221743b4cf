//! Tests of peers: allowed tunnel senders, the assignment of fragments to machines, and path MTUs.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a failed unwrap fails the test")]

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use admin::{BackendAction, OverrideNote};
use compile::{OverrideKey, PathMtus, compile_file, refresh_next_hops};
use config::{Config, parse};
use control_plane::{BackendOverride, Controller, Overrides};
use forwarder::{PoolTable, SlotId, SlotState, Snapshot, THIS_MACHINE, TunnelProtocols, TunnelSourceKind};
use next_hop::{Resolved, Table};
use packet::Tags;

/// Three machines in one shard, one machine in another shard, and two machines without a shard.
const FILE: &str = r#"
[cluster]
name = "test"
hash_key_file = "hash.key"
[cluster.upstream_tunnels]
sources = ["198.51.100.64/28", "2001:db8:a::/64"]
kinds = ["ipip", "gue"]
[machine.lb1]
shard = "a"
addresses = ["192.0.2.1", "2001:db8::1"]
interfaces = ["eth0"]
[machine.lb2]
shard = "a"
addresses = ["192.0.2.2", "2001:db8::2"]
interfaces = ["eth0"]
[machine.lb3]
shard = "a"
addresses = ["2001:db8::3", "192.0.2.3"]
interfaces = ["eth0"]
[machine.lb4]
shard = "b"
addresses = ["192.0.2.4"]
interfaces = ["eth0"]
[machine.lb5]
addresses = ["192.0.2.5"]
interfaces = ["eth0"]
[machine.lb6]
addresses = ["192.0.2.6"]
interfaces = ["eth0"]
[remote.far]
sources = ["192.0.2.64/28"]
prefixes = { edge = ["198.51.100.128/26"] }
[prefix_group.edge]
prefixes = ["198.51.100.0/26", "198.51.100.0/24"]
[pool.web]
backends = [{ name = "b1", address = "198.18.1.1" }]
[vip.www]
group = "edge"
suffixes = ["0.0.0.10/6"]
remotes = ["far"]
services = [{ ports = [80], protocol = "tcp", pool = "web" }]
"#;

fn config() -> Config {
    let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
    match parse(FILE, Path::new("test.toml"), &secret) {
        Ok((config, _)) => config,
        Err(problems) => panic!("{problems}"),
    }
}

fn snapshot(config: &Config, machine: &str) -> Snapshot {
    compile_file(config, machine).unwrap().snapshot
}

/// Returns the allowed tunnel senders of one kind, each with its allowed tunnel protocols.
fn senders(snapshot: &Snapshot, kind: TunnelSourceKind) -> BTreeSet<(String, u8)> {
    let of_kind = snapshot.tunnels().iter().filter(|source| source.kind == kind);
    of_kind.map(|source| (source.prefix.to_string(), source.carriers.bits())).collect()
}

fn set(prefixes: &[&str], carriers: TunnelProtocols) -> BTreeSet<(String, u8)> {
    prefixes.iter().map(|prefix| ((*prefix).to_owned(), carriers.bits())).collect()
}

#[test]
fn peers_of_a_shard_may_send_gre_from_all_addresses() {
    let config = config();
    let (one, two, three) = (
        ["192.0.2.1/32", "2001:db8::1/128"],
        ["192.0.2.2/32", "2001:db8::2/128"],
        ["192.0.2.3/32", "2001:db8::3/128"],
    );
    for (machine, peers) in [
        ("lb1", [&two[..], &three[..]].concat()),
        ("lb2", [&one[..], &three[..]].concat()),
        ("lb3", [&one[..], &two[..]].concat()),
        ("lb4", vec![]),
        ("lb5", vec![]),
        ("lb6", vec![]),
    ] {
        let snapshot = snapshot(&config, machine);
        assert_eq!(
            senders(&snapshot, TunnelSourceKind::Peer),
            set(&peers, TunnelProtocols::GRE),
            "{machine}"
        );
        assert_eq!(
            senders(&snapshot, TunnelSourceKind::Cluster),
            set(&["192.0.2.64/28"], TunnelProtocols::GRE)
        );
        let by = TunnelProtocols::IPIP.and(TunnelProtocols::GUE);
        let upstream_tunnels = ["198.51.100.64/28", "2001:db8:a::/64"];
        assert_eq!(senders(&snapshot, TunnelSourceKind::UpstreamTunnel), set(&upstream_tunnels, by));
    }
}

/// Returns the address of the machine for each rank. The address is `None` for the machine itself.
fn ranks(snapshot: &Snapshot, peers: &PoolTable) -> Vec<Option<IpAddr>> {
    let address =
        |slot: &forwarder::SlotId| (*slot != THIS_MACHINE).then(|| snapshot.slots()[slot.0 as usize].address);
    peers.slots.iter().map(address).collect()
}

/// Peers are health-checked and have slots like backends, but API responses do not contain peers. A
/// removed peer that still has a slot is not listed either.
#[test]
fn peers_are_not_listed_as_backends() {
    let (all, here) = (Arc::new(config()), Duration::ZERO);
    let (mut controller, mut live) =
        Controller::start(Arc::clone(&all), "lb1", Arc::default(), here).unwrap();
    let names = |controller: &Controller, live: &Snapshot| {
        let (totals, down) = controller.state_totals(live);
        let rows = controller.backend_rows(live, |_| Default::default(), None, &[]);
        let names: Vec<String> = rows.into_iter().map(|row| row.name).collect();
        (names, totals.serving, down)
    };
    let backends = (vec!["b1".to_owned(), "far".to_owned()], 2, vec![]);
    assert_eq!(names(&controller, &live), backends);
    let order = |name: &str, pool: Option<&str>| BackendOverride {
        backend: OverrideKey { backend: name.into(), pool: pool.map(Into::into) },
        action: BackendAction::Drain,
        note: OverrideNote::default(),
    };
    for pool in [None, Some("peers@a")] {
        let refused =
            Overrides::default().give(&mut controller, &order("lb2", pool), &live, here).unwrap_err();
        let words = "\"lb2\" is a peer, not a backend; run `sluicegate machine drain` on that machine";
        assert_eq!(refused.to_string(), words);
    }
    assert!(Overrides::default().give(&mut controller, &order("lb4", None), &live, here).is_err());
    assert!(controller.runtime_state().overrides.is_empty());
    // lb2 and lb3 still have slots after the reload that removes them.
    let fewer = FILE.replace("shard = \"a\"\naddresses = [\"192.0.2.2\"", "addresses = [\"192.0.2.2\"");
    let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
    let fewer = Arc::new(parse(&fewer, Path::new("test.toml"), &secret).unwrap().0);
    let job = controller.job(Some(fewer), Arc::default(), live.states().to_vec(), here).unwrap();
    live = controller.finish(job.run(), here).unwrap();
    let gone = (0..).zip(live.slots()).find(|(_, slot)| *slot.backend == *"lb2").unwrap().0;
    assert_eq!(live.state(SlotId(gone)), SlotState::Draining);
    assert_eq!(names(&controller, &live), backends);
}

#[test]
fn peers_share_one_fragment_table_with_themselves_in_it() {
    let config = config();
    let first = ["192.0.2.1", "192.0.2.2", "2001:db8::3"].map(|text| text.parse::<IpAddr>().unwrap());
    let mut shares = BTreeSet::new();
    for (place, machine) in ["lb1", "lb2", "lb3"].iter().enumerate() {
        let snapshot = snapshot(&config, machine);
        let peers = snapshot.peers().unwrap();
        let expected: Vec<_> =
            first.iter().enumerate().map(|(rank, address)| (rank != place).then_some(*address)).collect();
        assert_eq!(ranks(&snapshot, peers), expected, "{machine}");
        let table = peers.table.as_ref().unwrap();
        shares.insert((0..1_000u64).map(|n| table.lookup_uniform(n << 54)).collect::<Vec<_>>());
        assert_eq!((&*peers.name, &*peers.weights), ("peers@a", &[1, 1, 1][..]));
        // The slots of peers are marked as redirect slots, in contrast to the slots of backends.
        let others = snapshot.slots().iter().filter(|slot| slot.is_redirect());
        assert!(
            first.iter().filter(|address| others.clone().any(|slot| slot.address == **address)).count() == 2
        );
    }
    assert_eq!(shares.len(), 1, "all machines have the same table");
    for machine in ["lb4", "lb5", "lb6"] {
        assert!(snapshot(&config, machine).peers().is_none(), "{machine} has no peers");
    }
}

#[test]
fn path_mtu_is_the_minimum_of_link_and_reports() {
    let (config, mut paths) = (config(), PathMtus::default());
    let snapshot = snapshot(&config, "lb1");
    paths.follow(&snapshot, None);
    let (backend, peer, far) =
        ("198.18.1.1".parse().unwrap(), "192.0.2.2".parse().unwrap(), "198.51.100.138".parse().unwrap());
    let way = |mtu_bytes| {
        Ok(Resolved {
            interface: 2,
            leaves_by: 2,
            tags: Tags::NONE,
            destination: [2, 0, 0, 0, 0, 9],
            source: [2, 0, 0, 0, 0, 1],
            mtu_bytes,
            gateway: None,
            preferred_source: None,
        })
    };
    for (link, reported, takes) in [(1_500, 1_400, 1_400), (1_300, 1_390, 1_300), (9_000, 1_380, 1_380)] {
        let mut next_hops = HashMap::new();
        for address in [backend, peer, far] {
            next_hops.insert(address, way(link).into());
            paths.learn(address, reported, Duration::ZERO);
        }
        let table = Table { next_hops, ..Table::default() };
        let known = refresh_next_hops(&snapshot, &config, "lb1", &table, &paths).unwrap();
        let forgotten = refresh_next_hops(&known, &config, "lb1", &table, &PathMtus::default()).unwrap();
        for address in [backend, peer, far] {
            let of = |snapshot: &Snapshot| {
                snapshot.slots().iter().find(|slot| slot.address == address).map(|slot| slot.mtu)
            };
            assert_eq!((of(&known), of(&forgotten)), (Some(takes), Some(link as u16)), "{address}");
        }
    }
}
