//! Keys, types, ranges and places: one change to a small valid file, and all the problems that it must give.

use std::path::Path;

use super::{BASE, EXAMPLE, KEY, all, check, parsed};
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
                (4, "machine.lb1.interfaces", "nothing", "list of interface names"),
                (
                    6,
                    "machine.lb1.interface",
                    "unknown key",
                    "addresses, interfaces, router_id, shard, vlan (did you mean \"interfaces\"?)",
                ),
            ],
        ),
        (
            "batch = 64",
            "zzz = 64",
            &[(
                8,
                "io.zzz",
                "an unknown key",
                "batch, busy_poll, flows_per_thread, fragments, frame_size, frames_per_queue, icmp, ",
            )],
        ),
        (
            "kind = \"gue\"",
            "kind = \"gue\"\ntoo_big = \"cut\"",
            &[(11, "encapsulation.t.too_big", "\"cut\"", "fragment-inner")],
        ),
        (
            "batch = 64",
            "frames_per_queue = 512\nfragments = { buffered = 129 }",
            &[(9, "io.fragments.buffered", "129", "8 to 128")],
        ),
        (
            "batch = 64",
            "icmp = { replies_to_source = 1_000_001 }",
            &[(8, "io.icmp.replies_to_source", "1000001", "0 to 1000000")],
        ),
        (
            "[io]",
            "[oi]",
            &[(
                7,
                "oi",
                "unknown",
                "admin, bgp, check, cluster, encapsulation, include, io, log, machine, pool, prefix_group, remote, schema, trace, vip (did you mean \"io\"?)",
            )],
        ),
        (
            "name = \"c\"",
            "name = \"c\"\nhash_key = 1",
            &[(3, "cluster.hash_key", "unknown", "did you mean \"hash_key_file\"?")],
        ),
        (
            "hash_key_file",
            "\"hash\\u0000key\"",
            &[
                (1, "cluster.hash_key_file", "nothing", "openssl rand -hex 16"),
                (3, "cluster.\"hash\\0key\"", "unknown", ""),
            ],
        ),
        ("name = \"c\"", "", &[(1, "cluster.name", "nothing", "")]),
        ("pool = \"p\"", "pool = \"p\", poll = 1", &[(16, "vip.v.services[0].poll", "unknown", "\"pool\"")]),
        ("name = \"b1\", ", "", &[(13, "pool.p.backends[0].name", "nothing", "unique")]),
        ("[machine.lb1]", "[machine.\"lb 1\"]", &[(4, "machine.\"lb 1\"", "\"lb 1\"", "a name of 1 to 64")]),
    ]);
}

#[test]
fn the_admin_socket_is_checked() {
    check(&[
        (
            "[io]",
            "[admin]\nsocket = { path = \"run/admin.sock\" }\n[io]",
            &[(8, "admin.socket.path", "\"run/admin.sock\"", "an absolute path of at most 107 bytes")],
        ),
        (
            "[io]",
            "[admin]\nsocket = { path = \"/run/a\", mode = \"0777\" }\n[io]",
            &[(
                8,
                "admin.socket.mode",
                "\"0777\"",
                "four octal digits without execute bits, such as \"0660\"",
            )],
        ),
    ]);
}

#[test]
fn software_steering_says_over_how_many_threads_and_packet_sockets_have_none() {
    check(&[
        ("batch = 64", "steering = \"software\"\nthreads = 4", &[]),
        ("batch = 64", "steering = \"hardware\"", &[]),
        ("batch = 64", "threads = 4", &[(8, "io.threads", "4", "steering = \"software\" as well")]),
        ("batch = 64", "steering = \"software\"", &[(7, "io.threads", "nothing", "1 to 64")]),
        (
            "batch = 64",
            "steering = \"soft\"",
            &[(8, "io.steering", "\"soft\"", "\"hardware\", \"software\"")],
        ),
        ("batch = 64", "steering = \"software\"\nthreads = 0", &[(9, "io.threads", "0", "1 to 64")]),
        ("batch = 64", "steering = \"software\"\nthreads = 65", &[(9, "io.threads", "65", "1 to 64")]),
        (
            "batch = 64",
            "mode = \"af-packet\"\nsteering = \"software\"\nthreads = 4",
            &[(9, "io.steering", "\"software\"", "\"hardware\": with mode = \"af-packet\" the kernel")],
        ),
    ]);
}

