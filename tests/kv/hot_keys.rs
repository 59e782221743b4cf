//! Tests of `kv top`, which lists the most frequently requested keys with their shares and servers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{iter, thread};

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::{LbConfig, Process, eventually};

use crate::scene::{BOUND, Scene, config};

/// The three hottest keys and their shares. Of every 16 requests, eight are for the first key, four
/// for the second and two for the third. All other keys are requested once.
const HOT: [(&str, f64); 3] = [("first", 0.5), ("second", 0.25), ("third", 0.125)];
/// The accepted deviation of a share. Counting may start or end in the middle of a cycle of 16
/// requests.
const TOLERANCE: f64 = 0.03;
/// The test's timeout for one count of keys: ten times as long as a count takes on two busy cores,
/// but shorter than the timeout with which the balancer ends a count.
const FETCHED: Duration = Duration::from_secs(10);

fn key(turn: usize) -> String {
    match turn % 16 {
        at if at % 2 == 0 => HOT[0].0.to_owned(),
        at if at % 4 == 1 => HOT[1].0.to_owned(),
        3 | 11 => HOT[2].0.to_owned(),
        _ => format!("once{turn}"),
    }
}

fn top(scene: &Scene, arguments: &[&str]) -> Process {
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let words = [&["kv", "top", "--json", "--socket", socket.to_str().unwrap()], arguments].concat();
    Process::start(&scene.bed.balancers[0].ns, "kv top", scene.bed.program().unwrap(), &words).unwrap()
}

fn said(mut process: Process) -> Value {
    assert!(process.wait(BOUND).is_some_and(|status| status.success()), "{}", process.tail());
    let text: String = process.lines().into_iter().map(|line| line.text + "\n").collect();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns `Some` if the response has the three hottest keys in order and with the correct shares.
fn has_all(view: &Value) -> Option<()> {
    let rows = view["keys"].as_array()?;
    let is = |(row, (name, share)): (&Value, (&str, f64))| {
        row["key"] == name && (row["share"].as_f64().unwrap() - share).abs() < TOLERANCE
    };
    (rows.len() == HOT.len() && iter::zip(rows, HOT).all(is)).then_some(())
}

#[test]
fn kv_top_lists_hottest_keys_with_servers() {
    let scene = Scene::new(|bed| config(bed, ""));
    let client = scene.client(true);
    for (key, _) in HOT {
        let stored = scene.ask(&client, format!("set {key} 0 0 2\r\nab\r\n").as_bytes());
        assert_eq!(stored, b"STORED\r\n");
    }
    let is_over = AtomicBool::new(false);
    let view = thread::scope(|scope| {
        scope.spawn(|| {
            let going = |_: &usize| !is_over.load(Ordering::Relaxed);
            for turn in (0..).take_while(going) {
                let _ = client.ask_within(format!("get {}\r\n", key(turn)).as_bytes(), BOUND);
            }
        });
        // On a slow machine, the first response may count too few requests.
        let look = || {
            let view = said(top(&scene, &["--for", "2s", "--limit", "3", "--vip", "www"]));
            eprintln!("{view:#}");
            has_all(&view).map(|()| view)
        };
        let view = eventually(BOUND * 2, look);
        is_over.store(true, Ordering::Relaxed);
        view
    });
    let view =
        view.unwrap_or_else(|| panic!("the keys are not in the expected order\n{}", scene.diagnosis()));
    assert_eq!(view["schema"], 1);
    for (row, (key, _)) in iter::zip(view["keys"].as_array().unwrap(), HOT) {
        let command = format!("get {key}\r\n").into_bytes();
        let has = |backend: &usize| {
            scene.beside(*backend).ask_within(&command, BOUND).unwrap().starts_with(b"VALUE ")
        };
        let holders: Vec<_> = (0..scene.bed.backends.len())
            .filter(has)
            .map(|backend| &scene.bed.backends[backend].name)
            .collect();
        assert_eq!(row["backends"], serde_json::json!(holders), "{row}");
    }
    let service = view["services"][0]["keys_per_second"].as_f64().unwrap();
    let first = view["keys"][0]["requests_per_second"].as_f64().unwrap();
    assert!((first / service - HOT[0].1).abs() < TOLERANCE, "{view:#}");
}

#[test]
fn kv_top_has_one_client_and_ends_with_it() {
    let scene = Scene::new(|bed| config(bed, ""));
    let mut client = top(&scene, &["--for", "20s"]);
    // This request fails in any case, because the VIP does not exist, so it does not count keys
    // itself.
    let refused = || scene.balancer.order("/v1/kv/top?vip=nobody").unwrap_err().to_string();
    let is_counted = || refused().contains("another client is counting keys").then_some(());
    assert!(eventually(BOUND, is_counted).is_some(), "{}", client.tail());
    client.signal(Signal::SIGKILL).unwrap();
    let counts = || scene.balancer.order("/v1/kv/top?seconds=1").ok();
    let view = eventually(FETCHED, counts).unwrap_or_else(|| panic!("{}", scene.diagnosis()));
    assert_eq!(
        view["keys"].as_array().map(Vec::len),
        Some(0),
        "no requests were sent, but keys were counted, {view:#}"
    );
    assert!(refused().contains("no VIP"), "{}", refused());
}
