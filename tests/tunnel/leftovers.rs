//! What a tunnel takes in its namespace, and gives back.

use std::env;
use std::path::Path;

use testbed::{Namespace, Process};

use crate::scene::{BOUND, Checks, DEVICE, Scene, runtime};

/// Rules, routes of every table, devices.
fn taken(ns: &Namespace) -> [String; 5] {
    let ip = |args: &[&str]| ns.text("ip", args).unwrap();
    [
        ip(&["-4", "rule"]),
        ip(&["-6", "rule"]),
        ip(&["-4", "route", "show", "table", "all"]),
        ip(&["-6", "route", "show", "table", "all"]),
        ip(&["-br", "link"]).lines().map(|line| line.split(' ').next().unwrap().to_owned() + " ").collect(),
    ]
}

fn our_rules(ns: &Namespace) -> [usize; 2] {
    ["-4", "-6"].map(|family| ns.text("ip", &[family, "rule"]).unwrap().matches("lookup 8300").count())
}

#[test]
fn nothing_is_left_after_a_stop() {
    let scene = Scene::gre();
    let (ns, vip) = (scene.ns().clone(), scene.bed.vip(true, 80));
    scene.with_tunnel(async move |checks| checks.http("b1", vip).await.unwrap());
    let before = taken(&ns);
    assert_eq!(our_rules(&ns), [0, 0]);
    let inside = ns.clone();
    scene.with_tunnel(async move |checks| {
        assert_eq!(our_rules(&inside), [1, 1]);
        assert!(taken(&inside)[4].contains(DEVICE));
        checks.http("b1", vip).await.unwrap();
    });
    assert_eq!(taken(&ns), before);
}

#[test]
fn a_second_tunnel_in_the_same_namespace_is_refused_and_harms_nothing() {
    let scene = Scene::gre();
    let (file, vip) = (scene.file.clone(), scene.bed.vip(true, 80));
    scene.with_tunnel(async move |checks| {
        let second = Checks::open(&file, "lb1", "lb0").await.err().unwrap();
        assert!(second.to_string().contains("busy"), "{second}");
        checks.http("b1", vip).await.unwrap();
    });
}

#[test]
fn after_a_kill_what_is_left_is_harmless_and_a_new_start_works() {
    let scene = Scene::gre();
    let (ns, vip) = (scene.ns().clone(), scene.bed.vip(true, 80));
    let before = taken(&ns);
    let exe = env::current_exe().unwrap();
    for round in 0..2 {
        let held = format!("{HOLDER}={}", scene.file.display());
        let args = [&held, exe.to_str().unwrap(), "leftovers::holder_of_a_tunnel", "--exact", "--nocapture"];
        let mut holder = Process::start(&ns, "holder", "env", &args).unwrap();
        holder.wait_for_line(BOUND, |line| line == "HELD").unwrap();
        assert_eq!(our_rules(&ns), [1, 1], "round {round}");
        holder.kill();
    }
    assert!(!taken(&ns)[4].contains(DEVICE), "the device went with the process");
    assert_eq!(our_rules(&ns), [1, 1]);
    // Nobody else's way to the VIP has changed: the router answers for it, as it did before.
    let way = ns.text("ip", &["route", "get", &vip.ip().to_string()]).unwrap();
    assert!(way.contains("via 192.0.2.0 dev lb0"), "{way}");
    scene.with_tunnel(async move |checks| checks.http("b1", vip).await.unwrap());
    assert_eq!(taken(&ns), before);
}

/// Not a test of its own: what the one above kills.
#[test]
fn holder_of_a_tunnel() {
    let Ok(file) = env::var(HOLDER) else { return };
    runtime().block_on(async {
        let _checks = Checks::open(Path::new(&file), "lb1", "lb0").await.unwrap();
        println!("\nHELD");
        std::future::pending::<()>().await;
    });
}

const HOLDER: &str = "SLUICEGATE_TEST_TUNNEL_HOLDER";
