//! Measures the CPU time per packet of 1,000 BFD sessions with an interval of 100 ms.
//!
//! The row `sessions` measures the BFD thread of the crate `bgp`. The row `bare` measures a loop
//! without BFD, which sends and receives the same number of packets over sockets with the same
//! options. `sessions` and `bare` exchange packets with a peer process over loopback. Rounds of the
//! two rows alternate and have the same length. CPU time is user plus system time. Budget: a packet
//! of `sessions` takes at most 1.5 times as much CPU time as a packet of `bare`. The benchmark
//! needs 2,100 file descriptors.

use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bgp::bfd::{Bfd, BfdConfig, BfdPorts, SessionState};
use nix::cmsg_space;
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::socket::sockopt::Ipv4RecvTtl;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, setsockopt};
use nix::sys::time::TimeValLike;

fn main() {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("cannot read the limit of open files");
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(8_192).min(hard), hard)
        .expect("cannot raise the limit of open files");
    match std::env::args().skip_while(|word| word != PEER_FLAG).nth(1).as_deref() {
        Some("sessions") => drop(start_sessions(THERE, HERE).1.join()),
        Some("bare") => drop(bare(THERE, HERE, Duration::from_secs(3_600))),
        _ => compare(),
    }
}

/// Runs three rounds of `sessions` and three of `bare` in turn, so that other load on the machine
/// affects both.
fn compare() {
    let (mut crate_us, mut bare_us) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        crate_us.push(with_peer("sessions", sessions));
        bare_us.push(with_peer("bare", || bare(HERE, THERE, MEASURED)));
        println!("round {round} of {ROUNDS}");
    }
    let least = |all: &[f64]| all.iter().copied().fold(f64::INFINITY, f64::min);
    let (ours, floor) = (least(&crate_us), least(&bare_us));
    println!("bfd/sessions: {ours:.2} us per packet, rounds {crate_us:.2?}");
    println!("bfd/bare:     {floor:.2} us per packet, rounds {bare_us:.2?}");
    println!("ratio: {:.2} (budget 1.5)", ours / floor);
}

fn with_peer(role: &str, measure: impl FnOnce() -> f64) -> f64 {
    let own = std::env::current_exe().expect("this program has a path");
    let mut peer: Child = Command::new(own)
        .args([PEER_FLAG, role])
        .stdout(Stdio::null())
        .spawn()
        .expect("this program can be started");
    let result = measure();
    peer.kill().expect("cannot stop the peer process");
    peer.wait().expect("cannot wait for the peer process");
    result
}

/// Returns the CPU time that the BFD thread needs per packet, in microseconds. The function starts
/// to measure when all sessions are up.
fn sessions() -> f64 {
    let (bfd, _) = start_sessions(HERE, THERE);
    let began = Instant::now();
    while bfd.status().values().any(|status| status.state != SessionState::Up) {
        assert!(began.elapsed() < Duration::from_secs(120), "not all sessions came up within 120 s");
        sleep(Duration::from_millis(100));
    }
    let packets = || {
        let counters = bfd.counters();
        counters.sent + counters.received
    };
    let (before, spent) = (packets(), processor_time());
    sleep(MEASURED);
    let (count, spent) = (packets() - before, processor_time() - spent);
    let losses: u64 = bfd.status().values().map(|status| status.losses).sum();
    report("sessions", count, spent);
    assert_eq!(losses, 0, "a session went down during the measurement");
    per_packet(spent, count)
}

fn start_sessions(us: End, them: End) -> (Bfd, std::thread::JoinHandle<()>) {
    let ports = BfdPorts { own: us.port, peer: them.port };
    let bfd = Bfd::start(ports, |_| {}).expect("cannot start a thread");
    for n in 0..SESSIONS {
        let mut config = BfdConfig::new(&n.to_string(), them.address(n));
        config.local = Some(us.address(n));
        bfd.add(config).expect("cannot add a session");
    }
    (bfd, std::thread::spawn(|| sleep(Duration::from_secs(3_600))))
}

/// Sends and receives the same packets without BFD. Each iteration sends all packets that are due
/// and receives all packets that have arrived.
fn bare(us: End, them: End, time: Duration) -> f64 {
    let ear = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, us.port)).expect("cannot bind a port");
    ear.set_nonblocking(true).expect("cannot configure a socket");
    setsockopt(&ear, Ipv4RecvTtl, &true).expect("cannot configure a socket");
    let mouths: Vec<UdpSocket> = (0..SESSIONS).map(|n| mouth(us.address(n), them, n)).collect();
    let packet = [0x20; 24];
    let mut buffers = vec![[0; 64]; 64];
    let (began, spent) = (Instant::now(), processor_time());
    let (mut sent, mut received, mut next) = (0_u64, 0_u64, 0);
    while began.elapsed() < time {
        let due = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX) / MEAN_US_BETWEEN_PACKETS;
        while sent < due {
            // Sending can fail, because the peer process might not have started yet.
            let _ = mouths[next].send(&packet);
            sent += 1;
            next = (next + 1) % mouths.len();
        }
        loop {
            let count = receive(&ear, &mut buffers);
            received += count;
            if count < 64 {
                break;
            }
        }
        sleep(Duration::from_millis(1));
    }
    let spent = processor_time() - spent;
    report("bare", sent + received, spent);
    per_packet(spent, sent + received)
}

fn mouth(local: IpAddr, them: End, n: u16) -> UdpSocket {
    let socket = UdpSocket::bind(SocketAddr::new(local, 49_152 + n)).expect("cannot bind a port");
    socket.connect((them.address(n), them.port)).expect("cannot connect to the peer");
    socket.set_nonblocking(true).expect("cannot configure a socket");
    socket
}

fn receive(ear: &UdpSocket, buffers: &mut [[u8; 64]]) -> u64 {
    let mut headers = MultiHeaders::<SockaddrIn>::preallocate(buffers.len(), Some(cmsg_space!(i32)));
    let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
    let got = recvmmsg(ear.as_raw_fd(), &mut headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None);
    got.map_or(0, |messages| messages.count() as u64)
}

/// The network and the UDP port of one session endpoint.
#[derive(Clone, Copy)]
struct End {
    network: u8,
    port: u16,
}

impl End {
    fn address(self, n: u16) -> IpAddr {
        let [hi, lo] = (n + 1).to_be_bytes();
        Ipv4Addr::new(127, self.network, hi, lo).into()
    }
}

fn processor_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("getrusage of this process cannot fail");
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

fn per_packet(spent: Duration, count: u64) -> f64 {
    spent.as_secs_f64() * 1e6 / count.max(1) as f64
}

fn report(row: &str, count: u64, spent: Duration) {
    let seconds = MEASURED.as_secs_f64();
    println!(
        "{row}: {:.0} packets/s, {:.1} % of a core",
        count as f64 / seconds,
        spent.as_secs_f64() / seconds * 100.0
    );
}

const SESSIONS: u16 = 1_000;
const HERE: End = End { network: 81, port: 13_784 };
const THERE: End = End { network: 82, port: 23_784 };
const MEASURED: Duration = Duration::from_secs(10);
const ROUNDS: usize = 3;
/// A session sends a packet every 87.5 ms on average. BFD shortens each interval of 100 ms by a
/// random amount of up to a quarter.
const MEAN_US_BETWEEN_PACKETS: u64 = 87_500 / SESSIONS as u64;
const PEER_FLAG: &str = "--as-peer";
