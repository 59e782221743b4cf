//! Tests of `sluicegate events`. Each state change must appear exactly once, with its time, its
//! cause and the text of its log line.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use testbed::{Bed, BedSpec, LbConfig, Veth, eventually};

use crate::scene::{BOUND, Scene, verb};

/// The balancer's second interface, which no route uses, and the router's end of the interface's
/// link.
const SPARE: &str = "spare0";
const SPARE_PORT: &str = "to-lb1-spare";

const CHECK: &str =
    "[check.web]\ntcp = { port = 80 }\ninterval = \"1s\"\nfast_interval = \"1s\"\ntimeout = \"900ms\"\n";

fn checked(bed: &Bed) -> LbConfig {
    let (more, interfaces) = (CHECK.into(), vec![SPARE.into()]);
    LbConfig { pool_keys: "checks = [\"web\"]".into(), more, interfaces, ..LbConfig::new(bed) }
}

fn run(scene: &Scene, args: &[&str]) -> String {
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let ended = verb(&scene.bed, &[args, &["--socket", socket.to_str().unwrap()]].concat());
    assert_eq!(ended.code, Some(0), "{args:?}: {}{}", ended.out, ended.err);
    ended.out
}

fn events(scene: &Scene, more: &[&str]) -> Vec<Value> {
    let mut said: Value = serde_json::from_str(&run(scene, &[&["events", "--json"], more].concat())).unwrap();
    said["events"].as_array_mut().map(std::mem::take).unwrap()
}

/// Waits for an event of this kind whose text starts with `words`, and returns the newest such
/// event.
fn wait_for(scene: &Scene, kind: &str, words: &str) -> Value {
    let begins = |event: &Value| {
        let cause = event["cause"].as_str().map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{}{cause}", event["what"].as_str().unwrap()).starts_with(words)
    };
    let found = || events(scene, &["--kind", kind]).into_iter().rfind(begins);
    eventually(BOUND, found)
        .unwrap_or_else(|| panic!("no {kind} {words}: {:#?}\n{}", events(scene, &[]), scene.diagnosis()))
}

#[test]
fn each_state_change_is_logged_as_event_once() {
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let mut scene = Scene::new(&BedSpec { backends: 2, ..BedSpec::default() }, |bed| {
        let link = Veth { queues: 1, mtu: bed.spec.core_mtu };
        link.join(bed.balancers[0].ns.device(SPARE), bed.router.device(SPARE_PORT)).unwrap();
        checked(bed)
    });
    wait_for(&scene, "machine", "startup completed");

    // The backend b2 fails. Then the backend b1 is drained, and the VIPs have no backend left.
    drop(scene.bed.http.remove(1));
    let down = wait_for(&scene, "backend", "backend down");
    let about = (&down["about"]["backend"], &down["about"]["check"], &down["severity"]);
    assert_eq!(about, (&"b2".into(), &"web".into(), &"warning".into()), "{down:#}");
    assert!(down["cause"].as_str().unwrap().contains("refused"), "{down:#}");
    run(&scene, &["backend", "drain", "b1", "--for", "1s", "--reason", "a new kernel"]);
    let order = wait_for(&scene, "override", "operator command: drain backend b1, for 1 s");
    assert_eq!((&order["cause"], &order["about"]["client"]), (&"a new kernel".into(), &"uid 0".into()));
    let vip = wait_for(&scene, "vip", "VIP not served");
    assert!(vip["cause"].as_str().unwrap().contains("tcp 80"), "{vip:#}");
    wait_for(&scene, "override", "state override expired");
    wait_for(&scene, "vip", "VIP served again");

    // One reload succeeds, and one is rejected.
    let config = checked(&scene.bed);
    scene.balancer.reload(&scene.bed, &config.clone().weights(&[1, 5])).unwrap();
    let reload = wait_for(&scene, "reload", "configuration reloaded");
    assert_eq!(reload["cause"], "SIGHUP");
    assert!(reload["about"]["what"].as_str().unwrap().contains("weight"), "{reload:#}");
    let wrong = LbConfig { more: format!("{CHECK}nonsense = 1\n"), ..config };
    scene.balancer.reload(&scene.bed, &wrong).unwrap();
    let refused = wait_for(&scene, "reload", "reload rejected");
    assert_eq!((&refused["severity"], &refused["about"]["why"]), (&"error".into(), &"SIGHUP".into()));
    assert!(refused["about"]["problems"].as_str().unwrap().contains("nonsense"), "{refused:#}");

    // The spare link goes down and comes up again.
    scene.bed.router.ip(&format!("link set {SPARE_PORT} down\n")).unwrap();
    wait_for(&scene, "link", "link fault detected: spare0 has no carrier");
    scene.bed.router.ip(&format!("link set {SPARE_PORT} up\n")).unwrap();
    wait_for(&scene, "link", "link fault ended: spare0 has no carrier");

    // All events are listed in order and without duplicates, and each of them is also a log line.
    let all = events(&scene, &[]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let mut last = begun - 0.001;
    for (number, event) in (1_u64..).zip(&all) {
        let at = event["unix_seconds"].as_f64().unwrap();
        assert!(event["number"] == number && at >= last - 0.1 && at <= now, "{number} {last} {event:#}");
        let (what, kind) = (event["what"].as_str().unwrap(), event["kind"].as_str().unwrap());
        let mark = format!("\"change\":\"{kind}\"");
        let is_it = |line: &testbed::Line| line.text.contains(&mark) && line.text.contains(what);
        assert!(scene.balancer.process.lines().iter().any(is_it), "{event:#}\n{}", scene.diagnosis());
        last = at;
    }
    assert_eq!(events(&scene, &["--limit", "3"]), all[all.len() - 3..]);
    // The text output lists the same events.
    let words = run(&scene, &["events", "--kind", "override"]);
    assert!(words.contains("drain backend b1, for 1 s (client=\"uid 0\"): a new kernel\n"), "{words}");
}

// Promise: log-volume
#[test]
fn start_with_2000_vips_logs_no_line_per_vip() {
    let vip = |number: u32| {
        format!(
            "[vip.v{number:04}]\naddresses = [\"2001:db8:77::{number:x}\"]\nservices = [{{ ports = [80], protocol = \"tcp\", pool = \"idle\" }}]\n"
        )
    };
    let pool = "[pool.idle]\nchecks = []\nbackends = [{ name = \"idle\", address = \"198.51.100.250\", weight = 0 }]\n";
    let vips: String = (1..=2_000).map(vip).collect();
    let scene = Scene::with(|bed| LbConfig { more: pool.to_owned() + &vips, ..LbConfig::new(bed) });
    let lines = || scene.balancer.process.lines().into_iter().map(|line| line.text);
    let is_summary = |line: &String| line.contains("VIP not served") && line.contains("\"vips\":2000");
    let found = eventually(BOUND, || lines().find(is_summary));
    let found = found.unwrap_or_else(|| panic!("{}", scene.diagnosis()));
    assert!(found.contains("v0001, v0002, v0003 and 1997 more"), "{found}");
    let about_vips = lines().filter(|line| line.contains("\"vip\":")).count();
    assert!(about_vips < 10, "{about_vips} lines");
}
