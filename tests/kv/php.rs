//! Tests with the PHP extension memcache, which reads arrays of keys over UDP and uses TCP for all
//! other operations.
//!
//! If all keys of an array belong to one server, memcached answers each key in a separate message.
//! PHP treats separate messages as a loss and requests the remaining keys again. If the keys belong
//! to several servers, the balancer merges the answers into one reply, so PHP sends only one
//! request.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;
use testbed::{Process, VIP_V4};

use crate::scene::{BOUND, PATIENT, Scene, config};

const KEYS: usize = 90;
/// The number of keys in an array.
const MANY: usize = 20;

#[test]
fn php_reads_arrays_of_keys_over_udp() {
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
    // Each list has keys that belong to one server, and a deleted key in the middle.
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
    // The balancer does not serve TCP here. PHP gets at least one answer per request, so it sends
    // at most one request per key.
    let reads = scene.balancer.counters().unwrap().over_threads(&["keyed_reads"]);
    let keys = u64::try_from(lists.concat().len()).unwrap();
    let arrays = u64::try_from(lists.len()).unwrap();
    assert!((arrays..=2 * keys).contains(&reads), "unexpected number of requests, {reads} for {keys} keys");
    // PHP closes its socket after a loss. The client's kernel rejects later answers with ICMP
    // errors.
    let drops = scene.balancer.counters().unwrap().drops();
    assert!(drops.iter().all(|(reason, _)| reason == "icmp_quote"), "{drops:?}");
}

#[test]
fn php_sends_one_request_for_a_gathered_array() {
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
    // One key of each list does not exist.
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

/// Returns what PHP reads for each list of keys.
fn read_by_php(scene: &Scene, lists: &[Vec<&str>]) -> Vec<Value> {
    let folder = scene.bed.dir();
    let (script, file) = (folder.join("arrays.php"), folder.join("lists"));
    fs::write(&script, include_str!("arrays.php")).unwrap();
    let lines: Vec<String> = lists.iter().map(|keys| keys.join(" ")).collect();
    fs::write(&file, lines.join("\n")).unwrap();
    let vip = VIP_V4.to_string();
    // PHP's notices about losses must not be in the output.
    let args = ["-d", "display_errors=0", script.to_str().unwrap(), &vip, file.to_str().unwrap()];
    let ended = Process::to_end(&scene.bed.client.ns, "php", &args, 10 * BOUND).unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{ended:?}"))).collect()
}
