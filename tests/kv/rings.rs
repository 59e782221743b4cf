//! Tests of hash rings. The balancer must find the keys that other memcached clients have
//! distributed over the servers with their rings.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use testbed::{Bed, Process, eventually};

use crate::clients::say;
use crate::scene::{BOUND, PORT, Scene, config};

const KEYS: usize = 3_000;
const WEIGHTS: [u32; 3] = [1, 2, 3];
const RING_NAMES: [&str; 3] = ["one", "two", "three"];

/// Reads each key through the balancer. Each key must have its value and must be on exactly one
/// server.
fn found(scene: &Scene) {
    let client = scene.client(true);
    for key in 0..KEYS {
        let value = format!("value of {key}");
        let expected = format!("VALUE key:{key} 0 {}\r\n{value}\r\nEND\r\n", value.len());
        let answer = scene.ask(&client, format!("get key:{key}\r\n").as_bytes());
        assert_eq!(answer.escape_ascii().to_string(), expected.as_bytes().escape_ascii().to_string());
    }
    scene.drops_become(&[]);
    let stored: Vec<usize> = (0..3).map(|backend| items(scene, backend)).collect();
    assert_eq!(stored.iter().sum::<usize>(), KEYS, "some keys are on several servers, {stored:?}");
    assert!(stored.iter().all(|count| *count > KEYS / 20), "a server has too few keys, {stored:?}");
}

/// Returns how many items a server reports in its statistics.
fn items(scene: &Scene, backend: usize) -> usize {
    let stats = say(&scene.bed.backends[backend], "stats\r\nquit\r\n");
    stats.lines().find_map(|line| line.strip_prefix("STAT curr_items ")).unwrap().parse().unwrap()
}

#[test]
fn libmemcached_ring_matches_for_3_000_keys() {
    let scene = Scene::new(|bed| config(bed, ", hash = \"ketama\"").weights(&WEIGHTS));
    let program = compiled(scene.bed.dir());
    let mut args = vec![KEYS.to_string()];
    for (host, weight) in scene.bed.backends.iter().zip(WEIGHTS) {
        args.extend([host.v4.to_string(), weight.to_string()]);
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let ended = Process::to_end(&scene.bed.client.ns, &program, &args, BOUND).unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    found(&scene);
}

/// Compiles a client with libmemcached, and returns the path of the program.
fn compiled(folder: &Path) -> String {
    let (source, program) = (folder.join("ketama.c"), folder.join("ketama"));
    fs::write(&source, include_str!("ketama.c")).unwrap();
    let output = std::process::Command::new("cc")
        .args([source.as_os_str(), "-o".as_ref(), program.as_os_str(), "-lmemcached".as_ref()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program.to_str().unwrap().to_owned()
}

#[test]
fn nutcracker_ring_matches_for_3_000_keys() {
    for (ours, theirs) in [("fnv1a_64", "fnv1a_64"), ("ketama", "md5")] {
        let scene = Scene::new(|bed| {
            let mut config = config(bed, &format!(", hash = \"{ours}\"")).weights(&WEIGHTS);
            config.pool.iter_mut().zip(RING_NAMES).for_each(|(member, name)| member.ring_name = Some(name));
            config
        });
        let nutcracker = nutcracker(&scene.bed, theirs);
        write_through(&scene, &nutcracker);
        found(&scene);
    }
}

/// The address on the client host at which the proxy listens.
const PROXY: SocketAddr = SocketAddr::V4(std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 22_121));

/// Starts the proxy nutcracker on the client host. The proxy connects to the servers' own
/// addresses.
fn nutcracker(bed: &Bed, hash: &str) -> Process {
    let mut file = format!(
        "pool:\n  listen: {PROXY}\n  hash: {hash}\n  distribution: ketama\n  timeout: 20000\n  servers:\n"
    );
    for ((host, weight), name) in bed.backends.iter().zip(WEIGHTS).zip(RING_NAMES) {
        file += &format!("   - {}:{PORT}:{weight} {name}\n", host.v4);
    }
    let path = bed.dir().join("nutcracker.yml");
    fs::write(&path, file).unwrap();
    let args = ["--conf-file", path.to_str().unwrap()];
    Process::start(&bed.client.ns, "nutcracker", "nutcracker", &args).unwrap()
}

/// Stores all keys through the proxy, over one connection.
fn write_through(scene: &Scene, proxy: &Process) {
    let answers = scene.bed.client.ns.run(|| {
        let mut stream =
            eventually(BOUND, || TcpStream::connect(PROXY).ok()).expect("the proxy does not listen");
        stream.set_read_timeout(Some(BOUND)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut answers = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut ask = |key: usize| {
            let value = format!("value of {key}");
            let command = format!("set key:{key} 0 0 {}\r\n{value}\r\n", value.len());
            stream.write_all(command.as_bytes()).unwrap();
            answers.next().unwrap().unwrap()
        };
        (0..KEYS).map(&mut ask).collect::<Vec<_>>()
    });
    assert!(answers.iter().all(|answer| answer == "STORED"), "{answers:?}\n{}", proxy.tail());
}
