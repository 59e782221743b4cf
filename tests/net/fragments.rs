//! Fragments over the real path: kernels' own, and those of a sender that keeps no order.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Instant;

use testbed::{
    Bed, BedSpec, LbConfig, Process, Received, Service, UdpInbox, cut, digest, eventually, send_at,
};

use crate::scene::{BOUND, Scene, count};

/// UDP that the backends keep, and do not answer.
pub(crate) const INBOX_PORT: u16 = 5001;

/// Takes UDP to [`INBOX_PORT`] besides.
pub(crate) fn with_inbox(bed: &Bed) -> LbConfig {
    let mut config = LbConfig::new(bed);
    config.services.push(Service { ports: INBOX_PORT.to_string(), protocol: "udp", hash: None });
    config
}

/// An inbox at the VIP of a family in each backend.
pub(crate) fn inboxes(scene: &Scene, ipv4: bool) -> Vec<UdpInbox> {
    let vip = scene.bed.vip(ipv4, INBOX_PORT);
    let start = |host: &testbed::Host| {
        // Nothing is to be lost at the backend: neither for want of memory, nor as a stray of long ago.
        let limits = [
            ("ipv4/ipfrag_high_thresh", "268435456"),
            ("ipv6/ip6frag_high_thresh", "268435456"),
            ("ipv4/ipfrag_max_dist", "0"),
        ];
        host.ns.sysctl(&limits).unwrap();
        UdpInbox::start(&host.ns, vip).unwrap()
    };
    scene.bed.backends.iter().map(start).collect()
}

/// Waits until the inboxes together have had `expected` datagrams; whether they have.
pub(crate) fn have_had(inboxes: &[UdpInbox], expected: usize) -> bool {
    let sum = || inboxes.iter().map(UdpInbox::count).sum::<usize>();
    eventually(BOUND, || (sum() >= expected).then_some(())).is_some()
}

#[test]
fn large_pings_are_answered_by_a_backend_straight_to_the_client() {
    let scene = Scene::with(LbConfig::new);
    for ipv4 in [true, false] {
        let vip = scene.bed.vip(ipv4, Bed::HTTP_PORT).ip().to_string();
        // One at a time: of several, ping awaits the last no longer than the others took.
        let ping = |patience| {
            let args = ["-n", "-c", "1", "-e", "7", "-W", patience, "-s", "4000", &vip];
            scene.bed.client.ns.text("ping", &args)
        };
        // Over IPv6 the first answer is too large for the client's link, and no router cuts it: its backend has an error.
        if !ipv4 {
            println!("{vip}: the first is {}", if ping("1").is_ok() { "answered" } else { "not answered" });
        }
        for _ in usize::from(!ipv4)..20 {
            ping("20").unwrap_or_else(|e| panic!("{e:#}{}", scene.diagnosis()));
        }
    }
    let counts = scene.settled();
    // 4,008 bytes are three pieces; of what is answered only a router's errors are seen here.
    println!("40 requests in 120 pieces, and {} errors about their answers", counts.sent() - 120);
    assert!((120..=123).contains(&counts.sent()), "{}", scene.diagnosis());
    assert_eq!((counts.over_threads(&["replies"]), counts.drops()), (0, vec![]));
    scene.taken_off(counts.sent());
}

pub(crate) const FLOWS: usize = 500;
/// Addresses that the client sends from. Linux chooses the queue of a fragment by a hash of both addresses, whose seed it draws
/// at boot; the thread is chosen by our own. With four queues, the pieces of all addresses come to their own thread with a
/// probability of 4^-16 < 1e-9.
const CLIENTS: u8 = 16;
const LARGE: usize = 30_000;

/// Length and digest of what each sender sent.
pub(crate) type Sent = BTreeMap<SocketAddr, BTreeSet<(usize, u64)>>;

