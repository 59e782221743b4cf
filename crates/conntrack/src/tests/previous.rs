//! Tests of flows in previous tables. Maps with the entries of each thread contain the expected
//! results.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::{all, assert_adds_up, assert_kept, establish, hash, table, target, tick};
use crate::{Cursor, Entry, Filter, FlowTable, Hit, Inserted, PreviousTables, Signal, Tick};

fn signals() -> impl Strategy<Value = Signal> {
    prop_oneof![Just(Signal::Syn), Just(Signal::Data), Just(Signal::FinOrRst), Just(Signal::Datagram)]
}

/// Returns the known flows of all tables by tag. If several tables have a flow, the most recently
/// used entry wins. With `with_expired`, a flow is unknown if that entry has expired.
fn listed(tables: &[FlowTable], now: Tick, with_expired: bool) -> HashMap<u64, Entry> {
    let mut known: HashMap<u64, (Entry, bool)> = HashMap::new();
    for table in tables {
        let live = all(table, Filter::All, now, 7).into_iter().map(|entry| (entry, true));
        let expired = all(table, Filter::Expired(now), now, 7).into_iter().map(|entry| (entry, false));
        for (entry, is_live) in live.chain(expired.filter(|_| with_expired)) {
            let older = known.get(&entry.tag).is_some_and(|(other, _)| other.idle <= entry.idle);
            if !older {
                known.insert(entry.tag, (entry, is_live));
            }
        }
    }
    let live = known.into_iter().filter(|(_, (_, is_live))| *is_live);
    live.map(|(tag, (entry, _))| (tag, entry)).collect()
}

/// Exports previous tables in steps of `buckets` buckets, and imports them as another process
/// would.
fn handed_on(previous: &PreviousTables, buckets: usize, now: Tick) -> PreviousTables {
    let tables = previous.capacities().enumerate().map(|(number, capacity)| {
        let (mut other, mut from) = (table(capacity), Some(Cursor::START));
        while let Some(cursor) = from {
            let mut records = Vec::new();
            from = previous.pack(number, cursor, buckets, now, &mut records);
            other.unpack(&records).unwrap();
        }
        other
    });
    PreviousTables::new(tables.collect())
}

