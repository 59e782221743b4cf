//! Tests of the log level. A reload can change the level, and operators can override it for a
//! limited time.

use serde_json::Value;
use testbed::{Ended, LbConfig, eventually};

use crate::scene::{BOUND, Scene, verb};

fn run(scene: &Scene, args: &[&str]) -> Ended {
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    verb(&scene.bed, &[args, &["--socket", socket.to_str().unwrap()]].concat())
}

/// Returns the JSON output of a command that must exit with `code`.
fn answer(scene: &Scene, args: &[&str], code: i32) -> Value {
    let ended = run(scene, &[args, &["--json"]].concat());
    assert_eq!(ended.code, Some(code), "{args:?}: {}{}", ended.out, ended.err);
    serde_json::from_str(&ended.out).unwrap()
}

fn level(scene: &Scene) -> [Value; 2] {
    let mut log = answer(scene, &["log", "level"], 0);
    ["level", "file_level"].map(|name| log[name].take())
}

/// Returns `true` if debug lines are logged. The function triggers a reload, which logs at debug
/// level, and then runs a command that always logs a line.
fn writes_details(scene: &mut Scene) -> bool {
    let before = scene.balancer.process.line_count();
    answer(scene, &["config", "reload"], 0);
    answer(scene, &["backend", "undrain", "b1"], 1);
    let is_last = |line: &str| line.contains("undrain backend b1 (no change)");
    scene.balancer.process.wait_for_line_after(before, BOUND, is_last).unwrap();
    let lines = scene.balancer.process.lines().split_off(before);
    lines.iter().any(|line| line.text.contains("\"DEBUG\"") && line.text.contains("/v1/reload"))
}

fn reload(scene: &mut Scene, log_level: &'static str) {
    let config = LbConfig { log_level, ..LbConfig::new(&scene.bed) };
    let line = scene.balancer.reload(&scene.bed, &config).unwrap();
    assert!(line.contains("reloaded"), "{line}");
}

// Promise: log-level-expiry
#[test]
fn log_level_follows_reload_and_override() {
    let mut scene = Scene::with(LbConfig::new);
    assert!(!writes_details(&mut scene), "{}", scene.diagnosis());
    reload(&mut scene, "debug");
    assert!(writes_details(&mut scene), "{}", scene.diagnosis());
    reload(&mut scene, "info");
    assert!(!writes_details(&mut scene), "{}", scene.diagnosis());

    // A reload does not end the override, even if the reload changes the configured level.
    assert_eq!(answer(&scene, &["log", "level", "file"], 1)["changed"], false);
    let order = ["log", "level", "debug", "--for", "10m", "--reason", "b2 flaps"];
    let change = answer(&scene, &order, 0);
    assert_eq!((&change["changed"], &change["level_before"]), (&true.into(), &"info".into()), "{change:#}");
    assert!(writes_details(&mut scene), "{}", scene.diagnosis());
    reload(&mut scene, "warn");
    assert_eq!(level(&scene), ["debug", "warn"].map(Value::from));
    assert!(writes_details(&mut scene), "{}", scene.diagnosis());
    reload(&mut scene, "info");
    let status = answer(&scene, &["status"], 0);
    let row = &status["log_level_override"];
    assert_eq!(
        (&row["level"], &row["by"], &row["reason"]),
        (&"debug".into(), &"uid 0".into(), &"b2 flaps".into())
    );
    assert!(run(&scene, &["status"]).out.contains("\nlog level    debug, set "));

    // A new override replaces the previous one and expires by itself.
    answer(&scene, &["log", "level", "debug", "--for", "2s"], 0);
    let ended = || {
        let events = answer(&scene, &["events", "--kind", "override"], 0);
        let is_it = |event: &&Value| event["what"] == "log level override expired";
        events["events"].as_array().unwrap().iter().find(is_it).cloned()
    };
    let ended = eventually(BOUND, ended).unwrap_or_else(|| panic!("{}", scene.diagnosis()));
    assert_eq!(ended["cause"], "uid 0 set it for 2 s", "{ended:#}");
    let is_logged = |line: &testbed::Line| line.text.contains("log level override expired");
    assert!(scene.balancer.process.lines().iter().any(is_logged), "{}", scene.diagnosis());
    assert_eq!(level(&scene), ["info", "info"].map(Value::from));
    assert!(!writes_details(&mut scene), "{}", scene.diagnosis());
    assert_eq!(answer(&scene, &["status"], 0)["log_order"], Value::Null);

    // A command removes this override before it expires.
    answer(&scene, &["log", "level", "debug", "--for", "10m"], 0);
    assert_eq!(answer(&scene, &["log", "level", "file"], 0)["level"], "info");
    assert!(!writes_details(&mut scene), "{}", scene.diagnosis());
}
