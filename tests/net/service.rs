//! Tests of the systemd unit: user and capabilities, notification socket, reload, watchdog, and
//! drain.

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

/// Returns the words of a setting, which must occur exactly once in the unit.
fn setting(text: &str, name: &str) -> Vec<String> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let words = lines.next().unwrap().split_whitespace().map(Into::into).collect();
    assert_eq!(lines.next(), None, "the unit has {name} more than once");
    words
}

/// Formats the capabilities as an argument for `setpriv`.
fn only(capabilities: &[String]) -> String {
    capabilities.iter().fold("-all".into(), |list, capability| {
        format!("{list},+{}", capability.strip_prefix("CAP_").unwrap().to_lowercase())
    })
}

/// Starts the balancer with the unit's user, capabilities and notification socket, like systemd.
fn start_as_unit(bed: &Bed, config: &LbConfig) -> (Balancer, Manager) {
    let (_, text) = unit();
    let bounds = only(&setting(&text, "CapabilityBoundingSet"));
    let ambient = only(&setting(&text, "AmbientCapabilities"));
    config.write(bed, 0).unwrap();
    // The unit's user may not be able to read the target directory.
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

/// Returns a configuration with few frames, because the default limit of locked memory applies
/// here.
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

/// Returns a field of `/proc/PID/task/TID/status` by thread name.
fn threads(process: &Process, field: &str) -> BTreeMap<String, String> {
    let of = |status: &str, name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
    };
    let tasks = fs::read_dir(format!("/proc/{}/task", process.id())).unwrap().flatten();
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    statuses.map(|status| (of(&status, "Name:"), of(&status, field))).collect()
}

