//! Tests of a balancer with two uplinks to the backends, as in a leaf-spine network: the route to
//! the backends is a multipath route with one next hop on each link.

use std::collections::BTreeSet;
use std::time::Duration;

use testbed::{Balancer, Bed, BedSpec, Capture, Decap, Frame, LbConfig, UdpFlows, Veth, eventually, mac_of};

use crate::scene::{BOUND, Scene, verb};

/// The name of the second uplink, and the router's end of its link.
const BACK: &str = "back0";
const BACK_PORT: &str = "to-lb1-back";
const FLOWS: usize = 200;

/// Starts the fixture with two uplinks. `checks` is empty or the `via` of the pool's check.
fn scene(checks: &str) -> Scene {
    let bed = Bed::new(&BedSpec::default()).unwrap();
    let host = &bed.balancers[0];
    let link = Veth { queues: 1, mtu: bed.spec.core_mtu };
    link.join(host.ns.device(BACK), bed.router.device(BACK_PORT)).unwrap();
    bed.reach_backends_by(BACK, BACK_PORT).unwrap();
    host.ns
        .ip("route replace 198.18.1.0/24 nexthop via 192.0.2.0 dev lb0 nexthop via 192.0.2.100 dev back0")
        .unwrap();
    // The kernel detects within seconds that a neighbor does not respond.
    for device in ["lb0", BACK] {
        let of = |key| format!("ipv4/neigh/{device}/{key}");
        let (reachable, delay) = (of("base_reachable_time_ms"), of("delay_first_probe_time"));
        host.ns.sysctl(&[(reachable.as_str(), "1000"), (delay.as_str(), "1")]).unwrap();
    }
    let mut config = LbConfig { interfaces: vec![BACK.into()], ..LbConfig::new(&bed) };
    if !checks.is_empty() {
        config.pool_keys = "checks = [\"web\"]".into();
        config.more = format!(
            "[check.web]\nhttp = {{ port = 80, path = \"/\" }}\nvia = \"{checks}\"\ninterval = \"1s\"\n\
             fast_interval = \"1s\"\ntimeout = \"900ms\"\nrise = 1\n"
        );
    }
    let decaps = Decap::start_all(&bed).unwrap();
    let balancer = Balancer::start(&bed, 0, &config).unwrap();
    let scene = Scene { balancer, decaps, bed };
    scene.wait_until_ready();
    scene
}

/// Sends one packet on each flow until all packets of a round are answered. Returns for each flow
/// its backend and whether the last packet used the second uplink.
fn paths(scene: &Scene, flows: &mut UdpFlows) -> Vec<(String, bool)> {
    let ports: Vec<u16> = flows.local().unwrap().iter().map(std::net::SocketAddr::port).collect();
    let port_of = [scene.bed.balancers[0].port.as_str(), BACK_PORT];
    let whole = eventually(BOUND, || {
        let of_flow = |bytes: &[u8]| flow_port(bytes).is_some();
        let captures =
            port_of.map(|port| Capture::start(&scene.bed.router, port, 10 * FLOWS, of_flow).unwrap());
        let answers = flows.round_within(Duration::from_secs(1)).unwrap();
        let backends: Vec<String> = answers.into_iter().flatten().collect();
        (backends.len() == ports.len()).then_some(())?;
        // The capture may record a packet late.
        let [_, back] = eventually(BOUND, || {
            let seen = captures.each_ref().map(seen_flows);
            ports.iter().all(|port| seen.iter().any(|seen| seen.contains(port))).then_some(seen)
        })?;
        Some(backends.into_iter().zip(&ports).map(|(name, port)| (name, back.contains(port))).collect())
    });
    whole.unwrap_or_else(|| panic!("some flows have no answers\n{}", scene.diagnosis()))
}

fn seen_flows(capture: &Capture) -> BTreeSet<u16> {
    capture.frames().iter().filter_map(|frame| flow_port(&frame.bytes)).collect()
}

/// Returns the source port of the client if the frame contains an encapsulated datagram for the
/// echo port.
fn flow_port(bytes: &[u8]) -> Option<u16> {
    let inner = Frame::parse(bytes)?.outer()?.inner;
    let udp = inner.bytes.get(inner.header_bytes..)?.first_chunk::<4>()?;
    let [source, port] = [[udp[0], udp[1]], [udp[2], udp[3]]].map(u16::from_be_bytes);
    (inner.protocol == 17 && port == Bed::ECHO_PORT).then_some(source)
}

/// Waits until the paths of the flows satisfy `wanted`.
fn become_paths(scene: &Scene, flows: &mut UdpFlows, what: &str, wanted: impl Fn(&[(String, bool)]) -> bool) {
    let seen = eventually(3 * BOUND, || wanted(&paths(scene, flows)).then_some(()));
    assert!(seen.is_some(), "{what}: {:?}\n{}", paths(scene, flows), scene.diagnosis());
}

fn no_backend_went_down(scene: &Scene) {
    let lines = scene.balancer.process.lines();
    let down = lines.iter().find(|line| line.text.contains("backend down"));
    assert!(down.is_none(), "{down:?}\n{}", scene.diagnosis());
}

