//! Which processor each packet thread runs on, and on which memory node its packets lie.
//!
//! In: the interfaces, the processors that the process may use. Out: processors in the order of the packet threads.
//! Not here: interrupts and their processors, which are the machine's (`sluicegate doctor` looks at them).
//! Invariant: only processors that the process may use are chosen, each once.
//! Source: Linux `Documentation/ABI/testing/sysfs-bus-pci` (`local_cpulist`); `numa(7)`: a page lies on the node of the
//! processor that touches it first.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Numbers of processors.
pub type Processors = BTreeSet<u32>;

/// Those that the calling thread may use.
#[must_use]
pub fn allowed() -> Processors {
    let Ok(set) = sched_getaffinity(CALLER) else { return Processors::new() };
    let count = u32::try_from(CpuSet::count()).unwrap_or(0);
    (0..count).filter(|cpu| set.is_set(*cpu as usize).unwrap_or(false)).collect()
}

/// Reads a list as the kernel writes it, such as `0-3,8`. What is no number counts for nothing.
#[must_use]
pub fn listed(text: &str) -> Processors {
    let run = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(run).flatten().collect()
}

/// The processors in the order in which packet threads take them: those that are `near` the NIC first.
#[must_use]
pub fn order(allowed: &Processors, near: &Processors) -> Vec<u32> {
    allowed.intersection(near).chain(allowed.difference(near)).copied().collect()
}

/// On the memory node of a PCI device, by its address; none where the machine does not say.
pub(crate) fn near_device(bus: &str) -> Processors {
    let path = Path::new("/sys/bus/pci/devices").join(bus).join("local_cpulist");
    let list = (!bus.is_empty()).then(|| fs::read_to_string(path).ok()).flatten();
    list.as_deref().map(listed).unwrap_or_default()
}

/// Near to all interfaces that say where they are, or else to the first of them.
pub(crate) fn near_all(each: impl Iterator<Item = Processors>) -> Processors {
    let mut each = each.filter(|near| !near.is_empty());
    let first = each.next().unwrap_or_default();
    let all = each.fold(first.clone(), |all, near| all.intersection(&near).copied().collect());
    if all.is_empty() { first } else { all }
}

/// Does `job` on processors of `near`, so that the memory that it touches first lies on their node, and lets the calling
/// thread go back to those that it had. Where none of them is allowed, it is done where the thread is.
pub(crate) fn near_to<T>(near: &Processors, job: impl FnOnce() -> T) -> T {
    let allowed = allowed();
    let there: Processors = allowed.intersection(near).copied().collect();
    let moved = !there.is_empty() && there != allowed && move_to(there.iter().copied()).is_ok();
    let done = job();
    if moved && let Err(error) = move_to(allowed.iter().copied()) {
        tracing::warn!(%error, "the main thread stays on the processors near the NIC");
    }
    done
}

/// Lets the calling thread run on these processors alone.
///
/// # Errors
/// What `sched_setaffinity` says.
pub(crate) fn move_to(processors: impl Iterator<Item = u32>) -> nix::Result<()> {
    let mut set = CpuSet::new();
    for cpu in processors {
        set.set(cpu as usize)?;
    }
    sched_setaffinity(CALLER, &set)
}

/// The calling thread.
const CALLER: Pid = Pid::from_raw(0);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::btree_set;
    use proptest::prelude::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
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
        /// Each allowed processor once; none that is far before one that is near; each kind by number.
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
    fn interfaces_on_two_nodes_are_near_to_the_first_and_those_that_say_nothing_do_not_count() {
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
    fn a_job_runs_near_and_its_thread_returns() {
        std::thread::spawn(|| {
            let before = allowed();
            let last = Processors::from_iter(before.last().copied());
            assert_eq!(near_to(&last, allowed), last);
            assert_eq!(allowed(), before);
            assert_eq!(near_to(&Processors::from_iter([u32::MAX]), allowed), before, "no such processor");
        })
        .join()
        .unwrap();
    }
}
