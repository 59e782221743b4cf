//! Where a newcomer stands, against a reading of the documented bytes; and look-ups that begin where a glance has fallen.

use proptest::prelude::*;

use super::*;

const BUCKETS: u64 = 3;

/// Both buckets of a hash, by the words of `layout`.
fn buckets_of(hash: u64) -> [u64; 2] {
    let part = |of: u64| u64::try_from((u128::from(of) * u128::from(BUCKETS)) >> 64).unwrap();
    let tag = (hash & ((1 << 48) - 1)).max(1);
    let (first, sum) = (part(hash), part((tag << 16).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    [first, (sum + BUCKETS - first) % BUCKETS]
}

/// An entry's bytes.
type Bytes = [u8; 16];

/// The places of both buckets, in the order in which a newcomer looks at them.
fn places(table: &FlowTable, hash: u64) -> Vec<Bytes> {
    let lines =
        buckets_of(hash).map(|bucket| table.line_bytes(usize::try_from(bucket).unwrap() + 1).unwrap());
    lines.iter().flat_map(|line| line.as_chunks::<16>().0.to_vec()).collect()
}

/// Ticks since an entry's last packet, and whether its default time-out has passed.
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

/// The place that a newcomer gets; `None`: a flow has to be moved first, or nobody gives way.
fn expected(table: &FlowTable, hash: u64, now: u32) -> Option<usize> {
    let places = places(table, hash);
    let is_free = |entry: &&Bytes| entry[15] == 0 || age(entry, now).1;
    if let Some(free) = places.iter().position(|entry| is_free(&entry)) {
        return Some(free);
    }
    let waiting = places.iter().enumerate().filter(|(_, entry)| entry[15] & 8 != 0);
    // Of equals the first.
    let (place, _) = waiting.rev().max_by_key(|(_, entry)| age(entry, now).0)?;
    (table.len() > table.capacity() / 8 * 7).then_some(place)
}

proptest! {
    #[test]
    fn a_newcomer_takes_the_first_free_place_else_that_of_the_oldest_on_probation(
        packets in prop::collection::vec((0..40_u64, 0..4_usize, 0..30_u32, any::<bool>()), 1..200),
    ) {
        let signals = [Signal::Syn, Signal::Data, Signal::FinOrRst, Signal::Datagram];
        let (mut table, mut now) = (table(12), 100);
        for (flow, signal, passed, is_known) in packets {
            now += if passed > 20 { (passed - 20) * 8 } else { passed / 10 };
            let (hash, signal) = (hash(flow), signals[signal]);
            // Flows off probation take half of the places at most, or time-outs would shrink.
            if is_known && table.kept < 6 {
                let _ = table.lookup(hash, signal, tick(now));
                continue;
            }
            if table.peek(hash, tick(now)).is_some() || table.lookup(hash, signal, tick(now)).is_some() {
                continue;
            }
            let place = expected(&table, hash, now);
            let target = Target { slot: 3, vip: 4 };
            let is_tracked = table.insert_new(hash, target, signal, tick(now)) == Inserted::Tracked;
            prop_assert!(is_tracked || place.is_none());
            let Some(place) = place else { continue };
            let after = places(&table, hash);
            prop_assert_eq!(after[place][..6].to_vec(), (hash & ((1 << 48) - 1)).to_le_bytes()[..6].to_vec());
            prop_assert!(after.iter().all(|entry| entry[15] == 0 || !age(entry, now).1), "expired flows are gone");
            assert_adds_up(&table);
        }
    }

    /// The glance falls before the look-ups of the packets between, which may change what it has seen.
    #[test]
    fn a_look_up_that_begins_at_a_glance_finds_what_any_does(
        batches in prop::collection::vec(prop::collection::vec((0..30_u64, 0..4_usize), 1..12), 1..30),
    ) {
        let signals = [Signal::Syn, Signal::Data, Signal::FinOrRst, Signal::Datagram];
        let (mut glanced, mut plain) = (table(16), table(16));
        for (batch, now) in batches.into_iter().zip((0..).map(|n| tick(n * 3 / 2))) {
            let glances: Vec<_> = batch.iter().map(|(flow, _)| glanced.glance(hash(*flow))).collect();
            for ((flow, signal), glance) in batch.into_iter().zip(glances) {
                let (hash, signal) = (hash(flow), signals[signal]);
                let expected = plain.lookup(hash, signal, now);
                if signal == Signal::Data && let Some(slot) = glanced.busy_slot(glance, hash, now) {
                    glanced.count_hit();
                    prop_assert_eq!(expected, Some(Hit { slot, vip: 4, renewed: false }));
                } else {
                    prop_assert_eq!(glanced.lookup_again(glance, hash, signal, now), expected);
                }
                if expected.is_none() {
                    let target = Target { slot: u32::try_from(flow).unwrap(), vip: 4 };
                    prop_assert_eq!(glanced.insert_new(hash, target, signal, now), plain.insert_new(hash, target, signal, now));
                }
                prop_assert_eq!(glanced.counters(), plain.counters());
            }
        }
    }
}
