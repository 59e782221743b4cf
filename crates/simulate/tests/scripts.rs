//! Tests of invalid scripts. All problems are reported together, each with file and line.

use simulate::script::parse;

/// Invalid scripts with the expected messages.
const WRONG: &[(&str, &[&str])] = &[
    ("duration = \"5\"", &["s.toml:1:12: invalid duration \"5\" for \"duration\""]),
    ("durration = \"5s\"", &["s.toml:1:1: unknown key \"durration\" outside of a section"]),
    (
        "[cluster]\nmachines = 129\nbackends = 0",
        &[
            "s.toml:2:12: \"machines\" must be between 1 and 128, got 129",
            "s.toml:3:12: \"backends\" must be between 1 and 10000, got 0",
        ],
    ),
    ("[cluster]\ntable_size = 1000", &["s.toml:2:14: \"table_size\" must be a prime, got 1000"]),
    (
        "[traffic]\nlifetimes = \"pareto\"",
        &["s.toml:2:13: \"lifetimes\" must be \"exponential\", \"log-normal\" or \"fixed\", got \"pareto\""],
    ),
    ("[router]\nbuckets = 64", &["s.toml:2:11: \"buckets\" needs hashing = \"resilient\""]),
    (
        "[router]\nhashing = \"resilient\"\nbuckets = 3",
        &["s.toml:3:11: \"buckets\" must be between 4 and 1048576, got 3"],
    ),
    (
        "[traffic]\npacket_interval = \"20s\"\n[flow_tables]\nidle = \"10s\"",
        &["s.toml:4:8: \"idle\" must be between 20001ms and 24h, got \"10s\""],
    ),
    ("[[event]]\nmachine_leaves = \"m1\"", &["event[0] needs an \"at\" key"]),
    ("[[event]]\nat = \"5s\"", &["\"event[0]\" has no change"]),
    ("[[event]]\nat = \"5s\"\nmachine_leaves = \"m1\"\nhash_key = \"new\"", &["\"event[0]\" has 2 changes"]),
    ("[[event]]\nat = \"5s\"\nmachine_leaves = \"m9\"", &["s.toml:3:18: unknown machine \"m9\""]),
    (
        "[[event]]\nat = \"5s\"\nmachine_joins = \"m2\"",
        &["s.toml:3:17: machine \"m2\" is already in the cluster at that time"],
    ),
    (
        "[[event]]\nat = \"5s\"\nmachine_leaves = \"m2\"\n[[event]]\nat = \"6s\"\nmachine_leaves = \"m2\"",
        &["s.toml:6:18: machine \"m2\" is not in the cluster at that time"],
    ),
    (
        "[[event]]\nat = \"5s\"\nhash_key = \"new\"\n[[event]]\nat = \"4s\"\nhash_key = \"new\"",
        &["s.toml:5:6: \"at\" must be between 5s and 5m, got \"4s\""],
    ),
    ("[[event]]\nat = \"6m\"\nhash_key = \"new\"", &["\"at\" must be between 0s and 5m, got \"6m\""]),
    (
        "[[event]]\nat = \"5s\"\nmachine_leaves = \"m1\"\nskew = \"2s\"",
        &["\"skew\" needs a change of a backend or of the hash key"],
    ),
    (
        "[[event]]\nat = \"5s\"\nhash_key = \"old\"\nfor = \"2s\"",
        &["\"hash_key\" must be \"new\", got \"old\"", "\"for\" needs table_full"],
    ),
    (
        "[[event]]\nat = \"5s\"\nweight = { backend = \"b11\", to = -1 }",
        &["unknown backend \"b11\"", "\"to\" must be between 0 and 65535, got -1"],
    ),
    (
        "[[event]]\nat = \"5s\"\nbackend_down = \"b1\"\n[[event]]\nat = \"6s\"\nbackend_drains = \"b1\"",
        &["s.toml:6:18: backend \"b1\" is down at that time"],
    ),
    ("[[event]]\nat = \"5s\"\ntable_full = \"m7\"", &["unknown machine \"m7\""]),
    ("event = 7", &["s.toml:1:9: \"event\" must be a list of tables [[event]], got 7"]),
];

#[test]
fn parse_reports_all_problems_with_their_place() {
    for (text, wanted) in WRONG {
        let problems = parse(text, "s.toml".as_ref(), None).unwrap_err();
        let messages: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(messages.len(), wanted.len(), "{text}: {messages:#?}");
        for wanted in *wanted {
            assert!(
                messages.iter().any(|message| message.contains(wanted)),
                "{text}:\n{wanted}\n{messages:#?}"
            );
        }
        assert!(messages.iter().all(|message| message.starts_with("s.toml:")), "{messages:?}");
    }
}

#[test]
fn empty_script_breaks_no_flow() {
    let scenario = parse("[traffic]\nflows = 1000", "s.toml".as_ref(), None).unwrap();
    assert_eq!((scenario.machines.len(), scenario.backends.len(), scenario.duration_ms), (4, 10, 300_000));
    // By default, flows begin at the same rate as they end.
    assert!((scenario.traffic.arrivals - 1_000.0 / 120.0).abs() < 1e-9);
    let outcome = simulate::run(&scenario, simulate::Hashing::Maglev, true).unwrap();
    assert_eq!(outcome.counts, simulate::Counts::default());
    // The expected number is 1,000 flows at the start plus 8.33 per second for 300 s. The limits
    // are five standard deviations from this number.
    assert!((3_240..3_760).contains(&outcome.flows), "{}", outcome.flows);
}

#[test]
fn example_script_is_valid_and_names_every_key() {
    let text = include_str!("../../../config/simulate.toml");
    let scenario = parse(text, "simulate.toml".as_ref(), None).unwrap();
    assert_eq!((scenario.machines.len(), scenario.traffic.flows), (64, 10_000_000));
    assert_eq!(scenario.events.iter().filter(|event| !event.label.is_empty()).count(), 6);
    // The message for an unknown key lists the known keys.
    for section in ["", "[cluster]", "[traffic]", "[router]", "[flow_tables]", "[[event]]\nat = \"1s\""] {
        let problems = parse(&format!("{section}\nx = 1"), "s.toml".as_ref(), None).unwrap_err();
        let unknown = problems.iter().find(|problem| problem.message.starts_with("unknown key")).unwrap();
        let keys = unknown.help.as_deref().and_then(|help| help.strip_prefix("known keys: ")).unwrap();
        for key in keys.split(", ") {
            assert!(text.contains(key), "{key}");
        }
    }
}
