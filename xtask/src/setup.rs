//! Lists the Debian packages that each task needs, and installs them.
//!
//! If the process runs as root, missing packages are installed with `apt-get`. Otherwise the task
//! fails and prints the command that installs them.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use nix::unistd::geteuid;

use crate::cargo::run;

/// Packages for builds. The compiler clang compiles the BPF programs. The build of xsk-rs runs
/// make, m4 and bindgen, and links libelf and zlib.
pub(crate) const BUILD: &[&str] =
    &["clang", "libclang-dev", "llvm", "m4", "make", "pkg-config", "libelf-dev", "zlib1g-dev", "libbpf-dev"];

/// Packages for the testbed.
pub(crate) const BED: &[&str] =
    &["iproute2", "iputils-ping", "ethtool", "util-linux", "traceroute", "iperf3"];

/// Packages for the tests of the systemd unit. `systemd-analyze` requires the program `/bin/kill`
/// that the unit names, and `doctor` recommends commands that use `bpftool` and `sysctl`.
pub(crate) const SERVICE: &[&str] = &["systemd", "bpftool", "procps"];

/// The package for the test of packet captures, which reads them with tshark.
pub(crate) const CAPTURE: &[&str] = &["tshark"];

/// Packages for the commands of `docs/tutorial/first-traffic.md`.
pub(crate) const QUICK_START: &[&str] = &["curl", "jq", "openssl", "python3"];

/// Packages for the commands of the how-to pages.
pub(crate) const HOW_TO: &[&str] = &["memcached", "netcat-openbsd", "prometheus"];

/// Packages for the tests with BGP routers.
pub(crate) const ROUTERS: &[&str] = &["bird2", "frr", "gobgpd"];

/// Packages for the demo of keyed services: memcached servers, and a client that is not part of
/// this repository.
pub(crate) const KV_DEMO: &[&str] = &["memcached", "libmemcached-tools"];

/// Packages for `bench kv` and `figures kv`: memcached servers, and the proxy nutcracker.
pub(crate) const KV_BENCH: &[&str] = &["memcached", "nutcracker"];

/// Packages for the tests of keyed services: additional clients, `gcc` to build a client with
/// libmemcached, and a BGP router.
pub(crate) const KV: &[&str] = &[
    "memcached",
    "libmemcached-tools",
    "libmemcached-dev",
    "nutcracker",
    "php-cli",
    "php-memcache",
    "bird2",
];

/// Packages for the tests of the status page and the metrics. Chromium needs a font to render text.
pub(crate) const WEB: &[&str] = &["chromium", "chromium-driver", "fonts-dejavu-core", "prometheus"];

/// Packages for `zc-vm`. The kernel for the VM is not installed: `zc-vm` downloads it from the same
/// mirror into a cache folder.
pub(crate) const VM: &[&str] =
    &["qemu-system-x86", "busybox-static", "kmod", "cpio", "xz-utils", "iproute2", "ethtool", "util-linux"];

/// Packages for the short form of `bench zero-copy`, in addition to those for `zc-vm`.
pub(crate) const COUNT: &[&str] = &["binutils", "gcc"];

/// Packages for `bare`.
pub(crate) const BARE: &[&str] = &["debootstrap", "git", "util-linux"];

/// Packages for the tests that read the built packages.
pub(crate) const PACKAGES: &[&str] = &["rpm", "skopeo"];

/// Packages for `packages --try`.
pub(crate) const TRY_PACKAGES: &[&str] = &["libcap2-bin", "skopeo", "umoci"];

/// The package for `bench instructions`, and for tests that count the instructions of readers.
pub(crate) const INSTRUCTIONS: &[&str] = &["valgrind"];

/// Packages for `bench testpmd`.
pub(crate) const TESTPMD: &[&str] = &["dpdk-dev", "librte-net-af-xdp23"];

/// Packages for `bench peers`: the load balancers with which the balancer is compared.
pub(crate) const PEERS: &[&str] =
    &["nftables", "ipvsadm", "kmod", "haproxy", "nginx-light", "libnginx-mod-stream", "bpftool"];

/// Installs the packages that are missing.
pub(crate) fn ensure(packages: &[&str]) -> Result<()> {
    let missing: BTreeSet<&str> = packages.iter().copied().filter(|package| !installed(package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.into_iter().collect();
    let line = format!("apt-get install -y --no-install-recommends {}", names.join(" "));
    if !geteuid().is_root() {
        bail!("packages are missing; run:\n  sudo apt-get update && sudo {line}");
    }
    eprintln!("{line}");
    run(apt().args(["update", "--quiet"]))?;
    run(apt().args(["install", "-y", "--quiet", "--no-install-recommends"]).args(&names))?;
    match names.iter().find(|package| !installed(package)) {
        Some(package) => bail!("{package} is still missing after the installation"),
        None => Ok(()),
    }
}

/// Fails with an explanation if the process does not run as root.
pub(crate) fn require_root(task: &str) -> Result<()> {
    if geteuid().is_root() {
        return Ok(());
    }
    bail!(
        "{task} creates network namespaces and loads XDP programs, which needs root; run the command in a root shell"
    )
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn installed(package: &str) -> bool {
    let query = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${db:Status-Abbrev}", package])
        .stderr(Stdio::null())
        .output();
    query.is_ok_and(|output| output.stdout.starts_with(b"ii"))
}
