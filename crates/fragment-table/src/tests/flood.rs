//! Tests how fragment floods affect other traffic.

use core::time::Duration;

use super::{FIRST, MIDDLE, Table, assert_adds_up, first, hash, hold, key, later, released};
use crate::{Arrival, Chains, Config, Fate, First, Key, Later, Millis, Refusal};

fn table() -> Table {
    let lifetime = Duration::from_secs(2);
    Table::new(&Config { datagrams: 512, buffered: 256, per_datagram: 16, per_source: 32, lifetime }).unwrap()
}

/// Returns the key and the hashes of one datagram in a flood. Each datagram has a different source.
fn forged(number: u64) -> (Key, u64, u64) {
    let mut source = [0x20; 16];
    source[8..].copy_from_slice(&number.to_be_bytes());
    (Key { source, ..key(0, 7) }, hash(number << 8 | 1), hash(number << 8 | 2))
}

#[test]
fn flood_of_later_fragments_evicts_no_known_datagram() {
    let mut table = table();
    for id in 0..500 {
        assert_eq!(first(&mut table, key(1, id), 5, id, 0), First::Recorded);
    }
    for number in 0..100_000 {
        let (key, hash, source) = forged(number);
        let _ = table.later(&Arrival { key: &key, hash, extent: MIDDLE }, source, Millis(1));
    }
    assert_eq!((table.held(), table.waiting(), table.counters().refused_buffer), (256, 256, 99_744));
    for id in 0..500 {
        assert_eq!(later(&mut table, key(1, id), 1), Later::Known(id));
    }
    for id in 600..612 {
        assert_eq!(first(&mut table, key(1, id), 5, id, 1), First::Recorded);
        assert_eq!(later(&mut table, key(1, id), 1), Later::Known(id));
    }
    assert_eq!(table.counters().evicted, 0);
    assert_adds_up(&table);
}

#[test]
fn a_flood_of_first_fragments_drops_no_frame_that_waits() {
    let mut table = table();
    let slots: Vec<_> = (0..32).map(|id| hold(&mut table, key(1, id), 0)).collect();
    for number in 0..100_000 {
        let (key, hash, _) = forged(number);
        assert_eq!(
            table.first(&Arrival { key: &key, hash, extent: FIRST }, 5, 9, Millis(1)),
            First::Recorded
        );
    }
    assert_eq!((table.known(), table.counters().evicted), (512, 99_488));
    for id in 0..32 {
        assert_eq!(first(&mut table, key(1, id), 5, id, 2), First::Recorded);
    }
    let out = released(&mut table);
    assert_eq!(out.len(), 32);
    for ((release, slot), decision) in out.iter().zip(slots).zip(0..) {
        assert_eq!((release.slot, release.fate), (slot, Fate::Forward(decision)));
    }
    assert_adds_up(&table);
}

#[test]
fn flood_of_first_fragments_evicts_in_order_of_recording() {
    let mut table = table();
    assert_eq!(first(&mut table, key(1, 1), 5, 70, 0), First::Recorded);
    for number in 0..511 {
        let (key, hash, _) = forged(number);
        assert_eq!(
            table.first(&Arrival { key: &key, hash, extent: FIRST }, 5, 9, Millis(1)),
            First::Recorded
        );
    }
    assert_eq!(later(&mut table, key(1, 1), 1), Later::Known(70));
}

#[test]
fn one_source_takes_its_share_of_the_buffer_and_no_more() {
    let mut table = table();
    let flood = (0..10_000).filter(|&id| matches!(later(&mut table, key(1, id), 0), Later::Hold(_))).count();
    assert_eq!((flood, table.counters().refused_source), (32, 9_968));
    for source in 2..9 {
        for id in 0..32 {
            let _ = hold(&mut table, key(source, id), 0);
        }
        assert_eq!(later(&mut table, key(source, 99), 0), Later::Refused(Refusal::SourceFull));
    }
    assert_eq!(table.held(), 256);
}

#[test]
fn after_a_flood_and_its_expiry_every_place_is_there_again() {
    let mut table = table();
    for round in 0..20u64 {
        let now = Millis(round * 2_000);
        for number in 0..1_000 {
            let (key, hash, source) = forged(round << 32 | number);
            let _ = table.later(&Arrival { key: &key, hash, extent: MIDDLE }, source, now);
            let _ = table.first(
                &Arrival { key: &forged(round << 32 | (number + 500)).0, hash: hash ^ 1, extent: FIRST },
                number,
                9,
                now,
            );
        }
        assert_eq!((table.held(), table.known()), (256, 512));
        assert_adds_up(&table);
        let end = Millis(now.0 + 2_000);
        let ended: usize = (0..12).map(|_| table.expire(end, 64)).sum();
        assert_eq!((ended, table.known(), table.waiting(), table.queued()), (768, 0, 0, 256));
        let mut slots: Vec<u32> = released(&mut table).iter().map(|release| release.slot.0).collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..256).collect::<Vec<_>>());
    }
}

#[test]
fn hashes_with_equal_thread_bits_do_not_make_long_chains() {
    for (fixed, bits) in [(0u64, 0), (0xff, 0x5a), (0xff << 56, 0x5a << 56), (0xff00_0000_0000_00ff, 0x21)] {
        let mut chains = Chains::new(4_096).unwrap();
        let hashes: Vec<u64> = (0..4_096).map(|number| hash(number) & !fixed | bits).collect();
        for &hash in &hashes {
            let _ = chains.take(hash);
        }
        let longest = hashes.iter().map(|&hash| chains.of(hash).count()).max().unwrap();
        assert!(longest <= 10, "{fixed:x}: {longest}");
    }
}
