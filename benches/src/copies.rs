//! A packet thread's cache that has a copy of every value that is asked for.
//!
//! Not here: the requests (`traffic`). The cache is filled as ever, by reads and by answers to its own fetches.

use std::net::SocketAddr;
use std::sync::Arc;

use forwarder::{AskedAt, CacheRules, HashKey, KeyRules, Now, Snapshot, ValueCache};
use kv_switch::{CacheConfig, Epochs, FetchAnswer, Lease, Memcached, Read};

use crate::VIP;

/// Copies are true for a second, and a source may have as many bytes as it likes.
pub(crate) fn rules(key: &HashKey) -> CacheRules {
    CacheRules {
        memory: MEMORY,
        lease: Lease::from_nanos(1_000_000_000),
        fills_per_server: 64,
        source_bytes: 64 << 30,
        strict: false,
        hash: KeyRules::maglev_hash(key),
        is_own_hash: true,
        epochs: Arc::new(Epochs::new()),
    }
}

/// Copies of so many keys' values, of so many bytes each, made at `now`.
///
/// # Panics
/// When a key gets none.
pub(crate) fn cache(snapshot: &Snapshot, keys: u32, bytes: usize, now: Now) -> Box<ValueCache> {
    let (_, epochs) = snapshot.caches().expect("its service has one");
    let service = snapshot.services().first().expect("one");
    let rules = service.keyed.as_ref().and_then(|keyed| keyed.rules.cache.as_ref()).expect("as it has");
    let mut cache = ValueCache::new(&CacheConfig {
        memory: MEMORY,
        epochs,
        seed: [1, 2],
        advise: datapath::advise_large_pages,
        sum: packet::checksum::folded_sum,
    });
    let now = now.nanos();
    for number in 0..keys {
        let key = format!("{number:032}");
        let server = snapshot.owners_of_key(service.id, key.as_bytes()).next().expect("all serve");
        let read = Read {
            hash: rules.hash.hash(key.as_bytes()),
            server: server.0,
            key: key.as_bytes(),
            lease: rules.lease,
            fills_per_server: rules.fills_per_server,
            generation: snapshot.generation().0,
            context: AskedAt::new(SocketAddr::new(VIP.into(), 11_211)),
        };
        while cache.look_up(now, &read).is_none() {
            if let Some(fetch) = cache.ask(now) {
                answer(&mut cache, now, fetch, &key, bytes);
            }
        }
        let copy = cache.look_up(now, &read).expect("as it was");
        // They pay for the next one.
        (0..40).for_each(|_| _ = cache.served(now, copy));
    }
    Box::new(cache)
}

fn answer(cache: &mut ValueCache, now: u64, fetch: u32, key: &str, bytes: usize) {
    let mut out = [0; 1_400];
    let length = cache.write_fetch(&Memcached::new(32), fetch, 1, &mut out).expect("a key in text");
    let asked = std::str::from_utf8(&out[8..length]).expect("text");
    let nonce = asked.trim_end().rsplit(' ').next().unwrap_or_default();
    let line = format!("VA {bytes} k{key} f0 t-1 c7 {nonce}\r\n");
    let said = [b"\0\x01\0\0\0\x01\0\0", line.as_bytes(), &vec![b'v'; bytes], b"\r\n"].concat();
    let answer = FetchAnswer { number: fetch, request: 1, payload: &said };
    cache.answer(now, &Memcached::new(32), &answer).expect("its answer");
}

const MEMORY: usize = 64 << 20;
