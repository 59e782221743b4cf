//! Tests of paths with a small MTU. If a packet is too large for the path, its sender must get an
//! ICMP error, or the packet must be fragmented.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use testbed::{
    Balancer, Bed, BedSpec, Capture, Client, Decap, Encapsulation, Frame, FrameSpec, Ip, LbConfig, Outer,
    Received, digest, eventually, inject, join, may_be_cut, send_at,
};

use crate::fragments::{INBOX_PORT, have_had, inboxes, with_inbox};
use crate::scene::{BOUND, SILENCE, Scene, count};

/// Returns a testbed whose links all have the same MTU, so that outer headers do not fit around the
/// largest packets.
fn narrow(core_mtu: u32) -> BedSpec {
    BedSpec { core_mtu, ..BedSpec::default() }
}

/// Sends `bytes` bytes to a VIP over TCP. Returns how many ICMP errors the balancer sent to the
/// client, and the path MTU that the client cached.
pub(crate) fn upload(scene: &Scene, vip: SocketAddr, bytes: usize) -> (u64, String) {
    let reported = || scene.settled().over_threads(&["packet_too_big_sent"]);
    // With a small send buffer, the packets in flight fit into a ring. Even on a busy machine, no
    // packet is therefore lost before it reaches the balancer.
    scene.bed.client.ns.sysctl(&[("ipv4/tcp_wmem", "4096 65536 1048576")]).unwrap();
    let (before, start) = (reported(), Instant::now());
    let mut connection = scene.bed.http_client().connect(vip).unwrap();
    let reply =
        connection.post("/", &vec![7; bytes]).unwrap_or_else(|e| panic!("{e}\n{}", scene.diagnosis()));
    let took = start.elapsed();
    drop(connection);
    let reported = reported() - before;
    println!("{bytes} bytes to {vip} in {took:.2?}, {reported} ICMP errors to the client");
    let said = String::from_utf8(reply.body).unwrap();
    assert!(said.contains(&format!("received {bytes}\n")), "{said}");
    (reported, scene.bed.client.ns.text("ip", &["route", "get", &vip.ip().to_string()]).unwrap())
}

#[test]
fn upload_over_1500_byte_path_completes() {
    for (outer_v4, room) in [(true, 1476), (false, 1456)] {
        let scene = Scene::new(&narrow(1500), |bed| {
            let config = LbConfig::new(bed);
            if outer_v4 { config } else { config.outer_v6(bed) }
        });
        for ipv4 in [true, false] {
            let bytes = count(10_000_000, 100_000_000);
            let (reported, route) = upload(&scene, scene.bed.vip(ipv4, Bed::HTTP_PORT), bytes);
            assert!(reported > 0 && route.contains(&format!("mtu {room}")), "{reported}, {route}");
        }
        let counts = scene.settled();
        assert_eq!(
            (counts.drops(), counts.over_threads(&["fragmented"])),
            (vec![], 0),
            "{}",
            scene.diagnosis()
        );
    }
}

/// For each kind of outer header: `true` for IPv4, the prefix of its source addresses, and its
/// overhead in bytes.
const OUTER: [(bool, &str, u32); 4] =
    [(true, "", 24), (true, "198.51.100.0/28", 24), (false, "", 44), (false, "2001:db8:5::/64", 44)];

#[test]
fn path_mtu_to_backends_is_learned_and_reported() {
    for (outer_v4, sources, encap_overhead) in OUTER {
        let bed = Bed::new(&BedSpec::default()).unwrap();
        let mut config = LbConfig::new(&bed);
        let mut from = vec![];
        if !sources.is_empty() {
            config.encapsulation_keys = format!("source_prefixes = [\"{sources}\"]");
            from.push(sources.to_owned());
        }
        if !outer_v4 {
            config = config.outer_v6(&bed);
        }
        let decaps = if from.is_empty() {
            Decap::start_all(&bed).unwrap()
        } else {
            (0..bed.backends.len()).map(|index| Decap::start(&bed, index, &from).unwrap()).collect()
        };
        let balancer = Balancer::start(&bed, 0, &config).unwrap();
        let scene = Scene { balancer, decaps, bed };
        let Bed { router, backends, balancers, .. } = &scene.bed;
        if !sources.is_empty() {
            let via = balancers[0].address(if outer_v4 { testbed::VIP_V4 } else { testbed::VIP_V6 });
            router.ip(&format!("route add {sources} via {via}")).unwrap();
        }
        for host in backends {
            router.ip(&format!("link set {} mtu {TAKES}", host.port)).unwrap();
        }
        for ipv4 in [true, false] {
            let (reported, route) =
                upload(&scene, scene.bed.vip(ipv4, Bed::HTTP_PORT), count(3_000_000, 100_000_000));
            let room = TAKES - encap_overhead;
            assert!(reported > 0 && route.contains(&format!("mtu {room}")), "{reported}, {route}");
        }
        let dropped = scene.settled().drops();
        let taken_in = |(reason, count): &(String, u64)| reason == "taken_in" && *count > 0;
        assert!(dropped.len() == 1 && dropped.iter().all(taken_in), "{dropped:?}\n{}", scene.diagnosis());
    }
}

