//! A generator that offers more packets than any forwarder takes from a veth: frames made inside the kernel.
//!
//! In: a frame of UDP over IPv4. Out: copies of it with 1,024 source ports, put into a veth as XDP frames, without a socket
//! buffer or a system call for each. Not here: counting; the far end's device counts what arrives.
//! The device's far end must have an XDP program, or the kernel refuses them.
//! Source: Linux Documentation/bpf/bpf_prog_run.rst, `BPF_F_TEST_XDP_LIVE_FRAMES`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use aya::programs::{TestRun, TestRunAttrs, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use nix::net::if_::if_nametoindex;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, gettid};
use testbed::{Namespace, TempDir};

use crate::cargo;

/// A generator at work; it ends with its handle.
pub(crate) struct Offer {
    stop: Arc<AtomicBool>,
    worker: PathBuf,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Offer {
    /// Sends copies of `frame` out of `device` from now on, on processor `cpu`. `object` is what [`compile`] made.
    pub(crate) fn start(
        ns: &Namespace,
        device: &str,
        object: &[u8],
        frame: Vec<u8>,
        cpu: usize,
    ) -> Result<Self> {
        let mut program = EbpfLoader::new().load(object).context("the generator's program")?;
        let xdp: &mut Xdp = program.program_mut(NAME).context("no such program")?.try_into()?;
        xdp.load()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (started, worker_id) = channel();
        let thread = {
            let (stop, device) = (Arc::clone(&stop), device.to_owned());
            ns.spawn(move || {
                started.send(gettid())?;
                send(&program, &device, &frame, cpu, &stop)
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

/// Compiles the generator's program. At run time: xtask itself must build without clang.
pub(crate) fn compile() -> Result<Vec<u8>> {
    let folder = TempDir::new()?;
    let object = folder.path().join("offer.bpf.o");
    let mut clang = Command::new("clang");
    clang
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror"])
        .arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH))
        .arg("-c")
        .arg(cargo::root().join("xtask/bpf/offer.bpf.c"))
        .arg("-o")
        .arg(&object);
    cargo::run(&mut clang)?;
    fs::read(&object).with_context(|| format!("can't read {}", object.display()))
}

/// How long a thread, by its folder of `/proc`, has run; the softirqs that it started itself count.
pub(crate) fn thread_time_run(folder: &Path) -> Result<Duration> {
    let text = fs::read_to_string(folder.join("schedstat"))?;
    let nanos = text.split(' ').next().unwrap_or_default().parse().context("schedstat")?;
    Ok(Duration::from_nanos(nanos))
}

/// Binds this thread, and those that it starts, to one processor.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    let mut one = CpuSet::new();
    one.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &one).with_context(|| format!("can't use processor {cpu}"))
}

fn send(program: &Ebpf, device: &str, frame: &[u8], cpu: usize, stop: &AtomicBool) -> Result<()> {
    pin(cpu)?;
    let xdp: &Xdp = program.program(NAME).context("no such program")?.try_into()?;
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

const NAME: &str = "offer";
/// Packets a system call, about a second's: between two calls nothing is offered for milliseconds.
const AT_ONCE: u32 = 1_000_000;
const BATCH: u32 = 64;
