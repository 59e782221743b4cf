//! Processors of a bench: what is bound to which, and what has run for how long.
//!
//! In: threads, processes, a device. Out: times as the scheduler counts them.
//! A thread's time holds the softirqs that ran on top of it (kernels with `IRQ_TIME_ACCOUNTING` leave them out: none of Debian's
//! has it on). What a device receives is taken in by a kernel thread of its own once [`receive_on`] asked for that, and so is
//! counted like a process's.
//! Source: Linux Documentation/scheduler/sched-stats.rst; Documentation/networking/napi.rst, "Threaded NAPI".

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use testbed::Device;

/// Where the generator runs, and all that is not the device under test.
pub(crate) const GENERATOR_CPU: usize = 0;
/// Where the device under test runs.
pub(crate) const DEVICE_CPU: usize = 1;

/// Binds this thread, and those that it starts, to one processor.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    bind(0, cpu)
}

/// How long a thread, by its folder of `/proc`, has run.
pub(crate) fn thread_time_run(folder: &Path) -> Result<Duration> {
    let text = fs::read_to_string(folder.join("schedstat"))?;
    let nanos = text.split(' ').next().unwrap_or_default().parse().context("schedstat")?;
    Ok(Duration::from_nanos(nanos))
}

/// How long the threads of a process have run.
pub(crate) fn time_run(process: u32) -> Result<Duration> {
    let threads = fs::read_dir(format!("/proc/{process}/task"))?;
    threads.map(|thread| thread_time_run(&thread?.path())).sum()
}

/// The kernel thread that runs what softirqs of a processor are left over.
pub(crate) fn softirq_thread(cpu: usize) -> Result<u32> {
    let name = format!("ksoftirqd/{cpu}");
    threads_called(|found| found == name)?.pop().with_context(|| format!("no kernel thread {name}"))
}

/// Of a kernel thread that receives, beside programs on its processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// This process's: under `nice` all sides have the same. What comes too fast is lost before it is taken in.
    Equal,
    /// Before them all, as a NIC's softirq has it.
    First,
}

/// Lets a kernel thread of its own receive for each queue of a device, on processor `cpu`; returns their ids. They go with the
/// device's XDP program, without which a veth has none.
pub(crate) fn receive_on(device: Device<'_>, cpu: usize, priority: Priority) -> Result<Vec<u32>> {
    // `/sys` shows the devices of the namespace in which it was mounted.
    let script = format!("mount -t sysfs sysfs /sys && echo 1 > /sys/class/net/{}/threaded", device.name);
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    device.ns.output(command).context("receiving by a kernel thread")?;
    let start = format!("napi/{}-", device.name);
    let threads = threads_called(|name| name.starts_with(&start))?;
    ensure!(!threads.is_empty(), "no kernel thread receives for {}", device.name);
    for &thread in &threads {
        bind(thread, cpu)?;
        match priority {
            Priority::Equal => as_nice_as_this(thread)?,
            Priority::First => order(thread, "chrt", &["--fifo", "--pid", "1"])?,
        }
    }
    Ok(threads)
}

/// Lets processor `cpu` go on with what a device without kernel threads receives, from any processor.
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
        .with_context(|| format!("can't use processor {cpu}: two are needed"))
}

fn as_nice_as_this(thread: u32) -> Result<()> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // Of what follows the program's name, in brackets, the 17th: proc(5).
    let nice = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(16)).context("no nice")?;
    order(thread, "renice", &["-n", nice, "-p"])
}

/// Gives a thread another priority, by a program whose last argument it is.
fn order(thread: u32, program: &str, arguments: &[&str]) -> Result<()> {
    let done = Command::new(program).args(arguments).arg(thread.to_string()).output()?;
    ensure!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(())
}

fn threads_called(wanted: impl Fn(&str) -> bool) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that has ended meanwhile is none.
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if wanted(name.trim_end()) {
            found.push(id);
        }
    }
    Ok(found)
}
