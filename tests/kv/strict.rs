//! Tests of strict caches. A cached value must never be older than an acknowledged write, even if
//! writes and their responses are slow.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use testbed::{Bed, BedSpec, Host, LbConfig, Process, VIP_V4, VIP_V6, eventually, start_memcached_at};

use crate::history::{History, Read, set};
use crate::load::{Load, Way, Writer};
use crate::pair::Key;
use crate::proxied::{SLOW, proxied};
use crate::scene::{BOUND, PATIENT, PORT, SILENCE, Scene, config};
use crate::slow_backends::SlowBackends;

const STRICT: &str = ", cache = { memory = \"16MiB\", lease = \"400ms\", strict = true }";
/// The number of keys. Each key has one writer.
const KEYS: usize = 6;
const WRITES: u32 = 30;

fn counted(scene: &Scene, name: &str) -> u64 {
    scene.balancer.counters().unwrap().over_threads(&[name])
}

/// Starts a server only at its own address. The simulated slow network listens at the VIPs.
fn behind(_: &Bed, host: &Host) -> Option<Process> {
    Some(start_memcached_at(host, [host.v4.into()], &[]).unwrap())
}

fn slow(bed: &Bed, ways: &mut Vec<SlowBackends>) -> LbConfig {
    for (seed, host) in (1..).zip(&bed.backends) {
        let server = SocketAddr::new(host.v4.into(), PORT);
        for (family, vip) in (0..).zip([VIP_V4, VIP_V6]) {
            let seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed * 2 + family);
            ways.push(SlowBackends::start(&host.ns, SocketAddr::new(vip, PORT), server, seed));
        }
    }
    let mut config = config(bed, &format!(", rejoin = \"serve\"{STRICT}{PATIENT}"));
    config.services.retain(|service| service.protocol == "udp");
    config.more = config.more.replace("fall = 4", "fall = 600");
    config
}

const INSIDE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Starts a server on the loopback address. The simulated slow network listens at the backend's own
/// address.
fn inside(_: &Bed, host: &Host) -> Option<Process> {
    Some(start_memcached_at(host, [INSIDE], &[]).unwrap())
}

/// Returns a configuration with `path = "proxied"`: the IPv4 servers do not have the VIP, and the
/// balancer proxies reads too.
fn slow_at_own_address(bed: &Bed, ways: &mut Vec<SlowBackends>) -> LbConfig {
    for (seed, host) in (1..).zip(&bed.backends) {
        let [front, server] = [host.v4.into(), INSIDE].map(|address| SocketAddr::new(address, PORT));
        ways.push(SlowBackends::start(&host.ns, front, server, 0xd1b5_4a32_d192_ed03_u64.wrapping_mul(seed)));
    }
    let mut config = proxied(bed, true, &format!(", rejoin = \"serve\"{SLOW}{STRICT}"));
    config.more = config.more.replace("fall = 4", "fall = 600");
    config
}

/// Runs one writer per key, and readers of all keys over the given address families.
fn play(scene: &Scene, load: &Load, families: &[bool]) -> (History, Vec<Read>) {
    thread::scope(|scope| {
        let stop = load.stop_later();
        let readers: Vec<_> = (0..4)
            .map(|number| {
                let client = scene.client(families[number % families.len()]);
                scope.spawn(move || load.read(number, number..number + 1, &client))
            })
            .collect();
        let writers: Vec<_> = (0..KEYS)
            .map(|key| {
                let ways = families.iter().map(|ipv4| Way::Through(scene.client(*ipv4))).collect();
                let pause = Duration::from_millis(20)..Duration::from_millis(120);
                let writer = Writer { key, ways, writes: WRITES, deletes: 8, pause };
                scope.spawn(move || load.write(writer))
            })
            .collect();
        let writes = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        drop(stop);
        let reads = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
        (History { writes }, reads)
    })
}

// Promise: cache-strict
#[test]
fn strict_reads_follow_acknowledged_writes() {
    let mut ways = Vec::new();
    let scene = Scene::with(&two_queues(), |bed| slow(bed, &mut ways), behind);
    judge(&scene, &[true, false]);
    drop(ways);
}

#[test]
fn strict_proxied_reads_follow_acknowledged_writes() {
    let mut ways = Vec::new();
    let scene = Scene::with(&two_queues(), |bed| slow_at_own_address(bed, &mut ways), inside);
    judge(&scene, &[true]);
    drop(ways);
}

fn two_queues() -> BedSpec {
    BedSpec { queues: 2, ..BedSpec::default() }
}

/// Runs the load. Reads must never return an overwritten value, and many reads must be served from
/// the cache.
fn judge(scene: &Scene, families: &[bool]) {
    let key = |number: usize| Key { name: format!("hot{number}"), server: 0 };
    let load = Load::new((0..KEYS).map(key).collect(), 4);
    for Key { name, .. } in &load.keys {
        assert_eq!(scene.ask(&scene.client(true), &set(name, 0)), b"STORED\r\n");
    }
    let (history, reads) = play(scene, &load, families);
    for read in &reads {
        let age = history.age(read).unwrap_or_else(|| panic!("the value was never written, {read:?}"));
        assert!(age.when_sent.is_zero(), "value is older than an acknowledged write, {age:?}, {read:?}");
    }
    // The counters show that values were served from the cache, and that proxied writes invalidated
    // cached values.
    let enough = || {
        let hits = counted(scene, "cache_hits");
        (hits > reads.len() as u64 / 10).then_some(hits)
    };
    let hits = eventually(BOUND, enough).unwrap_or_else(|| panic!("no cache hits\n{}", scene.diagnosis()));
    let writes = history.writes.iter().map(|writes| writes.len() as u64).sum::<u64>();
    let passed = ["proxied_begun", "proxied_answers", "cache_stale_avoided"].map(|name| counted(scene, name));
    println!(
        "{} reads, {hits} of them from the cache, {writes} writes, requests proxied, answered and avoided {passed:?}",
        reads.len()
    );
    assert!(passed[0] >= writes && passed[1] >= writes && passed[2] > 0, "{}", scene.diagnosis());
    // Some server responses must have arrived at a packet thread that did not handle the request.
    assert!(counted(scene, "to_threads") > 0, "{}", scene.diagnosis());
}

