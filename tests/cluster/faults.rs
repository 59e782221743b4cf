//! The faults and changes that `mixed_faults` causes on two machines and their backends.
//!
//! Each function returns when the cluster has recovered. The faults of machines leave the Maglev
//! tables as they are. The changes of the pool move no routes.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testbed::{Bed, HttpServer, RouterSession, Stall, eventually};

use crate::scene::{BOUND, Scene};

/// A fault or an operation that moves flows between machines, or stops them for a short time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MachineFault {
    /// The packet threads of these machines stop.
    Stall(Machines, Duration),
    /// The processes of these machines stop as a whole.
    Freeze(Machines, Duration),
    /// The only uplink of a machine loses its carrier, while the other machine may stall.
    Carrier(usize, Duration, Option<Duration>),
    /// The router restarts a BGP session with a machine.
    Session(usize, bool),
    /// A machine is drained and started again.
    Drain(usize),
    /// A new process takes over on a machine.
    Upgrade(usize),
    /// Both machines load a file with other settings of BGP.
    Reload,
}

/// One machine or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machines {
    One(usize),
    Both,
}

impl Machines {
    fn indexes(self) -> Vec<usize> {
        match self {
            Self::One(index) => vec![index],
            Self::Both => vec![0, 1],
        }
    }
}

/// A change of the pool on both machines, or an event that keeps all flows on their machines.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PoolChange {
    /// An operator drains a backend, and later returns it to service.
    Drain(usize),
    /// The HTTP server of a backend dies, and starts again when its failure was detected.
    Die(usize),
    /// Both machines load a file with other weights.
    Weights(u32),
    /// A new process takes over on a machine.
    Upgrade(usize),
    /// The packet threads of a machine stop for less than the time after which routes are marked.
    Stall(usize),
}

impl MachineFault {
    pub(crate) fn happen(self, scene: &mut Scene) {
        match self {
            Self::Stall(machines, time) => stall(scene, machines, time),
            Self::Freeze(machines, time) => freeze(scene, machines, time),
            Self::Carrier(index, time, stalled) => lose_carrier(scene, index, time, stalled),
            Self::Session(index, ipv4) => {
                let session = RouterSession::new(u8::try_from(index + 1).unwrap(), ipv4);
                let name = session.name();
                let before = scene.peer(index, &name)["established"].as_u64();
                scene.router.restart(&session).unwrap();
                let again = || (scene.peer(index, &name)["established"].as_u64() > before).then_some(());
                assert!(eventually(BOUND, again).is_some(), "{:#}", scene.peer(index, &name));
            }
            Self::Drain(index) => drain(scene, index),
            Self::Upgrade(index) => upgrade(scene, index),
            Self::Reload => {
                let [from, to] = ["max_retry = \"2s\"", "max_retry = \"3s\""];
                let more = &scene.config.more;
                let pair = if more.contains(from) { [from, to] } else { [to, from] };
                scene.config.more = more.replace(pair[0], pair[1]);
                reload(scene);
            }
        }
        // FRR ends a BGP session once more if the BFD session comes up later.
        (0..2).for_each(|index| wait_for_sessions(scene, index));
        scene.wait_for_next_hops(2);
        (0..2).for_each(|index| wait_for_announcement(scene, index));
        scene.wait_for_agreement();
    }
}

impl PoolChange {
    pub(crate) fn happen(self, scene: &mut Scene) {
        match self {
            Self::Drain(backend) => {
                let name = scene.bed.backends[backend].name.clone();
                both_say(scene, &["backend", "drain", &name]);
                sleep(Duration::from_secs(1));
                both_say(scene, &["backend", "up", &name]);
            }
            Self::Die(backend) => die(scene, backend),
            Self::Weights(weight) => {
                scene.config.pool[0].weight = weight;
                reload(scene);
            }
            Self::Upgrade(index) => upgrade(scene, index),
            Self::Stall(index) => stall(scene, Machines::One(index), Duration::from_millis(100)),
        }
        scene.wait_for_agreement();
    }
}

