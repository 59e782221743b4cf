//! Large tables in large pages: a look-up at a random place of one then needs no walk for its address.
//!
//! In: the addresses of memory that has not been touched. Out: the advice to the kernel. Not here: whether it follows (`doctor` looks).
//! Source: madvise(2), MADV_HUGEPAGE.

use std::ops::Range;
use std::ptr::without_provenance_mut;

use rustix::mm::{Advice, madvise};

/// Asks the kernel for large pages at these addresses, as far as they are whole pages. Nothing comes of it where the kernel has none.
pub fn advise_large_pages(memory: Range<usize>) {
    let page = rustix::param::page_size();
    let (start, end) = (memory.start.next_multiple_of(page), memory.end / page * page);
    let Some(bytes) = end.checked_sub(start).filter(|bytes| *bytes > 0) else { return };
    // SAFETY: the advice changes no byte and no right, whatever lies at these addresses; the kernel refuses it where nothing does.
    let advised = unsafe { madvise(without_provenance_mut(start), bytes, Advice::LinuxHugepage) };
    // A kernel without them says so, and the table is as good.
    let _ = advised;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kilobytes in large pages among the mappings of this process that hold `address`.
    fn in_large_pages(address: usize) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut is_ours, mut found) = (false, 0);
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            if let Some((from, to)) = range.and_then(|(from, to)| number(from).zip(number(to))) {
                is_ours = (from..to).contains(&address);
            } else if is_ours && let Some(size) = line.strip_prefix("AnonHugePages:") {
                found += size.trim().trim_end_matches(" kB").parse::<usize>().unwrap();
            }
        }
        found
    }

    #[test]
    fn a_large_table_lies_in_large_pages_where_the_kernel_gives_them() {
        let given =
            std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        if !given.contains("[madvise]") && !given.contains("[always]") {
            println!("no large pages here: {given:?}");
            return;
        }
        let mut table: Vec<u8> = Vec::with_capacity(32 << 20);
        let start = table.as_ptr().addr();
        advise_large_pages(start..start + table.capacity());
        table.resize(32 << 20, 7);
        assert!(in_large_pages(start + (16 << 20)) >= 2_048, "a large page of 2 MiB at least");
    }

    #[test]
    fn advice_about_nothing_is_given_to_nobody() {
        advise_large_pages(0..0);
        advise_large_pages(4_097..4_098);
    }
}
