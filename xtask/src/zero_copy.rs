//! The lane `zero-copy`: the tests of `tests/zero_copy`, with the static binary, in the VM of `xtask/zc-vm`.
//!
//! Two boots, at once: virtio, whose peer refuses zero-copy, and igb, an emulated NIC of real hardware with its link that drops. Both
//! run on KVM where it works, else emulated. The first run fetches the VM's kernels and, where QEMU is older than 8, a newer
//! one: some 380 MB into `~/.cache/zc-vm`.
//! Not here: what is right (the tests say so). Invariant: nothing of the machine's network is touched.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::build::Built;
use crate::cargo::{self, root};
use crate::dist;
use crate::steps::Steps;

/// Runs the tests in the VM, with the balancer that all lanes have; a long run takes the one that is shipped.
pub(crate) fn run(steps: &mut Steps, built: &Built) {
    let is_long = steps.is_long();
    let programs = || {
        let shipped = if is_long { Some(dist::build()?.0) } else { None };
        let balancer = shipped.map_or_else(|| built.balancer().map(Path::to_owned), Ok)?;
        Ok((stripped(&balancer)?, stripped(built.program(TEST)?)?))
    };
    let Some((binary, tests)) = steps.check(programs()) else { return };
    steps.at_once(BOOTS.map(|boot| {
        let left_out = if is_long { &[] } else { boot.only_long };
        let mut command = boot.command(&binary, &tests, left_out);
        let what = format!("zc-vm --nic {}", boot.nic);
        move |steps: &mut Steps| steps.exactly(&what, &mut command, boot.tests - left_out.len())
    }));
}

struct Boot {
    nic: &'static str,
    /// Tests whose names hold this word make no sense here.
    skip: &'static [&'static str],
    /// Words that one test each holds in its name, which only a long run has: the other NIC shows the same.
    only_long: &'static [&'static str],
    /// How many are to pass in a long run.
    tests: usize,
}

impl Boot {
    fn command(&self, binary: &Path, tests: &Path, left_out: &[&str]) -> Command {
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
            .args(self.skip.iter().chain(left_out).flat_map(|word| ["--skip", word]));
        vm
    }
}

/// A copy without what only a debugger reads, which the VM would have to hold in memory.
fn stripped(program: &Path) -> Result<PathBuf> {
    let copy = program.with_extension("stripped");
    cargo::run(Command::new("strip").args(["--strip-debug", "-o"]).args([&copy, program]))?;
    Ok(copy)
}

pub(crate) const TEST: &str = "zero_copy";
/// Ten times what a boot takes: a machine that is busy, or has no KVM, takes its time.
const TIMEOUT_SECONDS: &str = "900";
/// igb has no peer with several queues that would refuse zero-copy, and works with fewer channels than it has.
const BOOTS: [Boot; 2] = [
    Boot { nic: "virtio", skip: &[], only_long: &["own_tunnels", "vlan_device", "put_off"], tests: 9 },
    Boot { nic: "igb", skip: &["refuse"], only_long: &[], tests: 6 },
];
