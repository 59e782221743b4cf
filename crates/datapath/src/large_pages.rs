//! Backs large tables with huge pages, which avoids TLB misses on random lookups. The kernel may
//! ignore this advice. `sluicegate doctor` checks the corresponding kernel setting.
//!
//! See madvise(2) for MADV_HUGEPAGE.

use std::ops::Range;
use std::ptr::without_provenance_mut;

use rustix::mm::{Advice, madvise};

/// Advises the kernel to back this address range with huge pages. Partial pages at both ends are
/// excluded. The advice has no effect on kernels without huge pages.
pub fn advise_large_pages(memory: Range<usize>) {
    let page = rustix::param::page_size();
    let (start, end) = (memory.start.next_multiple_of(page), memory.end / page * page);
    let Some(bytes) = end.checked_sub(start).filter(|bytes| *bytes > 0) else { return };
    // SAFETY: the advice changes neither data nor access rights. The kernel refuses addresses that
    // are not mapped.
    let advised = unsafe { madvise(without_provenance_mut(start), bytes, Advice::LinuxHugepage) };
    // An error means that the kernel has no huge pages. The tables then use pages of normal size.
    let _ = advised;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `true` if the kernel accepted the advice for the mapping that contains `address`.
    /// The result does not show whether huge pages are free.
    fn is_advised(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_ours = false;
        maps.lines().any(|line| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            if let Some((from, to)) = range.and_then(|(from, to)| number(from).zip(number(to))) {
                is_ours = (from..to).contains(&address);
            }
            is_ours
                && line
                    .strip_prefix("VmFlags:")
                    .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hg"))
        })
    }

    #[test]
    fn advise_large_pages_marks_the_mapping() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists() {
            println!("skipped: this kernel has no huge pages");
            return;
        }
        let table: Vec<u8> = Vec::with_capacity(32 << 20);
        let start = table.as_ptr().addr();
        assert!(!is_advised(start + (16 << 20)));
        advise_large_pages(start..start + table.capacity());
        assert!(is_advised(start + (16 << 20)));
    }

    #[test]
    fn advise_large_pages_ignores_empty_ranges() {
        advise_large_pages(0..0);
        advise_large_pages(4_097..4_098);
    }
}