/// Returns the ID of the balancer process, or `None` if it has ended. After an upgrade, this is
/// the new process.
pub(crate) fn process(bed: &Bed, index: usize) -> Option<u32> {
    let file = bed.dir().join(format!("{}.toml", bed.balancers[index].name));
    let runs = |folder: &fs::DirEntry| {
        let line = fs::read(folder.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        words.get(1) == Some(&&b"run"[..]) && words.contains(&file.as_os_str().as_bytes())
    };
    let folders = fs::read_dir("/proc").unwrap().flatten();
    let ids = folders.filter(runs).filter_map(|folder| folder.file_name().to_string_lossy().parse().ok());
    ids.max()
}

fn stall(scene: &Scene, machines: Machines, time: Duration) {
    let processes: Vec<u32> =
        machines.indexes().into_iter().map(|index| process(&scene.bed, index).unwrap()).collect();
    let withdrawals = withdrawals(scene);
    let stall = Stall::begin(&processes, "packet-").unwrap();
    sleep(time);
    drop(stall);
    for index in 0..2 {
        wait_for_announcement(scene, index);
    }
    assert_eq!(self::withdrawals(scene), withdrawals, "a stall withdrew VIPs\n{}", scene.tails());
}

/// A stopped process, which continues when the handle is dropped.
struct Frozen(Pid);

impl Drop for Frozen {
    fn drop(&mut self) {
        _ = kill(self.0, Signal::SIGCONT); // fails only if the process has ended
    }
}

fn freeze(scene: &Scene, machines: Machines, time: Duration) {
    let withdrawals = withdrawals(scene);
    let frozen: Vec<Frozen> = machines.indexes().into_iter().map(|index| frozen(scene, index)).collect();
    sleep(time);
    drop(frozen);
    for index in 0..2 {
        wait_for_announcement(scene, index);
    }
    assert_eq!(self::withdrawals(scene), withdrawals, "a freeze withdrew VIPs\n{}", scene.tails());
}

fn frozen(scene: &Scene, index: usize) -> Frozen {
    let id = Pid::from_raw(process(&scene.bed, index).unwrap().try_into().unwrap());
    kill(id, Signal::SIGSTOP).unwrap();
    Frozen(id)
}

fn lose_carrier(scene: &Scene, index: usize, time: Duration, stalled: Option<Duration>) {
    let port = &scene.bed.balancers[index].port;
    scene.bed.router.ip(&format!("link set dev {port} down")).unwrap();
    scene.wait_for_next_hops(1);
    if let Some(time) = stalled {
        // The other machine is the last one, so routers keep its marked routes.
        let stall = Stall::begin(&[process(&scene.bed, 1 - index).unwrap()], "packet-").unwrap();
        sleep(time);
        drop(stall);
    }
    sleep(time);
    scene.bed.router.ip(&format!("link set dev {port} up")).unwrap();
}

fn drain(scene: &mut Scene, index: usize) {
    scene.say(index, &["machine", "drain"]);
    let ended = eventually(BOUND, || process(&scene.bed, index).is_none().then_some(()));
    assert!(ended.is_some(), "{}", scene.tails());
    scene.machines[index] = None;
    scene.start(index);
}

fn upgrade(scene: &Scene, index: usize) {
    // The kernel may release a queue late, or BGP may need time for the session before. The old
    // process then continues.
    let done = eventually(BOUND, || scene.bed.say(index, &["machine", "upgrade"], BOUND).ok());
    let why = || scene.bed.say(index, &["machine", "upgrade"], BOUND);
    assert!(done.is_some(), "{:?}\n{}", why(), scene.tails());
}

fn reload(scene: &Scene) {
    for index in 0..2 {
        scene.config.write(&scene.bed, index).unwrap();
    }
    both_say(scene, &["config", "reload"]);
}

fn die(scene: &mut Scene, backend: usize) {
    let host = scene.bed.backends[backend].clone();
    drop(scene.bed.http.remove(backend));
    let becomes = |wanted: &str| {
        let is = |index| backend_state(scene, index, &host.name) == wanted;
        let found = eventually(BOUND, || (is(0) && is(1)).then_some(()));
        assert!(found.is_some(), "{} is not {wanted}\n{}", host.name, scene.tails());
    };
    becomes("down");
    let server = HttpServer::start(&host.ns, &host.name, Bed::HTTP_PORT).unwrap();
    becomes("serving");
    scene.bed.http.insert(backend, server);
}

fn both_say(scene: &Scene, words: &[&str]) {
    for index in 0..2 {
        scene.say(index, words);
    }
}

/// Waits until all BGP and BFD sessions of a machine are up.
fn wait_for_sessions(scene: &Scene, index: usize) {
    let mut last = Value::Null;
    let found = eventually(BOUND, || {
        last = scene.machines[index].as_ref().unwrap().ask("/v1/bgp").unwrap()["peers"].take();
        let is_up = |peer: &Value| peer["state"] == "Established" && peer["bfd"]["state"] == "Up";
        last.as_array()?.iter().all(is_up).then_some(())
    });
    assert!(found.is_some(), "{last:#}\n{}", scene.tails());
}

/// Waits until a machine announces its VIPs in both families without a mark.
fn wait_for_announcement(scene: &Scene, index: usize) {
    let mut last = Value::Null;
    let found = eventually(BOUND, || {
        last = vips(scene, index);
        let rows = last.as_array()?;
        (!rows.is_empty() && rows.iter().all(|row| row["state"] == "announced")).then_some(())
    });
    assert!(found.is_some(), "{last:#}\n{}", scene.tails());
}

/// Returns for each machine how often it withdrew a VIP.
fn withdrawals(scene: &Scene) -> [u64; 2] {
    [0, 1].map(|index| {
        let rows = vips(scene, index);
        rows.as_array().unwrap().iter().filter_map(|row| row["withdrawals"].as_u64()).sum()
    })
}

fn vips(scene: &Scene, index: usize) -> Value {
    scene.machines[index].as_ref().unwrap().ask("/v1/bgp").unwrap()["vips"].take()
}

fn backend_state(scene: &Scene, index: usize, name: &str) -> Value {
    let answer = scene.machines[index].as_ref().unwrap().ask("/v1/backends").unwrap();
    let rows = answer.as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap()["state"].clone()
}
