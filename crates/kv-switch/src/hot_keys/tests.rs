use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn counter(room: usize) -> HotKeys {
    HotKeys::new(room, [1, 7], KeyHash::sip(3, 4))
}

/// The exact count of each key.
type Exact = BTreeMap<(u32, Vec<u8>), u64>;

fn of<'a>(exact: &'a Exact, service: u32) -> impl Iterator<Item = u64> + 'a {
    exact.iter().filter(move |((of, _), _)| *of == service).map(|(_, count)| *count)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Checks the bounds of lemmas 3 to 5 and theorem 2 of the paper against an unbounded map.
    #[test]
    fn counts_are_within_their_bounds_and_no_frequent_key_is_missed(
        room in 1_usize..12,
        // A few keys are much hotter than the others. A third of the keys belong to a second
        // service, and some belong to a service that is not counted.
        stream in prop::collection::vec((0_u32..40, 0_u32..40, 0_usize..5), 0..600),
    ) {
        let (mut counted, mut exact) = (counter(room), Exact::new());
        for (one, other, service) in stream {
            let (key, service) = (format!("k{}", one.min(other) % 23), [1, 1, 1, 7, 8][service]);
            counted.count(service, key.as_bytes());
            if service != 8 {
                *exact.entry((service, key.into_bytes())).or_default() += 1;
            }
        }
        let total: u64 = exact.values().sum();
        prop_assert_eq!((counted.asked(1), counted.asked(7)), (of(&exact, 1).sum(), of(&exact, 7).sum()));
        let keys: Vec<_> = counted.keys().map(|(service, key, count, over)| ((service, key.to_vec()), count, over)).collect();
        prop_assert_eq!(keys.iter().map(|(_, count, _)| count).sum::<u64>(), total);
        prop_assert_eq!(keys.iter().map(|(key, ..)| key).collect::<BTreeSet<_>>().len(), keys.len());
        prop_assert_eq!(keys.len(), exact.len().min(room));
        for (key, count, over) in &keys {
            let truth = exact[key];
            prop_assert!(count - over <= truth && truth <= *count, "{truth} of {count} over {over}");
            prop_assert!(over * room as u64 <= total);
        }
        prop_assert!(counted.missed() * room as u64 <= total);
        let is_in = |key: &(u32, Vec<u8>)| keys.iter().any(|(found, ..)| found == key);
        for (key, truth) in &exact {
            prop_assert!(is_in(key) || *truth <= counted.missed(), "{truth} was missed");
        }
        if exact.len() <= room {
            prop_assert!(keys.iter().all(|(key, count, over)| exact[key] == *count && *over == 0));
        }
    }

    #[test]
    fn threads_together_are_within_their_bounds(
        room in 1_usize..8,
        stream in prop::collection::vec((0_usize..3, 0_u32..12, 0_u32..12), 0..400),
    ) {
        let (mut threads, mut exact) = ([(); 3].map(|()| counter(room)), BTreeMap::<Vec<u8>, u64>::new());
        for (thread, one, other) in stream {
            let key = vec![b'a' + u8::try_from(one.min(other)).unwrap()];
            threads[thread].count(1, &key);
            *exact.entry(key).or_default() += 1;
        }
        let found = hottest(&threads, usize::MAX);
        prop_assert!(found.is_sorted_by(|one, other| one.at_least >= other.at_least));
        for HotKey { service, key, at_least, at_most } in &found {
            let truth = exact[&key[..]];
            prop_assert!(*service == 1 && *at_least <= truth && truth <= *at_most, "{at_least} {truth} {at_most}");
        }
        let missed: u64 = threads.iter().map(HotKeys::missed).sum();
        for (key, truth) in &exact {
            prop_assert!(*truth <= missed || found.iter().any(|hot| hot.key[..] == key[..]));
        }
    }
}

#[test]
fn the_hottest_come_first_in_the_midst_of_keys_that_come_once() {
    let mut counted = counter(64);
    for turn in 0..10_000_u32 {
        // The hot keys make up 1/16, 1/32 and 1/64 of the requests.
        let key = match turn % 64 {
            0 | 16 | 32 | 48 => "first".to_owned(),
            5 | 37 => "second".to_owned(),
            9 => "third".to_owned(),
            _ => format!("once{turn}"),
        };
        counted.count(7, key.as_bytes());
    }
    let found = hottest([&counted], 3);
    let names: Vec<_> = found.iter().map(|hot| (hot.service, &hot.key[..])).collect();
    assert_eq!(names, [(7, &b"first"[..]), (7, b"second"), (7, b"third")]);
    assert!(found[0].at_least > 600 && found[0].at_most < 640 + 10_000 / 64, "{found:?}");
}

#[test]
fn hot_keys_services_are_separate_and_keys_have_any_bytes() {
    let mut counted = counter(8);
    let long = [0xff; MAX_KEY_BYTES + 1];
    for (service, key) in
        [(1, &b"a"[..]), (7, b"a"), (7, b""), (1, b"a\0"), (1, &long[1..]), (1, &long), (2, b"a")]
    {
        counted.count(service, key);
    }
    let mut keys: Vec<_> =
        counted.keys().map(|(service, key, count, over)| (service, key.to_vec(), count, over)).collect();
    keys.sort();
    let one = |service, key: &[u8]| (service, key.to_vec(), 1, 0);
    assert_eq!(keys, [one(1, b"a"), one(1, b"a\0"), one(1, &long[1..]), one(7, b""), one(7, b"a")]);
    // A key that is too long increases the total of its service. Keys of other services are not
    // counted at all.
    assert_eq!((counted.asked(1), counted.asked(7), counted.asked(2)), (4, 2, 0));
}

/// Keys with the same home position form a chain in the index. The test removes some keys from the
/// chain.
#[test]
fn keys_with_one_home_are_found_when_others_have_left() {
    let mut counted = HotKeys::new(4, [0], KeyHash::fnv1a_64());
    let mut homes = BTreeMap::new();
    for key in (0..200).map(|number| format!("key{number}")) {
        // Counters for 4 keys have an index of 8 positions.
        let home = KeyHash::fnv1a_64().hash(key.as_bytes()) % 8;
        homes.entry(home).or_insert_with(Vec::new).push(key);
    }
    let chain = homes.into_values().find(|keys| keys.len() >= 12).unwrap();
    for round in 0..6 {
        for key in &chain[round..round + 6] {
            counted.count(0, key.as_bytes());
            assert!(counted.keys().any(|(_, found, ..)| found == key.as_bytes()));
        }
    }
    assert_eq!(counted.keys().map(|(_, _, count, _)| count).sum::<u64>(), 36);
}

#[test]
fn two_keys_of_one_hash_are_two() {
    let (mut counted, mut seen) = (HotKeys::new(4, [0], KeyHash::fnv1a_64()), BTreeMap::new());
    let mut keys = (0_u32..).map(|number| format!("key{number}"));
    let same = |key: String| {
        seen.insert(KeyHash::fnv1a_64().hash(key.as_bytes()), key.clone()).map(|other| [key, other])
    };
    // Among several hundred thousand keys, at least two have the same 32-bit hash.
    for key in keys.find_map(same).unwrap() {
        counted.count(0, key.as_bytes());
    }
    assert_eq!(counted.keys().map(|(_, _, count, _)| count).collect::<Vec<_>>(), [1, 1]);
}
