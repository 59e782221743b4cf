//! A request is read, hashed, routed and placed without a byte of memory taken: an allocator that counts says so.
//! Alone in its program, since the allocator counts for all threads.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::alloc::System;
use std::ops::ControlFlow;

use kv_switch::{Application, Datagram, Header, KeyHash, KeyRoom, Memcached, Offset, Ring, Routes, Server};
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
                let owners = hashes.map(|hash| ring.lookup(hash.hash(key) & 0xffff_ffff));
                keys += usize::from(owners.iter().all(|&owner| owner < 2) && routes.lookup(key) != Some(0));
                ControlFlow::Continue(())
            });
        }
    };
    // The least of some runs: the test harness has a thread of its own, whose allocations may come on top in one.
    let once = |_| {
        let region = Region::new(ALLOCATOR);
        pass();
        region.change().allocations
    };
    assert_eq!((0..10).map(once).min(), Some(0));
    assert_eq!((keys, refused), (120, 80)); // ten times: memcached's 3, 1 and 1, the preamble's 1, and 6 by place; 3 and 5
}
