//! Tests of one cache without concurrency. The module `world` tests several threads. The module
//! `faults` checks that this cache does not have the known faults of the cache BMC.

use super::*;
use crate::{Application, FetchedContent, KeyRoom, Memcached, NoAnswer};

mod faults;
mod server;
mod world;

pub(super) const MEMCACHED: Memcached = Memcached::new(32);
pub(super) const MILLI: u64 = 1_000_000;

pub(super) fn hash(key: &[u8]) -> u64 {
    KeyHash::sip(1, 2).hash(key)
}

/// Returns a read of a key at port 1 of the server 0.
pub(super) fn read(key: &[u8]) -> Read<'_, u16> {
    Read {
        hash: hash(key),
        server: 0,
        key,
        lease: Lease::from_nanos(10 * MILLI),
        fills_per_server: 8,
        generation: 1,
        asked: 1,
    }
}

pub(super) fn cache(epochs: &Arc<Epochs>) -> Cache<u16> {
    Cache::new(&CacheConfig {
        memory: 64_000,
        epochs: Arc::clone(epochs),
        seed: [3, 4],
        advise: |_| {},
        sum: |_| 0,
    })
}

/// Reads a key until the cache requests a fetch, and returns the index of the fetch.
fn wanted(cache: &mut Cache<u16>, now: u64, key: &[u8]) -> u32 {
    for _ in 0..10_000 {
        assert_eq!(cache.look_up(now, &read(key)), None);
        if cache.has_wanted() {
            return cache.ask(now).unwrap();
        }
    }
    panic!("the key is never fetched");
}

/// Returns the answer to a fetch, from a server that has the same content for every key.
fn answered(cache: &Cache<u16>, number: u32, says: &str) -> Vec<u8> {
    let mut out = [0; 1_472];
    let length = cache.write_fetch(&MEMCACHED, number, 7, &mut out).unwrap();
    let asked = str::from_utf8(&out[8..length]).unwrap();
    let nonce = asked.split(' ').next_back().unwrap().trim_end();
    let (line, value) = says.split_once('|').unwrap_or((says, ""));
    let value = if line.starts_with("VA") { format!("{value}\r\n") } else { String::new() };
    [b"\0\x07\0\0\0\x01\0\0", format!("{line} {nonce}\r\n{value}").as_bytes()].concat()
}

/// Converts a datagram from [`answered`], whose request id is 7, to a [`FetchAnswer`].
fn said(number: u32, payload: &[u8]) -> FetchAnswer<'_> {
    FetchAnswer { number, request: 7, payload }
}

fn asked(cache: &Cache<u16>, number: u32) -> String {
    let mut out = [0; 1_472];
    let length = cache.write_fetch(&MEMCACHED, number, 7, &mut out).unwrap();
    String::from_utf8(out[8..length].to_vec()).unwrap()
}

/// Returns a cache with a value for the key `k`, and the time of its fetch, which is 10 s.
pub(super) fn filled(epochs: &Arc<Epochs>) -> (Cache<u16>, u64) {
    let (mut cache, now) = (cache(epochs), 10 * SECOND);
    let number = wanted(&mut cache, now, b"k");
    let answer = answered(&cache, number, "VA 2 kk f5 t-1 c9|hi");
    assert_eq!(cache.answer(now + 1, &MEMCACHED, &said(number, &answer)), Ok(Filled::Kept));
    (cache, now)
}

fn serve(cache: &mut Cache<u16>, now: u64) -> Option<Vec<u8>> {
    let number = cache.look_up(now, &read(b"k"))?;
    if cache.served(now, number) {
        cache.renew(now, &read(b"k"), number);
    }
    Some(cache.copy(number).unwrap().stored.bytes.to_vec())
}

#[test]
fn cache_frequent_key_is_fetched_and_served_for_one_lease() {
    let epochs = Arc::new(Epochs::new());
    let mut cache = cache(&epochs);
    let now = 10 * SECOND;
    for _ in 0..399 {
        assert_eq!((cache.look_up(now, &read(b"k")), cache.has_wanted()), (None, false));
    }
    let number = wanted(&mut cache, now, b"k");
    assert_eq!(asked(&cache, number).split(" O").next().unwrap(), "mg k k v f t c");
    // While a fetch is in progress, no second fetch is requested.
    (0..1_000).for_each(|_| assert!(cache.look_up(now, &read(b"k")).is_none() && !cache.has_wanted()));
    let answer = answered(&cache, number, "VA 2 kk f5 t-1 c9|hi");
    assert_eq!(cache.answer(now + MILLI, &MEMCACHED, &said(number, &answer)), Ok(Filled::Kept));
    assert_eq!(serve(&mut cache, now + 10 * MILLI - 1), Some(b"hi".to_vec()));
    assert_eq!(serve(&mut cache, now + 10 * MILLI), None);
    let counts = cache.counts();
    assert_eq!(
        (counts.hits, counts.asked, counts.fills, counts.bytes),
        (1, 2, 1, 3),
        "the cached value must be renewed"
    );
}

