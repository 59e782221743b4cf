//! Tests of backends that drain: their checks continue, UDP flows move if the service wants it, and
//! a drain can end with the backend going down.

use std::collections::BTreeSet;
use std::time::Duration;

use testbed::{BedSpec, LbConfig, UdpFlows, eventually};

use crate::scene::{BOUND, Scene, verb};
use crate::upgrade::Line;

const FLOWS: usize = 30;

/// Starts the fixture with three checked backends. Drains last longer than the test.
fn scene(via: &str, udp_keys: &'static str) -> Scene {
    let scene = Scene::with(|bed| config(bed, via, udp_keys));
    scene.wait_until_ready();
    let all = || {
        let rows = scene.balancer.ask("/v1/backends").unwrap();
        rows.as_array().unwrap().iter().all(|row| row["state"] == "serving").then_some(())
    };
    assert!(eventually(BOUND, all).is_some(), "{}", scene.diagnosis());
    scene
}

fn config(bed: &testbed::Bed, via: &str, udp_keys: &'static str) -> LbConfig {
    LbConfig {
        pool_keys: "checks = [\"web\"]".into(),
        cluster: "drain_time = \"10m\"".into(),
        more: format!("[check.web]\ntcp = {{ port = 80 }}\nvia = \"{via}\"\ninterval = \"1s\"\n"),
        udp_keys,
        ..LbConfig::new(bed)
    }
}

/// Sends rounds until every flow is answered, and returns the backends.
fn answered(scene: &Scene, flows: &mut UdpFlows) -> BTreeSet<String> {
    let all = eventually(5 * BOUND, || {
        let answers = flows.round_within(Duration::from_millis(500)).unwrap();
        answers.into_iter().collect::<Option<BTreeSet<String>>>()
    });
    all.unwrap_or_else(|| panic!("flows are lost\n{}", scene.diagnosis()))
}

#[test]
fn flows_of_removed_backend_move_when_it_dies() {
    for via in ["vip", "backend"] {
        let mut scene = scene(via, "");
        let mut flows = [true, false].map(|ipv4| scene.flows(ipv4, FLOWS));
        for flows in &mut flows {
            assert!(scene.round(flows).contains(&"b3".to_owned()));
        }
        let mut without = config(&scene.bed, via, "");
        without.pool.pop();
        let line = scene.balancer.reload(&scene.bed, &without).unwrap();
        assert!(line.contains("reloaded"), "{line}");
        let host = &scene.bed.backends[2];
        host.ns.ip(&format!("link set {} down", host.device)).unwrap();
        for flows in &mut flows {
            assert_eq!(answered(&scene, flows), BTreeSet::from(["b1", "b2"].map(str::to_owned)), "{via}");
        }
        let rows = scene.balancer.ask("/v1/backends").unwrap();
        let gone: Vec<_> = rows.as_array().unwrap().iter().filter(|row| row["name"] == "b3").collect();
        assert!(
            !gone.is_empty()
                && gone.iter().all(|row| row["state"] == "down"
                    && row["why"] == "removed"
                    && row["checks"][0]["state"] == "down"),
            "{gone:?}"
        );
    }
}

/// The new process does not know removed backends, so their flows would move.
#[test]
fn removed_backend_prevents_upgrades_until_it_is_down() {
    let line = Line::start(&BedSpec::default(), &[], |bed| config(bed, "backend", ""));
    let has_state = |line: &Line, state: &str| {
        let rows = line.json(&["backend", "list"]);
        let mut rows = rows["backends"].as_array().unwrap().iter();
        rows.any(|row| row["name"] == "b3" && row["state"] == state).then_some(())
    };
    assert!(eventually(BOUND, || has_state(&line, "serving")).is_some(), "{}", line.scene.diagnosis());
    let mut flows = line.scene.flows(true, FLOWS);
    assert!(answered(&line.scene, &mut flows).contains("b3"));
    let mut without = config(&line.scene.bed, "backend", "");
    without.pool.pop();
    without.write(&line.scene.bed, 0).unwrap();
    assert_eq!(line.run(&["config", "reload"]).code, Some(0), "{}", line.scene.diagnosis());
    let ended = line.run(&["machine", "upgrade"]);
    let said = ended.out + &ended.err;
    assert!(ended.code == Some(1) && said.contains("backend \"b3\" may still have flows"), "{said}");

    let host = &line.scene.bed.backends[2];
    host.ns.ip(&format!("link set {} down", host.device)).unwrap();
    assert!(eventually(BOUND, || has_state(&line, "down")).is_some(), "{}", line.scene.diagnosis());
    line.upgrade(None);
    assert_eq!(answered(&line.scene, &mut flows), BTreeSet::from(["b1", "b2"].map(str::to_owned)));
}

#[test]
fn udp_flows_move_at_drain_and_removal_only_with_on_drain_move() {
    for (keys, moves) in [("on_drain = \"move\"", true), ("on_drain = \"keep\"", false)] {
        let mut scene = scene("backend", keys);
        let mut flows = scene.flows(true, FLOWS);
        let before = scene.round(&mut flows);
        assert!(["b2", "b3"].iter().all(|name| before.iter().any(|backend| backend == name)));
        scene.balancer.order("/v1/backends/b2/drain").unwrap();
        let drained = scene.round(&mut flows);
        assert_eq!(drained.contains(&"b2".to_owned()), !moves, "{keys}");
        assert_eq!(drained == before, !moves, "{keys}");
        let mut without = config(&scene.bed, "backend", keys);
        without.pool.pop();
        scene.balancer.reload(&scene.bed, &without).unwrap();
        let removed = scene.round(&mut flows);
        assert_eq!(removed.contains(&"b3".to_owned()), !moves, "{keys}");
        assert_eq!(scene.settled().drops(), []);
    }
}

#[test]
fn drain_then_down_moves_remaining_flows() {
    let scene = scene("backend", "");
    let mut flows = scene.flows(true, FLOWS);
    let before = scene.round(&mut flows);
    assert!(before.contains(&"b2".to_owned()));
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let socket = ["--socket", socket.to_str().unwrap()];
    let drain = ["backend", "drain", "b2", "--then", "down", "--after", "1h", "--reason", "disk"];
    let ended = verb(&scene.bed, &[&drain[..], &socket].concat());
    assert!(ended.code == Some(0) && ended.out.contains("goes down in 3600 s"), "{ended:?}");
    assert_eq!(scene.round(&mut flows), before, "the drain keeps the flows");
    let status = verb(&scene.bed, &[&["status"][..], &socket].concat()).out;
    assert!(status.contains("b2: draining") && status.contains(", down in "), "{status}");

    // The flows stay active, so the command returns when the backend is down.
    let drain = ["backend", "drain", "b2", "--then", "down", "--after", "2s", "--reason", "disk", "--wait"];
    let ended = verb(&scene.bed, &[&drain[..], &socket].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}\n{}", scene.diagnosis());
    assert!(ended.err.contains(" active flows and 0 idle entries left\n"), "{ended:?}");
    let moved = scene.round(&mut flows);
    assert!(!moved.contains(&"b2".to_owned()), "{moved:?}");
    let status = scene.balancer.ask("/v1/status").unwrap();
    let row = &status["overrides"][0];
    assert!(row["state"] == "down" && row["reason"] == "disk" && row["down_in_seconds"].is_null(), "{row}");
    let events = scene.balancer.ask("/v1/events?kind=override").unwrap();
    assert!(events.to_string().contains("drained backend taken down"), "{events}");
}
