//! Checks that the cost of importing the entries of another process is linear in their number.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use conntrack::{Config, Cursor, FlowTable, Signal, Target, Tick};
use steps::Case;

// Promise: linear-time
#[test]
fn entries_are_imported_in_linear_time() {
    let cases: [Case<'_>; 2] = [("entries", entries, unpack), ("the same entry", one_entry, unpack)];
    steps::check("entries_are_imported_in_linear_time", &cases);
}

fn table() -> FlowTable {
    FlowTable::new(&Config { capacity: 4_096, ..Config::default() }).unwrap()
}

fn unpack(records: &[u8]) {
    let mut table = table();
    table.unpack(records).unwrap();
    std::hint::black_box(table.len());
}

fn entries(count: usize) -> Vec<u8> {
    let mut table = table();
    for number in 0..count as u64 {
        let hash = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let _ = table.insert(hash, Target::new(7, 1).unwrap(), Signal::Syn, Tick::new(9));
    }
    let mut records = Vec::new();
    assert_eq!(table.pack(Cursor::START, usize::MAX, &mut records), None);
    records
}

fn one_entry(count: usize) -> Vec<u8> {
    entries(1).repeat(count)
}
