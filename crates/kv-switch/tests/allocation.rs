//! Checks with a counting allocator that parsing, hashing, routing and cache lookups do not
//! allocate memory for a request. The program contains only this test, because the allocator counts
//! the allocations of all threads.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::alloc::System;
use std::ops::ControlFlow;
use std::sync::Arc;

use kv_switch::{
    Application, Arrival, Cache, CacheConfig, Datagram, Epochs, Exchanges, FetchAnswer, Filled, Gather,
    Header, HotKeys, KeyHash, KeyRoom, Late, Lease, Memcached, Offset, OwnId, Progress, Read, Request, Ring,
    Routes, Server,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn requests_take_no_memory() {
    let applications: [&dyn Application; 3] = [&Memcached::new(32), &Header::new(7), &Offset::new(8, 4)];
    let frame = *b"\x12\x34\0\0\0\x01\0\0";
    let commands: [&[u8]; 5] =
        [b"get a bb ccc\r\n", b"set k 0 0 2\r\nhi\r\n", b"mg aw== b v\r\n", b"stats\r\n", b"get \0\r\n"];
    let mut requests: Vec<Vec<u8>> = commands.iter().map(|command| [&frame, *command].concat()).collect();
    requests.push(b"\x07\0\0\0\x09\0\0\0\x0ckey".to_vec());
    let servers =
        ["192.0.2.1", "192.0.2.2"].map(|ring_name| Server { ring_name, weight: 1, is_ejected: false });
    let ring = Ring::build(&servers).unwrap();
    let routes = Routes::build(&[(b"a", 1)], &[(b"b", 2), (b"bb", 3)]).unwrap();
    let hashes = [KeyHash::sip(1, 2), KeyHash::md5(), KeyHash::fnv1a_64()];
    let (mut keys, mut refused) = (0, 0);
    // The counter has room for only two keys, so each new key evicts an older one.
    let mut hot_keys = HotKeys::new(2, [0], KeyHash::sip(1, 2));
    let mut pass = || {
        for (application, request) in
            applications.iter().flat_map(|one| requests.iter().map(move |request| (one, request)))
        {
            let Ok(ask) = application.read(Datagram::whole(request)) else {
                refused += 1;
                continue;
            };
            application.items(request, &ask, &mut |item| {
                let mut room = KeyRoom::default();
                let key = application.key(request, &item, &mut room);
                hot_keys.count(0, key);
                let owners = hashes.map(|hash| ring.lookup(hash.hash(key) & 0xffff_ffff));
                keys += usize::from(owners.iter().all(|&owner| owner < 2) && routes.lookup(key) != Some(0));
                ControlFlow::Continue(())
            });
        }
    };
    let mut exchanges = Exchanges::new(61_000..=61_000, 64, &[20]).unwrap();
    let epochs = Arc::new(Epochs::new());
    let mut cache = Cache::new(&CacheConfig {
        memory: 100_000,
        epochs: Arc::clone(&epochs),
        seed: [1, 2],
        advise: |_| {},
        sum: |_| 0,
    });
    let (mut written, mut now) = (0, 0);
    let mut pass = || {
        pass();
        written += gathered(&mut exchanges);
        now += 2_000_000_000;
        cached(&mut cache, &epochs, now);
    };
    // The result is the minimum of several runs, because a thread of the test harness may allocate
    // memory during a run.
    let once = |_| {
        let region = Region::new(ALLOCATOR);
        pass();
        region.change().allocations
    };
    assert_eq!((0..10).map(once).min(), Some(0));
    // Each of ten runs counts 12 keys: 5 for `Memcached`, 1 for `Header` and 6 for `Offset`.
    // `Memcached` refuses 3 requests, and `Header` refuses 5.
    assert_eq!((keys, refused), (120, 80));
    assert_eq!(hot_keys.asked(0), keys as u64);
    assert_eq!(written, 10 * (REPLY.len() + 8));
}

/// Fetches a key, answers a read from the cache, and writes the key.
fn cached(cache: &mut Cache<()>, epochs: &Epochs, now: u64) {
    let (memcached, payload) = (Memcached::new(32), b"\0\x09\0\0\0\x01\0\0get a\r\n");
    let ask = memcached.read(Datagram::whole(payload)).unwrap();
    let lease = Lease::from_nanos(10_000_000);
    let read = Read { hash: 7, server: 0, key: b"a", lease, fills_per_server: 8, generation: 1, asked: () };
    let fetch = loop {
        assert_eq!(cache.look_up(now, &read), None);
        if let Some(fetch) = cache.ask(now) {
            break fetch;
        }
    };
    let mut out = [0; 1_400];
    let length = cache.write_fetch(&memcached, fetch, 1, &mut out).unwrap();
    let mut answer = *b"\0\x01\0\0\0\x01\0\0VA 2 ka t-1 c3 f7 O0123456789abcdef\r\nhi\r\n";
    let place = answer.len() - 22..answer.len() - 6;
    answer[place].copy_from_slice(&out[length - 18..length - 2]);
    let answer = FetchAnswer { number: fetch, request: 1, payload: &answer };
    assert_eq!(cache.answer(now, &memcached, &answer), Ok(Filled::Kept));
    let copy = cache.look_up(now, &read).unwrap();
    let request = Request { payload, ask: &ask };
    let length = memcached.write_hit(&request, &cache.copy(copy).unwrap(), &mut out).unwrap();
    assert_eq!(&out[8..length], REPLY);
    if cache.served(now, copy) {
        cache.renew(now, &read, copy);
    }
    epochs.key_written(now, 7);
    assert_eq!(cache.look_up(now, &read), None);
}

const REPLY: &[u8] = b"VALUE a 7 2\r\nhi\r\nEND\r\n";

/// Gathers a request that is split between two servers. One server answers, and the other times
/// out. Returns the length of the reply.
fn gathered(exchanges: &mut Exchanges<u8>) -> usize {
    let (memcached, payload) = (Memcached::new(32), b"\0\x09\0\0\0\x01\0\0get a b\r\n");
    let ask = memcached.read(Datagram::whole(payload)).unwrap();
    let request = Request { payload, ask: &ask };
    let mut gather = Gather::new(&memcached, &request, &mut |_, key| Some(u8::from(key == b"b"))).unwrap();
    let now = exchanges.next_due().unwrap_or_default();
    let (mut out, mut answer) = ([0; 1_400], *b"\0\0\0\0\0\x01\0\0VA 2 ka f7 O0000000000000003\r\nhi\r\n");
    for part in 0..2 {
        let id = exchanges.begin(now, 0, part).unwrap();
        let own = OwnId { request: id.request, nonce: 3 };
        memcached.write_part(&request, &mut gather.part(part), own, &mut out).unwrap();
        if part == 0 {
            answer[..2].copy_from_slice(&id.request.to_be_bytes());
            let mut room = KeyRoom::default();
            let answer = memcached.read_answer(&request, own, &answer, &mut room).unwrap();
            let arrival = Arrival { part: *exchanges.find(id).unwrap(), frame: 0, answer };
            assert_eq!(gather.answer(&memcached, &request, &arrival), Progress::Waiting);
            exchanges.end(now, id).unwrap();
        }
    }
    let (_, part) = exchanges.expire(exchanges.next_due().unwrap()).unwrap();
    assert_eq!(gather.expire(part, Late::IsMissing), Progress::Complete);
    let found = |key| gather.place(key).map(|place| place.value.within(&answer));
    let length = memcached.write_reply(&request, &found, 0, &mut out).unwrap();
    assert_eq!(&out[8..length], REPLY);
    length
}
