//! A test of two machines under load with a random sequence of faults and changes. Only downloads
//! from backends that died may break.
//!
//! The test runs in waves. In a wave of machine faults, the Maglev tables stay the same, so flows
//! may move between the machines. In a wave of pool changes, the tables change, so flows must stay
//! on their machines. `SLUICEGATE_SEED` repeats the sequence of a failed run, and
//! `SLUICEGATE_SECONDS` sets the duration.

use std::collections::BTreeSet;
use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use testbed::{Bed, LbConfig, Line, Process, Router, RouterKind, RouterSession, UdpFlows, eventually};

use crate::faults::{MachineFault, Machines, PoolChange, process};
use crate::scene::{BOUND, Scene, broken, config};

/// A generator of random numbers (SplitMix64). The seed determines all numbers.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % below
    }

    fn index(&mut self, below: usize) -> usize {
        usize::try_from(self.next(below as u64)).unwrap()
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.next(to - from))
    }

    fn machines(&mut self) -> Machines {
        match self.index(3) {
            2 => Machines::Both,
            index => Machines::One(index),
        }
    }

    fn shuffled<T>(&mut self, mut list: Vec<T>) -> Vec<T> {
        for end in (1..list.len()).rev() {
            list.swap(end, self.index(end + 1));
        }
        list
    }

    /// Returns each kind of machine fault once.
    fn machine_faults(&mut self) -> Vec<MachineFault> {
        let frozen = self.machines();
        // With both machines frozen for longer than this, the router would lose its last route.
        let longest = if frozen == Machines::Both { 1_500 } else { 5_000 };
        let stalled = (self.next(2) == 0).then(|| self.millis(200, 2_000));
        let all = vec![
            MachineFault::Stall(self.machines(), self.millis(200, 2_000)),
            MachineFault::Stall(Machines::Both, self.millis(200, 2_000)),
            MachineFault::Freeze(frozen, self.millis(200, longest)),
            MachineFault::Carrier(self.index(2), self.millis(100, 1_500), stalled),
            MachineFault::Session(self.index(2), self.next(2) == 0),
            MachineFault::Drain(self.index(2)),
            MachineFault::Upgrade(self.index(2)),
            MachineFault::Reload,
        ];
        self.shuffled(all)
    }

    /// Returns each kind of pool change once. The first element is the index of the backend that
    /// dies.
    fn pool_changes(&mut self) -> (usize, Vec<PoolChange>) {
        let mortal = self.index(BACKENDS.into());
        let other = (mortal + 1 + self.index(usize::from(BACKENDS) - 1)) % usize::from(BACKENDS);
        let all = vec![
            PoolChange::Drain(other),
            PoolChange::Die(mortal),
            PoolChange::Weights(1 + u32::try_from(self.next(3)).unwrap()),
            PoolChange::Upgrade(self.index(2)),
            PoolChange::Stall(self.index(2)),
        ];
        (mortal, self.shuffled(all))
    }
}

/// UDP flows that send a packet every second until the handle ends.
struct Pings {
    end: Arc<AtomicBool>,
    thread: JoinHandle<(UdpFlows, BTreeSet<String>)>,
}

impl Pings {
    fn start(scene: &Scene, ipv4: bool) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let vip = scene.bed.vip(ipv4, Bed::ECHO_PORT);
        let mut flows = UdpFlows::open(&scene.bed.client.ns, vip, 25, Duration::from_secs(1)).unwrap();
        let complete = || {
            let answers = flows.round().unwrap();
            answers.iter().all(Option::is_some).then_some(answers)
        };
        let first = eventually(BOUND, complete).expect("some UDP flows have no replies");
        let until = Arc::clone(&end);
        let thread = thread::spawn(move || {
            let mut left = BTreeSet::new();
            while !until.load(Ordering::Relaxed) {
                let start = Instant::now();
                for (now, then) in flows.round().unwrap().into_iter().zip(&first) {
                    left.extend(then.clone().filter(|_| now.is_some() && now != *then));
                }
                thread::sleep(Duration::from_secs(1).saturating_sub(start.elapsed()));
            }
            (flows, left)
        });
        Self { end, thread }
    }

    /// Waits until all flows get replies. Returns the backends from which flows moved away.
    fn end(self) -> BTreeSet<String> {
        self.end.store(true, Ordering::Relaxed);
        let (mut flows, left) = self.thread.join().unwrap();
        let answered = || flows.round().unwrap().iter().all(Option::is_some).then_some(());
        assert!(eventually(BOUND, answered).is_some(), "some UDP flows have no replies");
        left
    }
}

