//! The BFD thread over loopback: against itself, and against packets written by hand.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bgp::bfd::{Bfd, BfdChange, BfdConfig, BfdPorts, Diagnostic, SessionState};

/// Far more than anything here takes.
const BOUND: Duration = Duration::from_secs(60);

fn start(own: u16, peer: u16) -> (Bfd, Receiver<BfdChange>) {
    let (changes, heard) = channel();
    let bfd = Bfd::start(BfdPorts { own, peer }, move |change| drop(changes.send(change))).unwrap();
    (bfd, heard)
}

fn session(name: &str, local: &str, peer: &str) -> BfdConfig {
    let mut config = BfdConfig::new(name, peer.parse().unwrap());
    config.local = Some(local.parse().unwrap());
    config
}

fn changed(config: &BfdConfig, change: impl FnOnce(&mut BfdConfig)) -> BfdConfig {
    let mut config = config.clone();
    change(&mut config);
    config
}

fn wait_for(changes: &Receiver<BfdChange>, to: SessionState) -> BfdChange {
    loop {
        let change = changes.recv_timeout(BOUND).expect("no such change");
        if change.to == to {
            return change;
        }
    }
}

#[test]
fn two_threads_come_up_over_both_families_and_an_end_on_purpose_is_told() {
    let ((a, a_heard), (b, b_heard)) = (start(31_784, 32_784), start(32_784, 31_784));
    a.add(session("v4", "127.0.0.61", "127.0.0.62")).unwrap();
    a.add(session("v6", "::1", "::1")).unwrap();
    b.add(session("v4", "127.0.0.62", "127.0.0.61")).unwrap();
    b.add(session("v6", "::1", "::1")).unwrap();
    for heard in [&a_heard, &b_heard] {
        for _ in 0..2 {
            wait_for(heard, SessionState::Up);
        }
    }
    drop(b);
    for _ in 0..2 {
        let lost = wait_for(&a_heard, SessionState::Down);
        assert!(lost.is_loss());
        assert_eq!(lost.diagnostic, Diagnostic::NeighborSaysDown, "an AdminDown, not silence");
    }
    assert_eq!(a.status()["v4"].losses, 1);
}

/// A peer written by hand at 127.0.0.`last`, that hears at `port`.
struct Hand {
    socket: UdpSocket,
    to: SocketAddr,
}

impl Hand {
    fn new(last: u8, port: u16, to: u16, us: u8) -> Self {
        let socket = UdpSocket::bind((IpAddr::from([127, 0, 0, last]), port)).unwrap();
        socket.set_read_timeout(Some(BOUND)).unwrap();
        Self { socket, to: (IpAddr::from([127, 0, 0, us]), to).into() }
    }

    fn send(&self, ttl: u32, state: u8, yours: u32) {
        let mut packet =
            [0x20, state << 6, 3, 24, 0, 0, 0, 9, 0, 0, 0, 0, 0, 1, 0x86, 0xa0, 0, 1, 0x86, 0xa0, 0, 0, 0, 0];
        packet[8..12].copy_from_slice(&yours.to_be_bytes());
        self.socket.set_ttl(ttl).unwrap();
        self.socket.send_to(&packet, self.to).unwrap();
    }

    /// A packet of theirs: its source port, and its bytes.
    fn read(&self) -> (u16, [u8; 24]) {
        let mut bytes = [0; 64];
        let (count, from) = self.socket.recv_from(&mut bytes).expect("no packet");
        assert_eq!(count, 24);
        (from.port(), bytes[..24].try_into().unwrap())
    }
}

