//! Scripts that are wrong: every problem at once, with file, line, field, what was found and what is allowed.

use simulate::script::parse;

/// Each script, and what is said of it.
const WRONG: &[(&str, &[&str])] = &[
    (
        "duration = \"5\"",
        &[
            "s.toml:1:12: duration: found \"5\", allowed a whole number with us, ms, s, m or h, from \"1s\" to \"24h\"",
        ],
    ),
    (
        "durration = \"5s\"",
        &[
            "s.toml:1:1: durration: found an unknown key, allowed cluster, duration, event, flow_tables, router, seed, traffic (did you mean \"duration\"?)",
        ],
    ),
    (
        "[cluster]\nmachines = 129\nbackends = 0",
        &[
            "s.toml:2:12: cluster.machines: found 129, allowed an integer from 1 to 128",
            "s.toml:3:12: cluster.backends: found 0, allowed an integer from 1 to 10000",
        ],
    ),
    (
        "[cluster]\ntable_size = 1000",
        &["s.toml:2:14: cluster.table_size: found 1000, allowed a prime, such as 65537"],
    ),
    (
        "[traffic]\nlifetimes = \"pareto\"",
        &[
            "s.toml:2:13: traffic.lifetimes: found \"pareto\", allowed \"exponential\", \"log-normal\", \"fixed\"",
        ],
    ),
    (
        "[router]\nbuckets = 64",
        &["s.toml:2:11: router.buckets: found 64, allowed nothing here: it is for hashing = \"resilient\""],
    ),
    (
        "[router]\nhashing = \"resilient\"\nbuckets = 3",
        &["s.toml:3:11: router.buckets: found 3, allowed an integer from 4 to 1048576"],
    ),
    (
        "[traffic]\npacket_interval = \"20s\"\n[flow_tables]\nidle = \"10s\"",
        &[
            "s.toml:4:8: flow_tables.idle: found \"10s\", allowed a whole number with us, ms, s, m or h, from \"20001ms\" to \"24h\"",
        ],
    ),
    (
        "[[event]]\nmachine_leaves = \"m1\"",
        &["event[0].at: found nothing, allowed a time from the start, such as \"60s\""],
    ),
    (
        "[[event]]\nat = \"5s\"",
        &[
            "event[0]: found no change, allowed one of machine_leaves, machine_joins, backend_down, backend_up, backend_drains, weight, table_full, hash_key",
        ],
    ),
    (
        "[[event]]\nat = \"5s\"\nmachine_leaves = \"m1\"\nhash_key = \"new\"",
        &["event[0]: found 2 changes, allowed one of machine_leaves,"],
    ),
    (
        "[[event]]\nat = \"5s\"\nmachine_leaves = \"m9\"",
        &[
            "s.toml:3:18: event[0].machine_leaves: found \"m9\", allowed a machine of the cluster (did you mean \"m1\"?)",
        ],
    ),
    (
        "[[event]]\nat = \"5s\"\nmachine_joins = \"m2\"",
        &[
            "s.toml:3:17: event[0].machine_joins: found \"m2\", allowed a machine that is not there at that time",
        ],
    ),
    (
        "[[event]]\nat = \"5s\"\nmachine_leaves = \"m2\"\n[[event]]\nat = \"6s\"\nmachine_leaves = \"m2\"",
        &["s.toml:6:18: event[1].machine_leaves: found \"m2\", allowed a machine that is there at that time"],
    ),
    (
        "[[event]]\nat = \"5s\"\nhash_key = \"new\"\n[[event]]\nat = \"4s\"\nhash_key = \"new\"",
        &[
            "s.toml:5:6: event[1].at: found \"4s\", allowed a whole number with us, ms, s, m or h, from \"5s\" to \"5m\"",
        ],
    ),
    (
        "[[event]]\nat = \"6m\"\nhash_key = \"new\"",
        &["event[0].at: found \"6m\", allowed a whole number with us, ms, s, m or h, from \"0s\" to \"5m\""],
    ),
    (
        "[[event]]\nat = \"5s\"\nmachine_leaves = \"m1\"\nskew = \"2s\"",
        &["event[0].skew: found \"2s\", allowed nothing here: it is for changes that machines take over"],
    ),
    (
        "[[event]]\nat = \"5s\"\nhash_key = \"old\"\nfor = \"2s\"",
        &[
            "event[0].hash_key: found \"old\", allowed \"new\"",
            "event[0].for: found \"2s\", allowed nothing here: it is for table_full",
        ],
    ),
    (
        "[[event]]\nat = \"5s\"\nweight = { backend = \"b11\", to = -1 }",
        &[
            "event[0].weight.backend: found \"b11\", allowed a backend of the cluster (did you mean \"b1\"?)",
            "event[0].weight.to: found -1, allowed an integer from 0 to 65535",
        ],
    ),
    (
        "[[event]]\nat = \"5s\"\nbackend_down = \"b1\"\n[[event]]\nat = \"6s\"\nbackend_drains = \"b1\"",
        &["s.toml:6:18: event[1].backend_drains: found \"b1\", allowed a backend that is up at that time"],
    ),
    (
        "[[event]]\nat = \"5s\"\ntable_full = \"m7\"",
        &["event[0].table_full: found \"m7\", allowed a machine, or \"all\" of the cluster"],
    ),
    ("event = 7", &["s.toml:1:9: event: found 7, allowed tables [[event]]"]),
];

#[test]
fn what_is_wrong_is_said_with_its_place_and_what_is_allowed() {
    for (text, wanted) in WRONG {
        let problems = parse(text, "s.toml".as_ref(), None).unwrap_err();
        let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), wanted.len(), "{text}: {said:#?}");
        for wanted in *wanted {
            assert!(said.iter().any(|said| said.contains(wanted)), "{text}:\n{wanted}\n{said:#?}");
        }
        assert!(said.iter().all(|said| said.starts_with("s.toml:")), "{said:?}");
    }
}

#[test]
fn an_empty_script_breaks_nothing() {
    let scenario = parse("[traffic]\nflows = 1000", "s.toml".as_ref(), None).unwrap();
    assert_eq!((scenario.machines.len(), scenario.backends.len(), scenario.duration_ms), (4, 10, 300_000));
    // As many arrive as end.
    assert!((scenario.traffic.arrivals - 1_000.0 / 120.0).abs() < 1e-9);
    let outcome = simulate::run(&scenario, simulate::Hashing::Maglev, true).unwrap();
    assert_eq!(outcome.counts, simulate::Counts::default());
    // 1,000, and 300 s of 8.33 a second, within five standard deviations.
    assert!((3_240..3_760).contains(&outcome.flows), "{}", outcome.flows);
}

#[test]
fn the_example_is_a_script_and_names_every_key() {
    let text = include_str!("../../../config/simulate.toml");
    let scenario = parse(text, "simulate.toml".as_ref(), None).unwrap();
    assert_eq!((scenario.machines.len(), scenario.traffic.flows), (64, 10_000_000));
    assert_eq!(scenario.events.iter().filter(|event| !event.label.is_empty()).count(), 6);
    // What is refused as unknown lists the keys that are known.
    for section in ["", "[cluster]", "[traffic]", "[router]", "[flow_tables]", "[[event]]\nat = \"1s\""] {
        let problems = parse(&format!("{section}\nx = 1"), "s.toml".as_ref(), None).unwrap_err();
        let unknown = problems.iter().find(|problem| problem.found == "an unknown key").unwrap();
        for key in unknown.allowed.split(", ") {
            assert!(text.contains(key), "{key}");
        }
    }
}
