//! Generators of identifications for IPv4 headers and IPv6 fragment headers. Each thread has its
//! own generator.

/// A generator of identifications for one thread. The generators of different threads use disjoint
/// ranges.
///
/// # References
/// RFC 6864 §4.3 forbids the reuse of an identification while a fragmentable packet with the same
/// identification may still be in the network. RFC 8200 §4.5 has the same rule for IPv6.
#[derive(Debug)]
pub struct Identifications {
    first: u16,
    last: u16,
    next: u16,
    wide: u16,
}

impl Identifications {
    /// Creates the generator for the thread with index `thread`, where `threads` is the number of
    /// threads. The range of each thread has `65_535 / threads` IPv4 identifications.
    #[must_use]
    pub fn of(thread: u16, threads: u16) -> Self {
        let range = (u16::MAX / threads.max(1)).max(1);
        let first = range.wrapping_mul(thread);
        Self { first, last: first.saturating_add(range - 1), next: first, wide: 0 }
    }

    /// Returns the next identification for an IPv4 header. After the last value of its range, the
    /// generator starts again with the first.
    #[inline]
    pub fn next_v4(&mut self) -> u16 {
        let this = self.next;
        self.next = if this >= self.last { self.first } else { this + 1 };
        this
    }

    /// Returns the next identification for an IPv6 fragment header. The upper 16 bits identify the
    /// thread. The lower 16 bits repeat after 65,536 values.
    #[inline]
    pub fn next_v6(&mut self) -> u32 {
        self.wide = self.wide.wrapping_add(1);
        (u32::from(self.first) << 16) | u32::from(self.wide)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_use_disjoint_ranges_of_identifications() {
        for threads in [1, 2, 7, 64] {
            let mut seen = std::collections::HashSet::new();
            for thread in 0..threads {
                let mut ids = Identifications::of(thread, threads);
                let mine: Vec<u16> = (0..u16::MAX / threads).map(|_| ids.next_v4()).collect();
                assert_eq!(ids.next_v4(), mine[0], "round again");
                assert!(mine.into_iter().all(|id| seen.insert(id)), "thread {thread} of {threads}");
            }
        }
    }
}
