//! The way to the backends: a router that changes its MAC address, and frames sent back to where they came from.

use std::time::Instant;

use testbed::{Bed, LbConfig, eventually, inject, udp_ask};

use crate::scene::{BOUND, SILENCE, Scene};

#[test]
fn requests_are_answered_again_after_the_router_has_changed_its_mac_address() {
    let scene = Scene::with(LbConfig::new);
    let port = &scene.bed.balancers[0].port;
    // As a router does that takes over: it tells its neighbours.
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
        println!("answered {took:?} after the router's new address, IPv{}", if ipv4 { 4 } else { 6 });
        scene.ask(ipv4, 8);
    }
}

#[test]
fn reflect_sends_back_to_the_gateway_and_drops_what_a_stranger_sent() {
    let scene = Scene::with(|bed| {
        let mut config = LbConfig::new(bed);
        config.io = "next_hop = \"reflect\"".into();
        config
    });
    // From the first packet on: the gateways are known before the balancer says that it is ready.
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
    // With that one all that was received and not dropped has been sent.
    assert_eq!(scene.settled().drops(), [("unknown_gateway".into(), 1)]);
}
