//! The lane `zero-copy`: the tests of `tests/zero_copy`, with the static binary, in the VM of `xtask/zc-vm`.
//!
//! Two boots: virtio, whose peer refuses zero-copy, and igb, an emulated NIC of real hardware with its link that drops. Both
//! run on KVM where it works, else emulated. The first run fetches the VM's kernels and, where QEMU is older than 8, a newer
//! one: some 380 MB into `~/.cache/zc-vm`.
//! Not here: what is right (the tests say so). Invariant: nothing of the machine's network is touched.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cargo::root;
use crate::steps::Steps;
use crate::{dist, setup};

/// Builds both programs, and runs one in the other's VM.
pub(crate) fn run(steps: &mut Steps) {
    let built = || {
        setup::require_root("the lane zero-copy")?;
        Ok((dist::build()?.0, test_program()?))
    };
    let Some((binary, tests)) = steps.check(built()) else { return };
    for boot in BOOTS {
        steps.exactly(&format!("zc-vm --nic {}", boot.nic), &mut boot.command(&binary, &tests), boot.tests);
    }
}

struct Boot {
    nic: &'static str,
    /// Tests whose names hold this word make no sense here.
    skip: &'static [&'static str],
    /// How many are to pass.
    tests: usize,
}

impl Boot {
    fn command(&self, binary: &Path, tests: &Path) -> Command {
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
            .args(self.skip.iter().flat_map(|word| ["--skip", word]));
        vm
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

const TEST: &str = "zero_copy";
/// Ten times what a boot takes: a machine that is busy, or has no KVM, takes its time.
const TIMEOUT_SECONDS: &str = "900";
/// igb has no peer with several queues that would refuse zero-copy, and works with fewer channels than it has.
const BOOTS: [Boot; 2] =
    [Boot { nic: "virtio", skip: &[], tests: 8 }, Boot { nic: "igb", skip: &["refuse"], tests: 5 }];

#[cfg(test)]
mod tests {
    use super::*;

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
