//! Drops privileges that the process does not need.
//!
//! Every subcommand first disables core dumps. The subcommand `run` also prevents programs that it
//! executes from gaining privileges. After startup, `run` drops all capabilities that the control
//! loop does not need. Each packet thread drops all its capabilities when it starts (`datapath`).
//! Each thread has its own capabilities. Threads that are started later inherit the reduced
//! capabilities of the control loop. The new process of an upgrade receives only the capabilities
//! that the old process still has ([`handed_down`]).
//!
//! References: capabilities(7), prctl(2) PR_SET_NO_NEW_PRIVS, Linux `kernel/bpf/syscall.c`.

use std::fs;

use nix::sys::prctl;
use nix::unistd::{geteuid, setgroups, setresgid, setresuid};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

/// Disables core dumps, and tracing by users other than root, because the memory of the process
/// contains keys.
pub(crate) fn keep_out_of_cores() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        // log: The kernel refused to exclude the process from core dumps, so a dump would contain
        // keys. Disable core dumps in the unit with `LimitCORE=0`.
        tracing::warn!(%error, "core dumps not disabled");
    }
}

/// Prevents programs that this process executes from gaining privileges through file capabilities
/// or the root user.
pub(crate) fn seal() {
    // A capability must be inheritable before `handed_down` can pass it to a new process.
    if let Ok(sets) = capabilities(None) {
        let inheritable = sets.permitted & lasting();
        // If the call fails, a new process receives no capabilities.
        let _ = set_capabilities(None, CapabilitySets { inheritable, ..sets });
    }
    if let Err(error) = set_no_new_privs(true) {
        // log: The kernel refused to set `no_new_privs`. Set `NoNewPrivileges=yes` in the unit.
        tracing::warn!(%error, "no_new_privs not set");
    }
    // Without CAP_SETPCAP the kernel refuses this call. In that case, the parent process has
    // already limited the bounding set.
    for capability in CapabilitySet::all() {
        if remove_capability_from_bounding_set(capability).is_err() {
            return;
        }
    }
}

/// Drops those capabilities of the calling thread that were needed only for setup.
///
/// The closure `can_change_filter` returns `true` if the process can change the BPF maps without a
/// capability. Linux 5.19 and later permit this.
pub(crate) fn give_up(can_change_filter: impl FnOnce() -> bool) -> std::io::Result<()> {
    keep(&LASTING, can_change_filter)
}

/// Drops all capabilities and changes from root to another user after `decap` has attached its XDP
/// program. Dropping the capabilities is not enough, because a root user without capabilities can
/// still access files that belong to root.
///
/// The process must have a single thread. The closure `can_read_maps` returns `true` if the process
/// can read the BPF maps without a capability.
pub(crate) fn give_up_all(can_read_maps: impl FnOnce() -> bool) -> std::io::Result<()> {
    if let Err(error) = leave_root() {
        // log: The subcommand `decap` could not change to the user `nobody` and runs as root
        // without capabilities. Start `decap` with its systemd unit.
        tracing::warn!(%error, "process still runs as root");
    }
    keep(&[], can_read_maps)
}

/// Changes from root to the user `nobody`, which owns no files. Keeps the permitted capabilities,
/// which the caller drops afterwards.
fn leave_root() -> nix::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    // Changing the user clears the parent-death signal, so it is set again.
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
    // Executed programs inherit no capabilities if the ambient set is empty. The call fails only on
    // kernels without an ambient set.
    let _ = clear_ambient_capability_set();
    let kept = if can_use_maps() { lasting } else { lasting | had & for_maps(had) };
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: handed & kept })?;
    // log: The setup is complete, and the process has dropped the capabilities that only the setup
    // needed. The field `kept` lists the remaining capabilities.
    tracing::info!(
        kept = %words(kept),
        given_up = (had - kept).iter().count(),
        "capabilities dropped"
    );
    for (thread, more) in threads_with_more(kept)? {
        // log: A thread of a library has more capabilities than expected. Report a bug with this
        // line.
        tracing::warn!(thread, capabilities = format!("{more:#x}"), "thread with extra capabilities found");
    }
    Ok(())
}

/// Calls `start`, which executes a program. The program inherits the capabilities that this thread
/// still has.
pub(crate) fn handed_down<T>(start: impl FnOnce() -> T) -> T {
    let handed = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.inheritable & sets.permitted);
    for capability in handed.iter() {
        if let Err(error) = configure_capability_in_ambient_set(capability, true) {
            // log: The new process of an upgrade will lack a capability. Report a bug with this
            // line.
            tracing::warn!(%error, capability = format!("{capability:?}"), "capability not inherited");
        }
    }
    let started = start();
    let _ = clear_ambient_capability_set(); // The set was filled above.
    started
}

fn lasting() -> CapabilitySet {
    LASTING.iter().fold(for_maps(CapabilitySet::all()) | CapabilitySet::SYS_ADMIN, |all, (capability, ..)| {
        all | *capability
    })
}

/// Returns the capability for BPF maps. Kernels before 5.8 do not have CAP_BPF and require
/// CAP_SYS_ADMIN.
fn for_maps(had: CapabilitySet) -> CapabilitySet {
    if had.contains(CapabilitySet::BPF) { CapabilitySet::BPF } else { CapabilitySet::SYS_ADMIN }
}

fn words(kept: CapabilitySet) -> String {
    let lasting = LASTING.iter().filter(|(capability, _, _)| kept.contains(*capability));
    let mut words: Vec<String> = lasting.map(|(_, name, why)| format!("{name}: {why}")).collect();
    if kept.intersects(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN) {
        words.push(
            "CAP_BPF or CAP_SYS_ADMIN: this kernel requires it to use the maps of the XDP program".into(),
        );
    }
    if words.is_empty() { "none".into() } else { words.join("; ") }
}

/// Returns the names and capabilities of threads with more capabilities than `kept`.
fn threads_with_more(kept: CapabilitySet) -> std::io::Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    for thread in fs::read_dir("/proc/self/task")? {
        // A thread may end during the loop.
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

/// The capabilities that the control loop keeps, each with its name and the reason.
const LASTING: [(CapabilitySet, &str, &str); 4] = [
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN", "resolves neighbors and marks packets of tunneled checks"),
    (CapabilitySet::NET_RAW, "CAP_NET_RAW", "opens raw sockets for tunneled checks after a reload"),
    (
        CapabilitySet::NET_BIND_SERVICE,
        "CAP_NET_BIND_SERVICE",
        "listens on ports of bgp.listen below 1024 after a reload",
    ),
    (
        CapabilitySet::IPC_LOCK,
        "CAP_IPC_LOCK",
        "locks packet memory beyond the limit when a new process takes over",
    ),
];

/// The user ID and group ID of `nobody`, which are the same on all common systems.
const NOBODY: u32 = 65_534;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_what_is_kept() {
        let both = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW;
        assert!(
            words(both).contains("CAP_NET_ADMIN: resolves") && words(both).contains("CAP_NET_RAW: opens")
        );
        assert!(!words(both).contains("CAP_BPF") && words(both | CapabilitySet::BPF).contains("CAP_BPF"));
        assert_eq!(words(CapabilitySet::empty()), "none");
    }

    #[test]
    fn a_thread_keeps_what_lasts_and_what_the_filter_proves_to_need() {
        // Each test uses a separate thread, because every thread has its own capabilities. Without
        // root there are no capabilities to drop.
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
