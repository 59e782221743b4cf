//! Tests of upgrades under traffic: a new process takes over from the old process. In some tests
//! the new process fails.

mod load;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::{
    Balancer, Bed, BedSpec, Decap, Downloads, Ended, LbConfig, Manager, PoolMember, UdpFlows, eventually,
};

use crate::scene::{BOUND, Scene, verb};

/// A balancer whose process is replaced several times.
pub(crate) struct Line {
    pub(crate) scene: Scene,
}

impl Line {
    pub(crate) fn start(spec: &BedSpec, environment: &[&str], config: impl FnOnce(&Bed) -> LbConfig) -> Self {
        let bed = Bed::new(spec).unwrap();
        let config = config(&bed);
        let decaps = Decap::start_all(&bed).unwrap();
        let balancer = Balancer::start_with_heirs(&bed, 0, &config, environment).unwrap();
        Self { scene: Scene { balancer, decaps, bed } }
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        let socket = LbConfig::admin_socket(&self.scene.bed, 0);
        verb(&self.scene.bed, &[args, &["--socket", socket.to_str().unwrap()]].concat())
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let ended = self.run(&[args, &["--json"]].concat());
        assert!(matches!(ended.code, Some(0 | 1)), "{args:?}: {}{}", ended.out, ended.err);
        serde_json::from_str(&ended.out).unwrap()
    }

    /// Upgrades to a new process and returns the JSON result.
    pub(crate) fn upgrade(&self, binary: Option<&Path>) -> Value {
        let before = self.json(&["status"])["boot_id"].clone();
        let binary = binary.map(|path| path.to_str().unwrap());
        let args: Vec<&str> = ["machine", "upgrade", "--json"].into_iter().chain(binary).collect();
        // On a busy machine, the kernel may release a queue only after the new process has stopped
        // waiting for it. In this case, the upgrade fails and the old process continues, so the
        // test tries again.
        let kept = |ended: &Ended| {
            [&ended.out, &ended.err].iter().any(|said| said.contains("another AF_XDP socket uses queue"))
        };
        let mut tries = std::iter::repeat_with(|| self.run(&args)).take(TRIES);
        let ended = tries.find(|ended| !kept(ended)).expect("the kernel did not release a queue");
        assert_eq!(ended.code, Some(0), "{}{}\n{}", ended.out, ended.err, self.scene.diagnosis());
        assert_ne!(self.json(&["status"])["boot_id"], before, "the old process still responds");
        serde_json::from_str(&ended.out).unwrap()
    }

    /// Attempts an upgrade that must fail, and returns the error message.
    fn refused(&self, binary: &Path) -> String {
        let before = self.json(&["status"])["boot_id"].clone();
        let ended = self.run(&["machine", "upgrade", binary.to_str().unwrap()]);
        assert_eq!(ended.code, Some(1), "{}{}\n{}", ended.out, ended.err, self.scene.diagnosis());
        assert_eq!(self.json(&["status"])["boot_id"], before, "the old process was replaced");
        ended.out + &ended.err
    }

    /// Returns how many flows of a backend are in the connection tables.
    fn tracked(&self, backend: &str) -> usize {
        let listed = self.json(&["flow", "list", "--backend", backend, "--limit", "1000"]);
        listed["flows"].as_array().unwrap().len()
    }

    /// Writes an executable script to the testbed's directory.
    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.scene.bed.dir().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

/// A thread that sends packets on UDP flows until the handle is dropped. Some packets can be lost,
/// but every flow must keep its backend.
struct Flows {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicUsize>,
    thread: JoinHandle<(UdpFlows, usize, usize)>,
}

impl Flows {
    fn start(mut flows: UdpFlows) -> Self {
        let first = flows.round().unwrap();
        assert!(first.iter().all(Option::is_some), "some flows have no response");
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (until, ended) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = thread::spawn(move || {
            let (mut moved, mut lost) = (0, 0);
            while !until.load(Ordering::Relaxed) {
                let answers = flows.round_within(LOST_AFTER).unwrap();
                lost += answers.iter().filter(|answer| answer.is_none()).count();
                let others = answers.iter().zip(&first).filter(|(now, then)| now.is_some() && now != then);
                moved += others.count();
                ended.fetch_add(1, Ordering::Relaxed);
            }
            (flows, moved, lost)
        });
        Self { stop, rounds, thread }
    }

