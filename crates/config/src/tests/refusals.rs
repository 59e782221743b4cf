//! Tests of unknown keys, wrong types, and keys in the wrong table. Each case changes a small valid
//! file and lists all expected problems.

use std::path::Path;

use super::{BASE, EXAMPLE, KEY, all, check, parsed, printed};
use crate::parse;

#[test]
fn the_base_has_no_problem() {
    assert!(all(BASE).is_empty());
}

#[test]
fn keys_are_checked() {
    check(&[
        (
            "interfaces",
            "interface",
            &[
                (
                    4,
                    "machine.lb1.interfaces",
                    "[machine.lb1] needs an \"interfaces\" key",
                    "\"interfaces\" is a list of interface names, for example interfaces = [\"eth0\"]",
                ),
                (
                    6,
                    "machine.lb1.interface",
                    "unknown key \"interface\" in [machine.lb1]",
                    "did you mean \"interfaces\"?",
                ),
            ],
        ),
        (
            "batch = 64",
            "zzz = 64",
            &[(
                8,
                "io.zzz",
                "unknown key \"zzz\" in [io]",
                "known keys: batch, busy_poll, flows_per_thread, fragments, frame_size, frames_per_queue, icmp, idle, limit_sources, max_vips, mode, next_hop, no_socket, queues, source_ports, steering, threads",
            )],
        ),
        (
            "kind = \"gue\"",
            "kind = \"gue\"\ntoo_big = \"cut\"",
            &[(
                11,
                "encapsulation.t.too_big",
                "\"too_big\" must be \"fragment-inner\", \"fragment-outer\" or \"drop\", got \"cut\"",
                "",
            )],
        ),
        (
            "batch = 64",
            "frames_per_queue = 512\nfragments = { buffered = 129 }",
            &[(9, "io.fragments.buffered", "\"buffered\" must be between 8 and 128, got 129", "")],
        ),
        (
            "batch = 64",
            "icmp = { replies_per_source = 1_000_001 }",
            &[(
                8,
                "io.icmp.replies_per_source",
                "\"replies_per_source\" must be between 0 and 1000000, got 1000001",
                "",
            )],
        ),
        ("[io]", "[oi]", &[(7, "oi", "unknown section [oi]", "did you mean \"io\"?")]),
        (
            "name = \"c\"",
            "name = \"c\"\nhash_key = 1",
            &[(
                3,
                "cluster.hash_key",
                "unknown key \"hash_key\" in [cluster]",
                "did you mean \"hash_key_file\"?",
            )],
        ),
        (
            "hash_key_file",
            "\"hash\\u0000key\"",
            &[
                (
                    1,
                    "cluster.hash_key_file",
                    "[cluster] needs a \"hash_key_file\" key",
                    "\"hash_key_file\" is a file with 32 hex digits, the same on all machines, for example hash_key_file = \"secrets/hash.key\"",
                ),
                (
                    3,
                    "cluster.\"hash\\0key\"",
                    "unknown key \"hash\\0key\" in [cluster]",
                    "known keys: drain_time, flow_timeouts, hash_key_file, max_moved, mtu, name, peer_checks, table_size, upstream_tunnels, watch",
                ),
            ],
        ),
        (
            "name = \"c\"",
            "",
            &[(1, "cluster.name", "[cluster] needs a \"name\" key", "\"name\" is the name of the cluster")],
        ),
        (
            "pool = \"p\"",
            "pool = \"p\", poll = 1",
            &[(
                16,
                "vip.v.services[0].poll",
                "unknown key \"poll\" in vip.v.services[0]",
                "did you mean \"pool\"?",
            )],
        ),
        (
            "name = \"b1\", ",
            "",
            &[(
                13,
                "pool.p.backends[0].name",
                "pool.p.backends[0] needs a \"name\" key",
                "\"name\" is the name of the backend, unique in the cluster",
            )],
        ),
        (
            "[machine.lb1]",
            "[machine.\"lb 1\"]",
            &[(
                4,
                "machine.\"lb 1\"",
                "invalid name \"lb 1\"",
                "use 1 to 64 letters, digits, '.', '_' or '-', and do not start with '.' or '-'",
            )],
        ),
    ]);
}

#[test]
fn the_admin_socket_is_checked() {
    check(&[
        (
            "[io]",
            "[admin]\nsocket = { path = \"run/admin.sock\" }\n[io]",
            &[(
                8,
                "admin.socket.path",
                "\"path\" must be an absolute path of at most 107 bytes, got \"run/admin.sock\"",
                "for example \"/run/sluicegate/admin.sock\"",
            )],
        ),
        (
            "[io]",
            "[admin]\nsocket = { path = \"/run/a\", mode = \"0777\" }\n[io]",
            &[(
                8,
                "admin.socket.mode",
                "\"mode\" must be four octal digits without execute bits, got \"0777\"",
                "for example \"0660\"",
            )],
        ),
    ]);
}

