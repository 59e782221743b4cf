//! Drops over the real path: each packet moves its own reason's count by one, and no other.

use testbed::{Bed, BedSpec, LbConfig, UdpServer, inject, udp_ask};

use crate::scene::{BOUND, SILENCE, Scene};

/// Runs `act` and checks that `reason` alone rose, by `count`.
fn rises(scene: &Scene, reason: &str, count: u64, act: impl FnOnce()) {
    let before = scene.settled();
    act();
    let of = |counts: &testbed::Counters| counts.over_threads(&["drops", reason]);
    let risen = testbed::eventually(BOUND, || {
        (of(&scene.balancer.counters().unwrap()) >= of(&before) + count).then_some(())
    });
    assert!(risen.is_some(), "{reason} did not rise by {count}\n{}", scene.told());
    let (after, sum) = (scene.settled(), |counts: &testbed::Counters| -> u64 {
        counts.drops().iter().map(|(_, count)| count).sum()
    });
    assert_eq!(of(&after) - of(&before), count, "{reason}");
    assert_eq!(sum(&after) - sum(&before), count, "{reason}, and others: {:?}", after.drops());
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
        for ttl in [0, 1] {
            rises(&scene, "ttl", 1, || {
                let mut last = scene.frame(ipv4, Bed::SINK_PORT);
                last.ttl = ttl;
                send(&last.bytes());
            });
        }
        rises(&scene, "malformed", 1, || {
            let mut lying = scene.frame(ipv4, Bed::SINK_PORT).bytes();
            // The IP packet says that it is longer than the frame.
            lying[if ipv4 { 16 } else { 18 }] = 0x05;
            send(&lying);
        });
        rises(&scene, "fragment", 3, || {
            let echo = scene.bed.vip(ipv4, Bed::ECHO_PORT);
            udp_ask(&scene.bed.client.ns, echo, &[7; 4000], SILENCE).unwrap_err();
        });
        rises(&scene, "icmp", 1, || send(&time_exceeded(&scene, ipv4)));
    }
}

/// An ICMP error to a VIP: a UDP frame made over.
fn time_exceeded(scene: &Scene, ipv4: bool) -> Vec<u8> {
    let mut bytes = scene.frame(ipv4, Bed::SINK_PORT).bytes();
    let (protocol, icmp) = if ipv4 { (1, 11) } else { (58, 3) };
    let at = if ipv4 { 34 } else { 54 };
    bytes.truncate(at);
    bytes.extend([icmp, 0, 0, 0, 0, 0, 0, 0]);
    if ipv4 {
        bytes[16..18].copy_from_slice(&28u16.to_be_bytes());
        bytes[23] = protocol;
        // RFC 1624: 11 was 17 in the low half of its word, and the length changed; summed anew.
        bytes[24..26].fill(0);
        let sum: u32 = bytes[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        bytes[24..26].copy_from_slice(&(!u16::try_from(folded).unwrap()).to_be_bytes());
    } else {
        bytes[18..20].copy_from_slice(&8u16.to_be_bytes());
        bytes[20] = protocol;
    }
    bytes
}

#[test]
fn a_packet_that_its_outer_header_makes_too_big_is_dropped_and_the_largest_that_fits_is_not() {
    let spec = BedSpec { core_mtu: 1400, ..BedSpec::default() };
    let scene = Scene::new(&spec, LbConfig::new);
    for (ipv4, headers) in [(true, 28), (false, 48)] {
        let echo = scene.bed.vip(ipv4, Bed::ECHO_PORT);
        let largest = 1400 - 24 - headers;
        let fits = vec![7; largest];
        let reply = udp_ask(&scene.bed.client.ns, echo, &fits, BOUND);
        // The reply names the client, and has no room on the backend's link then: the backend cuts it up.
        reply.unwrap_or_else(|error| panic!("{error:#}\n{}", scene.told()));
        rises(&scene, "too_big", 1, || {
            let over = vec![7; largest + 1];
            udp_ask(&scene.bed.client.ns, echo, &over, SILENCE).unwrap_err();
        });
    }
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
fn a_backend_without_a_route_has_no_next_hop_until_there_is_one() {
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
    let answered = testbed::eventually(BOUND, || udp_ask(&scene.bed.client.ns, echo, b"x", SILENCE).ok());
    assert!(answered.is_some(), "{}", scene.told());
}

#[test]
fn pings_over_the_rate_are_dropped_by_name() {
    let scene = Scene::with(LbConfig::new);
    // An echo request made over from the ICMP error above: type 8, and a payload that no one checks.
    let mut echo = time_exceeded(&scene, true);
    echo[34..38].copy_from_slice(&[8, 0, 0xf7, 0xff]);
    let port = &scene.bed.balancers[0].port;
    let time = std::time::Duration::from_millis(300);
    let (sent, _) =
        testbed::blast(&scene.bed.router, port, vec![echo; 64], time).unwrap().join().unwrap().unwrap();
    // The generator may outrun the socket, so what the kernel lost counts too.
    let counts = testbed::eventually(BOUND, || {
        let counts = scene.balancer.counters().unwrap();
        (counts.redirected() == counts.received() + counts.lost_before_threads()).then_some(counts)
    });
    let counts = counts.unwrap_or_else(|| panic!("the counts do not agree\n{}", scene.told()));
    let (replies, dropped) =
        (counts.over_threads(&["replies"]), counts.over_threads(&["drops", "reply_rate"]));
    println!("{sent} pings sent, {replies} answered, {dropped} over the rate");
    assert!(replies >= 100 && dropped > 0, "{sent} {replies} {dropped}");
    assert_eq!(replies + dropped, counts.received());
}

#[test]
fn decap_takes_nothing_off_from_other_sources() {
    let bed = Bed::new(&BedSpec { backends: 1, ..BedSpec::default() }).unwrap();
    let _sink = UdpServer::sink(&bed.backends[0].ns, (bed.backends[0].v4, 4000).into()).unwrap();
    let stranger = ["192.0.2.200/32".to_owned(), "2001:db8:0:ff::/64".to_owned()];
    let decaps = vec![testbed::Decap::start(&bed, 0, &stranger).unwrap()];
    let balancer = testbed::Balancer::start(&bed, 0, &LbConfig::new(&bed)).unwrap();
    let scene = Scene { balancer, decaps, bed };
    let mut flows =
        testbed::UdpFlows::open(&scene.bed.client.ns, scene.bed.vip(true, Bed::ECHO_PORT), 5, SILENCE / 6)
            .unwrap();
    assert_eq!(flows.round().unwrap(), vec![None; 5]);
    let Scene { balancer, mut decaps, bed } = scene;
    let refused = decaps.remove(0).stop().unwrap();
    assert_eq!((refused["refused_source"].as_u64(), testbed::Decap::taken_off(&refused)), (Some(5), 0));
    drop((balancer, bed));
}
