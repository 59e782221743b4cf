//! What 1,000 BFD sessions at 100 ms cost: user and system time of the process that has them.
//!
//! Rows: `sessions`, the thread of the crate; `bare`, a loop that sends and receives as many packets over sockets of the same
//! shape, in turns of the same length, and knows nothing of BFD. Both speak over loopback with another process, which does the
//! same. Budget: a packet of `sessions` costs at most 1.5 times one of `bare`. Needs 2,100 file descriptors.

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
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit of descriptors");
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(8_192).min(hard), hard).expect("more descriptors");
    match std::env::args().skip_while(|word| word != PEER_FLAG).nth(1).as_deref() {
        Some("sessions") => drop(start_sessions(THERE, HERE).1.join()),
        Some("bare") => drop(bare(THERE, HERE, Duration::from_secs(3_600))),
        _ => compare(),
    }
}

/// Three rounds of each, in turns, so that a busy machine is busy for both.
fn compare() {
    let (mut crate_us, mut bare_us) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        crate_us.push(with_peer("sessions", sessions));
        bare_us.push(with_peer("bare", || bare(HERE, THERE, MEASURED)));
        println!("round {round} of {ROUNDS}");
    }
    let least = |all: &[f64]| all.iter().copied().fold(f64::INFINITY, f64::min);
    let (ours, floor) = (least(&crate_us), least(&bare_us));
    println!("bfd/sessions: {ours:.2} us a packet, of {crate_us:.2?}");
    println!("bfd/bare:     {floor:.2} us a packet, of {bare_us:.2?}");
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
    peer.kill().expect("it is ours");
    peer.wait().expect("it is ours");
    result
}

/// Microseconds of processor time a packet of the crate's thread, once all sessions are up.
fn sessions() -> f64 {
    let (bfd, _) = start_sessions(HERE, THERE);
    let began = Instant::now();
    while bfd.status().values().any(|status| status.state != SessionState::Up) {
        assert!(began.elapsed() < Duration::from_secs(120), "not all sessions come up");
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
    assert_eq!(losses, 0, "a session was lost while it was measured");
    per_packet(spent, count)
}

fn start_sessions(us: End, them: End) -> (Bfd, std::thread::JoinHandle<()>) {
    let ports = BfdPorts { own: us.port, peer: them.port };
    let bfd = Bfd::start(ports, |_| {}).expect("a thread");
    for n in 0..SESSIONS {
        let mut config = BfdConfig::new(&n.to_string(), them.address(n));
        config.local = Some(us.address(n));
        bfd.add(config).expect("a session");
    }
    (bfd, std::thread::spawn(|| sleep(Duration::from_secs(3_600))))
}

/// The same packets without a thought: as many a turn as are due, and all that has come.
fn bare(us: End, them: End, time: Duration) -> f64 {
    let ear = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, us.port)).expect("a port");
    ear.set_nonblocking(true).expect("a socket");
    setsockopt(&ear, Ipv4RecvTtl, &true).expect("a socket");
    let mouths: Vec<UdpSocket> = (0..SESSIONS).map(|n| mouth(us.address(n), them, n)).collect();
    let packet = [0x20; 24];
    let mut buffers = vec![[0; 64]; 64];
    let (began, spent) = (Instant::now(), processor_time());
    let (mut sent, mut received, mut next) = (0_u64, 0_u64, 0);
    while began.elapsed() < time {
        let due = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX) / MEAN_US_BETWEEN_PACKETS;
        while sent < due {
            // A peer that is not there yet refuses.
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
    let socket = UdpSocket::bind(SocketAddr::new(local, 49_152 + n)).expect("a port");
    socket.connect((them.address(n), them.port)).expect("a route");
    socket.set_nonblocking(true).expect("a socket");
    socket
}

fn receive(ear: &UdpSocket, buffers: &mut [[u8; 64]]) -> u64 {
    let mut headers = MultiHeaders::<SockaddrIn>::preallocate(buffers.len(), Some(cmsg_space!(i32)));
    let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
    let got = recvmmsg(ear.as_raw_fd(), &mut headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None);
    got.map_or(0, |messages| messages.count() as u64)
}

/// One end: its network and its port.
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
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("our own usage");
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
/// A session sends every 87.5 ms on average: 100 ms less up to a quarter.
const MEAN_US_BETWEEN_PACKETS: u64 = 87_500 / SESSIONS as u64;
const PEER_FLAG: &str = "--as-peer";
