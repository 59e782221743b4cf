//! The connection tables of a previous process, for benchmarks of packet threads after an upgrade
//! with another number of threads.

use std::sync::Arc;

use conntrack::{Config, FlowTable, Inserted, PreviousTables, Signal, Target, Tick, Timeouts};

/// Returns `count` tables that are half full.
///
/// # Panics
/// Panics if there is not enough memory.
pub(crate) fn tables(count: usize) -> Arc<PreviousTables> {
    let config = Config { capacity: 2 * FLOWS, timeouts: Timeouts::default() };
    let target = Target::new(1, 1).expect("small numbers");
    let table = |number: usize| {
        let mut table = FlowTable::new(&config).expect("memory for a table");
        for flow in 0..FLOWS {
            let hash = ((number * FLOWS + flow + 1) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            assert_eq!(table.insert(hash, target, Signal::Data, Tick::new(4)), Inserted::Tracked);
        }
        table
    };
    let previous = PreviousTables::new((0..count).map(table).collect());
    previous.build_index();
    Arc::new(previous)
}

/// The number of flows per table.
const FLOWS: usize = 8_192;
