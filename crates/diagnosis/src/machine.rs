//! Judgements of the machine: kernel, privileges, memory, processors, clock, the admin socket's folder.
//!
//! In: [`Facts`]. Out: [`Finding`]s. Invariant: functions of the facts alone.

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
        let what = format!("the kernel is {kernel}, and {major}.{minor} is the oldest that will do");
        let why = format!(
            "an older one cannot tie the {program} program to its process, and it would outlive a crash"
        );
        Finding::error("kernel-old", what, why).hint("install a newer kernel")
    })
}

/// Major and minor number.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

fn without_af_xdp(facts: &Facts) -> Option<Finding> {
    (facts.host.knows_af_xdp == Some(false) && !facts.has_packet_sockets).then(|| {
        let what = "the kernel knows no AF_XDP sockets";
        Finding::error("no-af-xdp", what, "io.mode = \"af-xdp\" moves packets by them").hint(
            "install a kernel with CONFIG_XDP_SOCKETS=y, or set io.mode = \"af-packet\", which is slower",
        )
    })
}

fn without_jit(host: &Host) -> Option<Finding> {
    (host.bpf_jit == Some(0)).then(|| {
        let why = "the XDP program is interpreted for each packet, several times slower than compiled";
        Finding::warning("bpf-jit", "the kernel's BPF compiler is off", why)
            .command("sysctl -w net.core.bpf_jit_enable=1")
    })
}

/// The kernel charges packet memory to the limit, unless the process holds CAP_IPC_LOCK.
fn locked_memory(facts: &Facts) -> Option<Finding> {
    if facts.has_packet_sockets {
        return None; // theirs is not charged
    }
    let limit = facts.host.memlock?;
    let privileges = facts.host.privileges?;
    let queues: u32 = facts.usable().map(|(interface, _)| facts.sockets_on(interface)).sum();
    // A packet thread without queues has an eighth of a queue's frames.
    let eighths = u64::from(queues) * 8 + u64::from(facts.threads.steered);
    let needed = eighths * u64::from(facts.frames_per_queue / 8) * u64::from(facts.frame_size);
    (!privileges.has(CAP_IPC_LOCK) && needed > limit).then(|| {
        let what = format!(
            "packet memory takes {} KiB, and the limit of locked memory is {} KiB",
            needed / 1_024,
            limit / 1_024
        );
        Finding::error("memlock", what, "the kernel refuses the memory without CAP_IPC_LOCK")
            .command("ulimit -l unlimited")
            .hint("LimitMEMLOCK=infinity or AmbientCapabilities=CAP_IPC_LOCK in the systemd unit")
    })
}