/// Breaks the second uplink with `fail`, and repairs it with `repair`. Flows of the first uplink
/// must never move, and flows of the second uplink must move and return.
fn survives(scene: &Scene, flows: &mut UdpFlows, what: &str, fail: &dyn Fn(), repair: &dyn Fn()) {
    let before = paths(scene, flows);
    let on_back = before.iter().filter(|(_, back)| *back).count();
    println!("{what}: {on_back} of {FLOWS} flows on the second uplink");
    assert!((FLOWS / 4..=FLOWS * 3 / 4).contains(&on_back), "{on_back} flows on the second uplink");
    fail();
    // All flows keep their backends. Flows of the first uplink could not move, because the second
    // hop was unavailable.
    let same_backends = |now: &[(String, bool)]| now.iter().zip(&before).all(|(now, was)| now.0 == was.0);
    become_paths(scene, flows, what, |now| same_backends(now) && now.iter().all(|(_, back)| !back));
    scene.ask(true, 40);
    // Health checks detect a silent neighbor before the kernel does, and `doctor` asks the kernel.
    let reported = || doctor(scene).contains("one of 2 next hops of backend b1").then_some(());
    assert!(eventually(BOUND, reported).is_some(), "{}", doctor(scene));
    no_backend_went_down(scene);
    repair();
    // A flow that was on the first uplink is there again, so it has never moved.
    become_paths(scene, flows, what, |now| *now == before[..]);
    scene.ask(true, 40);
    no_backend_went_down(scene);
}

fn doctor(scene: &Scene) -> String {
    let file = scene.bed.dir().join("lb1.toml");
    let report = verb(&scene.bed, &["doctor", "--machine", "lb1", "--config", file.to_str().unwrap()]).out;
    assert!(!report.contains("but the load balancer sends on"), "both interfaces are used: {report}");
    report
}

fn lose_carrier_and_neighbor(checks: &str) {
    let scene = scene(checks);
    let mut flows = scene.flows(true, FLOWS);
    let report = doctor(&scene);
    assert!(report.contains("ignore_routes_with_linkdown=1"), "{report}");
    let router = |script: &str| scene.bed.router.ip(script).unwrap();
    survives(&scene, &mut flows, "carrier", &|| router(&format!("link set dev {BACK_PORT} down")), &|| {
        router(&format!("link set dev {BACK_PORT} up"))
    });
    let mac = mac_of(&scene.bed.router, BACK_PORT).unwrap().map(|byte| format!("{byte:02x}")).join(":");
    survives(
        &scene,
        &mut flows,
        "neighbor",
        // The router receives nothing for its old address, and does not answer ARP requests.
        &|| router(&format!("link set dev {BACK_PORT} arp off address 02:00:00:00:0b:01")),
        &|| router(&format!("link set dev {BACK_PORT} arp on address {mac}")),
    );
}

#[test]
fn flows_survive_a_dead_uplink_without_checks() {
    lose_carrier_and_neighbor("");
}

#[test]
fn flows_survive_a_dead_uplink_with_direct_checks() {
    lose_carrier_and_neighbor("backend");
}

#[test]
fn flows_survive_a_dead_uplink_with_tunneled_checks() {
    lose_carrier_and_neighbor("vip");
}

#[test]
fn backend_behind_one_of_two_hops_does_not_flap() {
    for checks in ["backend", "vip"] {
        let scene = scene(checks);
        let mut flows = scene.flows(true, FLOWS);
        let before = paths(&scene, &mut flows);
        // The router of the second uplink does not reach b1, but reaches the other backends.
        let rule = format!("iif {BACK_PORT} to 198.18.1.1 blackhole");
        scene.bed.router.ip(&format!("rule add {rule}")).unwrap();
        let avoids = |now: &[(String, bool)]| {
            let mut flows = now.iter().zip(&before);
            flows.all(|(now, was)| now.0 == was.0 && now.1 == (was.1 && now.0 != "b1"))
        };
        become_paths(&scene, &mut flows, "b1 behind one hop", avoids);
        // The state is stable: neither the backend nor the hop changes while the fault lasts.
        let count = || {
            let lines = scene.balancer.process.lines();
            lines.iter().filter(|line| line.text.contains("next hop skipped")).count()
        };
        let (lines, passed) = (count(), passes(&scene));
        let more = eventually(BOUND, || (passes(&scene) >= passed + 12).then_some(()));
        assert!(more.is_some(), "{}", scene.diagnosis());
        assert_eq!(count(), lines, "{}", scene.diagnosis());
        assert!(avoids(&paths(&scene, &mut flows)), "{}", scene.diagnosis());
        no_backend_went_down(&scene);
        scene.bed.router.ip(&format!("rule del {rule}")).unwrap();
        become_paths(&scene, &mut flows, "b1 behind both hops", |now| *now == before[..]);
        no_backend_went_down(&scene);
    }
}

/// Returns the number of consecutive passes, summed over all targets.
fn passes(scene: &Scene) -> u64 {
    let rows = scene.balancer.ask("/v1/health").unwrap();
    rows["targets"].as_array().unwrap().iter().filter_map(|row| row["passes"].as_u64()).sum()
}
