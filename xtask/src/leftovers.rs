//! Checks at the end of a test lane that the tests have left no processes running.
//!
//! Commands that run tests are marked with an environment variable. All child processes inherit
//! this variable, including servers in network namespaces. Each child process that a test starts
//! with `testbed::Process` ends together with the test.
//!
//! Reference: proc(5) on `/proc/PID/environ`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use testbed::eventually;

/// Marks a command, so that it and all its descendants are recognized as tests of this process.
pub(crate) fn mark(command: &mut Command) {
    command.env(MARK, std::process::id().to_string());
}

/// Fails if the tested binary or a descendant of a marked command is still running.
pub(crate) fn nothing_left(binary: &Path) -> Result<()> {
    let (binary, mark) = (binary.canonicalize()?, format!("{MARK}={}", std::process::id()));
    let is_left = |process: &Path| is_of(process, &binary) || is_marked(process, &mark);
    // A process that was just killed may need a moment to end.
    let gone = eventually(BOUND, || left(is_left).is_empty().then_some(()));
    let left = left(is_left);
    ensure!(gone.is_some() || left.is_empty(), "tests left processes running: {}", left.join(", "));
    Ok(())
}

/// Returns the process ID and the command of each process for which `is_left` returns `true`.
fn left(is_left: impl Fn(&Path) -> bool) -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let words = |process: &Path| {
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        format!("{} ({})", process.file_name().unwrap_or_default().to_string_lossy(), command.trim())
    };
    processes.filter(|process| is_left(process)).map(|process| words(&process)).collect()
}

fn is_of(process: &Path, binary: &Path) -> bool {
    fs::read_link(process.join("exe")).is_ok_and(|program| program == binary)
}

fn is_marked(process: &Path, mark: &str) -> bool {
    let environment = fs::read(process.join("environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
}

const MARK: &str = "SLUICEGATE_LANE";
/// The time to wait for processes to end, which is ten times as long as the kernel needs to end
/// processes by their parent-death signal.
const BOUND: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn descendant_is_found_after_its_marked_command_ended() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 >&2 & echo $!"]).stdout(Stdio::piped()).stderr(Stdio::null());
        mark(&mut command);
        let said = command.output().unwrap();
        let orphan = String::from_utf8(said.stdout).unwrap().trim().to_owned();
        let mark = format!("{MARK}={}", std::process::id());
        let others = format!("{MARK}={}0", std::process::id());
        let is = |process: &Path| process.ends_with(&orphan) && is_marked(process, &mark);
        // Until the child executes `sleep`, it is still a copy of the shell.
        let asleep = || left(is).pop().filter(|words| *words == format!("{orphan} (sleep 1000)"));
        assert!(eventually(BOUND, asleep).is_some(), "{:?}", left(is));
        assert!(!is_marked(&Path::new("/proc").join(&orphan), &others));
        assert!(
            !is_marked(Path::new("/proc/self"), &mark),
            "this process does not belong to the tests of a lane"
        );
        // `kill` is a builtin of the shell. A minimal Debian system does not contain a program with
        // this name.
        assert!(Command::new("sh").args(["-c", "kill -KILL $0", &orphan]).status().unwrap().success());
        assert!(eventually(BOUND, || left(is).is_empty().then_some(())).is_some());
    }
}
