//! Tests of the public behavior of the table, of floods, and of its agreement with an independent
//! model.

mod flood;
mod oracle;

use core::time::Duration;

use crate::{
    Arrival, Config, Counters, Extent, Fate, First, FragmentTable, HoldSlot, Key, Later, Millis, Refusal,
    Release, filled,
};

type Table = FragmentTable<u32>;

/// Three fragments of 8 bytes that make up one datagram.
const FIRST: Extent = Extent { offset: 0, bytes: 8, more: true };
const MIDDLE: Extent = Extent { offset: 8, bytes: 8, more: true };
const LAST: Extent = Extent { offset: 16, bytes: 8, more: false };

fn config() -> Config {
    let lifetime = Duration::from_secs(1);
    Config { datagrams: 4, buffered: 6, per_datagram: 3, per_source: 4, lifetime }
}

fn table() -> Table {
    FragmentTable::new(&config()).unwrap()
}

/// Returns a pseudorandom hash (splitmix64) instead of a keyed hash.
fn hash(number: u64) -> u64 {
    let mut x = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Returns the key of datagram `id` from source `source`.
fn key(source: u8, id: u32) -> Key {
    let address = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last];
    Key { source: address(source), destination: address(255), protocol: 17, id }
}

fn hash_of(key: &Key) -> u64 {
    hash(u64::from(key.source[15]) << 32 | u64::from(key.id))
}

fn first(table: &mut Table, key: Key, digest: u64, decision: u32, now: u64) -> First<u32> {
    table.first(&Arrival { key: &key, hash: hash_of(&key), extent: FIRST }, digest, decision, Millis(now))
}

fn later(table: &mut Table, key: Key, now: u64) -> Later<u32> {
    table.later(
        &Arrival { key: &key, hash: hash_of(&key), extent: MIDDLE },
        hash(u64::from(key.source[15])),
        Millis(now),
    )
}

fn hold(table: &mut Table, key: Key, now: u64) -> HoldSlot {
    match later(table, key, now) {
        Later::Hold(slot) => slot,
        other => panic!("{key:?}: {other:?}"),
    }
}

fn released(table: &mut Table) -> Vec<Release<u32>> {
    core::iter::from_fn(|| table.release()).collect()
}

fn assert_adds_up(table: &Table) {
    let c = table.counters();
    assert_eq!(c.recorded, table.known() as u64 + c.expired_known + c.evicted + c.replaced);
    assert_eq!(c.held, table.held() as u64 + c.released + c.expired_frames);
    assert!(table.known() <= table.config().datagrams && table.held() <= table.config().buffered);
    assert!(table.queued() <= table.held() && table.waiting() <= table.held() - table.queued());
}

#[test]
fn fragments_in_order_find_the_decision_and_are_not_held() {
    let mut table = table();
    assert_eq!(first(&mut table, key(1, 1), 5, 70, 0), First::Recorded);
    for now in [0, 1, 999] {
        assert_eq!(later(&mut table, key(1, 1), now), Later::Known(70));
    }
    assert_eq!((table.release(), table.held(), table.known()), (None, 0, 1));
    assert_eq!(table.counters(), Counters { recorded: 1, known: 3, ..Counters::default() });
}

#[test]
fn early_fragments_are_released_in_order_with_the_decision() {
    let mut table = table();
    let slots = [0, 1, 2].map(|now| hold(&mut table, key(1, 1), now));
    assert_eq!((table.release(), table.waiting(), table.held()), (None, 1, 3));
    assert_eq!(first(&mut table, key(1, 1), 5, 70, 3), First::Recorded);
    assert_eq!((table.queued(), table.known(), table.waiting()), (3, 1, 0));
    let expected = slots.map(|slot| Release { slot, fate: Fate::Forward(70) });
    assert_eq!(released(&mut table), expected);
    assert_eq!(later(&mut table, key(1, 1), 4), Later::Known(70));
    let moved = Counters { recorded: 1, known: 1, held: 3, released: 3, ..Counters::default() };
    assert_eq!(table.counters(), moved);
}