/// A reduced MTU, which is still larger than the minimum IPv6 MTU plus outer headers.
pub(crate) const TAKES: u32 = 1400;

const BYTES: usize = 5_000_000;
pub(crate) const NARROW: u32 = 1300;

/// Downloads from a VIP on twelve connections, and returns the backends that served them.
pub(crate) fn download(scene: &Scene, vip: SocketAddr) -> BTreeSet<String> {
    let start = Instant::now();
    let replies = scene.bed.http_client().get_many(vip, &format!("/bytes/{BYTES}"), 12, 4);
    let took = start.elapsed();
    let served = replies.into_iter().map(|reply| {
        let reply = reply.unwrap_or_else(|error| panic!("{error}\n{}", scene.diagnosis()));
        assert_eq!((reply.status, reply.body.len(), reply.peer), (200, BYTES, vip));
        reply.backend
    });
    let served = served.collect();
    println!("12 downloads of {BYTES} bytes from {vip} in {took:.2?} by {served:?}");
    served
}

#[test]
fn backends_learn_path_mtu_to_the_client() {
    // An ICMP error can arrive on any queue. The thread that receives the error passes it to the
    // thread that has the flow.
    let scene = Scene::new(&BedSpec { queues: 4, ..BedSpec::default() }, LbConfig::new);
    let port = &scene.bed.client.port;
    scene.bed.router.ip(&format!("link set {port} mtu {NARROW}")).unwrap();
    for ipv4 in [true, false] {
        let vip = scene.bed.vip(ipv4, Bed::HTTP_PORT);
        let to_vip = move |frame: &[u8]| {
            Frame::parse(frame).is_some_and(|f| is_too_big(&f.ip) && f.ip.destination == vip.ip())
        };
        let reported = Capture::start(&scene.bed.router, &scene.bed.balancers[0].port, 1000, to_vip).unwrap();
        let served = download(&scene, vip);
        reported.wait_for(served.len(), BOUND).unwrap();
        println!("{} ICMP errors from the router", reported.frames().len());
        // The probability that all 12 flows use the same backend of three is 3^-11.
        assert!(served.len() > 1, "{served:?}");
        let client = scene.bed.client.address(vip.ip()).to_string();
        for host in scene.bed.backends.iter().filter(|host| served.contains(&host.name)) {
            let route = host.ns.text("ip", &["route", "get", &client]).unwrap();
            assert!(route.contains(&format!("mtu {NARROW}")), "{}: {route}", host.name);
        }
    }
    let counts = scene.settled();
    println!("{} ICMP errors crossed threads", counts.over_threads(&["to_threads"]));
    assert_eq!((counts.drops(), counts.over_threads(&["replies"])), (vec![], 0));
}

/// Returns `true` for the ICMP errors "fragmentation needed" (IPv4) and "packet too big" (IPv6).
fn is_too_big(ip: &Ip) -> bool {
    matches!((ip.protocol, ip.payload()), (1, [3, 4, ..]) | (58, [2, 0, ..]))
}

pub(crate) const PACKETS: u16 = 20;

/// Sends packets of 1,500 bytes with DF cleared to the balancer, one per flow. Returns these
/// packets, and the datagrams that the backends should receive.
pub(crate) fn inject_large(scene: &Scene) -> (Vec<Vec<u8>>, BTreeSet<Received>) {
    let port = &scene.bed.balancers[0].port;
    let one = |number: u16| {
        let spec = large(scene, true, number, 1500 - 28);
        let received = Received { from: spec.source, len: spec.payload.len(), digest: digest(&spec.payload) };
        (may_be_cut(spec.bytes()), received)
    };
    let (frames, expected): (Vec<_>, _) = (0..PACKETS).map(one).unzip();
    frames.iter().for_each(|frame| inject(&scene.bed.router, port, frame).unwrap());
    (frames, expected)
}

fn large(scene: &Scene, ipv4: bool, number: u16, payload: usize) -> FrameSpec {
    let mut spec = scene.frame(ipv4, INBOX_PORT);
    spec.source = SocketAddr::new(spec.source.ip(), 5000 + number);
    spec.payload =
        (0..payload).map(|at| u8::try_from((at * 13 + usize::from(number)) % 256).unwrap()).collect();
    spec
}

