//! Tests of the rules, routes and devices that a tunnel for health checks creates in its network
//! namespace. The tunnel must remove all of them when it ends.

use std::env;
use std::path::Path;

use health::{TunnelNumbers, remove_leftovers};
use testbed::{Namespace, Process, eventually};

use crate::scene::{BOUND, Checks, DEVICE, Scene, runtime};

/// Returns the routing rules, the routes of all tables and the devices of the namespace.
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

/// Waits until the tunnel is removed, and returns the result of [`taken`]. The kernel removes
/// routes shortly after their device.
fn taken_without_tunnel(ns: &Namespace) -> [String; 5] {
    let is_gone = |all: &[String; 5]| all.iter().all(|part| !part.contains(DEVICE));
    eventually(BOUND, || Some(taken(ns)).filter(is_gone)).unwrap_or_else(|| panic!("{:?}", taken(ns)))
}

fn our_rules(ns: &Namespace) -> [usize; 2] {
    ["-4", "-6"].map(|family| ns.text("ip", &[family, "rule"]).unwrap().matches("lookup 8300").count())
}

#[test]
fn nothing_is_left_after_a_stop() {
    let scene = Scene::gre();
    let (ns, vip) = (scene.ns().clone(), scene.bed.vip(true, 80));
    scene.with_tunnel(async move |checks| checks.http("b1", vip).await.unwrap());
    let before = taken_without_tunnel(&ns);
    assert_eq!(our_rules(&ns), [0, 0]);
    let inside = ns.clone();
    scene.with_tunnel(async move |checks| {
        assert_eq!(our_rules(&inside), [1, 1]);
        assert!(taken(&inside)[4].contains(DEVICE));
        checks.http("b1", vip).await.unwrap();
    });
    assert_eq!(taken_without_tunnel(&ns), before);
}

#[test]
fn second_tunnel_in_namespace_is_rejected() {
    let scene = Scene::gre();
    let (file, vip) = (scene.file.clone(), scene.bed.vip(true, 80));
    scene.with_tunnel(async move |checks| {
        let second = Checks::open(&file, "lb1", "lb0").await.err().unwrap();
        let words = format!("device `{DEVICE}` already exists");
        assert!(second.to_string().starts_with(&words), "{second}");
        checks.http("b1", vip).await.unwrap();
    });
}

#[test]
fn start_after_kill_works() {
    let scene = Scene::gre();
    let (ns, vip) = (scene.ns().clone(), scene.bed.vip(true, 80));
    let before = taken(&ns);
    for round in 0..2 {
        let mut holder = start_holder(&scene);
        assert_eq!(our_rules(&ns), [1, 1], "round {round}");
        holder.kill();
    }
    taken_without_tunnel(&ns); // The kernel removed the device when the process ended.
    assert_eq!(our_rules(&ns), [1, 1]);
    // Other traffic must still use the normal route to the VIP, where the router answers.
    let way = ns.text("ip", &["route", "get", &vip.ip().to_string()]).unwrap();
    assert!(way.contains("via 192.0.2.0 dev lb0"), "{way}");
    scene.with_tunnel(async move |checks| checks.http("b1", vip).await.unwrap());
    assert_eq!(taken_without_tunnel(&ns), before);
}

#[test]
fn leftovers_are_removed_unless_in_use() {
    let scene = Scene::gre();
    let (ns, vip) = (scene.ns().clone(), scene.bed.vip(true, 80));
    let before = taken(&ns);
    let clear = || remove_leftovers(DEVICE, TunnelNumbers::default());
    let clear_here = || ns.run(move || runtime().block_on(clear()).unwrap());
    assert_eq!(clear_here(), 0, "rules were removed although there were no leftovers");
    let mut holder = start_holder(&scene);
    assert_eq!((clear_here(), our_rules(&ns)), (0, [1, 1]), "rules of a running process were removed");
    holder.kill();
    assert_eq!((clear_here(), taken_without_tunnel(&ns)), (2, before.clone()));
    scene.with_tunnel(async move |checks| checks.http("b1", vip).await.unwrap());
    assert_eq!(taken_without_tunnel(&ns), before);
}

#[test]
fn foreign_rule_with_mark_or_table_is_rejected() {
    let scene = Scene::gre();
    let (ns, file) = (scene.ns().clone(), scene.file.clone());
    let outcome = || {
        let file = file.clone();
        ns.run(move || {
            runtime().block_on(async {
                let checks = Checks::open(&file, "lb1", "lb0").await.map_err(|error| error.to_string())?;
                checks.tunnel.close().await.map_err(|error| error.to_string())
            })
        })
    };
    for (family, rule, named) in [
        ("-4", "priority 90 fwmark 83 lookup 100", Some(("priority 90, fwmark 83, lookup 100", "mark 83"))),
        ("-6", "priority 40 fwmark 83 lookup 83", Some(("priority 40, fwmark 83, lookup 83", "mark 83"))),
        ("-4", "priority 83 fwmark 83 lookup 101", Some(("priority 83, fwmark 83, lookup 101", "mark 83"))),
        ("-4", "priority 84 from 192.0.2.77 lookup 8300", Some(("priority 84, lookup 8300", "table 8300"))),
        ("-4", "priority 83 from 192.0.2.77 lookup 100", None),
        ("-4", "priority 90 fwmark 83/0xff lookup 100", None),
        ("-4", "not priority 90 fwmark 83 lookup 100", None),
    ] {
        let words: Vec<&str> = rule.split(' ').collect();
        ns.text("ip", &[&[family, "rule", "add"], &words[..]].concat()).unwrap();
        match (outcome(), named) {
            (Ok(()), None) => {}
            (Err(error), Some((shown, uses))) => {
                let start = format!(
                    "ip {family} rule, {shown}: this routing rule belongs to other software and uses {uses}"
                );
                assert!(error.starts_with(&start), "{rule}: {error}");
            }
            (outcome, _) => panic!("{rule}: {outcome:?}"),
        }
        // The failed start must have removed its rules, but not the rule of the other software.
        ns.text("ip", &[&[family, "rule", "del"], &words[..]].concat()).unwrap();
        assert_eq!(our_rules(&ns), [0, 0], "{rule}");
        // The kernel removes the device shortly after its last descriptor is closed. The next
        // tunnel needs the same device name.
        let is_gone = || ns.text("ip", &["link", "show", DEVICE]).is_err().then_some(());
        assert!(eventually(BOUND, is_gone).is_some(), "{rule}");
    }
}

fn start_holder(scene: &Scene) -> Process {
    let exe = env::current_exe().unwrap();
    let held = format!("{HOLDER}={}", scene.file.display());
    let args = [&held, exe.to_str().unwrap(), "leftovers::holder_of_a_tunnel", "--exact", "--nocapture"];
    let mut holder = Process::start(scene.ns(), "holder", "env", &args).unwrap();
    holder.wait_for_line(BOUND, |line| line == "HELD").unwrap();
    holder
}

/// Opens a tunnel and waits. The other tests run this function in a separate process and kill the
/// process.
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
