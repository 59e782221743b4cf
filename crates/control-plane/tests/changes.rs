//! Tests of the sentences that describe the differences between two configurations.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use config::{Config, parse};
use control_plane::{Changes, Controller, Running, Side, Version, changes};
use health::HealthState;

const FILE: &str = r#"
[cluster]
name = "test"
hash_key_file = "hash.key"
table_size = 65537
[machine.lb1]
addresses = ["192.0.2.1"]
interfaces = ["eth0"]
[machine.lb2]
addresses = ["192.0.2.2"]
interfaces = ["eth0"]
[io]
batch = 64
[admin]
socket = { path = "/run/a.sock" }
[check.web]
http = { port = 80, path = "/", headers = { X-Token = "secret-one" } }
interval = "2s"
[check.tcp]
tcp = { port = 80 }
[encapsulation.outer]
kind = "gre"
[pool.a]
checks = ["web"]
encapsulation = "outer"
backends = [{ name = "a1", address = "198.18.1.1" }, { name = "a2", address = "198.18.1.2" }]
[pool.b]
backends = [{ name = "b1", address = "198.18.2.1" }]
[pool.all]
pools = [{ pool = "a" }, { pool = "b" }]
[vip.v]
addresses = ["203.0.113.1"]
services = [{ ports = [80], protocol = "tcp", pool = "all" }, { ports = [81], protocol = "tcp", pool = "a" }]
"#;

fn config(text: &str) -> Arc<Config> {
    let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
    match parse(text, Path::new("test.toml"), &secret) {
        Ok((config, _)) => Arc::new(config),
        Err(problems) => panic!("{problems}"),
    }
}

/// Compares `old` with `new` on a machine whose process was started with `running`.
fn compare(running: &str, old: &str, new: &str) -> Changes {
    let running = Running::of(&config(running), "lb1");
    let [(old, before), (new, after)] = [old, new].map(|text| {
        let config = config(text);
        let (controller, _) =
            Controller::start(Arc::clone(&config), "lb1", Arc::default(), Duration::ZERO).unwrap();
        (config, controller)
    });
    let side = |config, controller| Side { config, index: Controller::index(controller) };
    changes(&running, side(&old, &before), side(&new, &after), "lb1")
}

fn with(pairs: &[(&str, &str)]) -> String {
    pairs.iter().fold(FILE.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    })
}

#[test]
fn changed_check_is_reported_once_key_by_key() {
    let new = with(&[
        ("interval = \"2s\"", "interval = \"1s\"\nfall = 5"),
        ("path = \"/\"", "path = \"/up\""),
        ("secret-one", "secret-two"),
    ]);
    let said = compare(FILE, FILE, &new).sentences;
    assert_eq!(said.len(), 1, "{said:#?}");
    for words in [
        "check web: ",
        "http.path / -> /up",
        "interval 2s -> 1s",
        "fall 3 -> 5",
        "http.headers.X-Token content changed",
    ] {
        assert!(said[0].contains(words), "{words}: {said:?}");
    }
    assert!(!said[0].contains("secret"), "the value of a header may be a password: {said:?}");
    let kind =
        with(&[("tcp = { port = 80 }", "dns = { name = \"x\" }"), ("[\"web\"]", "[\"web\", \"tcp\"]")]);
    let old = with(&[("[\"web\"]", "[\"web\", \"tcp\"]")]);
    assert_eq!(compare(&old, &old, &kind).sentences, ["check tcp: kind tcp -> dns"]);
}

#[test]
fn pool_with_other_checks_has_one_line_for_its_backends() {
    let new = with(&[
        ("[\"web\"]", "[\"web\", \"tcp\"]"),
        ("encapsulation = \"outer\"", "encapsulation = \"ipip\""),
    ]);
    let said = compare(FILE, FILE, &new).sentences;
    assert_eq!(
        said,
        [
            "pool a: checks web -> tcp, web for backends a1, a2",
            "pool a: encapsulation outer -> ipip for backends a1, a2"
        ],
        "no line for the outer pool"
    );
    let other = with(&[("kind = \"gre\"", "kind = \"gre\"\ndont_fragment = false")]);
    assert_eq!(compare(FILE, FILE, &other).sentences, ["encapsulation outer: dont_fragment true -> false"]);
}

