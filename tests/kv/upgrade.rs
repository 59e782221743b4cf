//! Tests of upgrades while the balancer sends upstream requests. At no time during an upgrade may
//! another program be able to bind one of the balancer's source ports.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::socket::sockopt::ReusePort;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket};
use testbed::{Balancer, BedSpec, Ended, LbConfig, Process, QueryClient, eventually};

use crate::gather::{ended, get, lists_apart, store, wanted};
use crate::history::{History, set};
use crate::load::{Load, Way, Writer};
use crate::pair::Key;
use crate::rejoin;
use crate::scene::{BOUND, PATIENT, SILENCE, Scene, config, memcached_with};

/// Enables a strict cache. Without invalidation, this cache would serve an overwritten value for up
/// to one more second.
const STRICT: &str = ", cache = { memory = \"16MiB\", lease = \"1s\", strict = true }";
const HOT_KEYS: usize = 12;
const READERS: usize = 6;
/// The time without a response after which a reader repeats a request. During an upgrade, each
/// queue is without a socket for about 40 ms. Readers must read often while the queues are divided
/// between the old and the new process.
const AGAIN: Duration = Duration::from_millis(20);
/// A port in the middle of the default range of `io.source_ports`.
const SOURCE_PORT: u16 = 61_100;

#[test]
fn upgrade_answers_gathered_and_single_requests() {
    let scene = with_heirs(PATIENT);
    store(&scene);
    let lists = lists_apart(&scene, 60, 20);
    assert!(lists.len() > 30, "{lists:?}");
    all_answered(&scene, &lists);
    let asking = Asking::start(&scene, &lists);
    asking.answered(&scene, 2 * lists.len());
    let failed = upgrade(&scene, &["/bin/false"]);
    assert_eq!(failed.code, Some(1), "{}{}", failed.out, failed.err);
    assert!(!lets_in(&scene), "another program can bind a source port of the old process");
    for _ in 0..2 {
        take_over(&scene);
        asking.answered(&scene, 2 * lists.len());
    }
    asking.stop(&scene);
    let before = ended(&scene, "gathers_answered");
    all_answered(&scene, &lists);
    assert!(ended(&scene, "gathers_answered") >= before + lists.len() as u64, "{}", scene.diagnosis());
}

/// Starts a balancer with two queues whose process can be replaced in upgrades. The text `kv` is
/// added to the `kv` table of the pool.
fn with_heirs(kv: &str) -> Scene {
    with_heirs_by(kv, &[])
}

/// Starts a fixture like [`with_heirs`], with additional arguments for the memcached servers.
fn with_heirs_by(kv: &str, more: &[&str]) -> Scene {
    let spec = BedSpec { queues: 2, ..BedSpec::default() };
    Scene::by(
        &spec,
        |bed| config(bed, kv),
        |bed, host| Some(memcached_with(bed, host, more)),
        |bed, config| Balancer::start_with_heirs(bed, 0, config, &[]).unwrap(),
    )
}

/// The servers refuse `flush_all`, so a server that was unavailable may not serve after the upgrade
/// either.
// Promise: rejoin-empty
#[test]
fn upgrade_serves_no_unflushed_server() {
    let scene = with_heirs_by("", &["-F"]);
    let client = scene.client(true);
    let (server, keys) = rejoin::filled(&scene, &client);
    rejoin::order(&scene, server, "down");
    rejoin::overwrite(&scene, &client, &keys);
    rejoin::order(&scene, server, "up");
    let is_refused = |row: &serde_json::Value| row["state"] == "flushing" && !row["flush_error"].is_null();
    rejoin::row(&scene, server, is_refused);
    take_over(&scene);
    for key in &keys {
        let said = scene.ask(&client, &rejoin::get(*key));
        assert_ne!(said, rejoin::found(*key, "old"), "key {key}\n{}", scene.diagnosis());
    }
    // The new process sends `flush_all` itself.
    rejoin::row(&scene, server, is_refused);
}

/// While the queues are divided between the old and the new process, a write through one process
/// cannot invalidate values in the cache of the other process.
#[test]
fn upgrade_keeps_strict_reads_fresh() {
    let scene = with_heirs(&format!("{STRICT}{PATIENT}"));
    let key = |number: usize| Key { name: format!("hot{number}"), server: 0 };
    let load = Load::new((0..HOT_KEYS).map(key).collect(), READERS).asking_again_after(AGAIN);
    for Key { name, .. } in &load.keys {
        assert_eq!(scene.ask(&scene.client(true), &set(name, 0)), b"STORED\r\n");
    }
    let (history, reads) = thread::scope(|scope| {
        let (stop, load, scene) = (load.stop_later(), &load, &scene);
        let read = |number: usize| {
            let client = scene.client(number.is_multiple_of(2));
            scope.spawn(move || load.read(number, number..number + 1, &client))
        };
        let readers: Vec<_> = (0..READERS).map(read).collect();
        let write = |key: usize| {
            let ways = [true, false].map(|ipv4| Way::Through(scene.client(ipv4))).into();
            let pause = Duration::from_millis(10)..Duration::from_millis(40);
            scope.spawn(move || load.write(Writer { key, ways, writes: u32::MAX, deletes: 8, pause }))
        };
        let writers: Vec<_> = (0..HOT_KEYS).map(write).collect();
        until_copies(scene);
        take_over(scene);
        until_copies(scene);
        drop(stop);
        let writes = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        let reads: Vec<_> = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
        (History { writes }, reads)
    });
    for read in &reads {
        let age = history.age(read).unwrap_or_else(|| panic!("the value was never written, {read:?}"));
        assert!(age.when_sent.is_zero(), "value is older than an acknowledged write, {age:?}, {read:?}");
    }
    let writes = history.writes.iter().map(Vec::len).sum::<usize>();
    println!("{} reads, {writes} writes, {} reads repeated", reads.len(), load.lost(reads.len()));
}

