//! The last look at a lane: no process of its tests is still there.
//!
//! In: the commands that run tests, which are marked. Out: an error that names what they left, started by any of them: children
//! inherit the mark, servers that tests start in namespaces among them.
//! Not here: how a child ends with its test (`testbed::Process`).
//! Source: proc(5) on `/proc/PID/environ`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use testbed::eventually;

/// Gives a command, and all that it will start, the mark of this process.
pub(crate) fn mark(command: &mut Command) {
    command.env(MARK, std::process::id().to_string());
}

/// Fails when a process of the binary under test is still there, or one of a marked command.
pub(crate) fn nothing_left(binary: &Path) -> Result<()> {
    let (binary, mark) = (binary.canonicalize()?, format!("{MARK}={}", std::process::id()));
    let is_left = |process: &Path| is_of(process, &binary) || is_marked(process, &mark);
    // What was killed a moment ago may not have ended.
    let gone = eventually(BOUND, || left(is_left).is_empty().then_some(()));
    let left = left(is_left);
    ensure!(gone.is_some() || left.is_empty(), "the tests left processes: {}", left.join(", "));
    Ok(())
}

/// Number and command of each process that is meant.
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
/// Ten times what the kernel takes to end what a test left to its death signal.
const BOUND: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn what_a_marked_command_started_is_found_after_the_command_has_ended() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 >&2 & echo $!"]).stdout(Stdio::piped()).stderr(Stdio::null());
        mark(&mut command);
        let said = command.output().unwrap();
        let orphan = String::from_utf8(said.stdout).unwrap().trim().to_owned();
        let mark = format!("{MARK}={}", std::process::id());
        let others = format!("{MARK}={}0", std::process::id());
        let is = |process: &Path| process.ends_with(&orphan) && is_marked(process, &mark);
        // Until it has become `sleep` it is a copy of the shell.
        let asleep = || left(is).pop().filter(|words| *words == format!("{orphan} (sleep 1000)"));
        assert!(eventually(BOUND, asleep).is_some(), "{:?}", left(is));
        assert!(!is_marked(&Path::new("/proc").join(&orphan), &others));
        assert!(!is_marked(Path::new("/proc/self"), &mark), "this process is not of a lane's tests");
        // The shell's own `kill`: a bare Debian has no other.
        assert!(Command::new("sh").args(["-c", "kill -KILL $0", &orphan]).status().unwrap().success());
        assert!(eventually(BOUND, || left(is).is_empty().then_some(())).is_some());
    }
}
