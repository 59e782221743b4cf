//! The virtual machine whose instructions are counted, and the wire of its NIC.
//!
//! `xtask/zc-vm` boots the VM with one emulated processor whose clock advances with each
//! instruction (`-icount`), so the counts do not depend on the host or its load. The NIC is
//! connected to a socket of this process. While the VM is stopped, QEMU collects the frames of a
//! burst, and then puts all of them into the receive queue of the NIC at once.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::{Value, json};
use testbed::TempDir;

use super::counts::Counts;
use super::traffic::Traffic;
use crate::cargo::root;

/// The NICs that QEMU can emulate and whose drivers support zero-copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nic {
    Igb,
    Virtio,
    /// A virtio NIC that refuses zero-copy. As a result, AF_XDP copies each frame.
    VirtioCopy,
}

impl Nic {
    pub(crate) const ALL: [Self; 3] = [Self::Igb, Self::Virtio, Self::VirtioCopy];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Igb => "igb",
            Self::Virtio => "virtio",
            Self::VirtioCopy => "virtio-copy",
        }
    }

    /// Returns the argument of the `zc-vm` option `--nic`.
    fn kind(self) -> &'static str {
        if self == Self::Igb { "igb" } else { "virtio" }
    }

    /// Returns the maximum number of frames in a burst. QEMU's igb drops the frames that do not fit
    /// into the receive ring of its driver. QEMU's virtio NIC needs descriptors for both directions
    /// and has rings of 1,024.
    pub(crate) fn longest_burst(self) -> usize {
        match self {
            Self::Igb => 2_000,
            Self::Virtio | Self::VirtioCopy => 1_000,
        }
    }

    /// Returns `true` if the NIC is measured with this kind of traffic. QEMU's igb drops the frames
    /// of an overload at once, so it offers no endless load.
    pub(crate) fn carries(self, traffic: Traffic) -> bool {
        self != Self::Igb || traffic != Traffic::Overload
    }

    /// Returns the QEMU properties of the NIC.
    fn properties(self) -> &'static str {
        match self {
            Self::Igb => "rombar=0",
            Self::Virtio => "tx=timer,x-txtimer=1000,rx_queue_size=1024",
            Self::VirtioCopy => "tx=timer,x-txtimer=1000,rx_queue_size=1024,iommu_platform=off",
        }
    }
}

/// A running VM. The VM ends when this handle is dropped.
pub(crate) struct Vm {
    process: Child,
    answers: Receiver<String>,
    control: Control,
    wire: UnixDatagram,
    arrived: Arc<AtomicU64>,
    /// The plugin ends QEMU when this pipe is closed.
    snapshots: File,
    folder: TempDir,
}