// Promise: capabilities
#[test]
fn unit_serves_traffic_and_notifies_systemd() {
    let (mut scene, manager) = scene_as_unit(&[VIP_V4, VIP_V6], "60s");
    let ready = manager.wait_for(BOUND, "READY=1").unwrap();
    assert!(ready.contains("\nSTATUS=ready, generation 1: 2 VIP addresses, 3 backends on lb0\n"), "{ready}");
    scene.ask(true, 8);
    scene.ask(false, 8);
    let balancer = &scene.balancer.process;
    assert!(threads(balancer, "Name:").len() > 1, "the threads have no names");
    for (field, main, packet) in [
        ("CapPrm:", NET_ADMIN_AND_RAW, 0),
        ("CapEff:", NET_ADMIN_AND_RAW, 0),
        // the capabilities that a new process of an upgrade inherits
        ("CapInh:", NET_ADMIN_AND_RAW, 0),
        ("CapAmb:", 0, 0),
        ("NoNewPrivs:", 1, 1),
    ] {
        assert_all(balancer, field, |thread| if is_unprivileged(thread) { packet } else { main });
    }
    let of_memory = fs::metadata(format!("/proc/{}/mem", balancer.id())).unwrap();
    assert_eq!(of_memory.uid(), 0, "the process memory is readable by its user");
    assert!(threads(balancer, "Uid:").values().all(|ids| ids.split('\t').all(|id| id == USER.to_string())));
    // Changing the maps of the XDP filter does not need the capabilities that are needed to create
    // the maps.
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
fn missing_capability_is_named_before_start() {
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

/// Returns `true` for the threads of the data plane, which give up their capabilities.
fn is_unprivileged(thread: &str) -> bool {
    thread == "watch" || thread.starts_with("packet-")
}

/// Checks a numeric field of the status of each thread.
fn assert_all(process: &Process, field: &str, wanted: impl Fn(&str) -> u64) {
    let found = threads(process, field);
    println!("{field} {found:?}");
    for (thread, value) in found {
        assert_eq!(u64::from_str_radix(&value, 16).unwrap(), wanted(&thread), "{field} of {thread}");
    }
}

// Promise: decap-filter
#[test]
fn root_start_drops_capabilities_like_the_unit() {
    let scene = Scene::with(|bed| config(bed, &[VIP_V4, VIP_V6], "60s"));
    scene.ask(true, 8);
    let balancer = &scene.balancer.process;
    for field in ["CapPrm:", "CapEff:", "CapInh:"] {
        let kept = NET_ADMIN_AND_RAW | NET_BIND | IPC_LOCK;
        let of = |thread: &str| if is_unprivileged(thread) { 0 } else { kept };
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
    // `decap` can read the counters without the capabilities, and removes the XDP program at the
    // end.
    scene.taken_off(scene.settled().sent());
}

/// Checks that a second signal ends a drain early. `scene` has a long drain time.
fn drains_and_a_second_signal_ends_it(mut scene: Scene, manager: &Manager) {
    let asked = |scene: &Scene, path| scene.balancer.ask_plainly(path).unwrap();
    assert_eq!(asked(&scene, "/readyz"), (200, "ready".into()));
    scene.balancer.process.signal(Signal::SIGTERM).unwrap();
    let stopping = manager.wait_for(BOUND, "STOPPING=1").unwrap();
    assert!(stopping.lines().any(|line| line == "EXTEND_TIMEOUT_USEC=75000000"), "{stopping}");
    assert_eq!(asked(&scene, "/readyz"), (503, "draining".into()));
    assert_eq!(asked(&scene, "/healthz"), (200, "healthy".into()));
    // New connections are still served during the drain, because routers may not have withdrawn the
    // route yet.
    scene.ask(true, 8);
    scene.ask(false, 8);
    manager.wait_for(BOUND, "WATCHDOG=1").unwrap();
    scene.balancer.process.signal(Signal::SIGTERM).unwrap();
    let asked_again = Instant::now();
    assert_eq!(scene.balancer.process.wait(BOUND).unwrap().code(), Some(0));
    println!("process ended {:?} after the second signal", asked_again.elapsed());
}

#[test]
fn a_drain_ends_when_nobody_sends_any_more() {
    let mut scene = Scene::with(|bed| config(bed, &[VIP_V4, VIP_V6], "10m"));
    scene.ask(true, 8);
    let begun = Instant::now();
    scene.balancer.process.signal(Signal::SIGINT).unwrap();
    scene.balancer.process.wait_for_line(10 * BOUND, |line| line.contains("no packet forwarded")).unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(4), "the drain ended too early, {:?}", begun.elapsed());
    assert_eq!(scene.balancer.process.wait(BOUND).unwrap().code(), Some(0));
}

#[test]
fn drain_ends_after_drain_time_under_load() {
    let mut scene = Scene::with(|bed| config(bed, &[VIP_V4, VIP_V6], "2s"));
    let mut flows = scene.flows(true, 4);
    let begun = Instant::now();
    scene.balancer.process.signal(Signal::SIGTERM).unwrap();
    let over = eventually(10 * BOUND, || {
        flows.round_within(SILENCE).unwrap();
        let lines = scene.balancer.process.lines();
        lines.iter().any(|line| line.text.contains("drain time passed")).then(|| begun.elapsed())
    });
    assert!(over.expect("the process did not end") >= Duration::from_secs(2), "{over:?}");
    assert_eq!(scene.balancer.process.wait(BOUND).unwrap().code(), Some(0));
}

/// Checks that systemd accepts a unit and rates its exposure as low.
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
    // `systemd-analyze verify` reports unknown settings and invalid values.
    let folder = testbed::TempDir::new().unwrap();
    // A service may require its socket.
    let socket = path.with_extension("socket");
    if socket.exists() {
        fs::copy(&socket, folder.path().join(socket.file_name().unwrap())).unwrap();
    }
    let (copy, text) = (folder.path().join(path.file_name().unwrap()), fs::read_to_string(path).unwrap());
    fs::write(&copy, text.replace("/usr/bin/sluicegate", testbed::binary().unwrap().to_str().unwrap()))
        .unwrap();
    let (success, said) = analyze(&["verify", "--man=no", copy.to_str().unwrap()]);
    assert!(success && !said.contains("sluicegate"), "{said}");
}

#[test]
fn units_are_valid_and_confined() {
    let (path, text) = unit();
    is_understood_and_confined(&path);
    is_understood_and_confined(&path.with_file_name("sluicegate-decap.service"));
    is_understood_and_confined(&path.with_file_name("sluicegate-checks.service"));
    let users = path.with_extension("sysusers").canonicalize().unwrap();
    let output = Command::new("systemd-sysusers").arg("--dry-run").arg(users).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !said.contains("Failed"), "{said}");
    let longest = setting(&text, "TimeoutStopSec")[0].strip_suffix('s').unwrap().parse::<u64>().unwrap();
    assert!(longest > 60, "the stop timeout is shorter than the default drain time");
}

/// A user ID that has no name on this machine.
const USER: u32 = 61_234;
pub(crate) const WATCHDOG: Duration = Duration::from_secs(2);
/// CAP_NET_ADMIN (12) and CAP_NET_RAW (13) as a bit mask.
const NET_ADMIN_AND_RAW: u64 = 0x3000;
/// CAP_NET_BIND_SERVICE (10) as a bit mask.
const NET_BIND: u64 = 0x400;
/// CAP_IPC_LOCK (14) as a bit mask.
const IPC_LOCK: u64 = 0x4000;
const MORE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 11));
