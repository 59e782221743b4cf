//! Tests of failover in a keyed pool. Values that are stored on a replacement server get a short
//! lifetime. The values must have expired when the server becomes a replacement again.

use testbed::eventually;

use crate::scene::{BOUND, Scene, config};

const KEYS: usize = 30;

/// Returns the remaining lifetime of a key on each server, in seconds. The lifetime is -1 if the
/// value never expires, and `None` if the server does not have the key.
fn left(scene: &Scene, key: usize) -> Vec<Option<i64>> {
    let alive = (0..scene.servers.len()).filter(|server| scene.servers[*server].is_some());
    let of = |server: usize| {
        let said = scene.beside(server).ask_within(format!("mg key{key} t\r\n").as_bytes(), BOUND).unwrap();
        let said = String::from_utf8(said).unwrap();
        said.strip_prefix("HD t").map(|rest| rest.trim_end().parse().unwrap())
    };
    alive.map(of).collect()
}

fn set(scene: &Scene, key: usize, time: u32) {
    let set = format!("set key{key} 0 {time} 2\r\nab\r\n");
    assert_eq!(scene.ask(&scene.client(true), set.as_bytes()), b"STORED\r\n");
}

// Promise: failover-expiry
#[test]
fn failover_values_expire_and_other_values_stay() {
    let mut scene = Scene::new(|bed| config(bed, ""));
    (0..KEYS).for_each(|key| set(&scene, key, 0));
    let own: Vec<usize> = (0..KEYS)
        .map(|key| {
            left(&scene, key).iter().position(|left| *left == Some(-1)).expect("no server has the key")
        })
        .collect();
    drop(scene.servers[1].take());
    scene.serving(2);
    for (key, own) in own.iter().enumerate() {
        set(&scene, key, if key % 2 == 0 { 0 } else { 6_000 });
        let lives = left(&scene, key).into_iter().flatten().max().unwrap();
        let own_time = if key % 2 == 0 { lives == -1 } else { (11..=6_000).contains(&lives) };
        let is_right = if *own == 1 { (1..=10).contains(&lives) } else { own_time };
        assert!(
            is_right,
            "key{key}, which belongs to server {own}, has a lifetime of {lives} s\n{}",
            scene.diagnosis()
        );
    }
    let away = own.iter().filter(|server| **server == 1).count();
    assert!(away > 2, "{own:?}");
    assert_eq!(scene.balancer.counters().unwrap().over_threads(&["short_lived"]), away as u64);
    let client = scene.client(true);
    for key in (0..KEYS).filter(|key| own[*key] == 1) {
        let get = format!("get key{key}\r\n");
        let is_gone = || (scene.ask(&client, get.as_bytes()) == b"END\r\n").then_some(());
        assert!(eventually(5 * BOUND, is_gone).is_some(), "key{key}\n{}", scene.diagnosis());
    }
    for key in (0..KEYS).filter(|key| own[*key] != 1) {
        let wanted = format!("VALUE key{key} 0 2\r\nab\r\nEND\r\n");
        assert_eq!(
            scene.client(true).ask_whole(format!("get key{key}\r\n").as_bytes(), BOUND),
            Some(wanted.into_bytes())
        );
    }
    scene.drops_become(&[]);
}