#[test]
fn strict_writes_return_server_responses() {
    let scene = Scene::new(|bed| config(bed, &format!("{STRICT}{PATIENT}")));
    for ipv4 in [true, false] {
        let client = scene.client(ipv4);
        let rows: [(&[u8], &[u8]); 14] = [
            (b"set k 7 0 1\r\n5\r\n", b"STORED\r\n"),
            (b"incr k 1\r\n", b"6\r\n"),
            (b"append k 0 0 1\r\n0\r\n", b"STORED\r\n"),
            (b"add k 0 0 1\r\n9\r\n", b"NOT_STORED\r\n"),
            (b"touch k 100\r\n", b"TOUCHED\r\n"),
            (b"gat 100 k\r\n", b"VALUE k 7 2\r\n60\r\nEND\r\n"),
            (b"gat 100 k other\r\n", b"VALUE k 7 2\r\n60\r\nEND\r\n"),
            (b"ms k 2 Oab k\r\nhi\r\n", b"HD Oab kk\r\n"),
            (b"mg k T50 q v\r\n", b"VA 2\r\nhi\r\n"),
            (b"ma n N0 J5 v\r\n", b"VA 1\r\n5\r\n"),
            (b"ma n q v\r\n", b""),
            (b"md n\r\n", b"HD\r\n"),
            (b"delete k\r\n", b"DELETED\r\n"),
            (b"delete k\r\n", b"NOT_FOUND\r\n"),
        ];
        for (command, wanted) in rows {
            let said = match wanted {
                b"" => client.ask_within(command, SILENCE).unwrap_or_default(),
                _ => scene.ask(&client, command),
            };
            assert_eq!(said.escape_ascii().to_string(), wanted.escape_ascii().to_string());
        }
        // Commands without a response must reach the server unchanged.
        let before = counted(&scene, "proxied_begun");
        let binary = |opcode: u8, extras: &[u8], value: &[u8]| {
            let body = u8::try_from(extras.len() + 1 + value.len()).unwrap();
            let header = [0x80, opcode, 0, 1, u8::try_from(extras.len()).unwrap(), 0, 0, 0, 0, 0, 0, body];
            [&header[..], &[0; 12], extras, b"k", value].concat()
        };
        let counter = [&[0; 7][..], &[1], &[0; 12]].concat();
        for (command, value) in [
            (b"set k 0 0 1 noreply\r\n1\r\n".to_vec(), "1"),
            (b"append k 0 0 1 noreply\r\n2\r\n".to_vec(), "12"),
            (b"prepend k 0 0 1 noreply\r\n3\r\n".to_vec(), "312"),
            (b"incr k 1 noreply\r\n".to_vec(), "313"),
            (b"decr k 3 noreply\r\n".to_vec(), "310"),
            (b"replace k 0 0 1 noreply\r\n4\r\n".to_vec(), "4"),
            (b"touch k 50 noreply\r\n".to_vec(), "4"),
            (b"ms k 1 q\r\n5\r\n".to_vec(), "5"),
            (binary(0x11, &[0; 8], b"6"), "6"),
            (binary(0x13, &[0; 8], b"7"), "7"),
            (binary(0x15, &counter, b""), "8"),
            (binary(0x16, &counter, b""), "7"),
            (binary(0x19, &[], b"8"), "78"),
            (binary(0x1a, &[], b"9"), "978"),
            (b"md k q\r\n".to_vec(), ""),
            (b"add k 0 0 1 noreply\r\n1\r\n".to_vec(), "1"),
            (b"delete k noreply\r\n".to_vec(), ""),
            (binary(0x12, &[0; 8], b"2"), "2"),
            (binary(0x14, &[], b""), ""),
        ] {
            // The server answers a quiet binary command with an empty datagram, so the balancer
            // proxies these commands.
            let (is_binary, patience) = if command[0] == 0x80 { (true, BOUND) } else { (false, SILENCE) };
            let said = client.ask_within(&command, patience);
            assert_eq!(said, is_binary.then(Vec::new), "{}", command.escape_ascii());
            let said = scene.ask(&client, b"mg k v\r\n");
            let wanted = match value {
                "" => "EN\r\n".to_owned(),
                value => format!("VA {}\r\n{value}\r\n", value.len()),
            };
            assert_eq!(said.escape_ascii().to_string(), wanted.as_bytes().escape_ascii().to_string());
        }
        assert_eq!(counted(&scene, "proxied_begun"), before + 8, "{}", scene.diagnosis());
    }
    // The counts of proxied requests and responses include all commands with one key, over both
    // address families. One command per family gets no response.
    let passed = ["proxied_begun", "proxied_answers"].map(|name| counted(&scene, name));
    assert_eq!(passed, [42, 40], "{}", scene.diagnosis());
    scene.drops_become(&[]);
}
