//! Tests with known answers, property tests against a simple model, and tests of changing sets of
//! backends.

mod oracle;

use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use std::collections::BTreeMap;
use std::println;

use proptest::collection::{btree_map, vec as vec_of};
use proptest::prelude::*;
use proptest::sample::select;

use self::oracle::Set;
use crate::permutation::{Keys, Preference, invert_all};
use crate::populate::{Walk, populate};
use crate::prime::is_prime;
use crate::turns::Turns;
use crate::*;

const SEED: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

const GOLDEN: [usize; 53] = [
    0, 2, 0, 2, 0, 1, 0, 1, 1, 2, 1, 0, 0, 0, 0, 0, 1, 0, 2, 1, 2, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0,
    1, 0, 2, 0, 2, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 2, 0, 1,
];

fn options(size: u32) -> Options {
    Options { size, seed: Seed::new(SEED), allow_coarse: true }
}

fn backends(set: &Set) -> Vec<Backend<'_>> {
    set.iter().map(|(name, &weight)| Backend { name, weight }).collect()
}

fn table(set: &Set, size: u32) -> Table {
    build(&backends(set), &options(size)).unwrap()
}

/// Returns backends with the names `backend-0000`, `backend-0001` and so on, which sort in numeric
/// order.
fn weighted(weights: impl IntoIterator<Item = u32>) -> Set {
    (0..)
        .zip(weights)
        .map(|(i, weight): (u32, u32)| (format!("backend-{i:04}").into_bytes(), weight))
        .collect()
}

fn equal(count: usize) -> Set {
    weighted(vec![1; count])
}

fn names_by_slot(table: &Table) -> Vec<Vec<u8>> {
    table.iter().map(|rank| table.name(rank).to_vec()).collect()
}

fn ranks(table: &Table) -> Vec<usize> {
    table.iter().map(Rank::index_by_name).collect()
}

fn shares(table: &Table) -> Vec<u32> {
    table.shares().map(|(_, slots)| slots).collect()
}

/// Builds the table of the paper. Each element of `pairs` contains an offset, a skip and a rank.
/// All weights are the same.
fn from_pairs(pairs: &[(u32, u32, u16)], size: u32, endgame: u32) -> Vec<u16> {
    let mut walks: Vec<Walk<u16>> =
        pairs.iter().map(|&(next, skip, rank)| Walk { next, skip, rank }).collect();
    let (turns, _) = Turns::new(pairs.iter().map(|_| 1), size);
    populate(size, &mut walks, turns, endgame)
}

#[test]
fn table_1_of_the_paper_comes_out_before_and_after_b1_goes() {
    for endgame in 0..=7 {
        let (b0, b1, b2) = ((3, 4, 0), (0, 2, 1), (3, 1, 2));
        assert_eq!(from_pairs(&[b0, b1, b2], 7, endgame), [1, 0, 1, 0, 2, 2, 0]);
        assert_eq!(from_pairs(&[b0, b2], 7, endgame), [0, 0, 0, 0, 2, 2, 2]);
    }
}

/// A separate program with its own SipHash computed the expected table. If a change to the
/// algorithm makes this test fail, increase `ALGORITHM_VERSION`.
#[test]
fn version_1_builds_this_table_from_these_names() {
    assert_eq!(ALGORITHM_VERSION, 1);
    let set = Set::from([(b"red".to_vec(), 1), (b"green".to_vec(), 2), (b"blue".to_vec(), 4)]);
    let table = table(&set, 53);
    assert_eq!(ranks(&table), GOLDEN); // Rank 0 is blue, 1 is green, 2 is red.
    // The placement of hashes must stay the same too, with and without mixing.
    let names = |lookup: fn(&Table, u64) -> Rank| {
        [0, 1, 2, 0xffff_ffff, 0x0123_4567_89ab_cdef, u64::MAX].map(|hash| table.name(lookup(&table, hash)))
    };
    let [blue, green, red]: [&[u8]; 3] = [b"blue", b"green", b"red"];
    assert_eq!(names(Table::lookup_uniform), [blue, blue, blue, blue, blue, green]);
    assert_eq!(names(Table::lookup), [blue, blue, blue, blue, red, red]);
}

