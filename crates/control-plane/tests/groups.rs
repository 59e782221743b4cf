//! Tests of prefix groups: their effect on the snapshot, on checks through the tunnel, and on API
//! responses.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use compile::compile_file;
use config::{Config, parse};
use control_plane::{Controller, Running, Side, changes};
use forwarder::{Decision, Flow, Snapshot};

const HEAD: &str = r#"
[cluster]
name = "test"
hash_key_file = "hash.key"
[machine.lb1]
shard = "a"
addresses = ["192.0.2.1", "2001:db8::1"]
interfaces = ["eth0"]
[machine.lb2]
shard = "b"
addresses = ["192.0.2.3", "2001:db8::3"]
interfaces = ["eth0"]
[check.vip]
tcp = { port = 80 }
via = "vip"
[pool.web]
checks = ["vip"]
backends = [{ name = "b1", address = "198.18.1.1" }]
"#;

const GROUPS: &str = r#"
[prefix_group.edge]
prefixes = ["198.51.100.128/25", "198.51.100.0/24", "2001:db8:e::/48"]
[prefix_group.far]
prefixes = ["198.51.100.64/26"]
[vip.edge]
shard = "a"
addresses = ["203.0.113.10"]
group = "edge"
suffixes = ["0.0.0.20/6", "::20/72"]
services = [{ ports = [80], protocol = "tcp", pool = "web" }]
[vip.far]
shard = "b"
group = "far"
suffixes = ["0.0.0.21/6"]
services = [{ ports = [80], protocol = "tcp", pool = "web" }]
"#;

fn config(groups: &str) -> Arc<Config> {
    let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
    match parse(&format!("{HEAD}{groups}"), Path::new("test.toml"), &secret) {
        Ok((config, _)) => Arc::new(config),
        Err(problems) => panic!("{problems}"),
    }
}

fn service<'s>(snapshot: &'s Snapshot, address: &str) -> Option<&'s str> {
    let to: IpAddr = address.parse().unwrap();
    let from: IpAddr = if to.is_ipv4() { "198.18.0.7" } else { "2001:db8::7" }.parse().unwrap();
    match snapshot.decide(&Flow::new((from, 4000), (to, 80), 6).unwrap()) {
        Decision::Chosen { service, .. } => Some(&snapshot.services()[service].name),
        _ => None,
    }
}

#[test]
fn machine_serves_groups_of_its_shard_and_knows_all_prefixes() {
    let config = config(GROUPS);
    let [one, two] = ["lb1", "lb2"].map(|machine| compile_file(&config, machine).unwrap().snapshot);
    for address in ["203.0.113.10", "198.51.100.148", "198.51.100.20", "2001:db8:e:ab00::20"] {
        assert_eq!(service(&one, address), Some("edge tcp 80"), "{address}");
        assert_eq!(service(&two, address), None, "{address}");
    }
    assert_eq!(service(&one, "198.51.100.84"), None, "the longer prefix belongs to the other group");
    assert_eq!(service(&two, "198.51.100.85"), Some("far tcp 80"));
    let shown = |snapshot: &Snapshot| -> Vec<String> {
        snapshot.filter_prefixes().iter().map(ToString::to_string).collect()
    };
    assert_eq!(shown(&one), ["198.51.100.0/24", "2001:db8:e::/48"]);
    assert_eq!(shown(&two), ["198.51.100.64/26"]);
    assert_eq!((one.filter().len(), two.filter().len()), (1, 0));
}

#[test]
fn tunnel_checks_use_the_first_prefix_of_each_family() {
    let (controller, snapshot) =
        Controller::start(config(GROUPS), "lb1", Arc::default(), Duration::ZERO).unwrap();
    let mut vips: Vec<String> = controller
        .watched()
        .iter()
        .filter_map(|watched| Some(watched.key.through.as_ref()?.vip.to_string()))
        .collect();
    vips.sort();
    assert_eq!(vips, ["198.51.100.148", "2001:db8:e::20", "203.0.113.10"]);
    let rows = controller.vip_rows(&snapshot, |_| Default::default());
    assert_eq!(rows[0].addresses, ["203.0.113.10", "edge 0.0.0.20/6", "edge ::20/72"]);
}

#[test]
fn checks_through_a_group_show_the_name_of_their_vip() {
    let config = config(GROUPS);
    let (controller, _) =
        Controller::start(Arc::clone(&config), "lb1", Arc::default(), Duration::ZERO).unwrap();
    let report = |watched: health::Watched| health::TargetReport {
        key: watched.key,
        backend: watched.backend,
        pools: watched.pools,
        state: health::HealthState::Up,
        since: Instant::now(),
        since_wall: SystemTime::now(),
        last: None,
        last_error: None,
        last_error_at: None,
        last_reason: None,
        last_latency: None,
        history: Vec::new(),
        passes: 0,
        fails: 0,
        attempts: 0,
        failures: Default::default(),
        held: Default::default(),
    };
    let reports: Vec<_> = controller.watched().into_iter().map(report).collect();
    let rows = Controller::health_rows(&reports, &config, "lb1");
    let names: Vec<_> = rows.iter().map(|row| row.vip_name.as_deref()).collect();
    assert_eq!(names, [Some("edge"); 3]);
}

#[test]
fn changed_prefixes_are_listed_or_counted() {
    let before = config(GROUPS);
    let many: String = (0..20).map(|n| format!(", \"198.18.{n}.0/24\"")).collect();
    let text = GROUPS
        .replace("\"198.51.100.0/24\", \"2001:db8:e::/48\"", &format!("\"2001:db8:e::/48\"{many}"))
        .replace(
            "[prefix_group.far]",
            "[prefix_group.new]\nprefixes = [\"203.0.113.128/25\"]\n[prefix_group.far]",
        )
        .replace("::20/72", "::21/72");
    let after = config(&text);
    let indices = [&before, &after].map(|config| compile_file(config, "lb1").unwrap().index);
    let [old, new] =
        [(&before, &indices[0]), (&after, &indices[1])].map(|(config, index)| Side { config, index });
    assert_eq!(
        changes(&Running::of(&before, "lb1"), old, new, "lb1").sentences,
        [
            "prefix_group edge: prefix 198.51.100.0/24 removed",
            "prefix_group edge: 20 prefixes added",
            "prefix_group new: added, with 1 prefix",
            "vip edge: address edge ::20/72 removed",
            "vip edge: address edge ::21/72 added",
            "vip edge: backends of pool web are checked through 2001:db8:e::21 for the first time",
        ]
    );
    assert_eq!(
        changes(&Running::of(&after, "lb1"), new, old, "lb1").sentences[2],
        "prefix_group new: removed"
    );
    assert_eq!(changes(&Running::of(&before, "lb1"), old, old, "lb1"), Default::default());
}
