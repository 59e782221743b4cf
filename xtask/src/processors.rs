//! Assigns processors to the threads of a benchmark, and reads the CPU time that the scheduler has
//! counted for a thread.
//!
//! The CPU time of a thread includes softirqs that interrupted it. Only kernels with
//! `IRQ_TIME_ACCOUNTING` count softirqs separately, and no Debian kernel enables this option.
//! [`receive_on`] makes kernel threads receive the packets of a device. The time of these threads
//! can then be counted like the time of a process.
//!
//! References: Linux Documentation/scheduler/sched-stats.rst; Documentation/networking/napi.rst,
//! "Threaded NAPI".

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use testbed::Device;

/// The processor that runs the load generator and everything else except the device under test.
pub(crate) const GENERATOR_CPU: usize = 0;
/// The processor that runs the device under test.
pub(crate) const DEVICE_CPU: usize = 1;

/// Binds this thread, and all threads that it starts later, to one processor.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    bind(0, cpu)
}

/// Returns the CPU time that a thread has used. The argument is the folder of the thread in
/// `/proc`.
pub(crate) fn thread_time_run(folder: &Path) -> Result<Duration> {
    let text = fs::read_to_string(folder.join("schedstat"))?;
    let nanos = text.split(' ').next().unwrap_or_default().parse().context("schedstat")?;
    Ok(Duration::from_nanos(nanos))
}

/// Returns the CPU time that all threads of a process have used.
pub(crate) fn time_run(process: u32) -> Result<Duration> {
    let threads = fs::read_dir(format!("/proc/{process}/task"))?;
    threads.map(|thread| thread_time_run(&thread?.path())).sum()
}

/// Returns the ID of the kernel thread `ksoftirqd`, which runs deferred softirqs on a processor.
pub(crate) fn softirq_thread(cpu: usize) -> Result<u32> {
    let name = format!("ksoftirqd/{cpu}");
    threads_called(|found| found == name)?.pop().with_context(|| format!("no kernel thread {name}"))
}

/// The scheduling priority of a kernel thread that receives packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// The same priority as this process. The measured program has the same priority, even if the
    /// benchmark runs under `nice`. If packets arrive too fast, they are lost before the kernel
    /// receives them.
    Equal,
    /// A higher priority than all programs. This corresponds to the softirq of a NIC.
    First,
}

/// Makes kernel threads receive the packets of a device, one thread for each queue. All of these
/// threads run on processor `cpu`. Returns the IDs of these threads. On a veth, the threads exist
/// only while the device has an XDP program.
pub(crate) fn receive_on(device: Device<'_>, cpu: usize, priority: Priority) -> Result<Vec<u32>> {
    // A fresh mount of `/sys` is needed, because a mount shows the devices of the network namespace
    // in which it was created.
    let script = format!("mount -t sysfs sysfs /sys && echo 1 > /sys/class/net/{}/threaded", device.name);
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    device.ns.output(command).context("cannot enable packet reception by a kernel thread")?;
    let start = format!("napi/{}-", device.name);
    let threads = threads_called(|name| name.starts_with(&start))?;
    ensure!(!threads.is_empty(), "no kernel thread receives packets of {}", device.name);
    for &thread in &threads {
        bind(thread, cpu)?;
        match priority {
            Priority::Equal => as_nice_as_this(thread)?,
            Priority::First => order(thread, "chrt", &["--fifo", "--pid", "1"])?,
        }
    }
    Ok(threads)
}

/// Makes processor `cpu` receive the packets of a device that does not use kernel threads for
/// reception. With `None`, the default processor receives the packets again.
pub(crate) fn spread_to(device: Device<'_>, cpu: Option<usize>) -> Result<()> {
    let mask = cpu.map_or(0, |cpu| 1_u64 << cpu);
    let script = format!(
        "mount -t sysfs sysfs /sys && echo {mask:x} > /sys/class/net/{}/queues/rx-0/rps_cpus",
        device.name
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    device.ns.output(command).map(drop)
}

fn bind(thread: u32, cpu: usize) -> Result<()> {
    let mut one = CpuSet::new();
    one.set(cpu)?;
    sched_setaffinity(Pid::from_raw(i32::try_from(thread)?), &one)
        .with_context(|| format!("cannot use processor {cpu} (the benchmark needs two)"))
}

fn as_nice_as_this(thread: u32) -> Result<()> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The nice value is the 17th field after the program name, which is in parentheses. See
    // proc(5).
    let nice = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().nth(16))
        .context("the stat file of this process has no nice value")?;
    order(thread, "renice", &["-n", nice, "-p"])
}

/// Changes the priority of a thread with a program that takes the thread ID as its last argument.
fn order(thread: u32, program: &str, arguments: &[&str]) -> Result<()> {
    let done = Command::new(program).args(arguments).arg(thread.to_string()).output()?;
    ensure!(done.status.success(), "{program} failed: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(())
}

fn threads_called(wanted: impl Fn(&str) -> bool) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A thread may have ended since the folder was listed.
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if wanted(name.trim_end()) {
            found.push(id);
        }
    }
    Ok(found)
}
