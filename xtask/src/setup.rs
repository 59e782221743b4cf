//! What Debian packages a task needs, and installing them.
//!
//! Root: `apt-get` is asked. Others get the line to run, and a failure.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use nix::unistd::geteuid;

use crate::cargo::run;

/// To build: the BPF programs are C for clang, xsk-rs runs make, m4 and bindgen, and links libelf and zlib.
pub(crate) const BUILD: &[&str] =
    &["clang", "libclang-dev", "llvm", "m4", "make", "pkg-config", "libelf-dev", "zlib1g-dev", "libbpf-dev"];

/// For the test bed.
pub(crate) const BED: &[&str] =
    &["iproute2", "iputils-ping", "ethtool", "util-linux", "traceroute", "iperf3"];

/// For the tests of the systemd unit and of what an operator may do to the program: `systemd-analyze`, which looks for the
/// unit's `/bin/kill`, `bpftool`, and `sysctl`, which `doctor` advises.
pub(crate) const SERVICE: &[&str] = &["systemd", "bpftool", "procps"];

/// For the test of captures, which it reads.
pub(crate) const CAPTURE: &[&str] = &["tshark"];

/// For the commands of `docs/quick-start.md`.
pub(crate) const QUICK_START: &[&str] = &["curl", "openssl", "python3"];

/// For the tests against routers.
pub(crate) const ROUTERS: &[&str] = &["bird2", "frr", "gobgpd"];

/// For the demo of keyed services: servers, and a client that is nobody's here.
pub(crate) const KV_DEMO: &[&str] = &["memcached", "libmemcached-tools"];

/// For `bench kv` and `figures kv`: servers, and a proxy.
pub(crate) const KV_BENCH: &[&str] = &["memcached", "nutcracker"];

/// For the tests of keyed services: further clients, of which `gcc` builds one against libmemcached, and a router.
pub(crate) const KV: &[&str] = &[
    "memcached",
    "libmemcached-tools",
    "libmemcached-dev",
    "nutcracker",
    "php-cli",
    "php-memcache",
    "bird2",
];

/// For the status page and the metrics; Chromium draws no text without a font.
pub(crate) const WEB: &[&str] = &["chromium", "chromium-driver", "fonts-dejavu-core", "prometheus"];

/// For `zc-vm`; the kernel that it boots comes from the same mirror, into a cache of its own.
pub(crate) const VM: &[&str] =
    &["qemu-system-x86", "busybox-static", "kmod", "cpio", "xz-utils", "iproute2", "ethtool", "util-linux"];

/// For `bare`.
pub(crate) const BARE: &[&str] = &["debootstrap", "git", "util-linux"];

/// For the tests of packages, which read them back.
pub(crate) const PACKAGES: &[&str] = &["rpm", "skopeo"];

/// For `packages --try`.
pub(crate) const TRY_PACKAGES: &[&str] = &["libcap2-bin", "skopeo", "umoci"];

/// For `bench instructions`.
pub(crate) const INSTRUCTIONS: &[&str] = &["valgrind"];

/// For `bench testpmd`.
pub(crate) const TESTPMD: &[&str] = &["dpdk-dev", "librte-net-af-xdp23"];

/// For `bench peers`: what the balancer is compared with.
pub(crate) const PEERS: &[&str] =
    &["nftables", "ipvsadm", "kmod", "haproxy", "nginx-light", "libnginx-mod-stream", "bpftool"];

/// Sees to it that `packages` are installed.
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
        Some(package) => bail!("{package} is still missing"),
        None => Ok(()),
    }
}

/// Fails with what to do when the task can't make namespaces.
pub(crate) fn require_root(task: &str) -> Result<()> {
    if geteuid().is_root() {
        return Ok(());
    }
    bail!(
        "{task} makes network namespaces and loads XDP programs, and so needs root: run it from a root shell"
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
