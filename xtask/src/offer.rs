//! Implements a load generator that creates frames inside the kernel. The generator can send more
//! packets than any forwarder can receive from a veth.
//!
//! The generator sends copies of one UDP or TCP frame over IPv4 with many source ports. The
//! generator puts the copies into a veth as XDP frames, so it needs neither a socket buffer nor a
//! system call for each frame. Frames can contain the time at which they were sent, from which
//! [`Delays`] computes the latency. The device at the other end of the veth counts the frames. The
//! kernel rejects XDP frames unless that device has an XDP program. [`Pass`] is the smallest
//! possible XDP program.
//!
//! Reference: Linux Documentation/bpf/bpf_prog_run.rst, `BPF_F_TEST_XDP_LIVE_FRAMES`.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use aya::maps::Array;
use aya::programs::{SocketFilter, TestRun, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use nix::unistd::gettid;
use testbed::{Device, Namespace, TempDir};

use crate::cargo;
use crate::processors::{pin, thread_time_run};

/// The packets that the generator sends.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    /// The frame with its Ethernet header, at least 60 bytes long.
    pub(crate) frame: Vec<u8>,
    /// The number of source ports, which begin at 10,000. The number must be a power of two and at
    /// most 32,768. The port of each packet is chosen at random.
    pub(crate) flows: u16,
    /// The maximum rate in packets per second, or [`FULL`].
    pub(crate) pace: u32,
    /// The minimum interval between packets with a timestamp. If the interval is zero, no packet
    /// has a timestamp.
    pub(crate) probes: Duration,
}

/// A running load generator, which stops when this handle is dropped.
pub(crate) struct Offer {
    stop: Arc<AtomicBool>,
    worker: PathBuf,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Offer {
    /// Starts sending `traffic` from `device`, on processor `cpu`.
    pub(crate) fn start(
        device: Device<'_>,
        programs: &Programs,
        traffic: Traffic,
        cpu: usize,
    ) -> Result<Self> {
        ensure!(
            traffic.flows.is_power_of_two(),
            "the number of flows ({}) is not a power of two",
            traffic.flows
        );
        let mask = u32::from(traffic.flows - 1);
        let words: Vec<u32> =
            traffic.frame.chunks_exact(4).map(|w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]])).collect();
        let probes = u64::try_from(traffic.probes.as_nanos())?;
        let interval = 1_000_000_000 / u64::from(traffic.pace.max(1));
        let mut program = EbpfLoader::new()
            .override_global("frame", &words[..], true)
            .override_global("flow_mask", &mask, true)
            .override_global("probe_ns", &probes, true)
            .override_global("interval_ns", &interval, true)
            .load(&programs.0)
            .context("cannot load the program of the generator")?;
        let xdp: &mut Xdp =
            program.program_mut(OFFER).context("the BPF object does not contain this program")?.try_into()?;
        xdp.load()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (started, worker_id) = channel();
        let thread = {
            let (stop, name) = (Arc::clone(&stop), device.name.to_owned());
            device.ns.spawn(move || {
                started.send(gettid())?;
                pin(cpu)?;
                send(&program, &name, &traffic.frame, &stop)
            })
        };
        let worker =
            format!("/proc/self/task/{}", worker_id.recv().context("the generator panicked")?).into();
        Ok(Self { stop, worker, thread: Some(thread) })
    }

    /// Returns the CPU time that the generator's thread has used.
    pub(crate) fn time_run(&self) -> Result<Duration> {
        thread_time_run(&self.worker)
    }

    /// Stops the generator.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("the generator has been stopped already")?;
        thread.join().map_err(|_| anyhow!("the generator panicked"))?
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The result is ignored: a caller that does not call `stop` is already returning a
            // different error.
            drop(thread.join());
        }
    }
}

/// An XDP program that passes every frame to the kernel. The program is detached when this handle
/// is dropped or the process ends.
pub(crate) struct Pass {
    _attached: Ebpf,
}

