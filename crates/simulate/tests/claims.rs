//! What the paper says of Maglev hashing and connection tracking, as figures of the simulation.
//!
//! Source: Maglev §3.4: "changes to the lookup table do not lead to connection resets because connections' affinity to Maglev
//! machines does not change at the same time. When connections' affinity to Maglevs does change, resets are proportional to the
//! number of lookup table disruptions."

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use simulate::{Counts, Hashing, Outcome, Scenario, script};

/// 8 machines, 20 backends, 20,000 flows that outlive the script.
fn scenario(events: &str, more: &str) -> Scenario {
    let text = format!(
        "duration = \"60s\"\n[cluster]\nmachines = 8\nbackends = 20\ntable_size = 10007\n\
         [traffic]\nflows = 20_000\nlifetime = \"24h\"\nlifetimes = \"fixed\"\narrivals = 0\n{more}\n{events}"
    );
    script::parse(&text, "claims.toml".as_ref(), None).unwrap_or_else(|problems| panic!("{problems}"))
}

fn run(scenario: &Scenario, hashing: Hashing, with_tables: bool) -> Outcome {
    simulate::run(scenario, hashing, with_tables).unwrap()
}

const MACHINE: &str = "[[event]]\nat = \"20s\"\nmachine_leaves = \"m3\"\n";
const BACKEND: &str = "[[event]]\nat = \"20s\"\nbackend_drains = \"b7\"\n";

#[test]
fn a_change_of_machines_alone_breaks_nothing_even_without_flow_tables() {
    for hashing in Hashing::ALL {
        for with_tables in [false, true] {
            let counts = run(&scenario(MACHINE, ""), hashing, with_tables).counts;
            assert_eq!(counts.broken, 0, "{hashing:?}");
            // Of 56 pairs of old and new next hop that hashes give, 7 are the same machine at most.
            assert!(counts.moved > 16_000, "{counts:?}");
        }
    }
}

#[test]
fn a_change_of_backends_alone_breaks_nothing_with_flow_tables() {
    for hashing in Hashing::ALL {
        let with = run(&scenario(BACKEND, ""), hashing, true);
        assert_eq!(with.counts, Counts::default(), "{hashing:?}");
        // Without them each flow of the backend breaks, and those that the change moves needlessly.
        let without = run(&scenario(BACKEND, ""), hashing, false);
        assert!(without.counts.broken >= 600, "{hashing:?}: {:?}", without.counts);
    }
}

#[test]
fn a_backend_that_dies_takes_its_own_flows_with_it_and_no_others() {
    let events = "[[event]]\nat = \"20s\"\nbackend_down = \"b7\"\nskew = \"3s\"\n";
    for hashing in Hashing::ALL {
        let counts = run(&scenario(events, ""), hashing, true).counts;
        assert!((600..1_500).contains(&counts.lost) && counts.broken == 0, "{hashing:?}: {counts:?}");
    }
}

/// What both changes break is what of the flows moved, times what of the table changed: without a flow table the latter breaks,
/// whichever machine a flow meets.
#[test]
fn both_changes_at_once_break_the_product_of_what_each_moves() {
    for hashing in Hashing::ALL {
        let both = run(&scenario(&format!("{MACHINE}{BACKEND}"), ""), hashing, true);
        let flows = both.flows as f64;
        let moved = both.counts.moved as f64 / flows;
        let changed = run(&scenario(BACKEND, ""), hashing, false).counts.broken as f64 / flows;
        let expected = moved * changed * flows;
        // Five standard deviations of the number of flows in the product.
        let off = (both.counts.broken as f64 - expected).abs();
        assert!(both.counts.broken > 0 && off < 5.0 * expected.sqrt(), "{hashing:?}: {both:?}, {expected}");
    }
}

#[test]
fn a_resilient_router_moves_the_flows_of_the_machine_that_left_alone() {
    let resilient = "[router]\nhashing = \"resilient\"\nbuckets = 1024\n";
    let plain = run(&scenario(MACHINE, ""), Hashing::Maglev, true).counts.moved;
    let few = run(&scenario(MACHINE, resilient), Hashing::Maglev, true).counts.moved;
    // An eighth of 20,000, within five standard deviations.
    assert!((2_270..2_730).contains(&few), "{few}");
    assert!(plain > 6 * few, "{plain} {few}");
    let both = format!("{MACHINE}{BACKEND}");
    let broken = |more| run(&scenario(&both, more), Hashing::Maglev, true).counts.broken;
    assert!(broken(resilient) * 4 < broken(""), "{} {}", broken(resilient), broken(""));
}

#[test]
fn machines_that_disagree_break_flows_only_while_routers_change() {
    let skewed = "[[event]]\nat = \"20s\"\nbackend_drains = \"b7\"\nskew = \"20s\"\n";
    let leaves = "[[event]]\nat = \"30s\"\nmachine_leaves = \"m3\"\n";
    let back = "[[event]]\nat = \"35s\"\nmachine_joins = \"m3\"\n";
    assert_eq!(run(&scenario(skewed, ""), Hashing::Maglev, true).counts.broken, 0);
    assert!(
        run(&scenario(&format!("{skewed}{leaves}{back}"), ""), Hashing::Maglev, true).counts.broken > 300
    );
}

