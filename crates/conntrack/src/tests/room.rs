//! Tests of the entry that a new flow gets, compared with the documented layout, and of lookups
//! that start with a bucket probe.

use proptest::prelude::*;

use super::*;

const BUCKETS: u64 = 3;

/// Returns both buckets of a hash as `layout` documents them.
fn buckets_of(hash: u64) -> [u64; 2] {
    let part = |of: u64| u64::try_from((u128::from(of) * u128::from(BUCKETS)) >> 64).unwrap();
    let tag = (hash & ((1 << 48) - 1)).max(1);
    let (first, sum) = (part(hash), part((tag << 16).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    [first, (sum + BUCKETS - first) % BUCKETS]
}

/// A probe updates an entry in place only as a full lookup does, and does so for a proven flow and
/// for a flow of any protocol other than TCP.
#[test]
fn a_probe_updates_ticks_as_a_lookup_does() {
    let mut updated = 0;
    for (first, signal) in [
        (Signal::Syn, Signal::Data),
        (Signal::Data, Signal::Data),
        (Signal::Datagram, Signal::Datagram),
        (Signal::Data, Signal::FinOrRst),
        (Signal::Data, Signal::Syn),
    ] {
        for packets in 0..12 {
            for pause in [0, 1, 2, 100, 2_000, 20_000] {
                let mut tables = [table(16), table(16)];
                for table in &mut tables {
                    let _ = table.insert(hash(1), target(3, 4), first, tick(0));
                    for n in 1..=packets {
                        table.lookup(
                            hash(1),
                            if first == Signal::Syn { Signal::Data } else { first },
                            tick(n),
                        );
                    }
                }
                let now = tick(packets + pause);
                let [probed, plain] = &mut tables;
                let before = probed.peek(hash(1), now);
                let Ok(hit) = probed.probe(hash(1), signal, &BusyClocks::at(now)) else { continue };
                assert_eq!(plain.lookup(hash(1), signal, now), Some(hit));
                assert_eq!(probed.peek(hash(1), now), plain.peek(hash(1), now));
                assert_eq!(probed.counters().refresh, plain.counters().refresh);
                updated += usize::from(probed.peek(hash(1), now) != before);
            }
        }
    }
    assert!(updated > 20, "only {updated} entries were updated");
}

/// The bytes of one entry.
type Bytes = [u8; 16];

/// Returns the entries of both buckets in the order in which an insert examines them.
fn places(table: &FlowTable, hash: u64) -> Vec<Bytes> {
    let lines =
        buckets_of(hash).map(|bucket| table.line_bytes(usize::try_from(bucket).unwrap() + 1).unwrap());
    lines.iter().flat_map(|line| line.as_chunks::<16>().0.to_vec()).collect()
}

/// Returns the ticks since the last packet of an entry, and `true` if its default timeout has
/// passed.
fn age(entry: &Bytes, now: u32) -> (u32, bool) {
    let age = now - u32::from_le_bytes([entry[12], entry[13], entry[14], 0]);
    let limit = match entry[15] & 15 {
        2 => 15 * 60 * 4,
        4 | 5 | 7 => 60 * 4,
        6 => 15 * 60 * 4 / 8,
        _ => 10 * 4,
    };
    (age, age > limit)
}

/// Returns the index of the entry that a new flow gets. Returns `None` if a flow has to move first,
/// or if the table has no room.
fn expected(table: &FlowTable, hash: u64, now: u32) -> Option<usize> {
    let places = places(table, hash);
    let is_free = |entry: &&Bytes| entry[15] == 0 || age(entry, now).1;
    if let Some(free) = places.iter().position(|entry| is_free(&entry)) {
        return Some(free);
    }
    let waiting = places.iter().enumerate().filter(|(_, entry)| entry[15] & 8 != 0);
    // If several entries have the same age, the first of these entries is chosen.
    let (place, _) = waiting.rev().max_by_key(|(_, entry)| age(entry, now).0)?;
    (table.len() > table.capacity() / 8 * 7).then_some(place)
}

proptest! {
    #[test]
    fn new_flow_takes_free_place_or_evicts_oldest_on_probation(
        packets in prop::collection::vec((0..40_u64, 0..4_usize, 0..30_u32, any::<bool>()), 1..200),
    ) {
        let signals = [Signal::Syn, Signal::Data, Signal::FinOrRst, Signal::Datagram];
        let (mut table, mut now) = (table(12), 100);
        for (flow, signal, passed, is_known) in packets {
            now += if passed > 20 { (passed - 20) * 8 } else { passed / 10 };
            let (hash, signal) = (hash(flow), signals[signal]);
            // The test keeps fewer than half of the entries off probation, because timeouts would
            // shrink otherwise.
            if is_known && table.kept < 6 {
                let _ = table.lookup(hash, signal, tick(now));
                continue;
            }
            if table.peek(hash, tick(now)).is_some() || table.lookup(hash, signal, tick(now)).is_some() {
                continue;
            }
            let place = expected(&table, hash, now);
            let target = target(3, 4);
            let is_tracked = table.insert_new(hash, target, signal, tick(now)) == Inserted::Tracked;
            prop_assert!(is_tracked || place.is_none());
            let Some(place) = place else { continue };
            let after = places(&table, hash);
            prop_assert_eq!(after[place][..6].to_vec(), (hash & ((1 << 48) - 1)).to_le_bytes()[..6].to_vec());
            // Only the first bucket, which has four entries, is examined if it has a free entry.
            let mut examined = after.iter().take(if place < 4 { 4 } else { 8 });
            prop_assert!(examined.all(|entry| entry[15] == 0 || !age(entry, now).1), "an expired flow is left");
            assert_adds_up(&table);
        }
    }

    /// Other packets may change the table between a probe and the use of its result.
    #[test]
    fn a_lookup_that_begins_with_a_probe_finds_what_any_does(
        batches in prop::collection::vec(prop::collection::vec((0..30_u64, 0..4_usize), 1..12), 1..30),
    ) {
        let signals = [Signal::Syn, Signal::Data, Signal::FinOrRst, Signal::Datagram];
        let (mut probed, mut plain) = (table(16), table(16));
        let mut busy = 0;
        for (batch, now) in batches.into_iter().zip((0..).map(|n| tick(n * 3 / 2))) {
            let clocks = BusyClocks::at(now);
            let batch: Vec<_> = batch.into_iter().map(|(flow, signal)| (hash(flow), signals[signal])).collect();
            let probes: Vec<_> =
                batch.iter().map(|(hash, signal)| probed.probe(*hash, *signal, &clocks)).collect();
            for ((hash, signal), probe) in batch.into_iter().zip(probes) {
                let expected = plain.lookup(hash, signal, now);
                match probe {
                    Ok(hit) => {
                        busy += 1;
                        probed.count_hits(1);
                        prop_assert_eq!(expected, Some(hit));
                    }
                    Err(hint) if signal != Signal::Syn => {
                        prop_assert_eq!(probed.lookup_again(hint, hash, signal, now), expected);
                    }
                    Err(_) => prop_assert_eq!(probed.lookup_newcomer(hash, signal, now).ok(), expected),
                }
                if expected.is_none() {
                    let target = target(busy, 4);
                    prop_assert_eq!(
                        probed.insert_new(hash, target, signal, now),
                        plain.insert_new(hash, target, signal, now)
                    );
                }
                // A probe counts an updated tick before the packets in front of it are looked up.
                let without_refreshes = |table: &FlowTable| Counters { refresh: 0, ..table.counters() };
                prop_assert_eq!(without_refreshes(&probed), without_refreshes(&plain));
            }
            for flow in 0..30 {
                prop_assert_eq!(probed.peek(hash(flow), now), plain.peek(hash(flow), now));
            }
        }
    }
}
