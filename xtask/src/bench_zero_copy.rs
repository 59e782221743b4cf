//! Implements `bench zero-copy`, which counts the instructions per packet of the whole machine:
//! driver, kernel, XDP programs and user space.
//!
//! The benchmark needs no physical NIC. QEMU emulates a machine with one processor and a NIC whose
//! driver supports zero-copy, and counts the executed instructions. The counts do not depend on the
//! host, and repeated measurements differ by about 1 %. The counts contain no cache misses and no
//! cost of device registers, so they are not times. Each forwarder gets bursts of frames. The first
//! burst establishes the flows, and the result is the smallest of the other counts.
//!
//! The results are a table and, if all devices are measured, `benches/results/figure-zero-copy.csv`
//! with its plot.

mod counts;
mod devices;
mod kept;
mod results;
mod symbols;
mod traffic;
mod vm;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use testbed::TempDir;

use crate::cargo::{self, root};
use crate::peers::katran;
use crate::{dist, figures, setup};
use devices::Device;
pub(crate) use kept::{compare, keep};
use results::Row;
use symbols::Symbols;
use traffic::Traffic;
use vm::{Nic, Vm};

/// Measures with the given balancer binary or with a fresh build. Each name selects a device, a
/// kind of traffic or a NIC. Katran is measured if `katran` is the path of a Katran checkout.
pub(crate) fn run(names: &[String], binary: Option<&Path>, katran: Option<&Path>) -> Result<()> {
    let mut chosen = Chosen::parse(names)?;
    if katran.is_none() && chosen.devices.contains(&Device::Katran) {
        eprintln!(
            "katran is left out: --katran PATH names a checkout of github.com/facebookincubator/katran"
        );
        chosen.devices.retain(|device| *device != Device::Katran);
    }
    let packages = chosen.devices.iter().flat_map(|device| device.packages()).copied();
    setup::ensure(
        &[setup::BUILD, setup::VM, setup::COUNT].concat().into_iter().chain(packages).collect::<Vec<_>>(),
    )?;
    let (rows, failed) = rows(&chosen, binary, katran)?;
    ensure!(failed.is_empty(), "not measured: {}", failed.join("; "));
    if names.is_empty() {
        results::write(&rows)?;
        figures::draw()?;
    }
    Ok(())
}

/// Returns the measurements, and the devices that failed.
fn rows(chosen: &Chosen, binary: Option<&Path>, katran: Option<&Path>) -> Result<(Vec<Row>, Vec<String>)> {
    let folder = TempDir::new()?;
    let files = Files::build(folder.path(), binary, katran, &chosen.devices)?;
    println!("{}", results::head());
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for &nic in &chosen.nics {
        let mut vm = None;
        for &device in chosen.devices.iter().filter(|device| device.nics().contains(&nic)) {
            // A device that failed may leave the VM in any state.
            let measured = measure(&mut vm, nic, device, &chosen.traffic, &files).or_else(|error| {
                eprintln!("{} with {}: {error:#}; measuring again in a new VM", device.name(), nic.name());
                vm = None;
                measure(&mut vm, nic, device, &chosen.traffic, &files)
            });
            match measured {
                Ok(measured) => rows.extend(measured),
                Err(error) => {
                    failed.push(format!("{} with {}: {error:#}", device.name(), nic.name()));
                    vm = None;
                }
            }
        }
    }
    Ok((rows, failed))
}

/// What a run measures.
struct Chosen {
    devices: Vec<Device>,
    traffic: Vec<Traffic>,
    nics: Vec<Nic>,
}

impl Chosen {
    /// If no name selects a device, all devices are selected, and so on.
    fn parse(names: &[String]) -> Result<Self> {
        fn named<T: Copy>(all: &[T], names: &[String], name_of: fn(T) -> &'static str) -> Vec<T> {
            let is_named = |item: &T| names.iter().any(|name| name == &word(name_of(*item)));
            let named: Vec<T> = all.iter().copied().filter(is_named).collect();
            if named.is_empty() { all.to_vec() } else { named }
        }
        let known = [
            Device::ALL.map(Device::name).to_vec(),
            Traffic::ALL.map(Traffic::name).to_vec(),
            Nic::ALL.map(Nic::name).to_vec(),
        ];
        let known: Vec<Vec<String>> =
            known.into_iter().map(|names| names.into_iter().map(word).collect()).collect();
        if let Some(name) = names.iter().find(|name| !known.iter().flatten().any(|known| known == *name)) {
            let [devices, traffic, nics] = [0, 1, 2].map(|n| known[n].join(", "));
            bail!(
                "unknown device, traffic or NIC {name:?} (devices: {devices}; traffic: {traffic}; NICs: {nics})"
            );
        }
        Ok(Self {
            devices: named(&Device::ALL, names, Device::name),
            traffic: named(&Traffic::ALL, names, Traffic::name),
            nics: named(&Nic::ALL, names, Nic::name),
        })
    }
}

