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

    /// Whether the kernel has taken the advice about the mapping of this process that holds `address`; whether it has large pages to
    /// give just now is the machine's affair.
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
    fn the_kernel_takes_the_advice_about_a_large_table_where_it_has_large_pages() {
        if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage/enabled").exists() {
            println!("a kernel without large pages");
            return;
        }
        let table: Vec<u8> = Vec::with_capacity(32 << 20);
        let start = table.as_ptr().addr();
        assert!(!is_advised(start + (16 << 20)));
        advise_large_pages(start..start + table.capacity());
        assert!(is_advised(start + (16 << 20)));
    }

    #[test]
    fn advice_about_nothing_is_given_to_nobody() {
        advise_large_pages(0..0);
        advise_large_pages(4_097..4_098);
    }
}
