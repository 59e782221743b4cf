//! Findings about the machine: kernel, privileges, memory, processors, clock, and the directory of
//! the admin socket.

use config::words::{count, count_of};
use datapath::interface::{Finding, Hardware, Interface};
use datapath::placement::Processors;

use crate::facts::{AdminFolder, Facts, FolderState, Host, Nic};

pub(crate) fn findings(facts: &Facts) -> Vec<Finding> {
    let host = &facts.host;
    let mut found: Vec<Finding> = [
        kernel_age(facts),
        without_af_xdp(facts),
        without_jit(host),
        locked_memory(facts),
        huge_pages(facts),
        clock(host),
        facts.admin.as_ref().and_then(admin_folder),
    ]
    .into_iter()
    .flatten()
    .collect();
    for nic in &facts.interfaces {
        if let Ok((interface, hardware)) = &nic.found {
            let channels = hardware.channels.arguments(u32::try_from(host.cpus.len()).unwrap_or(u32::MAX));
            found.extend(shared_processors(facts, interface, &channels));
            found.extend(far_processors(facts, interface, hardware));
            found.extend(disturbed_processors(facts, interface, hardware));
            found.extend(irqbalance(host, nic, interface));
            found.extend(without_busy_poll(facts, nic));
        }
    }
    found
}

fn kernel_age(facts: &Facts) -> Option<Finding> {
    let kernel = &facts.host.kernel;
    let (oldest, program) =
        if facts.has_packet_sockets { (OLDEST_FOR_INGRESS, "ingress") } else { (OLDEST_KERNEL, "XDP") };
    (version(kernel)? < oldest).then(|| {
        let (major, minor) = oldest;
        let what = format!("kernel {kernel} is too old, the minimum is {major}.{minor}");
        let why = format!(
            "an older kernel does not detach the {program} program when the process ends, so the program would remain attached after a crash"
        );
        Finding::error("kernel-old", what, why).hint("install a newer kernel")
    })
}

/// Returns the major and minor version of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

fn without_af_xdp(facts: &Facts) -> Option<Finding> {
    (facts.host.knows_af_xdp == Some(false) && !facts.has_packet_sockets).then(|| {
        let what = "the kernel does not support AF_XDP sockets";
        Finding::error("no-af-xdp", what, "io.mode = \"af-xdp\" needs AF_XDP sockets for all packets")
            .hint("install a kernel with CONFIG_XDP_SOCKETS=y, or set the slower io.mode = \"af-packet\"")
    })
}

fn without_jit(host: &Host) -> Option<Finding> {
    (host.bpf_jit == Some(0)).then(|| {
        let why = "the XDP program is interpreted for each packet, which is several times slower";
        Finding::warning("bpf-jit", "the BPF JIT compiler of the kernel is off", why)
            .command("sysctl -w net.core.bpf_jit_enable=1")
    })
}

/// Unless the process has CAP_IPC_LOCK, packet memory counts toward the limit on locked memory.
fn locked_memory(facts: &Facts) -> Option<Finding> {
    if facts.has_packet_sockets {
        return None; // packet sockets need no locked memory
    }
    let limit = facts.host.memlock?;
    let privileges = facts.host.privileges?;
    let queues: u32 = facts.usable().map(|(interface, _)| facts.sockets_on(interface)).sum();
    // With software steering, a packet thread has one eighth as many frames as a queue.
    let eighths = u64::from(queues) * 8 + u64::from(facts.threads.steered);
    let interfaces: Vec<_> = facts.usable().map(|(interface, _)| interface.clone()).collect();
    let frame_size = datapath::interface::frame_size(&interfaces, facts.frame_size);
    let needed = eighths * u64::from(facts.frames_per_queue / 8) * u64::from(frame_size);
    (!privileges.has(CAP_IPC_LOCK) && needed > limit).then(|| {
        let what = format!(
            "packet memory needs {} KiB, but the limit of locked memory is {} KiB",
            needed / 1_024,
            limit / 1_024
        );
        Finding::error("memlock", what, "the kernel does not provide more memory without CAP_IPC_LOCK")
            .command("ulimit -l unlimited")
            .hint("set LimitMEMLOCK=infinity or AmbientCapabilities=CAP_IPC_LOCK in the systemd unit")
    })
}