#[test]
fn equal_backends_have_equal_shares_to_one_slot() {
    for (count, coarse) in [(1, false), (2, false), (400, false), (655, false), (1_000, true)] {
        let set = equal(count);
        let options = Options { allow_coarse: coarse, ..options(DEFAULT_SIZE) };
        let shares = shares(&build(&backends(&set), &options).unwrap());
        let (max, min) = (shares.iter().max().unwrap(), shares.iter().min().unwrap());
        assert!(max - min <= 1, "{count} backends: {min} to {max}");
        assert_eq!(shares.iter().sum::<u32>(), DEFAULT_SIZE);
    }
    let shares = shares(&table(&equal(400), DEFAULT_SIZE));
    assert_eq!(shares.iter().max().unwrap() - shares.iter().min().unwrap(), 1);
}

#[test]
fn shares_follow_weights() {
    let rows: &[(&[u32], u32, &[u32])] = &[
        // A different implementation assigns 16, 98, 832 and 75 slots.
        (&[2, 13, 111, 10], 1_021, &[15, 98, 833, 75]),
        (&[1, 1, 1, 1], 1_021, &[256, 255, 255, 255]),
        // A different implementation, with 1,024 slots, assigns 146, 292, 293 and 293 slots.
        (&[1, 2, 2, 2], 1_021, &[146, 292, 292, 291]),
        (&[0, 1, 1, 1], 1_021, &[0, 341, 340, 340]),
        (&[0, 0, 9, 0], 1_021, &[0, 0, 1_021, 0]),
        (&[1_000, 1], 101, &[101, 0]), // A tenth of a slot is rounded to 0.
        (&[u32::MAX, 1, u32::MAX], 11, &[6, 0, 5]),
    ];
    for &(weights, size, expected) in rows {
        assert_eq!(shares(&table(&weighted(weights.iter().copied()), size)), expected, "{weights:?}");
    }
}

#[test]
fn one_heavy_backend_among_many_light_ones_gets_its_exact_share() {
    // With these weights, algorithms that round the share of each backend separately are off by
    // hundreds of slots.
    let set = weighted((0..1_000).map(|i| if i == 500 { 1_000 } else { 1 }));
    assert_eq!(shares(&table(&set, DEFAULT_SIZE))[500], 32_785); // 65,537 x 1,000 / 1,999 = 32,784.9
}

#[test]
fn only_the_ratios_of_weights_count() {
    let of = |weights: [u32; 4]| ranks(&table(&weighted(weights), 1_021));
    assert_eq!(of([1, 1, 1, 1]), of([2, 2, 2, 2]));
    assert_eq!(of([1, 2, 0, 5]), of([700, 1_400, 0, 3_500]));
}

#[test]
fn backend_with_weight_0_keeps_its_rank_and_moves_no_slot() {
    let (with, without) =
        (weighted([3, 0, 5]), Set::from_iter(weighted([3, 0, 5]).into_iter().filter(|b| b.1 > 0)));
    assert_eq!(names_by_slot(&table(&with, 1_021)), names_by_slot(&table(&without, 1_021)));
    assert_eq!(table(&with, 1_021).backends().nth(1), Some(Backend { name: b"backend-0001", weight: 0 }));
    assert!(table(&with, 1_021).iter().all(|rank| rank.index_by_name() != 1));
}

#[test]
fn entries_are_two_bytes_up_to_65_535_backends() {
    let set = equal(65_535);
    let narrow = table(&set, DEFAULT_SIZE);
    assert_eq!((narrow.entry_bytes(), shares(&narrow).iter().min()), (2, Some(&1)));
    let wide = table(&equal(65_536), DEFAULT_SIZE);
    assert_eq!((wide.entry_bytes(), ranks(&wide).iter().max()), (4, Some(&65_535)));
    assert_eq!(shares(&wide).iter().min(), Some(&1));
}

#[test]
fn slots_divide_the_hashes_evenly_from_the_top_bits() {
    let table = table(&equal(3), 7);
    assert_eq!((table.slot_of(0), table.slot_of(u64::MAX)), (0, 6));
    for slot in 0..7 {
        // The first hash of a slot is 2^64 * slot / 7, rounded up.
        let first = u64::try_from((u128::from(slot) << 64).div_ceil(7)).unwrap();
        assert_eq!(table.slot_of(first), slot);
        assert_eq!(table.slot_of(first.wrapping_sub(1)), (slot + 6) % 7);
        assert_eq!(table.lookup_uniform(first), table.get(slot));
    }
}

