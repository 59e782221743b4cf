//! Tests of readiness, and of the commands that withdraw and announce VIPs. `/readyz`, `status` and
//! `vip list` must agree in each state.

use std::time::Duration;

use serde_json::Value;
use testbed::{Bed, BedSpec, Ended, LbConfig, Process, Router, RouterKind, eventually, sections};

use crate::announce::{BIRD, Bird, announced, link, scene};
use crate::scene::{BOUND, Scene, verb};
use crate::upgrade::Line;

const UNANNOUNCED: &str = "no VIP is announced to a router";

fn run(scene: &Scene, args: &[&str]) -> Ended {
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    verb(&scene.bed, &[args, &["--socket", socket.to_str().unwrap()]].concat())
}

/// Waits until `/readyz` returns this status and a body with these words, and checks that `status`
/// reports the same state. Returns the output of `status`, without colons and repeated spaces.
fn becomes(scene: &Scene, status: u16, words: &str) -> String {
    let mut last = (0, String::new());
    let found = eventually(BOUND, || {
        last = scene.balancer.ask_plainly("/readyz").unwrap();
        (last.0 == status && last.1.contains(words)).then_some(())
    });
    assert!(found.is_some(), "{last:?}, not {status} {words}\n{}", scene.diagnosis());
    let ended = run(scene, &["status"]);
    let page = ended.out.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = if status == 200 { "ready yes" } else { "ready no" };
    assert!(page.contains(said), "{}", ended.out);
    let metrics = scene.balancer.ask_plainly("/metrics").unwrap().1;
    assert!(metrics.contains(&format!("sluicegate_ready {}\n", u8::from(status == 200))), "{metrics}");
    page
}

/// Checks that `status` and `vip list` exit with this code, and print these words if it is 1.
fn finds(scene: &Scene, code: i32, words: &str) {
    for args in [["status"].as_slice(), &["vip", "list"]] {
        let ended = run(scene, args);
        assert_eq!(ended.code, Some(code), "{args:?}: {}{}", ended.out, ended.err);
        assert!(ended.out.contains(words), "{args:?}: {}", ended.out);
    }
}

fn held_down_for(bed: &Bed, hold_down: &str) -> LbConfig {
    let mut config = announced(bed);
    config.more = config.more.replace("hold_down = \"2s\"", &format!("hold_down = \"{hold_down}\""));
    config.more = config.more.replace("max_hold_down = \"4s\"", "max_hold_down = \"600s\"");
    config
}

/// Takes a backend down and up again, so that the VIP is withdrawn and then held down.
fn flap(scene: &Scene, bird: &Bird) {
    link(scene, 1, "down");
    bird.has(scene, 0);
    link(scene, 1, "up");
    becomes(scene, 503, "not announced: www, flap damping, ");
}

