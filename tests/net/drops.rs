//! Tests of drop counters. Each dropped packet must increment the counter of exactly one reason.

use testbed::{Bed, BedSpec, FrameSpec, LbConfig, UdpServer, cut, eventually, inject, send_at, udp_ask};

use crate::scene::{BOUND, SILENCE, Scene};

/// Runs `act` and checks that the counter of `reason` increases by `count` and that no other drop
/// counter changes.
fn rises(scene: &Scene, reason: &str, count: u64, act: impl FnOnce()) {
    let before = scene.settled();
    act();
    let of = |counts: &testbed::Counters| counts.over_threads(&["drops", reason]);
    let risen =
        eventually(BOUND, || (of(&scene.balancer.counters().unwrap()) >= of(&before) + count).then_some(()));
    assert!(risen.is_some(), "{reason} did not increase by {count}\n{}", scene.diagnosis());
    let (after, sum) = (scene.settled(), |counts: &testbed::Counters| -> u64 {
        counts.drops().iter().map(|(_, count)| count).sum()
    });
    assert_eq!(of(&after) - of(&before), count, "{reason}");
    assert_eq!(
        sum(&after) - sum(&before),
        count,
        "drop counters other than {reason} increased, {:?}",
        after.drops()
    );
    assert_eq!(after.sent(), before.sent(), "{reason}");
}

#[test]
fn each_reason_counts_its_own_packets() {
    let scene = Scene::with(LbConfig::new);
    let port = &scene.bed.balancers[0].port;
    let send = |bytes: &[u8]| inject(&scene.bed.router, port, bytes).unwrap();
    for ipv4 in [true, false] {
        rises(&scene, "no_vip", 1, || send(&scene.frame(ipv4, 54).bytes()));
        rises(&scene, "no_vip", 1, || {
            let mut wrong_protocol = scene.frame(ipv4, Bed::ECHO_PORT);
            wrong_protocol.tcp_flags = Some(0x02);
            send(&wrong_protocol.bytes());
        });
        rises(&scene, "ttl", 1, || {
            // A host must not send an ICMP error in response to an ICMP error (RFC 1122 §3.2.2).
            let mut error = icmp(&scene, ipv4, unreachable(ipv4), quote(&scene, ipv4));
            error.ttl = 1;
            send(&error.bytes());
        });
        rises(&scene, "malformed", 1, || {
            let mut lying = scene.frame(ipv4, Bed::SINK_PORT).bytes();
            // The length field in the IP header exceeds the length of the frame.
            lying[if ipv4 { 16 } else { 18 }] = 0x05;
            send(&lying);
        });
        rises(&scene, "icmp", 1, || send(&icmp(&scene, ipv4, [200, 0], vec![0; 8]).bytes()));
        rises(&scene, "icmp_quote", 1, || {
            // The packet in the ICMP error was not sent by the VIP.
            let forged = scene.frame(ipv4, Bed::SINK_PORT).bytes();
            send(&icmp(&scene, ipv4, unreachable(ipv4), forged[14..].to_vec()).bytes());
        });
    }
}

/// Returns a configuration that keeps fragments for `lifetime`.
fn remembering(bed: &Bed, lifetime: &str) -> LbConfig {
    LbConfig { more: format!("[io.fragments]\nlifetime = \"{lifetime}\"\n"), ..LbConfig::new(bed) }
}

#[test]
fn malformed_fragments_are_dropped_by_reason() {
    let scene = Scene::with(|bed| remembering(bed, "60s"));
    let port = &scene.bed.balancers[0].port;
    let send = |bytes: &[u8]| inject(&scene.bed.router, port, bytes).unwrap();
    for ipv4 in [true, false] {
        let pieces = |id: u32, tcp: bool, room: usize| {
            let mut whole = scene.frame(ipv4, if tcp { Bed::HTTP_PORT } else { Bed::SINK_PORT });
            whole.tcp_flags = tcp.then_some(0x02);
            whole.payload = vec![u8::try_from(id).unwrap(); 600];
            cut(&whole.bytes(), id, room)
        };
        rises(&scene, "fragment_tiny", 1, || send(&pieces(1, true, 8)[0]));
        rises(&scene, "fragment_overlap", 1, || send(&pieces(2, true, 8)[1]));
        let sent = scene.settled().sent();
        send(&pieces(3, false, 400)[0]);
        let known = eventually(BOUND, || (scene.balancer.counters().unwrap().sent() > sent).then_some(()));
        assert!(known.is_some(), "{}", scene.diagnosis());
        rises(&scene, "fragment_conflict", 1, || {
            let mut other = pieces(3, false, 400).swap_remove(0);
            *other.last_mut().unwrap() ^= 1;
            send(&other);
        });
    }
    assert_eq!(scene.settled().over_threads(&["held"]), 0);
}

