//! A test of upgrades under load, with many established connections and with new connections at a
//! constant rate. No connection must break.
//!
//! With `SLUICEGATE_LONG=1` the test has 10,000 established connections and opens 1,000 new
//! connections per second. Without this variable, both numbers are 20 times smaller. The test
//! prints how long a queue had no socket. Established connections stay in the accept queue of their
//! backend, so each needs one descriptor and no thread. The kernel of the right backend
//! acknowledges their packets. The kernels of other backends would reset the connections.

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

/// Connections that stay open and send one byte about every second.
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

    /// Accepts all connections at the end of the test, and checks that each has received all bytes
    /// that were sent.
    fn kept(self, scene: &Scene) {
        self.stop.store(true, Ordering::Relaxed);
        let mut clients = self.clients.join().unwrap();
        for Kept { stream, .. } in &clients {
            let _ = stream.shutdown(Shutdown::Write); // broken connections are counted below
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

/// Sends one byte on each connection about once a second, until `until` is set.
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
            // paces the bytes
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    clients
}

/// Accepts all waiting connections, and sends each client the number of bytes that the client has
/// sent. Returns the number of connections.
fn accept_all(listener: &TcpListener) -> usize {
    let mut accepted = 0;
    loop {
        match listener.accept() {
            Ok((mut stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(BOUND)).unwrap();
                let mut bytes = Vec::new();
                let _ = stream.read_to_end(&mut bytes); // the client compares the number of bytes
                let _ = stream.write_all(&(bytes.len() as u64).to_le_bytes());
                accepted += 1;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return accepted,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Threads that open new connections at a constant rate, even if earlier connections are not
/// answered yet.
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
        println!("{made} new connections in {took:.1} s, {} broken", broken.len());
        assert!(broken.is_empty(), "{broken:?}\n{}", scene.diagnosis());
    }
}

/// Sends a request on a new connection. The backend closes the connection first, so the client's
/// port can be reused immediately.
fn ask(server: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&server, BOUND)?;
    stream.set_read_timeout(Some(BOUND))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: bed\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer.starts_with("HTTP/1.1 200 ") { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
}

#[test]
fn upgrades_under_load_break_no_connection() {
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
                "upgrade to {what} left queues without a socket for {} ms and transferred {} flow entries",
                upgraded["handed_over_ms"], upgraded["flow_records"]
            );
            assert!(upgraded["flow_records"].as_u64().unwrap() >= many as u64 / 4, "{upgraded}");
        }
        let more = || (arrivals.next.load(Ordering::Relaxed) > before + 3 * a_second).then_some(());
        assert!(eventually(BOUND, more).is_some(), "{}", scene.diagnosis());
        println!("longest outage of a flow during the upgrade to {what} was {:?}", pulse.longest());
    }
    arrivals.all_answered(scene);
    established.kept(scene);
    assert_eq!(scene.balancer.counters().unwrap().drops(), [], "{}", scene.diagnosis());
}

/// The TCP port of the established connections.
const PORT: u16 = 8080;
/// The number of client threads: the number of connections that may wait for a SYN retransmission
/// while a queue has no socket, plus a margin.
const CLIENTS: usize = 160;
