//! The model of a flow table against the product's, `conntrack`, packet by packet: how many flows find no place.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use conntrack::{Config, FlowTable, Inserted, Signal, Target, Tick, Timeouts};
use simulate::{Hashing, script};

/// Ends of this many flows, with 100 that begin a second, on one machine of this many places.
fn model(places: u32) -> (u64, u64) {
    let text = format!(
        "duration = \"120s\"\n[cluster]\nmachines = 1\nbackends = 4\ntable_size = 1009\n\
         [traffic]\nflows = 2_000\nlifetime = \"20s\"\nlifetimes = \"fixed\"\narrivals = 100\n\
         [flow_tables]\nplaces = {places}\nidle = \"15m\"\nclosing = \"10s\"\n"
    );
    let scenario = script::parse(&text, "table.toml".as_ref(), None).unwrap();
    let outcome = simulate::run(&scenario, Hashing::Maglev, true).unwrap();
    (outcome.flows, outcome.counts.untracked)
}

/// The same traffic by the real table: a SYN, data each second for 20 s, a FIN. How many SYNs found no place.
fn real(places: usize) -> (u64, u64) {
    let timeouts = Timeouts { closing: Duration::from_secs(10), ..Timeouts::default() };
    let mut table = FlowTable::new(&Config { capacity: places, timeouts }).unwrap();
    let (mut flows, mut untracked) = (0, 0);
    // Of one second each: who begins in it, by number; those of the start are spread over their lifetimes.
    for second in 0..120_u64 {
        let mut packet = |flow: u64, age: u64| {
            let hash = (flow + 1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
                .wrapping_mul(0xd6e8_feb8_6659_fd93);
            let now = Tick::from_millis(second * 1_000 + flow % 1_000);
            let signal = match age {
                0 => Signal::Syn,
                20 => Signal::FinOrRst,
                _ => Signal::Data,
            };
            if table.lookup(hash, signal, now).is_none() {
                let target = Target { slot: 1, vip: 1 };
                let found = table.insert_new(hash, target, signal, now);
                if age == 0 {
                    untracked += u64::from(found == Inserted::Untracked);
                }
            }
        };
        for age in (0..=20).rev() {
            // 100 flows of each age.
            if let Some(begun) = (second + 20).checked_sub(age) {
                (begun * 100..begun * 100 + 100).for_each(|flow| packet(flow, age));
            }
        }
        flows += 100;
    }
    (flows, untracked)
}

#[test]
fn at_half_load_both_have_a_place_for_every_flow() {
    // 2,000 flows, and 1,000 that ended in the last 10 s.
    assert_eq!(model(6_000).1, 0);
    assert_eq!(real(6_000).1, 0);
}

/// Too small a table: the model keeps as many as there are places. The real one lets ended flows go sooner while it fills, and gives a
/// new flow the place of one on probation: so it refuses fewer. The difference has its sign and its bounds.
#[test]
fn a_table_that_is_too_small_refuses_more_in_the_model_than_in_the_product() {
    let ((flows, refused), (real_flows, really)) = (model(1_500), real(1_500));
    let (model, real) = (refused as f64 / flows as f64, really as f64 / real_flows as f64);
    eprintln!("refused: model {model:.3}, conntrack {real:.3}");
    assert!(model > 0.3 && real <= model, "{model} {real}");
}