    /// Waits until each flow has sent a packet and received its reply in a complete round.
    fn asked(&self) {
        // the current round and one complete round
        let then = self.rounds.load(Ordering::Relaxed) + 2;
        let are_over = || (self.rounds.load(Ordering::Relaxed) >= then).then_some(());
        assert!(eventually(BOUND, are_over).is_some());
    }

    fn kept(self, scene: &Scene) {
        self.stop.store(true, Ordering::Relaxed);
        let (mut flows, moved, lost) = self.thread.join().unwrap();
        println!("UDP packets without a response: {lost}");
        assert_eq!(moved, 0, "a flow moved\n{}", scene.diagnosis());
        assert!(flows.round().unwrap().iter().all(Option::is_some), "{}", scene.diagnosis());
    }
}

/// Threads that open one connection after the other until the handle is dropped.
struct Newcomers {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Newcomers {
    fn start(bed: &Bed, clients: usize) -> Self {
        let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (client, vip) = (bed.http_client(), bed.vip(true, Bed::HTTP_PORT));
        let threads = (0..clients).map(|_| {
            let (client, stop, made) = (client.clone(), Arc::clone(&stop), Arc::clone(&made));
            thread::spawn(move || {
                let mut broken = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    match client.get(vip, "/") {
                        Ok(_) => _ = made.fetch_add(1, Ordering::Relaxed),
                        Err(failure) => broken.push(failure.to_string()),
                    }
                }
                broken
            })
        });
        Self { threads: threads.collect(), stop, made }
    }

    fn all_made(self, scene: &Scene) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let broken: Vec<String> =
            self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert!(broken.is_empty(), "{broken:?}\n{}", scene.diagnosis());
        self.made.load(Ordering::Relaxed)
    }
}

/// Threads that send requests at a constant rate on several flows, and measure the longest time in
/// which a flow got no response.
struct Pulse {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Duration>>,
}

impl Pulse {
    fn start(bed: &Bed, flows: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let vip = bed.vip(true, Bed::ECHO_PORT);
        let threads = (0..flows).map(|_| {
            let stop = Arc::clone(&stop);
            bed.client.ns.spawn(move || {
                let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
                socket.connect(vip).unwrap();
                socket.set_read_timeout(Some(PACE)).unwrap();
                let (mut last, mut longest, mut room) = (Instant::now(), Duration::ZERO, [0; 256]);
                while !stop.load(Ordering::Relaxed) {
                    let sent = Instant::now();
                    let _ = socket.send(b"pulse"); // may return an ICMP error for an earlier packet
                    // Responses to earlier requests are accepted too.
                    while socket.recv(&mut room).is_ok() {
                        longest = longest.max(last.elapsed());
                        last = Instant::now();
                        if sent.elapsed() >= PACE {
                            break;
                        }
                    }
                }
                longest
            })
        });
        Self { threads: threads.collect(), stop }
    }

    fn longest(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
    }
}

fn handed_over_twice_and_back(queues: u32) {
    let line = Line::start(&BedSpec { queues, ..BedSpec::default() }, &[], LbConfig::new);
    let (scene, bed) = (&line.scene, &line.scene.bed);
    let other = bed.dir().join("another-name");
    fs::copy(bed.program().unwrap(), &other).unwrap();
    let downloads = Downloads::start(&bed.client.ns, bed.vip(true, Bed::HTTP_PORT), 60, LONG);
    let begun = || (downloads.begun() == 60).then_some(());
    assert!(eventually(BOUND, begun).is_some(), "{}", scene.diagnosis());
    let (newcomers, flows) = (Newcomers::start(bed, 2), Flows::start(scene.flows(false, 100)));
    for binary in [None, Some(&*other), Some(&*bed.program().unwrap())] {
        let pulse = Pulse::start(bed, 8);
        thread::sleep(Duration::from_millis(300)); // lets the traffic run for a while
        let upgraded = line.upgrade(binary);
        let before = newcomers.made.load(Ordering::Relaxed);
        let more = || (newcomers.made.load(Ordering::Relaxed) > before + 20).then_some(());
        assert!(eventually(BOUND, more).is_some(), "{}", scene.diagnosis());
        println!("{queues} queues, longest outage {:?}, {upgraded}", pulse.longest());
        assert_eq!(upgraded["handed_over_ms"].as_array().unwrap().len(), queues as usize);
        assert!(upgraded["flow_records"].as_u64().unwrap() >= 100, "{upgraded}");
        assert_eq!(line.json(&["status"])["ready"], true);
    }
    flows.kept(scene);
    println!("new connections: {}", newcomers.all_made(scene));
    let broken: Vec<_> = downloads.join().into_iter().filter_map(|one| one.broke).collect();
    assert!(broken.is_empty(), "{broken:?}\n{}", scene.diagnosis());
    assert_eq!(scene.balancer.counters().unwrap().drops(), [], "{}", scene.diagnosis());
}

