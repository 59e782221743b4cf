//! Property tests of small, full tables. The tests decode entries from memory according to the
//! documented layout, and check which entries an insert evicts.

use proptest::prelude::*;

use super::oracle::signal;
use super::{WRAP, assert_adds_up, establish, hash, target, tick};
use crate::{Config, FlowTable, Inserted, Signal, Timeouts};

/// A live entry decoded from memory.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    bucket: u64,
    tag: u64,
    ids: (u32, u32),
    age: u32,
    on_probation: bool,
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

/// Returns the fraction of each timeout that remains at the current load, in 32nds. The
/// documentation of `Timeouts` contains the rule.
fn left(table: &FlowTable) -> u32 {
    let buckets = number(&table.line_bytes(0).unwrap()[16..24]);
    let lines = (1..=buckets).map(|line| table.line_bytes(usize::try_from(line).unwrap()).unwrap());
    let kept = lines
        .map(|line| line.chunks(16).filter(|entry| entry[15] != 0 && entry[15] & 8 == 0).count() as u64)
        .sum::<u64>();
    let (mut left, mut at) = (32, 9);
    while at <= 14 && kept * 16 >= buckets * 4 * at {
        (left, at) = (left - 5, at + 1);
    }
    left
}

/// Returns the entries that are live at `now`, with the timeouts of [`timeouts`] reduced to `left`
/// 32nds.
fn live(table: &FlowTable, now: u32, left: u32) -> Vec<Seen> {
    let buckets = number(&table.line_bytes(0).unwrap()[16..24]);
    let mut seen = Vec::new();
    for bucket in 0..buckets {
        let line = table.line_bytes(usize::try_from(bucket).unwrap() + 1).unwrap();
        for entry in line.chunks(16).filter(|entry| entry[15] != 0) {
            let small = |range: core::ops::Range<usize>| u32::try_from(number(&entry[range])).unwrap();
            let age = (now + WRAP - small(12..15)) % WRAP;
            let whole = [0, 40, 256, 12, 120, 120, 40, 120, 0, 40, 40, 12, 40, 40, 40, 40]
                [usize::from(entry[15] % 16)];
            let limit = (whole * left / 32).max(whole.min(40));
            if age <= limit {
                let on_probation = entry[15] & 8 != 0;
                seen.push(Seen {
                    bucket,
                    tag: number(&entry[..6]),
                    ids: (small(6..9), small(9..12)),
                    age,
                    on_probation,
                });
            }
        }
    }
    seen
}

fn timeouts() -> Timeouts {
    let secs = core::time::Duration::from_secs;
    Timeouts { new: secs(10), established: secs(64), closing: secs(3), udp: secs(30) }
}

/// Returns the two buckets of a hash, computed in 128-bit arithmetic from the documented layout.
fn documented_buckets(hash: u64, buckets: u64) -> [u64; 2] {
    let scale = |x: u128| u64::try_from(x * u128::from(buckets) / (1u128 << 64)).unwrap();
    let tag = u128::from(hash % (1 << 48)).max(1);
    let first = scale(u128::from(hash));
    let sum = scale(tag * 0x9e37_79b9_7f4a_7c15 % (1 << 48) * (1 << 16));
    [first, (sum + buckets - first) % buckets]
}

/// Returns the bucket to which an entry may move.
fn other_bucket(seen: &Seen, buckets: u64) -> u64 {
    let sum = (u128::from(seen.tag) * 0x9e37_79b9_7f4a_7c15 % (1 << 48) * (1 << 16)) * u128::from(buckets)
        / (1 << 64);
    (u64::try_from(sum).unwrap() + buckets - seen.bucket) % buckets
}

fn tag(hash: u64) -> u64 {
    (hash % (1 << 48)).max(1)
}