#[test]
fn a_rank_leads_to_its_backend_in_any_order_of_the_input() {
    // In the order of names, b10 comes before b2.
    let given = [("b1", 1), ("b2", 2), ("b10", 7)];
    let backends = given.map(|(name, weight)| Backend { name: name.as_bytes(), weight });
    let table = build(&backends, &options(1_021)).unwrap();
    let mut slots = BTreeMap::new();
    for rank in table.iter() {
        assert_eq!(table.name(rank), table.backend(rank).name);
        assert_eq!(table.backends().nth(rank.index_by_name()), Some(table.backend(rank)));
        *slots.entry(table.backend(rank).name).or_insert(0) += 1;
    }
    assert_eq!(slots, BTreeMap::from([(&b"b1"[..], 102), (b"b2", 204), (b"b10", 715)]));
    assert!(table.shares().all(|(backend, share)| slots[backend.name] == share));
}

#[test]
fn lookup_spreads_hashes_that_use_few_bits() {
    type Hash = fn(u64) -> u64;
    let table = table(&equal(8), DEFAULT_SIZE);
    let patterns: [(&str, Hash); 5] = [
        ("sequential numbers", |n| n),
        ("32-bit hashes", |n| n.wrapping_mul(0x9e37_79b9) & 0xffff_ffff),
        ("multiples of 4,096", |n| n << 12),
        ("hashes with 8 constant low bits", |n| n << 8 | 0x5a),
        ("numbers in the high bits", |n| n << 48),
    ];
    for (pattern, hash) in patterns {
        let mut flows = [0_u32; 8];
        (0..16_000).for_each(|n| flows[table.lookup(hash(n)).index_by_name()] += 1);
        // The expected number is 2,000, with a standard deviation of 42.
        assert!(flows.iter().all(|count| (1_750..2_250).contains(count)), "{pattern}: {flows:?}");
    }
}

