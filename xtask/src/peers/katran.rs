//! Measures Katran's XDP program, which is built from a checkout that the command line names,
//! because this repository does not contain Katran.
//!
//! The program forwards packets for the VIP with IPIP. The maps of the program are filled in the
//! same way as by Katran's own library: the MAC address of the router, the VIP, the backends, the
//! ring, and a flow table for each processor. The ring alternates between the backends, because the
//! cost of a packet does not depend on their order. Requests are not measured: Katran uses
//! different source addresses for its tunnels, and the backends accept tunnels only from the
//! balancer's address.
//!
//! Reference: katran `katran/lib/{Makefile-bpf,bpf/balancer_*.h,bpf/control_data_maps.h}`.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testbed::{Bed, Frame, Host, Kind};

use crate::cargo;
use crate::processors::{DEVICE_CPU, GENERATOR_CPU};
use crate::stage::{Load, NOBODY, Peer, Stage, Worker};

/// Katran as a measured peer. Katran can be built only if its source code is available.
#[derive(Clone, Debug)]
pub(crate) struct Katran {
    /// A checkout of github.com/facebookincubator/katran.
    pub(crate) source: Option<PathBuf>,
}

impl Peer for Katran {
    fn name(&self) -> &'static str {
        "katran"
    }

    fn carries(&self, load: Load) -> bool {
        load == Load::Packets
    }

    fn has_xdp(&self) -> bool {
        true
    }

    fn sends_by_xdp(&self) -> bool {
        true
    }

    /// Builds Katran if its source code is available. Otherwise, returns the reason why Katran
    /// cannot be measured.
    fn missing(&self, stage: &Stage) -> Result<Option<String>> {
        let Some(source) = &self.source else { return Ok(Some(NO_SOURCE.into())) };
        build(source, &object(stage))?;
        Ok(None)
    }

    fn start(&self, stage: &Stage, _load: Load) -> Result<Worker> {
        let entries = stage.bed.dir().join("katran.maps");
        let IpAddr::V4(vip) = stage.bed.vip(true, 0).ip() else { unreachable!("the VIP is an IPv4 address") };
        let backends: Vec<Ipv4Addr> = stage.bed.backends.iter().map(|backend| backend.v4).collect();
        fs::write(&entries, maps(NOBODY, vip, Bed::SINK_PORT, &[UDP], &backends))?;
        let tables: String = [GENERATOR_CPU, DEVICE_CPU].map(flow_table).concat();
        let script = format!(
            "set -e; mount -t bpf bpf {PINS}\n\
             bpftool prog load {} {PINS}/program type xdp pinmaps {PINS}\n{tables}\
             bpftool batch file {}\n\
             ip link set dev {} xdpdrv pinned {PINS}/program",
            object(stage).display(),
            entries.display(),
            stage.host().device
        );
        // The mounted bpffs is no longer needed: the device keeps a reference to the program, and
        // the program keeps references to its maps.
        stage.host().ns.text("unshare", &["--mount", "sh", "-c", &script]).context("cannot load katran")?;
        Ok(Worker::Kernel)
    }

    fn clean_up(&self, stage: &Stage) -> Result<()> {
        let Host { ns, device, .. } = stage.host();
        ns.ip(&format!("link set dev {device} xdp off"))
    }

    fn is_forwarded(&self, _stage: &Stage, frame: &Frame) -> bool {
        frame.outer().is_some_and(|outer| outer.kind == Kind::Ipip)
    }
}

fn object(stage: &Stage) -> PathBuf {
    stage.bed.dir().join("katran.bpf.o")
}

/// Builds Katran's XDP program from a checkout.
pub(crate) fn build(source: &Path, object: &Path) -> Result<()> {
    ensure!(
        source.join(PROGRAM).is_file(),
        "--katran {} is not a checkout of katran: it has no {PROGRAM}",
        source.display()
    );
    // The script runs the compiler command from Katran's Makefile. The include paths in this
    // command are relative to Katran's root folder. The two added variables work around a problem
    // in clang 14, which omits the size of a type that only a nested map uses, although libbpf
    // requires this size.
    let script = format!(
        "set -o pipefail; (cat {PROGRAM}; echo 'struct flow_key key_; struct real_pos_lru value_;') | \
         clang -I. -Ikatran/lib/linux_includes -D__KERNEL__ -Wno-unused-value -Wno-pointer-sign \
         -Wno-compare-distinct-pointer-types -O2 -g -emit-llvm -x c -c - -o - | \
         llc -march=bpf -mcpu=v3 -filetype=obj -o {}",
        object.display()
    );
    cargo::run(Command::new("bash").args(["-c", &script]).current_dir(source)).context("cannot build katran")
}

/// Returns the shell commands that create the flow table for one processor. The table's keys are
/// `struct flow_key` and its values are `struct real_pos_lru`.
pub(crate) fn flow_table(cpu: usize) -> String {
    format!(
        "bpftool map create {PINS}/flows{cpu} type lru_hash key 40 value 16 entries 65536 name flows{cpu}\n\
         bpftool map update pinned {PINS}/lru_mapping key {cpu} 0 0 0 value pinned {PINS}/flows{cpu}\n"
    )
}

/// Returns the input for `bpftool batch` that fills all other maps. All packets are sent to
/// `router`.
pub(crate) fn maps(
    router: [u8; 6],
    vip: Ipv4Addr,
    port: u16,
    protocols: &[u8],
    backends: &[Ipv4Addr],
) -> String {
    let mut lines = String::new();
    let mut update = |map: &str, key: &[u8], value: &[u8]| {
        let bytes = |bytes: &[u8]| bytes.iter().map(|byte| format!(" {byte}")).collect::<String>();
        let _ = writeln!(lines, "map update pinned {PINS}/{map} key{} value{}", bytes(key), bytes(value));
    };
    update("ctl_array", &[0; 4], &[&router[..], &[0; 2]].concat());
    for &protocol in protocols {
        // The key is `struct vip_definition`: address, port and protocol, in network byte order.
        // The value is `struct vip_meta`: flags and the index of the VIP.
        let key = [&vip.octets()[..], &[0; 12], &port.to_be_bytes(), &[protocol, 0]].concat();
        update("vip_map", &key, &[0; 8]);
    }
    // Indices of backends begin at 1, because 0 is not a valid backend in Katran.
    for (id, v4) in (1_u32..).zip(backends) {
        update("reals", &id.to_ne_bytes(), &[&v4.octets()[..], &[0; 16]].concat());
    }
    for (slot, id) in (0..RING_SIZE).zip((1_u32..).take(backends.len()).cycle()) {
        update("ch_rings", &slot.to_ne_bytes(), &id.to_ne_bytes());
    }
    lines
}

const PROGRAM: &str = "katran/lib/bpf/balancer.bpf.c";
const NO_SOURCE: &str = "no source; --katran PATH names a checkout of github.com/facebookincubator/katran \
                         (build and forwarding were tested only with a stand-in that has the same maps)";
pub(crate) const PINS: &str = "/sys/fs/bpf";
pub(crate) const UDP: u8 = 17;
/// The size of the ring for one VIP in a default build of Katran.
const RING_SIZE: u32 = 65_537;