#[test]
fn upgrade_with_one_queue_breaks_no_connection() {
    handed_over_twice_and_back(1);
}

#[test]
fn upgrade_with_two_queues_breaks_no_connection() {
    handed_over_twice_and_back(2);
}

/// Each upgrade starts as soon as the previous one has reported success. The old process of the
/// previous upgrade may still be running at this time.
#[test]
fn upgrades_in_direct_succession_work() {
    let line = Line::start(&BedSpec { queues: 2, ..BedSpec::default() }, &[], LbConfig::new);
    let flows = Flows::start(line.scene.flows(false, 60));
    for turn in 0..3 {
        let ended = line.run(&["machine", "upgrade"]);
        assert_eq!(ended.code, Some(0), "{turn}: {}{}\n{}", ended.out, ended.err, line.scene.diagnosis());
    }
    flows.kept(&line.scene);
}

#[test]
fn upgrade_with_steering_breaks_no_connection() {
    let spec = BedSpec { queues: 2, ..BedSpec::default() };
    let steered =
        |bed: &Bed| LbConfig { io: "steering = \"software\"\nthreads = 2".into(), ..LbConfig::new(bed) };
    let line = Line::start(&spec, &[], steered);
    let (newcomers, flows) =
        (Newcomers::start(&line.scene.bed, 2), Flows::start(line.scene.flows(true, 100)));
    for _ in 0..2 {
        let upgraded = line.upgrade(None);
        assert_eq!(
            upgraded["handed_over_ms"].as_array().unwrap().len(),
            1,
            "the queues were not handed over together, {upgraded}"
        );
    }
    flows.kept(&line.scene);
    newcomers.all_made(&line.scene);
}

#[test]
fn failed_program_keeps_the_old_process() {
    let line = Line::start(&BedSpec::default(), &[], LbConfig::new);
    let (newcomers, flows) = (Newcomers::start(&line.scene.bed, 2), Flows::start(line.scene.flows(true, 60)));
    let text = line.scene.bed.dir().join("no-program");
    fs::write(&text, "x").unwrap();
    let unresponsive = line.script("unresponsive", "#!/bin/sh\nexec sleep 600\n");
    let chatter = line.script("chatter", "#!/bin/sh\necho nonsense >&0\nexec sleep 600\n");
    for (binary, words) in [
        (Path::new("/bin/false"), "exit code 1"),
        (Path::new("/none/sluicegate"), "/none/sluicegate: No such file"),
        (&text, "Permission denied"),
        (&chatter, "a frame of"),
        (&unresponsive, "the new process did not respond in time"),
    ] {
        let said = line.refused(binary);
        assert!(said.contains(words) && said.contains(binary.to_str().unwrap()), "{words}: {said}");
    }
    flows.kept(&line.scene);
    newcomers.all_made(&line.scene);
    line.upgrade(None);
}

/// Attempts an upgrade with a limit on open file descriptors. With a higher limit, the new process
/// gets further before it fails.
fn with_descriptors(line: &Line, descriptors: u32) -> Ended {
    assert!(descriptors < 200);
    let program = line.scene.bed.program().unwrap();
    let text = format!("#!/bin/sh\nulimit -n {descriptors}\nexec {} \"$@\"\n", program.display());
    let ended = line.run(&["machine", "upgrade", line.script("short", &text).to_str().unwrap()]);
    println!("{descriptors} descriptors: {}", ended.err.trim());
    ended
}