#[test]
fn what_cannot_become_a_table_is_refused_by_name() {
    let (a, b) = (Backend { name: b"a", weight: 1 }, Backend { name: b"b", weight: 1 });
    let idle = Backend { name: b"idle", weight: 0 };
    let many = equal(11);
    let (many, sparse) = (backends(&many), options(7));
    let strict = |size| Options { allow_coarse: false, ..options(size) };
    let rows: &[(&[Backend<'_>], Options, &str)] = &[
        (&[], options(7), "no backend has a weight above 0"),
        (&[idle], options(7), "no backend has a weight above 0"),
        (&[a], options(0), "table size 0 is not a prime number"),
        (&[a], options(1), "table size 1 is not a prime number"),
        (&[a], options(65_536), "table size 65536 is not a prime number"),
        (&[a], options(16_777_216), "table size 16777216 is not a prime number"),
        (&[a], options(16_777_259), "table size 16777259 exceeds the maximum of 16777216"),
        (&[a, b], strict(199), "table size 199 is too small for 2 backends with 100 slots each"),
        (&[a, idle], strict(199), "table size 199 is too small for 2 backends with 100 slots each"),
        (&many, sparse, "table size 7 is too small for 11 backends"),
        (&[b, a, idle, b], options(7), "backends 0 and 3 (counted from 0) have the same name"),
        (&[idle, a, idle], options(7), "backends 0 and 2 (counted from 0) have the same name"),
    ];
    for (set, options, message) in rows {
        assert_eq!(build(set, options).unwrap_err().to_string(), *message);
    }
    assert!(build(&[a, b], &strict(211)).is_ok());
    assert!(build(&[a, b], &options(2)).is_ok());
}

#[test]
fn the_largest_prime_size_builds() {
    let table = table(&weighted([u32::MAX, u32::MAX, 1]), 16_777_213);
    assert_eq!(shares(&table), [8_388_607, 8_388_606, 0]);
}

#[test]
fn a_seed_never_shows_its_bytes() {
    let shown = format!("{:?}", options(7));
    assert!(shown.contains("secret") && !shown.contains("14"), "{shown}");
}

#[test]
fn another_seed_builds_another_table() {
    let set = equal(10);
    let other = Options { seed: Seed::new([9; 16]), ..options(1_021) };
    assert_ne!(build(&backends(&set), &other).unwrap(), table(&set, 1_021));
}

#[test]
fn sizes_are_prime_exactly_when_a_sieve_says_so() {
    let mut composite = vec![false; 70_000];
    for n in 2..composite.len() {
        assert_eq!(is_prime(u32::try_from(n).unwrap()), !composite[n], "{n}");
        (2 * n..composite.len()).step_by(n).for_each(|multiple| composite[multiple] = true);
    }
    assert!(!is_prime(0) && !is_prime(1) && is_prime(655_373) && is_prime(16_777_213));
    assert!(!is_prime(4_093 * 4_093) && !is_prime(4_091 * 4_093));
}

/// A small deterministic generator (xorshift) that selects backends.
fn pick(state: &mut u64, below: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state % below as u64).unwrap()
}

/// Removes `gone` random backends of 1,000. Returns the average share of slots that changed, and
/// the average share of slots that moved needlessly.
fn resilience(gone: usize, rounds: u32) -> (f64, f64) {
    let full = equal(1_000);
    let before = table(&full, DEFAULT_SIZE);
    let (mut state, mut changed, mut needless) = (0x9e37_79b9_7f4a_7c15, 0, 0);
    for _ in 0..rounds {
        let mut rest = full.clone();
        while rest.len() > full.len() - gone {
            let name = rest.keys().nth(pick(&mut state, rest.len())).unwrap().clone();
            rest.remove(&name);
        }
        let moved = disruption(&before, &table(&rest, DEFAULT_SIZE)).unwrap();
        assert_eq!((moved.backend_new, moved.weight_changed), (0, 0));
        changed += moved.changed();
        needless += moved.moved_needlessly;
    }
    let slots = f64::from(rounds) * f64::from(DEFAULT_SIZE);
    (f64::from(changed) / slots, f64::from(needless) / slots)
}

fn assert_resilience(rounds: u32) {
    for (gone, bound) in [(1, 0.010), (10, 0.040), (50, 0.095), (200, 0.250)] {
        let (changed, needless) = resilience(gone, rounds);
        println!("{gone} of 1,000 backends removed: {changed:.4} changed, {needless:.4} needlessly");
        assert!(changed > gone as f64 / 1_010.0 && changed < bound, "{gone} gone: {changed}");
    }
}

/// Reproduces Figure 12 of the paper. If `SLUICEGATE_LONG` is set, the test runs 200 rounds, as the
/// paper does.
#[test]
fn backends_that_go_take_little_more_than_their_own_slots() {
    assert_resilience(if std::env::var_os("SLUICEGATE_LONG").is_some() { 200 } else { 2 });
}

#[test]
fn a_weight_that_changes_moves_few_other_slots() {
    let before = table(&weighted([10; 100]), DEFAULT_SIZE);
    for (weight, own) in [(9, 65), (5, 325), (1, 589), (11, 65), (20, 642)] {
        let after = table(&weighted((0..100).map(|i| if i == 50 { weight } else { 10 })), DEFAULT_SIZE);
        let moved = disruption(&before, &after).unwrap();
        println!("10 to {weight}: {moved:?}");
        assert!(moved.weight_changed >= own, "{weight}: {moved:?}");
        assert!(moved.changed() < own + 500, "{weight}: {moved:?}");
    }
}

#[test]
fn disruption_tells_the_causes_apart() {
    let of = |pairs: &[(&[u8], u32)]| {
        table(&pairs.iter().map(|&(name, weight)| (name.to_vec(), weight)).collect(), 1_021)
    };
    let moved = |before, after| disruption(&of(before), &of(after)).unwrap();
    let all = Disruption { unchanged: 1_021, ..Disruption::default() };
    // The backend stays the same, but its rank changes.
    assert_eq!(moved(&[(b"b", 1)], &[(b"a", 0), (b"b", 7)]), all);
    let gone = Disruption { backend_gone: 1_021, ..Disruption::default() };
    assert_eq!(moved(&[(b"b", 1)], &[(b"a", 1)]), gone);
    assert_eq!(moved(&[(b"b", 1)], &[(b"a", 1), (b"b", 0)]), gone);
    let new = moved(&[(b"b", 1), (b"c", 0)], &[(b"b", 1), (b"c", 1)]);
    assert_eq!((new.backend_new, new.unchanged), (510, 511));
    let heavier = moved(&[(b"b", 1), (b"c", 1)], &[(b"b", 1), (b"c", 3)]);
    assert!(heavier.weight_changed >= 255 && heavier.backend_gone + heavier.backend_new == 0, "{heavier:?}");
    assert_eq!(heavier.changed() + heavier.unchanged, 1_021);
}

#[test]
fn tables_of_two_sizes_are_not_compared() {
    let error = disruption(&table(&equal(2), 7), &table(&equal(2), 11)).unwrap_err();
    assert_eq!(error.to_string(), "cannot compare a table of 7 slots with a table of 11 slots");
}

/// Counts changed slots by cause. This reference implementation examines one slot at a time and
/// uses maps of names.
fn naive_disruption(
    before: &(Set, Vec<Vec<u8>>),
    after: &(Set, Vec<Vec<u8>>),
) -> BTreeMap<&'static str, u32> {
    let mut counts = BTreeMap::new();
    for (old, new) in before.1.iter().zip(&after.1) {
        let weight = |set: &Set, name| set.get(name).copied().unwrap_or(0);
        let (old_then, old_now) = (weight(&before.0, old), weight(&after.0, old));
        let (new_then, new_now) = (weight(&before.0, new), weight(&after.0, new));
        let cause = match () {
            () if old == new => "unchanged",
            () if old_now == 0 => "gone",
            () if new_then == 0 => "new",
            () if old_now < old_then || new_now > new_then => "weight",
            () => "needless",
        };
        *counts.entry(cause).or_default() += 1;
    }
    counts
}

