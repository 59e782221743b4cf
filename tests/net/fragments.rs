//! Tests of fragmented datagrams: from the client's kernel, and in random order from a load
//! generator.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Instant;

use testbed::{
    Bed, BedSpec, LbConfig, Process, Received, Service, UdpInbox, cut, digest, eventually, send_at,
};

use crate::scene::{BOUND, Scene, count};

/// A UDP port on which the backends record datagrams without replying.
pub(crate) const INBOX_PORT: u16 = 5001;

/// Returns a configuration with a service on [`INBOX_PORT`].
pub(crate) fn with_inbox(bed: &Bed) -> LbConfig {
    let mut config = LbConfig::new(bed);
    config.services.push(Service { ports: INBOX_PORT.to_string(), protocol: "udp", hash: None });
    config
}

/// Starts a UDP inbox at the VIP on each backend.
pub(crate) fn inboxes(scene: &Scene, ipv4: bool) -> Vec<UdpInbox> {
    let vip = scene.bed.vip(ipv4, INBOX_PORT);
    let start = |host: &testbed::Host| {
        // With these limits, the kernel of a backend does not drop fragments for lack of memory or
        // because of their age.
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

/// Waits until the inboxes have received `expected` datagrams in total. Returns `false` on timeout.
pub(crate) fn have_had(inboxes: &[UdpInbox], expected: usize) -> bool {
    let sum = || inboxes.iter().map(UdpInbox::count).sum::<usize>();
    eventually(BOUND, || (sum() >= expected).then_some(())).is_some()
}

#[test]
fn large_pings_are_answered_directly() {
    let scene = Scene::with(LbConfig::new);
    for ipv4 in [true, false] {
        let vip = scene.bed.vip(ipv4, Bed::HTTP_PORT).ip().to_string();
        // Each call sends one ping. If one call sent several, `ping` would wait for the last reply
        // only as long as the earlier replies took.
        let ping = |patience| {
            let args = ["-n", "-c", "1", "-e", "7", "-W", patience, "-s", "4000", &vip];
            scene.bed.client.ns.text("ping", &args)
        };
        // The first IPv6 reply is too large for the client's link. Routers do not fragment IPv6
        // packets, so the backend gets an ICMP error instead.
        if !ipv4 {
            println!("{vip}: the first is {}", if ping("1").is_ok() { "answered" } else { "not answered" });
        }
        for _ in usize::from(!ipv4)..20 {
            ping("20").unwrap_or_else(|e| panic!("{e:#}{}", scene.diagnosis()));
        }
    }
    let counts = scene.settled();
    // A packet of 4,008 bytes has three fragments. Replies bypass the balancer, but ICMP errors
    // that routers send about replies go through the balancer.
    println!("40 requests in 120 fragments, {} ICMP errors about replies", counts.sent() - 120);
    assert!((120..=123).contains(&counts.sent()), "{}", scene.diagnosis());
    assert_eq!((counts.over_threads(&["replies"]), counts.drops()), (0, vec![]));
    scene.taken_off(counts.sent());
}

pub(crate) const FLOWS: usize = 500;
/// The number of client addresses. Linux chooses the queue of a fragment with a hash of both
/// addresses and a random seed. The balancer chooses the thread with its own hash. With four
/// queues, the probability that all fragments arrive at the right thread by chance is 4^-16 < 1e-9.
const CLIENTS: u8 = 16;
const LARGE: usize = 30_000;

/// The length and the digest of each datagram, by sender.
pub(crate) type Sent = BTreeMap<SocketAddr, BTreeSet<(usize, u64)>>;

/// Sends one large and one small datagram from each of [`FLOWS`] ports, a few ports at a time. The
/// ports are spread over [`CLIENTS`] addresses.
pub(crate) fn send_both(scene: &Scene, vip: SocketAddr, inboxes: &[UdpInbox]) -> Sent {
    let clients = add_clients(scene, vip.is_ipv4());
    let (mut sent, mut open_sockets) = (Sent::new(), vec![]);
    for flow in 0..FLOWS {
        let large: Vec<u8> = (0..LARGE).map(|n| u8::try_from((n * 7 + flow) % 251).unwrap()).collect();
        let small = vec![1; 100];
        // Half of the flows send the small datagram first, so that they exist before the large one
        // arrives.
        let both = if flow % 2 == 0 { [large, small] } else { [small, large] };
        let socket = open(scene, clients[flow % clients.len()]);
        both.iter().for_each(|payload| assert_eq!(socket.send_to(payload, vip).unwrap(), payload.len()));
        let digests = both.iter().map(|payload| (payload.len(), digest(payload))).collect();
        sent.insert(socket.local_addr().unwrap(), digests);
        open_sockets.push(socket); // keeps the port reserved
        if flow % 10 == 9 {
            assert!(have_had(inboxes, 2 * sent.len()), "{}", scene.diagnosis());
        }
    }
    sent
}

/// Returns the received datagrams by sender. Panics if the datagrams of one sender arrived at two
/// backends or twice.
pub(crate) fn received(inboxes: &[UdpInbox]) -> Sent {
    let mut seen = BTreeMap::new();
    for (backend, inbox) in inboxes.iter().enumerate() {
        for Received { from, len, digest } in inbox.seen() {
            let (at, digests) = seen.entry(from).or_insert((backend, BTreeSet::new()));
            assert_eq!(*at, backend, "datagrams from {from} arrived at two backends");
            assert!(digests.insert((len, digest)), "a datagram from {from} arrived twice");
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
        "{FLOWS} datagrams of {LARGE} bytes to {vip}, {pieces} fragments, {crossed} crossed threads, per backend {shares:?}"
    );
    assert_eq!((counts.drops(), counts.sent()), (vec![], counts.received()));
    assert_eq!((shares.iter().sum::<usize>(), crossed > 0), (FLOWS, true), "{}", scene.diagnosis());
    assert_eq!(received(&inboxes), sent);
}

/// Adds [`CLIENTS`] addresses to the client host.
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

/// Returns an unconnected socket. For unconnected sockets, Linux increments the IP identification
/// per pair of addresses. For connected sockets, the identification starts at random values, so two
/// datagrams could have the same identification within seconds.
fn open(scene: &Scene, client: IpAddr) -> UdpSocket {
    scene.bed.client.ns.run(move || UdpSocket::bind((client, 0)).unwrap())
}

#[test]
fn datagrams_of_30_kb_reach_one_backend_over_ipv4() {
    large_datagrams_come_whole(true);
}

#[test]
fn datagrams_of_30_kb_reach_one_backend_over_ipv6() {
    large_datagrams_come_whole(false);
}

#[test]
fn iperf3_with_six_fragments_loses_no_datagram() {
    let scene = Scene::with(|bed| {
        let mut config = LbConfig::new(bed);
        // The TCP control connection and the UDP flow of iperf3 must reach the same backend.
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
        // If a packet thread gets no CPU time, the fill ring is empty and the kernel drops
        // fragments. In the worst case, each lost fragment belongs to a different datagram.
        let before = std::mem::replace(&mut late, scene.balanced(BOUND).lost_before_threads());
        println!(
            "{vip}: {packets} datagrams of 8,000 bytes, {lost} lost; {unread} dropped at busy servers, {} fragments dropped before packet threads, {} bit/s",
            late - before,
            sum["bits_per_second"]
        );
        assert!(lost < packets && lost <= unread + late - before, "{}\n{}", ended.out, scene.diagnosis());
    }
    let counts = scene.balanced(BOUND);
    assert_eq!((counts.drops(), counts.sent()), (vec![], counts.received()));
    scene.taken_off(counts.sent());
}

/// Returns how many datagrams the kernel of a backend dropped because the server did not read fast
/// enough.
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

/// The number of datagrams per second in docs/promises.md.
const DATAGRAMS: usize = 10_000;
/// The number of datagrams whose fragments are shuffled together.
pub(crate) const WINDOW: usize = 100;
const SOURCES: usize = 16;

/// An xorshift64* generator with a fixed seed.
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

/// Creates datagram `n` and splits it into two to five fragments. Returns the fragments, and the
/// datagram that a backend should receive.
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
        // Each source has its own /64 prefix.
        IpAddr::from([0x2001, 0xdb8, 0x100, u16::from(host), 0, 0, 0, 7])
    };
    spec.source = SocketAddr::new(source, u16::try_from(1024 + n).unwrap());
    let room = 8 * (20 + random.below(130));
    let len = room + 1 + random.below(4 * room - 20);
    spec.payload = (0..len).map(|at| u8::try_from((at * 31 + n) % 256).unwrap()).collect();
    let received = Received { from: spec.source, len, digest: digest(&spec.payload) };
    (cut(&spec.bytes(), u32::try_from(n).unwrap(), room), received)
}

/// Returns the fragments of several datagrams in random order. About one fragment in eight occurs
/// twice.
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
    // The test waits after each window, so that the fragments in flight fit into a ring. Even on a
    // busy machine, no packet is therefore lost before it reaches the balancer.
    for (n, window) in (1..).zip(windows) {
        send_at(&scene.bed.router, port, window, 40_000.0).unwrap();
        have_had(&inboxes, n * WINDOW);
    }
    let took = start.elapsed();
    // A backend receives a datagram twice if all its fragments were duplicated.
    eventually(BOUND, || (distinct(&inboxes).len() >= datagrams).then_some(()));
    let (counts, whole) = (scene.settled(), distinct(&inboxes));
    let table = |name| counts.over_threads(&["fragments", name]);
    println!(
        "{datagrams} datagrams in {sent} fragments in {took:.2?}, {:.0} per second: {} fragments received, {} crossed threads, {} held for their first fragment, {} duplicate first fragments; {} datagrams complete",
        datagrams as f64 / took.as_secs_f64(),
        counts.received(),
        counts.over_threads(&["to_threads"]),
        table("waited"),
        table("duplicates"),
        whole.len(),
    );
    assert_eq!((counts.drops(), counts.sent()), (vec![], counts.received()), "{}", scene.diagnosis());
    assert_eq!(counts.received(), sent as u64, "fragments were lost before the balancer");
    assert_eq!((whole.len(), whole == expected), (datagrams, true), "{}", scene.diagnosis());
}

#[test]
fn shuffled_fragments_are_delivered_over_ipv4() {
    pieces_in_any_order(true);
}

#[test]
fn shuffled_fragments_are_delivered_over_ipv6() {
    pieces_in_any_order(false);
}
