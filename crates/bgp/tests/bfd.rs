//! Tests of the BFD thread over loopback. The peer is a second BFD thread or a test socket.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bgp::bfd::{Bfd, BfdChange, BfdConfig, BfdPorts, Diagnostic, HandedBfd, SessionState};

/// The timeout of every wait, which is much longer than any step takes.
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
fn two_bfd_threads_come_up_and_signal_admin_down() {
    let ((a, a_heard), (b, b_heard)) = (start(26_784, 27_784), start(27_784, 26_784));
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
        assert_eq!(lost.diagnostic, Diagnostic::NeighborSaysDown, "the peer signaled AdminDown");
    }
    assert_eq!(a.status()["v4"].losses, 1);
}

/// A test socket that acts as a BFD peer at 127.0.0.`last` and receives on `port`.
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

    /// Receives a packet. Returns its source port and its bytes.
    fn read(&self) -> (u16, [u8; 24]) {
        let mut bytes = [0; 64];
        let (count, from) = self.socket.recv_from(&mut bytes).expect("no packet");
        assert_eq!(count, 24);
        (from.port(), bytes[..24].try_into().unwrap())
    }
}

#[test]
fn bad_bfd_packets_are_counted_and_dropped() {
    let (bfd, changes) = start(13_784, 14_784);
    let hand = Hand::new(64, 14_784, 13_784, 63);
    bfd.add(session("hand", "127.0.0.63", "127.0.0.64")).unwrap();
    let (port, first) = hand.read();
    assert!(port >= 49_152, "source port {port}");
    assert_eq!(first[1] >> 6, 1, "down");
    let mine = u32::from_be_bytes(first[4..8].try_into().unwrap());
    hand.send(254, 1, 0);
    hand.send(255, 3, mine ^ 1);
    hand.socket.send_to(b"not BFD", hand.to).unwrap();
    let stranger = Hand::new(65, 15_784, 13_784, 63);
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
    assert!(changes.try_recv().is_err(), "no session changes");
    hand.send(255, 1, 0);
    assert_eq!(wait_for(&changes, SessionState::Init).name, "hand");
    hand.send(255, 2, mine);
    wait_for(&changes, SessionState::Up);
    // From now on, the peer sends no packets.
    let lost = wait_for(&changes, SessionState::Down);
    assert_eq!(lost.diagnostic, Diagnostic::DetectionTimeExpired);
}

#[test]
fn other_times_are_taken_over_by_a_session_that_goes_on() {
    let ((a, a_heard), (b, b_heard)) = (start(20_784, 21_784), start(21_784, 20_784));
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
    assert!(a.change(moved).unwrap_err().to_string().contains("local cannot change"));
    let unknown = changed(&config, |config| config.name = "s".into());
    assert_eq!(a.change(unknown).unwrap_err().to_string(), "BFD session s: no session has this name");
}

#[test]
fn removal_says_admin_down_and_frees_name_and_peer() {
    let (bfd, _changes) = start(16_784, 17_784);
    let hand = Hand::new(67, 17_784, 16_784, 66);
    let config = session("hand", "127.0.0.66", "127.0.0.67");
    bfd.add(config.clone()).unwrap();
    let twice = bfd.add(config.clone()).unwrap_err();
    assert_eq!(twice.to_string(), "BFD session hand: name is already used by another session");
    let other = changed(&config, |config| config.name = "other".into());
    assert_eq!(
        bfd.add(other).unwrap_err().to_string(),
        "BFD session other: peer is already used by another session"
    );
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
    let (bfd, _changes) = start(18_784, 19_784);
    let good = session("x", "127.0.0.68", "127.0.0.69");
    let fast = changed(&good, |config| config.interval = Duration::from_millis(9));
    assert_eq!(bfd.add(fast).unwrap_err().to_string(), "BFD session x: interval must be 10 ms to 10 s");
    let none = changed(&good, |config| config.multiplier = 0);
    assert_eq!(bfd.add(none).unwrap_err().to_string(), "BFD session x: multiplier must be 1 to 255");
    let mixed = changed(&good, |config| config.local = Some("::1".parse().unwrap()));
    assert_eq!(
        bfd.add(mixed).unwrap_err().to_string(),
        "BFD session x: local must have the same address family as the peer"
    );
}

/// Brings a session with the test peer up. Returns the discriminator and the source port of the BFD
/// thread.
fn up_with(hand: &Hand, changes: &Receiver<BfdChange>) -> (u32, u16) {
    let (port, first) = hand.read();
    let mine = u32::from_be_bytes(first[4..8].try_into().unwrap());
    hand.send(255, 1, 0);
    wait_for(changes, SessionState::Init);
    hand.send(255, 2, mine);
    wait_for(changes, SessionState::Up);
    (mine, port)
}

