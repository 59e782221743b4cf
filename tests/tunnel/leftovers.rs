//! What a tunnel takes in its namespace, and gives back.

use std::env;
use std::path::Path;

use health::{TunnelNumbers, remove_leftovers};
use testbed::{Namespace, Process, eventually};

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

/// What is taken once nothing of a tunnel is left: the kernel takes routes down a moment after their device.
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
fn a_second_tunnel_in_the_same_namespace_is_refused_and_harms_nothing() {
    let scene = Scene::gre();
    let (file, vip) = (scene.file.clone(), scene.bed.vip(true, 80));
    scene.with_tunnel(async move |checks| {
        let second = Checks::open(&file, "lb1", "lb0").await.err().unwrap();
        let words = format!("there is a device `{DEVICE}` already");
        assert!(second.to_string().starts_with(&words), "{second}");
        checks.http("b1", vip).await.unwrap();
    });
}

#[test]
fn after_a_kill_what_is_left_is_harmless_and_a_new_start_works() {
    let scene = Scene::gre();
    let (ns, vip) = (scene.ns().clone(), scene.bed.vip(true, 80));
    let before = taken(&ns);
    for round in 0..2 {
        let mut holder = start_holder(&scene);
        assert_eq!(our_rules(&ns), [1, 1], "round {round}");
        holder.kill();
    }
    taken_without_tunnel(&ns); // the device went with the process
    assert_eq!(our_rules(&ns), [1, 1]);
    // Nobody else's way to the VIP has changed: the router answers for it, as it did before.
    let way = ns.text("ip", &["route", "get", &vip.ip().to_string()]).unwrap();
    assert!(way.contains("via 192.0.2.0 dev lb0"), "{way}");
    scene.with_tunnel(async move |checks| checks.http("b1", vip).await.unwrap());
    assert_eq!(taken_without_tunnel(&ns), before);
}

#[test]
fn what_a_killed_process_left_goes_without_a_tunnel_and_what_is_in_use_stays() {
    let scene = Scene::gre();
    let (ns, vip) = (scene.ns().clone(), scene.bed.vip(true, 80));
    let before = taken(&ns);
    let clear = || remove_leftovers(DEVICE, TunnelNumbers::default());
    let clear_here = || ns.run(move || runtime().block_on(clear()).unwrap());
    assert_eq!(clear_here(), 0, "there is nothing");
    let mut holder = start_holder(&scene);
    assert_eq!((clear_here(), our_rules(&ns)), (0, [1, 1]), "another process has them");
    holder.kill();
    assert_eq!((clear_here(), taken_without_tunnel(&ns)), (2, before.clone()));
    scene.with_tunnel(async move |checks| checks.http("b1", vip).await.unwrap());
    assert_eq!(taken_without_tunnel(&ns), before);
}

#[test]
fn a_rule_of_others_with_the_mark_or_the_table_is_refused_by_name_and_one_with_the_priority_is_not() {
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
                    "ip {family} rule, {shown}: this routing rule is not the balancer's and uses {uses}"
                );
                assert!(error.starts_with(&start), "{rule}: {error}");
            }
            (outcome, _) => panic!("{rule}: {outcome:?}"),
        }
        // Others' rules stay, and nothing of ours does.
        ns.text("ip", &[&[family, "rule", "del"], &words[..]].concat()).unwrap();
        assert_eq!(our_rules(&ns), [0, 0], "{rule}");
        // The kernel takes the device away a little after its last descriptor, and the next one has its name.
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

/// Not a test of its own: what those above kill.
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
