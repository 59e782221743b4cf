//! A soak test. Memory and open file descriptors must not grow during reloads, overrides, listings,
//! incomplete requests and checks of unresponsive endpoints.

use std::io::Write;
use std::net::{Ipv6Addr, TcpListener};
use std::os::unix::net::UnixStream;

use testbed::{Bed, LbConfig, eventually};

use crate::scene::{BOUND, SILENCE, Scene, count};

const CHECKS: &str = r#"
[check.silent]
http = { port = 81, path = "/" }
interval = "200ms"
timeout = "100ms"
[check.web]
tcp = { port = 80 }
interval = "200ms"
timeout = "100ms"
"#;

fn config(bed: &Bed, round: usize) -> LbConfig {
    let mut config = LbConfig::new(bed).weights(&[[1, 1, 1], [1, 5, 1]][round % 2]);
    config.pool_keys = format!("checks = [{}]", ["\"web\"", "\"web\", \"silent\""][round % 2]);
    config.more = CHECKS.into();
    config
}

/// Returns how many file descriptors the balancer has open, and its resident memory in KiB.
pub(crate) fn footprint(scene: &Scene) -> (usize, u64) {
    let folder = std::path::PathBuf::from(format!("/proc/{}", scene.balancer.process.id()));
    let descriptors = std::fs::read_dir(folder.join("fd")).unwrap().count();
    let status = std::fs::read_to_string(folder.join("status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    (descriptors, resident.trim().trim_end_matches(" kB").parse().unwrap())
}

#[test]
fn memory_and_descriptors_stay_constant() {
    let mut scene = Scene::with(|bed| config(bed, 0));
    // The `silent` listeners never accept: the kernel completes the connections, but no program
    // answers.
    let silent: Vec<TcpListener> = scene
        .bed
        .backends
        .iter()
        .map(|host| host.ns.run(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, 81))).unwrap())
        .collect();
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    let mut flows = scene.flows(true, 10);
    let (rounds, mut after_warm_up) = (count(40, 400), None);
    for round in 0..rounds {
        scene.balancer.reload(&scene.bed, &config(&scene.bed, round)).unwrap();
        for path in ["/v1/status", "/v1/backends", "/v1/health", "/v1/flows?limit=100", "/v1/config"] {
            scene.balancer.ask(path).unwrap();
        }
        let mut half = UnixStream::connect(&socket).unwrap();
        half.write_all(b"PUT /v1/config HTTP/1.1\r\nContent-Le").unwrap();
        drop(half);
        if round == rounds / 4 {
            after_warm_up = Some(footprint(&scene));
        }
    }
    scene.balancer.reload(&scene.bed, &config(&scene.bed, 0)).unwrap();
    let (before, resident) = after_warm_up.unwrap();
    let flat = eventually(BOUND, || (footprint(&scene).0 <= before + 4).then_some(()));
    let (descriptors, now) = footprint(&scene);
    println!(
        "{rounds} rounds, descriptors {before} before and {descriptors} after, resident memory {resident} KiB before and {now} KiB after"
    );
    assert!(flat.is_some(), "{descriptors} open descriptors, but {before} after the warm-up");
    assert!(now < resident + 16 * 1024, "{now} KiB of resident memory, but {resident} KiB after the warm-up");
    drop(silent);
    assert!(
        eventually(BOUND, || flows.round_within(SILENCE).unwrap().iter().all(Option::is_some).then_some(()))
            .is_some()
    );
}
