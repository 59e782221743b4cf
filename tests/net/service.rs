//! As systemd would run it: the unit's user and capabilities, the service manager's socket, reload, watchdog, drain; and the
//! unit itself.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testbed::{
    Balancer, Bed, BedSpec, Decap, LbConfig, Manager, Process, VIP_V4, VIP_V6, eventually, udp_ask,
};

use crate::scene::{BOUND, SILENCE, Scene};

fn unit() -> (PathBuf, String) {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../config/sluicegate.service"));
    let text = fs::read_to_string(&path).unwrap();
    (path, text)
}

/// The words of a setting of the unit that stands there once.
fn setting(text: &str, name: &str) -> Vec<String> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let words = lines.next().unwrap().split_whitespace().map(Into::into).collect();
    assert_eq!(lines.next(), None, "{name} stands there once");
    words
}

/// As `setpriv` names a set of capabilities.
fn only(capabilities: &[String]) -> String {
    capabilities.iter().fold("-all".into(), |list, capability| {
        format!("{list},+{}", capability.strip_prefix("CAP_").unwrap().to_lowercase())
    })
}

/// What systemd does before it executes the program: another user, the unit's capabilities, its socket.
fn start_as_unit(bed: &Bed, config: &LbConfig) -> (Balancer, Manager) {
    let (_, text) = unit();
    let bounds = only(&setting(&text, "CapabilityBoundingSet"));
    let ambient = only(&setting(&text, "AmbientCapabilities"));
    config.write(bed, 0).unwrap();
    // The build folder may be out of another user's reach.
    let program = bed.dir().join("sluicegate");
    fs::copy(bed.program().unwrap(), &program).unwrap();
    for path in [bed.dir().to_owned(), bed.dir().join("hash.key")] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let path = bed.dir().join("notify");
    let manager = Manager::listen(&path).unwrap();
    let (user, notify) = (USER.to_string(), format!("NOTIFY_SOCKET={}", path.display()));
    let watchdog = format!("WATCHDOG_USEC={}", WATCHDOG.as_micros());
    #[rustfmt::skip]
    let command = [
        "env", &notify, &watchdog,
        "setpriv", "--pdeathsig", "KILL", "--reuid", &user, "--regid", &user, "--clear-groups", "--no-new-privs",
        "--inh-caps", &ambient, "--ambient-caps", &ambient, "--bounding-set", &bounds,
        program.to_str().unwrap(),
    ];
    let balancer = Balancer::start_by(&command, bed, 0, config).unwrap();
    (balancer, manager)
}

/// Few frames: locked memory has its usual limit here.
fn config(bed: &Bed, vips: &[IpAddr], drain_time: &str) -> LbConfig {
    LbConfig {
        vips: vips.to_vec(),
        cluster: format!("drain_time = \"{drain_time}\""),
        io: "frames_per_queue = 512".into(),
        ..LbConfig::new(bed)
    }
}

pub(crate) fn scene_as_unit(vips: &[IpAddr], drain_time: &str) -> (Scene, Manager) {
    let all = vec![VIP_V4, VIP_V6, MORE];
    let bed = Bed::new(&BedSpec { vips: all, ..BedSpec::default() }).unwrap();
    let decaps = Decap::start_all(&bed).unwrap();
    let (balancer, manager) = start_as_unit(&bed, &config(&bed, vips, drain_time));
    (Scene { balancer, decaps, bed }, manager)
}

/// Each thread's name and a field of its status.
fn threads(process: &Process, field: &str) -> BTreeMap<String, String> {
    let of = |status: &str, name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
    };
    let tasks = fs::read_dir(format!("/proc/{}/task", process.id())).unwrap().flatten();
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    statuses.map(|status| (of(&status, "Name:"), of(&status, field))).collect()
}

