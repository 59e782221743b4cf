//! Implements `bench zero-copy`, which counts the instructions per packet of the whole machine:
//! driver, kernel, XDP programs and user space.
//!
//! No build machine needs a NIC for it. QEMU emulates a machine with one processor and a NIC whose
//! driver supports zero-copy, and counts the executed instructions. The counts do not depend on the
//! host, and repeated measurements differ by about 1 %. They contain no cache misses and no cost of
//! device registers, so they are not times. Each forwarder gets bursts of frames. The first burst
//! establishes the flows, and the result is the smallest of the other counts.
//!
//! The results are a table and, if all devices are measured, `benches/results/figure-zero-copy.csv`
//! with its plot.

mod counts;
mod devices;
mod results;
mod symbols;
mod traffic;
mod vm;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use testbed::TempDir;

use crate::cargo::{self, root};
use crate::{dist, figures, setup};
use devices::Device;
use results::Row;
use symbols::Symbols;
use traffic::Traffic;
use vm::{Nic, Vm};

/// Measures the devices in `names`, or all devices if `names` is empty, with the given balancer
/// binary or with a fresh build.
pub(crate) fn run(names: &[String], binary: Option<&Path>) -> Result<()> {
    setup::ensure(&[setup::BUILD, setup::VM, setup::ZERO_COPY].concat())?;
    let devices = devices::chosen(names)?;
    let folder = TempDir::new()?;
    let files = Files::build(folder.path(), binary)?;
    let mut rows = Vec::new();
    println!("{}", results::head());
    for nic in Nic::ALL {
        let of_nic: Vec<Device> =
            devices.iter().copied().filter(|device| device.nics().contains(&nic)).collect();
        if of_nic.is_empty() {
            continue;
        }
        eprintln!("booting a VM with {}", nic.name());
        let mut vm = Vm::boot(nic, &files.plugin, &files.carried)?;
        for device in of_nic {
            rows.extend(measure(&mut vm, nic, device, &files)?);
        }
    }
    if names.is_empty() {
        results::write(&rows)?;
        figures::draw()?;
    }
    Ok(())
}

/// Measures one device with each kind of traffic.
fn measure(vm: &mut Vm, nic: Nic, device: Device, files: &Files) -> Result<Vec<Row>> {
    vm.run(&device.start())?;
    let text = vm.symbols()?;
    let symbols = Symbols::parse(&text, &files.symbols)?;
    let mut rows = Vec::new();
    for traffic in Traffic::ALL.into_iter().filter(|&traffic| device.forwards(traffic)) {
        let mut row = Row::new(nic, device, traffic);
        for burst in 0..=BURSTS {
            let frames = traffic.frames(burst, nic.longest_burst());
            let idle = if device.polls() { Some(vm.idle(IDLE)?) } else { None };
            let (mut counts, out) = vm.burst(&frames)?;
            if let Some(idle) = idle {
                counts.without_polling(&idle);
            }
            if burst > 0 {
                row.add(frames.len(), out, symbols.profile(&counts)?);
            }
        }
        println!("{}", row.words());
        eprint!("{}", row.functions());
        rows.push(row);
    }
    vm.run("counters")?.iter().for_each(|line| eprintln!("  {line}"));
    vm.run("stop")?;
    Ok(rows)
}

/// The compiled programs and the files for the VM.
struct Files {
    plugin: PathBuf,
    /// Pairs of a path on the host and the path in the VM.
    carried: Vec<(PathBuf, &'static str)>,
    /// Pairs of a path in the VM and the file on the host that has the symbols.
    symbols: Vec<(&'static str, PathBuf)>,
}

impl Files {
    fn build(folder: &Path, binary: Option<&Path>) -> Result<Self> {
        let binary = match binary {
            Some(path) => path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?,
            // The shipped binary with its symbols and line tables.
            None => {
                let target = cargo::Metadata::read()?.target_directory()?;
                dist::build_in(root(), &target, &[("CARGO_PROFILE_DIST_STRIP", "none")])?.0
            }
        };
        let at = |name: &str| folder.join(name);
        let source = |name: &str| root().join("xtask/zero-copy").join(name);
        let stripped = at("sluicegate");
        cargo::run(Command::new("strip").args(["--strip-debug", "-o"]).args([&stripped, &binary]))?;
        let (plugin, swap, swap_xdp) = (at("count.so"), at("swap"), at("swap.bpf.o"));
        let gcc = |flags: &[&str], from: &str, to: &Path| {
            cargo::run(
                Command::new("gcc").args(["-O2", "-g"]).args(flags).arg(source(from)).arg("-o").arg(to),
            )
        };
        gcc(&["-shared", "-fPIC"], "count.c", &plugin)?;
        gcc(&["-static"], "swap.c", &swap)?;
        let headers = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
        cargo::run(
            Command::new("clang")
                .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", &headers, "-c"])
                .arg(source("swap.bpf.c"))
                .arg("-o")
                .arg(&swap_xdp),
        )?;
        let mut carried = vec![
            (stripped, BALANCER),
            (swap.clone(), SWAP),
            (swap_xdp, "/measure/swap.bpf.o"),
            (PathBuf::from("/usr/bin/setpriv"), "/usr/bin/setpriv"),
            (PathBuf::from("/usr/sbin/nft"), "/usr/sbin/nft"),
        ];
        for (name, content) in devices::files() {
            let path = at(name.rsplit('/').next().unwrap_or(name));
            std::fs::write(&path, content)?;
            if name.ends_with(".key") {
                cargo::run(Command::new("chmod").arg("600").arg(&path))?;
            }
            carried.push((path, name));
        }
        Ok(Self { plugin, carried, symbols: vec![(BALANCER, binary), (SWAP, swap)] })
    }
}

const BALANCER: &str = "/usr/bin/sluicegate";
const SWAP: &str = "/measure/swap";
/// The number of bursts whose counts are compared.
const BURSTS: usize = 3;
const IDLE: Duration = Duration::from_millis(300);
