//! The scheduler and the epoll loop both start 10,000 TCP checks per second. Each check connects to
//! a different loopback address and resets the connection. The scheduler, the bare loop and the
//! listener are separate processes. The bare loop wakes up every millisecond and makes only the
//! system calls that a check needs: socket, connect, epoll, SO_ERROR, close with reset. The
//! scheduler and the bare loop are each measured for ten seconds, after a warm-up of two seconds.
//! The result of a measurement is the CPU time (user and system) per passed check. The result is
//! the median ratio of five alternating pairs of measurements (an argument sets a different number
//! of pairs). Budget: 1.5. A pair is repeated if either program made fewer than 9,900 checks per
//! second, or if its numbers of started and passed checks differ by more than 0.1 %, because the
//! machine was too busy for a valid result.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use config::{self, Check};
use health::{CheckHops, Dialer, Health, TargetKey, Watched};
use nix::errno::Errno;
use nix::libc::linger;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, connect, getsockopt, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeValLike;

const TARGETS: u32 = 10_000;
const WARM: Duration = Duration::from_secs(2);
const MEASURED: Duration = Duration::from_secs(10);
const BUDGET: f64 = 1.5;
/// The minimum rate of a valid measurement, in checks per second. Below this rate, the machine
/// limits the number of checks.
const LEAST_RATE: f64 = 9_900.0;
/// The accepted difference between started and passed checks, as a fraction of the passed checks.
const MOST_LOST: f64 = 0.001;
/// The maximum number of checks that the bare loop starts between two epoll calls. The scheduler
/// has the same maximum.
const STARTS: u64 = 32;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse().expect("the argument is not a number");
    match words[..] {
        ["listen"] => listen(),
        ["scheduler", port, count] => scheduler(number(port), number(count)),
        ["bare", port, count] => bare(number(port), number(count)),
        _ => compare(words.iter().find_map(|word| word.parse().ok()).unwrap_or(5)),
    }
}

fn compare(pairs: usize) {
    let mut listener = child(&["listen"]);
    let ports = line_of(&mut listener);
    println!(
        "health: {TARGETS} TCP checks per second, {} s each, µs of CPU time per check (user + system)",
        MEASURED.as_secs()
    );
    let mut ratios = Vec::new();
    for pair in 0..2 * pairs {
        if ratios.len() == pairs {
            break;
        }
        ratios.extend(one_pair(pair % 2 == 0, &ports));
    }
    let _ = listener.kill();
    let _ = listener.wait();
    if ratios.len() < pairs {
        println!(
            "health: no result, only {} of {pairs} pairs are valid because the machine is too busy",
            ratios.len()
        );
        return;
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    let verdict = if median <= BUDGET { "within" } else { "ABOVE" };
    println!("health: median ratio {median:.3} of {pairs} pairs, {verdict} the budget of {BUDGET}");
}

/// Returns the ratio of one pair, or `None` if the machine was too busy.
fn one_pair(scheduler_first: bool, ports: &str) -> Option<f64> {
    let (scheduler, bare) = if scheduler_first {
        let scheduler = run("scheduler", ports);
        (scheduler, run("bare", ports))
    } else {
        let bare = run("bare", ports);
        (run("scheduler", ports), bare)
    };
    let ratio = scheduler.each() / bare.each();
    let valid = scheduler.is_valid() && bare.is_valid();
    println!("  scheduler {scheduler}\n  bare      {bare}");
    println!("    ratio {ratio:.3}{}", if valid { "" } else { ", void" });
    valid.then_some(ratio)
}

/// The number of checks and the CPU time that were measured for one program.
#[derive(Clone, Copy)]
struct Used {
    started: f64,
    passed: f64,
    failed: f64,
    seconds: f64,
    user_us: f64,
    system_us: f64,
}

impl Used {
    fn each(self) -> f64 {
        (self.user_us + self.system_us) / self.passed
    }

    fn rate(self) -> f64 {
        self.passed / self.seconds
    }

    fn is_valid(self) -> bool {
        let lost = (self.started - self.passed).abs().max(self.failed);
        lost <= MOST_LOST * self.passed && self.rate() >= LEAST_RATE
    }
}

impl std::fmt::Display for Used {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (user, system) = (self.user_us / self.passed, self.system_us / self.passed);
        write!(f, "{:6.2} ({user:.2} + {system:.2}), ", self.each())?;
        write!(f, "{} started, {} passed, {} failed, ", self.started, self.passed, self.failed)?;
        write!(f, "{:.0}/s, {:.3} + {:.3} s", self.rate(), self.user_us / 1e6, self.system_us / 1e6)
    }
}

