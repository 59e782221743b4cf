//! A test of `exec` checks: `sluicegate run-checks` runs a script as another user, for a balancer
//! on the same host.

use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use testbed::{Bed, LbConfig, eventually};

use crate::scene::{BOUND, Scene, names, verb};

/// A script that passes, fails or hangs, as the file of its backend says. A script that hangs has a
/// child.
const SCRIPT: &str = r#"#!/bin/sh
case $(cat "$1/$SLUICEGATE_BACKEND") in
up) exit 0 ;;
down) echo "lag of $SLUICEGATE_ADDRESS is ${2} s"; id -u > "$1/user"; exit 2 ;;
hang) sleep 1000 & echo $! > "$1/child"; wait ;;
esac
"#;

/// A running `run-checks`, which is killed when the handle is dropped.
struct CheckRunner(Child);

impl Drop for CheckRunner {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl CheckRunner {
    /// Starts the process with a group. The balancer has no capability to open files of others.
    fn start(bed: &Bed, group: &str, arguments: &[&str], stdin: Stdio) -> Self {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig=KILL", "--reuid=65534", "--clear-groups", "--regid", group])
            .args(["--bounding-set=-all", "--"])
            .arg(bed.program().unwrap())
            .args(["run-checks", "--programs"])
            .arg(programs(bed))
            .args(arguments)
            .stdin(stdin);
        Self(bed.balancers[0].ns.start(command).unwrap())
    }
}

/// Returns the folder that belongs to the user of the programs.
fn work(bed: &Bed) -> PathBuf {
    bed.dir().join("work")
}

fn programs(bed: &Bed) -> PathBuf {
    bed.dir().join("checks")
}

fn socket(bed: &Bed) -> PathBuf {
    work(bed).join("checks.sock")
}

fn config(bed: &Bed) -> LbConfig {
    fs::set_permissions(bed.dir(), Permissions::from_mode(0o711)).unwrap();
    for folder in [work(bed), programs(bed)] {
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    }
    chown(work(bed), Some(USER), Some(USER)).unwrap();
    bed.backends.iter().for_each(|backend| set(bed, &backend.name, "up"));
    let script = programs(bed).join("check_lag");
    fs::write(&script, SCRIPT).unwrap();
    fs::set_permissions(script, Permissions::from_mode(0o755)).unwrap();
    let mut config = LbConfig::new(bed);
    config.pool_keys = "checks = [\"lag\"]".into();
    config.more = format!(
        "[health]\nexec_socket = {:?}\n[check.lag]\nexec = {{ program = \"check_lag\", arguments = [{:?}, \"90\"] }}\n\
         interval = \"2s\"\nfast_interval = \"1700ms\"\ntimeout = \"1600ms\"\nrise = 1\nfall = 2\n",
        socket(bed),
        work(bed)
    );
    config
}

/// Sets what the script does for a backend.
fn set(bed: &Bed, backend: &str, what: &str) {
    fs::write(work(bed).join(backend), format!("{what}\n")).unwrap();
}

fn state(scene: &Scene, backend: &str) -> Value {
    let rows = scene.balancer.ask("/v1/backends").unwrap();
    rows.as_array().unwrap().iter().find(|row| row["name"] == backend).unwrap()["state"].clone()
}

fn becomes(scene: &Scene, backend: &str, wanted: &str) {
    let found = eventually(3 * BOUND, || (state(scene, backend) == wanted).then_some(()));
    assert!(found.is_some(), "{backend} is not {wanted}\n{}\n{}", health(scene), scene.diagnosis());
}

fn health(scene: &Scene) -> String {
    let socket = LbConfig::admin_socket(&scene.bed, 0);
    verb(&scene.bed, &["health", "list", "--socket", socket.to_str().unwrap()]).out
}

/// Waits until `health list` contains this text.
fn reports(scene: &Scene, text: &str) {
    let found = eventually(3 * BOUND, || health(scene).contains(text).then_some(()));
    assert!(found.is_some(), "no {text:?} in\n{}\n{}", health(scene), scene.diagnosis());
}

fn has_ended(file: &Path) -> Option<()> {
    let id = fs::read_to_string(file).ok().filter(|text| text.ends_with('\n'))?;
    (!Path::new(&format!("/proc/{}", id.trim())).exists()).then_some(())
}

// Promise: check-programs
#[test]
fn exec_check_runs_a_program_as_its_own_user() {
    let mut runner = None;
    let scene = Scene::with(|bed| {
        let config = config(bed);
        // As with systemd, the listening socket is the standard input.
        let listener = UnixListener::bind(socket(bed)).unwrap();
        runner = Some(CheckRunner::start(bed, "65534", &[], OwnedFd::from(listener).into()));
        config
    });
    for backend in ["b1", "b2", "b3"] {
        becomes(&scene, backend, "serving");
    }
    set(&scene.bed, "b1", "down");
    becomes(&scene, "b1", "down");
    reports(&scene, "exit status 2: lag of 198.18.1.1 is 90 s");
    assert_eq!(fs::read_to_string(work(&scene.bed).join("user")).unwrap().trim(), USER.to_string());
    let answers: Vec<String> = scene.ask(true, 40).into_iter().map(|answer| answer.backend).collect();
    assert!(!names(&answers).contains("b1"), "{answers:?}");
    set(&scene.bed, "b1", "up");
    becomes(&scene, "b1", "serving");

    set(&scene.bed, "b2", "hang");
    becomes(&scene, "b2", "down");
    reports(&scene, "the program did not end in time");
    set(&scene.bed, "b2", "up");
    becomes(&scene, "b2", "serving");
    let ended = eventually(BOUND, || has_ended(&work(&scene.bed).join("child")));
    assert!(ended.is_some(), "the child of a killed program still runs");

    // Without a runner, no state changes.
    drop(runner);
    set(&scene.bed, "b3", "down");
    reports(&scene, "cannot reach the check runner at");
    assert!(
        ["b1", "b2", "b3"].iter().all(|backend| state(&scene, backend) == "serving"),
        "{}",
        health(&scene)
    );
    scene.ask(true, 20);
    let path = socket(&scene.bed);
    let arguments = ["--socket", path.to_str().unwrap()];
    let _runner = CheckRunner::start(&scene.bed, "0", &arguments, Stdio::null());
    becomes(&scene, "b3", "down");
}

#[test]
fn run_checks_refuses_to_run_as_root() {
    let bed = Bed::new(&testbed::BedSpec::default()).unwrap();
    let ended = verb(&bed, &["run-checks", "--socket", "/nonexistent/checks.sock"]);
    assert_eq!(ended.code, Some(1), "{}", ended.out);
    assert!(ended.err.contains("must not run as root"), "{}", ended.err);
}

/// The ID of the user `nobody`.
const USER: u32 = 65_534;