/// Inserts a flow, and checks which entries changed.
fn checked_insert(
    table: &mut FlowTable,
    key: u64,
    ids: (u32, u32),
    signal: Signal,
    now: u32,
) -> Result<Inserted, TestCaseError> {
    let left = left(table);
    let before = live(table, now, left);
    let result = table.insert(key, target(ids.0, ids.1), signal, tick(now));
    let after = live(table, now, left);
    let lost: Vec<&Seen> =
        before.iter().filter(|b| b.tag != tag(key) && after.iter().all(|a| a.tag != b.tag)).collect();
    let mine = documented_buckets(key, table.buckets() as u64);
    let near: Vec<&Seen> = before.iter().filter(|b| mine.contains(&b.bucket)).collect();
    let full = mine.iter().all(|bucket| near.iter().filter(|b| b.bucket == *bucket).count() == 4);
    let waiting = near.iter().filter(|b| b.on_probation).map(|b| b.age).max();
    if before.iter().any(|b| b.tag == tag(key)) || !full {
        prop_assert_eq!(result, Inserted::Tracked, "the flow has an entry or a free place");
        prop_assert!(lost.is_empty(), "evicted although a place was free: {:?}", lost);
    }
    if result == Inserted::Untracked {
        prop_assert!(lost.is_empty() && waiting.is_none(), "untracked, but {:?} {:?}", lost, waiting);
        prop_assert!(after.iter().all(|a| a.tag != tag(key)));
        for neighbour in &near {
            let other = other_bucket(neighbour, table.buckets() as u64);
            let firm = before.iter().filter(|b| b.bucket == other && !b.on_probation).count();
            prop_assert_eq!(firm, 4, "{:?} could have moved to make room", neighbour);
        }
    } else {
        let own: Vec<&Seen> = after.iter().filter(|a| a.tag == tag(key)).collect();
        prop_assert_eq!(own.len(), 1);
        prop_assert_eq!((own[0].ids, own[0].on_probation, own[0].age), (ids, true, 0));
    }
    prop_assert!(lost.len() <= 1);
    if let Some(gone) = lost.first() {
        prop_assert!(gone.on_probation, "evicted although off probation: {:?}", gone);
        match waiting {
            Some(oldest) => {
                prop_assert!(mine.contains(&gone.bucket) && gone.age == oldest, "{:?} {}", gone, oldest)
            }
            None => prop_assert!(!mine.contains(&gone.bucket), "{:?}", gone),
        }
    }
    Ok(result)
}

#[test]
fn new_flow_among_established_flows_evicts_a_flood_flow() {
    let mut table = FlowTable::new(&Config { capacity: 64, timeouts: timeouts() }).unwrap();
    let known: Vec<u64> = (0..48).map(hash).filter(|&flow| establish(&mut table, flow, 0)).collect();
    assert_eq!(known.len(), 48);
    for packet in 0..1_000 {
        let _ = checked_insert(&mut table, hash(1_000 + packet), (9, 9), Signal::Syn, 2).unwrap();
    }
    assert!(known.iter().all(|&flow| table.peek(flow, tick(2)).is_some()));
}

#[derive(Clone, Debug)]
enum Op {
    Lookup(u64, Signal),
    Insert(u64, Signal),
    Advance(u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..80u64, signal()).prop_map(|(k, s)| Op::Lookup(k, s)),
        6 => (0..80u64, signal()).prop_map(|(k, s)| Op::Insert(k, s)),
        3 => (1..3u32).prop_map(Op::Advance),
        1 => (5..60u32).prop_map(Op::Advance),
    ]
}

proptest! {
    #[test]
    fn a_full_table_keeps_every_promise(
        capacity in 8..50usize,
        start in prop_oneof![Just(0), (WRAP - 400)..WRAP],
        ops in proptest::collection::vec(op(), 1..500),
    ) {
        let mut table = FlowTable::new(&Config { capacity, timeouts: timeouts() }).unwrap();
        let buckets = table.buckets() as u64;
        let (mut now, mut asked, mut inserts, mut answers) = (start, 0, 0, vec![(0, 0); 80]);
        // An insert adjusts the timeouts first.
        let mut shortened = 32;
        for (step, op) in (0u32..).zip(ops) {
            match op {
                Op::Advance(ticks) => now = (now + ticks) % WRAP,
                Op::Insert(k, s) => {
                    let ids = (step, u32::try_from(k).unwrap());
                    shortened = left(&table);
                    if checked_insert(&mut table, hash(k), ids, s, now)? == Inserted::Tracked {
                        answers[usize::try_from(k).unwrap()] = ids;
                    }
                    inserts += 1;
                }
                Op::Lookup(k, s) => {
                    let known = live(&table, now, shortened).iter().any(|seen| seen.tag == tag(hash(k)));
                    let (slot, vip) = answers[usize::try_from(k).unwrap()];
                    let hit = table.lookup(hash(k), s, tick(now)).map(|hit| (hit.slot, hit.vip));
                    prop_assert_eq!(hit, known.then_some((slot, vip)));
                    asked += 1;
                }
            }
            for seen in live(&table, now, shortened) {
                let key = (0..80).map(hash).find(|&key| tag(key) == seen.tag);
                prop_assert!(documented_buckets(key.unwrap(), buckets).contains(&seen.bucket));
            }
            let c = table.counters();
            prop_assert_eq!((c.hit + c.miss, table.len() <= table.capacity()), (asked, true));
            // An insert of an existing live tag is counted as a refresh, like a lookup that changes
            // an entry.
            prop_assert!(c.insert + c.untracked <= inserts && c.insert + c.untracked + c.refresh >= inserts);
            assert_adds_up(&table);
        }
    }
}