#[test]
fn with_the_units_user_and_capabilities_it_carries_traffic_and_tells_the_service_manager() {
    let (mut scene, manager) = scene_as_unit(&[VIP_V4, VIP_V6], "60s");
    let ready = manager.wait_for(BOUND, "READY=1").unwrap();
    assert!(ready.contains("\nSTATUS=generation 1: 2 VIP addresses, 3 backends on lb0\n"), "{ready}");
    scene.ask(true, 8);
    scene.ask(false, 8);
    let balancer = &scene.balancer.process;
    assert!(threads(balancer, "Name:").len() > 1, "packet threads have names");
    for (field, main, packet) in [
        ("CapPrm:", NET_ADMIN_AND_RAW, 0),
        ("CapEff:", NET_ADMIN_AND_RAW, 0),
        ("CapInh:", NET_ADMIN_AND_RAW, 0), // what a process that takes over is given
        ("CapAmb:", 0, 0),
        ("NoNewPrivs:", 1, 1),
    ] {
        assert_all(balancer, field, |thread| if thread.starts_with("packet-") { packet } else { main });
    }
    let of_memory = fs::metadata(format!("/proc/{}/mem", balancer.id())).unwrap();
    assert_eq!(of_memory.uid(), 0, "no core dump, and no other process of its user reads its keys");
    assert!(threads(balancer, "Uid:").values().all(|ids| ids.split('\t').all(|id| id == USER.to_string())));
    // The filter's maps can be changed without the capability that made them.
    let more = (MORE, Bed::ECHO_PORT).into();
    udp_ask(&scene.bed.client.ns, more, b"x", SILENCE).unwrap_err();
    scene.balancer.reload(&scene.bed, &config(&scene.bed, &[VIP_V4, VIP_V6, MORE], "60s")).unwrap();
    let reloading = manager.wait_for(BOUND, "RELOADING=1").unwrap();
    let micros = reloading.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).unwrap();
    assert!(micros.parse::<u64>().unwrap() > 0);
    let ready = manager.wait_for(BOUND, "READY=1").unwrap();
    assert!(ready.contains("generation 2: 3 VIP addresses"), "{ready}");
    assert_eq!(udp_ask(&scene.bed.client.ns, more, b"x", BOUND).unwrap().from, more);
    for _ in 0..4 {
        manager.wait_for(BOUND, "WATCHDOG=1").unwrap();
    }
    drains_and_a_second_signal_ends_it(scene, &manager);
}

#[test]
fn a_capability_that_is_missing_is_named_before_anything_is_tried() {
    let bed = Bed::new(&BedSpec::default()).unwrap();
    let file = config(&bed, &[VIP_V4, VIP_V6], "60s").write(&bed, 0).unwrap();
    let (program, name) = (bed.program().unwrap(), &bed.balancers[0].name);
    let run = [program.to_str().unwrap(), "run", "--machine", name, "--config", file.to_str().unwrap()];
    for (without, words) in [
        ("-perfmon,-sys_admin", "lacks CAP_PERFMON or CAP_SYS_ADMIN"),
        ("-bpf,-sys_admin", "lacks CAP_BPF or CAP_SYS_ADMIN"),
    ] {
        let args = [&["--bounding-set", without][..], &run].concat();
        let ended = Process::to_end(&bed.balancers[0].ns, "setpriv", &args, 10 * BOUND).unwrap();
        let said = (ended.code, ended.err.contains(words), ended.err.len() < 4_000);
        assert_eq!(said, (Some(1), true, true), "{without}: {:.4000}", ended.err);
    }
}

/// A field that is a number, of each thread.
fn assert_all(process: &Process, field: &str, wanted: impl Fn(&str) -> u64) {
    let found = threads(process, field);
    println!("{field} {found:?}");
    for (thread, value) in found {
        assert_eq!(u64::from_str_radix(&value, 16).unwrap(), wanted(&thread), "{field} of {thread}");
    }
}

#[test]
fn started_by_root_without_the_unit_it_keeps_no_more_than_the_unit_leaves_it_and_decap_nothing() {
    let scene = Scene::with(|bed| config(bed, &[VIP_V4, VIP_V6], "60s"));
    scene.ask(true, 8);
    let balancer = &scene.balancer.process;
    for field in ["CapPrm:", "CapEff:", "CapInh:"] {
        let kept = NET_ADMIN_AND_RAW | NET_BIND | IPC_LOCK;
        let of = |thread: &str| if thread.starts_with("packet-") { 0 } else { kept };
        assert_all(balancer, field, of);
    }
    for process in scene.decaps.iter().map(|decap| &decap.process).chain([balancer]) {
        ["CapBnd:", "CapAmb:"].iter().for_each(|field| assert_all(process, field, |_| 0));
        assert_all(process, "NoNewPrivs:", |_| 1);
    }
    for Decap { process } in &scene.decaps {
        ["CapPrm:", "CapEff:", "CapInh:"].iter().for_each(|field| assert_all(process, field, |_| 0));
        for field in ["Uid:", "Gid:"] {
            let found = threads(process, field);
            assert!(found.values().all(|ids| ids.split('\t').all(|id| id == "65534")), "{field} {found:?}");
        }
        assert!(threads(process, "Groups:").values().all(String::is_empty));
    }
    // Its counts are read without them, and it leaves the interface as it was found.
    scene.taken_off(scene.settled().sent());
}

