//! Tests that a traceroute from a client shows the balancer's own address as a hop.

use std::net::IpAddr;

use testbed::{Bed, LbConfig};

use crate::scene::Scene;

/// Returns the addresses of the hops in order.
fn hops(scene: &Scene, vip: IpAddr, way: &[&str]) -> Vec<IpAddr> {
    let vip = vip.to_string();
    let args = [&["-n", "-q", "1", "-w", "20", "-m", "6"], way, &[vip.as_str()]].concat();
    let said = scene.bed.client.ns.text("traceroute", &args).unwrap();
    println!("{}", said.trim_end());
    let hop = |line: &str| line.split_whitespace().nth(1)?.parse().ok();
    said.lines().skip(1).filter_map(hop).collect()
}

#[test]
fn traceroute_shows_balancer_address_and_reaches_vip() {
    let scene = Scene::with(LbConfig::new);
    let host = &scene.bed.balancers[0];
    let mut asked = 0;
    for ipv4 in [true, false] {
        let vip = scene.bed.vip(ipv4, Bed::HTTP_PORT).ip();
        let gateway: IpAddr = if ipv4 { [198, 18, 0, 1].into() } else { "2001:db8::1".parse().unwrap() };
        for way in [&["-T", "-p", "80"][..], &["-U", "-p", "53"]] {
            let found = hops(&scene, vip, way);
            assert_eq!(found, [gateway, host.address(vip), vip], "{way:?}\n{}", scene.diagnosis());
            asked += 1;
        }
    }
    let counts = scene.settled();
    assert_eq!((counts.over_threads(&["time_exceeded"]), counts.over_threads(&["replies"])), (asked, asked));
    assert_eq!(counts.drops(), []);
}
