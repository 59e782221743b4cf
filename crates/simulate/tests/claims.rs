//! Uses the simulation to check claims of the Maglev paper about hashing and connection tracking.
//!
//! References: Maglev §3.4: "changes to the lookup table do not lead to connection resets because
//! connections' affinity to Maglev machines does not change at the same time. When connections'
//! affinity to Maglevs does change, resets are proportional to the number of lookup table
//! disruptions."

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use simulate::{Counts, Hashing, Outcome, Scenario, script};

/// Builds a scenario with 8 machines, 20 backends, and 20,000 flows that outlive the script.
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
fn machine_changes_only_break_no_flow() {
    for hashing in Hashing::ALL {
        for with_tables in [false, true] {
            let counts = run(&scenario(MACHINE, ""), hashing, with_tables).counts;
            assert_eq!(counts.broken, 0, "{hashing:?}");
            // The hash selects one of 56 pairs, each of which consists of an old next hop and a new
            // next hop. In at most 7 of these pairs, both next hops are the same machine.
            assert!(counts.moved > 16_000, "{counts:?}");
        }
    }
}

#[test]
fn backend_changes_only_break_no_flow_with_flow_tables() {
    for hashing in Hashing::ALL {
        let with = run(&scenario(BACKEND, ""), hashing, true);
        assert_eq!(with.counts, Counts::default(), "{hashing:?}");
        // Without flow tables, all flows of the drained backend break, and so do flows that the new
        // table moves needlessly.
        let without = run(&scenario(BACKEND, ""), hashing, false);
        assert!(without.counts.broken >= 600, "{hashing:?}: {:?}", without.counts);
    }
}

#[test]
fn failed_backend_loses_only_its_own_flows() {
    let events = "[[event]]\nat = \"20s\"\nbackend_down = \"b7\"\nskew = \"3s\"\n";
    for hashing in Hashing::ALL {
        let counts = run(&scenario(events, ""), hashing, true).counts;
        assert!((600..1_500).contains(&counts.lost) && counts.broken == 0, "{hashing:?}: {counts:?}");
    }
}

/// If a machine and a backend change at the same time, the fraction of broken flows is the product
/// of the fraction of moved flows and the fraction of changed table slots. Without flow tables,
/// every flow in a changed slot breaks.
#[test]
fn both_changes_break_the_product_of_both_shares() {
    for hashing in Hashing::ALL {
        let both = run(&scenario(&format!("{MACHINE}{BACKEND}"), ""), hashing, true);
        let flows = both.flows as f64;
        let moved = both.counts.moved as f64 / flows;
        let changed = run(&scenario(BACKEND, ""), hashing, false).counts.broken as f64 / flows;
        let expected = moved * changed * flows;
        // The tolerance is five standard deviations.
        let off = (both.counts.broken as f64 - expected).abs();
        assert!(both.counts.broken > 0 && off < 5.0 * expected.sqrt(), "{hashing:?}: {both:?}, {expected}");
    }
}

#[test]
fn resilient_router_moves_only_flows_of_the_left_machine() {
    let resilient = "[router]\nhashing = \"resilient\"\nbuckets = 1024\n";
    let plain = run(&scenario(MACHINE, ""), Hashing::Maglev, true).counts.moved;
    let few = run(&scenario(MACHINE, resilient), Hashing::Maglev, true).counts.moved;
    // The expected number is one eighth of 20,000. The limits are five standard deviations from the
    // expected number.
    assert!((2_270..2_730).contains(&few), "{few}");
    assert!(plain > 6 * few, "{plain} {few}");
    let both = format!("{MACHINE}{BACKEND}");
    let broken = |more| run(&scenario(&both, more), Hashing::Maglev, true).counts.broken;
    assert!(broken(resilient) * 4 < broken(""), "{} {}", broken(resilient), broken(""));
}

#[test]
fn rollout_skew_breaks_flows_only_if_routers_change() {
    let skewed = "[[event]]\nat = \"20s\"\nbackend_drains = \"b7\"\nskew = \"20s\"\n";
    let leaves = "[[event]]\nat = \"30s\"\nmachine_leaves = \"m3\"\n";
    let back = "[[event]]\nat = \"35s\"\nmachine_joins = \"m3\"\n";
    assert_eq!(run(&scenario(skewed, ""), Hashing::Maglev, true).counts.broken, 0);
    assert!(
        run(&scenario(&format!("{skewed}{leaves}{back}"), ""), Hashing::Maglev, true).counts.broken > 300
    );
}

#[test]
fn full_flow_table_protects_no_flow() {
    let full = "[[event]]\nat = \"0s\"\ntable_full = \"all\"\nfor = \"10s\"\n";
    let events = format!("{full}[[event]]\nat = \"5s\"\nbackend_drains = \"b7\"\n");
    let with = run(&scenario(&events, ""), Hashing::Maglev, true);
    let without = run(&scenario(&events, ""), Hashing::Maglev, false);
    assert_eq!((with.counts.broken, with.counts.untracked), (without.counts.broken, 20_000));
    // When the table is no longer full, each flow gets an entry.
    let later = format!("{full}{BACKEND}");
    assert_eq!(run(&scenario(&later, ""), Hashing::Maglev, true).counts.broken, 0);
    // A table that has entries for half of the flows protects half of the flows.
    let half = run(&scenario(BACKEND, "[flow_tables]\nplaces = 1250\n"), Hashing::Maglev, true).counts;
    let (none, half) = (without.counts.broken as f64, half.broken as f64);
    assert!((0.4..0.6).contains(&(half / none)), "{half} of {none}");
}

#[test]
fn new_hash_key_breaks_all_flows_except_chance_matches() {
    let rekeyed = |skew| format!("[[event]]\nat = \"20s\"\nhash_key = \"new\"\nskew = \"{skew}\"\n");
    for with_tables in [true, false] {
        let broken = run(&scenario(&rekeyed("0s"), ""), Hashing::Maglev, with_tables).counts.broken;
        // By chance, one flow in 20 keeps its backend, which is 1,000 of 20,000 flows. The limits
        // are five standard deviations from the expected number.
        assert!((18_845..19_155).contains(&broken), "{broken}");
    }
    // A slow rollout breaks the same number of flows.
    let slowly = run(&scenario(&rekeyed("30s"), ""), Hashing::Maglev, true).counts.broken;
    assert!((18_845..19_155).contains(&slowly), "{slowly}");
}

/// The table has 10,007 slots for 20 backends, so the numbers of slots per backend differ by at
/// most one.
#[test]
fn maglev_has_the_best_balance() {
    let worst = |hashing| run(&scenario(MACHINE, ""), hashing, true).backends.worst;
    let [maglev, ketama, rendezvous] = Hashing::ALL.map(worst);
    // On average, a backend has 1,000 flows, with a standard deviation of 3 %. The limit is four
    // standard deviations.
    assert!(maglev < 1.13, "{maglev}");
    assert!(maglev < ketama && maglev < rendezvous, "{maglev} {ketama} {rendezvous}");
}

/// The same seed produces the same report, and a different seed produces a different report.
#[test]
fn report_depends_only_on_the_seed() {
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

/// Checks the report as text, as JSON and as a chart. The failure of a backend is a single event in
/// each format.
#[test]
fn report_contains_every_run_in_each_format() {
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
        "no flow moves: the change affects no pool, hash key, table size or machine\n"
    );
}
