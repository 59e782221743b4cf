//! Tests that the keys of the cluster and of BGP do not appear in core dumps, logs, API responses
//! or captures.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use nix::sys::signal::Signal;
use testbed::{Balancer, Bed, BedSpec, Decap, LbConfig};

use crate::scene::{BOUND, Scene, verb};

/// Returns `true` if `hay` contains the key, either in hexadecimal or as bytes.
fn holds(hay: &[u8], key: &str) -> bool {
    let raw: Vec<u8> = (0..16).map(|n| u8::from_str_radix(&key[2 * n..2 * n + 2], 16).unwrap()).collect();
    let found = |needle: &[u8]| hay.windows(needle.len()).any(|window| window.eq_ignore_ascii_case(needle));
    found(key.as_bytes()) || found(BGP_KEY.as_bytes()) || hay.windows(16).any(|window| window == raw)
}

/// A BGP key that does not occur anywhere else.
const BGP_KEY: &str = "canary-4f1d0b77";

/// Returns a configuration with a BGP key and a peer that does not exist.
fn with_a_router(bed: &Bed) -> LbConfig {
    let file = bed.dir().join("bgp.key");
    fs::write(&file, BGP_KEY).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let mut config = LbConfig::new(bed);
    config.vip_keys = "announce = {}".into();
    config.more = "[bgp]\nasn = 65101\n[[bgp.peers]]\naddress = \"192.0.2.0\"\nasn = 65000\n\
                   password_file = \"bgp.key\"\nnext_hop6 = \"2001:db8:0:1::1\"\n"
        .into();
    config
}

// Promise: secrets
#[test]
fn keys_are_never_disclosed() {
    let bed = Bed::new(&BedSpec::default()).unwrap();
    let decaps = Decap::start_all(&bed).unwrap();
    let config = with_a_router(&bed);
    let program = bed.program().unwrap().to_str().unwrap().to_owned();
    let balancer = Balancer::start_by(&["prlimit", "--core=unlimited", &program], &bed, 0, &config).unwrap();
    let mut scene = Scene { balancer, decaps, bed };
    let key = fs::read_to_string(scene.bed.dir().join("hash.key")).unwrap().trim().to_owned();
    assert!([key.as_bytes(), BGP_KEY.as_bytes()].iter().all(|text| holds(text, &key)) && !holds(b"", &key));

    let socket = LbConfig::admin_socket(&scene.bed, 0).to_str().unwrap().to_owned();
    let file = scene.bed.dir().join("canary.pcapng");
    let args = ["capture", "--socket", &socket, "-w", file.to_str().unwrap(), "--count", "8"];
    let captured = std::thread::scope(|scope| {
        let capture = scope.spawn(|| verb(&scene.bed, &args));
        while !capture.is_finished() {
            scene.ask(true, 8);
        }
        capture.join().unwrap()
    });
    assert_eq!(captured.code, Some(0), "{captured:?}");
    assert!(!holds(&fs::read(&file).unwrap(), &key));
    for path in [
        "/v1/status",
        "/v1/config",
        "/v1/counters",
        "/v1/backends",
        "/v1/bgp",
        "/metrics",
        "/openapi.json",
        "/",
    ] {
        let (status, text) = scene.balancer.ask_plainly(path).unwrap();
        assert_eq!((status, holds(text.as_bytes(), &key)), (200, false), "{path}");
    }

    scene.balancer.process.signal(Signal::SIGABRT).unwrap();
    let ended = scene.balancer.process.wait(BOUND).unwrap();
    assert_eq!((ended.signal(), ended.core_dumped()), (Some(Signal::SIGABRT as i32), false));
    let lines = scene.balancer.process.lines();
    assert!(!lines.is_empty() && lines.iter().all(|line| !holds(line.text.as_bytes(), &key)));
    // For comparison, the test kills a different program, which does write a core dump if the
    // kernel writes core dumps to files.
    let script = "ulimit -c unlimited; kill -ABRT $$";
    let other = Command::new("sh").args(["-c", script]).current_dir(scene.bed.dir()).status().unwrap();
    println!("other programs dump core: {}", other.core_dumped());
}