#[test]
fn busy_polling_has_bounds_and_packet_sockets_have_none() {
    check(&[
        ("batch = 64", "busy_poll = 1", &[]),
        ("batch = 64", "busy_poll = 1024", &[]),
        (
            "batch = 64",
            "own_ports = \"6000-7000\"",
            &[(8, "io.own_ports", "\"6000-7000\"", "1 to 4,096 ports from 1024 to 65535, without 6080")],
        ),
        (
            "batch = 64",
            "own_ports = \"80-90\"",
            &[(8, "io.own_ports", "\"80-90\"", "1 to 4,096 ports from 1024 to 65535, without 6080")],
        ),
        (
            "batch = 64",
            "own_ports = \"50000-60000\"",
            &[(8, "io.own_ports", "\"50000-60000\"", "1 to 4,096 ports from 1024 to 65535, without 6080")],
        ),
        ("batch = 64", "busy_poll = 0", &[(8, "io.busy_poll", "0", "1 to 1024")]),
        ("batch = 64", "busy_poll = 1025", &[(8, "io.busy_poll", "1025", "1 to 1024")]),
        ("batch = 64", "busy_poll = true", &[(8, "io.busy_poll", "true", "an integer")]),
        (
            "batch = 64",
            "mode = \"af-packet\"\nbusy_poll = 64",
            &[(9, "io.busy_poll", "64", "nothing with mode = \"af-packet\"")],
        ),
    ]);
}

