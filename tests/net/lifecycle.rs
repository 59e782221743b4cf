//! Tests of starting, stopping and killing the balancer. After each test, the interface must be in
//! its previous state and usable immediately.

use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::{Balancer, Bed, Decap, Host, LbConfig, eventually};

use crate::own_traffic::pings;
use crate::scene::{BOUND, Scene};

/// Returns the settings of the interface as `ip` and `ethtool` print them, without values that
/// change over time.
fn facts(host: &Host) -> (Value, String) {
    let text = host.ns.text("ip", &["-json", "-details", "link", "show", "dev", host.device]).unwrap();
    let link: Value = serde_json::from_str(&text).unwrap();
    (link[0].clone(), host.ns.text("ethtool", &["-k", host.device]).unwrap())
}

fn has_xdp(host: &Host) -> bool {
    facts(host).0.get("xdp").is_some_and(|xdp| !xdp.is_null())
}

#[test]
fn start_removes_leftovers_of_killed_process() {
    let bed = Bed::new(&testbed::BedSpec::default()).unwrap();
    let ns = &bed.balancers[0].ns;
    let rules = || ["-4", "-6"].map(|family| ns.text("ip", &[family, "rule"]).unwrap());
    let before = rules();
    for family in ["-4", "-6"] {
        let left = [family, "rule", "add", "priority", "83", "fwmark", "83", "lookup", "8300"];
        ns.text("ip", &left).unwrap();
    }
    let balancer = Balancer::start(&bed, 0, &LbConfig::new(&bed)).unwrap();
    assert_eq!(rules(), before);
    balancer.stop().unwrap();
}

fn left_as_found(signal: Signal) {
    let bed = Bed::new(&testbed::BedSpec::default()).unwrap();
    let host = bed.balancers[0].clone();
    let before = facts(&host);
    let decaps = Decap::start_all(&bed).unwrap();
    let config = LbConfig::new(&bed);
    let mut scene = Scene { balancer: Balancer::start(&bed, 0, &config).unwrap(), decaps, bed };
    for turn in 0..2 {
        assert!(has_xdp(&host), "turn {turn}");
        scene.ask(turn == 0, 8);
        pings(&scene.bed.client.ns, host.v4.into(), 2);
        scene.balancer.process.signal(signal).unwrap();
        let stopped = Instant::now();
        let status = scene.balancer.process.wait(BOUND).expect("the process did not end");
        let ended = stopped.elapsed();
        assert!(status.success() || signal == Signal::SIGKILL, "{status} {}", scene.diagnosis());
        // After SIGKILL, the process may end some time before the kernel removes the XDP program.
        let gone = eventually(BOUND, || (!has_xdp(&host)).then(|| stopped.elapsed()));
        println!("process ended {ended:?} after {signal}, program removed after {gone:?}");
        assert!(gone.is_some() && (signal == Signal::SIGKILL || facts(&host) == before));
        assert!(
            eventually(BOUND, || (facts(&host) == before).then_some(())).is_some(),
            "{before:?} {:?}",
            facts(&host)
        );
        pings(&scene.bed.client.ns, host.v6.into(), 2);
        if signal != Signal::SIGKILL {
            assert!(!LbConfig::admin_socket(&scene.bed, 0).exists());
        }
        scene.balancer = Balancer::start(&scene.bed, 0, &config).unwrap();
        println!("traffic is forwarded again {:?} after the signal", stopped.elapsed());
    }
    scene.ask(true, 8);
    scene.ask(false, 8);
    assert_eq!(scene.settled().drops(), []);
}

#[test]
fn sigterm_restores_the_interface() {
    left_as_found(Signal::SIGTERM);
}

#[test]
fn sigint_restores_the_interface() {
    left_as_found(Signal::SIGINT);
}

// Promise: xdp-cleanup
#[test]
fn sigkill_restores_the_interface() {
    left_as_found(Signal::SIGKILL);
}

#[test]
fn last_log_line_has_packet_counts() {
    let scene = Scene::with(LbConfig::new);
    scene.ask(true, 8);
    let counts = scene.settled();
    let last = scene.balancer.stop().unwrap().expect("the log has no final line with totals");
    // A busy client may send more acknowledgments after the counters were read.
    assert!(last.received >= counts.received() && last.received == last.forwarded, "{last:?}, {counts:?}");
    assert!(last.line.len() < 400, "{}", last.line);
}

#[test]
fn second_balancer_on_interface_is_rejected() {
    let scene = Scene::with(LbConfig::new);
    let mut config = LbConfig::new(&scene.bed);
    config.services.truncate(1);
    let text = config.toml(&scene.bed, 0).replace("lb1.sock", "other.sock");
    let file = scene.bed.dir().join("other.toml");
    std::fs::write(&file, text).unwrap();
    let ended =
        crate::scene::verb(&scene.bed, &["run", "--config", file.to_str().unwrap(), "--machine", "lb1"]);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.err.contains("already has an XDP program"), "{}", ended.err);
    scene.ask(true, 4);
}

#[test]
fn removed_interface_ends_the_process() {
    let bed = Bed::new(&testbed::BedSpec::default()).unwrap();
    let mut balancer = Balancer::start(&bed, 0, &LbConfig::new(&bed)).unwrap();
    bed.balancers[0].ns.ip("link del lb0\n").unwrap();
    balancer.process.wait_for_line(BOUND, |line| line.contains("interface lb0 is gone")).unwrap();
    assert_eq!(balancer.process.wait(BOUND).unwrap().code(), Some(1));
}
