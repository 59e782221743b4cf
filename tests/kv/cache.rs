//! Tests of the value cache with real memcached servers. Values must be correct and not older than
//! the lease, and forged replies must be ignored.

use std::time::{Duration, Instant};

use testbed::{LbConfig, QueryClient, Service, eventually, start_memcached_at_port};

use crate::scene::{BOUND, Scene, config};

/// The port of a second memcached server on each backend.
const OTHER_PORT: u16 = 11_212;

const CACHE: &str = ", cache = { memory = \"16MiB\", lease = \"200ms\" }";

fn cached(bed: &testbed::Bed) -> LbConfig {
    config(bed, CACHE)
}

fn counted(scene: &Scene, name: &str) -> u64 {
    scene.balancer.counters().unwrap().over_threads(&[name])
}

fn set(key: &str, value: &str) -> Vec<u8> {
    format!("set {key} 7 0 {}\r\n{value}\r\n", value.len()).into_bytes()
}

fn got(key: &str, value: &str) -> Vec<u8> {
    format!("VALUE {key} 7 {}\r\n{value}\r\nEND\r\n", value.len()).into_bytes()
}

fn get(key: &str) -> Vec<u8> {
    format!("get {key}\r\n").into_bytes()
}

/// Reads `key` until responses come from the cache. Every response must be `wanted`.
fn until_hit(scene: &Scene, client: &QueryClient, key: &str, wanted: &[u8]) {
    let before = counted(scene, "cache_hits");
    let end = Instant::now() + BOUND;
    while counted(scene, "cache_hits") < before + 5 {
        assert!(Instant::now() < end, "no cache hits for {key}\n{}", scene.diagnosis());
        for _ in 0..40 {
            let said = scene.ask(client, &get(key));
            assert_eq!(said.escape_ascii().to_string(), wanted.escape_ascii().to_string());
        }
    }
}

/// Reads `key` until the response is `wanted`. All earlier responses must be `old`.
fn until_said(scene: &Scene, client: &QueryClient, key: &str, old: &[u8], wanted: &[u8]) {
    let end = Instant::now() + BOUND;
    loop {
        let said = scene.ask(client, &get(key));
        if said == wanted {
            return;
        }
        assert_eq!(said.escape_ascii().to_string(), old.escape_ascii().to_string());
        assert!(Instant::now() < end, "the response remains {}\n{}", old.escape_ascii(), scene.diagnosis());
    }
}

/// Finds the server that stores the key by querying each server directly.
fn owner(scene: &Scene, key: &str) -> usize {
    let has = |backend: &usize| scene.beside(*backend).ask_within(&get(key), BOUND).unwrap() != b"END\r\n";
    (0..scene.bed.backends.len()).find(has).expect("no server has the key")
}

// Promise: cache-staleness
#[test]
fn cache_serves_hot_keys_and_follows_writes() {
    let scene = Scene::new(cached);
    let client = scene.client(true);
    let value = format!("first{}", "\r\nEND\r\n".repeat(30));
    assert_eq!(scene.ask(&client, &set("hot", &value)), b"STORED\r\n");
    until_hit(&scene, &client, "hot", &got("hot", &value));
    // IPv6 clients get the same value from the cache, and so do requests in the binary and the meta
    // protocol.
    let six = scene.client(false);
    until_hit(&scene, &six, "hot", &got("hot", &value));
    let hits = counted(&scene, "cache_hits");
    let (meta, server) = (b"mg hot k f s c O1 v\r\n", scene.beside(owner(&scene, "hot")));
    let wanted = server.ask_within(meta, BOUND).unwrap();
    assert_eq!(scene.ask(&six, meta).escape_ascii().to_string(), wanted.escape_ascii().to_string());
    // After the reply to a write through the balancer, every client reads the new value.
    for round in 0..20 {
        let value = format!("round {round}");
        assert_eq!(scene.ask(&six, &set("hot", &value)), b"STORED\r\n");
        assert_eq!(scene.ask(&client, &get("hot")), got("hot", &value), "round {round}");
        until_hit(&scene, &client, "hot", &got("hot", &value));
    }
    assert!(counted(&scene, "cache_hits") > hits && counted(&scene, "cache_stale_avoided") > 0);
    // A write that bypasses the balancer becomes visible within the lease. For the duration of the
    // lease, reads may return the old value.
    assert_eq!(server.ask_within(&set("hot", "around"), BOUND).unwrap(), b"STORED\r\n");
    until_said(&scene, &client, "hot", &got("hot", "round 19"), &got("hot", "around"));
    until_hit(&scene, &client, "hot", &got("hot", "around"));
    assert_eq!(server.ask_within(b"delete hot\r\n", BOUND).unwrap(), b"DELETED\r\n");
    until_said(&scene, &client, "hot", &got("hot", "around"), b"END\r\n");
    // A write through the balancer becomes visible immediately.
    assert_eq!(scene.ask(&client, &set("hot", "last")), b"STORED\r\n");
    until_hit(&scene, &client, "hot", &got("hot", "last"));
    assert_eq!(scene.ask(&client, b"delete hot\r\n"), b"DELETED\r\n");
    assert_eq!(scene.ask(&client, &get("hot")), b"END\r\n");
}