#[test]
fn a_full_table_keeps_nobody() {
    let full = "[[event]]\nat = \"0s\"\ntable_full = \"all\"\nfor = \"10s\"\n";
    let events = format!("{full}[[event]]\nat = \"5s\"\nbackend_drains = \"b7\"\n");
    let with = run(&scenario(&events, ""), Hashing::Maglev, true);
    let without = run(&scenario(&events, ""), Hashing::Maglev, false);
    assert_eq!((with.counts.broken, with.counts.untracked), (without.counts.broken, 20_000));
    // After it was full, each flow asks again.
    let later = format!("{full}{BACKEND}");
    assert_eq!(run(&scenario(&later, ""), Hashing::Maglev, true).counts.broken, 0);
    // Half of the places keep half of the flows.
    let half = run(&scenario(BACKEND, "[flow_tables]\nplaces = 1250\n"), Hashing::Maglev, true).counts;
    let (none, half) = (without.counts.broken as f64, half.broken as f64);
    assert!((0.4..0.6).contains(&(half / none)), "{half} of {none}");
}

#[test]
fn another_hash_key_breaks_all_flows_but_one_for_each_backend() {
    let rekeyed = |skew| format!("[[event]]\nat = \"20s\"\nhash_key = \"new\"\nskew = \"{skew}\"\n");
    for with_tables in [true, false] {
        let broken = run(&scenario(&rekeyed("0s"), ""), Hashing::Maglev, with_tables).counts.broken;
        // One of 20 backends is the old one again: 1,000 of 20,000, within five standard deviations.
        assert!((18_845..19_155).contains(&broken), "{broken}");
    }
    // In turns it is not better.
    let slowly = run(&scenario(&rekeyed("30s"), ""), Hashing::Maglev, true).counts.broken;
    assert!((18_845..19_155).contains(&slowly), "{slowly}");
}

/// The least and the most of 20 backends among 10,007 slots differ by one.
#[test]
fn maglev_is_the_most_even_of_the_three() {
    let worst = |hashing| run(&scenario(MACHINE, ""), hashing, true).backends.worst;
    let [maglev, ketama, rendezvous] = Hashing::ALL.map(worst);
    // 1,000 flows a backend vary by 3 %: four standard deviations are chance.
    assert!(maglev < 1.13, "{maglev}");
    assert!(maglev < ketama && maglev < rendezvous, "{maglev} {ketama} {rendezvous}");
}

/// All that is drawn follows from the seed, and another gives another.
#[test]
fn the_seed_says_all() {
    let text = |seed: u64| {
        format!(
            "seed = {seed}\nduration = \"30s\"\n[traffic]\nflows = 5_000\nlifetimes = \"log-normal\"\n{MACHINE}{BACKEND}"
        )
    };
    let report = |seed| {
        let scenario = script::parse(&text(seed), "seed.toml".as_ref(), None).unwrap();
        let outcomes = Hashing::ALL.map(|hashing| run(&scenario, hashing, true)).to_vec();
        let run = simulate::Run::new(&scenario, outcomes);
        (run.to_string(), simulate::svg(&simulate::Report { runs: vec![run] }))
    };
    assert_eq!(report(7), report(7));
    assert_ne!(report(7), report(8));
}

/// In words, as JSON and as a drawing; what a backend's death is made of is one event.
#[test]
fn a_report_has_a_row_a_column_and_a_line_for_each_run() {
    let events = format!("[[event]]\nat = \"10s\"\nbackend_down = \"b7\"\nskew = \"1s\"\n{MACHINE}");
    let scenario = scenario(&events, "");
    let outcomes = Hashing::ALL.map(|hashing| run(&scenario, hashing, true)).to_vec();
    let lost = outcomes[0].counts.lost;
    let report = simulate::Report { runs: vec![simulate::Run::new(&scenario, outcomes)] };
    let text = report.to_string();
    assert!(text.contains("b7 is down, on all machines within 1s") && text.contains("m3 leaves"), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("ketama ")).count(), 1, "{text}");
    assert!(text.lines().all(|line| !line.ends_with(' ')), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    let outcome = &json["runs"][0]["outcomes"][0];
    assert_eq!((&outcome["hashing"], &outcome["lost"]), (&"maglev".into(), &lost.into()));
    assert_eq!(outcome["by_event"].as_array().unwrap().len(), 3, "before, the death, the machine");
    assert_eq!(outcome["by_event"][1]["lost"], lost);
    assert_eq!(json["runs"][0]["events"].as_array().unwrap().len(), 2);
    let drawn = simulate::svg(&report);
    assert_eq!((drawn.matches("<polyline").count(), drawn.matches("m3 leaves").count()), (3, 1));
    assert_eq!(
        simulate::Report { runs: vec![] }.to_string(),
        "no pool, key, table or machine changes: no flow moves\n"
    );
}
