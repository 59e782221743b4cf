//! Measures short TCP connections through a forwarder: the number of connections per second, and
//! the duration of a connection.
//!
//! A request opens a connection, sends a line, receives a line, and waits until the backend closes
//! the connection. The duration of a request includes all these steps. Durations are measured with
//! a single client, and rates with many clients. Client, router and backends share the processor of
//! the load generator. The rate without a balancer (`direct`) is therefore an upper limit for all
//! forwarders. The processor of the load generator also receives the packets that the device under
//! test sends.

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

/// The result of one request measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requests {
    /// The number of answered requests per second.
    pub(crate) answered: f64,
    /// The number of requests per second without a balancer, measured in the same round.
    pub(crate) direct: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// The number of failed requests, both with a single client and with many clients.
    pub(crate) failed: u64,
    /// The number of processors that the device under test used.
    pub(crate) device: f64,
}

impl Requests {
    /// Returns the request rate without a balancer, divided by the rate of answered requests.
    pub(crate) fn excess(self) -> f64 {
        self.direct / self.answered
    }

    /// Returns the processor time that the device used per request, in microseconds.
    pub(crate) fn micros_each(self) -> f64 {
        self.device / self.answered * 1e6
    }
}

/// The running servers on the backends, and the routes in both directions.
pub(crate) struct Scene {
    _decaps: Vec<Decap>,
    _servers: Vec<Server>,
}

impl Scene {
    /// Starts the servers and sets the routes. Replies from a backend's own address must pass
    /// through the device under test, as NAT requires. Replies from a VIP go directly to the
    /// client.
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

    /// Prepares the testbed for requests if `open` is `true`, and for the packet load otherwise.
    /// During the packet load, the device under test sends its packets to a MAC address that no
    /// device uses.
    pub(crate) fn open(&self, stage: &Stage, open: bool) -> Result<()> {
        let port = stage.port();
        spread_to(port, open.then_some(GENERATOR_CPU))?;
        stage.lead_to(if open { mac_of(port.ns, port.name)? } else { NOBODY })
    }

    /// Measures the requests per second without a balancer. The router distributes the requests to
    /// the backends.
    pub(crate) fn direct(&self, stage: &Stage) -> Result<f64> {
        let vip = stage.bed.vip(true, REQUEST_PORT).ip();
        let hops = stage.bed.backends.iter().map(|b| format!(" nexthop via {} dev {}", b.v4, b.port));
        stage.bed.router.ip(&format!("route replace {vip}/32{}", hops.collect::<String>()))?;
        wait_for_answer(stage)?;
        let many = Clients::start(stage, MANY).during(WINDOW)?;
        stage.bed.router.ip(&format!("route replace {vip}/32 via 192.0.2.1"))?;
        Ok(many.rate())
    }

    /// Measures one forwarder once.
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
    answered.map(drop).with_context(|| format!("no response from {vip}"))
}

/// Clients that send their next request as soon as the previous request is answered.
struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Seen>>,
}

/// All requests of one client, each with the time at which it ended and its duration.
#[derive(Default)]
struct Seen {
    answered: Vec<(Instant, Duration)>,
    failed: Vec<Instant>,
}

/// The requests of all clients that ended within a time window.
struct Window {
    /// The durations of the requests, sorted.
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

    /// Waits for `length`, then stops the clients. Returns the requests that ended in this time.
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
        ensure!(!window.times.is_empty(), "no request was answered within {length:?}");
        Ok(window)
    }
}

/// Sends one request and returns its duration.
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

/// The server on a backend, which answers each connection once and then closes the connection.
struct Server {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    fn start(ns: &Namespace) -> Result<Self> {
        let listener = ns.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, REQUEST_PORT)))?;
        listen(&listener, Backlog::new(4_096)?)?;
        // The receive timeout of the listener also applies to `accept`.
        setsockopt(&listener, ReceiveTimeout, &TimeVal::new(0, 100_000))?;
        let stop = Arc::new(AtomicBool::new(false));
        let listener = Arc::new(listener);
        let threads = (0..SERVERS).map(|_| {
            let (listener, stop) = (Arc::clone(&listener), Arc::clone(&stop));
            ns.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // Errors are ignored here, because the client counts failed requests.
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
/// The timeout for connecting, and for each read of a response.
const PATIENCE: Duration = Duration::from_secs(3);
/// The number of clients in the measurement of rates.
const MANY: usize = 48;
/// The number of threads of each server.
const SERVERS: usize = 16;
const WARM_UP: Duration = Duration::from_millis(500);
const WINDOW: Duration = Duration::from_secs(2);
const ALONE: Duration = Duration::from_secs(1);
/// Kernel settings that allow many short connections. Ports are reused as soon as their connection
/// has ended, and the range of ports is larger. With the default settings, connections would fail
/// because no port is free.
const MANY_CONNECTIONS: &[(&str, &str)] =
    &[("ipv4/tcp_tw_reuse", "1"), ("ipv4/ip_local_port_range", "1024 65535")];