fn run(role: &str, ports: &str) -> Used {
    let arguments: Vec<&str> = std::iter::once(role).chain(ports.split(' ')).collect();
    let mut process = child(&arguments);
    let line = line_of(&mut process);
    let numbers: Vec<f64> =
        line.split(' ').map(|word| word.parse().expect("the measured program prints numbers")).collect();
    assert!(process.wait().expect("cannot wait for the measured program").success());
    let [started, passed, failed, seconds, user_us, system_us] = numbers[..] else {
        panic!("the measured program did not print six numbers")
    };
    Used { started, passed, failed, seconds, user_us, system_us }
}

fn child(arguments: &[&str]) -> Child {
    let program = std::env::current_exe().expect("this program has a path");
    Command::new(program).args(arguments).stdout(Stdio::piped()).spawn().expect("cannot start a process")
}

fn line_of(process: &mut Child) -> String {
    let output = process.stdout.as_mut().expect("piped");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).expect("cannot read a line");
    line.trim().to_owned()
}

/// Accepts TCP connections on one port. Sends the number of accepted connections in response to a
/// datagram on a UDP port.
fn listen() {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("cannot bind a port");
    // The default backlog of 128 connections is full after 13 ms, which is too short on a busy
    // machine.
    nix::sys::socket::listen(&listener, Backlog::MAXCONN).expect("cannot set the backlog");
    let counter = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("cannot bind a port");
    let port = |address: std::io::Result<SocketAddr>| address.expect("the socket has an address").port();
    println!("{} {}", port(listener.local_addr()), port(counter.local_addr()));
    let taken = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&taken);
    std::thread::spawn(move || {
        while let Ok((_, asker)) = counter.recv_from(&mut [0]) {
            // The ordering `Relaxed` is enough, because the counter synchronizes no other data.
            let _ = counter.send_to(&counted.load(Ordering::Relaxed).to_be_bytes(), asker);
        }
    });
    loop {
        if listener.accept().is_ok() {
            taken.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns the number of connections that the listener has accepted so far.
fn taken(count: u16) -> u64 {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("cannot bind a port");
    socket.connect((Ipv4Addr::LOCALHOST, count)).expect("cannot connect to the listener");
    socket.send(&[0]).expect("sent");
    let mut answer = [0; 8];
    socket.recv(&mut answer).expect("cannot read the count");
    u64::from_be_bytes(answer)
}

/// Totals since the start of a program: started, passed and failed checks, elapsed time, and user
/// and system time in µs.
struct Mark {
    counts: [u64; 3],
    at: Instant,
    used: [i64; 2],
}

/// Prints the totals of the measurement without the warm-up.
fn report(from: &Mark, to: &Mark) {
    let [started, passed, failed] = [0, 1, 2].map(|n| to.counts[n] - from.counts[n]);
    let [user, system] = [0, 1].map(|n| to.used[n] - from.used[n]);
    println!("{started} {passed} {failed} {} {user} {system}", (to.at - from.at).as_secs_f64());
}

fn used() -> [i64; 2] {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("getrusage of this process cannot fail");
    [usage.user_time().num_microseconds(), usage.system_time().num_microseconds()]
}

/// Returns the loopback address of target `n`, in 127.0.0.0/8.
fn address(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + n)
}

fn check(port: u16) -> Arc<Check> {
    let text = format!(
        "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n[machine.lb1]\naddresses = [\"192.0.2.1\"]\n\
         interfaces = [\"eth0\"]\n[check.t]\ntcp = {{ port = {port} }}\ninterval = \"1s\"\n[pool.p]\n\
         encapsulation = \"gre\"\nchecks = [\"t\"]\nbackends = [{{ name = \"b\", address = \"198.18.0.1\" }}]\n"
    );
    let (config, _) = config::parse(&text, Path::new("bench.toml"), &|_| Ok("1".repeat(32)))
        .expect("the configuration is valid");
    Arc::clone(&config.pools()[0].members[0].checks[0])
}

fn scheduler(port: u16, count: u16) {
    let check = check(port);
    let (health, mut events) =
        Health::start(|_, _| Dialer::Direct, CheckHops::default()).expect("cannot start a thread");
    let target = |n: u32| Watched {
        key: TargetKey { address: IpAddr::V4(address(n)), check: Arc::clone(&check), through: None },
        slot: None,
        backend: format!("b{n}").into(),
        pools: vec![format!("p{}", n % 200).into()],
        serving: false,
    };
    health.watch((0..TARGETS).map(target).collect());
    let counts = || {
        // The scheduler builds a report in parts while checks continue. The benchmark therefore
        // reads the number of accepted connections before and after the report, and compares the
        // mean with the report.
        let before = taken(count);
        let reports = health.report();
        let started = before.midpoint(taken(count));
        let failed: u64 = reports.iter().map(|report| report.failures).sum();
        let ended: u64 = reports.iter().map(|report| report.attempts).sum();
        [started, ended - failed, failed]
    };
    // The first report precedes the first reading of the CPU time, and the second report follows
    // the last reading. The cost of the reports is therefore not measured.
    sleep(WARM);
    while events.try_recv().is_some() {}
    let from = Mark { counts: counts(), at: Instant::now(), used: used() };
    sleep(MEASURED);
    let (at, used) = (Instant::now(), used());
    report(&from, &Mark { counts: counts(), at, used });
}

fn bare(port: u16, count: u16) {
    let mut bare = Bare::new(port);
    let begin = Instant::now();
    bare.run_until(begin, WARM);
    let from = bare.mark(count);
    bare.run_until(begin, WARM + MEASURED);
    report(&from, &bare.mark(count));
}

struct Bare {
    port: u16,
    epoll: Epoll,
    events: Vec<EpollEvent>,
    /// The running checks. The epoll user data of a check is its index in this vector.
    places: Vec<Option<OwnedFd>>,
    free: Vec<usize>,
    begun: u64,
    passed: u64,
    failed: u64,
}

impl Bare {
    fn new(port: u16) -> Self {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll");
        let events = vec![EpollEvent::empty(); 1024];
        Self { port, epoll, events, places: Vec::new(), free: Vec::new(), begun: 0, passed: 0, failed: 0 }
    }

    fn mark(&self, count: u16) -> Mark {
        let used = used();
        Mark { counts: [taken(count), self.passed, self.failed], at: Instant::now(), used }
    }

    fn run_until(&mut self, begin: Instant, end: Duration) {
        let a_millisecond = u64::from(TARGETS) / 1_000;
        loop {
            let elapsed = begin.elapsed();
            if elapsed >= end {
                return;
            }
            let due =
                u64::try_from(elapsed.as_millis()).expect("the measurement takes seconds") * a_millisecond;
            let until = due.min(self.begun + STARTS);
            while self.begun < until {
                self.begin();
            }
            self.finish_ready(begin, until == due);
        }
    }

    /// Finishes all checks that are ready. If `rest` is `true`, the function first waits until a
    /// check is ready or the next millisecond begins.
    fn finish_ready(&mut self, begin: Instant, rest: bool) {
        let mut timeout = EpollTimeout::ZERO;
        loop {
            let ready = self.epoll.wait(&mut self.events, timeout).expect("epoll_wait");
            for at in 0..ready {
                self.finish(usize::try_from(self.events[at].data()).expect("an index fits usize"));
            }
            if ready == self.events.len() {
                timeout = EpollTimeout::ZERO;
            } else if rest && timeout == EpollTimeout::ZERO && self.is_early(begin) {
                timeout = EpollTimeout::from(1u8);
            } else {
                return;
            }
        }
    }

    /// Returns `true` if no check is due yet.
    fn is_early(&self, begin: Instant) -> bool {
        begin.elapsed().as_millis() * u128::from(TARGETS / 1_000) <= u128::from(self.begun)
    }

    fn begin(&mut self) {
        let n = u32::try_from(self.begun % u64::from(TARGETS))
            .expect("the number is below the number of targets");
        self.begun += 1;
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(begin_check(&self.epoll, n, self.port, place as u64));
    }

    fn finish(&mut self, place: usize) {
        let Some(socket) = self.places[place].take() else { return };
        match getsockopt(&socket, sockopt::SocketError) {
            Ok(0) => self.passed += 1,
            _ => self.failed += 1,
        }
        drop(socket);
        self.free.push(place);
    }
}

fn begin_check(epoll: &Epoll, n: u32, port: u16, place: u64) -> OwnedFd {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket =
        socket(AddressFamily::Inet, SockType::Stream, flags, None).expect("cannot configure a socket");
    setsockopt(&socket, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 }).expect("linger");
    let SocketAddr::V4(peer) = SocketAddr::new(IpAddr::V4(address(n)), port) else {
        unreachable!("the address is IPv4")
    };
    match connect(socket.as_raw_fd(), &SockaddrIn::from(peer)) {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(error) => panic!("connect: {error}"),
    }
    let wanted = EpollFlags::EPOLLOUT | EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
    epoll.add(socket.as_fd(), EpollEvent::new(wanted, place)).expect("epoll_ctl");
    socket
}
