//! Tests with memcached clients from other projects.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use testbed::{Host, Process, VIP_V4, eventually};

use crate::scene::{BOUND, PORT, Scene, config};

#[test]
fn memcaslap_reads_back_all_values_over_udp() {
    memcaslap_finds_all(&Scene::new(|bed| config(bed, "")));
}

/// Runs memcaslap against the first VIP, and checks that it reads back all values that it wrote.
pub(crate) fn memcaslap_finds_all(scene: &Scene) {
    let server = SocketAddr::new(VIP_V4, PORT).to_string();
    let args = ["-s", &server, "-U", "-T", "1", "-c", "8", "-x", "20000", "-X", "64", "-v", "1.0"];
    let ended = Process::to_end(&scene.bed.client.ns, "memcaslap", &args, 10 * BOUND).unwrap();
    let number = |name: &str| {
        let line = ended.out.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap_or_default();
        line.trim_matches(|c: char| !c.is_ascii_digit()).parse::<u64>().ok()
    };
    assert_eq!(number("verify_failed:"), Some(0), "{ended:?}\n{}", scene.diagnosis());
    assert_eq!(number("verify_misses:"), Some(0), "{ended:?}\n{}", scene.diagnosis());
    assert_eq!(number("packet_drop:"), Some(0), "{ended:?}\n{}", scene.diagnosis());
    assert!(number("cmd_get:") > Some(10_000), "{ended:?}");
    scene.drops_become(&[]);
}

/// memcslap sends sets of 1.8 kB in fragments. Only the first fragment contains the key, and the
/// later fragments must go to the same server. memcslap does not wait for replies, so a set is lost
/// if the server's receive buffer is full.
#[test]
fn memcslap_fragmented_sets_are_delivered() {
    let scene = Scene::new(|bed| config(bed, ""));
    // The test reads the statistics over TCP at the server's own address.
    let stats = |host: &Host| -> u64 {
        let text = say(host, "stats\r\nquit\r\n");
        let line = text.lines().find_map(|line| line.strip_prefix("STAT cmd_set ")).unwrap();
        line.parse().unwrap()
    };
    let stored = || scene.bed.backends.iter().map(stats).sum::<u64>();
    // memcslap sends as fast as possible. The test uses bursts of 20 sets, which fit into the ring
    // of a veth device (256 packets) and into one receive buffer.
    let args = ["-U", "-s", &VIP_V4.to_string(), "-t", "set", "-e", "10", "-c", "2"];
    for sent in (20..=400).step_by(20) {
        let ended = Process::to_end(&scene.bed.client.ns, "memcslap", &args, 10 * BOUND).unwrap();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let all = || (stored() == sent).then_some(());
        assert!(eventually(BOUND, all).is_some(), "{} of {sent} sets\n{}", stored(), scene.diagnosis());
    }
    scene.drops_become(&[]);
    assert_eq!(scene.balancer.counters().unwrap().over_threads(&["keyed_writes"]), 400);
}

/// Sends commands to a server over TCP, and returns its response.
pub(crate) fn say(host: &Host, words: &'static str) -> String {
    let server = SocketAddr::new(host.v4.into(), PORT);
    host.ns.run(move || {
        let (mut stream, mut text) = (TcpStream::connect(server).unwrap(), String::new());
        stream.write_all(words.as_bytes()).unwrap();
        stream.read_to_string(&mut text).unwrap();
        text
    })
}