#[test]
fn fragment_that_overtakes_the_queue_is_not_held_again() {
    let mut table = table();
    let slot = hold(&mut table, key(1, 1), 0);
    assert_eq!(first(&mut table, key(1, 1), 5, 70, 0), First::Recorded);
    assert_eq!(later(&mut table, key(1, 1), 0), Later::Known(70));
    assert_eq!(released(&mut table), [Release { slot, fate: Fate::Forward(70) }]);
}

#[test]
fn second_first_fragment_is_a_duplicate_or_a_conflict() {
    let mut table = table();
    assert_eq!(first(&mut table, key(1, 1), 5, 70, 0), First::Recorded);
    assert_eq!(first(&mut table, key(1, 1), 5, 71, 1), First::Duplicate(70));
    assert_eq!(first(&mut table, key(1, 1), 6, 72, 2), First::Conflict);
    assert_eq!(first(&mut table, key(1, 1), 5, 73, 3), First::Duplicate(70));
    assert_eq!(later(&mut table, key(1, 1), 4), Later::Known(70));
    let moved = Counters { recorded: 1, duplicates: 2, conflicts: 1, known: 1, ..Counters::default() };
    assert_eq!(table.counters(), moved);
}

#[test]
fn complete_datagram_is_replaced_by_next_with_same_key() {
    let mut table = table();
    let source = hash(1);
    let (key, hash) = (key(1, 1), hash_of(&key(1, 1)));
    // The last fragment is held. The other fragments arrive after the first fragment.
    assert!(matches!(
        table.later(&Arrival { key: &key, hash, extent: LAST }, source, Millis(0)),
        Later::Hold(_)
    ));
    assert_eq!(first(&mut table, key, 5, 70, 1), First::Recorded);
    assert_eq!(first(&mut table, key, 6, 71, 2), First::Conflict);
    assert_eq!(later(&mut table, key, 3), Later::Known(70));
    assert_eq!(first(&mut table, key, 5, 72, 4), First::Duplicate(70), "late duplicate of the old datagram");
    assert_eq!(first(&mut table, key, 6, 73, 5), First::Recorded);
    assert_eq!(later(&mut table, key, 999), Later::Known(73));
    assert_eq!(first(&mut table, key, 5, 74, 1_000), First::Conflict, "the new datagram is incomplete");
    assert_eq!(later(&mut table, key, 1_004), Later::Known(73), "the new datagram has its own lifetime");
    let c = table.counters();
    assert_eq!((c.recorded, c.replaced, c.conflicts, c.duplicates, c.known), (2, 1, 2, 1, 3));
    assert_eq!((table.known(), table.waiting()), (1, 0));
    assert_adds_up(&table);
}

#[test]
fn datagrams_with_equal_hashes_are_distinguished_by_key() {
    let base = key(1, 1);
    let others = [
        Key { source: key(2, 1).source, ..base },
        Key { destination: key(2, 1).source, ..base },
        Key { protocol: 6, ..base },
        Key { id: 2, ..base },
    ];
    let mut table = Table::new(&Config { datagrams: 8, ..config() }).unwrap();
    assert_eq!(
        table.first(&Arrival { key: &base, hash: 9, extent: FIRST }, 5, 70, Millis(0)),
        First::Recorded
    );
    for (other, decision) in others.iter().zip(71..) {
        assert_eq!(
            table.first(&Arrival { key: other, hash: 9, extent: FIRST }, 5, decision, Millis(0)),
            First::Recorded
        );
    }
    for (other, decision) in others.iter().zip(71..) {
        assert_eq!(
            table.later(&Arrival { key: other, hash: 9, extent: MIDDLE }, 1, Millis(0)),
            Later::Known(decision)
        );
    }
    assert_eq!(table.later(&Arrival { key: &base, hash: 9, extent: MIDDLE }, 1, Millis(0)), Later::Known(70));
}