/// Returns the form of a name on the command line: `syn-flood` for `SYN flood`.
fn word(name: &str) -> String {
    name.to_lowercase().replace(' ', "-")
}

/// Measures one device with each of the given kinds of traffic. Boots the VM if there is none.
fn measure(
    vm: &mut Option<Vm>,
    nic: Nic,
    device: Device,
    traffic: &[Traffic],
    files: &Files,
) -> Result<Vec<Row>> {
    if vm.is_none() {
        eprintln!("booting a VM with {}", nic.name());
    }
    let vm = match vm {
        Some(vm) => vm,
        None => vm.insert(Vm::boot(nic, &files.plugin, &files.carried)?),
    };
    vm.run(&device.start())?;
    let mut symbols = Symbols::parse(&vm.symbols()?, &files.symbols)?;
    let mut rows = Vec::new();
    for traffic in traffic.iter().copied().filter(|&traffic| device.forwards(traffic) && nic.carries(traffic))
    {
        let mut bursts = Vec::new();
        for burst in 0..=BURSTS {
            let frames = traffic.frames(burst, nic.longest_burst());
            let idle = if device.polls() {
                Some(vm.idle(IDLE)?)
            } else {
                vm.run(PAUSE)?;
                None
            };
            let (mut counts, out) =
                if traffic == Traffic::Lone { vm.one_by_one(&frames)? } else { vm.burst(&frames)? };
            if let Some(idle) = idle {
                counts.without_polling(&idle);
            }
            bursts.push((symbols.total(&counts), frames.len() as u64, out, counts));
        }
        let lost = bursts[1..].iter().map(|(_, frames, out, _)| frames.saturating_sub(*out)).sum();
        let sent = bursts[1..].iter().map(|(_, frames, ..)| frames).sum();
        let best =
            bursts.drain(1..).min_by_key(|(total, _, out, _)| total / out.max(&1)).context("no burst")?;
        let row = Row {
            nic,
            device,
            traffic,
            forwarded: best.2.max(1),
            sent,
            lost,
            profile: symbols.profile(&best.3)?,
        };
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
    carried: Vec<(PathBuf, PathBuf)>,
    /// Pairs of a path in the VM and the file on the host that has the symbols.
    symbols: Vec<(&'static str, PathBuf)>,
}

impl Files {
    fn build(
        folder: &Path,
        binary: Option<&Path>,
        katran: Option<&Path>,
        devices: &[Device],
    ) -> Result<Self> {
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
        cargo::strip(&binary, &stripped)?;
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
        let mut carried: Vec<(PathBuf, PathBuf)> = vec![
            (stripped, BALANCER.into()),
            (swap.clone(), SWAP.into()),
            (swap_xdp, "/measure/swap.bpf.o".into()),
            ("/usr/bin/setpriv".into(), "/usr/bin/setpriv".into()),
        ];
        if let Some(checkout) = katran {
            let object = at("katran.bpf.o");
            katran::build(checkout, &object)?;
            carried.push((object, "/measure/katran.bpf.o".into()));
        }
        for device in devices {
            carried.extend(device.programs()?);
        }
        for (name, content) in devices::files() {
            let path = at(name.rsplit('/').next().unwrap_or(name));
            std::fs::write(&path, content)?;
            if name.ends_with(".key") {
                cargo::run(Command::new("chmod").arg("600").arg(&path))?;
            }
            carried.push((path, name.into()));
        }
        Ok(Self { plugin, carried, symbols: vec![(BALANCER, binary), (SWAP, swap)] })
    }
}

const BALANCER: &str = "/usr/bin/sluicegate";
const SWAP: &str = "/measure/swap";
/// The number of bursts whose counts are compared.
const BURSTS: usize = 3;
/// A pause between bursts. After the pause, each packet updates the time of its flow.
const PAUSE: &str = "sleep 0.3";
const IDLE: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_select_devices_traffic_and_nics() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let chosen = Chosen::parse(&words("igb af-xdp kernel syn-flood")).expect("known");
        assert_eq!(chosen.devices, [Device::AfXdp, Device::Kernel]);
        assert_eq!((chosen.traffic, chosen.nics), (vec![Traffic::SynFlood], vec![Nic::Igb]));
        let all = Chosen::parse(&[]).expect("nothing");
        assert_eq!(all.devices.len() + all.traffic.len(), Device::ALL.len() + Traffic::ALL.len());
        assert!(Chosen::parse(&words("1000")).is_err());
    }
}
