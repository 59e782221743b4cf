//! Compares the flow table of the simulation with `conntrack`, packet by packet. The tests count
//! the flows that find no entry.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use conntrack::{Config, FlowTable, Inserted, Signal, Target, Tick, Timeouts};
use simulate::{Hashing, script};

/// Simulates one machine with a flow table of `places` entries and 100 new flows per second.
/// Returns the number of flows and the number of untracked flows.
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

/// Sends the same traffic to a `conntrack` table. Each flow sends a SYN, data each second for 20 s,
/// and a FIN. Returns the number of flows and the number of SYNs that found no entry.
fn real(places: usize) -> (u64, u64) {
    let timeouts = Timeouts { closing: Duration::from_secs(10), ..Timeouts::default() };
    let mut table = FlowTable::new(&Config { capacity: places, timeouts }).unwrap();
    let (mut flows, mut untracked) = (0, 0);
    // Each iteration is one second. Flows are numbered by their start time. At time 0, the ages of
    // the existing flows are spread evenly over the lifetime.
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
                let target = Target::new(1, 1).unwrap();
                let found = table.insert_new(hash, target, signal, now);
                if age == 0 {
                    untracked += u64::from(found == Inserted::Untracked);
                }
            }
        };
        for age in (0..=20).rev() {
            // There are 100 flows of each age.
            if let Some(begun) = (second + 20).checked_sub(age) {
                (begun * 100..begun * 100 + 100).for_each(|flow| packet(flow, age));
            }
        }
        flows += 100;
    }
    (flows, untracked)
}

#[test]
fn half_full_tables_track_every_flow() {
    // The table has entries for 2,000 live flows and for 1,000 flows that ended in the last 10 s.
    assert_eq!(model(6_000).1, 0);
    assert_eq!(real(6_000).1, 0);
}

/// Both tables are too small. The flow table of the simulation can use all its entries. `conntrack`
/// removes closed flows earlier when it fills, and evicts flows on probation for new flows, so
/// fewer flows find no entry.
#[test]
fn model_rejects_more_flows_than_conntrack_when_full() {
    let ((flows, refused), (real_flows, really)) = (model(1_500), real(1_500));
    let (model, real) = (refused as f64 / flows as f64, really as f64 / real_flows as f64);
    eprintln!("refused: model {model:.3}, conntrack {real:.3}");
    assert!(model > 0.3 && real <= model, "{model} {real}");
}
