//! Short TCP connections through a peer: how many a second, how long one takes.
//!
//! In: a running peer. Out: [`Requests`]. A request is a new connection, a line sent, a line answered, and its end, which the
//! backend begins; its time runs from before the connection to that end. Times are those of one client alone; the number a
//! second is that of many at once.
//! Client, router and backends share the generator's processor, so `direct`, the number without any balancer, says how many
//! there could be at most. What the device sends is received there too, and not on top of the device.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{Backlog, listen, setsockopt, sockopt::ReceiveTimeout};
use nix::sys::time::TimeVal;
use testbed::{Decap, Namespace, eventually, mac_of};

use crate::forwarders::REQUEST_PORT;
use crate::processors::{GENERATOR_CPU, spread_to};
use crate::stage::{NOBODY, Running, START_BOUND, Stage};
use crate::statistics::{percentile, rate};

/// What one turn of a peer gave.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requests {
    /// A second.
    pub(crate) answered: f64,
    /// A second without a balancer, in the same round.
    pub(crate) direct: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// Requests that got no answer, of both loads.
    pub(crate) failed: u64,
    /// How many processors the device took.
    pub(crate) device: f64,
}

impl Requests {
    /// How many times what was taken could have been offered.
    pub(crate) fn excess(self) -> f64 {
        self.direct / self.answered
    }

    /// Processor time of the device for a request, in microseconds.
    pub(crate) fn micros_each(self) -> f64 {
        self.device / self.answered * 1e6
    }
}

/// Backends that answer, and the way to them and back.
pub(crate) struct Scene {
    _decaps: Vec<Decap>,
    _servers: Vec<Server>,
}

impl Scene {
    /// Sets it up. What the backends answer from their own address goes back by the device under test, as NAT needs it; what
    /// they answer from a VIP goes straight to the client.
    pub(crate) fn build(stage: &Stage) -> Result<Self> {
        stage
            .bed
            .router
            .ip("rule add from 198.18.1.0/24 lookup 100\nroute add default via 192.0.2.1 table 100")?;
        for ns in [&stage.bed.client.ns, &stage.host().ns] {
            ns.sysctl(MANY_CONNECTIONS)?;
        }
        let servers = stage.bed.backends.iter().map(|backend| Server::start(&backend.ns));
        Ok(Self { _decaps: Decap::start_all(&stage.bed)?, _servers: servers.collect::<Result<_>>()? })
    }

    /// Opens the way of requests, or shuts it for packets that go nowhere.
    pub(crate) fn open(&self, stage: &Stage, open: bool) -> Result<()> {
        let port = stage.port();
        spread_to(port, open.then_some(GENERATOR_CPU))?;
        stage.lead_to(if open { mac_of(port.ns, port.name)? } else { NOBODY })
    }

    /// Requests a second without a balancer: the router spreads them over the backends.
    pub(crate) fn direct(&self, stage: &Stage) -> Result<f64> {
        let vip = stage.bed.vip(true, REQUEST_PORT).ip();
        let hops = stage.bed.backends.iter().map(|b| format!(" nexthop via {} dev {}", b.v4, b.port));
        stage.bed.router.ip(&format!("route replace {vip}/32{}", hops.collect::<String>()))?;
        wait_for_answer(stage)?;
        let many = Clients::start(stage, MANY).during(WINDOW)?;
        stage.bed.router.ip(&format!("route replace {vip}/32 via 192.0.2.1"))?;
        Ok(many.rate())
    }

    /// One turn of a peer.
    pub(crate) fn measure(&self, stage: &Stage, running: &Running<'_>, direct: f64) -> Result<Requests> {
        wait_for_answer(stage)?;
        let alone = Clients::start(stage, 1).during(ALONE)?;
        let clients = Clients::start(stage, MANY);
        sleep(WARM_UP);
        let (start, before) = (Instant::now(), running.time_run()?);
        let many = clients.during(WINDOW)?;
        let device = running.time_run()?.saturating_sub(before).div_duration_f64(start.elapsed());
        Ok(Requests {
            answered: many.rate(),
            direct,
            p50: percentile(&alone.times, 500),
            p99: percentile(&alone.times, 990),
            failed: alone.failed + many.failed,
            device,
        })
    }
}