fn huge_pages(facts: &Facts) -> Option<Finding> {
    let word = facts.host.huge_pages.as_deref().filter(|word| *word == "never")?;
    let table_bytes = facts.flows_per_thread * FLOW_BYTES;
    (table_bytes >= HUGE_PAGE_BYTES).then(|| {
        let what = format!("transparent huge pages are set to `{word}`");
        let mebibytes = table_bytes / (1 << 20);
        let why = format!(
            "the connection table of each packet thread ({mebibytes} MiB) uses small pages, so lookups cause TLB misses"
        );
        Finding::advice("huge-pages", what, why)
            .command("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
    })
}

fn clock(host: &Host) -> Option<Finding> {
    (host.clock_is_synchronised == Some(false)).then(|| {
        let why =
            "timestamps of logs and captures differ from other machines, and certificate checks may fail";
        Finding::warning("clock", "the system clock is not synchronized", why)
            .command("timedatectl set-ntp true")
            .hint("install chrony if the machine has no time service")
    })
}

fn admin_folder(folder: &AdminFolder) -> Option<Finding> {
    let why = match folder.is_asked_for {
        true => "the load balancer cannot create its admin socket and does not start",
        false => {
            "the load balancer cannot create its admin socket, so commands cannot query the load balancer"
        }
    };
    let what = |words: &str| format!("directory {} of the admin socket {words}", folder.path.display());
    let path = quoted(&folder.path.to_string_lossy());
    let make = format!("install -d -m 0755 {path}");
    let severity = if folder.is_asked_for { Finding::error } else { Finding::warning };
    let fault = |words: &str| severity("admin-folder", what(words), why);
    Some(match folder.state {
        FolderState::Sound => return None,
        FolderState::Missing if folder.path.starts_with("/run") => {
            let why = if folder.is_asked_for {
                "the directory must exist when the load balancer starts"
            } else {
                why
            };
            Finding::warning("admin-folder", what("does not exist"), why)
                .command(make)
                .hint("set RuntimeDirectory= in the systemd unit, which creates the directory at each start")
        }
        FolderState::Missing => fault("does not exist").command(make),
        FolderState::NoFolder => fault("is not a directory").hint("change admin.socket.path"),
        FolderState::NotWritable => {
            fault("is not writable for this user").hint("change its owner to the user of the load balancer")
        }
        FolderState::OpenToOthers => {
            let why = "any local user can replace the admin socket";
            Finding::warning("admin-folder", what("is writable for all users"), why)
                .command(format!("chmod o-w {path}"))
        }
    })
}

fn shared_processors(facts: &Facts, interface: &Interface, channels: &str) -> Option<Finding> {
    let (threads, cpus) = (facts.threads_on(interface), facts.host.cpus.len());
    (cpus > 0 && threads as usize > cpus).then(|| {
        let name = &interface.name;
        let there = if cpus == 1 { "is" } else { "are" };
        let (sockets, processors) = (facts.sockets_on(interface), count_of(cpus, "processor"));
        let threads = match facts.threads.steered {
            0 => count(sockets, "packet thread"),
            some => format!("{} and {}", count(some, "packet thread"), count(sockets, "I/O thread")),
        };
        let what = format!("{name} needs {threads}, but only {processors} {there} available");
        let finding = Finding::warning(
            "threads-shared",
            what,
            "threads on the same processor delay each other's packets",
        );
        if facts.threads.steered > 0 {
            return finding.hint("reduce io.threads or io.queues, because each queue has an I/O thread");
        }
        let finding = finding.command(format!("ethtool -L {name} {channels}"));
        match facts.sockets {
            Some(_) => {
                finding.hint(format!("set io.queues = {cpus} as well, which is the number of sockets"))
            }
            None => finding,
        }
    })
}

fn far_processors(facts: &Facts, interface: &Interface, hardware: &Hardware) -> Option<Finding> {
    let near = &hardware.near;
    let threads = facts.thread_cpus(facts.threads_on(interface), near);
    let is_near = near.is_empty() || threads.is_subset(near);
    (!is_near).then(|| {
        let far: Processors = threads.difference(near).copied().collect();
        let what = format!(
            "packet threads would run on processors {}, which are not on the NUMA node of {}",
            ranges(&far),
            interface.name
        );
        let why = "every packet crosses between NUMA nodes, which is slower";
        on_processors(Finding::warning("threads-far", what, why), near)
    })
}

/// Reports packet threads on processors that are not isolated. The check runs only if the threads
/// never sleep, or if the machine has isolated processors.
fn disturbed_processors(facts: &Facts, interface: &Interface, hardware: &Hardware) -> Option<Finding> {
    let threads = facts.thread_cpus(facts.threads_on(interface), &hardware.near);
    let isolated = &facts.host.isolated;
    let is_wanted = facts.threads.spins || !isolated.is_empty();
    (is_wanted && !threads.is_subset(isolated)).then(|| {
        let disturbed: Processors = threads.difference(isolated).copied().collect();
        let what =
            format!("packet threads would run on processors {}, which are not isolated", ranges(&disturbed));
        let finding = Finding::warning(
            "threads-disturbed",
            what,
            "other processes on the same processor delay packets",
        );
        if isolated.is_empty() {
            return finding.hint(format!(
                "boot with isolcpus={} on the kernel command line, or let the threads sleep (io.idle.then)",
                ranges(&threads)
            ));
        }
        on_processors(finding, isolated)
    })
}

fn without_busy_poll(facts: &Facts, Nic { name, defers_interrupts, .. }: &Nic) -> Option<Finding> {
    (facts.threads.polls && *defers_interrupts == Some(false)).then(|| {
        let of = format!("/sys/class/net/{name}");
        let what = format!("io.busy_poll is set, but {name} does not defer its interrupts");
        let why = "the driver still receives packets in interrupts, in addition to the system calls of the packet threads";
        Finding::warning("busy-poll", what, why)
            .command(format!("echo 2 > {of}/napi_defer_hard_irqs && echo 200000 > {of}/gro_flush_timeout"))
    })
}

fn on_processors(finding: Finding, cpus: &Processors) -> Finding {
    let list = ranges(cpus);
    finding
        .command(format!("systemctl set-property sluicegate.service AllowedCPUs={list}"))
        .hint(format!("start the load balancer with `taskset -c {list}` (doctor checks the processors that doctor itself may use)"))
}

fn irqbalance(host: &Host, nic: &Nic, interface: &Interface) -> Option<Finding> {
    (host.irqbalance && nic.has_interrupts).then(|| {
        let what = format!("irqbalance moves the interrupts of {} between processors", interface.name);
        Finding::warning(
            "irqbalance",
            what,
            "interrupts of a queue move to a processor other than that of its packet thread",
        )
        .command("systemctl disable --now irqbalance")
    })
}

/// Formats a set of processors as `0-3,8`, the list format of the kernel.
pub(crate) fn ranges(cpus: &Processors) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &cpu in cpus {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    let run = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

/// Quotes a string for a shell if necessary.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_' | ':');
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// The first kernel version with BPF links for XDP.
const OLDEST_KERNEL: (u32, u32) = (5, 9);
/// The first kernel version with TCX.
const OLDEST_FOR_INGRESS: (u32, u32) = (6, 6);
const CAP_IPC_LOCK: u32 = 14;
/// The size of a flow in the connection table, in bytes.
const FLOW_BYTES: usize = 16;
const HUGE_PAGE_BYTES: usize = 2 << 20;
