//! Placement of packet threads on processors, and of packet memory on memory nodes. Only processors
//! available to the process are chosen, and each processor is chosen at most once. This module does
//! not assign interrupts to processors: that assignment is part of the machine configuration, which
//! `sluicegate doctor` checks.
//!
//! See Linux `Documentation/ABI/testing/sysfs-bus-pci` for `local_cpulist`. According to numa(7), a
//! page is allocated on the node of the processor that first accesses it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// A set of processor numbers.
pub type Processors = BTreeSet<u32>;

/// Returns the processors that the calling thread may use.
#[must_use]
pub fn allowed() -> Processors {
    let Ok(set) = sched_getaffinity(CALLER) else { return Processors::new() };
    let count = u32::try_from(CpuSet::count()).unwrap_or(0);
    (0..count).filter(|cpu| set.is_set(*cpu as usize).unwrap_or(false)).collect()
}

/// Parses a processor list in the format of the kernel, such as `0-3,8`. Parts that are not numbers
/// are ignored.
#[must_use]
pub fn listed(text: &str) -> Processors {
    let run = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(run).flatten().collect()
}

/// Returns the processors in the order in which they are assigned to packet threads. The processors
/// in `near` come first, because they are on the memory node of the NIC.
#[must_use]
pub fn order(allowed: &Processors, near: &Processors) -> Vec<u32> {
    allowed.intersection(near).chain(allowed.difference(near)).copied().collect()
}

/// Returns the processors on the memory node of a PCI device. The set is empty if the machine does
/// not report these processors.
pub(crate) fn near_device(bus: &str) -> Processors {
    let path = Path::new("/sys/bus/pci/devices").join(bus).join("local_cpulist");
    let list = (!bus.is_empty()).then(|| fs::read_to_string(path).ok()).flatten();
    list.as_deref().map(listed).unwrap_or_default()
}

/// Returns the processors that are on the memory nodes of all interfaces. Interfaces with an
/// unknown location are ignored. If no processor is near all interfaces, returns the processors
/// near the first interface.
pub(crate) fn near_all(each: impl Iterator<Item = Processors>) -> Processors {
    let mut each = each.filter(|near| !near.is_empty());
    let first = each.next().unwrap_or_default();
    let all = each.fold(first.clone(), |all, near| all.intersection(&near).copied().collect());
    if all.is_empty() { first } else { all }
}

/// Runs `job` on the processors in `near`, so that memory that the job touches for the first time
/// is allocated on their node. Afterwards the calling thread may use its previous processors again.
/// If the process may not use any processor in `near`, the job runs on the current processors.
pub(crate) fn near_to<T>(near: &Processors, job: impl FnOnce() -> T) -> T {
    let allowed = allowed();
    let there: Processors = allowed.intersection(near).copied().collect();
    let moved = !there.is_empty() && there != allowed && move_to(there.iter().copied()).is_ok();
    let done = job();
    if moved && let Err(error) = move_to(allowed.iter().copied()) {
        // log: After startup, the main thread could not restore its original CPU affinity. Packets
        // are not affected.
        tracing::warn!(%error, "main thread stays on the processors near the NIC");
    }
    done
}

/// Restricts the calling thread to the given processors.
///
/// # Errors
/// Returns the error of `sched_setaffinity`.
pub(crate) fn move_to(processors: impl Iterator<Item = u32>) -> nix::Result<()> {
    let mut set = CpuSet::new();
    for cpu in processors {
        set.set(cpu as usize)?;
    }
    sched_setaffinity(CALLER, &set)
}

/// PID 0 means the calling thread.
const CALLER: Pid = Pid::from_raw(0);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::btree_set;
    use proptest::prelude::*;

    #[test]
    fn listed_parses_processor_lists() {
        for (text, cpus) in [
            ("0-3,8\n", &[0, 1, 2, 3, 8][..]),
            ("5\n", &[5]),
            ("\n", &[]),
            ("0-1,4-5,7", &[0, 1, 4, 5, 7]),
            ("zebra,3", &[3]),
            ("3-1", &[]),
        ] {
            assert_eq!(listed(text), cpus.iter().copied().collect(), "{text:?}");
        }
    }

    proptest! {
        /// Checks that the order contains each allowed processor once, that near processors come
        /// before all others, and that both groups are sorted.
        #[test]
        fn near_processors_come_first(allowed in btree_set(0u32..64, 0..20), near in btree_set(0u32..64, 0..20)) {
            let order = order(&allowed, &near);
            prop_assert_eq!(order.len(), allowed.len());
            for pair in order.windows(2) {
                let far = [!near.contains(&pair[0]), !near.contains(&pair[1])];
                prop_assert!((far[0], pair[0]) < (far[1], pair[1]), "{:?}", order);
            }
            prop_assert!(order.iter().all(|cpu| allowed.contains(cpu)));
        }
    }

    #[test]
    fn near_all_prefers_the_first_known_interface() {
        let cases: [(&[&str], &str); 5] = [
            (&["", ""], ""),
            (&["", "0-3"], "0-3"),
            (&["0-3", "4-7"], "0-3"),
            (&["0-3", "2-7"], "2-3"),
            (&[], ""),
        ];
        for (each, all) in cases {
            assert_eq!(near_all(each.iter().map(|list| listed(list))), listed(all), "{each:?}");
        }
    }

    #[test]
    fn near_to_runs_the_job_near_and_returns() {
        std::thread::spawn(|| {
            let before = allowed();
            let last = Processors::from_iter(before.last().copied());
            assert_eq!(near_to(&last, allowed), last);
            assert_eq!(allowed(), before);
            assert_eq!(
                near_to(&Processors::from_iter([u32::MAX]), allowed),
                before,
                "processor does not exist"
            );
        })
        .join()
        .unwrap();
    }
}