#[test]
fn settings_that_need_a_restart_are_marked() {
    let new = with(&[
        ("batch = 64", "batch = 32\nqueues = 1\nidle = { spin = \"10us\", then = \"spin\" }"),
        ("path = \"/run/a.sock\"", "path = \"/run/b.sock\", mode = \"0660\", group = \"ops\""),
        ("interfaces = [\"eth0\"]\n[io]", "interfaces = [\"eth1\"]\n[io]"),
        (
            "table_size = 65537",
            "drain_time = \"5s\"\nmtu = { clients = 1400, core = 9000 }\nflow_timeouts = { udp = \"30s\" }",
        ),
    ]);
    let Changes { sentences, needs_restart } = compare(FILE, FILE, &new);
    let waits = [
        "cluster.flow_timeouts.udp: 1m -> 30s",
        "io.batch: 64 -> 32",
        "io.idle.spin: 1ms -> 10us",
        "io.idle.then: sleep -> spin",
        "io.queues: all -> 1",
    ];
    assert_eq!(needs_restart, waits);
    let at_once = [
        "admin.socket.group: none -> ops",
        "admin.socket.mode: 0600 -> 0660",
        "admin.socket.path: /run/a.sock -> /run/b.sock",
        "cluster.drain_time: 1m -> 5s",
        "cluster.mtu.clients: 1500 -> 1400",
        "cluster.mtu.core: none -> 9000",
    ];
    let mut wanted = at_once.map(str::to_owned).to_vec();
    wanted.extend(waits.iter().map(|words| format!("{words} (takes effect at the next start)")));
    wanted.sort_unstable();
    assert_eq!(sentences, wanted, "the interface of another machine is not reported");
}

#[test]
fn trace_changes_apply_without_restart() {
    let traced = format!("{FILE}[trace]\nreceivers = [\"198.51.100.9\", \"2001:db8:9::/64\"]\n");
    let other = format!("{traced}max_per_second = 7\n");
    let receivers = "198.51.100.9/32, 2001:db8:9::/64";
    let all = |from: &str, to: &str| {
        let one = |key: &str, value: &str| match (from, to) {
            ("none", _) => format!("trace.{key}: none -> {value}"),
            _ => format!("trace.{key}: {value} -> none"),
        };
        [one("max_per_second", if from == "none" { to } else { from }), one("receivers", receivers)]
    };
    for (old, new, sentences) in [
        (FILE, &*traced, all("none", "100").to_vec()),
        (&traced, &other, vec!["trace.max_per_second: 100 -> 7".to_owned()]),
        (&other, FILE, all("7", "none").to_vec()),
    ] {
        let said = compare(FILE, old, new);
        assert_eq!(said.sentences, sentences);
        assert_eq!(said.needs_restart, [""; 0]);
    }
}

#[test]
fn reverted_setting_needs_no_restart_and_pending_one_still_does() {
    let changed = with(&[("batch = 64", "batch = 32")]);
    let and_more = with(&[("batch = 64", "batch = 32"), ("interval = \"2s\"", "interval = \"1s\"")]);
    let later = compare(FILE, &changed, &and_more);
    assert_eq!(later.needs_restart, ["io.batch: 64 -> 32"], "pending since an earlier reload");
    assert!(later.sentences.iter().all(|sentence| !sentence.starts_with("io")), "{later:?}");
    let back = compare(FILE, &changed, FILE);
    assert_eq!(back.needs_restart, [""; 0]);
    assert_eq!(back.sentences, ["io.batch: 32 -> 64 (already in use)"]);
}

