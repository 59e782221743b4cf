//! Tests of next hops, with a router that changes its MAC address, and with packets that the
//! balancer reflects to the router that sent them.

use std::time::Instant;

use testbed::{Bed, LbConfig, eventually, inject, udp_ask};

use crate::scene::{BOUND, SILENCE, Scene};

#[test]
fn new_router_mac_address_is_learned() {
    let scene = Scene::with(LbConfig::new);
    let port = &scene.bed.balancers[0].port;
    // The router announces its new address to its neighbors, as after a failover.
    scene
        .bed
        .router
        .sysctl(&[
            (&format!("ipv4/conf/{port}/arp_notify"), "1"),
            (&format!("ipv6/conf/{port}/ndisc_notify"), "1"),
        ])
        .unwrap();
    for (ipv4, mac) in [(true, "02:00:00:00:0a:01"), (false, "02:00:00:00:0a:02")] {
        scene.ask(ipv4, 4);
        let echo = scene.bed.vip(ipv4, Bed::ECHO_PORT);
        scene.bed.router.ip(&format!("link set dev {port} address {mac}")).unwrap();
        let changed = Instant::now();
        let answered = eventually(BOUND, || udp_ask(&scene.bed.client.ns, echo, b"again", SILENCE).ok());
        let took = changed.elapsed();
        assert!(answered.is_some(), "{}", scene.diagnosis());
        println!(
            "requests answered {took:?} after the router's new address over IPv{}",
            if ipv4 { 4 } else { 6 }
        );
        scene.ask(ipv4, 8);
    }
}

#[test]
fn reflect_uses_gateway_and_drops_unknown_senders() {
    let scene = Scene::with(|bed| {
        let mut config = LbConfig::new(bed);
        config.io = "next_hop = \"reflect\"".into();
        config
    });
    // Even the first packet is forwarded, because the balancer is ready only after it knows the MAC
    // addresses of its gateways.
    let mut first = scene.flows(true, 20);
    scene.round(&mut first);
    for ipv4 in [true, false] {
        scene.ask(ipv4, 8);
    }
    assert_eq!(scene.settled().drops(), []);
    let mut strange = scene.frame(true, Bed::SINK_PORT);
    strange.from = [2, 0, 0, 0, 0x99, 1];
    inject(&scene.bed.router, &scene.bed.balancers[0].port, &strange.bytes()).unwrap();
    let dropped = eventually(BOUND, || {
        let counts = scene.balancer.counters().unwrap();
        Some(counts).filter(|counts| counts.over_threads(&["drops", "unknown_gateway"]) == 1)
    });
    assert!(dropped.is_some(), "{}", scene.diagnosis());
    // All other packets were forwarded.
    assert_eq!(scene.settled().drops(), [("unknown_gateway".into(), 1)]);
}