proptest! {
    /// After packets to several threads and a pause, lookups return exactly the flows in the map,
    /// and with an index they search at most one table. The same must hold after an export to the
    /// next process.
    #[test]
    fn each_live_flow_of_each_thread_is_found_and_no_other(
        packets in prop::collection::vec((0u64..60, signals(), 0u32..3, 0usize..12, 0u32..40), 0..300),
        threads in 1usize..12,
        later in 0u32..2_000,
        buckets in 1usize..40,
    ) {
        // At most half of each table is used, so timeouts do not get shorter. They depend on the
        // number of entries, which an export without expired entries changes.
        let mut tables: Vec<FlowTable> = (0..threads).map(|thread| table([128, 256, 512][thread % 3])).collect();
        let mut now = 0;
        for (flow, signal, slot, thread, pause) in packets {
            now += pause / 8;
            let table = &mut tables[thread % threads];
            if table.lookup(hash(flow), signal, tick(now)).is_none() {
                let _ = table.insert(hash(flow), target(slot, 5), signal, tick(now));
            }
        }
        let now = tick(now + later);
        let (known, known_next) = (listed(&tables, now, true), listed(&tables, now, false));
        let live: usize = tables.iter().map(|table| all(table, Filter::All, now, 7).len()).sum();
        let previous = PreviousTables::new(tables);
        let next = handed_on(&previous, buckets, now);
        prop_assert_eq!(next.len(), live);
        let tag = |flow: u64| flow & ((1 << 48) - 1);
        for most in [threads, 1] {
            for flow in (0..80).map(hash) {
                prop_assert!(previous.candidates(flow).len() <= most);
                prop_assert_eq!(previous.peek(flow, now), known.get(&tag(flow)).copied());
                prop_assert_eq!(next.peek(flow, now), known_next.get(&tag(flow)).copied());
            }
            previous.build_index();
            next.build_index();
        }
    }

    /// One thread adopts flows and a different thread purges flows while walks run in steps of any
    /// size. A listing shows the live flows that were neither adopted nor purged. A purged flow is
    /// never found again. A purged flow is counted once, unless it was adopted. The next process
    /// receives the remaining flows.
    #[test]
    fn walks_show_what_no_thread_has_adopted_and_purge_it_for_all(
        flows in prop::collection::vec((0u64..90, 0u32..3, 0usize..3), 0..200),
        adopted in prop::collection::hash_set(0u64..90, 0..60),
        purged in prop::option::of(0u32..3),
        buckets in 1usize..40,
    ) {
        let (mut tables, mut known) = (Vec::from([32, 64, 128].map(table)), HashMap::new());
        for (flow, slot, thread) in flows {
            if !known.contains_key(&flow) && tables[thread].insert(hash(flow), target(slot, 5), Signal::Data, tick(0)) == Inserted::Tracked {
                known.insert(flow, slot);
            }
        }
        // A full table may already have evicted a flow on probation.
        known.retain(|flow, _| tables.iter().any(|table| table.peek(hash(*flow), tick(1)).is_some()));
        let (previous, mut new) = (PreviousTables::new(tables), table(2_048));
        for flow in &adopted {
            let hit = new.adopt(&previous, hash(*flow), Signal::Data, tick(1));
            prop_assert_eq!(hit.map(|hit| hit.slot), known.get(flow).copied());
        }
        let slots = |filter: Filter| {
            let (mut slots, mut from) = (Vec::new(), Some(Cursor::START));
            while let Some(cursor) = from {
                let (entries, next) = previous.list(cursor, &filter, buckets, tick(1));
                slots.extend(entries.map(|entry| entry.slot));
                from = next;
            }
            slots.sort_unstable();
            slots
        };
        let expected = |wanted: &dyn Fn(u32) -> bool| {
            let left = known.iter().filter(|(flow, slot)| !adopted.contains(*flow) && wanted(**slot));
            let mut slots: Vec<u32> = left.map(|(_, slot)| *slot).collect();
            slots.sort_unstable();
            slots
        };
        prop_assert_eq!(slots(Filter::All), expected(&|_| true));
        prop_assert_eq!(slots(Filter::Slot(1)), expected(&|slot| slot == 1));
        let filter = purged.map_or(Filter::Vip(6), Filter::Slot);
        for round in 0..2 {
            let (mut count, mut from) = (0, Some(Cursor::START));
            while let Some(cursor) = from {
                let (more, next) = previous.purge(cursor, &filter, buckets);
                (count, from) = (count + more, next);
            }
            let gone = expected(&|slot| Some(slot) == purged).len();
            prop_assert_eq!(count, if round == 0 { gone } else { 0 });
        }
        prop_assert_eq!(slots(Filter::All), expected(&|slot| Some(slot) != purged));
        let next = handed_on(&previous, buckets, tick(1));
        for flow in 0..90 {
            let left = known.get(&flow).copied().filter(|slot| Some(*slot) != purged && !adopted.contains(&flow));
            prop_assert_eq!(next.peek(hash(flow), tick(1)).map(|entry| entry.slot), left);
        }
        for flow in 0..90 {
            let found = known.get(&flow).copied().filter(|slot| Some(*slot) != purged);
            prop_assert_eq!(previous.peek(hash(flow), tick(1)).map(|entry| entry.slot), found);
            new.forget(hash(flow), tick(1));
            prop_assert_eq!(new.adopt(&previous, hash(flow), Signal::Data, tick(1)).map(|hit| hit.slot), found);
        }
    }

    /// After an adoption, the new table returns the same results as the old table would have.
    #[test]
    fn what_is_adopted_goes_on_as_in_its_old_table(
        packets in prop::collection::vec((0u64..60, signals(), 0u32..3, 0u32..40), 0..300),
        after in prop::collection::vec((0u64..80, signals(), 0u32..9), 0..100),
    ) {
        let ((mut old, mut twin), mut now) = ((table(4_096), table(4_096)), 0);
        for (flow, signal, slot, pause) in packets {
            now += pause / 8;
            for table in [&mut old, &mut twin] {
                if table.lookup(hash(flow), signal, tick(now)).is_none() {
                    let _ = table.insert(hash(flow), target(slot, 5), signal, tick(now));
                }
            }
        }
        let (previous, mut new) = (PreviousTables::new(vec![old]), table(2_048));
        let mut ended = HashSet::new();
        for (flow, signal, pause) in after {
            now += pause;
            let (flow, now) = (hash(flow), tick(now));
            let expected = twin.lookup(flow, signal, now);
            let own = new.lookup(flow, signal, now);
            // The old entry of a connection may live longer than the new entry of the same flow, so
            // the test skips flows that ended.
            if expected.is_none() {
                ended.insert(flow);
            }
            if ended.contains(&flow) {
                continue;
            }
            let found = own.or_else(|| new.adopt(&previous, flow, signal, now));
            prop_assert_eq!(found, expected);
            prop_assert_eq!(new.peek(flow, now), twin.peek(flow, now));
            assert_kept(&new);
        }
        assert_adds_up(&new);
    }
}

