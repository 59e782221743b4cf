//! Keys of the cluster and of BGP stay in the process: they are in no core dump, no line of the log, no answer and no capture.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use nix::sys::signal::Signal;
use testbed::{Balancer, Bed, BedSpec, Decap, LbConfig};

use crate::scene::{BOUND, Scene, verb};

/// Where the cluster's key is looked for as the file has it and as bytes, and that of BGP as it is.
fn holds(hay: &[u8], key: &str) -> bool {
    let raw: Vec<u8> = (0..16).map(|n| u8::from_str_radix(&key[2 * n..2 * n + 2], 16).unwrap()).collect();
    let found = |needle: &[u8]| hay.windows(needle.len()).any(|window| window.eq_ignore_ascii_case(needle));
    found(key.as_bytes()) || found(BGP_KEY.as_bytes()) || hay.windows(16).any(|window| window == raw)
}

/// One that no text has by itself.
const BGP_KEY: &str = "canary-4f1d0b77";

/// A router that is not there, with a key.
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

#[test]
fn the_keys_are_in_no_core_log_answer_or_capture() {
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
    // Another program does leave one here, where the kernel writes them to a file.
    let script = "ulimit -c unlimited; kill -ABRT $$";
    let other = Command::new("sh").args(["-c", script]).current_dir(scene.bed.dir()).status().unwrap();
    println!("sh dumps core: {}", other.core_dumped());
}