// Promise: readiness
#[test]
fn machine_with_all_vips_held_down_is_not_ready() {
    let mut scene =
        Scene::new(&BedSpec { backends: 2, ..BedSpec::default() }, |bed| held_down_for(bed, "120s"));
    becomes(&scene, 503, "no router of this VIP has a BGP session with this machine");
    let bird = Bird(Router::start_with(&scene.bed, RouterKind::Bird, BIRD).unwrap());
    bird.has(&scene, 2);
    becomes(&scene, 200, "ready");
    finds(&scene, 0, "");
    assert!(run(&scene, &["vip", "list"]).out.contains(" v4 v6 "));
    flap(&scene, &bird);
    let page = becomes(&scene, 503, UNANNOUNCED);
    assert!(page.contains(&format!("ready no {UNANNOUNCED}")), "{page}");
    finds(&scene, 1, "not announced: www, flap damping, ");
    let (status, why) = scene.balancer.ask_plainly("/readyz/vip/www").unwrap();
    assert!(status == 503 && why.starts_with("not announced: www, flap damping, "), "{status} {why}");
    assert_eq!(scene.balancer.ask_plainly("/readyz/vip/none").unwrap().0, 404);

    // A reload that shortens `hold_down` also shortens the hold-down in progress.
    let shorter = held_down_for(&scene.bed, "1s");
    scene.balancer.reload(&scene.bed, &shorter).unwrap();
    bird.has(&scene, 2);
    becomes(&scene, 200, "ready");
    finds(&scene, 0, "");
    assert!(run(&scene, &["vip", "list"]).out.contains(" v4 v6 "));
    assert_eq!(scene.balancer.ask_plainly("/readyz/vip/www").unwrap().0, 200);

    let longer = held_down_for(&scene.bed, "300s");
    scene.balancer.reload(&scene.bed, &longer).unwrap();
    // Withdrawals within 10 s after a reload start no hold-down.
    std::thread::sleep(Duration::from_secs(11));
    flap(&scene, &bird);
    let ended = run(&scene, &["vip", "announce", "--all", "--reason", "fixed"]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    bird.has(&scene, 2);
    let page = becomes(&scene, 200, "ready");
    let word = "override VIP www: announced without flap damping, set ";
    assert!(page.contains(word) && page.contains("by uid 0, ends in "), "{page}");
}

#[test]
fn withdrawn_vip_is_forwarded_and_returns() {
    let (mut scene, bird) = scene();
    bird.has(&scene, 2);
    becomes(&scene, 200, "ready");
    let withdraw = |time: &str| {
        let ended = run(&scene, &["vip", "withdraw", "www", "--reason", "a new kernel", "--for", time]);
        assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
        assert!(ended.out.contains("withdrawn by uid 0, "), "{}", ended.out);
    };
    withdraw("1h");
    bird.has(&scene, 0);
    let page = becomes(&scene, 503, "not announced: www, withdrawn by uid 0, ");
    assert!(page.contains("override VIP www: withdrawn, set "), "{page}");
    finds(&scene, 1, " s left, reason: a new kernel");
    scene.ask(true, 8);
    scene.ask(false, 8);
    assert_eq!(run(&scene, &["vip", "announce", "www"]).code, Some(0));
    bird.has(&scene, 2);
    becomes(&scene, 200, "ready");
    withdraw("1h");
    bird.has(&scene, 0);
    withdraw("1s");
    bird.has(&scene, 2);
    becomes(&scene, 200, "ready");
    let events = run(&scene, &["events", "--kind", "override"]).out;
    for event in
        ["withdraw VIP www, for 3600 s", "announce VIP www without flap damping", "VIP override expired"]
    {
        assert!(events.contains(event), "{event} is missing in\n{events}");
    }
    withdraw("1h");
    bird.has(&scene, 0);
    // The override survives a reload.
    let other = held_down_for(&scene.bed, "3s");
    scene.balancer.reload(&scene.bed, &other).unwrap();
    becomes(&scene, 503, "not announced: www, withdrawn by uid 0, ");
    for (args, words) in [
        (&["vip", "withdraw", "none", "--reason", "x", "--for", "1h"][..], "no VIP \"none\" on this machine"),
        (&["vip", "announce", "none"], "no VIP \"none\" on this machine"),
    ] {
        let ended = run(&scene, args);
        assert!(ended.code == Some(1) && ended.err.contains(words), "{args:?}: {}{}", ended.out, ended.err);
    }
    for args in [
        &["vip", "withdraw", "www", "--for", "1h"][..],
        &["vip", "withdraw", "www", "--reason", "x"],
        &["vip", "announce"],
    ] {
        assert_eq!(run(&scene, args).code, Some(2), "{args:?}");
    }
}

#[test]
fn commands_of_the_page_about_withdrawals_work() {
    let (scene, bird) = scene();
    bird.has(&scene, 2);
    becomes(&scene, 200, "ready");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/how-to/withdraw-a-vip.md");
    let page = sections(&std::fs::read_to_string(page).unwrap());
    let commands: String = page.into_iter().map(|section| section.commands).collect();
    assert_eq!(commands.matches("sluicegate vip ").count(), 4, "{commands}");
    let (program, socket) = (scene.bed.program().unwrap(), LbConfig::admin_socket(&scene.bed, 0));
    let (program, socket) = (program.display(), socket.display());
    let script = format!("set -e\nsluicegate() {{ {program} \"$@\" --socket {socket}; }}\n{commands}");
    let ended = Process::to_end(&scene.bed.balancers[0].ns, "sh", &["-c", &script], 10 * BOUND).unwrap();
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    bird.has(&scene, 2);
    becomes(&scene, 200, "ready");
}

// Promise: readiness
#[test]
fn machine_whose_only_interface_is_down_is_not_ready() {
    let scene = Scene::with(LbConfig::new);
    becomes(&scene, 200, "ready");
    finds(&scene, 0, "");
    scene.bed.balancers[0].ns.ip("link set lb0 down").unwrap();
    becomes(&scene, 503, "lb0 down or without carrier");
    finds(&scene, 1, "lb0 down or without carrier");
    assert_eq!(scene.balancer.ask_plainly("/readyz/vip/www").unwrap().0, 503);
    let ended = run(&scene, &["vip", "withdraw", "www", "--reason", "x", "--for", "1h"]);
    assert!(ended.code == Some(1) && ended.err.contains("does not announce VIP \"www\""), "{}", ended.err);
}

const NEW_VIP: &str = r#"
[pool.new]
checks = ["web"]
backends = [{ name = "n1", address = "198.18.1.200" }]
[vip.dl]
addresses = ["203.0.113.99"]
services = [{ ports = [80], protocol = "tcp", pool = "new" }]
"#;

// Promise: readiness
#[test]
fn new_vip_without_backends_keeps_the_machine_ready() {
    let (mut scene, bird) = scene();
    bird.has(&scene, 2);
    becomes(&scene, 200, "ready");
    let mut config = announced(&scene.bed);
    config.more += &NEW_VIP.replace("services", "announce = {}\nservices");
    scene.balancer.reload(&scene.bed, &config).unwrap();
    let unserved = || scene.balancer.ask_plainly("/readyz/vip/dl").unwrap();
    assert!(eventually(BOUND, || (unserved().0 == 503).then_some(())).is_some(), "{:?}", unserved());
    assert!(unserved().1.contains("not serving: dl, no backend for dl tcp 80"), "{:?}", unserved());
    assert_eq!(scene.balancer.ask_plainly("/readyz/vip/www").unwrap(), (200, "ready".into()));
    let page = becomes(&scene, 200, "ready");
    assert!(page.contains("VIPs 1 of 2 ready not serving: dl, no backend for dl tcp 80"), "{page}");
    finds(&scene, 1, "not announced: dl, service \"dl tcp 80\" has 0 of 1 required backends");
}

// Promise: upgrade-hold-down
#[test]
fn upgrade_continues_hold_downs_and_vip_overrides() {
    let spec = BedSpec { backends: 2, ..BedSpec::default() };
    let line = Line::start(&spec, &[], |bed| {
        let mut config = held_down_for(bed, "300s");
        config.more = config.more.replace("[bgp]\n", "[bgp]\ngraceful_restart = \"30s\"\n");
        config.more += &NEW_VIP.replace("services", "announce = {}\nservices").replace("\"new\"", "\"web\"");
        config
    });
    let states = || {
        let rows = line.json(&["bgp", "status"])["vips"].clone();
        let row = |vip: &str| rows.as_array().unwrap().iter().find(|row| row["vip"] == vip).unwrap().clone();
        [row("www"), row("dl")]
    };
    let reach = |vip: usize, state: &str| {
        let found = eventually(BOUND, || (states()[vip]["state"] == state).then_some(()));
        assert!(found.is_some(), "{:#}\n{}", states()[vip], line.scene.diagnosis());
    };
    // Without a router, the state of a VIP that meets the conditions is `no_session`.
    reach(0, "no_session");
    let withdrawn = line.json(&["vip", "withdraw", "dl", "--reason", "a new kernel", "--for", "1h"]);
    assert_eq!(withdrawn["vips"][0]["state"], "withdrawn", "{withdrawn:#}");
    link(&line.scene, 1, "down");
    reach(0, "withdrawn");
    link(&line.scene, 1, "up");
    reach(0, "held_down");
    let before = states()[0]["returns_in_seconds"].as_f64().unwrap();
    line.upgrade(None);
    let [held, ordered] = states();
    assert_eq!((&held["state"], &ordered["state"]), (&"held_down".into(), &"withdrawn".into()), "{held:#}");
    let after = held["returns_in_seconds"].as_f64().unwrap();
    assert!(after <= before && after > 0.0, "{before} s left before the upgrade, {after} s after it");
    assert!(ordered["why"].as_str().unwrap().ends_with("reason: a new kernel"), "{ordered:#}");
    let overrides = line.json(&["status"])["vip_overrides"].clone();
    assert_eq!(
        (&overrides[0]["vip"], &overrides[0]["by"]),
        (&"dl".into(), &Value::from("uid 0")),
        "{overrides:#}"
    );
    line.json(&["vip", "announce", "--all"]);
    reach(0, "no_session");
    reach(1, "no_session");
    line.upgrade(None);
    let overrides = line.json(&["status"])["vip_overrides"].clone();
    assert_eq!(overrides.as_array().map(Vec::len), Some(2), "{overrides:#}");
}