#[test]
fn refusal_names_datagram_then_source_then_buffer() {
    let mut table = table();
    for now in 0..3 {
        let _ = hold(&mut table, key(1, 1), now);
    }
    assert_eq!(later(&mut table, key(1, 1), 3), Later::Refused(Refusal::DatagramFull));
    let _ = hold(&mut table, key(1, 2), 3);
    assert_eq!(later(&mut table, key(1, 2), 3), Later::Refused(Refusal::SourceFull));
    assert_eq!(later(&mut table, key(1, 1), 3), Later::Refused(Refusal::DatagramFull));
    let _ = (hold(&mut table, key(2, 1), 3), hold(&mut table, key(3, 1), 3));
    assert_eq!(later(&mut table, key(2, 2), 3), Later::Refused(Refusal::BufferFull));
    assert_eq!(later(&mut table, key(1, 9), 3), Later::Refused(Refusal::SourceFull));
    assert_eq!((table.waiting(), table.held()), (4, 6), "a refused fragment creates no datagram");
    let c = table.counters();
    assert_eq!((c.held, c.refused_datagram, c.refused_source, c.refused_buffer), (6, 2, 2, 1));
    assert_adds_up(&table);
}

#[test]
fn hold_slot_is_reused_only_after_its_release() {
    let narrow = Config { buffered: 2, per_datagram: 1, per_source: 1, ..config() };
    let mut table = Table::new(&narrow).unwrap();
    let one = hold(&mut table, key(1, 1), 0);
    let two = hold(&mut table, key(2, 1), 0);
    assert_eq!(first(&mut table, key(1, 1), 5, 70, 1), First::Recorded);
    assert_eq!(later(&mut table, key(1, 2), 1), Later::Refused(Refusal::SourceFull));
    assert_eq!(later(&mut table, key(3, 1), 1), Later::Refused(Refusal::BufferFull));
    assert_eq!(released(&mut table), [Release { slot: one, fate: Fate::Forward(70) }]);
    assert_eq!(hold(&mut table, key(1, 2), 1), one);
    assert_eq!(table.expire(Millis(1_000), 9), 2);
    assert_eq!(later(&mut table, key(2, 1), 1_000), Later::Refused(Refusal::SourceFull));
    assert_eq!(released(&mut table), [Release { slot: two, fate: Fate::Expired }]);
    assert_eq!(hold(&mut table, key(2, 1), 1_000), two);
}

#[test]
fn lifetime_begins_with_first_arrival_and_is_not_extended() {
    let mut table = table();
    let slot = hold(&mut table, key(1, 1), 100);
    assert_eq!(first(&mut table, key(1, 1), 5, 70, 600), First::Recorded);
    assert_eq!(first(&mut table, key(1, 1), 5, 70, 1_000), First::Duplicate(70));
    assert_eq!(later(&mut table, key(1, 1), 1_099), Later::Known(70));
    assert_eq!(table.expire(Millis(1_099), 9), 0);
    assert!(matches!(later(&mut table, key(1, 1), 1_100), Later::Hold(other) if other != slot));
    assert_eq!((table.counters().expired_known, table.known(), table.waiting()), (1, 0, 1));
    assert_eq!(first(&mut table, key(1, 1), 6, 71, 2_100), First::Recorded, "a new datagram");
    assert_eq!(table.counters().expired_waiting, 1);
    let fates: Vec<Fate<u32>> = released(&mut table).iter().map(|release| release.fate).collect();
    assert_eq!(fates, [Fate::Forward(70), Fate::Expired]);
    assert_adds_up(&table);
}

#[test]
fn expiry_goes_from_the_oldest_on_within_its_budget() {
    let mut table = table();
    let (one, two) = (hold(&mut table, key(1, 1), 0), hold(&mut table, key(2, 1), 10));
    assert_eq!(first(&mut table, key(4, 1), 5, 70, 15), First::Recorded);
    let three = hold(&mut table, key(3, 1), 20);
    assert_eq!(table.expire(Millis(999), 9), 0);
    assert_eq!(table.expire(Millis(1_019), 0), 0);
    assert_eq!(table.expire(Millis(1_019), 2), 2);
    assert_eq!((table.waiting(), table.known(), table.queued()), (1, 1, 2));
    assert_eq!(table.expire(Millis(1_019), 2), 1);
    assert_eq!((table.waiting(), table.known(), table.queued()), (1, 0, 2));
    assert_eq!(released(&mut table), [one, two].map(|slot| Release { slot, fate: Fate::Expired }));
    assert_eq!(table.expire(Millis(1_020), 2), 1);
    assert_eq!(released(&mut table), [Release { slot: three, fate: Fate::Expired }]);
    let c = table.counters();
    assert_eq!((c.expired_known, c.expired_waiting, c.expired_frames), (1, 3, 3));
    assert_adds_up(&table);
}