fn a_failing_process_gives_everything_back([before, after]: [&str; 2]) {
    let spec = BedSpec { queues: 2, ..BedSpec::default() };
    let with = |bed: &Bed, io: &str| LbConfig { io: io.to_owned(), ..LbConfig::new(bed) };
    let line = Line::start(&spec, &[], |bed| with(bed, before));
    with(&line.scene.bed, after).write(&line.scene.bed, 0).unwrap();
    assert_eq!(line.run(&["config", "reload"]).code, Some(0));
    let (newcomers, flows) = (Newcomers::start(&line.scene.bed, 2), Flows::start(line.scene.flows(true, 60)));
    // After this command, only the connection tables send flows to b1.
    assert_eq!(line.run(&["backend", "drain", "b1"]).code, Some(0));
    let before = line.json(&["status"])["boot_id"].clone();
    let mut words = Vec::new();
    for descriptors in 20.. {
        let ended = with_descriptors(&line, descriptors);
        if ended.code == Some(0) {
            break;
        }
        assert_eq!(line.json(&["status"])["boot_id"], before, "{}\n{}", ended.err, line.scene.diagnosis());
        words.push(ended.err);
    }
    assert_ne!(line.json(&["status"])["boot_id"], before);
    let at = |step: &str| words.iter().any(|words| words.contains(step));
    assert!(at(NO_SOCKET), "no attempt failed while binding queues {words:#?}");
    flows.kept(&line.scene);
    newcomers.all_made(&line.scene);
}

#[test]
fn upgrade_failing_at_any_step_is_undone() {
    a_failing_process_gives_everything_back(["", ""]);
}

/// With a different number of threads, the old process releases all queues before the new process
/// binds any. If the upgrade fails, the old process must bind the queues again.
#[test]
fn upgrade_of_threads_failing_at_any_step_is_undone() {
    let ways = ["1", "2"].map(|threads| format!("steering = \"software\"\nthreads = {threads}"));
    a_failing_process_gives_everything_back([&ways[0], &ways[1]]);
}

/// The flows belong to a draining backend and send no packets until the end. After the first
/// upgrade the number of threads differs, so no thread owns the entry of a flow until the next
/// packet of this flow arrives.
#[test]
fn failed_upgrade_keeps_unowned_flows() {
    let ways = ["1", "2"].map(|threads| format!("steering = \"software\"\nthreads = {threads}"));
    let with = |bed: &Bed, io: &str| LbConfig { io: io.to_owned(), ..with_long_flows(bed) };
    let line = Line::start(&BedSpec { queues: 2, ..BedSpec::default() }, &[], |bed| with(bed, &ways[0]));
    let mut flows = line.scene.flows(true, 60);
    flows.round().unwrap();
    thread::sleep(TICK);
    let first = flows.round().unwrap();
    assert_eq!(line.run(&["backend", "drain", "b1"]).code, Some(0));
    with(&line.scene.bed, &ways[1]).write(&line.scene.bed, 0).unwrap();
    assert_eq!(line.run(&["config", "reload"]).code, Some(0));
    line.upgrade(None);
    let listed = line.tracked("b1");
    assert!(listed > 5, "{listed}");
    let mut descriptors = 20;
    loop {
        let ended = with_descriptors(&line, descriptors);
        assert_ne!(ended.code, Some(0), "the new process succeeded despite the descriptor limit");
        if ended.err.contains(NO_SOCKET) {
            break;
        }
        descriptors += 1;
    }
    assert_eq!(line.tracked("b1"), listed, "{}", line.scene.diagnosis());
    assert_eq!(flows.round().unwrap(), first, "{}", line.scene.diagnosis());
}