/// Returns all waiting packets. Waits until at least one packet has arrived.
fn drained(hand: &Hand) -> Vec<(u16, [u8; 24])> {
    let mut all = vec![hand.read()];
    hand.socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut bytes = [0; 64];
    while let Ok((_, from)) = hand.socket.recv_from(&mut bytes) {
        all.push((from.port(), bytes[..24].try_into().unwrap()));
    }
    hand.socket.set_read_timeout(Some(BOUND)).unwrap();
    all
}

/// Copies the sessions as another process would receive them, with duplicated sockets.
fn over(handed: &HandedBfd) -> HandedBfd {
    let sockets = handed.sockets().iter().map(|socket| socket.try_clone().unwrap()).collect();
    HandedBfd::from_parts(&handed.to_bytes(), sockets).unwrap()
}

#[test]
fn a_session_goes_over_and_back_and_its_peer_notices_nothing() {
    let ports = BfdPorts { own: 22_784, peer: 23_784 };
    let (old, changes) = start(ports.own, ports.peer);
    let hand = Hand::new(75, ports.peer, ports.own, 74);
    let mut config = session("hand", "127.0.0.74", "127.0.0.75");
    // With these times, the session stays up even if the test peer sends no packets for a while.
    config.multiplier = 255;
    config.interval = Duration::from_secs(1);
    old.add(config.clone()).unwrap();
    assert_eq!(old.least_spare(), None, "no session is up");
    let (mine, port) = up_with(&hand, &changes);
    let (name, spare) = old.least_spare().unwrap();
    assert_eq!((name.as_str(), spare), ("hand", Duration::from_secs(254)));
    let is_the_same = |packets: &[(u16, [u8; 24])]| {
        for (from, packet) in packets {
            assert_eq!(*from, port, "the source port");
            assert_eq!(packet[4..8], mine.to_be_bytes(), "the discriminator");
            assert_eq!((packet[1] >> 6, packet[0] & 0x1f), (3, 0), "state Up without a diagnostic");
        }
    };
    let handed = old.let_go().unwrap();
    assert!(old.let_go().is_none() && old.status().is_empty());
    assert!(old.add(config.clone()).is_err(), "the thread has ended");
    assert_eq!(handed.configs().collect::<Vec<_>>(), [&config]);
    // All packets so far show state Up.
    is_the_same(&drained(&hand)[1..]);
    let take = |handed| {
        let (changes, heard) = channel();
        (Bfd::take_over(ports, handed, move |change| drop(changes.send(change))).unwrap(), heard)
    };
    for _ in 0..2 {
        // The new process ends before it confirms the takeover.
        let (failing, _) = take(over(&handed));
        is_the_same(&drained(&hand));
        drop(failing);
    }
    drop(old);
    let (again, changes) = take(handed);
    again.keep();
    is_the_same(&drained(&hand));
    assert_eq!(again.status()["hand"].state, SessionState::Up);
    assert!(again.add(session("other", "127.0.0.74", "127.0.0.76")).is_ok(), "the slot is free");
    assert_eq!(again.status().len(), 2);
    hand.send(255, 1, mine);
    assert_eq!(wait_for(&changes, SessionState::Down).diagnostic, Diagnostic::NeighborSaysDown);
    drop(again);
    assert_eq!(drained(&hand).last().unwrap().1[1] >> 6, 0, "the owner signals AdminDown");
}

#[test]
fn sockets_that_are_not_the_sessions_are_refused() {
    let (bfd, _changes) = start(24_784, 25_784);
    bfd.add(session("a", "127.0.0.77", "127.0.0.78")).unwrap();
    bfd.add(session("b", "127.0.0.77", "127.0.0.79")).unwrap();
    let handed = bfd.let_go().unwrap();
    let again = |handed, own| Bfd::take_over(BfdPorts { own, peer: 25_784 }, handed, |_| ());
    let refused = |sockets: Vec<OwnedFd>| {
        let handed = HandedBfd::from_parts(&handed.to_bytes(), sockets).unwrap();
        again(handed, 24_784).unwrap_err().to_string()
    };
    let own = |at: usize| handed.sockets()[at].try_clone().unwrap();
    let other: OwnedFd = UdpSocket::bind("127.0.0.77:0").unwrap().into();
    let stream: OwnedFd = std::net::TcpListener::bind("127.0.0.77:0").unwrap().into();
    let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    assert!(refused(vec![own(0), own(2), own(1)]).contains("does not belong to the session with 127.0.0.78"));
    assert!(refused(vec![other, own(1), own(2)]).ends_with("is not the BFD receive socket"));
    assert_eq!(refused(vec![own(0), stream, own(2)]), "a BFD socket must be a UDP socket");
    assert!(refused(vec![file, own(1), own(2)]).contains("Socket operation on non-socket"));
    assert!(
        again(over(&handed), 24_785).unwrap_err().to_string().ends_with("is not the BFD receive socket"),
        "another port"
    );
    assert!(again(over(&handed), 24_784).is_ok());
}