/// From each of many ports a large datagram and a small one, a few ports at a time, until they have come; the ports are those
/// of [`CLIENTS`] addresses.
pub(crate) fn send_both(scene: &Scene, vip: SocketAddr, inboxes: &[UdpInbox]) -> Sent {
    let clients = add_clients(scene, vip.is_ipv4());
    let (mut sent, mut open_sockets) = (Sent::new(), vec![]);
    for flow in 0..FLOWS {
        let large: Vec<u8> = (0..LARGE).map(|n| u8::try_from((n * 7 + flow) % 251).unwrap()).collect();
        let small = vec![1; 100];
        // Half of the flows are known when the large one comes.
        let both = if flow % 2 == 0 { [large, small] } else { [small, large] };
        let socket = open(scene, clients[flow % clients.len()]);
        both.iter().for_each(|payload| assert_eq!(socket.send_to(payload, vip).unwrap(), payload.len()));
        let digests = both.iter().map(|payload| (payload.len(), digest(payload))).collect();
        sent.insert(socket.local_addr().unwrap(), digests);
        open_sockets.push(socket); // its port is not to be another's
        if flow % 10 == 9 {
            assert!(have_had(inboxes, 2 * sent.len()), "{}", scene.diagnosis());
        }
    }
    sent
}

/// What came of each sender, all of it at one backend.
pub(crate) fn received(inboxes: &[UdpInbox]) -> Sent {
    let mut seen = BTreeMap::new();
    for (backend, inbox) in inboxes.iter().enumerate() {
        for Received { from, len, digest } in inbox.seen() {
            let (at, digests) = seen.entry(from).or_insert((backend, BTreeSet::new()));
            assert_eq!(*at, backend, "{from} came to two backends");
            assert!(digests.insert((len, digest)), "{from} came twice");
        }
    }
    seen.into_iter().map(|(from, (_, digests))| (from, digests)).collect()
}

fn large_datagrams_come_whole(ipv4: bool) {
    let scene = Scene::new(&BedSpec { queues: 4, ..BedSpec::default() }, with_inbox);
    let inboxes = inboxes(&scene, ipv4);
    let vip = scene.bed.vip(ipv4, INBOX_PORT);
    let sent = send_both(&scene, vip, &inboxes);
    let counts = scene.settled();
    let pieces = counts.received() - sent.len() as u64;
    let crossed = counts.over_threads(&["to_threads"]);
    let shares: Vec<usize> = inboxes.iter().map(|inbox| inbox.count() / 2).collect();
    println!(
        "{FLOWS} datagrams of {LARGE} bytes to {vip}: {pieces} pieces, {crossed} of them crossed threads, by backend {shares:?}"
    );
    assert_eq!((counts.drops(), counts.sent()), (vec![], counts.received()));
    assert_eq!((shares.iter().sum::<usize>(), crossed > 0), (FLOWS, true), "{}", scene.diagnosis());
    assert_eq!(received(&inboxes), sent);
}

/// Gives the client's host [`CLIENTS`] more addresses.
fn add_clients(scene: &Scene, ipv4: bool) -> Vec<IpAddr> {
    let host = &scene.bed.client;
    let added = (0..CLIENTS).map(|n| -> IpAddr {
        if ipv4 { [198, 18, 0, 100 + n].into() } else { [0x2001, 0xdb8, 0, 0, 0, 0, 1, n.into()].into() }
    });
    let added: Vec<IpAddr> = added.collect();
    let bits = if ipv4 { "24" } else { "64" };
    let nodad = if ipv4 { "" } else { " nodad" };
    let lines = added.iter().map(|address| format!("addr add {address}/{bits} dev {}{nodad}\n", host.device));
    host.ns.ip(&lines.collect::<String>()).unwrap();
    added
}

/// Not connected: then Linux counts the identifications of a pair of addresses. Connected ones each begin anywhere, and two
/// datagrams of one name would come within seconds.
fn open(scene: &Scene, client: IpAddr) -> UdpSocket {
    scene.bed.client.ns.run(move || UdpSocket::bind((client, 0)).unwrap())
}

