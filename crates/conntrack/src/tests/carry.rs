//! Tests of the export and import of entries.

use proptest::prelude::*;

use super::{all, hash, table, target, tick};
use crate::{Cursor, Filter, FlowTable, RECORD_BYTES, Signal, Unreadable};

fn packed(table: &FlowTable, step: usize) -> Vec<u8> {
    let (mut records, mut from) = (Vec::new(), Some(Cursor::START));
    while let Some(cursor) = from {
        from = table.pack(cursor, step, &mut records);
    }
    records
}

fn signals() -> impl Strategy<Value = Signal> {
    prop_oneof![Just(Signal::Syn), Just(Signal::Data), Just(Signal::FinOrRst), Just(Signal::Datagram)]
}

proptest! {
    /// After any sequence of packets, the new table returns the same result for each lookup as the
    /// old table would have.
    #[test]
    fn a_carried_table_answers_as_the_old_one_would_have(
        packets in prop::collection::vec((0u64..60, signals(), 0u32..3, 0u32..40), 0..300),
        after in prop::collection::vec((0u64..80, signals(), 0u32..9), 0..100),
        step in 1usize..40,
    ) {
        let (mut old, mut now) = (table(128), 0);
        for (flow, signal, slot, pause) in packets {
            now += pause / 8;
            if old.lookup(hash(flow), signal, tick(now)).is_none() {
                let _ = old.insert(hash(flow), target(slot, 5), signal, tick(now));
            }
        }
        let mut new = table(128);
        new.unpack(&packed(&old, step)).unwrap();
        prop_assert_eq!((new.len(), new.kept), (old.len(), old.kept));
        prop_assert_eq!(new.is_filling(), old.is_filling());
        let entries = |table: &FlowTable| all(table, Filter::All, tick(now), 7);
        prop_assert_eq!(entries(&new), entries(&old));
        for (flow, signal, pause) in after {
            now += pause;
            prop_assert_eq!(new.lookup(hash(flow), signal, tick(now)), old.lookup(hash(flow), signal, tick(now)));
        }
    }

    /// For any input, the imported entries can be listed, and the table counts them correctly.
    #[test]
    fn bytes_that_are_no_records_are_refused_or_make_entries(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut table = table(64);
        let taken = table.unpack(&bytes);
        prop_assert!(taken.is_err() || bytes.len() % RECORD_BYTES == 0);
        let listed = all(&table, Filter::Expired(tick(0)), tick(0), 3).len();
        prop_assert!(listed <= table.len());
        super::assert_kept(&table);
    }
}

#[test]
fn unpack_rejects_records_that_do_not_fit_the_table() {
    let mut old = table(64);
    let _ = old.insert(hash(1), target(3, 1), Signal::Syn, tick(9));
    let records = packed(&old, 1_000);
    assert_eq!(records.len(), RECORD_BYTES);
    let mut new = table(64);
    assert_eq!(new.unpack(&records[..RECORD_BYTES - 1]), Err(Unreadable), "truncated record");
    let mut elsewhere = records.clone();
    elsewhere[..4].copy_from_slice(&u32::try_from(old.buckets()).unwrap().to_le_bytes());
    assert_eq!(new.unpack(&elsewhere), Err(Unreadable), "bucket number out of range");
    let mut stateless = records.clone();
    stateless[4..].chunks_mut(16).for_each(|entry| entry[15] &= !7);
    assert_eq!(new.unpack(&stateless), Err(Unreadable), "unknown state");
    assert!(new.is_empty());
    new.unpack(&records).unwrap();
    new.unpack(&records).unwrap();
    assert_eq!(new.len(), 1, "the second import replaces the first");
}