#[test]
fn packets_from_afar_of_strangers_and_of_no_sense_are_counted_and_dropped() {
    let (bfd, changes) = start(33_784, 34_784);
    let hand = Hand::new(64, 34_784, 33_784, 63);
    bfd.add(session("hand", "127.0.0.63", "127.0.0.64")).unwrap();
    let (port, first) = hand.read();
    assert!(port >= 49_152, "source port {port}");
    assert_eq!(first[1] >> 6, 1, "down");
    let mine = u32::from_be_bytes(first[4..8].try_into().unwrap());
    hand.send(254, 1, 0);
    hand.send(255, 3, mine ^ 1);
    hand.socket.send_to(b"not BFD", hand.to).unwrap();
    let stranger = Hand::new(65, 35_784, 33_784, 63);
    stranger.send(255, 1, 0);
    stranger.send(255, 2, mine);
    let seen = || {
        let counters = bfd.counters();
        [counters.received, counters.far, counters.malformed, counters.stray]
    };
    let began = std::time::Instant::now();
    while seen()[0] < 5 && began.elapsed() < BOUND {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(seen(), [5, 1, 1, 3]);
    assert!(changes.try_recv().is_err(), "nothing of it changes a session");
    hand.send(255, 1, 0);
    assert_eq!(wait_for(&changes, SessionState::Init).name, "hand");
    hand.send(255, 2, mine);
    wait_for(&changes, SessionState::Up);
    // And then silence.
    let lost = wait_for(&changes, SessionState::Down);
    assert_eq!(lost.diagnostic, Diagnostic::DetectionTimeExpired);
}

#[test]
fn other_times_are_taken_over_by_a_session_that_goes_on() {
    let ((a, a_heard), (b, b_heard)) = (start(40_784, 41_784), start(41_784, 40_784));
    let config = session("r", "127.0.0.71", "127.0.0.72");
    a.add(config.clone()).unwrap();
    b.add(session("r", "127.0.0.72", "127.0.0.71")).unwrap();
    for heard in [&a_heard, &b_heard] {
        wait_for(heard, SessionState::Up);
    }
    for (interval, multiplier) in [(1_000, 5), (50, 20), (100, 30)] {
        let interval = Duration::from_millis(interval);
        let times = changed(&config, |config| (config.interval, config.multiplier) = (interval, multiplier));
        a.change(times).unwrap();
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!((a.status()["r"].losses, b.status()["r"].losses), (0, 0));
    assert!(a_heard.try_recv().is_err() && b_heard.try_recv().is_err(), "no state has changed");
    let moved = changed(&config, |config| config.local = Some("127.0.0.73".parse().unwrap()));
    assert!(a.change(moved).unwrap_err().to_string().contains("local stay"));
    let unknown = changed(&config, |config| config.name = "s".into());
    assert_eq!(a.change(unknown).unwrap_err().to_string(), "BFD session s: name: no session has it");
}

#[test]
fn removal_says_admin_down_and_frees_name_and_peer() {
    let (bfd, _changes) = start(36_784, 37_784);
    let hand = Hand::new(67, 37_784, 36_784, 66);
    let config = session("hand", "127.0.0.66", "127.0.0.67");
    bfd.add(config.clone()).unwrap();
    let twice = bfd.add(config.clone()).unwrap_err();
    assert_eq!(twice.to_string(), "BFD session hand: name: another session has it");
    let other = changed(&config, |config| config.name = "other".into());
    assert_eq!(bfd.add(other).unwrap_err().to_string(), "BFD session other: peer: another session has it");
    bfd.remove("hand");
    let last = loop {
        let (_, packet) = hand.read();
        if packet[1] >> 6 == 0 {
            break packet;
        }
    };
    assert_eq!(last[0] & 0x1f, 7);
    bfd.add(config).unwrap();
    assert_eq!(bfd.status().len(), 1);
}

#[test]
fn fields_out_of_range_are_named() {
    let (bfd, _changes) = start(38_784, 39_784);
    let good = session("x", "127.0.0.68", "127.0.0.69");
    let fast = changed(&good, |config| config.interval = Duration::from_millis(9));
    assert_eq!(bfd.add(fast).unwrap_err().to_string(), "BFD session x: interval: 10 ms to 10 s are allowed");
    let none = changed(&good, |config| config.multiplier = 0);
    assert_eq!(bfd.add(none).unwrap_err().to_string(), "BFD session x: multiplier: 1 to 255 are allowed");
    let mixed = changed(&good, |config| config.local = Some("::1".parse().unwrap()));
    assert_eq!(bfd.add(mixed).unwrap_err().to_string(), "BFD session x: local: must be of the peer's family");
}