#[test]
fn cache_copy_is_renewed_by_version_and_fetched_each_second() {
    let epochs = Arc::new(Epochs::new());
    let (mut cache, mut now) = filled(&epochs);
    let mut fetched = 0;
    for turn in 0..200 {
        now += 9 * MILLI;
        assert_eq!(serve(&mut cache, now), Some(b"hi".to_vec()), "{turn}");
        assert_eq!(serve(&mut cache, now), Some(b"hi".to_vec()));
        let number = cache.ask(now).unwrap();
        assert_eq!(cache.ask(now), None);
        let asked = asked(&cache, number);
        let is_fetch = asked.contains(" v ");
        assert_eq!(is_fetch, !asked.contains(" u "), "{asked}");
        fetched += u32::from(is_fetch);
        let says = if is_fetch { "VA 2 kk f5 t-1 c9|hi" } else { "HD kk t-1 c9" };
        let answer = answered(&cache, number, says);
        cache.answer(now + 1, &MEMCACHED, &said(number, &answer)).unwrap();
        // The hits earn the credit for the next round.
        (0..40).for_each(|_| drop(serve(&mut cache, now)));
    }
    assert_eq!(fetched, 1, "fetches in 1.8 s");
    assert_eq!(cache.counts().renewals, 199);
    // A value that is not read is not renewed.
    assert_eq!((cache.ask(now + SECOND), serve(&mut cache, now + SECOND)), (None, None));
}

#[test]
fn another_version_ends_a_copy_and_fetches_the_value() {
    let epochs = Arc::new(Epochs::new());
    let (mut cache, now) = filled(&epochs);
    let soon = now + 9 * MILLI;
    serve(&mut cache, soon).unwrap();
    let number = cache.ask(soon).unwrap();
    let answer = answered(&cache, number, "HD kk t-1 c10");
    assert_eq!(cache.answer(soon, &MEMCACHED, &said(number, &answer)), Ok(Filled::Changed));
    assert_eq!(serve(&mut cache, soon), None);
    let number = cache.ask(soon).unwrap();
    assert!(asked(&cache, number).contains(" v "));
    let answer = answered(&cache, number, "VA 3 kk f5 t-1 c10|new");
    assert_eq!(cache.answer(soon, &MEMCACHED, &said(number, &answer)), Ok(Filled::Kept));
    assert_eq!(serve(&mut cache, soon), Some(b"new".to_vec()));
}

#[test]
fn a_version_that_goes_back_ends_all_copies_of_its_server() {
    let epochs = Arc::new(Epochs::new());
    let (mut cache, now) = filled(&epochs);
    let number = wanted(&mut cache, now, b"other");
    let answer = answered(&cache, number, "VA 2 kother f5 t-1 c8|oh");
    assert_eq!(cache.answer(now, &MEMCACHED, &said(number, &answer)), Ok(Filled::Kept));
    let soon = now + 9 * MILLI;
    serve(&mut cache, soon).unwrap();
    let number = cache.ask(soon).unwrap();
    let answer = answered(&cache, number, "HD kk t-1 c1");
    assert!(cache.look_up(soon, &read(b"other")).is_some());
    assert_eq!(cache.answer(soon, &MEMCACHED, &said(number, &answer)), Ok(Filled::Stale));
    assert_eq!((cache.look_up(soon, &read(b"k")), cache.look_up(soon, &read(b"other"))), (None, None));
}

/// A lower version of a key that a client has written is not the effect of a restart.
#[test]
fn lower_version_after_write_keeps_copies_of_other_keys() {
    let epochs = Arc::new(Epochs::new());
    let (mut cache, now) = filled(&epochs);
    let number = wanted(&mut cache, now, b"other");
    let answer = answered(&cache, number, "VA 2 kother f5 t-1 c9|oh");
    assert_eq!(cache.answer(now, &MEMCACHED, &said(number, &answer)), Ok(Filled::Kept));
    epochs.key_written(now, hash(b"other"));
    let now = now + SETTLE_NS;
    let number = wanted(&mut cache, now, b"other");
    let answer = answered(&cache, number, "VA 2 kother f5 t-1 c1|me");
    assert_eq!(cache.answer(now, &MEMCACHED, &said(number, &answer)), Ok(Filled::Kept));
    assert_eq!(serve(&mut cache, now), Some(b"hi".to_vec()));
}

