//! Tests of `sluicegate probe` on the client host. The command runs without privileges and reports
//! what clients observe.

use std::fs::{Permissions, set_permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use testbed::{Bed, HttpServer, LbConfig, Process, eventually};

use crate::scene::{BOUND, Scene};

/// Starts `sluicegate probe` as the user `nobody`, without capabilities.
fn start(bed: &Bed, arguments: &[&str]) -> Process {
    let program = bed.program().unwrap();
    // Other users can read the configuration file, but not the file with the hash key.
    set_permissions(bed.dir(), Permissions::from_mode(0o755)).unwrap();
    let nobody =
        ["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs", "--"];
    let all = [nobody.as_slice(), &[program.to_str().unwrap(), "probe"], arguments].concat();
    Process::start(&bed.client.ns, "probe", "setpriv", &all).unwrap()
}

/// Waits for a log line, after the first `seen` lines, in which the target changes to `up`. The log
/// line contains the reason for the last failure.
fn wait_for(probe: &mut Process, seen: usize, target: &str, up: bool) -> Value {
    let is = |line: &str| {
        let object: Value = serde_json::from_str(line).unwrap_or_default();
        object["event"] == "change" && object["target"] == target && object["up"] == up
    };
    let line = probe.wait_for_line_after(seen, BOUND, is).unwrap();
    serde_json::from_str(&line).unwrap()
}

/// Returns the value of a metric, or `None` if the metric does not exist yet.
fn series(scene: &Scene, at: SocketAddr, name: &str) -> Option<f64> {
    let page = scene.bed.http_client().get(at, "/metrics").unwrap();
    let page = String::from_utf8(page.body).unwrap();
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map(|value| value.parse().unwrap())
}

#[test]
fn probe_reports_down_and_up_with_reason() {
    let mut scene = Scene::with(LbConfig::new);
    let (v4, v6) = (scene.bed.vip(true, Bed::HTTP_PORT), scene.bed.vip(false, Bed::HTTP_PORT));
    let file = LbConfig::new(&scene.bed).write(&scene.bed, 0).unwrap();
    let urls = [format!("http://{v4}/"), format!("tcp://{v4}"), format!("tcp://{v6}")];
    let pace = ["--interval", "1s", "--timeout", "1s", "--json", "--metrics", "127.0.0.1:0"];
    let of_file = ["--config", file.to_str().unwrap(), &urls[0]];
    let mut probe = start(&scene.bed, &[pace.as_slice(), &of_file].concat());
    let line = probe.wait_for_line(BOUND, |line| line.starts_with("metrics at")).unwrap();
    let at = line.strip_prefix("metrics at http://").and_then(|rest| rest.strip_suffix("/metrics")).unwrap();
    let at: SocketAddr = at.parse().unwrap();
    for url in &urls {
        let object = wait_for(&mut probe, 0, url, true);
        assert!(object["last_seconds"].as_f64().is_some_and(|seconds| seconds <= 1.0), "{object}");
    }
    // Every response came from a backend, so the request went through the balancer.
    assert!(scene.settled().sent() >= 3);

    let seen = probe.line_count();
    scene.bed.http.clear();
    for url in &urls {
        let object = wait_for(&mut probe, seen, url, false);
        // The kernel resets connections that the stopped server had not accepted.
        let why = object["last_failure"].as_str().unwrap();
        assert!(["connection refused", "connection reset"].contains(&why), "{object}");
    }
    let labels = |url: &str, vip: &str| {
        let kind = url.split("://").next().unwrap();
        format!("kind=\"{kind}\",target=\"{url}\",vip=\"{vip}\"")
    };
    let http = labels(&urls[0], "");
    assert_eq!(series(&scene, at, &format!("sluicegate_probe_up{{{http}}}")), Some(0.0));
    let refused = format!(
        "sluicegate_probe_failures_total{{{}}}",
        http.replace(",target", ",reason=\"refused\",target")
    );
    let reported = || series(&scene, at, &refused).filter(|&count| count >= 1.0);
    assert!(eventually(BOUND, reported).is_some(), "{refused}");

    let seen = probe.line_count();
    for host in &scene.bed.backends {
        scene.bed.http.push(HttpServer::start(&host.ns, &host.name, Bed::HTTP_PORT).unwrap());
    }
    for url in &urls {
        wait_for(&mut probe, seen, url, true);
    }

    let seen = probe.line_count();
    scene.balancer.process.stop(BOUND).unwrap();
    for url in &urls {
        assert_eq!(wait_for(&mut probe, seen, url, false)["last_reason"], "no_answer", "{url}");
    }
    let attempts = format!("sluicegate_probe_attempts_total{{{http}}}");
    let before = series(&scene, at, &attempts).unwrap();
    let goes_on = eventually(BOUND, || (series(&scene, at, &attempts).unwrap() > before).then_some(()));
    assert!(goes_on.is_some(), "the attempts ended while a target is down");
    assert_eq!(probe.stop(BOUND).unwrap().code(), Some(1), "the exit code must report targets that are down");
}

#[test]
fn probe_ends_with_the_code_of_what_it_saw() {
    let scene = Scene::with(LbConfig::new);
    let vip = scene.bed.vip(false, Bed::HTTP_PORT);
    let client = &scene.bed.client.ns;
    let program = scene.bed.program().unwrap();
    let to_end = |arguments: &[&str]| Process::to_end(client, &program, arguments, BOUND).unwrap();
    let url = format!("http://{vip}/");
    let pace = ["probe", "--interval", "1s", "--timeout", "1s", "--count", "3"];
    let well = to_end(&[pace.as_slice(), &[&url]].concat());
    assert_eq!(well.code, Some(0), "{}{}", well.out, well.err);
    assert!(well.out.contains("up http://"), "{}", well.out);
    let missing = format!("http://{vip}/status/503");
    let bad = to_end(&[pace.as_slice(), &[&url, &missing]].concat());
    assert_eq!(bad.code, Some(1), "{}", bad.out);
    assert!(bad.out.contains("status 503, expected 200-299"), "{}", bad.out);
    for wrong in [&["probe"][..], &["probe", "www.example.org:80"], &["probe", "https://203.0.113.10/"]] {
        let ended = to_end(wrong);
        assert_eq!(ended.code, Some(2), "{}", ended.err);
    }
}