#[test]
fn late_first_fragment_holds_64_until_expiry() {
    let scene = Scene::with(|bed| remembering(bed, "10s"));
    let mut whole = scene.frame(true, Bed::SINK_PORT);
    whole.payload = vec![7; 600];
    for piece in &cut(&whole.bytes(), 4, 8)[1..66] {
        inject(&scene.bed.router, &scene.bed.balancers[0].port, piece).unwrap();
    }
    let when = |held: u64| {
        let counts = eventually(BOUND, || {
            let counts = scene.balancer.counters().unwrap();
            (counts.received() == 65 && counts.over_threads(&["held"]) == held).then_some(counts)
        });
        counts.unwrap_or_else(|| panic!("{}", scene.diagnosis())).drops()
    };
    assert_eq!(when(64), [("fragment_datagram_full".into(), 1)]);
    assert_eq!(when(0), [("fragment_datagram_full".into(), 1), ("fragment_timeout".into(), 64)]);
}

/// Returns an ICMP message to the VIP of this address family.
fn icmp(scene: &Scene, ipv4: bool, kind: [u8; 2], payload: Vec<u8>) -> FrameSpec {
    FrameSpec { icmp: Some(kind), payload, ..scene.frame(ipv4, Bed::SINK_PORT) }
}

/// Returns the ICMP type and code for port unreachable.
fn unreachable(ipv4: bool) -> [u8; 2] {
    if ipv4 { [3, 3] } else { [1, 4] }
}

/// Returns a packet from the VIP's sink port, as a router would include it in an ICMP error.
fn quote(scene: &Scene, ipv4: bool) -> Vec<u8> {
    let mut answer = scene.frame(ipv4, Bed::SINK_PORT);
    (answer.source, answer.destination) = (answer.destination, answer.source);
    answer.bytes()[14..].to_vec()
}

#[test]
fn oversized_packet_triggers_icmp_error() {
    let spec = BedSpec { core_mtu: 1400, ..BedSpec::default() };
    let scene = Scene::new(&spec, LbConfig::new);
    for (ipv4, headers) in [(true, 28), (false, 48)] {
        let reported = || scene.settled().over_threads(&["packet_too_big_sent"]);
        let echo = scene.bed.vip(ipv4, Bed::ECHO_PORT);
        let largest = 1400 - 24 - headers;
        let fits = vec![7; largest];
        let reply = udp_ask(&scene.bed.client.ns, echo, &fits, BOUND);
        // The reply also contains the client's address, so it exceeds the MTU of the backend's
        // link, and the backend fragments it.
        reply.unwrap_or_else(|error| panic!("{error:#}\n{}", scene.diagnosis()));
        let before = reported();
        let over = vec![7; largest + 1];
        udp_ask(&scene.bed.client.ns, echo, &over, SILENCE).unwrap_err();
        let route = || scene.bed.client.ns.text("ip", &["route", "get", &echo.ip().to_string()]).unwrap();
        let heard = eventually(BOUND, || route().contains("mtu 1376").then_some(()));
        assert!(heard.is_some(), "{}{}", route(), scene.diagnosis());
        assert_eq!(reported() - before, 1, "{}", scene.diagnosis());
        // The client has learned the path MTU and now fragments packets itself.
        udp_ask(&scene.bed.client.ns, echo, &over, BOUND)
            .unwrap_or_else(|error| panic!("{error:#}\n{}", scene.diagnosis()));
        assert_eq!(reported() - before, 1);
    }
    assert_eq!(scene.settled().drops(), []);
}