#[test]
fn keys_and_certificates_are_not_shown() {
    let folder = std::env::temp_dir().join(format!("sluicegate-changes-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let made = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let (one, other) = (made("one"), made("other"));
    let of = |made: &rcgen::CertifiedKey<rcgen::KeyPair>| {
        let file = folder.join("c.pem");
        std::fs::write(&file, made.cert.pem()).unwrap();
        let tcp = format!(
            "tcp = {{ listen = [\"192.0.2.1:9851\"], certificate_file = {file:?}, key_file = \"k\", client_ca_file = {file:?} }}"
        );
        let key = made.signing_key.serialize_pem();
        let secret = move |name: &_| {
            let hash = format!("{name:?}").contains("hash.key");
            Ok(if hash { "00112233445566778899aabbccddeeff".to_owned() } else { key.clone() })
        };
        let text = with(&[("[admin]", &format!("[admin]\n{tcp}"))]);
        parse(&text, Path::new("test.toml"), &secret).unwrap().0
    };
    let [(old, before), (new, after)] = [&one, &other].map(|made| {
        let config = Arc::new(of(made));
        let started = Controller::start(Arc::clone(&config), "lb1", Arc::default(), Duration::ZERO);
        (config, Arc::clone(started.unwrap().0.index()))
    });
    let (old, new) = (Side { config: &old, index: &before }, Side { config: &new, index: &after });
    let said = changes(&Running::of(old.config, "lb1"), old, new, "lb1");
    std::fs::remove_dir_all(&folder).unwrap();
    let keys = ["certificate_file", "client_ca_file", "key_file"];
    assert_eq!(
        (said.needs_restart.len(), said.sentences),
        (0, keys.map(|key| format!("admin.tcp.{key}: content changed (not shown)")).to_vec())
    );
}

#[test]
fn moved_slots_are_explained_and_add_up() {
    let new = with(&[(
        "backends = [{ name = \"b1\", address = \"198.18.2.1\" }]",
        "backends = [{ name = \"b2\", address = \"198.18.2.2\" }, { name = \"b3\", address = \"198.18.2.3\", weight = 3 }]",
    )]);
    // The checks are removed, because a backend with checks has no table entries before its first
    // check result.
    let unchecked = |text: &str| text.replace("checks = [\"web\"]\n", "");
    let said = compare(FILE, &unchecked(FILE), &unchecked(&new)).sentences;
    let moved = said.iter().find(|sentence| sentence.contains("slots")).unwrap();
    let numbers: Vec<u32> = moved
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '.')
        .filter_map(|word| word.parse().ok())
        .collect();
    assert!(moved.starts_with("pool all: "), "{moved}");
    assert!(
        moved.contains("of 65537 table slots move to another backend") && !moved.contains("besides"),
        "{moved}"
    );
    assert!(
        moved.contains("because their backend was removed") && moved.contains("to new backends"),
        "{moved}"
    );
    let [changed, _, parts @ ..] = numbers.as_slice() else { panic!("{moved}") };
    assert_eq!(*changed, parts.iter().sum::<u32>(), "{moved}");
    assert!(!moved.contains(" 0 "), "{moved}");
}

/// A reload adds four backends. Their first check results arrive before or after the comparison.
#[test]
fn reload_counts_the_same_moves_as_config_diff() {
    let added: String =
        (3..=6).map(|n| format!(", {{ name = \"a{n}\", address = \"198.18.1.{n}\" }}")).collect();
    let last = "address = \"198.18.1.2\" }";
    let (old, new) = (config(FILE), config(&with(&[(last, &format!("{last}{added}"))])));
    let [from, to] = [&old, &new].map(|config| compile::compile_file(config, "lb1").unwrap());
    let side = |config, index| Side { config, index };
    let running = Running::of(&old, "lb1");
    let diff = changes(&running, side(&old, &from.index), side(&new, &to.index), "lb1");
    assert_eq!(diff.sentences.iter().filter(|sentence| sentence.contains("slots")).count(), 2, "{diff:?}");

    let (mut controller, mut live) =
        Controller::start(Arc::clone(&old), "lb1", Arc::default(), Duration::ZERO).unwrap();
    let all_up = |controller: &mut Controller, live: &mut forwarder::Snapshot| {
        let up: Vec<_> = controller.watched().into_iter().map(|one| (one.key, HealthState::Up)).collect();
        if let Some(next) = controller.health_states(&up, live, Duration::ZERO).unwrap() {
            *live = next;
        }
    };
    let job = |controller: &mut Controller, live: &mut forwarder::Snapshot, config| {
        let job = controller.job(config, Arc::default(), live.states().to_vec(), Duration::ZERO);
        *live = controller.finish(job.unwrap().run(), Duration::ZERO).unwrap();
    };
    all_up(&mut controller, &mut live);
    job(&mut controller, &mut live, None);
    let before = Version::of(&controller);
    job(&mut controller, &mut live, Some(Arc::clone(&new)));
    assert_eq!(before.changes(&Version::of(&controller), &running, "lb1"), diff, "no results");
    all_up(&mut controller, &mut live);
    assert_eq!(before.changes(&Version::of(&controller), &running, "lb1"), diff, "old tables");
    job(&mut controller, &mut live, None);
    assert_eq!(before.changes(&Version::of(&controller), &running, "lb1"), diff, "new tables");
}

#[test]
fn equal_configurations_have_no_changes_except_text() {
    assert!(config(FILE).is_same_text_as(&config(FILE)));
    assert_eq!(compare(FILE, FILE, FILE), Changes::default());
    let comment = format!("{FILE}# a remark\n");
    assert!(!config(FILE).is_same_text_as(&config(&comment)), "a generation has one text");
    assert_eq!(compare(FILE, FILE, &comment).sentences, ["only comments or formatting changed"]);
    let elsewhere = with(&[("192.0.2.2", "192.0.2.3")]);
    assert!(compare(FILE, FILE, &elsewhere).sentences[0].starts_with("no change for this machine"));
    let own = with(&[("192.0.2.1", "192.0.2.4")]);
    assert_eq!(compare(FILE, FILE, &own).sentences, ["machine.lb1.addresses: 192.0.2.1 -> 192.0.2.4"]);
}

#[test]
fn health_state_applies_to_backends_pools_and_vips_by_name() {
    let (controller, _) = Controller::start(config(FILE), "lb1", Arc::default(), Duration::ZERO).unwrap();
    let watched = controller.watched();
    let of_a1 = watched.iter().find(|one| &*one.backend == "a1").unwrap();
    let affected = controller.affected(&of_a1.key);
    let names =
        |set: &std::collections::BTreeSet<Arc<str>>| set.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        (names(&affected.backends), names(&affected.pools), names(&affected.vips)),
        (vec!["a1".into()], vec!["a".into()], vec!["v".into()])
    );
}