#[test]
fn types_and_ranges_are_checked() {
    check(&[
        (
            "",
            "schema = 2\n",
            &[(1, "schema", "2, of a later version", "1, the newest that this version reads")],
        ),
        ("", "schema = 0\n", &[(1, "schema", "0", "an integer from 1 to 1")]),
        ("batch = 64", "batch = 0x40", &[]),
        ("batch = 64", "batch = 0x101", &[(8, "io.batch", "0x101", "from 1 to 256")]),
        ("batch = 64", "max_vips = 1", &[]),
        ("batch = 64", "batch = 0", &[(8, "io.batch", "0", "an integer from 1 to 256")]),
        ("batch = 64", "batch = 257", &[(8, "io.batch", "257", "1 to 256")]),
        ("batch = 64", "batch = -1", &[(8, "io.batch", "-1", "1 to 256")]),
        (
            "batch = 64",
            "batch = 18446744073709551617",
            &[(8, "io.batch", "18446744073709551617", "1 to 256")],
        ),
        ("batch = 64", "batch = \"64\"", &[(8, "io.batch", "\"64\"", "an integer")]),
        ("batch = 64", "batch = 64.0", &[(8, "io.batch", "64.0", "an integer")]),
        ("batch = 64", "batch = true", &[(8, "io.batch", "true", "an integer")]),
        ("batch = 64", "batch = 1979-05-27", &[(8, "io.batch", "1979-05-27", "an integer")]),
        ("batch = 64", "batch = [64]", &[(8, "io.batch", "a list of 1", "an integer")]),
        ("batch = 64", "batch = { x = 1 }", &[(8, "io.batch", "a table", "an integer")]),
        (
            "batch = 64",
            "flows_per_thread = 1023",
            &[(8, "io.flows_per_thread", "1023", "from 1024 to 268435456")],
        ),
        ("batch = 64", "flows_per_thread = 268435457", &[(8, "io.flows_per_thread", "268435457", "")]),
        ("batch = 64", "frames_per_queue = 5000", &[(8, "io.frames_per_queue", "5000", "a power of two")]),
        ("batch = 64", "frames_per_queue = 256", &[(8, "io.frames_per_queue", "256", "from 512 to 65536")]),
        ("batch = 64", "frame_size = 3072", &[(8, "io.frame_size", "3072", "2048 or 4096")]),
        ("batch = 64", "frame_size = 8192", &[(8, "io.frame_size", "8192", "2048 or 4096")]),
        ("batch = 64", "queues = 0", &[(8, "io.queues", "0", "1 to 256")]),
        ("batch = 64", "max_vips = 0", &[(8, "io.max_vips", "0", "1 to 1048576")]),
        ("batch = 64", "no_socket = \"dropp\"", &[(8, "io.no_socket", "\"dropp\"", "\"pass\", \"drop\"")]),
        ("batch = 64", "next_hop = 1", &[(8, "io.next_hop", "1", "\"resolve\", \"reflect\"")]),
        ("batch = 64", "mode = \"dpdk\"", &[(8, "io.mode", "\"dpdk\"", "\"af-xdp\", \"af-packet\"")]),
        ("batch = 64", "idle = { spin = \"2s\" }", &[(8, "io.idle.spin", "\"2s\"", "from \"0s\" to \"1s\"")]),
        ("batch = 64", "idle = { spin = 50 }", &[(8, "io.idle.spin", "50", "us, ms, s, m or h")]),
        ("batch = 64", "idle = { then = \"die\" }", &[(8, "io.idle.then", "\"die\"", "\"sleep\", \"spin\"")]),
        ("batch = 64", "idle = \"50us\"", &[(8, "io.idle", "\"50us\"", "a table")]),
        ("", "log = 3\n", &[(1, "log", "3", "a table")]),
        (
            "name = \"c\"",
            "name = \"c\"\ntable_size = 65536",
            &[(3, "cluster.table_size", "65536", "a prime (the next is 65537)")],
        ),
        (
            "name = \"c\"",
            "name = \"c\"\ntable_size = 97",
            &[(3, "cluster.table_size", "97", "101 to 16777213")],
        ),
        (
            "name = \"c\"",
            "name = \"c\"\ndrain_time = \"25h\"",
            &[(3, "cluster.drain_time", "\"25h\"", "from \"0s\" to \"24h\"")],
        ),
        (
            "name = \"c\"",
            "name = \"c\"\nmax_moved = \"101%\"",
            &[(3, "cluster.max_moved", "\"101%\"", "\"0%\" to \"100%\"")],
        ),
        (
            "name = \"c\"",
            "name = \"c\"\nflow_timeouts = { new = \"0s\", established = \"9s\", closing = \"11m\", udp = \"25h\" }",
            &[
                (3, "cluster.flow_timeouts.new", "\"0s\"", "from \"1s\" to \"2m\""),
                (3, "cluster.flow_timeouts.established", "\"9s\"", "from \"10s\" to \"24h\""),
                (3, "cluster.flow_timeouts.closing", "\"11m\"", "from \"1s\" to \"10m\""),
                (3, "cluster.flow_timeouts.udp", "\"25h\"", "from \"1s\" to \"24h\""),
            ],
        ),
        ("name = \"c\"", "name = \"\"", &[(2, "cluster.name", "\"\"", "a name of 1 to 64")]),
        ("name = \"c\"", "name = \"a\\nb\"", &[(2, "cluster.name", "\"a\\nb\"", "a name")]),
        (
            "\"eth0\"",
            "\"a-16-bytes-name-\", \"eth0/1\", \"eth0\", \"eth0\"",
            &[
                (6, "machine.lb1.interfaces[0]", "\"a-16-bytes-name-\"", "1 to 15 bytes"),
                (6, "machine.lb1.interfaces[1]", "\"eth0/1\"", "1 to 15 bytes"),
                (6, "machine.lb1.interfaces[3]", "\"eth0\"", "each interface once"),
            ],
        ),
        (
            "[\"eth0\"]",
            "[\"a0\", \"a1\", \"a2\", \"a3\", \"a4\", \"a5\", \"a6\", \"a7\", \"a8\", \"a9\", \"b0\", \"b1\", \"b2\", \"b3\", \
             \"b4\", \"b5\", \"b6\"]",
            &[(6, "machine.lb1.interfaces[16]", "\"b6\"", "16 interfaces at most")],
        ),
        ("[\"eth0\"]", "[]", &[(6, "machine.lb1.interfaces", "an empty list", "at least one")]),
        (
            "[\"192.0.2.1\"]",
            "\"192.0.2.1\"",
            &[
                (5, "machine.lb1.addresses", "\"192.0.2.1\"", "a list"),
                (13, "pool.p.backends[0].address", "198.18.0.1", ""),
            ],
        ),
        (
            "",
            "log = { level = \"loud\", format = \"xml\" }\n",
            &[
                (1, "log.level", "\"loud\"", "\"error\", \"warn\", \"info\", \"debug\", \"trace\""),
                (1, "log.format", "\"xml\"", "\"human\", \"journald\", \"json\""),
            ],
        ),
    ]);
}

