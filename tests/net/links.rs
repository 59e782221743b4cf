//! Interfaces that change under a running balancer: what `status`, the page's JSON and the metrics say, until it is mended.

use std::time::Duration;

use serde_json::Value;
use testbed::{Balancer, Bed, BedSpec, Decap, LbConfig, Veth, eventually, udp_ask};

use crate::scene::{BOUND, Scene, verb};

/// A second interface of the balancer, by which nothing is routed, and the router's end of it.
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

/// The exit code of `status`, and what it says.
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
fn a_link_that_goes_down_and_an_mtu_that_outgrows_the_frames_are_warnings_until_mended() {
    let mut scene = scene();
    let well = |scene: &Scene| {
        let (code, said) = status(scene);
        let links: Vec<_> =
            said["interfaces"].as_array().unwrap().iter().map(|row| row["link"].clone()).collect();
        let gone = !warned(&said, "no packet comes in") && !warned(&said, "longer ones are lost");
        (code == Some(0) && gone && links == [true, true]).then_some(())
    };
    assert!(eventually(BOUND, || well(&scene)).is_some(), "{:#}\n{}", status(&scene).1, scene.diagnosis());
    let lb = |scene: &Scene, script: &str| scene.bed.balancers[0].ns.ip(script).unwrap();
    type Change = fn(&Scene, &dyn Fn(&Scene, &str));
    let faults: [(Change, Change, &str, &str, &str); 3] = [
        (
            |scene, _| scene.bed.router.ip(&format!("link set {SPARE_PORT} down\n")).unwrap(),
            |scene, _| scene.bed.router.ip(&format!("link set {SPARE_PORT} up\n")).unwrap(),
            "spare0 has no carrier: no packet comes in or goes out",
            "sluicegate_interface_up",
            SPARE,
        ),
        (
            |scene, lb| lb(scene, &format!("link set {SPARE} down\n")),
            |scene, lb| lb(scene, &format!("link set {SPARE} up\n")),
            "spare0 is down: no packet comes in or goes out (mend: ip link set dev spare0 up)",
            "sluicegate_interface_up",
            SPARE,
        ),
        (
            |scene, lb| lb(scene, "link set lb0 mtu 3000\n"),
            |scene, lb| lb(scene, "link set lb0 mtu 1600\n"),
            "lb0 has an MTU of 3000 bytes, and packet threads take packets of up to ",
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
        // What comes by the other interface, or fits, is carried all the while.
        scene.ask(true, 8);
        let (code, page) = scene.balancer.ask_plainly("/healthz").unwrap();
        assert_eq!(code, 200, "no fault of the forwarder: {page}");
        mend_it(&scene, &lb);
        let mended = eventually(10 * BOUND, || well(&scene));
        assert!(mended.is_some(), "{words}: {:#}\n{}", status(&scene).1, scene.diagnosis());
        assert_eq!(metric(&scene, name, interface).as_deref(), Some("1"), "{words}");
        let again = |line: &str| line.contains("no longer so") && line.contains(words);
        scene.balancer.process.wait_for_line(BOUND, again).unwrap();
    }
    scene.ask(false, 8);
}

#[test]
fn partial_checksums_of_a_bed_without_ethtool_are_a_warning_with_the_command_until_it_is_run() {
    let mut scene = Scene::with(LbConfig::new);
    // As `ip link add` leaves a veth: a checksum of the client's is never finished on its way here.
    let offload = |scene: &Scene, state: &str| {
        let port = &scene.bed.balancers[0].port;
        for (ns, device) in [(&scene.bed.client.ns, scene.bed.client.device), (&scene.bed.router, port)] {
            ns.text("ethtool", &["-K", device, "tx", state]).unwrap();
        }
    };
    let words = "packets come by lb0 with partial checksums: backends drop them (mend: where they are sent, turn checksum";
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