#[test]
fn lookups_search_at_most_one_of_128_tables() {
    let mut tables: Vec<FlowTable> = (0..128).map(|_| table(64)).collect();
    let flows = 0..128 * 16_u32;
    for flow in flows.clone() {
        assert!(establish(&mut tables[flow as usize % 128], hash(flow.into()), 1), "{flow}");
    }
    let (previous, mut new) = (PreviousTables::new(tables), table(16_384));
    assert_eq!(previous.candidates(hash(0)).len(), 128, "without an index");
    previous.build_index();
    for flow in flows {
        assert_eq!(previous.candidates(hash(flow.into())).len(), 1, "{flow}");
        assert!(new.adopt(&previous, hash(flow.into()), Signal::Data, tick(2)).is_some(), "{flow}");
    }
    let unknown = (1_000_000..1_010_000).map(hash);
    assert_eq!(unknown.map(|flow| previous.candidates(flow).len()).max(), Some(0));
}

#[test]
fn a_full_table_answers_for_a_flow_that_it_cannot_adopt() {
    let mut old = table(64);
    assert!(establish(&mut old, hash(70_000), 1));
    let (previous, mut full) = (PreviousTables::new(vec![old]), table(64));
    assert!((0..10_000).filter(|flow| establish(&mut full, hash(*flow), 1)).count() == 64);
    let before = full.counters();
    let hit = full.adopt(&previous, hash(70_000), Signal::Data, tick(2));
    assert!(matches!(hit, Some(Hit { renewed: false, .. })), "{hit:?}");
    assert_eq!((full.len(), full.counters().untracked), (64, before.untracked + 1));
    assert_eq!(full.adopt(&previous, hash(70_001), Signal::Data, tick(2)), None);
    assert!(previous.len() == 1 && !previous.is_empty() && PreviousTables::new(Vec::new()).is_empty());
}

#[test]
fn limit_on_searches_applies_to_new_flows_only() {
    // Nearly all entries are in use, so most new flows need a search in other buckets.
    let crowded = |searches: u64| {
        let mut table = table(64);
        for flow in 0..56 {
            establish(&mut table, hash(flow), 1);
        }
        table.allow_searches(searches);
        table
    };
    let new_flows = 1_000..1_008_u64;
    let mut old = table(4_096);
    assert!(new_flows.clone().all(|flow| establish(&mut old, hash(flow), 1)));
    let previous = PreviousTables::new(vec![old]);
    let inserted = |mut table: FlowTable| {
        let insert =
            |flow: &u64| table.insert(hash(*flow), target(1, 5), Signal::Data, tick(2)) == Inserted::Tracked;
        new_flows.clone().filter(insert).count()
    };
    let adopted = |mut table: FlowTable| {
        let searches = table.searches;
        let before = table.counters().insert;
        for flow in new_flows.clone() {
            assert!(table.adopt(&previous, hash(flow), Signal::Data, tick(2)).is_some());
        }
        assert_eq!(table.searches, searches, "an adoption uses up a search of a new flow");
        (table.counters().insert - before, table.counters().moved)
    };
    assert!(inserted(crowded(0)) < inserted(crowded(u64::MAX)));
    let unlimited = adopted(crowded(u64::MAX));
    assert!(unlimited.1 > 0, "no adopted flow needs a search");
    assert_eq!(adopted(crowded(0)), unlimited);
    assert_eq!(adopted(crowded(1)), unlimited);
}