fn huge_pages(facts: &Facts) -> Option<Finding> {
    let word = facts.host.huge_pages.as_deref().filter(|word| *word == "never")?;
    let table_bytes = facts.flows_per_thread * FLOW_BYTES;
    (table_bytes >= HUGE_PAGE_BYTES).then(|| {
        let what = format!("transparent huge pages are on `{word}`");
        let mebibytes = table_bytes / (1 << 20);
        let why = format!(
            "each packet thread's connection table of {mebibytes} MiB lies in small pages, and a look-up may miss the TLB"
        );
        Finding::advice("huge-pages", what, why)
            .command("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
    })
}

fn clock(host: &Host) -> Option<Finding> {
    (host.clock_is_synchronised == Some(false)).then(|| {
        let why = "logs, captures and certificates' dates do not agree with those of other machines";
        Finding::warning("clock", "nothing keeps the clock synchronised", why)
            .command("timedatectl set-ntp true")
            .hint("install chrony, where no time service is there")
    })
}

fn admin_folder(folder: &AdminFolder) -> Option<Finding> {
    let why = match folder.is_asked_for {
        true => "the admin socket cannot be made, and the balancer does not start",
        false => "the admin socket cannot be made, and the balancer can't be asked",
    };
    let what = |words: &str| format!("{}, the folder of the admin socket, {words}", folder.path.display());
    let path = quoted(&folder.path.to_string_lossy());
    let make = format!("install -d -m 0755 {path}");
    let severity = if folder.is_asked_for { Finding::error } else { Finding::warning };
    let fault = |words: &str| severity("admin-folder", what(words), why);
    Some(match folder.state {
        FolderState::Sound => return None,
        FolderState::Missing if folder.path.starts_with("/run") => {
            let why = if folder.is_asked_for { "it must be there at the start" } else { why };
            Finding::warning("admin-folder", what("is not there"), why)
                .command(make)
                .hint("RuntimeDirectory= in the systemd unit makes it at each start")
        }
        FolderState::Missing => fault("is not there").command(make),
        FolderState::NoFolder => fault("is no folder").hint("name another one in admin.socket.path"),
        FolderState::NotWritable => {
            fault("may not be written by this user").hint("give it to the user that the balancer runs as")
        }
        FolderState::OpenToOthers => {
            let why = "anybody on this machine can put a socket of their own in its place";
            Finding::warning("admin-folder", what("may be written by everybody"), why)
                .command(format!("chmod o-w {path}"))
        }
    })
}

fn shared_processors(facts: &Facts, interface: &Interface, channels: &str) -> Option<Finding> {
    let (threads, cpus) = (facts.threads_on(interface), facts.host.cpus.len());
    (cpus > 0 && threads as usize > cpus).then(|| {
        let name = &interface.name;
        let there = if cpus == 1 { "there is" } else { "there are" };
        let (sockets, processors) = (facts.sockets_on(interface), count_of(cpus, "processor"));
        let threads = match facts.threads.steered {
            0 => count(sockets, "packet thread"),
            some => format!("{} and {}", count(some, "packet thread"), count(sockets, "I/O thread")),
        };
        let what = format!("{name} gets {threads}, and {there} {processors} for them");
        let finding =
            Finding::warning("threads-shared", what, "threads that share one delay each other's packets");
        if facts.threads.steered > 0 {
            return finding.hint("fewer io.threads, or fewer io.queues, each of which has an I/O thread");
        }
        let finding = finding.command(format!("ethtool -L {name} {channels}"));
        match facts.sockets {
            Some(_) => finding.hint(format!("io.queues = {cpus} as well, which counts sockets")),
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
            "packet threads would run on processors {}, which are not on the memory node of {}",
            ranges(&far),
            interface.name
        );
        let why = "each packet crosses between the nodes";
        on_processors(Finding::warning("threads-far", what, why), near)
    })
}

/// Threads that never sleep, or a machine that has processors set aside for them.
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
            "other work on the same processor makes packets wait",
        );
        if isolated.is_empty() {
            return finding.hint(format!(
                "boot with isolcpus={} on the kernel's command line, or let threads sleep (io.idle.then)",
                ranges(&threads)
            ));
        }
        on_processors(finding, isolated)
    })
}

fn without_busy_poll(facts: &Facts, Nic { name, defers_interrupts, .. }: &Nic) -> Option<Finding> {
    (facts.threads.polls && *defers_interrupts == Some(false)).then(|| {
        let of = format!("/sys/class/net/{name}");
        let what = format!("io.busy_poll is set, and {name} does not defer its interrupts");
        let why = "its driver goes on receiving in interrupts, beside the packet threads' system calls";
        Finding::warning("busy-poll", what, why)
            .command(format!("echo 2 > {of}/napi_defer_hard_irqs && echo 200000 > {of}/gro_flush_timeout"))
    })
}

fn on_processors(finding: Finding, cpus: &Processors) -> Finding {
    let list = ranges(cpus);
    finding
        .command(format!("systemctl set-property sluicegate.service AllowedCPUs={list}"))
        .hint(format!("start it by taskset -c {list}; judged are the processors that this process may use"))
}

fn irqbalance(host: &Host, nic: &Nic, interface: &Interface) -> Option<Finding> {
    (host.irqbalance && nic.has_interrupts).then(|| {
        let what = format!("irqbalance moves the interrupts of {} about", interface.name);
        Finding::warning("irqbalance", what, "a queue's interrupt leaves the processor of its packet thread")
            .command("systemctl disable --now irqbalance")
    })
}

/// `0-3,8`, as the kernel writes and reads lists of processors.
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

/// For a shell: as it stands where that is plain, else in quotes.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_' | ':');
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// XDP programs by BPF links.
const OLDEST_KERNEL: (u32, u32) = (5, 9);
/// The first with TCX.
const OLDEST_FOR_INGRESS: (u32, u32) = (6, 6);
const CAP_IPC_LOCK: u32 = 14;
/// A flow in the connection table.
const FLOW_BYTES: usize = 16;
const HUGE_PAGE_BYTES: usize = 2 << 20;