#[test]
fn an_empty_file_lacks_its_sections() {
    let shown: Vec<String> = all("").iter().map(printed).collect();
    assert_eq!(
        shown,
        [
            "etc/a.toml:1:1: cluster: missing section [cluster]; help: add a section [cluster] with name and hash_key_file",
            "etc/a.toml:1:1: machine: missing section [machine.NAME]; help: add a section [machine.NAME] for each machine",
            "etc/a.toml:1:1: warning: vip: no VIP is configured, so no packets are forwarded; help: add a section [vip.NAME] for each VIP",
        ]
    );
}

#[test]
fn all_problems_of_a_file_are_reported_in_its_order() {
    let text = BASE
        .replace("name = \"c\"", "name = 3\nwatch = 1")
        .replace("batch = 64", "batch = 0\nbatches = 1")
        .replace("198.18.0.1", "b1.example")
        .replace("[80]", "[0]");
    let lines: Vec<_> = all(&text).iter().map(|problem| (problem.line(), problem.column())).collect();
    let expected = [(2, 8), (3, 9), (9, 9), (10, 1), (15, 38), (18, 24)];
    assert_eq!(lines, expected.map(|(line, column)| (Some(line), Some(column))));
}

#[test]
fn columns_count_characters() {
    let problems = all(&BASE.replace("batch = 64", "idle = { \"ü\" = 1, then = 3 }"));
    let columns: Vec<_> = problems.iter().map(|problem| (problem.field.as_str(), problem.column())).collect();
    assert_eq!(columns, [("io.idle.\"ü\"", Some(10)), ("io.idle.then", Some(26))]);
}

#[test]
fn syntax_error_hides_no_wrong_values() {
    let text = BASE.replace("name = \"c\"", "name = \"c").replace("batch = 64", "batch = 0");
    let problems = all(&text);
    let shown: Vec<_> = problems.iter().map(|problem| (problem.line(), problem.field.as_str())).collect();
    assert_eq!(shown.last(), Some(&(Some(8), "io.batch")), "{problems:?}");
    assert_eq!((shown[0], shown.len()), ((Some(2), ""), 2));
    assert!(problems[0].message.starts_with("invalid TOML ("), "{}", problems[0]);
    let lost = all(&BASE.replace("name = \"c\"", "= 1").replace("[pool.p]", "[pool.p"));
    assert!(lost.iter().all(|problem| problem.field.is_empty()), "{lost:?}");
    let twice = all(&format!("{BASE}[pool.p]\nbackends = 1\n"));
    assert_eq!((twice[0].line(), twice[0].field.as_str()), (Some(17), ""));
    assert_eq!((twice.len(), &*twice[0].message), (1, "section [pool.p] is defined twice"));
    assert_eq!(twice[0].help.as_deref(), Some("the first definition is on line 11"));
}

#[test]
fn a_long_value_is_cut_in_its_message() {
    let problems = all(&BASE.replace("name = \"c\"", &format!("name = \"{}\"", "é".repeat(5_000))));
    assert!(problems[0].message.ends_with("of 10000 bytes") && problems[0].message.len() < 200);
    let problems = all(&BASE.replace("batch = 64", &format!("batch = {}", "9".repeat(5_000))));
    assert!(problems[0].message.ends_with("got a number of 5000 digits"), "{problems:?}");
}

#[test]
fn the_key_is_never_printed() {
    let (config, _) = parsed(EXAMPLE).unwrap();
    assert!(format!("{config:?}").contains("HashKey(redacted)"));
    assert!(!format!("{config:?}").contains("0, 1, 2, 3"));
    let wrong = [
        &KEY[1..],
        "000102030405060708090a0b0c0d0e0g",
        "",
        &"0".repeat(33),
        "+00102030405060708090a0b0c0d0e0f",
    ];
    for key in wrong {
        let problems = parse(EXAMPLE, Path::new("a.toml"), &|_| Ok(key.to_owned())).unwrap_err();
        assert_eq!(
            (problems.len(), problems.iter().next().unwrap().field.as_str()),
            (1, "cluster.hash_key_file")
        );
        assert!(key.is_empty() || !problems.to_string().contains(key), "{problems}");
    }
    let pasted = all(&BASE.replace("\"k\"", &format!("\"{KEY}\"")));
    assert_eq!(
        (pasted.len(), pasted[0].message.as_str()),
        (1, "the value looks like the key itself, not like the name of a file")
    );
}

#[test]
fn white_space_around_a_key_is_cut_off_and_capitals_count() {
    let key = "\n 000102030405060708090A0B0C0D0E0F \r\n";
    let (config, _) = parse(EXAMPLE, Path::new("a.toml"), &|_| Ok(key.to_owned())).unwrap();
    assert_eq!(config.cluster().hash_key, parsed(EXAMPLE).unwrap().0.cluster().hash_key);
    let high = parse(EXAMPLE, Path::new("a.toml"), &|_| Ok("f1E2".repeat(8))).unwrap().0;
    assert_eq!(high.cluster().hash_key.bytes()[..4], [0xf1, 0xe2, 0xf1, 0xe2]);
}

