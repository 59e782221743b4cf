//! A generator that can offer more packets than any forwarder takes from a veth: frames made inside the kernel.
//!
//! In: a frame of UDP or TCP over IPv4. Out: copies of it with many source ports, put into a veth as XDP frames, without a
//! socket buffer or a system call for each; and how long those took that say when they were sent ([`Delays`]).
//! Not here: counting; the far end's device counts what arrives.
//! The device's far end must have an XDP program, or the kernel refuses them: [`Pass`] is the least that does.
//! Source: Linux Documentation/bpf/bpf_prog_run.rst, `BPF_F_TEST_XDP_LIVE_FRAMES`.

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

/// What is offered.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    /// From the Ethernet header on; the smallest that there is, 60 bytes.
    pub(crate) frame: Vec<u8>,
    /// Source ports from 10,000 on, chosen at random: a power of two, at most 32,768.
    pub(crate) flows: u16,
    /// At most so many a second, or [`FULL`].
    pub(crate) pace: u32,
    /// Least time between packets that say when they were sent; zero: none does.
    pub(crate) probes: Duration,
}

/// A generator at work; it ends with its handle.
pub(crate) struct Offer {
    stop: Arc<AtomicBool>,
    worker: PathBuf,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Offer {
    /// Sends `traffic` out of `device` from now on, on processor `cpu`.
    pub(crate) fn start(
        device: Device<'_>,
        programs: &Programs,
        traffic: Traffic,
        cpu: usize,
    ) -> Result<Self> {
        ensure!(traffic.flows.is_power_of_two(), "{} flows are no power of two", traffic.flows);
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
            .context("the generator's program")?;
        let xdp: &mut Xdp = program.program_mut(OFFER).context("no such program")?.try_into()?;
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
        let worker = format!("/proc/self/task/{}", worker_id.recv().context("the generator died")?).into();
        Ok(Self { stop, worker, thread: Some(thread) })
    }

    /// How long its thread has run.
    pub(crate) fn time_run(&self) -> Result<Duration> {
        thread_time_run(&self.worker)
    }

    /// Ends it.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("there until now")?;
        thread.join().map_err(|_| anyhow!("the generator died"))?
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Whoever drops it without `stop` has an error of his own to tell.
            drop(thread.join());
        }
    }
}

/// An XDP program that passes every frame to the kernel; the device loses it with its handle, or with the process.
pub(crate) struct Pass {
    _attached: Ebpf,
}

impl Pass {
    /// Attaches it in the device's driver.
    pub(crate) fn attach(device: Device<'_>, programs: &Programs) -> Result<Self> {
        let mut attached = EbpfLoader::new().load(&programs.0).context("the program that passes all")?;
        let name = device.name.to_owned();
        let attached = device.ns.run(move || -> Result<Ebpf> {
            let xdp: &mut Xdp = attached.program_mut(PASS).context("no such program")?.try_into()?;
            xdp.load()?;
            xdp.attach(&name, XdpMode::Driver).with_context(|| format!("no XDP program on {name}"))?;
            Ok(attached)
        })?;
        Ok(Self { _attached: attached })
    }
}

/// A watch where frames come back: how long each probe took. It ends with its handle.
pub(crate) struct Delays {
    program: Ebpf,
    _socket: OwnedFd,
}

impl Delays {
    /// Watches all devices of a namespace from now on.
    pub(crate) fn start(ns: &Namespace, programs: &Programs) -> Result<Self> {
        let mut program = EbpfLoader::new().load(&programs.0).context("the program that measures")?;
        let socket = ns.run(|| {
            let flags = SockFlag::SOCK_CLOEXEC;
            socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)
        })?;
        let filter: &mut SocketFilter = program.program_mut(DELAY).context("no such program")?.try_into()?;
        filter.load()?;
        filter.attach(&socket)?;
        Ok(Self { program, _socket: socket })
    }

    /// Those up to now, sorted.
    pub(crate) fn sorted(&self) -> Result<Vec<Duration>> {
        let kept: Array<_, u32> = self.program.map("delays").context("no such map")?.try_into()?;
        let mut times = Vec::new();
        for nanos in kept.iter() {
            match nanos? {
                0 => break, // none yet
                nanos => times.push(Duration::from_nanos(nanos.into())),
            }
        }
        times.sort_unstable();
        Ok(times)
    }
}

/// The compiled programs of a generator's kernel side.
pub(crate) struct Programs(Vec<u8>);

impl Programs {
    /// Compiles them. At run time: xtask itself must build without clang.
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
        Ok(Self(fs::read(&object).with_context(|| format!("can't read {}", object.display()))?))
    }
}

fn send(program: &Ebpf, device: &str, frame: &[u8], stop: &AtomicBool) -> Result<()> {
    let xdp: &Xdp = program.program(OFFER).context("no such program")?.try_into()?;
    // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
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
        let result =
            xdp.test_run(options).context("the kernel refuses to make frames (Linux 5.18 or newer?)")?;
        ensure!(result.return_value == 0, "the generator's program returned {}", result.return_value);
    }
    Ok(())
}

/// As many as can be made.
pub(crate) const FULL: u32 = u32::MAX;
const OFFER: &str = "offer";
const PASS: &str = "pass";
const DELAY: &str = "delay";
/// Packets a system call, about a second's: between two calls nothing is offered for milliseconds.
const AT_ONCE: u32 = 1_000_000;
const BATCH: u32 = 64;