#[test]
fn an_empty_file_lacks_its_sections() {
    let shown: Vec<String> = all("").iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "etc/a.toml:1:1: cluster: found nothing, allowed a section [cluster]",
            "etc/a.toml:1:1: machine: found nothing, allowed a section [machine.NAME] for each machine, at least one",
            "etc/a.toml:1:1: warning: vip: found no VIP: nothing is served, allowed a section [vip.NAME] for each VIP",
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
fn a_syntax_error_does_not_hide_wrong_values_and_invents_no_missing_ones() {
    let text = BASE.replace("name = \"c\"", "name = \"c").replace("batch = 64", "batch = 0");
    let problems = all(&text);
    let shown: Vec<_> = problems.iter().map(|problem| (problem.line(), problem.field.as_str())).collect();
    assert_eq!(shown.last(), Some(&(Some(8), "io.batch")), "{problems:?}");
    assert_eq!((shown[0], shown.len()), ((Some(2), ""), 2));
    assert!(problems[0].found.starts_with("a syntax error ("), "{}", problems[0]);
    let lost = all(&BASE.replace("name = \"c\"", "= 1").replace("[pool.p]", "[pool.p"));
    assert!(lost.iter().all(|problem| problem.field.is_empty()), "{lost:?}");
    let twice = all(&format!("{BASE}[pool.p]\nbackends = 1\n"));
    assert_eq!((twice[0].line(), twice[0].field.as_str()), (Some(17), ""));
    assert_eq!((twice.len(), &*twice[0].found), (1, "a second section \"pool.p\", after line 11"));
}

#[test]
fn a_long_value_is_cut_in_its_message() {
    let problems = all(&BASE.replace("name = \"c\"", &format!("name = \"{}\"", "é".repeat(5_000))));
    assert!(problems[0].found.ends_with("of 10000 bytes") && problems[0].found.len() < 200);
    let problems = all(&BASE.replace("batch = 64", &format!("batch = {}", "9".repeat(5_000))));
    assert_eq!(problems[0].found.as_str(), "a number of 5000 digits");
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
    assert_eq!((pasted.len(), pasted[0].found.as_str()), (1, "what looks like the key itself"));
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
        problems.iter().map(|p| (p.field.to_owned(), p.to_string())).collect::<Vec<_>>()
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
        ("policy = \"pop\"", "policy", "\"keep\", \"translate\", \"strip\""),
        ("policy = \"translate\"", "translate", "1 to 64 rules"),
        ("policy = \"strip\"\ntranslate = []", "translate", "unless policy = \"translate\""),
        ("policy = \"translate\"\ntranslate = []", "translate", "an empty list"),
        ("policy = \"translate\"\ntranslate = [{ from = [1] }]", "translate[0].to", "at most two VLANs"),
        ("policy = \"translate\"\ntranslate = [{ to = [0] }]", "translate[0].to[0]", "from 1 to 4094"),
        ("policy = \"translate\"\ntranslate = [{ to = [1], from = [4095] }]", "translate[0].from[0]", "4094"),
        ("policy = \"translate\"\ntranslate = [{ to = [1, 2, 3] }]", "translate[0].to", "at most two VLANs"),
        ("policy = \"translate\"\ntranslate = [{ to = [1], outer = \"q\" }]", "translate[0].outer", "802.1q"),
        (
            "policy = \"translate\"\ntranslate = [{ to = [], outer = \"802.1ad\" }]",
            "translate[0].outer",
            "leave untagged",
        ),
        (
            "policy = \"translate\"\ntranslate = [{ to = [1] }, { from = [2], to = [3] }]",
            "translate[1]",
            "no rule behind one without from",
        ),
        (
            "policy = \"translate\"\ntranslate = [{ from = [2], to = [1] }, { from = [2], to = [3] }]",
            "translate[1]",
            "one rule for the same VLANs",
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
        (strange[0].field.as_str(), strange[0].allowed.as_str()),
        ("machine.lb1.vlan.eth1", "one of interfaces: eth0")
    );
}
