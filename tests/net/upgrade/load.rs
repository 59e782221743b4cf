//! Hand-overs under the load that is promised: new connections at a steady rate, and many established ones, none of which breaks.
//!
//! In: how many, and how many a second. Out: which broke, and how long a queue was deaf, printed.
//! `SLUICEGATE_LONG=1`: 10,000 established connections and 1,000 new ones a second; else a twentieth of each.
//! An established connection waits at its backend's listener, so that it costs the test one descriptor and no thread: the kernel answers
//! what comes for it there, and resets what comes to another backend.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::{Backlog, listen};
use testbed::{Bed, BedSpec, LbConfig, Service, eventually};

use super::{Line, Pulse};
use crate::scene::{BOUND, Scene, count};

/// Connections that stay open, each with a byte at times.
struct Established {
    listeners: Vec<TcpListener>,
    stop: Arc<AtomicBool>,
    clients: JoinHandle<Vec<Kept>>,
}

struct Kept {
    stream: TcpStream,
    sent: u64,
    broke: Option<String>,
}

impl Established {
    fn open(bed: &Bed, many: usize) -> Self {
        let bind = || TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap();
        let listeners: Vec<_> = bed.backends.iter().map(|host| host.ns.run(bind)).collect();
        for listener in &listeners {
            listener.set_nonblocking(true).unwrap();
            listen(listener, Backlog::new(4_096).unwrap()).unwrap();
        }
        let vip = bed.vip(true, PORT);
        let open = move || {
            let connect = |_| Kept { stream: connect(vip), sent: 0, broke: None };
            (0..many).map(connect).collect::<Vec<_>>()
        };
        let (clients, stop) = (bed.client.ns.run(open), Arc::new(AtomicBool::new(false)));
        let until = Arc::clone(&stop);
        let clients = std::thread::spawn(move || beat(clients, &until));
        Self { listeners, stop, clients }
    }

    /// Each is accepted at last, and has all that was sent to it.
    fn kept(self, scene: &Scene) {
        self.stop.store(true, Ordering::Relaxed);
        let mut clients = self.clients.join().unwrap();
        for Kept { stream, .. } in &clients {
            let _ = stream.shutdown(Shutdown::Write); // one that broke is counted below
        }
        let threads: Vec<_> =
            self.listeners.into_iter().map(|all| std::thread::spawn(move || accept_all(&all))).collect();
        let accepted: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        for kept in clients.iter_mut().filter(|kept| kept.broke.is_none()) {
            let mut seen = [0; 8];
            let read = kept.stream.read_exact(&mut seen).map(|()| u64::from_le_bytes(seen));
            kept.broke = match read {
                Ok(seen) if seen == kept.sent => None,
                Ok(seen) => Some(format!("{seen} bytes of {} came", kept.sent)),
                Err(error) => Some(error.to_string()),
            };
        }
        let broken: Vec<_> = clients.iter().filter_map(|kept| kept.broke.as_deref()).collect();
        println!("established: {accepted}, broken: {}", broken.len());
        assert!(broken.is_empty(), "{broken:?}\n{}", scene.diagnosis());
        assert_eq!(accepted, clients.len());
    }
}

fn connect(server: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&server, BOUND).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    stream
}

/// A byte on each, about once a second.
fn beat(mut clients: Vec<Kept>, until: &AtomicBool) -> Vec<Kept> {
    let at_once = clients.len().div_ceil(100);
    while !until.load(Ordering::Relaxed) {
        for some in clients.chunks_mut(at_once) {
            for kept in some.iter_mut().filter(|kept| kept.broke.is_none()) {
                match kept.stream.write_all(b"x") {
                    Ok(()) => kept.sent += 1,
                    Err(error) => kept.broke = Some(error.to_string()),
                }
            }
            std::thread::sleep(Duration::from_millis(10)); // a pace: nothing is waited for
        }
    }
    clients
}