#[test]
fn a_pool_without_weight_has_no_backend() {
    let scene = Scene::with(|bed| LbConfig::new(bed).weights(&[0, 0, 0]));
    rises(&scene, "no_backend", 1, || {
        inject(&scene.bed.router, &scene.bed.balancers[0].port, &scene.frame(true, Bed::SINK_PORT).bytes())
            .unwrap();
    });
}

#[test]
fn backend_without_route_has_no_next_hop() {
    let bed = Bed::new(&BedSpec { backends: 1, ..BedSpec::default() }).unwrap();
    let host = bed.balancers[0].clone();
    host.ns.ip("route add unreachable 198.18.1.1/32").unwrap();
    let decaps = testbed::Decap::start_all(&bed).unwrap();
    let balancer = testbed::Balancer::start(&bed, 0, &LbConfig::new(&bed)).unwrap();
    let scene = Scene { balancer, decaps, bed };
    rises(&scene, "no_next_hop", 1, || {
        inject(&scene.bed.router, &host.port, &scene.frame(true, Bed::SINK_PORT).bytes()).unwrap();
    });
    host.ns.ip("route del unreachable 198.18.1.1/32").unwrap();
    let echo = scene.bed.vip(true, Bed::ECHO_PORT);
    let answered = eventually(BOUND, || udp_ask(&scene.bed.client.ns, echo, b"x", SILENCE).ok());
    assert!(answered.is_some(), "{}", scene.diagnosis());
}

#[test]
fn pings_over_the_rate_are_dropped_by_name() {
    let scene = Scene::with(LbConfig::new);
    let echo = icmp(&scene, true, [8, 0], vec![]).bytes();
    let port = &scene.bed.balancers[0].port;
    let mut sent = 0;
    let over = eventually(BOUND, || {
        send_at(&scene.bed.router, port, vec![echo.clone(); 5_000], f64::INFINITY).unwrap();
        sent += 5_000;
        (scene.balancer.counters().unwrap().over_threads(&["drops", "reply_rate"]) > 0).then_some(())
    });
    assert!(over.is_some(), "{}", scene.diagnosis());
    // The load generator may be faster than the sockets. The sum therefore includes packets that
    // the kernel dropped.
    let counts = eventually(BOUND, || {
        let counts = scene.balancer.counters().unwrap();
        (counts.redirected() == counts.received() + counts.lost_before_threads()).then_some(counts)
    });
    let counts = counts.unwrap_or_else(|| panic!("the counters do not match\n{}", scene.diagnosis()));
    let (replies, dropped) =
        (counts.over_threads(&["replies"]), counts.over_threads(&["drops", "reply_rate"]));
    println!("{sent} pings sent, {replies} answered, {dropped} dropped by the rate limit");
    assert!(replies >= 100 && dropped > 0, "{sent} {replies} {dropped}");
    assert_eq!(replies + dropped, counts.received());
}

#[test]
fn decap_rejects_other_sources() {
    let bed = Bed::new(&BedSpec { backends: 1, ..BedSpec::default() }).unwrap();
    let _sink = UdpServer::sink(&bed.backends[0].ns, (bed.backends[0].v4, 4000).into()).unwrap();
    let stranger = ["192.0.2.200/32".to_owned(), "2001:db8:0:ff::/64".to_owned()];
    let decaps = vec![testbed::Decap::start(&bed, 0, &stranger).unwrap()];
    let balancer = testbed::Balancer::start(&bed, 0, &LbConfig::new(&bed)).unwrap();
    let scene = Scene { balancer, decaps, bed };
    let mut flows =
        testbed::UdpFlows::open(&scene.bed.client.ns, scene.bed.vip(true, Bed::ECHO_PORT), 5, SILENCE)
            .unwrap();
    assert_eq!(flows.round().unwrap(), vec![None; 5]);
    // `decap` prints its counters once a second.
    let seen = || scene.decaps[0].counts().filter(|counts| counts["refused_source"] == 5);
    assert!(eventually(BOUND, seen).is_some(), "{:?}", scene.decaps[0].counts());
    let Scene { balancer, mut decaps, bed } = scene;
    let refused = decaps.remove(0).stop().unwrap();
    assert_eq!((refused["refused_source"].as_u64(), testbed::Decap::taken_off(&refused)), (Some(5), 0));
    drop((balancer, bed));
}
