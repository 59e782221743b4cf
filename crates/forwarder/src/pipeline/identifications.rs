//! IPv4 identifications for what is written here: a range for each thread (RFC 6864 §4.3).

use crate::ThreadId;

/// IPv4 identifications of one thread, from a range that no other thread uses (RFC 6864 §4.3).
#[derive(Debug)]
pub(super) struct Identifications {
    first: u16,
    last: u16,
    next: u16,
    wide: u16,
}

impl Identifications {
    pub(super) fn of(thread: ThreadId, threads: u16) -> Self {
        let range = (u16::MAX / threads.max(1)).max(1);
        let first = range.wrapping_mul(thread.0);
        Self { first, last: first.saturating_add(range - 1), next: first, wide: 0 }
    }

    #[inline]
    pub(super) fn next(&mut self) -> u16 {
        let this = self.next;
        self.next = if this >= self.last { self.first } else { this + 1 };
        this
    }

    /// One for a fragment header of IPv6: apart from those of other threads by its upper half.
    pub(super) fn next_wide(&mut self) -> u32 {
        self.wide = self.wide.wrapping_add(1);
        (u32::from(self.first) << 16) | u32::from(self.wide)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_never_share_an_identification_and_use_their_range_in_turn() {
        for threads in [1, 2, 7, 64] {
            let mut seen = std::collections::HashSet::new();
            for thread in 0..threads {
                let mut ids = Identifications::of(ThreadId(thread), threads);
                let mine: Vec<u16> = (0..u16::MAX / threads).map(|_| ids.next()).collect();
                assert_eq!(ids.next(), mine[0], "round again");
                assert!(mine.into_iter().all(|id| seen.insert(id)), "thread {thread} of {threads}");
            }
        }
    }
}