/// `scene` has a long drain time.
fn drains_and_a_second_signal_ends_it(mut scene: Scene, manager: &Manager) {
    let asked = |scene: &Scene, path| scene.balancer.ask_plainly(path).unwrap();
    assert_eq!(asked(&scene, "/readyz"), (200, "ready".into()));
    scene.balancer.process.signal(Signal::SIGTERM).unwrap();
    let stopping = manager.wait_for(BOUND, "STOPPING=1").unwrap();
    assert!(stopping.lines().any(|line| line == "EXTEND_TIMEOUT_USEC=75000000"), "{stopping}");
    assert_eq!(asked(&scene, "/readyz"), (503, "draining".into()));
    assert_eq!(asked(&scene, "/healthz"), (200, "healthy".into()));
    // New connections too: clients of routers that have not withdrawn the route yet are served.
    scene.ask(true, 8);
    scene.ask(false, 8);
    manager.wait_for(BOUND, "WATCHDOG=1").unwrap();
    scene.balancer.process.signal(Signal::SIGTERM).unwrap();
    let asked_again = Instant::now();
    assert_eq!(scene.balancer.process.wait(BOUND).unwrap().code(), Some(0));
    println!("ended {:?} after the second signal", asked_again.elapsed());
}

#[test]
fn a_drain_ends_when_nobody_sends_any_more() {
    let mut scene = Scene::with(|bed| config(bed, &[VIP_V4, VIP_V6], "10m"));
    scene.ask(true, 8);
    let begun = Instant::now();
    scene.balancer.process.signal(Signal::SIGINT).unwrap();
    scene
        .balancer
        .process
        .wait_for_line(10 * BOUND, |line| line.contains("no packet was forwarded"))
        .unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(4), "it waited: {:?}", begun.elapsed());
    assert_eq!(scene.balancer.process.wait(BOUND).unwrap().code(), Some(0));
}

#[test]
fn a_drain_ends_with_the_drain_time_whatever_is_sent() {
    let mut scene = Scene::with(|bed| config(bed, &[VIP_V4, VIP_V6], "2s"));
    let mut flows = scene.flows(true, 4);
    let begun = Instant::now();
    scene.balancer.process.signal(Signal::SIGTERM).unwrap();
    let over = eventually(10 * BOUND, || {
        flows.round_within(SILENCE).unwrap();
        let lines = scene.balancer.process.lines();
        lines.iter().any(|line| line.text.contains("the drain time has passed")).then(|| begun.elapsed())
    });
    assert!(over.expect("it ends") >= Duration::from_secs(2), "{over:?}");
    assert_eq!(scene.balancer.process.wait(BOUND).unwrap().code(), Some(0));
}

/// systemd knows all that a unit says, and calls it little exposed.
fn is_understood_and_confined(path: &Path) {
    let analyze = |arguments: &[&str]| {
        let output =
            Command::new("systemd-analyze").args(arguments).env("SYSTEMD_COLORS", "0").output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.success(), said.concat())
    };
    let (_, said) = analyze(&["security", "--offline=true", "--no-pager", path.to_str().unwrap()]);
    let level = said.lines().find_map(|line| line.split_once("Overall exposure level for ")).unwrap().1;
    let figure: f64 = level.split_whitespace().nth(1).unwrap().parse().unwrap();
    println!("{level}");
    assert!(figure <= 2.5, "{said}");
    // What a setting that is not known or has no such value is, systemd says here.
    let folder = testbed::TempDir::new().unwrap();
    let (copy, text) = (folder.path().join(path.file_name().unwrap()), fs::read_to_string(path).unwrap());
    fs::write(&copy, text.replace("/usr/bin/sluicegate", testbed::binary().unwrap().to_str().unwrap()))
        .unwrap();
    let (success, said) = analyze(&["verify", "--man=no", copy.to_str().unwrap()]);
    assert!(success && !said.contains("sluicegate"), "{said}");
}

#[test]
fn the_units_are_understood_and_confined_as_promised() {
    let (path, text) = unit();
    is_understood_and_confined(&path);
    is_understood_and_confined(&path.with_file_name("sluicegate-decap.service"));
    let users = path.with_extension("sysusers").canonicalize().unwrap();
    let output = Command::new("systemd-sysusers").arg("--dry-run").arg(users).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !said.contains("Failed"), "{said}");
    let longest = setting(&text, "TimeoutStopSec")[0].strip_suffix('s').unwrap().parse::<u64>().unwrap();
    assert!(longest > 60, "longer than the default drain time");
}

/// Nobody's: files may belong to numbers without a name.
const USER: u32 = 61_234;
pub(crate) const WATCHDOG: Duration = Duration::from_secs(2);
/// Bits 12 and 13.
const NET_ADMIN_AND_RAW: u64 = 0x3000;
/// Bit 10.
const NET_BIND: u64 = 0x400;
/// Bit 14.
const IPC_LOCK: u64 = 0x4000;
const MORE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 11));
