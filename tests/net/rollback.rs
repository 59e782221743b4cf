//! Tests of undoing a reload: confirmation timeout, `config rollback`, and the limit on moved
//! flows.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::{Balancer, Bed, Ended, LbConfig, VIP_V4, udp_ask};

use crate::reload::Traffic;
use crate::scene::{BOUND, SILENCE, Scene, names, verb};

fn run(scene: &Scene, args: &[&str]) -> Ended {
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    verb(&scene.bed, &[args, &["--socket", socket.to_str().unwrap()]].concat())
}

/// Runs a command that must exit with `code`, and returns its output.
fn says(scene: &Scene, args: &[&str], code: i32) -> String {
    let ended = run(scene, args);
    assert_eq!(ended.code, Some(code), "{args:?}: {}{}\n{}", ended.out, ended.err, scene.diagnosis());
    ended.out + &ended.err
}

/// Runs a command and returns its JSON output. The exit code is ignored: on a busy machine,
/// `status` may report problems.
fn json(scene: &Scene, args: &[&str]) -> Value {
    let ended = run(scene, &[args, &["--json"]].concat());
    assert!(matches!(ended.code, Some(0 | 1)), "{args:?}: {}{}", ended.out, ended.err);
    serde_json::from_str(&ended.out).unwrap()
}

/// Returns the path of the first balancer's configuration file.
fn file(bed: &Bed) -> PathBuf {
    bed.dir().join("lb1.toml")
}

/// Waits for a log line that contains all `words`, after the first `seen` lines.
fn wait_for(scene: &mut Scene, seen: usize, words: &[&str]) {
    let is_it = |line: &str| words.iter().all(|word| line.contains(word));
    scene.balancer.process.wait_for_line_after(seen, BOUND, is_it).unwrap();
}

fn watched(bed: &Bed, weights: &[u32]) -> LbConfig {
    let cluster = "drain_time = \"0s\"\nwatch = true".into();
    LbConfig { cluster, ..LbConfig::new(bed).weights(weights) }
}

// Promise: reload-rollback
#[test]
fn unconfirmed_reload_is_rolled_back() {
    let mut scene = Scene::with(LbConfig::new);
    let traffic = Traffic::start(scene.flows(true, 30));
    let lost = scene.bed.vip(false, Bed::ECHO_PORT);
    udp_ask(&scene.bed.client.ns, lost, b"x", BOUND).unwrap();

    // In this configuration the admin socket and one VIP are missing.
    let bad = LbConfig { vips: vec![VIP_V4], ..LbConfig::new(&scene.bed) }.toml(&scene.bed, 0);
    let (before, rest) = bad.split_once("[admin]\nsocket = ").unwrap();
    let (_, rest) = rest.split_once('\n').unwrap();
    fs::write(file(&scene.bed), format!("{before}[admin]\nsocket = false\n{rest}")).unwrap();
    let (seen, begun) = (scene.balancer.process.line_count(), Instant::now());
    let said = says(&scene, &["config", "reload", "--confirm", "10s"], 0);
    assert!(said.contains("generation 2 is rolled back to 1 in "), "{said}");
    assert_eq!(run(&scene, &["config", "confirm"]).code, Some(3), "the admin socket still responds");
    udp_ask(&scene.bed.client.ns, lost, b"x", SILENCE).unwrap_err();

    // The reload is not confirmed, so it is undone after the timeout.
    wait_for(&mut scene, seen, &["reloaded", "not confirmed in time"]);
    assert!(begun.elapsed() >= Duration::from_secs(10), "{:?}", begun.elapsed());
    udp_ask(&scene.bed.client.ns, lost, b"x", BOUND).unwrap();
    let status = json(&scene, &["status"]);
    assert_eq!((&status["generation"], &status["drift"]), (&3.into(), &"rolled_back".into()), "{status:#}");
    assert_eq!(status["confirmation"], Value::Null);
    let history = json(&scene, &["config", "history"]);
    let rows = history["generations"].as_array().unwrap();
    let causes: Vec<_> =
        rows.iter().map(|row| (row["cause"].as_str().unwrap(), row["by"].as_str())).collect();
    assert_eq!(causes, [("start", None), ("reload", Some("uid 0")), ("unconfirmed", None)]);
    assert_eq!(rows[0]["sha256"], rows[2]["sha256"]);
    assert!(says(&scene, &["config", "history", "2"], 0).contains("socket = false"));
    let events = json(&scene, &["events", "--kind", "reload"]);
    let said: Vec<_> =
        events["events"].as_array().unwrap().iter().map(|one| one["what"].as_str().unwrap()).collect();
    let wanted = [
        "configuration is awaiting confirmation",
        "configuration reloaded",
        "configuration not confirmed",
        "configuration reloaded",
    ];
    assert!(
        said.len() == 4 && said.iter().zip(wanted).all(|(said, wanted)| said.starts_with(wanted)),
        "{said:?}"
    );
    traffic.kept(&scene);
}

