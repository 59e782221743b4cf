//! Tests of a server that returns after an outage. During the outage, the values of this server
//! were overwritten on other servers. Clients must not read the old values.

use nix::sys::signal::Signal;
use testbed::{QueryClient, eventually};

use crate::scene::{BOUND, Scene, config, memcached, memcached_with};

const KEYS: usize = 60;

fn set(key: usize, value: &str) -> Vec<u8> {
    format!("set key{key} 0 0 {}\r\n{value}\r\n", value.len()).into_bytes()
}

pub(crate) fn get(key: usize) -> Vec<u8> {
    format!("get key{key}\r\n").into_bytes()
}

pub(crate) fn found(key: usize, value: &str) -> Vec<u8> {
    format!("VALUE key{key} 0 {}\r\n{value}\r\nEND\r\n", value.len()).into_bytes()
}

/// Stores a value under every key. Returns one server and the keys that belong to it.
pub(crate) fn filled(scene: &Scene, client: &QueryClient) -> (usize, Vec<usize>) {
    for key in 0..KEYS {
        assert_eq!(scene.ask(client, &set(key, "old")), b"STORED\r\n");
    }
    let server = scene.beside(0);
    let has = |key: &usize| server.ask_within(&get(*key), BOUND).unwrap() == found(*key, "old");
    let keys: Vec<usize> = (0..KEYS).filter(has).collect();
    assert!(!keys.is_empty(), "{}", scene.diagnosis());
    (0, keys)
}

/// Writes new values for the keys to their current servers.
pub(crate) fn overwrite(scene: &Scene, client: &QueryClient, keys: &[usize]) {
    for key in keys {
        assert_eq!(scene.ask(client, &set(*key, "new")), b"STORED\r\n");
    }
}

/// Reads each key until its own server is back and empty. Before that, reads must return the new
/// value. No read may return the old value.
fn nothing_old(scene: &Scene, client: &QueryClient, keys: &[usize]) {
    for key in keys {
        let is_back = || {
            let answer = scene.ask(client, &get(*key));
            assert_ne!(answer, found(*key, "old"), "key {key}\n{}", scene.diagnosis());
            assert!(answer == b"END\r\n" || answer == found(*key, "new"), "{}", answer.escape_ascii());
            (answer == b"END\r\n").then_some(())
        };
        assert!(
            eventually(BOUND, is_back).is_some(),
            "key {key} did not return to its server\n{}",
            scene.diagnosis()
        );
    }
}

pub(crate) fn order(scene: &Scene, backend: usize, order: &str) {
    let name = &scene.bed.backends[backend].name;
    scene.balancer.order(&format!("/v1/backends/{name}/{order}")).unwrap();
}

/// Waits until `is` accepts the state that the admin API reports for a backend, and returns the
/// state.
pub(crate) fn row(
    scene: &Scene,
    backend: usize,
    is: impl Fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    let name = &scene.bed.backends[backend].name;
    let look = || {
        let rows = scene.balancer.ask("/v1/backends").ok()?;
        rows.as_array()?.iter().find(|row| row["name"] == name.as_str() && is(row)).cloned()
    };
    eventually(BOUND, look).unwrap_or_else(|| panic!("{}", scene.diagnosis()))
}

// Promise: rejoin-empty
#[test]
fn rejoin_after_override_serves_no_old_value() {
    let scene = Scene::new(|bed| config(bed, ""));
    let client = scene.client(true);
    let (server, keys) = filled(&scene, &client);
    for (away, back) in [("down", "up"), ("drain", "undrain")] {
        order(&scene, server, away);
        overwrite(&scene, &client, &keys);
        order(&scene, server, back);
        nothing_old(&scene, &client, &keys);
        for key in &keys {
            assert_eq!(scene.ask(&client, &set(*key, "old")), b"STORED\r\n");
        }
    }
    let events = scene.balancer.ask("/v1/events").unwrap().to_string();
    for words in ["flush started", "flush completed"] {
        assert!(events.contains(words), "{words}: {events}");
    }
}

#[test]
fn with_serve_it_has_what_it_had() {
    let scene = Scene::new(|bed| config(bed, ", rejoin = \"serve\""));
    let client = scene.client(true);
    let (server, keys) = filled(&scene, &client);
    order(&scene, server, "down");
    overwrite(&scene, &client, &keys);
    order(&scene, server, "up");
    let is_old = || (scene.ask(&client, &get(keys[0])) == found(keys[0], "old")).then_some(());
    assert!(eventually(BOUND, is_old).is_some(), "{}", scene.diagnosis());
}

// Promise: rejoin-empty
#[test]
fn rejoin_after_hang_serves_no_old_value() {
    let mut scene = Scene::new(|bed| config(bed, ""));
    let client = scene.client(true);
    let (server, keys) = filled(&scene, &client);
    scene.servers[server].as_mut().unwrap().pause().unwrap();
    scene.serving(2);
    overwrite(&scene, &client, &keys);
    scene.servers[server].as_mut().unwrap().signal(Signal::SIGCONT).unwrap();
    nothing_old(&scene, &client, &keys);
}

#[test]
fn rejoin_without_flush_all_reports_the_reason() {
    let mut scene = Scene::new(|bed| config(bed, ""));
    drop(scene.servers[0].take());
    scene.serving(2);
    // The memcached option -F disables `flush_all`.
    scene.servers[0] = Some(memcached_with(&scene.bed, &scene.bed.backends[0], &["-F"]));
    let row = row(&scene, 0, |row| row["state"] == "flushing" && !row["flush_error"].is_null());
    assert!(row["flush_error"].as_str().unwrap().contains("flush_all not allowed"), "{row:#}");
    assert_eq!((&row["why"], &row["weight_effective"]), (&"rejoin".into(), &0.into()), "{row:#}");
    drop(scene.servers[0].take());
    scene.servers[0] = Some(memcached(&scene.bed, &scene.bed.backends[0]));
    scene.serving(3);
}