/// Waits until the current process has served reads from its cache.
fn until_copies(scene: &Scene) {
    let hits = || {
        let counters = scene.balancer.counters().ok()?;
        (counters.over_threads(&["cache_hits"]) > 500).then_some(())
    };
    assert!(eventually(BOUND, hits).is_some(), "no cache hits\n{}", scene.diagnosis());
}

/// Upgrades to a new process, and waits until it has all queues and source ports.
fn take_over(scene: &Scene) {
    let done = upgrade(scene, &[]);
    assert_eq!(done.code, Some(0), "{}{}\n{}", done.out, done.err, scene.diagnosis());
    // The command returns before the new process knows that the upgrade is final.
    let is_alone = || (!lets_in(scene)).then_some(());
    assert!(
        eventually(BOUND, is_alone).is_some(),
        "another program can bind a source port of the new process"
    );
}

fn upgrade(scene: &Scene, binary: &[&str]) -> Ended {
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let args = [&["machine", "upgrade"], binary, &["--socket", socket.to_str().unwrap()]].concat();
    let ns = &scene.bed.balancers[0].ns;
    Process::to_end(ns, scene.bed.program().unwrap(), &args, 10 * BOUND).unwrap()
}

/// Returns `true` if another program of the same user can bind one of the balancer's source ports.
fn lets_in(scene: &Scene) -> bool {
    scene.bed.balancers[0].ns.run(|| {
        let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).unwrap();
        setsockopt(&socket, ReusePort, &true).unwrap();
        bind(socket.as_raw_fd(), &SockaddrStorage::from(std::net::SocketAddr::from(([0; 4], SOURCE_PORT))))
            .is_ok()
    })
}

fn all_answered(scene: &Scene, lists: &[Vec<usize>]) {
    let client = scene.client(true);
    for keys in lists.iter().chain(&plain()) {
        assert!(answer(&client, keys).is_some(), "no response to {keys:?}\n{}", scene.diagnosis());
    }
}

/// Returns three requests with one key each.
fn plain() -> [Vec<usize>; 3] {
    [vec![3], vec![11], vec![29]]
}

/// Repeats the request until the correct response arrives, and returns the number of repetitions.
/// Requests are lost while a queue has no socket.
fn answer(client: &QueryClient, keys: &[usize]) -> Option<usize> {
    let mut asked = 0;
    let answered = eventually(BOUND, || {
        asked += 1;
        client.ask_whole(&get("get", keys), SILENCE)
    })?;
    assert_eq!(answered.escape_ascii().to_string(), wanted(keys, None).escape_ascii().to_string());
    Some(asked - 1)
}

/// A client that sends one request after the other until it is stopped.
struct Asking {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    thread: std::thread::JoinHandle<Result<usize, Vec<usize>>>,
}

impl Asking {
    fn start(scene: &Scene, lists: &[Vec<usize>]) -> Self {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (until, answered) = (Arc::clone(&stop), Arc::clone(&count));
        let (client, plain) = (scene.client(true), plain());
        // Requests for several keys and requests for one key alternate.
        let mixed = lists.iter().zip(plain.iter().cycle()).flat_map(|(list, plain)| [list, plain]);
        let requests: Vec<Vec<usize>> = mixed.cloned().collect();
        let thread = std::thread::spawn(move || {
            let mut again = 0;
            for keys in requests.iter().cycle() {
                if until.load(Ordering::Relaxed) {
                    break;
                }
                again += answer(&client, keys).ok_or_else(|| keys.clone())?;
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Ok(again)
        });
        Self { stop, count, thread }
    }

    /// Waits until `more` additional requests have been answered.
    fn answered(&self, scene: &Scene, more: usize) {
        let wanted = self.count.load(Ordering::Relaxed) + more;
        let are = || (self.count.load(Ordering::Relaxed) >= wanted).then_some(());
        assert!(eventually(2 * BOUND, are).is_some(), "{}", scene.diagnosis());
    }

    fn stop(self, scene: &Scene) {
        self.stop.store(true, Ordering::Relaxed);
        let again = self.thread.join().unwrap();
        let again = again.unwrap_or_else(|keys| panic!("no response to {keys:?}\n{}", scene.diagnosis()));
        println!("repeated requests: {again}");
    }
}