impl Pass {
    /// Attaches the program to the driver of the device.
    pub(crate) fn attach(device: Device<'_>, programs: &Programs) -> Result<Self> {
        let mut attached = EbpfLoader::new().load(&programs.0).context("cannot load the pass program")?;
        let name = device.name.to_owned();
        let attached = device.ns.run(move || -> Result<Ebpf> {
            let xdp: &mut Xdp = attached
                .program_mut(PASS)
                .context("the BPF object does not contain this program")?
                .try_into()?;
            xdp.load()?;
            xdp.attach(&name, XdpMode::Driver)
                .with_context(|| format!("cannot attach an XDP program to {name}"))?;
            Ok(attached)
        })?;
        Ok(Self { _attached: attached })
    }
}

/// Measures the latency of each packet that comes back with a timestamp. The measurement ends when
/// this handle is dropped.
pub(crate) struct Delays {
    program: Ebpf,
    _socket: OwnedFd,
}

impl Delays {
    /// Starts watching all devices of a network namespace.
    pub(crate) fn start(ns: &Namespace, programs: &Programs) -> Result<Self> {
        let mut program = EbpfLoader::new().load(&programs.0).context("cannot load the latency program")?;
        let socket = ns.run(|| {
            let flags = SockFlag::SOCK_CLOEXEC;
            socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)
        })?;
        let filter: &mut SocketFilter =
            program.program_mut(DELAY).context("the BPF object does not contain this program")?.try_into()?;
        filter.load()?;
        filter.attach(&socket)?;
        Ok(Self { program, _socket: socket })
    }

    /// Returns the latencies measured so far, sorted.
    pub(crate) fn sorted(&self) -> Result<Vec<Duration>> {
        let kept: Array<_, u32> =
            self.program.map("delays").context("the BPF object does not contain this map")?.try_into()?;
        let mut times = Vec::new();
        for nanos in kept.iter() {
            match nanos? {
                0 => break, // An entry of 0 has not been written yet.
                nanos => times.push(Duration::from_nanos(nanos.into())),
            }
        }
        times.sort_unstable();
        Ok(times)
    }
}

/// The compiled BPF programs of the generator.
pub(crate) struct Programs(Vec<u8>);

impl Programs {
    /// Compiles the programs. The programs are compiled at run time, because xtask must build
    /// without clang.
    pub(crate) fn compile() -> Result<Self> {
        let folder = TempDir::new()?;
        let object = folder.path().join("offer.bpf.o");
        let mut clang = Command::new("clang");
        clang
            .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror"])
            .arg("-Wno-unused-parameter")
            .arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH))
            .arg("-c")
            .arg(cargo::root().join("xtask/bpf/offer.bpf.c"))
            .arg("-o")
            .arg(&object);
        cargo::run(&mut clang)?;
        Ok(Self(fs::read(&object).with_context(|| format!("cannot read {}", object.display()))?))
    }
}

fn send(program: &Ebpf, device: &str, frame: &[u8], stop: &AtomicBool) -> Result<()> {
    let xdp: &Xdp =
        program.program(OFFER).context("the BPF object does not contain this program")?.try_into()?;
    // Fields of `struct xdp_md`: data, data_end, data_meta, ingress_ifindex, rx_queue_index,
    // egress_ifindex.
    let fields = [0, u32::try_from(frame.len())?, 0, if_nametoindex(device)?, 0, 0];
    let context = fields.map(u32::to_ne_bytes).concat();
    while !stop.load(Ordering::Relaxed) {
        let options = TestRunOptions {
            data_in: Some(frame),
            ctx_in: Some(&context),
            repeat: AT_ONCE,
            attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
            ..TestRunOptions::default()
        };
        let result = xdp
            .test_run(options)
            .context("the kernel cannot generate frames (it needs Linux 5.18 or newer)")?;
        ensure!(
            result.return_value == 0,
            "the generator's XDP program returned {} instead of 0",
            result.return_value
        );
    }
    Ok(())
}

/// The value of [`Traffic::pace`] for an unlimited rate.
pub(crate) const FULL: u32 = u32::MAX;
const OFFER: &str = "offer";
const PASS: &str = "pass";
const DELAY: &str = "delay";
/// The number of packets per system call. A call takes about a second, and the generator pauses for
/// a few milliseconds between two calls.
const AT_ONCE: u32 = 1_000_000;
const BATCH: u32 = 64;
