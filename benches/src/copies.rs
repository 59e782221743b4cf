//! Fills the value cache of a packet thread with all requested keys.
//!
//! The cache is filled as in production: reads make a key popular, the cache fetches its value, and
//! a response arrives. The module `traffic` generates the requests.

use std::net::SocketAddr;
use std::sync::Arc;

use forwarder::{AskedAt, CacheRules, HashKey, KeyRules, Now, Snapshot, ValueCache};
use kv_switch::{CacheConfig, Epochs, FetchAnswer, Lease, Memcached, Read};

use crate::VIP;

/// Returns cache rules with a lease of one second. The rules limit the bytes per source, but this
/// limit is too high to have an effect.
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

/// Returns a cache that holds `keys` values of `bytes` bytes each, all stored at `now`.
///
/// # Panics
/// Panics if a value is not cached.
pub(crate) fn cache(snapshot: &Snapshot, keys: u32, bytes: usize, now: Now) -> Box<ValueCache> {
    let (_, epochs) = snapshot.caches().expect("the service has a cache");
    let service = snapshot.services().first().expect("the snapshot has one service");
    let rules = service
        .keyed
        .as_ref()
        .and_then(|keyed| keyed.rules.cache.as_ref())
        .expect("the service has cache rules");
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
        let server =
            snapshot.owners_of_key(service.id, key.as_bytes()).next().expect("every key has a server");
        let read = Read {
            hash: rules.hash.hash(key.as_bytes()),
            server: server.0,
            key: key.as_bytes(),
            lease: rules.lease,
            fills_per_server: rules.fills_per_server,
            generation: snapshot.generation().0,
            asked: AskedAt::new(SocketAddr::new(VIP.into(), 11_211)),
        };
        while cache.look_up(now, &read).is_none() {
            if let Some(fetch) = cache.ask(now) {
                answer(&mut cache, now, fetch, &key, bytes);
            }
        }
        let copy = cache.look_up(now, &read).expect("the value is cached");
        // A value is cached only if its key is read often. This loop therefore reads the next keys
        // often enough for them to be cached.
        (0..40).for_each(|_| _ = cache.served(now, copy));
    }
    Box::new(cache)
}

fn answer(cache: &mut ValueCache, now: u64, fetch: u32, key: &str, bytes: usize) {
    let mut out = [0; 1_400];
    let length = cache.write_fetch(&Memcached::new(32), fetch, 1, &mut out).expect("the key is valid");
    let asked = std::str::from_utf8(&out[8..length]).expect("text");
    let nonce = asked.trim_end().rsplit(' ').next().unwrap_or_default();
    let line = format!("VA {bytes} k{key} f0 t-1 c7 {nonce}\r\n");
    let said = [b"\0\x01\0\0\0\x01\0\0", line.as_bytes(), &vec![b'v'; bytes], b"\r\n"].concat();
    let answer = FetchAnswer { number: fetch, request: 1, payload: &said };
    cache.answer(now, &Memcached::new(32), &answer).expect("the response belongs to the fetch");
}

const MEMORY: usize = 64 << 20;
