//! Tests of prefix groups. The balancer must also serve VIP addresses that have the prefix of a
//! different cluster, although these addresses are not configured. The kernel must receive packets
//! for the machine's own addresses, even if the addresses are inside a prefix of the group.

use std::net::IpAddr;

use testbed::{Bed, BedSpec, LbConfig, VIP_V4, VIP_V6, eventually, udp_ask};

use crate::own_traffic::pings;
use crate::scene::{BOUND, SILENCE, Scene};

/// VIP addresses with a prefix of this cluster, and with a prefix of an unknown cluster.
const OWN: [&str; 2] = ["198.51.100.148", "2001:db8:e::20"];
const UNKNOWN: [&str; 2] = ["198.51.100.20", "2001:db8:e:ab00::20"];

pub(crate) const GROUP: &str = r#"
[prefix_group.edge]
prefixes = ["198.51.100.128/25", "198.51.100.0/24", "2001:db8:e::/48"]
[vip.edge]
group = "edge"
suffixes = ["0.0.0.20/7", "::20/72"]
services = [{ ports = [53], protocol = "udp", pool = "web" }, { ports = [80], protocol = "tcp", pool = "web" }]
"#;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn spec() -> BedSpec {
    let group = OWN.iter().chain(&UNKNOWN).map(|text| ip(text));
    BedSpec { vips: [VIP_V4, VIP_V6].into_iter().chain(group).collect(), ..BedSpec::default() }
}

/// Returns the default configuration with the additional TOML text `more`. `vip.www` has only the
/// two exact addresses.
fn config(bed: &Bed, more: &str) -> LbConfig {
    LbConfig { vips: vec![VIP_V4, VIP_V6], more: more.into(), ..LbConfig::new(bed) }
}

fn echoes(scene: &Scene, address: IpAddr) {
    let echo = (address, Bed::ECHO_PORT).into();
    let reply = udp_ask(&scene.bed.client.ns, echo, b"x", BOUND);
    assert_eq!(reply.unwrap_or_else(|error| panic!("{error:#}\n{}", scene.diagnosis())).from, echo);
}

fn is_silent(scene: &Scene, address: IpAddr) {
    let echo = (address, Bed::ECHO_PORT).into();
    assert!(udp_ask(&scene.bed.client.ns, echo, b"x", SILENCE).is_err(), "{address}\n{}", scene.diagnosis());
}

/// Routes all prefixes of the group to the first balancer.
fn route_group(bed: &Bed) {
    let host = &bed.balancers[0];
    let routes =
        format!("route add 198.51.100.0/24 via {}\nroute add 2001:db8:e::/48 via {}", host.v4, host.v6);
    bed.router.ip(&routes).unwrap();
}

fn no_vip(scene: &Scene) -> u64 {
    let drops = scene.settled().drops();
    drops.iter().filter(|(reason, _)| reason == "no_vip").map(|(_, count)| count).sum()
}

#[test]
fn group_vip_is_served_in_unknown_clusters() {
    let scene = Scene::new(&spec(), |bed| config(bed, GROUP));
    route_group(&scene.bed);
    for vip in OWN.iter().chain(&UNKNOWN).map(|text| ip(text)) {
        echoes(&scene, vip);
        let reply = scene.bed.http_client().get((vip, Bed::HTTP_PORT).into(), "/").unwrap();
        assert_eq!(reply.server_seen, Some((vip, Bed::HTTP_PORT).into()));
        pings(&scene.bed.client.ns, vip, 2);
    }
    assert_eq!(scene.settled().drops(), []);
    for other in ["198.51.100.21", "2001:db8:e::21"].map(ip) {
        is_silent(&scene, other);
    }
    // The two unserved addresses have a prefix of the group but no VIP suffix.
    scene.drops_become("no_vip", 2);
}

#[test]
fn own_addresses_in_group_stay_with_the_kernel() {
    let spec = spec();
    let bed = |bed: &Bed| {
        let own = "addr add 198.51.100.7/32 dev lb0\naddr add 2001:db8:e::7/128 dev lb0 nodad";
        bed.balancers[0].ns.ip(own).unwrap();
        route_group(bed);
        config(bed, GROUP)
    };
    let scene = Scene::new(&spec, bed);
    let (host, client) = (&scene.bed.balancers[0], &scene.bed.client.ns);
    for own in ["198.51.100.7", "2001:db8:e::7"].map(ip) {
        pings(client, own, 3);
    }
    assert_eq!(
        scene.settled().received(),
        0,
        "a packet thread received packets for the machine's own address"
    );
    let refused = |address: &str| client.text("ping", &["-n", "-c", "1", "-W", "1", address]).is_err();
    assert!(refused("198.51.100.8"));
    scene.drops_become("no_vip", 1);
    host.ns.ip("addr add 198.51.100.8/32 dev lb0").unwrap();
    eventually(BOUND, || (!refused("198.51.100.8")).then_some(())).expect("followed");
    host.ns.ip("addr del 198.51.100.7/32 dev lb0").unwrap();
    let before = no_vip(&scene);
    let taken = || (refused("198.51.100.7") && no_vip(&scene) > before).then_some(());
    eventually(BOUND, taken).expect("the removed address must belong to the group again");
    echoes(&scene, ip(OWN[0]));
}

#[test]
fn reload_adds_and_removes_group_without_loss() {
    let mut scene = Scene::new(&spec(), |bed| config(bed, ""));
    let mut flows = scene.flows(true, 10);
    let first = scene.round(&mut flows);
    for _ in 0..2 {
        is_silent(&scene, ip(OWN[0]));
        let line = scene.balancer.reload(&scene.bed, &config(&scene.bed, GROUP)).unwrap();
        assert!(line.contains("reloaded"), "{line}");
        for vip in OWN.iter().chain(&UNKNOWN).map(|text| ip(text)) {
            // Packet threads get a new VIP before the XDP filter does, so the VIP is served from
            // the first packet.
            echoes(&scene, vip);
        }
        assert_eq!(scene.round(&mut flows), first);
        let narrower = GROUP.replace(", \"198.51.100.0/24\"", "");
        scene.balancer.reload(&scene.bed, &config(&scene.bed, &narrower)).unwrap();
        echoes(&scene, ip(OWN[0]));
        is_silent(&scene, ip(UNKNOWN[0]));
        scene.balancer.reload(&scene.bed, &config(&scene.bed, "")).unwrap();
        assert_eq!(scene.round(&mut flows), first);
    }
    assert_eq!(scene.settled().drops(), [], "a packet reached a thread that did not know the VIP");
}