struct Test {
    scene: Scene,
    random: Random,
    start: Instant,
    is_long: bool,
    /// The messages of the router's kernel about routes.
    monitor: Process,
    waves: usize,
    complete: usize,
    broken: usize,
    /// The number of waves of pool changes in which no route changed.
    steady: usize,
}

impl Test {
    /// Starts downloads and UDP flows, and runs the steps. `seconds` is the duration of a download
    /// in a short run. Returns the number of downloads, those that broke, and the backends from
    /// which UDP flows moved away.
    fn wave<T: Copy + std::fmt::Debug>(
        &mut self,
        steps: &[T],
        seconds: u64,
        happen: impl Fn(T, &mut Scene),
    ) -> (usize, Vec<testbed::Download>, BTreeSet<String>) {
        self.scene.wait_for_next_hops(2);
        self.scene.wait_for_agreement();
        let length = Duration::from_secs(if self.is_long { 40 } else { seconds });
        // If a flow moves, the machine that it left keeps its entry for 15 minutes. A new flow with
        // the same ports would use this entry if it moved to that machine.
        let first = 4_000 + self.waves % 150 * 400;
        let ports = format!("{first} {}", first + 399);
        self.scene.bed.client.ns.sysctl(&[("ipv4/ip_local_port_range", &ports)]).unwrap();
        self.waves += 1;
        let counted = self.scene.balanced(None);
        let downloads = self.scene.download(if self.is_long { 60 } else { 20 }, length);
        let pings = [true, false].map(|ipv4| Pings::start(&self.scene, ipv4));
        for &step in steps {
            let (begin, start) = (self.start.elapsed(), Instant::now());
            happen(step, &mut self.scene);
            println!("{:7.1} s: {step:?} took {:.1} s", begin.as_secs_f64(), start.elapsed().as_secs_f64());
        }
        let (count, broke) = broken(downloads);
        self.complete += count - broke.len();
        let moved = pings.into_iter().flat_map(Pings::end).collect();
        self.scene.balanced(Some(counted));
        (count, broke, moved)
    }

    fn machine_faults(&mut self) {
        let steps = self.random.machine_faults();
        let (count, broke, moved) = self.wave(&steps, 20, MachineFault::happen);
        let tails = || self.scene.tails();
        assert!(broke.is_empty(), "{} of {count} downloads broke: {broke:?}\n{}", broke.len(), tails());
        assert!(moved.is_empty(), "UDP flows of {moved:?} moved\n{}", tails());
    }

    /// Runs a wave of pool changes. If a route changed, the busy test machine stopped a balancer or
    /// the router for longer than they tolerate, and the wave proves nothing.
    fn pool_changes(&mut self) {
        let (mortal, steps) = self.random.pool_changes();
        self.scene.wait_for_next_hops(2);
        let (routes, pauses) = (self.route_changes().len(), self.pauses().len());
        let (count, broke, moved) = self.wave(&steps, 9, PoolChange::happen);
        let dead = self.scene.bed.backends[mortal].name.clone();
        let lines = self.route_changes().split_off(routes);
        if !lines.is_empty() {
            println!("          routes changed, wave not counted: {:?}", self.pauses().last());
            let is_paused = self.pauses().len() > pauses;
            assert!(is_paused, "routes changed without a pause: {lines:?}\n{}", self.scene.tails());
            return;
        }
        let others: Vec<_> = broke.iter().filter(|one| one.backend != dead).collect();
        assert!(others.is_empty(), "{dead} died, but of {count}: {others:?}\n{}", self.scene.tails());
        assert!(moved.iter().all(|name| *name == dead), "{dead} died, but UDP flows of {moved:?} moved");
        for one in &broke {
            let (local, why) = (one.local, one.broke.as_deref().unwrap_or_default());
            let local = local.map(|local| local.to_string()).unwrap_or_default();
            println!("          {dead} died: download from {local} broke after {:.1?}: {why}", one.lasted);
        }
        self.broken += broke.len();
        self.steady += 1;
    }

