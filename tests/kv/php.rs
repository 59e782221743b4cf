//! PHP's extension memcache: it reads arrays of keys over UDP, and all else over TCP.
//!
//! Memcached answers each key of an array in a message of its own, which PHP takes for a loss: it asks again for the keys that are
//! left, until it has all. An array with keys of several servers is gathered: one reply, and PHP asks once.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;
use testbed::{Process, VIP_V4};

use crate::scene::{BOUND, PATIENT, Scene, config};

const KEYS: usize = 90;
/// Of an array.
const MANY: usize = 20;

#[test]
fn php_finds_arrays_of_keys_by_udp_on_each_of_three_servers() {
    let scene = Scene::new(|bed| {
        let mut config = config(bed, PATIENT);
        config.services.retain(|service| service.protocol == "udp");
        config
    });
    let client = scene.client(true);
    let values: BTreeMap<String, String> =
        (0..KEYS).map(|key| (format!("key{key}"), format!("value of {key}"))).collect();
    for (key, value) in &values {
        let set = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
        assert_eq!(scene.ask(&client, set.as_bytes()), b"STORED\r\n");
    }
    // A list for each server: keys that it has, and one in the middle that it would have.
    let mut lists: Vec<Vec<&str>> = vec![Vec::new(); 3];
    for key in values.keys() {
        let has = |server: &usize| {
            let answer = scene.beside(*server).ask_within(format!("get {key}\r\n").as_bytes(), BOUND);
            answer.unwrap() != b"END\r\n"
        };
        lists[(0..3).find(has).unwrap()].push(key);
    }
    assert!(lists.iter().all(|keys| keys.len() >= 3), "{lists:?}");
    lists.iter_mut().for_each(|keys| keys.truncate(MANY));
    let missing = lists[0][1].to_owned();
    assert_eq!(scene.ask(&client, format!("delete {missing}\r\n").as_bytes()), b"DELETED\r\n");

    let found = read_by_php(&scene, &lists);
    assert_eq!(found.len(), 3, "{found:?}");
    for (keys, found) in lists.iter().zip(found) {
        let expected: BTreeMap<&str, &str> =
            keys.iter().filter(|key| **key != missing).map(|key| (*key, values[*key].as_str())).collect();
        let found = found.as_object().unwrap_or_else(|| panic!("{found}\n{}", scene.diagnosis()));
        let found: BTreeMap<&str, &str> =
            found.iter().map(|(key, value)| (key.as_str(), value.as_str().unwrap())).collect();
        assert_eq!(found, expected, "{}", scene.diagnosis());
    }
    // TCP goes nowhere here; of an array PHP takes at least one answer each time.
    let reads = scene.balancer.counters().unwrap().over_threads(&["keyed_reads"]);
    let keys = u64::try_from(lists.concat().len()).unwrap();
    let arrays = u64::try_from(lists.len()).unwrap();
    assert!((arrays..=2 * keys).contains(&reads), "{reads} requests for {keys} keys");
    // It closes its socket at a loss: what servers still say is answered by ICMP.
    let drops = scene.balancer.counters().unwrap().drops();
    assert!(drops.iter().all(|(reason, _)| reason == "icmp_quote"), "{drops:?}");
}

#[test]
fn php_asks_once_for_an_array_of_keys_of_three_servers() {
    let scene = Scene::new(|bed| {
        let mut config = config(bed, PATIENT);
        config.services.retain(|service| service.protocol == "udp");
        config
    });
    let client = scene.client(true);
    let value = |key: usize| format!("value of {key} {}", ".".repeat(key * 12));
    for key in 0..KEYS {
        let (name, value) = (format!("key{key}"), value(key));
        let set = format!("set {name} 0 0 {}\r\n{value}\r\n", value.len());
        assert_eq!(scene.ask(&client, set.as_bytes()), b"STORED\r\n");
    }
    // Each with a key that nobody has.
    let lists: Vec<Vec<String>> = (0..KEYS / 30)
        .map(|list| {
            (0..30).map(|n| format!("key{}", list * 30 + n)).chain([format!("nokey{list}")]).collect()
        })
        .collect();
    let lists: Vec<Vec<&str>> = lists.iter().map(|list| list.iter().map(String::as_str).collect()).collect();
    let found = read_by_php(&scene, &lists);
    for (list, found) in found.iter().enumerate() {
        let found = found.as_object().unwrap_or_else(|| panic!("{found}\n{}", scene.diagnosis()));
        assert_eq!(found.len(), 30, "{found:?}\n{}", scene.diagnosis());
        for key in list * 30..list * 30 + 30 {
            assert_eq!(found[&format!("key{key}")].as_str(), Some(&*value(key)));
        }
    }
    let counters = scene.balancer.counters().unwrap();
    let of = |name| counters.over_threads(&[name]);
    let asked = lists.len() as u64;
    assert_eq!((of("gathers_begun"), of("gathers_answered"), of("keyed_reads")), (asked, asked, asked));
    assert_eq!(counters.drops(), []);
}

/// What PHP finds of each list.
fn read_by_php(scene: &Scene, lists: &[Vec<&str>]) -> Vec<Value> {
    let folder = scene.bed.dir();
    let (script, file) = (folder.join("arrays.php"), folder.join("lists"));
    fs::write(&script, include_str!("arrays.php")).unwrap();
    let lines: Vec<String> = lists.iter().map(|keys| keys.join(" ")).collect();
    fs::write(&file, lines.join("\n")).unwrap();
    let vip = VIP_V4.to_string();
    // Its notices of losses are no part of what it prints.
    let args = ["-d", "display_errors=0", script.to_str().unwrap(), &vip, file.to_str().unwrap()];
    let ended = Process::to_end(&scene.bed.client.ns, "php", &args, 10 * BOUND).unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{ended:?}"))).collect()
}