#[test]
fn upgrade_keeps_overrides_and_health_states() {
    // No host has this address, so health checks mark the backend as down.
    let away =
        PoolMember { name: "b9".into(), address: [198, 18, 1, 200].into(), weight: 1, ring_name: None };
    let checked = |bed: &Bed| LbConfig {
        pool: LbConfig::new(bed).pool.into_iter().chain([away]).collect(),
        pool_keys: "checks = [\"web\"]".into(),
        more: "[check.web]\ntcp = { port = 80 }\ninterval = \"60s\"\nfast_interval = \"60s\"\nfall = 1\n"
            .into(),
        ..LbConfig::new(bed)
    };
    let line = Line::start(&BedSpec { backends: 4, ..BedSpec::default() }, &[], checked);
    let flows = Flows::start(line.scene.flows(true, 60));
    for order in [
        &["backend", "drain", "b1", "--reason", "a kernel", "--for", "1h"][..],
        &["backend", "weight", "b2", "3"],
    ] {
        assert_eq!(line.run(order).code, Some(0), "{order:?}");
    }
    let tables = || {
        let status = line.json(&["status"]);
        (status["digests"]["tables"].clone(), status["overrides"].clone(), status["generation"].clone())
    };
    let without_times = |mut overrides: Value| {
        for one in overrides.as_array_mut().unwrap() {
            let since = one["since_seconds"].take();
            assert!(since.as_f64().unwrap() < 600.0, "{since}");
            one["ends_in_seconds"] = one["ends_in_seconds"].as_f64().map(|left| left > 3_000.0).into();
        }
        overrides
    };
    let settled = || eventually(BOUND, || (line.json(&["status"])["ready"] == true).then_some(()));
    assert!(settled().is_some());
    let (digest, overrides, _) = tables();
    line.upgrade(None);
    let (digest_after, overrides_after, _) = tables();
    assert_eq!(digest_after, digest, "the tables differ");
    assert_eq!(without_times(overrides_after), without_times(overrides));
    let backends = line.json(&["backend", "list"]);
    let states: Vec<_> = backends["backends"].as_array().unwrap().iter().map(|row| &row["state"]).collect();
    assert_eq!(
        states,
        ["draining", "serving", "serving", "serving", "down"],
        "the states changed during the upgrade"
    );
    let served: Vec<String> = line.scene.ask(false, 60).into_iter().map(|reply| reply.backend).collect();
    assert!(!served.contains(&"b1".to_owned()), "{served:?}");
    flows.asked();
    // Overrides that the new process took over can still be removed.
    assert_eq!(line.run(&["backend", "undrain", "b1"]).code, Some(0));
    assert_eq!(line.run(&["backend", "weight", "b2", "file"]).code, Some(0));
    let left = line.json(&["status"])["overrides"].clone();
    assert_eq!(left.as_array().map(Vec::len), Some(0), "{left}");
    flows.kept(&line.scene);
}

#[test]
fn upgrade_applies_settings_and_rejects_restart_only_ones() {
    let with = |bed: &Bed, io: &str| LbConfig { io: io.to_owned(), ..LbConfig::new(bed) };
    let line = Line::start(&BedSpec::default(), &[], |bed| with(bed, "batch = 32"));
    let needs = |line: &Line| line.json(&["status"])["needs_restart"].clone();
    with(&line.scene.bed, "batch = 64").write(&line.scene.bed, 0).unwrap();
    let refused = line.refused(&line.scene.bed.program().unwrap());
    assert!(refused.contains("`sluicegate config reload` first"), "{refused}");
    assert_eq!(line.run(&["config", "reload"]).code, Some(0));
    assert_eq!(needs(&line), serde_json::json!(["io.batch: 32 -> 64"]));
    line.scene.ask(true, 8);
    line.scene.settled();
    line.upgrade(None);
    assert_eq!(needs(&line), serde_json::json!([]));
    line.scene.ask(true, 8);
    line.scene.settled(); // the counters of the XDP program also start at 0
    with(&line.scene.bed, "batch = 64\nmax_vips = 9").write(&line.scene.bed, 0).unwrap();
    assert_eq!(line.run(&["config", "reload"]).code, Some(0));
    let refused = line.refused(&line.scene.bed.program().unwrap());
    assert!(refused.contains("a restart is needed to change io.max_vips: "), "{refused}");
    line.scene.ask(true, 8);
    assert!(!line.scene.balancer.process.tail().contains("panicked"));
}

fn with_long_flows(bed: &Bed) -> LbConfig {
    let mut config = LbConfig::new(bed);
    config.cluster += "\nflow_timeouts = { udp = \"10m\" }";
    config
}