    /// Returns the messages about routes. A route of the test marks the end of the messages.
    fn route_changes(&self) -> Vec<String> {
        let marks = |lines: &[Line]| lines.iter().filter(|line| line.text.contains(MARK)).count();
        let before = marks(&self.monitor.lines());
        for word in ["add", "del"] {
            self.scene.bed.router.ip(&format!("route {word} blackhole {MARK}")).unwrap();
        }
        let marked = || Some(self.monitor.lines()).filter(|lines| marks(lines) == before + 2);
        let lines = eventually(BOUND, marked).expect("the kernel reports the route of the test");
        lines.into_iter().map(|line| line.text).filter(|line| !line.contains(MARK)).collect()
    }

    /// Returns the log lines of pauses of threads, processes and sessions.
    fn pauses(&self) -> Vec<String> {
        let logs = self.scene.machines.iter().flatten().flat_map(|machine| machine.process.lines());
        let words = ["VIP marked", "VIP no longer marked", "process did not run", "session lost"];
        let texts = logs.map(|line| line.text);
        texts.filter(|text| words.iter().any(|word| text.contains(word))).collect()
    }
}

impl Scene {
    pub(crate) fn tails(&self) -> String {
        let machines = self.machines.iter().flatten().map(|machine| machine.process.tail());
        format!("{}\n{}", self.router.tail(), machines.collect::<Vec<_>>().join("\n"))
    }

    /// Returns how many file descriptors a balancer has open, and its resident memory in KiB.
    fn footprint(&self, index: usize) -> (usize, u64) {
        let folder = format!("/proc/{}", process(&self.bed, index).unwrap());
        let descriptors = std::fs::read_dir(format!("{folder}/fd")).unwrap().count();
        let status = std::fs::read_to_string(format!("{folder}/status")).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        (descriptors, resident.trim().trim_end_matches(" kB").parse().unwrap())
    }

    /// Waits until the counters of both balancers account for each packet. `before` has the process
    /// IDs and the result of an earlier call. Returns the process IDs, and the numbers of packets
    /// that the XDP program redirected to a previous process while it was replaced.
    fn balanced(&self, before: Option<[(u32, u64); 2]>) -> [(u32, u64); 2] {
        [0, 1].map(|index| {
            let id = process(&self.bed, index).unwrap();
            let earlier = before.map(|all| all[index]).filter(|(process, _)| *process == id);
            let mut last = testbed::Counters::default();
            let agreed = eventually(BOUND, || {
                last = self.machines[index].as_ref().unwrap().counters().unwrap();
                let dropped: u64 = last.drops().iter().map(|(_, count)| count).sum();
                let [replies, made] = ["replies", "originated"].map(|name| last.over_threads(&[name]));
                // Some packets that the program redirected during an upgrade reached the old
                // process.
                let others = last.redirected().checked_sub(last.received() + last.lost_before_threads())?;
                let agree = last.received() + made == last.sent() + replies + dropped;
                (agree && earlier.is_none_or(|(_, before)| others <= before)).then_some((id, others))
            });
            let what = || format!("the counters of lb{} do not match, {earlier:?} before", index + 1);
            agreed.unwrap_or_else(|| panic!("{}\n{:#}\n{}", what(), last.0, self.tails()))
        })
    }
}