fn sizes() -> impl Strategy<Value = u32> {
    select(&[41u32, 43, 53, 101, 251, 509, 1_021, 2_053][..])
}

/// Generates up to 40 backends. Weights are small, identical, huge or 0, and at least one weight is
/// above 0.
fn sets() -> impl Strategy<Value = Set> {
    let weight = prop_oneof![4 => 0..4u32, 2 => Just(1), 1 => 0..1_000u32, 1 => any::<u32>()];
    btree_map(vec_of(any::<u8>(), 0..6), weight, 1..40)
        .prop_filter("at least one weight is above 0", |set| set.values().any(|&w| w > 0))
}

proptest! {
    #[test]
    fn tables_agree_with_the_oracle(set in sets(), size in sizes(), seed: [u8; 16]) {
        let options = Options { size, seed: Seed::new(seed), allow_coarse: true };
        let table = build(&backends(&set), &options).unwrap();
        prop_assert_eq!(names_by_slot(&table), oracle::table(&set, size, seed));
    }

    #[test]
    fn long_runs_agree_with_the_oracle(
        first in 1..100usize,
        second in 0..100usize,
        size in select(&[251u32, 509, 1_021, 2_053][..]),
        seed: [u8; 16],
    ) {
        let set = weighted((0..first + second).map(|i| if i < first { 2 } else { 3 }));
        let options = Options { size, seed: Seed::new(seed), allow_coarse: true };
        let table = build(&backends(&set), &options).unwrap();
        prop_assert_eq!(names_by_slot(&table), oracle::table(&set, size, seed));
    }

    #[test]
    fn tiny_tables_agree_with_the_oracle(set in sets(), size in select(&[2u32, 3, 5, 7, 11, 13][..])) {
        let set: Set = set.into_iter().filter(|backend| backend.1 > 0).take(size as usize).collect();
        prop_assert_eq!(names_by_slot(&table(&set, size)), oracle::table(&set, size, SEED));
    }

    #[test]
    fn the_order_of_the_input_does_not_matter(
        (sorted, shuffled) in sets().prop_flat_map(|set| {
            let list: Vec<(Vec<u8>, u32)> = set.clone().into_iter().collect();
            (Just(set), Just(list).prop_shuffle())
        }),
        size in sizes(),
    ) {
        let shuffled: Vec<Backend<'_>> =
            shuffled.iter().map(|(name, weight)| Backend { name, weight: *weight }).collect();
        prop_assert!(build(&shuffled, &options(size)).unwrap() == table(&sorted, size));
    }

    #[test]
    fn shares_are_proportional_to_less_than_one_slot(set in sets(), size in sizes()) {
        let total: u64 = set.values().map(|&weight| u64::from(weight)).sum();
        for ((_, share), &weight) in table(&set, size).shares().zip(set.values()) {
            let off = (u64::from(share) * total).abs_diff(u64::from(weight) * u64::from(size));
            prop_assert!(off < total, "weight {weight} of {total}: {share} of {size}");
        }
    }

    #[test]
    fn when_the_endgame_begins_changes_nothing(
        walks in vec_of((0..251u32, 1..251u32), 1..100),
        endgame in 0..=251u32,
    ) {
        let pairs: Vec<(u32, u32, u16)> = walks.iter().zip(0..).map(|(&(next, skip), rank)| (next, skip, rank)).collect();
        prop_assert_eq!(from_pairs(&pairs, 251, endgame), from_pairs(&pairs, 251, 0));
    }

    #[test]
    fn keys_order_slots_as_the_preferences_do(
        size in select(&[2u32, 3, 7, 65_537, 655_373, 16_777_213][..]),
        (start, skip) in any::<(u32, u32)>(),
        place in prop_oneof![0..100u32, any::<u32>()],
        (index, other_index) in any::<(u16, u16)>(),
    ) {
        let (start, skip, place) = (start % size, skip % (size - 1) + 1, place % (size - 1));
        let slot = |place| u32::try_from((u64::from(start) + u64::from(place) * u64::from(skip)) % u64::from(size)).unwrap();
        let mut inverses = [skip];
        invert_all(&mut inverses, size);
        let preference = Preference::new(start, inverses[0], size);
        let (key, next) = (preference.key(slot(place), index.into()), preference.key(slot(place + 1), other_index.into()));
        prop_assert!(key < next, "{place}: {key:#x}, {next:#x}");
        prop_assert_eq!((Preference::index(key), Preference::index(next)), (index.into(), other_index.into()));
    }

    #[test]
    fn inverses_of_many_are_those_of_each(
        size in select(&[2u32, 3, 7, 65_537, 16_777_213][..]),
        values in vec_of(any::<u32>(), 0..20),
    ) {
        let values: Vec<u32> = values.iter().map(|value| value % (size - 1) + 1).collect();
        let mut inverses = values.clone();
        invert_all(&mut inverses, size);
        for (value, inverse) in values.iter().zip(inverses) {
            prop_assert_eq!(u64::from(*value) * u64::from(inverse) % u64::from(size), 1);
            prop_assert!(inverse < size);
        }
    }

    #[test]
    fn offset_and_skip_begin_the_permutation(name: Vec<u8>, seed: [u8; 16], size in sizes()) {
        let (offset, skip) = Keys::derive(&Seed::new(seed)).offset_and_skip(&name, size);
        let permutation = oracle::permutation(&name, size.into(), seed);
        prop_assert_eq!(offset as usize, permutation[0]);
        prop_assert_eq!(((offset + skip) % size) as usize, permutation[1]);
        prop_assert!(offset < size && (1..size).contains(&skip));
    }

    #[test]
    fn disruption_agrees_with_a_naive_count(
        before in sets(),
        other in sets(),
        keep in vec_of(any::<bool>(), 40),
        size in sizes(),
    ) {
        // The new set contains some backends of the old set, so that all causes occur.
        let kept = before.clone().into_iter().zip(keep).filter(|(_, keep)| *keep).map(|(backend, _)| backend);
        let mut after = other;
        after.extend(kept);
        after = after.into_iter().take(size as usize).collect();
        prop_assume!(after.values().any(|&weight| weight > 0));
        let (old, new) = (table(&before, size), table(&after, size));
        let moved = disruption(&old, &new).unwrap();
        let naive = naive_disruption(&(before, names_by_slot(&old)), &(after, names_by_slot(&new)));
        let count = |cause| naive.get(cause).copied().unwrap_or(0);
        prop_assert_eq!(moved, Disruption {
            unchanged: count("unchanged"),
            backend_gone: count("gone"),
            backend_new: count("new"),
            weight_changed: count("weight"),
            moved_needlessly: count("needless"),
        });
        prop_assert_eq!(moved.changed() + moved.unchanged, size);
    }
}
