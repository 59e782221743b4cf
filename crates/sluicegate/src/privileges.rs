//! What the process may do, and giving up what it does not need.
//!
//! At the start of every verb: no core dump. At the start of `run`, before any other thread: nothing that is executed can gain privileges. After set-up: all
//! capabilities but those that the control loop needs while it runs. Packet threads give up all when they start
//! (`datapath`). A capability belongs to a thread: threads that the loop starts later have the loop's.
//! A process that takes over is executed with what this one has by then ([`handed_down`]), and gets nothing else.
//! Source: capabilities(7), prctl(2) PR_SET_NO_NEW_PRIVS, Linux `kernel/bpf/syscall.c`.

use std::fs;

use nix::sys::prctl;
use nix::unistd::{geteuid, setgroups, setresgid, setresuid};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

/// No core dump is written of this process, whatever the limits, and nobody but root reads its memory: keys are in it.
pub(crate) fn keep_out_of_cores() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "a core dump of this process would hold its keys");
    }
}

/// Nothing that this process executes gains privileges, from its file or as root.
pub(crate) fn seal() {
    // While they may still be: what lasts is what a process that takes over is given (`handed_down`).
    if let Ok(sets) = capabilities(None) {
        let inheritable = sets.permitted & lasting();
        let _ = set_capabilities(None, CapabilitySets { inheritable, ..sets }); // then it has none to hand down
    }
    if let Err(error) = set_no_new_privs(true) {
        tracing::warn!(%error, "no_new_privs is not set");
    }
    // Without CAP_SETPCAP this is refused, and then the parent process has set the bounds.
    for capability in CapabilitySet::all() {
        if remove_capability_from_bounding_set(capability).is_err() {
            return;
        }
    }
}

/// Gives up, for the calling thread, what set-up alone needed. `can_change_filter` is asked whether the filter's maps can
/// be changed without a capability: since Linux 5.19 a descriptor is enough.
pub(crate) fn give_up(can_change_filter: impl FnOnce() -> bool) -> std::io::Result<()> {
    keep(&LASTING, can_change_filter)
}

/// Gives up all that is needed no more once `decap`'s program is attached: root's user too, for which files that are
/// root's need no capability. The process must have one thread. `can_read_maps` is asked as in [`give_up`].
pub(crate) fn give_up_all(can_read_maps: impl FnOnce() -> bool) -> std::io::Result<()> {
    if let Err(error) = leave_root() {
        tracing::warn!(%error, "still root's user, without its capabilities");
    }
    keep(&[], can_read_maps)
}

/// From root to the user that owns nothing; capabilities stay permitted until the caller gives them up.
fn leave_root() -> nix::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    // A change of user takes back what the parent had asked for.
    let at_parents_death = prctl::get_pdeathsig()?;
    prctl::set_keepcaps(true)?;
    setgroups(&[])?;
    setresgid(NOBODY.into(), NOBODY.into(), NOBODY.into())?;
    setresuid(NOBODY.into(), NOBODY.into(), NOBODY.into())?;
    prctl::set_pdeathsig(at_parents_death)
}

fn keep(lasting: &[(CapabilitySet, &str, &str)], can_use_maps: impl FnOnce() -> bool) -> std::io::Result<()> {
    let CapabilitySets { permitted: had, inheritable: handed, .. } = capabilities(None)?;
    let lasting =
        had & lasting.iter().fold(CapabilitySet::empty(), |all, (capability, _, _)| all | *capability);
    set_capabilities(None, CapabilitySets { effective: lasting, permitted: had, inheritable: handed })?;
    // What is executed gets none of them by itself. A kernel that has no such set gives none.
    let _ = clear_ambient_capability_set();
    let kept = if can_use_maps() { lasting } else { lasting | had & for_maps(had) };
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: handed & kept })?;
    tracing::info!(
        kept = %words(kept),
        given_up = (had - kept).iter().count(),
        "capabilities that only the start needs are given up"
    );
    for (thread, more) in threads_with_more(kept)? {
        tracing::warn!(
            thread,
            capabilities = format!("{more:#x}"),
            "a thread that started earlier keeps more"
        );
    }
    Ok(())
}

