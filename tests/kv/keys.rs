//! Tests of key placement. Each key has one server, which is the same for all clients. If that
//! server fails, the key moves to another server.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Instant;

use testbed::{Process, QueryClient, VIP_V4, eventually};

use crate::scene::{BOUND, PORT, SILENCE, Scene, config, memcached};

const KEYS: usize = 300;

/// Returns for each key the server that `where --key` reports.
fn owners(scene: &Scene) -> Vec<usize> {
    let host = &scene.bed.balancers[0];
    let (client, vip) = (SocketAddr::new(scene.bed.client.v4.into(), 4000), SocketAddr::new(VIP_V4, PORT));
    let socket = testbed::LbConfig::admin_socket(&scene.bed, 0);
    let of = |key: usize| {
        let (client, vip, key) = (client.to_string(), vip.to_string(), format!("key{key}"));
        let args = [
            "where",
            &client,
            &vip,
            "udp",
            "--key",
            &key,
            "--json",
            "--live",
            "--socket",
            socket.to_str().unwrap(),
        ];
        let ended = Process::to_end(&host.ns, scene.bed.program().unwrap(), &args, BOUND).unwrap();
        let answer: serde_json::Value =
            serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{ended:?}"));
        let name = answer["threads"][0]["backend"]["name"].as_str().unwrap_or_else(|| panic!("{answer}"));
        scene.bed.backends.iter().position(|host| host.name == name).unwrap()
    };
    (0..KEYS).step_by(10).map(of).collect()
}

fn stored(key: usize) -> Vec<u8> {
    format!("VALUE key{key} 0 {}\r\nvalue of {key}\r\nEND\r\n", format!("value of {key}").len()).into_bytes()
}

fn set(key: usize) -> Vec<u8> {
    let value = format!("value of {key}");
    format!("set key{key} 0 0 {}\r\n{value}\r\n", value.len()).into_bytes()
}

fn get(key: usize) -> Vec<u8> {
    format!("get key{key}\r\n").into_bytes()
}

/// Finds the one server that stores each key by querying all servers directly.
fn holders(scene: &Scene) -> Vec<usize> {
    let clients: Vec<_> = (0..scene.bed.backends.len()).map(|backend| scene.beside(backend)).collect();
    let of = |key: usize| {
        let has = |client: &QueryClient| client.ask_within(&get(key), BOUND).unwrap() == stored(key);
        let holders: Vec<usize> = (0..clients.len()).filter(|backend| has(&clients[*backend])).collect();
        assert_eq!(holders.len(), 1, "key {key} is on servers {holders:?}\n{}", scene.diagnosis());
        holders[0]
    };
    (0..KEYS).map(of).collect()
}

// Promise: key-placement
#[test]
fn key_has_one_server_for_all_clients() {
    let scene = Scene::new(|bed| config(bed, ""));
    for key in 0..KEYS {
        // Each client uses a different port. The server of a key must not depend on the flow.
        let client = scene.client(key % 2 == 0);
        assert_eq!(scene.ask(&client, &set(key)), b"STORED\r\n");
    }
    let holders = holders(&scene);
    let named: Vec<usize> = holders.iter().step_by(10).copied().collect();
    assert_eq!(owners(&scene), named, "`where --key` reports different servers");
    assert_eq!(holders.iter().collect::<BTreeSet<_>>().len(), 3, "a server has no keys");
    for key in 0..KEYS {
        assert_eq!(scene.ask(&scene.client(key % 2 == 1), &get(key)), stored(key));
    }
    let binary = [b"\x80\0\0\x04\0\0\0\0\0\0\0\x04\xde\xad\xbe\xef\0\0\0\0\0\0\0\0key7".as_slice()].concat();
    let answer = scene.ask(&scene.client(true), &binary);
    assert_eq!(
        (&answer[..2], &answer[12..16], &answer[28..]),
        (&b"\x81\0"[..], &b"\xde\xad\xbe\xef"[..], &b"value of 7"[..])
    );
    assert_eq!(scene.ask(&scene.client(true), b"mg key7 v O123\r\n"), b"VA 10 O123\r\nvalue of 7\r\n");
    scene.drops_become(&[]);
    let counters = scene.balancer.counters().unwrap();
    assert_eq!(counters.over_threads(&["flow_table", "inserts"]), 0, "{}", scene.diagnosis());
    let requests = |verb| counters.over_threads(&["requests", verb]);
    let keys = KEYS as u64;
    assert_eq!(["set", "get", "mg", "add"].map(requests), [keys, keys + 1, 1, 0], "{}", scene.diagnosis());
}

#[test]
fn server_failure_moves_only_its_keys() {
    let mut scene = Scene::new(|bed| config(bed, ""));
    let client = scene.client(true);
    for key in 0..KEYS {
        assert_eq!(scene.ask(&client, &set(key)), b"STORED\r\n");
    }
    let before = holders(&scene);
    let (dead, start) = (before[0], Instant::now());
    drop(scene.servers[dead].take());
    let answered = eventually(BOUND, || client.ask_within(&get(0), SILENCE)).unwrap();
    eprintln!("first response {:?} after the server failure", start.elapsed());
    assert_eq!(answered, b"END\r\n", "the replacement server must not have the key");
    scene.serving(2);
    for key in (0..KEYS).filter(|key| before[*key] != dead) {
        assert_eq!(scene.ask(&client, &get(key)), stored(key), "a key of a healthy server moved");
    }
    for key in (0..KEYS).filter(|key| before[*key] == dead) {
        assert_eq!(scene.ask(&client, &set(key)), b"STORED\r\n");
        assert_eq!(scene.ask(&client, &get(key)), stored(key));
    }
    let host = &scene.bed.backends[dead];
    scene.servers[dead] = Some(memcached(&scene.bed, host));
    scene.serving(3);
    // Each address family has its own health state, so a server may be in service earlier in one
    // family than in the other.
    for key in (0..KEYS).filter(|key| before[*key] == dead) {
        let is_back = || (scene.ask(&client, &get(key)) == b"END\r\n").then_some(());
        assert!(eventually(BOUND, is_back).is_some(), "key {key} did not return to its empty server");
    }
}

#[test]
fn routes_send_exact_keys_and_prefixes_to_their_pools() {
    let routes =
        ", routes = [{ key = \"key1\", pool = \"second\" }, { prefix = \"key1\", pool = \"third\" }]";
    let scene = Scene::new(|bed| {
        let mut config = config(bed, routes);
        let pool = |name: &str, host: &testbed::Host| {
            format!(
                "[pool.{name}]\nencapsulation = \"tunnel\"\nbackends = [{{ name = \"{}\", address = \"{}\" }}]\n",
                host.name, host.v4
            )
        };
        config.more += &(pool("second", &bed.backends[1]) + &pool("third", &bed.backends[2]));
        config.pool.truncate(1);
        config
    });
    let client = scene.client(true);
    for key in 0..KEYS {
        assert_eq!(scene.ask(&client, &set(key)), b"STORED\r\n");
    }
    let expected = |key: usize| match key.to_string() {
        text if text == "1" => 1,
        text if text.starts_with('1') => 2,
        _ => 0,
    };
    assert_eq!(holders(&scene), (0..KEYS).map(expected).collect::<Vec<_>>());
}