#[test]
fn inner_fragmentation_delivers_packets() {
    for (kind, outer_v4) in [
        (Encapsulation::Gre, true),
        (Encapsulation::Gre, false),
        (Encapsulation::Ipip, true),
        (Encapsulation::Gue, false),
    ] {
        let scene = Scene::new(&narrow(1500), |bed| {
            let config = with_inbox(bed).encapsulation(kind);
            if outer_v4 { config } else { config.outer_v6(bed) }
        });
        let inboxes = inboxes(&scene, true);
        let (_, expected) = inject_large(&scene);
        assert!(have_had(&inboxes, expected.len()), "{}", scene.diagnosis());
        let counts = scene.settled();
        let (cut, sent) = (counts.over_threads(&["fragmented"]), counts.sent());
        println!(
            "{kind:?} over IPv{}, {cut} of {PACKETS} packets fragmented, {sent} sent",
            if outer_v4 { 4 } else { 6 }
        );
        assert_eq!((cut, sent, counts.drops()), (u64::from(PACKETS), 2 * u64::from(PACKETS), vec![]));
        scene.taken_off(sent);
        let seen: Vec<Received> = inboxes.iter().flat_map(testbed::UdpInbox::seen).collect();
        assert_eq!((seen.len(), seen.into_iter().collect()), (expected.len(), expected));
    }
}

/// Captures the fragments of outer packets at the router while `inject` runs, reassembles them, and
/// returns the encapsulated packets.
fn cut_outside(scene: &Scene, inject: impl FnOnce(), packets: usize) -> Vec<Outer> {
    let host = &scene.bed.balancers[0];
    let is_piece = |frame: &[u8]| Frame::parse(frame).is_some_and(|frame| frame.ip.fragment.is_some());
    let watch = Capture::start(&scene.bed.router, &host.port, 1000, is_piece).unwrap();
    inject();
    let seen = watch.wait_for(2 * packets, BOUND).unwrap_or_else(|e| panic!("{e:#}\n{}", scene.diagnosis()));
    let pieces: Vec<Ip> = seen
        .iter()
        .filter(|frame| !frame.outgoing)
        .map(|frame| Frame::parse(&frame.bytes).unwrap().ip)
        .collect();
    assert_eq!(pieces.len(), 2 * packets);
    for piece in &pieces {
        assert!(piece.bytes.len() <= scene.bed.spec.core_mtu as usize && piece.checksum_ok);
        assert!(!piece.dont_fragment || piece.source.is_ipv6());
    }
    let whole = |pair: &[Ip]| {
        let payload = join(pair).expect("the fragments do not form a packet");
        let inner = Ip::parse(payload.get(4..).unwrap()).unwrap();
        Outer { kind: testbed::Kind::Gre, outer: pair[0].clone(), inner }
    };
    pieces.chunks(2).map(whole).collect()
}

#[test]
fn fragment_outer_policy_fragments_outer_packets() {
    for outer_v4 in [true, false] {
        let scene = Scene::new(&narrow(1500), |bed| {
            let mut config = with_inbox(bed);
            config.encapsulation_keys = "too_big = \"fragment-outer\"".into();
            if outer_v4 { config } else { config.outer_v6(bed) }
        });
        let mut frames = vec![];
        let whole = cut_outside(&scene, || frames = inject_large(&scene).0, PACKETS.into());
        for (frame, Outer { outer, inner, .. }) in frames.iter().zip(&whole) {
            let original = Frame::parse(frame).unwrap().ip;
            assert_eq!((inner.ttl, inner.payload()), (original.ttl - 1, original.payload()));
            assert!(inner.checksum_ok && inner.transport_checksum_ok() == Some(true));
            assert_eq!(outer.source, scene.bed.balancers[0].address(outer.destination));
        }
        let counts = scene.settled();
        println!(
            "outer IPv{}, {} packets fragmented",
            if outer_v4 { 4 } else { 6 },
            counts.over_threads(&["fragmented"])
        );
        assert_eq!(counts.over_threads(&["fragmented"]), u64::from(PACKETS));
        assert_eq!((counts.sent(), counts.drops()), (2 * u64::from(PACKETS), vec![]));
    }
}

#[test]
fn ipv6_packet_of_minimum_mtu_is_delivered() {
    for outer_v4 in [true, false] {
        let scene = Scene::new(&narrow(1290), |bed| {
            let config = with_inbox(bed);
            if outer_v4 { config } else { config.outer_v6(bed) }
        });
        let frame = large(&scene, false, 1, 1280 - 48).bytes();
        let send = || inject(&scene.bed.router, &scene.bed.balancers[0].port, &frame).unwrap();
        let whole = cut_outside(&scene, send, 1);
        let original = Frame::parse(&frame).unwrap().ip;
        assert_eq!((whole[0].inner.bytes.len(), whole[0].inner.payload()), (1280, original.payload()));
        assert_eq!(scene.settled().drops(), []);
    }
}