#[test]
fn confirmation_keeps_later_changes() {
    let mut scene = Scene::with(LbConfig::new);
    LbConfig::new(&scene.bed).weights(&[1, 2, 1]).write(&scene.bed, 0).unwrap();
    let seen = scene.balancer.process.line_count();
    says(&scene, &["config", "reload", "--confirm", "10m"], 0);
    for words in ["is awaiting confirmation", "reloaded"] {
        wait_for(&mut scene, seen, &[words]);
    }
    let third = LbConfig::new(&scene.bed).weights(&[1, 3, 1]);
    assert!(scene.balancer.reload(&scene.bed, &third).unwrap().contains("reloaded"));
    let status = json(&scene, &["status"]);
    let waiting = &status["confirmation"];
    assert_eq!((&waiting["generation"], &waiting["returns_to"]), (&3.into(), &1.into()), "{status:#}");
    assert!(says(&scene, &["config", "confirm"], 0).contains("generation 3 confirmed"));
    assert_eq!(json(&scene, &["status"])["confirmation"], Value::Null);
    assert!(says(&scene, &["config", "confirm"], 1).contains("no reload is waiting for a confirmation"));
}

#[test]
fn trial_configuration_ends_with_crash_or_confirmation() {
    let put = |bed: &Bed| LbConfig { admin: "put = true".into(), ..LbConfig::new(bed) };
    let mut scene = Scene::with(put);
    let next = scene.bed.dir().join("next.toml");
    fs::write(&next, put(&scene.bed).weights(&[1, 0, 0]).toml(&scene.bed, 0)).unwrap();
    let on_trial = ["config", "put", next.to_str().unwrap(), "--if-match", "*", "--confirm", "10m"];
    let serving = |scene: &Scene| names(scene.ask(true, 60).iter().map(|reply| &reply.backend)).len();
    assert!(says(&scene, &on_trial, 0).contains("generation 2 is rolled back to 1 in "));
    assert_eq!(serving(&scene), 1);

    scene.balancer.process.signal(Signal::SIGKILL).unwrap();
    scene.balancer.process.wait(BOUND).unwrap();
    scene.balancer = Balancer::start(&scene.bed, 0, &put(&scene.bed)).unwrap();
    assert_eq!((serving(&scene), &json(&scene, &["status"])["confirmation"]), (3, &Value::Null));

    says(&scene, &on_trial, 0);
    assert!(says(&scene, &["config", "confirm"], 0).contains("generation 2 confirmed"));
    fs::rename(&next, file(&scene.bed)).unwrap();
    assert!(says(&scene, &["config", "reload"], 0).contains("nothing changed"));
    let status = json(&scene, &["status"]);
    assert_eq!((&status["generation"], &status["drift"]), (&2.into(), &"in_sync".into()), "{status:#}");
}

#[test]
fn rolled_back_file_waits_for_its_next_change() {
    let mut scene = Scene::with(|bed| watched(bed, &[1, 1, 1]));
    let seen = scene.balancer.process.line_count();
    watched(&scene.bed, &[1, 2, 1]).write(&scene.bed, 0).unwrap();
    wait_for(&mut scene, seen, &["reloaded", "file changed"]);
    assert!(says(&scene, &["config", "rollback"], 0).contains("generation 3 is in force"));
    // A change to a different file in the directory must not cause a reload of the rolled-back
    // file.
    let seen = scene.balancer.process.line_count();
    fs::write(scene.bed.dir().join("other"), "x").unwrap();
    wait_for(&mut scene, seen, &["rolled-back file ignored until its next change"]);
    wait_for(&mut scene, seen, &["configuration unchanged"]);
    assert_eq!(json(&scene, &["status"])["generation"], 3);
    let seen = scene.balancer.process.line_count();
    watched(&scene.bed, &[1, 3, 1]).write(&scene.bed, 0).unwrap();
    wait_for(&mut scene, seen, &["reloaded", "file changed"]);
    // An explicit reload applies the file even if its content was rolled back before.
    says(&scene, &["config", "rollback", "1"], 0);
    says(&scene, &["config", "reload"], 0);
    let status = json(&scene, &["status"]);
    assert_eq!((&status["generation"], &status["drift"]), (&6.into(), &"in_sync".into()), "{status:#}");
    assert!(says(&scene, &["config", "rollback", "99"], 1).contains("generation 99 is not stored"));
}

#[test]
fn reload_beyond_max_moved_needs_force() {
    let limited = |bed: &Bed| {
        let cluster = "drain_time = \"60s\"\nmax_moved = \"20%\"".into();
        LbConfig { cluster, ..LbConfig::new(bed) }
    };
    let mut scene = Scene::with(limited);
    let traffic = Traffic::start(scene.flows(true, 10));
    let mut fewer = limited(&scene.bed);
    fewer.pool.truncate(2);
    fewer.write(&scene.bed, 0).unwrap();
    let seen = scene.balancer.process.line_count();
    let said = says(&scene, &["config", "reload"], 1);
    assert!(said.contains(" % of pool web") && said.contains("--force"), "{said}");
    wait_for(&mut scene, seen, &["ERROR", "reload rejected", " % of pool web"]);
    // SIGHUP cannot carry the option `--force`, so a reload by signal is rejected too.
    let seen = scene.balancer.process.line_count();
    scene.balancer.process.signal(Signal::SIGHUP).unwrap();
    wait_for(&mut scene, seen, &["reload rejected", "max_moved allows 20 %"]);
    assert_eq!(json(&scene, &["config", "history"])["generations"].as_array().unwrap().len(), 1);
    assert!(says(&scene, &["config", "reload", "--force"], 0).contains("generation 2 is in force"));
    traffic.kept(&scene);
}
