//! The health scheduler beside a bare epoll loop that does the same.
//!
//! 10,000 TCP checks a second, each a connection to an address of its own on the loopback, opened and reset. Contenders and
//! the listener are processes of their own; each contender warms up for two seconds and is measured for ten: user and system
//! time of the process by getrusage, for each check that it made. They take turns; the verdict is the median of the ratios of
//! five pairs. Budget: 1.5. A number as argument is another count of pairs.
//! The bare loop wakes each millisecond and does what a check needs and no more: socket, connect, epoll, SO_ERROR, a reset.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use control_plane::config::{self, Check};
use control_plane::health::Dialer;
use control_plane::health::engine::{Health, TargetKey, Watched};
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

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["listen"] => listen(),
        ["scheduler", port] => scheduler(port.parse().expect("a port")),
        ["bare", port] => bare(port.parse().expect("a port")),
        _ => compare(words.iter().find_map(|word| word.parse().ok()).unwrap_or(5)),
    }
}

fn compare(pairs: usize) {
    let mut listener = child(&["listen"]);
    let port = line_of(&mut listener);
    println!(
        "health: {TARGETS} TCP checks a second, {} s each, µs of processor time a check (user + system)",
        MEASURED.as_secs()
    );
    let mut ratios: Vec<f64> = (0..pairs)
        .map(|pair| {
            let [scheduler, bare] = if pair % 2 == 0 {
                [run("scheduler", &port), run("bare", &port)]
            } else {
                let bare = run("bare", &port);
                [run("scheduler", &port), bare]
            };
            println!(
                "  scheduler {scheduler}\n  bare      {bare}\n    ratio {:.3}",
                scheduler.each() / bare.each()
            );
            scheduler.each() / bare.each()
        })
        .collect();
    ratios.sort_unstable_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    let verdict = if median <= BUDGET { "within" } else { "ABOVE" };
    println!("health: median ratio {median:.3}, {verdict} the budget of {BUDGET}");
    let _ = listener.kill();
    let _ = listener.wait();
}

/// What a contender used while it was measured.
#[derive(Clone, Copy)]
struct Used {
    checks: f64,
    user_us: f64,
    system_us: f64,
}

impl Used {
    fn each(self) -> f64 {
        (self.user_us + self.system_us) / self.checks
    }
}

impl std::fmt::Display for Used {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (user, system) = (self.user_us / self.checks, self.system_us / self.checks);
        write!(f, "{:6.2} ({user:.2} + {system:.2}), {} checks", self.each(), self.checks)
    }
}

fn run(role: &str, port: &str) -> Used {
    let mut process = child(&[role, port]);
    let line = line_of(&mut process);
    let numbers: Vec<f64> = line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    assert!(process.wait().expect("it ends").success());
    Used { checks: numbers[0], user_us: numbers[1], system_us: numbers[2] }
}

fn child(arguments: &[&str]) -> Child {
    let program = std::env::current_exe().expect("a path");
    Command::new(program).args(arguments).stdout(Stdio::piped()).spawn().expect("a process")
}

fn line_of(process: &mut Child) -> String {
    let output = process.stdout.as_mut().expect("piped");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).expect("a line");
    line.trim().to_owned()
}

fn listen() {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
    // The library's backlog of 128 is 13 ms of checks: a busy machine would lose some.
    nix::sys::socket::listen(&listener, Backlog::MAXCONN).expect("a longer backlog");
    println!("{}", listener.local_addr().expect("bound").port());
    loop {
        drop(listener.accept());
    }
}

/// Prints what was used between the ends of the warm-up and of the measured time; `checks` says how many were made so far.
fn report(started: (u64, [i64; 2]), ended: (u64, [i64; 2])) {
    let [user, system] = [0, 1].map(|n| ended.1[n] - started.1[n]);
    println!("{} {user} {system}", ended.0 - started.0);
}

fn used() -> [i64; 2] {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("it cannot fail");
    [usage.user_time().num_microseconds(), usage.system_time().num_microseconds()]
}

/// A target's address, one of 127.0.0.0/8.
fn address(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + n)
}

fn check(port: u16) -> Arc<Check> {
    let text = format!(
        "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n[machine.lb1]\naddresses = [\"192.0.2.1\"]\n\
         interfaces = [\"eth0\"]\n[check.t]\ntcp = {{ port = {port} }}\ninterval = \"1s\"\n[pool.p]\n\
         encapsulation = \"gre\"\nchecks = [\"t\"]\nbackends = [{{ name = \"b\", address = \"198.18.0.1\" }}]\n"
    );
    let (config, _) = config::parse(&text, Path::new("bench.toml"), &|_| Ok("0".repeat(32))).expect("valid");
    Arc::clone(&config.pools()[0].members()[0].checks()[0])
}

fn scheduler(port: u16) {
    let check = check(port);
    let (health, mut events) = Health::start(|_| Dialer::Direct).expect("a thread");
    let target = |n: u32| Watched {
        key: TargetKey { address: IpAddr::V4(address(n)), check: Arc::clone(&check), through: None },
        slot: None,
        backend: format!("b{n}").into(),
        pools: vec![format!("p{}", n % 200).into()],
    };
    health.watch((0..TARGETS).map(target).collect());
    let made = || health.report().iter().map(|report| report.attempts).sum();
    sleep(WARM);
    while events.try_recv().is_some() {}
    let started = (made(), used());
    sleep(MEASURED);
    let usage = used();
    let ended = (made(), usage);
    let failures: u64 = health.report().iter().map(|report| report.failures).sum();
    assert!(failures < ended.0 / 1_000, "{failures} checks failed: the machine is too busy to compare");
    report(started, ended);
}

fn bare(port: u16) {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll");
    let mut flights: Vec<Option<OwnedFd>> = (0..TARGETS).map(|_| None).collect();
    let mut events = vec![EpollEvent::empty(); 1024];
    let (begin, mut made, mut started_count, mut warm) = (Instant::now(), 0u64, 0u64, None);
    loop {
        let elapsed = begin.elapsed();
        if warm.is_none() && elapsed >= WARM {
            warm = Some((made, used()));
        }
        if elapsed >= WARM + MEASURED {
            break;
        }
        let due = u64::try_from(elapsed.as_micros()).expect("seconds") * u64::from(TARGETS) / 1_000_000;
        while started_count < due {
            let n = u32::try_from(started_count % u64::from(TARGETS)).expect("below the targets");
            flights[n as usize] = Some(begin_check(&epoll, n, port));
            started_count += 1;
        }
        let ready = epoll.wait(&mut events, EpollTimeout::from(1u8)).expect("epoll_wait");
        for event in &events[..ready] {
            let n = usize::try_from(event.data()).expect("a target");
            let Some(socket) = flights[n].take() else { continue };
            assert_eq!(getsockopt(&socket, sockopt::SocketError), Ok(0), "every check passes");
            made += 1;
        }
    }
    report(warm.expect("it was warm"), (made, used()));
}

fn begin_check(epoll: &Epoll, n: u32, port: u16) -> OwnedFd {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None).expect("a socket");
    setsockopt(&socket, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 }).expect("linger");
    let SocketAddr::V4(peer) = SocketAddr::new(IpAddr::V4(address(n)), port) else { unreachable!("IPv4") };
    match connect(socket.as_raw_fd(), &SockaddrIn::from(peer)) {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(error) => panic!("connect: {error}"),
    }
    let wanted = EpollFlags::EPOLLOUT | EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
    epoll.add(socket.as_fd(), EpollEvent::new(wanted, u64::from(n))).expect("epoll_ctl");
    socket
}