/// Answers every connection that waits with the number of its bytes; gives how many waited.
fn accept_all(listener: &TcpListener) -> usize {
    let mut accepted = 0;
    loop {
        match listener.accept() {
            Ok((mut stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(BOUND)).unwrap();
                let mut bytes = Vec::new();
                let _ = stream.read_to_end(&mut bytes); // its client says what is missing
                let _ = stream.write_all(&(bytes.len() as u64).to_le_bytes());
                accepted += 1;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return accepted,
            Err(error) => panic!("{error}"),
        }
    }
}

/// New connections at a steady rate, whether or not earlier ones have been answered.
struct Arrivals {
    stop: Arc<AtomicBool>,
    next: Arc<AtomicUsize>,
    since: Instant,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Arrivals {
    fn start(bed: &Bed, a_second: usize) -> Self {
        let (stop, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (since, vip) = (Instant::now(), bed.vip(true, Bed::HTTP_PORT));
        let threads = (0..CLIENTS).map(|_| {
            let (stop, next) = (Arc::clone(&stop), Arc::clone(&next));
            bed.client.ns.spawn(move || {
                let mut broken = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let due = since
                        + Duration::from_secs(1) * u32::try_from(number).unwrap()
                            / u32::try_from(a_second).unwrap();
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    broken.extend(ask(vip).err().map(|error| error.to_string()));
                }
                broken
            })
        });
        Self { threads: threads.collect(), stop, next, since }
    }

    fn all_answered(self, scene: &Scene) {
        self.stop.store(true, Ordering::Relaxed);
        let broken: Vec<String> =
            self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        let (made, took) = (self.next.load(Ordering::Relaxed), self.since.elapsed().as_secs_f64());
        println!("new connections: {made} in {took:.1} s, broken: {}", broken.len());
        assert!(broken.is_empty(), "{broken:?}\n{}", scene.diagnosis());
    }
}

/// A request on a fresh connection, which its backend closes first: no port of the client's stays taken.
fn ask(server: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&server, BOUND)?;
    stream.set_read_timeout(Some(BOUND))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: bed\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer.starts_with("HTTP/1.1 200 ") { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
}

#[test]
fn under_load_nothing_breaks_twice_in_a_row_back_and_by_a_program_that_fails() {
    let (many, a_second) = (count(500, 10_000), count(50, 1_000));
    let service = Service { ports: PORT.to_string(), protocol: "tcp", hash: None };
    let with_port = |bed: &Bed| {
        let mut config = LbConfig::new(bed);
        config.services.push(service);
        config
    };
    let line = Line::start(&BedSpec { queues: 2, ..BedSpec::default() }, &[], with_port);
    let (scene, bed) = (&line.scene, &line.scene.bed);
    let own = bed.program().unwrap();
    let other = bed.dir().join("another-name");
    std::fs::copy(&own, &other).unwrap();
    let (established, arrivals) = (Established::open(bed, many), Arrivals::start(bed, a_second));
    let fails = line.script("fails", "#!/bin/sh\nexit 3\n");
    for (what, binary) in [("new", &other), ("newer", &other), ("fails", &fails), ("back", &own)] {
        let pulse = Pulse::start(bed, 8);
        let before = arrivals.next.load(Ordering::Relaxed);
        if what == "fails" {
            let said = line.refused(binary);
            assert!(said.contains("exit code 3"), "{said}");
        } else {
            let upgraded = line.upgrade(Some(binary));
            println!(
                "{what}: queues deaf for {} ms, {} records",
                upgraded["handed_over_ms"], upgraded["flow_records"]
            );
            assert!(upgraded["flow_records"].as_u64().unwrap() >= many as u64 / 4, "{upgraded}");
        }
        let more = || (arrivals.next.load(Ordering::Relaxed) > before + 3 * a_second).then_some(());
        assert!(eventually(BOUND, more).is_some(), "{}", scene.diagnosis());
        println!("{what}: longest silence of a flow {:?}", pulse.longest());
    }
    arrivals.all_answered(scene);
    established.kept(scene);
    assert_eq!(scene.balancer.counters().unwrap().drops(), [], "{}", scene.diagnosis());
}

/// Of the established ones.
const PORT: u16 = 8080;
/// As many as can wait for the second try of a SYN that came to a deaf queue, and some more.
const CLIENTS: usize = 160;