#[test]
fn vlan_policy_is_reported_for_this_machine_only() {
    let strip = |machine: &str, rules: &str| {
        let head = format!("[machine.{machine}]");
        with(&[(&head, &format!("[machine.{machine}.vlan.eth0]\n{rules}\n{head}"))])
    };
    let new = strip("lb1", "policy = \"translate\"\ntranslate = [{ from = [5], to = [7, 8] }, { to = [] }]");
    let said = compare(FILE, FILE, &new);
    assert_eq!(
        said.sentences,
        ["machine.lb1.vlan.eth0: keep -> translate (5 to 7.8 by 802.1ad, any to untagged)"]
    );
    assert!(said.needs_restart.is_empty());
    let said = compare(FILE, FILE, &strip("lb2", "policy = \"strip\"")).sentences;
    assert!(said.len() == 1 && said[0].starts_with("no change for this machine"), "{said:?}");
}

#[test]
fn bgp_changes_are_reported_key_by_key_without_secrets() {
    let peers = "\n[bgp]\nasn = 65101\npeers = [{ name = \"t\", address = \"192.0.2.0\", asn = 65000, hold_time = \"9s\" }]\n";
    let vip = ("[vip.v]\n", "[vip.v]\nannounce = { med = 5 }\n");
    let old = with(&[vip]) + peers;
    let before = with(&[]);
    let compare = |old: &str, new: &str| compare(old, old, new).sentences;
    let begin = compare(&before, &old);
    assert_eq!(
        begin,
        ["bgp: added with AS 65101; VIPs are announced from now on", "vip v: announced from now on"]
    );
    let end = compare(&old, &before);
    assert_eq!(end, ["bgp: removed; all sessions end and no VIP is announced", "vip v: no longer announced"]);
    let new = old
        .replace("asn = 65101", "asn = 65102\nhold_down = \"1s\"")
        .replace("hold_time = \"9s\"", "hold_time = \"30s\", password_file = \"k\", bfd = {}")
        .replace("{ med = 5 }", "{ min_serving = 2, communities = [\"1:2\"] }");
    assert_eq!(
        compare(&old, &new),
        [
            "bgp.asn: 65101 -> 65102 (takes effect at the next start)",
            "bgp.hold_down: 10s -> 1s",
            "bgp peer t: bfd.interval none -> 100ms, bfd.multiplier none -> 3, hold_time 9s -> 30s, MD5 key changed, and \
             the router needs the new key within the hold time, hold_time applies from the next session on",
            "vip v: announce.communities: none -> 1:2",
            "vip v: announce.med: 5 -> none",
            "vip v: announce.min_serving: 1 -> 2",
            "vip v: announce.remotes: true -> false",
            "vip v: announce.return_serving: 1 -> 2",
        ]
    );
    let patient = old.replace("hold_time = \"9s\"", "hold_time = \"9s\", max_retry = \"5s\"");
    assert_eq!(compare(&old, &patient), ["bgp peer t: max_retry 1m -> 5s"], "the session continues");
    let other = old.replace("name = \"t\", address = \"192.0.2.0\"", "name = \"u\", address = \"192.0.2.9\"");
    assert_eq!(
        compare(&old, &other),
        [
            "bgp peer t: removed; its session with 192.0.2.0 ends after 5s, and until then its routes carry the graceful-shutdown community",
            "bgp peer u: added, 192.0.2.9 of AS 65000"
        ]
    );
    let sourced = old.replace("hold_time = \"9s\"", "hold_time = \"9s\", source = \"198.51.100.9\"");
    assert_eq!(
        compare(&old, &sourced),
        [
            "bgp peer t: source none -> 198.51.100.9, its session restarts after 5s, and until then its routes carry the graceful-shutdown community, unless it already uses this source"
        ]
    );
    let watched = old.replace("hold_time = \"9s\"", "hold_time = \"9s\", bfd = {}");
    assert_eq!(
        compare(&watched, &old),
        [
            "bgp peer t: bfd.interval 100ms -> none, bfd.multiplier 3 -> none, BFD ends with the current session"
        ]
    );
    let renamed = old.replace("name = \"t\"", "name = \"u\"");
    assert_eq!(compare(&old, &renamed), ["bgp peer u: renamed from t"], "the session continues");
    let listens = old.replace("asn = 65101", "asn = 65101\nlisten = [\"192.0.2.1:179\"]");
    assert_eq!(compare(&old, &listens), ["bgp.listen: none -> 192.0.2.1:179"]);
    let one = old.replace("hold_time = \"9s\"", "hold_time = \"9s\", families = [\"ipv4\"]");
    assert_eq!(
        compare(&old, &one),
        [
            "bgp peer t: families ipv4, ipv6 -> ipv4, its session restarts after 5s, and until then its routes carry the graceful-shutdown community"
        ]
    );
}