#[test]
fn datagrams_of_30_kb_come_whole_to_the_backend_of_a_small_packet_over_ipv4() {
    large_datagrams_come_whole(true);
}

#[test]
fn datagrams_of_30_kb_come_whole_to_the_backend_of_a_small_packet_over_ipv6() {
    large_datagrams_come_whole(false);
}

#[test]
fn iperf3_of_datagrams_in_six_pieces_loses_nothing_in_the_balancer() {
    let scene = Scene::with(|bed| {
        let mut config = LbConfig::new(bed);
        // Its TCP and its UDP are to meet at one backend.
        for protocol in ["tcp", "udp"] {
            config.services.push(Service { ports: "5201".into(), protocol, hash: Some("source") });
        }
        config
    });
    let mut late = 0;
    for ipv4 in [true, false] {
        let vip = scene.bed.vip(ipv4, 5201).ip().to_string();
        let serve = |host: &testbed::Host| {
            let args = ["-s", "-B", &vip, "--forceflush"];
            let mut server = Process::start(&host.ns, "iperf3", "iperf3", &args).unwrap();
            server.wait_for_line(BOUND, |line| line.contains("listening")).unwrap();
            server
        };
        let _servers: Vec<Process> = scene.bed.backends.iter().map(serve).collect();
        let args = ["-c", &vip, "-u", "-l", "8000", "-b", "40M", "-t", "2", "-J"];
        let ended = Process::to_end(&scene.bed.client.ns, "iperf3", &args, BOUND).unwrap();
        let report: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
        let sum = &report["end"]["sum"];
        let [packets, lost] = ["packets", "lost_packets"].map(|key| sum[key].as_u64().unwrap_or_default());
        let unread: u64 = scene.bed.backends.iter().map(|host| unread(host, ipv4)).sum();
        // A packet thread that got no processor leaves no frame for the kernel to fill. Each piece is of another datagram at worst.
        let before = std::mem::replace(&mut late, scene.balanced(BOUND).lost_before_threads());
        println!(
            "{vip}: {packets} datagrams of 8,000 bytes, {lost} lost; {unread} in front of a busy server, {} pieces in front of a \
             packet thread, {} bit/s",
            late - before,
            sum["bits_per_second"]
        );
        assert!(lost < packets && lost <= unread + late - before, "{}\n{}", ended.out, scene.diagnosis());
    }
    let counts = scene.balanced(BOUND);
    assert_eq!((counts.drops(), counts.sent()), (vec![], counts.received()));
    scene.taken_off(counts.sent());
}

/// Datagrams that a backend's kernel had no room for, since their reader was late.
fn unread(host: &testbed::Host, ipv4: bool) -> u64 {
    let table = host.ns.text("cat", &[if ipv4 { "/proc/net/snmp" } else { "/proc/net/snmp6" }]).unwrap();
    if !ipv4 {
        let line = table.lines().find_map(|line| line.strip_prefix("Udp6RcvbufErrors")).unwrap();
        return line.trim().parse().unwrap();
    }
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next().unwrap().split(' '), lines.next().unwrap().split(' '));
    names.zip(values).find(|(name, _)| *name == "RcvbufErrors").unwrap().1.parse().unwrap()
}

/// As many as the promise names for a second.
const DATAGRAMS: usize = 10_000;
/// Pieces of this many datagrams are shuffled.
pub(crate) const WINDOW: usize = 100;
const SOURCES: usize = 16;

/// xorshift64*: the same run each time.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        usize::try_from((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n as u64).unwrap()
    }
}

