//! The lane `zero-copy`: the tests of `tests/zero_copy`, with the static binary, in the VM of `xtask/zc-vm`.
//!
//! Two boots: virtio, whose peer refuses zero-copy, and igb, an emulated NIC of real hardware with its link that drops. Both
//! run on KVM where it works, else emulated. The first run fetches the VM's kernels and, where QEMU is older than 8, a newer
//! one: some 380 MB into `~/.cache/zc-vm`.
//! Not here: what is right (the tests say so). Invariant: nothing of the machine's network is touched.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cargo::root;
use crate::{dist, setup};

/// Builds both programs, and runs one in the other's VM.
pub(crate) fn run() -> Result<()> {
    setup::require_root("the lane zero-copy")?;
    let (binary, _) = dist::build()?;
    let tests = test_program()?;
    for boot in BOOTS {
        boot.run(&binary, &tests)?;
    }
    Ok(())
}

struct Boot {
    nic: &'static str,
    /// Tests whose names hold this word make no sense here.
    skip: &'static [&'static str],
    /// How many are to pass: a filter that fits nothing must not look like success.
    tests: usize,
}

impl Boot {
    fn run(&self, binary: &Path, tests: &Path) -> Result<()> {
        eprintln!("── zc-vm --nic {}", self.nic);
        let carry =
            |from: &Path, to: &str| [OsString::from("--file"), format!("{}:{to}", from.display()).into()];
        let mut vm = Command::new("bash");
        vm.arg(root().join("xtask/zc-vm"))
            .args(["--nic", self.nic, "--queues", "4", "--pairs", "2", "--timeout", TIMEOUT_SECONDS])
            .args(carry(binary, "/usr/bin/sluicegate"))
            .args(carry(tests, "/usr/bin/zero_copy"))
            .args(carry(Path::new("/usr/bin/setpriv"), "/usr/bin/setpriv"))
            .args(["--", "/usr/bin/env", "SLUICEGATE_BIN=/usr/bin/sluicegate", "/usr/bin/zero_copy"])
            .args(["--test-threads=1", "--nocapture"])
            .args(self.skip.iter().flat_map(|word| ["--skip", word]))
            .stdout(Stdio::piped());
        let mut child = vm.spawn().context("can't run bash")?;
        let mut passed = None;
        for line in BufReader::new(child.stdout.take().context("piped")?).lines() {
            let line = line?;
            eprintln!("{line}");
            passed = passed.or_else(|| passed_tests(&line));
        }
        let status = child.wait()?;
        ensure!(status.success(), "zc-vm --nic {}: {status}", self.nic);
        ensure!(passed == Some(self.tests), "{passed:?} tests passed on {}, not {}", self.nic, self.tests);
        Ok(())
    }
}

/// Builds the tests; returns where their program is.
fn test_program() -> Result<PathBuf> {
    let args = ["test", "--release", "--package", "sluicegate-testbed", "--test", TEST, "--no-run"];
    let mut command = dist::cargo_static(&args);
    command.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = command.output().context("can't run cargo")?;
    ensure!(output.status.success(), "cargo test --no-run: {}", output.status);
    let messages = String::from_utf8(output.stdout)?;
    match messages.lines().find_map(executable) {
        Some(path) => Ok(path),
        None => bail!("cargo names no program of the test {TEST}"),
    }
}

/// The program that a message of cargo's tells of, if it is the tests'.
fn executable(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_ours = message["target"]["name"] == TEST;
    is_ours.then(|| message["executable"].as_str()).flatten().map(PathBuf::from)
}

/// The number in the last line of a run that went well.
fn passed_tests(line: &str) -> Option<usize> {
    line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse().ok()
}

const TEST: &str = "zero_copy";
const TIMEOUT_SECONDS: &str = "300";
/// igb has no peer with several queues that would refuse zero-copy, and works with fewer channels than it has.
const BOOTS: [Boot; 2] =
    [Boot { nic: "virtio", skip: &[], tests: 5 }, Boot { nic: "igb", skip: &["refuse"], tests: 3 }];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_run_that_went_well_has_a_number() {
        assert_eq!(passed_tests("test result: ok. 5 passed; 0 failed; 0 ignored"), Some(5));
        assert_eq!(passed_tests("test result: FAILED. 4 passed; 1 failed"), None);
        assert_eq!(passed_tests("test a ... ok"), None);
    }

    #[test]
    fn the_program_is_the_one_of_the_test() {
        let ours = r#"{"target":{"name":"zero_copy"},"executable":"/x/zero_copy-1"}"#;
        assert_eq!(executable(ours), Some("/x/zero_copy-1".into()));
        for other in [
            r#"{"target":{"name":"testbed"},"executable":"/x/testbed-1"}"#,
            r#"{"target":{"name":"zero_copy"},"executable":null}"#,
            r#"{"reason":"build-finished","success":true}"#,
            "",
        ] {
            assert_eq!(executable(other), None, "{other}");
        }
    }
}