#[test]
fn drop_policy_drops_too_big_packets() {
    let scene = Scene::new(&narrow(1500), |bed| {
        let mut config = with_inbox(bed);
        config.encapsulation_keys = "too_big = \"drop\"".into();
        config
    });
    inject_large(&scene);
    scene.drops_become("too_big", PACKETS.into());
    assert_eq!(scene.settled().sent(), 0);
    // A sender that sets DF still gets an ICMP error.
    let frame = large(&scene, true, 0, 1500 - 28).bytes();
    inject(&scene.bed.router, &scene.bed.balancers[0].port, &frame).unwrap();
    let reported = testbed::eventually(BOUND, || {
        (scene.balancer.counters().unwrap().over_threads(&["packet_too_big_sent"]) == 1).then_some(())
    });
    assert!(reported.is_some(), "{}", scene.diagnosis());
    assert!(Client::new(&scene.bed.client.ns).get(scene.bed.vip(true, Bed::HTTP_PORT), "/").is_ok());
}

/// Returns an ICMP error "fragmentation needed" about an outer packet to `backend`. The error
/// quotes only the part of this packet before the inner ports.
fn too_big_about(like: &FrameSpec, own: Ipv4Addr, backend: Ipv4Addr) -> Vec<u8> {
    let mut quote = vec![0x45, 0, 0x05, 0xdc, 0, 0, 0x40, 0, 64, 47, 0, 0];
    quote.extend(own.octets().into_iter().chain(backend.octets()));
    quote.extend([0, 0, 0x08, 0, 0x45, 0, 0x05, 0xc4]);
    FrameSpec { destination: (own, 0).into(), icmp: Some([3, 4]), payload: quote, ..like.clone() }.bytes()
}

/// Sends the frames at a rate at which a ring holds half a second of traffic. At the same time,
/// repeatedly overrides the state of a backend. Returns the time that each override needed to take
/// effect, sorted. An override uses the same controller, tables and publisher as a change of the
/// health state.
fn verdicts_during(scene: &Scene, frames: Vec<Vec<u8>>) -> Vec<Duration> {
    let (router, port) = (&scene.bed.router, &scene.bed.balancers[0].port);
    let mut took = vec![];
    thread::scope(|scope| {
        let flood = scope.spawn(|| send_at(router, port, frames, 5_000.0).unwrap());
        while !flood.is_finished() || took.is_empty() {
            let verdict = if took.len() % 2 == 0 { "down" } else { "up" };
            let asked = Instant::now();
            let answer = scene.balancer.order(&format!("/v1/backends/b1/{verdict}")).unwrap();
            took.push(asked.elapsed());
            assert_eq!(answer["changed"], true, "{answer:#}");
        }
        println!("sent in {:.1?}", flood.join().unwrap());
    });
    took.sort_unstable();
    took
}

// Promise: path-mtu-forgery
#[test]
fn forged_icmp_errors_publish_no_snapshot() {
    let scene = Scene::with(|bed| LbConfig {
        io: "icmp = { errors_per_second = 1_000_000, errors_per_source = 1_000_000 }".into(),
        ..LbConfig::new(bed)
    });
    let (like, own) = (scene.frame(true, Bed::SINK_PORT), scene.bed.balancers[0].v4);
    let about = |backend| too_big_about(&like, own, backend);
    // The balancer writes a log line when it publishes a path MTU.
    let published = || {
        let lines = scene.balancer.process.lines();
        let is_of_a_path =
            |text: &str| text.contains("path MTU lowered") || text.contains("path MTUs lowered");
        lines.iter().filter(|line| is_of_a_path(&line.text)).count()
    };
    // An error about a packet to an existing backend is accepted.
    let good = about(scene.bed.backends[1].v4);
    inject(&scene.bed.router, &scene.bed.balancers[0].port, &good).unwrap();
    assert!(eventually(BOUND, || (published() == 1).then_some(())).is_some(), "{}", scene.diagnosis());
    let all = count(7_000, 70_000);
    let nobody = |n: usize| Ipv4Addr::from_bits(0xc612_8000 + u32::try_from(n).unwrap());
    let took = verdicts_during(&scene, (0..all).map(|n| about(nobody(n))).collect());
    let counts = scene.balanced(10 * BOUND);
    let taken_in = counts.drops().into_iter().find(|(reason, _)| reason == "taken_in").unwrap().1;
    let of = |percent: usize| took[(took.len() - 1) * percent / 100];
    println!(
        "{all} forged errors, {taken_in} received, {} state changes in effect after {:.1?} (median), {:.1?} (99 %) and {:.1?} (maximum)",
        took.len(),
        of(50),
        of(99),
        of(100)
    );
    assert!(taken_in > all as u64 / 2, "{taken_in}\n{}", scene.diagnosis());
    thread::sleep(2 * SILENCE); // longer than the interval at which path MTUs are published
    assert_eq!(published(), 1, "{}", scene.diagnosis());
}
