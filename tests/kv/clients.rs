//! Clients that nobody here wrote.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use testbed::{Host, Process, VIP_V4, eventually};

use crate::scene::{BOUND, PORT, Scene, config};

#[test]
fn memcaslap_finds_all_that_it_stored_by_udp() {
    memcaslap_finds_all(&Scene::new(|bed| config(bed, "")));
}

/// What it stores through the first VIP it finds there, byte by byte.
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

/// Its sets of 1.8 kB come in fragments: the later ones follow the first, which holds the key. It waits for no answer, so that a
/// server's receive buffer may be full: such sets came whole too.
#[test]
fn the_fragmented_sets_of_memcslap_reach_their_servers_whole() {
    let scene = Scene::new(|bed| config(bed, ""));
    let args = ["-U", "-s", &VIP_V4.to_string(), "-t", "set", "-e", "200", "-c", "2"];
    let ended = Process::to_end(&scene.bed.client.ns, "memcslap", &args, 10 * BOUND).unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    scene.drops_become(&[]);
    let stats = |host: &Host| -> u64 {
        let text = say(host, "stats\r\nquit\r\n");
        let line = text.lines().find_map(|line| line.strip_prefix("STAT cmd_set ")).unwrap();
        line.parse().unwrap()
    };
    // A server answers at its own address while sets wait at the VIP's. On a fast machine one of 400 is at times neither stored nor
    // refused, though all their pieces left the balancer.
    let all = || {
        let (stored, refused): (u64, u64) =
            (scene.bed.backends.iter().map(stats).sum(), scene.bed.backends.iter().map(full).sum());
        (stored > 0 && stored + refused >= 396).then_some(())
    };
    assert!(eventually(BOUND, all).is_some(), "fewer than 396 of 400 sets came whole\n{}", scene.diagnosis());
    assert_eq!(scene.balancer.counters().unwrap().over_threads(&["keyed_writes"]), 400);
}

/// What a server says over TCP, at its own address.
pub(crate) fn say(host: &Host, words: &'static str) -> String {
    let server = SocketAddr::new(host.v4.into(), PORT);
    host.ns.run(move || {
        let (mut stream, mut text) = (TcpStream::connect(server).unwrap(), String::new());
        stream.write_all(words.as_bytes()).unwrap();
        stream.read_to_string(&mut text).unwrap();
        text
    })
}

/// Whole datagrams that found a host's receive buffers full.
fn full(host: &Host) -> u64 {
    let text = host.ns.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|name| name == "RcvbufErrors").unwrap();
    values.split(' ').nth(at).unwrap().parse().unwrap()
}