impl Vm {
    /// Boots a VM with a NIC of this type and with `files`, which are pairs of a path on the host
    /// and a path in the VM. `plugin` is the compiled plugin `count.c`.
    pub(crate) fn boot(nic: Nic, plugin: &Path, files: &[(PathBuf, PathBuf)]) -> Result<Self> {
        let folder = TempDir::new()?;
        let path = |name: &str| folder.path().join(name);
        mkfifo(&path("snapshots"), Mode::S_IRWXU)?;
        File::create(path("disk"))?.set_len(DISK_BYTES)?;
        let (wire, far) = UnixDatagram::pair()?;
        fcntl(&far, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let mut command = Command::new("bash");
        command.arg(root().join("xtask/zc-vm")).args(["--nic", nic.kind(), "--net", nic.properties()]);
        command.args(["--accel", "tcg", "--cpus", "1", "--mem", "3072", "--timeout", TIMEOUT_SECONDS]);
        command.args(["--wire", &far.as_raw_fd().to_string(), "--append", KERNEL_ARGUMENTS]);
        for module in MODULES {
            command.args(["--module", module]);
        }
        for argument in [
            "-icount",
            "shift=0,sleep=on",
            "-qmp",
            &format!("unix:{},server=on,wait=off", path("control").display()),
            "-object",
            "filter-buffer,id=held,netdev=zc0,interval=4294967295,queue=tx,status=off",
            "-drive",
            &format!("file={},if=none,id=disk,format=raw,cache=unsafe", path("disk").display()),
            "-device",
            "virtio-blk-pci,drive=disk",
            "-plugin",
            &format!("{},fifo={}", plugin.display(), path("snapshots").display()),
        ] {
            command.args(["--qemu", argument]);
        }
        for (from, to) in files {
            command.args(["--file", &format!("{}:{}", from.display(), to.display())]);
        }
        let script = root().join("xtask/zero-copy/device.sh");
        command.args(["--", &script.to_string_lossy()]);
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().context("cannot start xtask/zc-vm")?;
        drop(far);
        let (lines, answers) = channel();
        let output = BufReader::new(process.stdout.take().context("zc-vm has no output")?);
        thread::spawn(move || {
            output
                .split(b'\n')
                .map_while(Result::ok)
                .try_for_each(|line| lines.send(String::from_utf8_lossy(&line).trim_end().to_owned()))
        });
        let arrived = Arc::new(AtomicU64::new(0));
        thread::spawn({
            let (wire, arrived) = (wire.try_clone()?, Arc::clone(&arrived));
            move || count_arrivals(&wire, &arrived)
        });
        let control = Control::connect(&path("control"), &mut process)?;
        // Opening the pipe waits until the plugin reads it.
        let snapshots = OpenOptions::new().write(true).open(path("snapshots"))?;
        let mut vm = Self { process, answers, control, wire, arrived, snapshots, folder };
        vm.answer("the boot", LONGEST_BOOT)?;
        vm.run("prepare")?;
        Ok(vm)
    }

    /// Runs a command of `device.sh` in the VM. Returns the printed lines, or an error if the exit
    /// code is not 0.
    pub(crate) fn run(&mut self, command: &str) -> Result<Vec<String>> {
        let input = self.process.stdin.as_mut().context("the VM has no input")?;
        writeln!(input, "{command}")?;
        self.answer(command, LONGEST_COMMAND)
    }

    /// Waits for the end of a command, or for the start of `device.sh`.
    fn answer(&mut self, command: &str, longest: Duration) -> Result<Vec<String>> {
        let end = Instant::now() + longest;
        let mut printed = Vec::new();
        loop {
            match self.answers.recv_timeout(LONGEST_SILENCE) {
                Ok(line) => match line.strip_prefix("done ") {
                    Some("0") => return Ok(printed),
                    Some(code) => bail!(
                        "command {command} in the VM failed with exit code {code}\n{}",
                        printed.join("\n")
                    ),
                    None => printed.push(line),
                },
                // Rarely, the clock of an idle VM stands still after the VM continued.
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {
                    self.control.execute("stop", &json!({}))?;
                    self.control.execute("cont", &json!({}))?;
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!("command {command} in the VM did not finish in time\n{}", printed.join("\n"))
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the VM ended while it ran the command {command}\n{}", printed.join("\n"))
                }
            }
        }
    }

    /// Returns the lines that `symbols` in `device.sh` writes.
    pub(crate) fn symbols(&mut self) -> Result<String> {
        self.run("symbols")?;
        let bytes = fs::read(self.folder.path().join("disk"))?;
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// Sends a burst of frames into the VM. Returns what the VM executed until all frames came out,
    /// or no more frames came out, and the number of frames that came out.
    pub(crate) fn burst(&mut self, frames: &[Vec<u8>]) -> Result<(Counts, u64)> {
        self.control.execute("stop", &json!({}))?;
        self.hold(true)?;
        for frame in frames {
            self.wire.send(frame).context("cannot send a frame to the VM")?;
        }
        // A datagram socket holds few frames, so QEMU has taken nearly all of them by now.
        thread::sleep(Duration::from_millis(200));
        let before = self.snapshot()?;
        let first = self.arrived.load(Ordering::Relaxed);
        self.hold(false)?;
        self.control.execute("cont", &json!({}))?;
        let expected = u64::try_from(frames.len())?;
        let out = self.wait_for(first, expected);
        self.control.execute("stop", &json!({}))?;
        let mut counts = self.snapshot()?.since(&before)?;
        self.control.execute("cont", &json!({}))?;
        if out < expected {
            // The VM was idle until the loss was certain.
            counts.subtract(&self.idle(QUIET)?, 1.0);
        }
        Ok((counts, out))
    }

    /// Sends frames into the VM, each one [`APART`] after the previous frame came out. Returns what
    /// the VM executed, without what it executes without traffic in the same time, and the number
    /// of frames that came out.
    pub(crate) fn one_by_one(&mut self, frames: &[Vec<u8>]) -> Result<(Counts, u64)> {
        self.control.execute("stop", &json!({}))?;
        let before = self.snapshot()?;
        self.control.execute("cont", &json!({}))?;
        let (start, first) = (Instant::now(), self.arrived.load(Ordering::Relaxed));
        for (frame, n) in frames.iter().zip(1..) {
            self.wire.send(frame).context("cannot send a frame to the VM")?;
            while self.arrived.load(Ordering::Relaxed) - first < n && start.elapsed() < LONGEST_COMMAND {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(APART);
        }
        let time = start.elapsed();
        self.control.execute("stop", &json!({}))?;
        let mut counts = self.snapshot()?.since(&before)?;
        self.control.execute("cont", &json!({}))?;
        counts.subtract(&self.idle(time)?, 1.0);
        Ok((counts, self.arrived.load(Ordering::Relaxed) - first))
    }

    /// Returns what the VM executes without traffic in this time.
    pub(crate) fn idle(&mut self, time: Duration) -> Result<Counts> {
        self.control.execute("stop", &json!({}))?;
        let before = self.snapshot()?;
        self.control.execute("cont", &json!({}))?;
        thread::sleep(time);
        self.control.execute("stop", &json!({}))?;
        let after = self.snapshot()?;
        self.control.execute("cont", &json!({}))?;
        after.since(&before)
    }

    /// Waits for frames from the VM, until no frame has arrived for [`QUIET`].
    fn wait_for(&self, first: u64, expected: u64) -> u64 {
        let mut last = (first, Instant::now());
        loop {
            let now = self.arrived.load(Ordering::Relaxed);
            if now - first >= expected {
                // Lets the VM finish its work for the last frames.
                thread::sleep(Duration::from_millis(50));
                return self.arrived.load(Ordering::Relaxed) - first;
            }
            if now != last.0 {
                last = (now, Instant::now());
            }
            if last.1.elapsed() > QUIET {
                return now - first;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn hold(&mut self, held: bool) -> Result<()> {
        let value = if held { "on" } else { "off" };
        let arguments = json!({ "path": "/objects/held", "property": "status", "value": value });
        self.control.execute("qom-set", &arguments)
    }

    fn snapshot(&mut self) -> Result<Counts> {
        let path = self.folder.path().join("counters");
        writeln!(self.snapshots, "{}", path.display())?;
        let end = Instant::now() + LONGEST_COMMAND;
        while !path.exists() {
            ensure!(Instant::now() < end, "the QEMU plugin did not write its counters in time");
            thread::sleep(Duration::from_millis(2));
        }
        let counts = Counts::parse(&fs::read(&path)?)?;
        fs::remove_file(&path)?;
        Ok(counts)
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        // After this signal, zc-vm waits until QEMU has ended, and removes its temporary folder.
        if let Ok(id) = i32::try_from(self.process.id()) {
            let _ = killpg(Pid::from_raw(id), Signal::SIGTERM);
        }
        drop(self.process.wait());
    }
}

/// Counts the frames that the VM sends to the router or to a backend. Multicast and replies to this
/// process, such as ICMP errors, have other destinations or do not occur.
fn count_arrivals(wire: &UnixDatagram, arrived: &AtomicU64) {
    let mut frame = [0; 2_048];
    while let Ok(length) = wire.recv(&mut frame) {
        if length >= 14 && frame[..5] == FAR_MAC[..5] {
            arrived.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// QEMU's control socket (QMP).
struct Control {
    stream: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Control {
    /// Waits until QEMU has opened the socket. The timeout includes the download of the kernel.
    fn connect(path: &Path, process: &mut Child) -> Result<Self> {
        let stream = loop {
            if let Ok(stream) = UnixStream::connect(path) {
                break stream;
            }
            if let Some(status) = process.try_wait()? {
                bail!("xtask/zc-vm ended before the VM started ({status})");
            }
            thread::sleep(Duration::from_millis(50));
        };
        let mut control = Self { answers: BufReader::new(stream.try_clone()?), stream };
        control.answers.read_line(&mut String::new())?;
        control.execute("qmp_capabilities", &json!({}))?;
        Ok(control)
    }

    fn execute(&mut self, command: &str, arguments: &Value) -> Result<()> {
        writeln!(self.stream, "{}", json!({ "execute": command, "arguments": arguments }))?;
        loop {
            let mut line = String::new();
            ensure!(self.answers.read_line(&mut line)? > 0, "QEMU ended");
            let answer: Value = serde_json::from_str(&line)?;
            if answer.get("return").is_some() {
                return Ok(());
            }
            // Other lines are events.
            ensure!(answer.get("error").is_none(), "{command}: QEMU answered {line}");
        }
    }
}

/// The MAC addresses of the router and the backends differ in the last byte.
pub(crate) const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 2, 0xfe];
pub(crate) const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0];
const DISK_BYTES: u64 = 64 << 20;
const TIMEOUT_SECONDS: &str = "7200";
/// The time without an answer after which the VM is stopped and continued.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);
const LONGEST_BOOT: Duration = Duration::from_secs(600);
const LONGEST_COMMAND: Duration = Duration::from_secs(120);
/// The pause between lone packets, in which the forwarder becomes idle.
const APART: Duration = Duration::from_millis(5);
/// If no frame comes out of the VM for this time, the rest of a burst is lost.
const QUIET: Duration = Duration::from_secs(10);
const KERNEL_ARGUMENTS: &str =
    "mitigations=off tsc=reliable nokaslr norandmaps cryptomgr.notests damon_stat.enabled=0";
const MODULES: [&str; 12] = [
    "virtio_blk",
    "nf_tables",
    "nft_ct",
    "nft_nat",
    "nft_chain_nat",
    "nft_hash",
    "nft_numgen",
    "nf_conntrack",
    "ip_vs_mh",
    "uio_pci_generic",
    "ip_gre",
    "ipip",
];