/// Checks that flows keep their backend when each upgrade changes the number of threads, queues or
/// tables. The backend is draining, so only the connection tables still send flows to it. Flows
/// that arrive on a queue without a socket are excluded, because the kernel gets their packets and
/// does not answer.
fn no_flow_moves_when_threads_are_others([before, after]: [&str; 2]) {
    let with = |bed: &Bed, io: &str| LbConfig { io: io.to_owned(), ..with_long_flows(bed) };
    let line = Line::start(&BedSpec { queues: 2, ..BedSpec::default() }, &[], |bed| with(bed, before));
    let (bed, mut flows) = (&line.scene.bed, line.scene.flows(true, 200));
    let round = |flows: &mut UdpFlows, patience| flows.round_within(patience).unwrap();
    let of_b1 = |answers: &[Option<String>]| answers.iter().flatten().filter(|name| *name == "b1").count();
    let all = round(&mut flows, SHORT);
    flows.keep_answered(&all);
    thread::sleep(TICK);
    let first = round(&mut flows, BOUND); // the second packet of a flow ends its probation
    assert!(of_b1(&first) > 5, "{first:?}");
    assert_eq!(line.run(&["backend", "drain", "b1"]).code, Some(0));
    with(bed, after).write(bed, 0).unwrap();
    assert_eq!(line.run(&["config", "reload"]).code, Some(0));
    let tracked = || line.tracked("b1");
    let listed = tracked();
    line.upgrade(None);
    assert_eq!(line.json(&["status"])["needs_restart"], serde_json::json!([]));
    assert_eq!(tracked(), listed, "flows were lost before their first packet");
    line.upgrade(None);
    assert_eq!(tracked(), listed, "flows were lost in the second process");
    let mut come = || {
        let now = round(&mut flows, SHORT);
        let moved =
            first.iter().zip(&now).filter(|(then, now)| then.is_some() && now.is_some() && then != now);
        assert_eq!(moved.count(), 0, "{first:?} {now:?}\n{}", line.scene.diagnosis());
        (of_b1(&now) > 5).then_some(())
    };
    assert!(eventually(BOUND, &mut come).is_some(), "{}", line.scene.diagnosis());
    with(bed, before).write(bed, 0).unwrap();
    assert_eq!(line.run(&["config", "reload"]).code, Some(0));
    line.upgrade(None);
    assert_eq!(tracked(), listed, "a flow was counted twice or lost");
    assert!(eventually(BOUND, &mut come).is_some(), "{}", line.scene.diagnosis());
    assert_eq!(tracked(), listed, "a flow was counted twice or lost");
    let purged = line.json(&["flow", "purge", "--backend", "b1"]);
    assert_eq!(purged["flows"].as_u64(), Some(listed as u64), "{purged}");
    let left = round(&mut flows, SHORT);
    assert!(of_b1(&left) == 0 && left.iter().flatten().count() > 5, "{left:?}");
}

#[test]
fn upgrade_from_one_queue_to_two_moves_no_flow() {
    let ways = ["queues = 1", "queues = 2\nflows_per_thread = 65536"];
    no_flow_moves_when_threads_are_others(ways);
    no_flow_moves_when_threads_are_others([ways[1], ways[0]]);
}

/// In this upgrade, flows move to other packet threads.
#[test]
fn upgrade_of_steered_threads_moves_no_flow() {
    let ways = ["1", "2"].map(|threads| format!("steering = \"software\"\nthreads = {threads}"));
    no_flow_moves_when_threads_are_others([&ways[0], &ways[1]]);
    no_flow_moves_when_threads_are_others([&ways[1], &ways[0]]);
}

#[test]
fn upgrade_notifies_systemd_of_main_pid() {
    let folder = std::env::temp_dir().join(format!("sluicegate-upgrade-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let path = folder.join("notify");
    let manager = Manager::listen(&path).unwrap();
    let notify = format!("NOTIFY_SOCKET={}", path.display());
    let line = Line::start(&BedSpec::default(), &[&notify], LbConfig::new);
    manager.wait_for(BOUND, "READY=1").unwrap();
    let upgraded = line.upgrade(None);
    // The process ID is valid in the PID namespace of the balancer's processes.
    manager.wait_for(BOUND, &format!("MAINPID={}", upgraded["pid"])).unwrap();
    manager.wait_for(BOUND, "READY=1").unwrap();
    drop(line);
    fs::remove_dir_all(&folder).unwrap();
}

/// The error message of a new process that reaches its limit on open files while it binds queues.
const NO_SOCKET: &str = "cannot bind an AF_XDP socket";
/// The time between the first two packets of a flow, which must exceed 250 ms, the resolution of
/// the connection table's clock.
const TICK: Duration = Duration::from_millis(300);
/// The timeout for replies on flows that may use a queue without a socket. On a slow machine, the
/// test repeats the round.
const SHORT: Duration = Duration::from_secs(2);
/// The time after which a packet is considered lost. On these links a reply takes less than a
/// millisecond, but a busy machine adds a delay.
const LOST_AFTER: Duration = Duration::from_secs(1);
const PACE: Duration = Duration::from_millis(1);
/// The maximum number of attempts to upgrade. In each attempt the new process waits two seconds for
/// a queue, which is usually free within 40 ms.
const TRIES: usize = 10;
/// A timeout that is longer than three attempts to upgrade.
const LONG: Duration = Duration::from_secs(12);
