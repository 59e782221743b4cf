//! Tests that a killed test process leaves no memcached server behind.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::{env, fs, thread};

use testbed::{Bed, BedSpec, eventually};

use crate::scene::{BOUND, memcached};

/// Starts a memcached server and waits. The next test runs this function in a separate process and
/// kills the process.
#[test]
fn holder_of_a_server() {
    if env::var_os(HOLDER).is_none() {
        return;
    }
    let bed = Bed::new(&BedSpec { backends: 1, ..BedSpec::default() }).unwrap();
    let server = memcached(&bed, &bed.backends[0]);
    println!("\nHELD {}", server.id());
    loop {
        thread::park();
    }
}

#[test]
fn a_killed_test_leaves_no_memcached() {
    // The helper process also ends if this process is killed.
    let mut holder = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(env::current_exe().unwrap())
        .args(["killed::holder_of_a_server", "--exact", "--nocapture"])
        .env(HOLDER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let held = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("HELD ").map(str::to_owned));
    let server = format!("/proc/{}", held.unwrap());
    assert_eq!(fs::read_to_string(format!("{server}/comm")).unwrap(), "memcached\n");
    holder.kill().unwrap();
    holder.wait().unwrap();
    // A process that has ended but is not reaped yet has an empty command line.
    let is_gone = || fs::read(format!("{server}/cmdline")).unwrap_or_default().is_empty().then_some(());
    assert!(eventually(BOUND, is_gone).is_some(), "{server}");
}

const HOLDER: &str = "SLUICEGATE_TEST_HOLDER";