fn wait_for_answer(stage: &Stage) -> Result<()> {
    let vip = stage.bed.vip(true, REQUEST_PORT);
    let client = stage.bed.client.ns.clone();
    let answered = eventually(START_BOUND, || client.run(move || ask(vip)).ok());
    answered.map(drop).with_context(|| format!("no answer from {vip}"))
}

/// Clients that ask again as soon as they are answered.
struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Seen>>,
}

/// Requests of one client: when each ended and how long it took.
#[derive(Default)]
struct Seen {
    answered: Vec<(Instant, Duration)>,
    failed: Vec<Instant>,
}

/// Requests of all clients that ended in a window.
struct Window {
    /// Sorted.
    times: Vec<Duration>,
    failed: u64,
    length: Duration,
}

impl Window {
    fn rate(&self) -> f64 {
        rate(self.times.len() as u64, self.length)
    }
}

impl Clients {
    fn start(stage: &Stage, count: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (ns, vip) = (&stage.bed.client.ns, stage.bed.vip(true, REQUEST_PORT));
        let threads = (0..count).map(|_| {
            let stop = Arc::clone(&stop);
            ns.spawn(move || {
                let mut seen = Seen::default();
                while !stop.load(Ordering::Relaxed) {
                    match ask(vip) {
                        Ok(time) => seen.answered.push((Instant::now(), time)),
                        Err(_) => seen.failed.push(Instant::now()),
                    }
                }
                seen
            })
        });
        let threads = threads.collect();
        Self { stop, threads }
    }

    /// What ended from now on for so long; then they end.
    fn during(self, length: Duration) -> Result<Window> {
        let start = Instant::now();
        sleep(length);
        let end = Instant::now();
        self.stop.store(true, Ordering::Relaxed);
        let mut window = Window { times: Vec::new(), failed: 0, length: end - start };
        for thread in self.threads {
            let seen = thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))?;
            window
                .times
                .extend(seen.answered.iter().filter(|(at, _)| (start..end).contains(at)).map(|row| row.1));
            window.failed += seen.failed.iter().filter(|at| (start..end).contains(at)).count() as u64;
        }
        window.times.sort_unstable();
        ensure!(!window.times.is_empty(), "no request was answered in {length:?}");
        Ok(window)
    }
}

/// One request; how long it took.
fn ask(server: SocketAddr) -> std::io::Result<Duration> {
    let start = Instant::now();
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(REQUEST)?;
    let mut answer = [0; 256];
    let mut length = 0;
    while let n @ 1.. = stream.read(&mut answer[length..])? {
        length += n;
    }
    if &answer[..length] == ANSWER { Ok(start.elapsed()) } else { Err(ErrorKind::InvalidData.into()) }
}

/// A backend's server: it answers each connection once, and ends it.
struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    fn start(ns: &Namespace) -> Result<Self> {
        let listener = ns.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, REQUEST_PORT)))?;
        listen(&listener, Backlog::new(4_096)?)?;
        // It is `accept`'s too.
        setsockopt(&listener, ReceiveTimeout, &TimeVal::new(0, 100_000))?;
        let stop = Arc::new(AtomicBool::new(false));
        let listener = Arc::new(listener);
        let threads = (0..SERVERS).map(|_| {
            let (listener, stop) = (Arc::clone(&listener), Arc::clone(&stop));
            ns.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // A client that does not go through with it counts its own failure.
                    drop(listener.accept().and_then(|(stream, _)| answer(stream)));
                }
            })
        });
        let threads = threads.collect();
        Ok(Self { stop, threads })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = [0; REQUEST.len()];
    stream.read_exact(&mut request)?;
    stream.write_all(ANSWER)
}

const REQUEST: &[u8] = b"GET / HTTP/1.0\r\nHost: www.example\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nok\n";
/// For a connection, and for each part of an answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Clients at once.
const MANY: usize = 48;
/// Threads of a backend's server.
const SERVERS: usize = 16;
const WARM_UP: Duration = Duration::from_millis(500);
const WINDOW: Duration = Duration::from_secs(2);
const ALONE: Duration = Duration::from_secs(1);
/// A port is free again at once after its connection, and there are many: short connections would end for want of ports.
const MANY_CONNECTIONS: &[(&str, &str)] =
    &[("ipv4/tcp_tw_reuse", "1"), ("ipv4/ip_local_port_range", "1024 65535")];