/// Runs `start`, which executes a program: that gets the capabilities that this thread has, as far as they last.
pub(crate) fn handed_down<T>(start: impl FnOnce() -> T) -> T {
    let handed = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.inheritable & sets.permitted);
    for capability in handed.iter() {
        if let Err(error) = configure_capability_in_ambient_set(capability, true) {
            tracing::warn!(%error, capability = format!("{capability:?}"), "a capability is not handed down");
        }
    }
    let started = start();
    let _ = clear_ambient_capability_set(); // it was set here
    started
}

fn lasting() -> CapabilitySet {
    LASTING.iter().fold(for_maps(CapabilitySet::all()) | CapabilitySet::SYS_ADMIN, |all, (capability, ..)| {
        all | *capability
    })
}

/// Kernels before 5.8 know CAP_SYS_ADMIN alone.
fn for_maps(had: CapabilitySet) -> CapabilitySet {
    if had.contains(CapabilitySet::BPF) { CapabilitySet::BPF } else { CapabilitySet::SYS_ADMIN }
}

fn words(kept: CapabilitySet) -> String {
    let lasting = LASTING.iter().filter(|(capability, _, _)| kept.contains(*capability));
    let mut words: Vec<String> = lasting.map(|(_, name, why)| format!("{name}: {why}")).collect();
    if kept.intersects(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN) {
        words.push(
            "CAP_BPF or CAP_SYS_ADMIN: this kernel asks for it when the XDP program's maps are used".into(),
        );
    }
    if words.is_empty() { "none".into() } else { words.join("; ") }
}

/// Threads of this process that may do more than `kept`: their names and their capabilities.
fn threads_with_more(kept: CapabilitySet) -> std::io::Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    for thread in fs::read_dir("/proc/self/task")? {
        // One that has just ended is no matter.
        let Ok(status) = fs::read_to_string(thread?.path().join("status")) else { continue };
        let Some(permitted) = field(&status, "CapPrm:").and_then(|mask| u64::from_str_radix(mask, 16).ok())
        else {
            continue;
        };
        if permitted & !kept.bits() != 0 {
            found.push((field(&status, "Name:").unwrap_or_default().to_owned(), permitted));
        }
    }
    Ok(found)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// What the control loop needs while it runs, and for what.
const LASTING: [(CapabilitySet, &str, &str); 4] = [
    (
        CapabilitySet::NET_ADMIN,
        "CAP_NET_ADMIN",
        "makes the kernel resolve neighbours, marks checks that go through a tunnel",
    ),
    (
        CapabilitySet::NET_RAW,
        "CAP_NET_RAW",
        "raw sockets of checks through a tunnel, which a reload may bring",
    ),
    (
        CapabilitySet::NET_BIND_SERVICE,
        "CAP_NET_BIND_SERVICE",
        "ports of bgp.listen below 1,024, which a reload may bring",
    ),
    (
        CapabilitySet::IPC_LOCK,
        "CAP_IPC_LOCK",
        "packet memory of a process that takes over, where the limit on locked memory is lower",
    ),
];

/// The user and the group `nobody`, by the number that each system gives them.
const NOBODY: u32 = 65_534;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_what_is_kept() {
        let both = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW;
        assert!(words(both).contains("CAP_NET_ADMIN: makes") && words(both).contains("CAP_NET_RAW: raw"));
        assert!(!words(both).contains("CAP_BPF") && words(both | CapabilitySet::BPF).contains("CAP_BPF"));
        assert_eq!(words(CapabilitySet::empty()), "none");
    }

    #[test]
    fn a_thread_keeps_what_lasts_and_what_the_filter_proves_to_need() {
        // Capabilities are a thread's own: this one is thrown away. Without root there is nothing to give up.
        let left = |can_change: bool| {
            std::thread::spawn(move || {
                let had = capabilities(None).unwrap().permitted;
                give_up(move || {
                    assert!(!capabilities(None).unwrap().effective.contains(CapabilitySet::BPF));
                    can_change
                })
                .unwrap();
                let sets = capabilities(None).unwrap();
                assert_eq!(sets.effective, sets.permitted);
                (had, sets.permitted)
            })
            .join()
            .unwrap()
        };
        let network = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::NET_BIND_SERVICE;
        let lasting = network | CapabilitySet::IPC_LOCK;
        let (had, kept) = left(true);
        assert_eq!(kept, had & lasting);
        let (had, kept) = left(false);
        assert_eq!(kept, had & (lasting | for_maps(had)));
    }
}