/// Datagram `n` in two to five pieces, and what is to come of it.
pub(crate) fn cut_datagram(
    scene: &Scene,
    ipv4: bool,
    n: usize,
    random: &mut Random,
) -> (Vec<Vec<u8>>, Received) {
    let mut spec = scene.frame(ipv4, INBOX_PORT);
    let host = u8::try_from(n % SOURCES).unwrap();
    let source: IpAddr = if ipv4 {
        IpAddr::from([198, 18, 0, 100 + host])
    } else {
        IpAddr::from([0x2001, 0xdb8, 0x100, u16::from(host), 0, 0, 0, 7]) // each in a /64 of its own
    };
    spec.source = SocketAddr::new(source, u16::try_from(1024 + n).unwrap());
    let room = 8 * (20 + random.below(130));
    let len = room + 1 + random.below(4 * room - 20);
    spec.payload = (0..len).map(|at| u8::try_from((at * 31 + n) % 256).unwrap()).collect();
    let received = Received { from: spec.source, len, digest: digest(&spec.payload) };
    (cut(&spec.bytes(), u32::try_from(n).unwrap(), room), received)
}

/// The pieces of some datagrams in any order, one in eight of them twice.
pub(crate) fn shuffle(datagrams: &[Vec<Vec<u8>>], random: &mut Random) -> Vec<Vec<u8>> {
    let mut pieces = datagrams.concat();
    for _ in 0..pieces.len() / 8 {
        pieces.push(pieces[random.below(pieces.len())].clone());
    }
    for last in (1..pieces.len()).rev() {
        pieces.swap(last, random.below(last + 1));
    }
    pieces
}

fn distinct(inboxes: &[UdpInbox]) -> BTreeSet<Received> {
    inboxes.iter().flat_map(UdpInbox::seen).collect()
}

fn pieces_in_any_order(ipv4: bool) {
    let scene = Scene::new(&BedSpec { queues: 2, ..BedSpec::default() }, with_inbox);
    let inboxes = inboxes(&scene, ipv4);
    let (mut random, datagrams) = (Random::new(7), count(DATAGRAMS, 5 * DATAGRAMS));
    let (cut, expected): (Vec<_>, BTreeSet<_>) =
        (0..datagrams).map(|n| cut_datagram(&scene, ipv4, n, &mut random)).unzip();
    let windows: Vec<Vec<Vec<u8>>> = cut.chunks(WINDOW).map(|some| shuffle(some, &mut random)).collect();
    let (sent, port) = (windows.concat().len(), &scene.bed.balancers[0].port);
    let start = Instant::now();
    // Never further ahead than a ring holds: on busy cores nothing is lost in front of the balancer.
    for (n, window) in (1..).zip(windows) {
        send_at(&scene.bed.router, port, window, 40_000.0).unwrap();
        have_had(&inboxes, n * WINDOW);
    }
    let took = start.elapsed();
    // Those whose every piece came twice come twice.
    eventually(BOUND, || (distinct(&inboxes).len() >= datagrams).then_some(()));
    let (counts, whole) = (scene.settled(), distinct(&inboxes));
    let table = |name| counts.over_threads(&["fragments", name]);
    println!(
        "{datagrams} datagrams in {sent} pieces in {took:.2?}, {:.0} a second: {} pieces received, {} crossed threads, \
         {} waited for their first, {} firsts came twice; {} datagrams came whole",
        datagrams as f64 / took.as_secs_f64(),
        counts.received(),
        counts.over_threads(&["to_threads"]),
        table("waited"),
        table("duplicates"),
        whole.len(),
    );
    assert_eq!((counts.drops(), counts.sent()), (vec![], counts.received()), "{}", scene.diagnosis());
    assert_eq!(counts.received(), sent as u64, "lost in front of the balancer");
    assert_eq!((whole.len(), whole == expected), (datagrams, true), "{}", scene.diagnosis());
}

#[test]
fn ten_thousand_datagrams_in_pieces_of_any_order_come_whole_over_ipv4() {
    pieces_in_any_order(true);
}

#[test]
fn ten_thousand_datagrams_in_pieces_of_any_order_come_whole_over_ipv6() {
    pieces_in_any_order(false);
}