#[test]
fn a_server_without_versions_is_never_asked_for_them_alone() {
    let epochs = Arc::new(Epochs::new());
    let (mut cache, now) = (cache(&epochs), 10 * SECOND);
    let number = wanted(&mut cache, now, b"k");
    let answer = answered(&cache, number, "VA 2 kk f5 t-1 c0|hi");
    assert_eq!(cache.answer(now, &MEMCACHED, &said(number, &answer)), Ok(Filled::Kept));
    serve(&mut cache, now + 9 * MILLI).unwrap();
    let number = cache.ask(now + 9 * MILLI).unwrap();
    assert!(asked(&cache, number).contains(" v "));
}

#[test]
fn another_generation_server_or_address_has_no_copy() {
    let epochs = Arc::new(Epochs::new());
    let (mut cache, now) = filled(&epochs);
    assert_eq!(cache.look_up(now, &Read { generation: 2, ..read(b"k") }), None);
    assert_eq!(cache.look_up(now, &Read { server: 1, ..read(b"k") }), None);
    assert_eq!(cache.look_up(now, &Read { asked: 2, ..read(b"k") }), None);
    assert!(cache.look_up(now, &read(b"k")).is_some());
}

#[test]
fn nothing_is_asked_right_behind_a_write() {
    let epochs = Arc::new(Epochs::new());
    let (mut cache, now) = filled(&epochs);
    (0..40).for_each(|_| drop(serve(&mut cache, now)));
    epochs.key_written(now + 1, hash(b"k"));
    for _ in 0..40 {
        assert_eq!((serve(&mut cache, now + 1), cache.has_wanted()), (None, false));
    }
    assert_eq!(cache.counts().stale_avoided, 1, "one cached value must count as outdated");
    serve(&mut cache, now + 1 + SETTLE_NS);
    let number = cache.ask(now + 1 + SETTLE_NS).unwrap();
    assert!(asked(&cache, number).contains(" v "), "the value of a frequent key is fetched immediately");
    cache.give_up(number);
    // The key is written after the fetch was requested, but before it is sent.
    serve(&mut cache, now + 1 + SETTLE_NS);
    (0..40).for_each(|_| drop(serve(&mut cache, now + 1 + SETTLE_NS)));
    assert!(cache.has_wanted());
    epochs.key_written(now + 2 + SETTLE_NS, hash(b"k"));
    assert_eq!(cache.ask(now + 2 + SETTLE_NS), None);
}

#[test]
fn what_cannot_be_kept_is_not_asked_for_again_for_a_second() {
    for says in ["EN kk", "VA 2 kk f5 t1 c9|hi", "VA 2 kk f5 t-1 c9 W|hi", "VA 2 kk f5 t-1 c9 X Z|hi"] {
        let epochs = Arc::new(Epochs::new());
        let (mut cache, now) = (cache(&epochs), 10 * SECOND);
        let number = wanted(&mut cache, now, b"k");
        let answer = answered(&cache, number, says);
        assert_eq!(cache.answer(now, &MEMCACHED, &said(number, &answer)), Ok(Filled::Useless), "{says}");
        for _ in 0..2_000 {
            assert!(cache.look_up(now, &read(b"k")).is_none() && !cache.has_wanted());
        }
        // A write may have created a value, so the key may be fetched again.
        epochs.key_written(now, hash(b"k"));
        let number = wanted(&mut cache, now + SETTLE_NS, b"k");
        cache.give_up(number);
        wanted(&mut cache, now + SECOND, b"k");
    }
    // The answer arrives after the end of the lease.
    let epochs = Arc::new(Epochs::new());
    let (mut cache, now) = (cache(&epochs), 10 * SECOND);
    let number = wanted(&mut cache, now, b"k");
    let answer = answered(&cache, number, "VA 2 kk f5 t-1 c9|hi");
    assert_eq!(cache.answer(now + 10 * MILLI, &MEMCACHED, &said(number, &answer)), Ok(Filled::Useless));
    // The value is longer than any block.
    let number = wanted(&mut cache, now + 2 * SECOND, b"k");
    let answer = answered(&cache, number, &format!("VA 1536 kk f5 t-1 c9|{}", "x".repeat(1_536)));
    assert_eq!(cache.answer(now + 2 * SECOND, &MEMCACHED, &said(number, &answer)), Ok(Filled::Useless));
}