#[test]
fn eviction_removes_the_datagram_recorded_first() {
    let mut table = table();
    // A later fragment of this datagram is the first packet of the test, but its first fragment
    // arrives after the first fragments of datagrams 1 to 3.
    let _ = hold(&mut table, key(9, 9), 0);
    for id in 1..=3 {
        assert_eq!(first(&mut table, key(1, id), 5, id, 1), First::Recorded);
    }
    assert_eq!(first(&mut table, key(9, 9), 5, 9, 2), First::Recorded);
    assert_eq!(first(&mut table, key(1, 4), 5, 4, 3), First::Recorded);
    assert!(matches!(later(&mut table, key(1, 1), 4), Later::Hold(_)));
    for (key, decision) in [(key(1, 2), 2), (key(1, 3), 3), (key(9, 9), 9), (key(1, 4), 4)] {
        assert_eq!(later(&mut table, key, 4), Later::Known(decision));
    }
    assert_eq!((table.counters().evicted, table.known()), (1, 4));
    assert_adds_up(&table);
}

#[test]
fn evicted_datagram_past_its_lifetime_counts_as_expired() {
    let mut table = table();
    for id in 1..=4 {
        assert_eq!(first(&mut table, key(1, id), 5, id, u64::from(id)), First::Recorded);
    }
    assert_eq!(first(&mut table, key(1, 5), 5, 5, 1_001), First::Recorded);
    assert_eq!(first(&mut table, key(1, 6), 5, 6, 1_001), First::Recorded);
    assert_eq!((table.counters().expired_known, table.counters().evicted), (1, 1));
}

#[test]
fn clock_never_goes_back_and_does_not_wrap_at_its_end() {
    let mut table = table();
    assert_eq!(first(&mut table, key(1, 1), 5, 70, 5_000), First::Recorded);
    assert_eq!(later(&mut table, key(1, 1), 0), Later::Known(70));
    let _ = hold(&mut table, key(1, 2), 0); // The datagram expires at 6,000 ms.
    assert_eq!(table.expire(Millis(5_999), 9), 0);
    assert_eq!(table.expire(Millis(0), 9), 0);
    assert_eq!(table.expire(Millis(6_000), 9), 2);
    assert_eq!(first(&mut table, key(1, 3), 5, 71, u64::MAX - 1), First::Recorded);
    assert_eq!(later(&mut table, key(1, 3), u64::MAX - 1), Later::Known(71));
}

#[test]
fn the_smallest_table_works() {
    let lifetime = Duration::from_millis(100);
    let one = Config { datagrams: 1, buffered: 1, per_datagram: 1, per_source: 1, lifetime };
    let mut table = Table::new(&one).unwrap();
    for id in 0..5 {
        assert_eq!(hold(&mut table, key(1, id), 0), HoldSlot(0));
        assert_eq!(later(&mut table, key(2, id), 0), Later::Refused(Refusal::BufferFull));
        assert_eq!(first(&mut table, key(1, id), 5, id, 0), First::Recorded);
        assert_eq!(released(&mut table).len(), 1);
        assert_eq!(later(&mut table, key(1, id), 0), Later::Known(id));
    }
    assert_adds_up(&table);
}

#[test]
fn a_table_is_refused_with_its_reason_before_memory_is_taken() {
    let error = Table::new(&Config { datagrams: 0, ..config() }).unwrap_err();
    assert_eq!(error.to_string(), "`datagrams` of 0 is out of range, use 1 to 16777216");
    assert!(filled(usize::MAX, 0u8).is_none());
}
