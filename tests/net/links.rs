//! Tests of interface changes while the balancer runs. `status`, the JSON of the status page and
//! the metrics must report a problem until it is fixed.

use std::time::Duration;

use serde_json::Value;
use testbed::{Balancer, Bed, BedSpec, Decap, LbConfig, Veth, eventually, udp_ask};

use crate::scene::{BOUND, Scene, verb};

/// The balancer's second interface, which no route uses, and the router's end of the interface's
/// link.
const SPARE: &str = "spare0";
const SPARE_PORT: &str = "to-lb1-spare";

fn scene() -> Scene {
    let bed = Bed::new(&BedSpec { backends: 2, ..BedSpec::default() }).unwrap();
    let link = Veth { queues: 1, mtu: bed.spec.core_mtu };
    link.join(bed.balancers[0].ns.device(SPARE), bed.router.device(SPARE_PORT)).unwrap();
    let config = LbConfig { interfaces: vec![SPARE.into()], ..LbConfig::new(&bed) };
    let decaps = Decap::start_all(&bed).unwrap();
    let balancer = Balancer::start(&bed, 0, &config).unwrap();
    Scene { balancer, decaps, bed }
}

/// Returns the exit code and the JSON output of `status`.
fn status(scene: &Scene) -> (Option<i32>, Value) {
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let ended = verb(&scene.bed, &["status", "--json", "--socket", socket.to_str().unwrap()]);
    (ended.code, serde_json::from_str(&ended.out).unwrap())
}

fn warned(status: &Value, words: &str) -> bool {
    let warnings = status["warnings"].as_array().unwrap();
    warnings.iter().any(|warning| warning.as_str().unwrap().contains(words))
}

fn metric(scene: &Scene, name: &str, interface: &str) -> Option<String> {
    let (_, text) = scene.balancer.ask_plainly("/metrics").unwrap();
    let series = format!("{name}{{interface=\"{interface}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(series.as_str()).map(str::to_owned))
}

#[test]
fn link_down_and_large_mtu_warn_until_fixed() {
    let mut scene = scene();
    let well = |scene: &Scene| {
        let (code, said) = status(scene);
        let links: Vec<_> =
            said["interfaces"].as_array().unwrap().iter().map(|row| row["link"].clone()).collect();
        let gone = !warned(&said, "carries no packets") && !warned(&said, "longer packets are lost");
        (code == Some(0) && gone && links == [true, true]).then_some(())
    };
    assert!(eventually(BOUND, || well(&scene)).is_some(), "{:#}\n{}", status(&scene).1, scene.diagnosis());
    let lb = |scene: &Scene, script: &str| scene.bed.balancers[0].ns.ip(script).unwrap();
    type Change = fn(&Scene, &dyn Fn(&Scene, &str));
    let faults: [(Change, Change, &str, &str, &str); 3] = [
        (
            |scene, _| scene.bed.router.ip(&format!("link set {SPARE_PORT} down\n")).unwrap(),
            |scene, _| scene.bed.router.ip(&format!("link set {SPARE_PORT} up\n")).unwrap(),
            "spare0 has no carrier: it carries no packets",
            "sluicegate_interface_up",
            SPARE,
        ),
        (
            |scene, lb| lb(scene, &format!("link set {SPARE} down\n")),
            |scene, lb| lb(scene, &format!("link set {SPARE} up\n")),
            "spare0 is down: it carries no packets (fix: ip link set dev spare0 up)",
            "sluicegate_interface_up",
            SPARE,
        ),
        (
            |scene, lb| lb(scene, "link set lb0 mtu 3000\n"),
            |scene, lb| lb(scene, "link set lb0 mtu 1600\n"),
            "lb0 has an MTU of 3000 bytes, but packet threads accept packets of up to ",
            "sluicegate_interface_mtu_fits",
            "lb0",
        ),
    ];
    for (break_it, mend_it, words, name, interface) in faults {
        assert_eq!(metric(&scene, name, interface).as_deref(), Some("1"), "{words}");
        break_it(&scene, &lb);
        let mut said = (None, Value::Null);
        let reported = eventually(10 * BOUND, || {
            said = status(&scene);
            (said.0 == Some(1) && warned(&said.1, words)).then_some(())
        });
        assert!(reported.is_some(), "{words}: {:#}\n{}", said.1, scene.diagnosis());
        assert_eq!(metric(&scene, name, interface).as_deref(), Some("0"), "{words}");
        scene.balancer.process.wait_for_line(BOUND, |line| line.contains(words)).unwrap();
        // Packets that arrive on the other interface are still forwarded, and so are packets that
        // fit into a frame.
        scene.ask(true, 8);
        let (code, page) = scene.balancer.ask_plainly("/healthz").unwrap();
        assert_eq!(code, 200, "the forwarder is not healthy, {page}");
        mend_it(&scene, &lb);
        let mended = eventually(10 * BOUND, || well(&scene));
        assert!(mended.is_some(), "{words}: {:#}\n{}", status(&scene).1, scene.diagnosis());
        assert_eq!(metric(&scene, name, interface).as_deref(), Some("1"), "{words}");
        let again = |line: &str| line.contains("link fault ended") && line.contains(words);
        scene.balancer.process.wait_for_line(BOUND, again).unwrap();
    }
    scene.ask(false, 8);
}

#[test]
fn partial_checksums_warn_until_fixed() {
    let mut scene = Scene::with(LbConfig::new);
    // A new veth device has transmit checksum offload enabled, so packets from the client arrive
    // with partial checksums.
    let offload = |scene: &Scene, state: &str| {
        let port = &scene.bed.balancers[0].port;
        for (ns, device) in [(&scene.bed.client.ns, scene.bed.client.device), (&scene.bed.router, port)] {
            ns.text("ethtool", &["-K", device, "tx", state]).unwrap();
        }
    };
    let words = "packets arrive on lb0 with partial checksums: backends drop them (fix: run `ethtool -K";
    for (state, expected) in [("on", true), ("off", false)] {
        offload(&scene, state);
        let seen = eventually(10 * BOUND, || {
            let echo = scene.bed.vip(true, Bed::ECHO_PORT);
            let answered = udp_ask(&scene.bed.client.ns, echo, b"ping", Duration::from_millis(100)).is_ok();
            (warned(&status(&scene).1, words) == expected && answered != expected).then_some(())
        });
        assert!(seen.is_some(), "{state}: {:#}\n{}", status(&scene).1, scene.diagnosis());
    }
    scene.balancer.process.wait_for_line(BOUND, |line| line.contains(words)).unwrap();
}
