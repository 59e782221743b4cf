//! Floods a connection table with SYN packets and counts the established flows that keep their
//! entries.

use std::error::Error;

use conntrack::{Config, FlowTable, Inserted, Signal, Target, Tick};

fn main() -> Result<(), Box<dyn Error>> {
    let (target, other) = (Target::new(1, 1)?, Target::new(2, 1)?);
    let mut table = FlowTable::new(&Config { capacity: 10_000, ..Config::default() })?;
    let established: Vec<u64> = (1..=1_000_u64).map(scatter).collect();
    for &flow in &established {
        let entered = table.insert(flow, target, Signal::Syn, Tick::from_millis(0));
        assert_eq!(entered, Inserted::Tracked);
        // The second packet arrives in a later tick and ends the probation of the flow.
        table.lookup(flow, Signal::Data, Tick::from_millis(500));
    }
    let mut hashed = 0;
    for n in 0..100_000_u64 {
        let now = Tick::from_millis(1_000 + n / 100);
        let flow = scatter(1_000_000 + n);
        if table.lookup(flow, Signal::Syn, now).is_none()
            && table.insert(flow, other, Signal::Syn, now) == Inserted::Untracked
        {
            hashed += 1;
        }
    }
    let now = Tick::from_millis(2_500);
    let kept = established.iter().filter(|flow| table.lookup(**flow, Signal::Data, now).is_some()).count();
    let counters = table.counters();
    println!("established flows still tracked: {kept} of {}", established.len());
    println!(
        "the flood: {} flows inserted, {} evicted, {hashed} forwarded without an entry",
        counters.insert - 1_000,
        counters.evicted_from_probation
    );
    Ok(())
}

/// Replaces the keyed hash of the 5-tuple, which a real program must use.
const fn scatter(n: u64) -> u64 {
    let n = (n ^ (n >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (n ^ (n >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53)
}
