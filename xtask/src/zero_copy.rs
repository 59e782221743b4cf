//! Implements the lane `zero-copy`, which runs the tests in `tests/zero_copy` with the static
//! binary, in the VMs that `xtask/zc-vm` starts.
//!
//! Two VMs run in parallel. The first VM has virtio NICs, and its peer NICs reject zero-copy mode.
//! The second VM has igb, an emulated hardware NIC whose link can go down. QEMU uses KVM if KVM
//! works, and software emulation otherwise. Then a third VM counts instructions
//! ([`bench_zero_copy`]). The first run downloads the kernels, and QEMU 10 if the installed version
//! is older. The downloads take about 380 MB in `~/.cache/zc-vm`.
//! The network of the host is not changed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::bench_zero_copy;
use crate::build::Built;
use crate::cargo::{self, root};
use crate::dist;
use crate::steps::Steps;

/// Runs the tests in both VMs. A long run uses the released build of the balancer, and other runs
/// use the build of all lanes.
pub(crate) fn run(steps: &mut Steps, built: &Built) {
    let is_long = steps.is_long();
    let programs = || {
        let shipped = if is_long { Some(dist::build()?.0) } else { None };
        let balancer = shipped.map_or_else(|| built.balancer().map(Path::to_owned), Ok)?;
        Ok((stripped(&balancer)?, stripped(built.program(TEST)?)?))
    };
    let Some((binary, tests)) = steps.check(programs()) else { return };
    let tests = BOOTS.map(|boot| {
        let left_out = if is_long { &[] } else { boot.only_long };
        let mut command = boot.command(&binary, &tests, left_out);
        let what = format!("zc-vm --nic {}", boot.nic);
        let run = move |steps: &mut Steps| steps.exactly(&what, &mut command, boot.tests - left_out.len());
        Box::new(run) as Box<dyn FnOnce(&mut Steps) + Send>
    });
    let counts = |steps: &mut Steps| {
        // The recorded counts apply to the build that all lanes use.
        steps.check(built.balancer().and_then(bench_zero_copy::compare));
    };
    let [first, second] = tests;
    steps.at_once([first, second, Box::new(counts)]);
}

struct Boot {
    nic: &'static str,
    /// Words in the names of tests that are skipped, because they cannot run in this VM.
    skip: &'static [&'static str],
    /// Words in the names of tests that run only in long runs, because the other VM also covers
    /// these tests. Each word matches exactly one test.
    only_long: &'static [&'static str],
    /// The number of tests that must pass in a long run.
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

/// Returns a copy of the program without debug information, which would take memory in the VM.
fn stripped(program: &Path) -> Result<PathBuf> {
    let copy = program.with_extension("stripped");
    cargo::strip(program, &copy)?;
    Ok(copy)
}

pub(crate) const TEST: &str = "zero_copy";
/// The time limit of a VM in seconds. The limit is ten times the usual boot time, to allow for
/// machines that are busy or do not support KVM.
const TIMEOUT_SECONDS: &str = "900";
/// The VMs to start. The VM with igb has no multi-queue peer NIC that rejects zero-copy, and igb
/// also works with fewer channels than it has.
const BOOTS: [Boot; 2] = [
    Boot {
        nic: "virtio",
        skip: &[],
        only_long: &["kernel_tunnels", "vlan_device", "deferred_interrupts"],
        tests: 10,
    },
    Boot {
        nic: "igb",
        skip: &["nic_without_zero_copy", "disabled_channels"],
        only_long: &["sctp"],
        tests: 7,
    },
];