/// Returns a configuration for upgrades. A withdrawal that starts a hold-down of stalls would fail
/// the test by timeout, and pauses of a busy test machine end neither BFD sessions nor checks.
fn lasting_config(bed: &Bed) -> LbConfig {
    let config = config(bed);
    let more = config
        .more
        .replace("hold_down = \"1s\"", "hold_down = \"1s\"\nmax_stall = \"1m\"\ngraceful_restart = \"30s\"")
        .replace("multiplier = 5", "multiplier = 30")
        .replace("timeout = \"900ms\"", "timeout = \"900ms\"\nfall = 6\nrise = 1");
    LbConfig { more, ..config }
}

fn start(kind: RouterKind, seed: u64, is_long: bool) -> Test {
    let router = |bed: &Bed| Router::start(bed, kind, &RouterSession::all()).unwrap();
    let scene = Scene::with_heirs(BACKENDS, router, lasting_config);
    // The addresses of a link survive its failure. Linux changes the IPv6 flow label of a
    // connection after lost packets, and the router might then choose the other machine.
    scene.bed.router.sysctl(&[("ipv6/conf/all/keep_addr_on_down", "1")]).unwrap();
    for host in scene.bed.backends.iter().chain([&scene.bed.client]) {
        host.ns.sysctl(&[("ipv6/auto_flowlabels", "0")]).unwrap();
    }
    scene.wait_for_next_hops(2);
    let monitor = Process::start(&scene.bed.router, "monitor", "ip", &["monitor", "route"]).unwrap();
    let (random, start) = (Random(seed), Instant::now());
    Test { scene, random, start, is_long, monitor, waves: 0, complete: 0, broken: 0, steady: 0 }
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn mixed_faults(kind: RouterKind) {
    let seed = number("SLUICEGATE_SEED")
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().into());
    let is_long = env::var_os("SLUICEGATE_LONG").is_some();
    let time = number("SLUICEGATE_SECONDS").unwrap_or(if is_long { 1_800 } else { 0 });
    println!("{kind:?}: SLUICEGATE_SEED={seed} SLUICEGATE_SECONDS={time}");
    let mut test = start(kind, seed, time > 0);
    let mut before = None;
    // A wave of pool changes in which no route changed is needed.
    while test.waves < 2
        || test.start.elapsed() < Duration::from_secs(time)
        || (test.steady == 0 && test.waves < 20)
    {
        if test.waves.is_multiple_of(2) {
            test.machine_faults()
        } else {
            test.pool_changes()
        }
        if test.waves == 2 {
            before = Some([0, 1].map(|index| test.scene.footprint(index)));
        }
    }
    let after = [0, 1].map(|index| test.scene.footprint(index));
    println!(
        "{kind:?}: {} waves in {:.0?}, {} of them with steady routes: {} downloads complete, {} broken by the death of \
         their backend, descriptors and resident KiB {before:?} before and {after:?} after",
        test.waves,
        test.start.elapsed(),
        test.steady,
        test.complete,
        test.broken
    );
    assert!(test.complete > 0 && test.broken > 0 && test.steady > 0);
    for (before, after) in before.unwrap().into_iter().zip(after) {
        assert!(after.0 <= before.0 + 8, "{before:?} descriptors and memory before, {after:?} after");
        assert!(after.1 < before.1 + 16 * 1024, "{before:?} descriptors and memory before, {after:?} after");
    }
}

// Promise: machine-failure
#[test]
fn bird_mixed_faults_break_only_downloads_of_dead_backends() {
    mixed_faults(RouterKind::Bird);
}

// Promise: machine-failure
#[test]
fn frr_mixed_faults_break_only_downloads_of_dead_backends() {
    mixed_faults(RouterKind::Frr);
}

const BACKENDS: u8 = 5;
const MARK: &str = "192.0.2.254";
