//! Tests of replicated keys. A write must reach all servers of its key, and a read must reach one
//! of them. If a server fails, all values must remain readable.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use nix::sys::signal::Signal;
use testbed::{LbConfig, Process, VIP_V4, eventually};

use crate::gather::ended;
use crate::scene::{BOUND, PATIENT, PORT, SILENCE, Scene, config, memcached};

const KEYS: usize = 30;

fn replicas(count: usize, ack: &str) -> String {
    format!("{PATIENT}, replicas = {{ count = {count}, ack = \"{ack}\" }}")
}

fn set(key: usize, value: &str) -> Vec<u8> {
    format!("set key{key} 0 0 {}\r\n{value}\r\n", value.len()).into_bytes()
}

fn get(key: usize) -> Vec<u8> {
    format!("get key{key}\r\n").into_bytes()
}

fn found(key: usize, value: &str) -> Vec<u8> {
    format!("VALUE key{key} 0 {}\r\n{value}\r\nEND\r\n", value.len()).into_bytes()
}

/// Sends a command directly to each running server, and returns the responses.
fn each(scene: &Scene, command: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let there = (0..scene.servers.len()).filter(|server| scene.servers[*server].is_some());
    there.map(|server| (server, scene.beside(server).ask_within(command, BOUND).unwrap())).collect()
}

/// Returns the servers that have this value under the key.
fn holders(scene: &Scene, key: usize, value: &str) -> BTreeSet<usize> {
    let all = each(scene, &get(key));
    all.into_iter().filter(|(_, said)| *said == found(key, value)).map(|(server, _)| server).collect()
}