#[test]
fn what_is_wrong_with_vlan_policies_is_reported() {
    let policy = |lines: &str| BASE.replace("[io]", &format!("[machine.lb1.vlan.eth0]\n{lines}\n[io]"));
    let reported = |lines: &str| {
        let problems = all(&policy(lines));
        problems.iter().map(|p| (p.field.to_owned(), printed(p))).collect::<Vec<_>>()
    };
    for valid in [
        "",
        "policy = \"keep\"",
        "policy = \"strip\"",
        "policy = \"translate\"\ntranslate = [{ from = [], to = [1] }, { from = [4094, 1], to = [] }, { to = [2, 3] }]",
    ] {
        assert_eq!(reported(valid), [], "{valid}");
    }
    for (lines, field, words) in [
        (
            "policy = \"pop\"",
            "policy",
            "machine.lb1.vlan.eth0.policy: \"policy\" must be \"keep\", \"translate\" or \"strip\", got \"pop\"",
        ),
        (
            "policy = \"translate\"",
            "translate",
            "machine.lb1.vlan.eth0.translate: [machine.lb1.vlan.eth0] needs a \"translate\" key; help: \"translate\" is a list of rules, for example translate = [{ from = [100], to = [200] }]",
        ),
        (
            "policy = \"strip\"\ntranslate = []",
            "translate",
            "machine.lb1.vlan.eth0.translate: \"translate\" needs policy = \"translate\"; help: remove \"translate\"",
        ),
        (
            "policy = \"translate\"\ntranslate = []",
            "translate",
            "machine.lb1.vlan.eth0.translate: \"translate\" must not be empty; help: for example [{ from = [100], to = [200] }]",
        ),
        (
            "policy = \"translate\"\ntranslate = [{ from = [1] }]",
            "translate[0].to",
            "machine.lb1.vlan.eth0.translate[0].to: machine.lb1.vlan.eth0.translate[0] needs a \"to\" key; help: \"to\" is a list of VLANs, outermost first, for example to = [100]",
        ),
        (
            "policy = \"translate\"\ntranslate = [{ to = [0] }]",
            "translate[0].to[0]",
            "machine.lb1.vlan.eth0.translate[0].to[0]: \"to[0]\" must be between 1 and 4094, got 0",
        ),
        (
            "policy = \"translate\"\ntranslate = [{ to = [1], from = [4095] }]",
            "translate[0].from[0]",
            "machine.lb1.vlan.eth0.translate[0].from[0]: \"from[0]\" must be between 1 and 4094, got 4095",
        ),
        (
            "policy = \"translate\"\ntranslate = [{ to = [1, 2, 3] }]",
            "translate[0].to",
            "machine.lb1.vlan.eth0.translate[0].to: \"to\" has 3 VLANs, and the limit is 2; help: list the outermost VLAN first",
        ),
        (
            "policy = \"translate\"\ntranslate = [{ to = [1], outer = \"q\" }]",
            "translate[0].outer",
            "machine.lb1.vlan.eth0.translate[0].outer: \"outer\" must be \"802.1q\" or \"802.1ad\", got \"q\"",
        ),
        (
            "policy = \"translate\"\ntranslate = [{ to = [], outer = \"802.1ad\" }]",
            "translate[0].outer",
            "machine.lb1.vlan.eth0.translate[0].outer: \"outer\" needs a tag in to; help: remove \"outer\"",
        ),
        (
            "policy = \"translate\"\ntranslate = [{ to = [1] }, { from = [2], to = [3] }]",
            "translate[1]",
            "machine.lb1.vlan.eth0.translate[1]: this rule is never used; help: an earlier rule without \"from\" matches every frame",
        ),
        (
            "policy = \"translate\"\ntranslate = [{ from = [2], to = [1] }, { from = [2], to = [3] }]",
            "translate[1]",
            "machine.lb1.vlan.eth0.translate[1]: this rule is never used; help: an earlier rule has the same \"from\"",
        ),
    ] {
        let problems = reported(lines);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].0, format!("machine.lb1.vlan.eth0.{field}"));
        assert!(problems[0].1.contains(words), "{problems:?}");
    }
    let strange = all(&BASE.replace("[io]", "[machine.lb1.vlan.eth1]\n[io]"));
    assert_eq!(strange.len(), 1);
    assert_eq!(
        (strange[0].field.as_str(), strange[0].message.as_str(), strange[0].help.as_deref()),
        ("machine.lb1.vlan.eth1", "machine has no interface \"eth1\"", Some("did you mean \"eth0\"?"))
    );
}