#[test]
fn a_server_has_no_more_fetches_than_it_may() {
    let epochs = Arc::new(Epochs::new());
    let (mut cache, now) = (cache(&epochs), 10 * SECOND);
    let keys: Vec<String> = (0..20).map(|key| format!("key{key}")).collect();
    let of = |key, server| Read { server, fills_per_server: 3, ..read(key) };
    for _ in 0..5_000 {
        for key in &keys {
            assert_eq!(cache.look_up(now, &of(key.as_bytes(), 0)), None);
        }
    }
    assert_eq!(cache.counts().asked, 3);
    let first = cache.ask(now).unwrap();
    cache.give_up(first);
    for key in &keys {
        assert_eq!(cache.look_up(now, &of(key.as_bytes(), 0)), None);
    }
    for key in &keys {
        assert_eq!(cache.look_up(now, &of(key.as_bytes(), 1)), None);
    }
    assert_eq!(cache.counts().asked, 3 + 1 + 3);
}

#[test]
fn fetches_are_a_twentieth_of_hits_and_a_few_besides() {
    let epochs = Arc::new(Epochs::new());
    let (mut cache, start) = (cache(&epochs), 10 * SECOND);
    // Five of 55 keys are read 100 times per lease, which earns more credit than their own fetches
    // cost. The other fifty keys are read ten times per lease, which earns half of their cost.
    for turn in 0..5_000_u64 {
        let now = start + turn * MILLI;
        let hot = (0..5_u64).cycle().take(45);
        for key in (0..55).chain(hot) {
            let name = key.to_le_bytes().map(|byte| byte + b'A');
            if let Some(number) = cache.look_up(now, &read(&name))
                && cache.served(now, number)
            {
                cache.renew(now, &read(&name), number);
            }
        }
        while let Some(number) = cache.ask(now) {
            let key = asked(&cache, number)[3..11].to_owned();
            let is_fetch = asked(&cache, number).contains(" v ");
            let says =
                if is_fetch { format!("VA 2 k{key} f5 t-1 c9|hi") } else { format!("HD k{key} t-1 c9") };
            let answer = answered(&cache, number, &says);
            cache.answer(now, &MEMCACHED, &said(number, &answer)).unwrap();
        }
    }
    let counts = cache.counts();
    assert!(counts.hits > 250_000, "{counts:?}");
    let (paid, free) = (counts.hits / 20, 5 * u64::from(FREE_FETCHES));
    assert!(counts.asked <= paid + free && counts.asked > paid / 10 * 9, "{counts:?}");
}

#[test]
fn keys_that_no_text_can_name_are_not_asked_for() {
    for key in [&b"a b"[..], b"a\n", b"\0", b"", &[b'x'; 251]] {
        let fetch = crate::Fetch::new(key, None, false);
        let own = crate::OwnId { request: 1, nonce: 2 };
        assert_eq!(MEMCACHED.write_fetch(&fetch, own, &mut [0; 1_400]), None);
    }
}

#[test]
fn a_renewal_takes_no_value_and_a_fetch_no_version_alone() {
    let own = crate::OwnId { request: 7, nonce: 0xab };
    let read = |known, text: &str| {
        let payload = [b"\0\x07\0\0\0\x01\0\0", text.as_bytes()].concat();
        let fetch = crate::Fetch::new(b"k", known, false);
        MEMCACHED.read_fetched(&fetch, own, &payload, &mut KeyRoom::default()).map(|fetched| fetched.content)
    };
    let nonce = "O00000000000000ab";
    let (value, version) = (format!("VA 1 kk f0 t5 c3 {nonce}\r\nx\r\n"), format!("HD kk t5 c3 {nonce}\r\n"));
    assert_eq!(read(Some(3), &version), Ok(FetchedContent::Version { cas: 3, ttl: Some(5) }));
    assert!(matches!(read(None, &value), Ok(FetchedContent::Value { ttl: Some(5), is_base64: false, .. })));
    for (known, text) in [(Some(3), &value), (None, &version)] {
        assert_eq!(read(known, text), Err(NoAnswer::Malformed));
    }
    for text in [
        format!("HD kk t5 {nonce}\r\n"),
        format!("HD kk c3 {nonce}\r\n"),
        format!("HD kk t5 c3 f1 {nonce}\r\n"),
        format!("HD kk t-5 c3 {nonce}\r\n"),
        format!("HD kk t5 t5 c3 {nonce}\r\n"),
        format!("HD t5 c3 {nonce}\r\n"),
        format!("HD kk t5 c3 {nonce}\r\nx"),
    ] {
        assert_eq!(read(Some(3), &text), Err(NoAnswer::Malformed), "{text}");
    }
}