/// Each backend runs two servers on different ports, which store different values under the same
/// key.
// Promise: cache-staleness
#[test]
fn copy_is_not_served_at_another_port() {
    let scene = Scene::new(|bed| {
        let mut config = cached(bed);
        config.services.push(Service { ports: OTHER_PORT.to_string(), protocol: "udp", hash: None });
        config
    });
    let bed = &scene.bed;
    let at = |host: &testbed::Host| {
        let addresses = bed.spec.vips.iter().copied().chain([host.v4.into()]);
        start_memcached_at_port(host, OTHER_PORT, addresses, &[]).unwrap()
    };
    let _others: Vec<_> = bed.backends.iter().map(at).collect();
    let (client, other) = (scene.client(true), QueryClient::new(&bed.client.ns, bed.vip(true, OTHER_PORT)));
    assert_eq!(scene.ask(&client, &set("hot", "first")), b"STORED\r\n");
    assert_eq!(scene.ask(&other, &set("hot", "second")), b"STORED\r\n");
    for _ in 0..3 {
        until_hit(&scene, &client, "hot", &got("hot", "first"));
        until_hit(&scene, &other, "hot", &got("hot", "second"));
    }
}

#[test]
fn cache_respects_expiry_of_values() {
    let scene = Scene::new(cached);
    let client = scene.client(true);
    let begin = Instant::now();
    assert_eq!(scene.ask(&client, b"set brief 7 10 2\r\nhi\r\n"), b"STORED\r\n");
    until_hit(&scene, &client, "brief", &got("brief", "hi"));
    until_said(&scene, &client, "brief", &got("brief", "hi"), b"END\r\n");
    let lived = begin.elapsed();
    assert!(lived > Duration::from_secs(2), "the value expired after {lived:?}");
    // The value has expired on the server too.
    let server = scene.beside(0);
    assert_eq!(server.ask_within(&get("brief"), BOUND).unwrap(), b"END\r\n");
}

#[test]
fn server_failure_and_reload_invalidate_copies() {
    let mut scene = Scene::new(|bed| {
        let mut config = cached(bed);
        config.more = config.more.replace("fall = 4", "fall = 2");
        config
    });
    let client = scene.client(true);
    assert_eq!(scene.ask(&client, &set("hot", "value")), b"STORED\r\n");
    until_hit(&scene, &client, "hot", &got("hot", "value"));
    let of = owner(&scene, "hot");
    scene.servers[of].take().unwrap().kill();
    scene.serving(scene.bed.backends.len() - 1);
    // The keys now belong to the next server, which does not have the value.
    let said = eventually(BOUND, || client.ask_within(&get("hot"), Duration::from_secs(1)));
    assert_eq!(said.expect("no response"), b"END\r\n");
    assert_eq!(scene.ask(&client, &set("hot", "again")), b"STORED\r\n");
    until_hit(&scene, &client, "hot", &got("hot", "again"));
    let without = config(&scene.bed, "");
    let Scene { balancer, bed, .. } = &mut scene;
    balancer.reload(bed, &without).unwrap();
    let bytes = || (counted(&scene, "cache_bytes") == 0).then_some(());
    assert!(eventually(BOUND, bytes).is_some(), "cached values were not removed\n{}", scene.diagnosis());
    let hits = counted(&scene, "cache_hits");
    for _ in 0..200 {
        assert_eq!(scene.ask(&client, &get("hot")), got("hot", "again"));
    }
    assert_eq!(counted(&scene, "cache_hits"), hits);
}

#[test]
fn forged_replies_fill_nothing() {
    let scene = Scene::new(cached);
    let client = scene.client(true);
    assert_eq!(scene.ask(&client, &set("hot", "right")), b"STORED\r\n");
    // The forged replies come from the server's own host. The forging program tries all ports and
    // many request IDs, but does not know the nonce.
    let own = std::net::SocketAddr::new(scene.bed.balancers[0].v4.into(), 61_000);
    let forger = QueryClient::new(&scene.bed.backends[0].ns, own);
    for request in 0..2_000_u16 {
        let [high, low] = request.to_be_bytes();
        let frame = [high, low, 0, 0, 0, 1, 0, 0];
        let said = b"VA 5 khot t-1 c9 f7 O0123456789abcdef\r\nwrong\r\n";
        forger.send_plainly(&[&frame[..], said].concat());
        assert_eq!(scene.ask(&client, &get("hot")), got("hot", "right"));
    }
    until_hit(&scene, &client, "hot", &got("hot", "right"));
}