/// Returns the servers that `where --key` reports for the key.
fn named(scene: &Scene, key: usize) -> BTreeSet<usize> {
    let client = SocketAddr::new(scene.bed.client.v4.into(), 4000).to_string();
    let (vip, key) = (SocketAddr::new(VIP_V4, PORT).to_string(), format!("key{key}"));
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let args = ["where", &client, &vip, "udp", "--key", &key, "--json", "--live", "--socket"];
    let args = [&args[..], &[socket.to_str().unwrap()]].concat();
    let host = &scene.bed.balancers[0];
    let ended = Process::to_end(&host.ns, scene.bed.program().unwrap(), &args, BOUND).unwrap();
    let answer: serde_json::Value = serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{ended:?}"));
    let all = answer["threads"][0]["replicas"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let place = |name: &str| scene.bed.backends.iter().position(|host| host.name == name).unwrap();
    all.iter().map(|found| place(found["name"].as_str().unwrap())).collect()
}

#[test]
fn replicas_write_both_servers_and_read_either() {
    let scene = Scene::new(|bed| config(bed, &replicas(2, "all")));
    let mut pairs = BTreeSet::new();
    for key in 0..KEYS {
        // Each write uses a different client port, and the address families alternate.
        assert_eq!(scene.ask(&scene.client(key % 2 == 0), &set(key, "both")), b"STORED\r\n");
        let holders = holders(&scene, key, "both");
        assert_eq!(holders.len(), 2, "{}", scene.diagnosis());
        if key % 10 == 0 {
            assert_eq!(named(&scene, key), holders);
        }
        pairs.insert(holders);
    }
    assert_eq!(pairs.len(), 3, "{pairs:?}");
    // The test writes a different value directly to one of the two servers. A client must always
    // read from the same server of the pair.
    for key in 0..KEYS {
        let one = *holders(&scene, key, "both").first().unwrap();
        assert_eq!(scene.beside(one).ask_within(&set(key, "beside"), BOUND).unwrap(), b"STORED\r\n");
    }
    let (mut both, mut beside) = (0, 0);
    for port in 0..40 {
        let client = scene.client(port % 2 == 0);
        let key = port % KEYS;
        let said = scene.ask(&client, &get(key));
        (0..5).for_each(|_| assert_eq!(scene.ask(&client, &get(key)), said));
        if said == found(key, "both") {
            both += 1;
        } else {
            assert_eq!(said, found(key, "beside"));
            beside += 1;
        }
    }
    assert!(both > 1 && beside > 1, "{both} {beside}");
    let client = scene.client(true);
    assert_eq!(scene.ask(&client, b"touch key1 600\r\n"), b"TOUCHED\r\n");
    let left = each(&scene, b"mg key1 t\r\n");
    assert_eq!(left.iter().filter(|(_, said)| said.starts_with(b"HD t")).count(), 2);
    assert!(left.iter().all(|(_, said)| !said.starts_with(b"HD t-1")), "{left:?}");
    assert_eq!(scene.ask(&client, b"delete key1\r\n"), b"DELETED\r\n");
    assert!(each(&scene, &get(1)).iter().all(|(_, said)| said == b"END\r\n"));
    assert_eq!(scene.ask(&client, b"delete key1\r\n"), b"NOT_FOUND\r\n");
    assert_eq!(scene.ask(&client, b"touch key1 600\r\n"), b"NOT_FOUND\r\n");
    assert_eq!(scene.ask(&client, b"ms key1 2 O12 k\r\nhi\r\n"), b"HD O12 kkey1\r\n");
    assert_eq!(holders(&scene, 1, "hi").len(), 2);
    client.send(b"set key2 0 0 5 noreply\r\nquiet\r\n");
    assert!(eventually(BOUND, || (holders(&scene, 2, "quiet").len() == 2).then_some(())).is_some());
    // A request for keys on several pairs of servers gets one reply. The balancer must read each
    // key from a server that has it.
    (0..KEYS).for_each(|key| assert_eq!(scene.ask(&client, &set(key, "all")), b"STORED\r\n"));
    let wanted: Vec<u8> =
        (0..9).flat_map(|key| found(key, "all")[..].strip_suffix(b"END\r\n").unwrap().to_vec()).collect();
    let keys = crate::gather::get("get", &(0..9).collect::<Vec<_>>());
    assert_eq!(client.ask_whole(&keys, BOUND).unwrap(), [&wanted[..], b"END\r\n"].concat());
    assert_eq!(
        ended(&scene, "replicas_begun"),
        ended(&scene, "replicas_acknowledged"),
        "{}",
        scene.diagnosis()
    );
    scene.drops_become(&[]);
}

// Promise: replica-survival
#[test]
fn replicas_survive_server_failure_without_old_values() {
    let mut scene = Scene::new(|bed| config(bed, &replicas(2, "all")));
    let client = scene.client(true);
    (0..KEYS).for_each(|key| assert_eq!(scene.ask(&client, &set(key, "old")), b"STORED\r\n"));
    let own: Vec<BTreeSet<usize>> = (0..KEYS).map(|key| holders(&scene, key, "old")).collect();
    drop(scene.servers[1].take());
    scene.serving(2);
    // Every client must still read every value.
    for (key, own) in own.iter().enumerate() {
        for ipv4 in [true, false, true, false] {
            let said = scene.ask(&scene.client(ipv4), &get(key));
            assert_eq!(said, found(key, "old"), "key{key} of {own:?}\n{}", scene.diagnosis());
        }
    }
    for (key, own) in own.iter().enumerate() {
        assert_eq!(scene.ask(&client, &set(key, "new")), b"STORED\r\n");
        // The two remaining servers must have the value, which has a short lifetime on the
        // replacement server.
        let left = each(&scene, format!("mg key{key} t\r\n").as_bytes());
        assert_eq!(left.len(), 2);
        for (server, said) in left {
            let is_for_ever = said == b"HD t-1\r\n";
            assert_eq!(is_for_ever, own.contains(&server), "{}", said.escape_ascii());
            assert!(said.starts_with(b"HD t"));
        }
    }
    let host = &scene.bed.backends[1];
    scene.servers[1] = Some(memcached(&scene.bed, host));
    scene.serving(3);
    for (key, own) in own.iter().enumerate() {
        let said = scene.ask(&scene.client(key % 2 == 0), &get(key));
        assert!(said == b"END\r\n" || said == found(key, "new"), "{}", said.escape_ascii());
        // The tables that select servers for writes are updated later than the health state, so a
        // write may still reach the previous servers.
        let is_home = || {
            assert_eq!(scene.ask(&client, &set(key, "newer")), b"STORED\r\n");
            own.is_subset(&holders(&scene, key, "newer")).then_some(())
        };
        assert!(eventually(BOUND, is_home).is_some(), "{}", scene.diagnosis());
        assert_eq!(scene.ask(&scene.client(key % 2 == 1), &get(key)), found(key, "newer"));
    }
}

// Promise: replica-survival
#[test]
fn replica_that_hung_returns_without_old_values() {
    let mut scene = Scene::new(|bed| config(bed, &replicas(2, "all")));
    let client = scene.client(true);
    (0..KEYS).for_each(|key| assert_eq!(scene.ask(&client, &set(key, "old")), b"STORED\r\n"));
    scene.servers[1].as_mut().unwrap().pause().unwrap();
    scene.serving(2);
    (0..KEYS).for_each(|key| assert_eq!(scene.ask(&client, &set(key, "new")), b"STORED\r\n"));
    scene.servers[1].as_mut().unwrap().signal(Signal::SIGCONT).unwrap();
    scene.serving(3);
    for key in 0..KEYS {
        // Several clients read each key, because the port of a client selects the replica.
        for ipv4 in [true, false, true, false] {
            let said = scene.ask(&scene.client(ipv4), &get(key));
            assert!(said == b"END\r\n" || said == found(key, "new"), "{}", said.escape_ascii());
        }
    }
}

// Promise: replica-acknowledgment
#[test]
fn replicas_acknowledge_write_after_enough_servers() {
    for (ack, paused, is_answered) in [
        ("all", 1, false),
        ("majority", 1, true),
        ("majority", 2, false),
        ("first", 2, true),
        ("first", 3, false),
    ] {
        let mut scene = Scene::new(|bed| {
            let mut config = config(bed, &replicas(3, ack));
            // Health checks must not mark the hanging servers as down, so the test raises `fall`:
            // the outage is longer than the usual number of failed checks takes.
            config.more = config.more.replace("fall = 4", "fall = 600");
            config
        });
        let client = scene.client(true);
        assert_eq!(scene.ask(&client, &set(1, "before")), b"STORED\r\n");
        assert!(eventually(BOUND, || (holders(&scene, 1, "before").len() == 3).then_some(())).is_some());
        let pause = |server: &mut Option<Process>| server.as_mut().unwrap().pause().unwrap();
        scene.servers[..paused].iter_mut().for_each(pause);
        let of = |name| ended(&scene, name);
        let [acknowledged, unanswered, disagreed] =
            ["replicas_acknowledged", "replicas_unanswered", "replicas_disagreed"].map(of);
        if is_answered {
            assert_eq!(scene.ask(&client, &set(1, "after")), b"STORED\r\n");
            assert_eq!(ended(&scene, "replicas_acknowledged"), acknowledged + 1);
        } else {
            assert_eq!(client.ask_within(&set(1, "after"), SILENCE), None);
            let is_over = || (ended(&scene, "replicas_unanswered") == unanswered + 1).then_some(());
            assert!(eventually(BOUND, is_over).is_some(), "{}", scene.diagnosis());
        }
        // If the servers return different results, the balancer counts a disagreement.
        let is_said = || (paused == 3 || ended(&scene, "replicas_disagreed") > disagreed).then_some(());
        assert!(eventually(BOUND, is_said).is_some(), "{}", scene.diagnosis());
        for server in &mut scene.servers[..paused] {
            server.as_mut().unwrap().signal(Signal::SIGCONT).unwrap();
        }
        // The servers process the requests after the balancer has stopped waiting for the replies.
        let late = || (holders(&scene, 1, "after").len() == 3).then_some(());
        assert!(eventually(BOUND, late).is_some(), "{}", scene.diagnosis());
        scene.drops_become_beside(&[("kv_answer_late", paused as u64)], &["icmp_quote"]);
    }
}

#[test]
fn replicas_reject_read_modify_write_commands() {
    let scene = Scene::new(|bed| config(bed, &replicas(2, "all")));
    let client = scene.client(true);
    assert_eq!(scene.ask(&client, &set(1, "7")), b"STORED\r\n");
    let no = b"SERVER_ERROR not supported with replicas\r\n";
    for command in [
        &b"incr key1 1\r\n"[..],
        b"add key9 0 0 2\r\nhi\r\n",
        b"append key1 0 0 2\r\nhi\r\n",
        b"cas key1 0 0 2 7\r\nhi\r\n",
        b"gat 30 key1\r\n",
        b"gats 30 key1 key2 key3 key4\r\n",
        b"ma key1\r\n",
        b"ms key1 2 MA\r\nhi\r\n",
        b"mg key1 v T30\r\n",
        b"md key1 C7\r\n",
    ] {
        for ipv4 in [true, false] {
            let said = scene.ask(&scene.client(ipv4), command);
            assert_eq!(said, no, "{}", command.escape_ascii());
        }
    }
    let header = [0x80, 5, 0, 4, 20, 0, 0, 0, 0, 0, 0, 24, 9, 8, 7, 6];
    let said = scene.ask(&client, &[&header[..], &[0; 8], &[0; 20], b"key1"].concat());
    let wanted = [0x81, 5, 0, 0, 0, 0, 0, 0x83, 0, 0, 0, 13, 9, 8, 7, 6];
    assert_eq!(said, [&wanted[..], &[0; 8], b"Not supported"].concat());
    assert_eq!(holders(&scene, 1, "7").len(), 2);
    assert!(each(&scene, &get(9)).iter().all(|(_, said)| said == b"END\r\n"));
    assert_eq!(ended(&scene, "replicas_refused"), 21);
    client.send(b"incr key1 1 noreply\r\n");
    scene.drops_become(&[("kv_replica_refused", 1)]);
}
