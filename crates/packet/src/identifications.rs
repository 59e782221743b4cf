//! Identifications for the IPv4 packets and IPv6 fragments that several threads write at once.

/// Identifications of one thread, from a range that no other thread of the process uses.
///
/// # Source
/// RFC 6864 §4.3: an identification is not used again while a packet that may be fragmented has it. RFC 8200 §4.5.
#[derive(Debug)]
pub struct Identifications {
    first: u16,
    last: u16,
    next: u16,
    wide: u16,
}

impl Identifications {
    /// Those of the thread with the number `thread`, of `threads`: `65_535 / threads` of IPv4.
    #[must_use]
    pub fn of(thread: u16, threads: u16) -> Self {
        let range = (u16::MAX / threads.max(1)).max(1);
        let first = range.wrapping_mul(thread);
        Self { first, last: first.saturating_add(range - 1), next: first, wide: 0 }
    }

    /// One for an IPv4 header; the first again once the range is used up.
    #[inline]
    pub fn next_v4(&mut self) -> u16 {
        let this = self.next;
        self.next = if this >= self.last { self.first } else { this + 1 };
        this
    }

    /// One for a fragment header of IPv6: apart from those of other threads by its upper half, again after 65,536.
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
    fn threads_never_share_an_identification_and_use_their_range_in_turn() {
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
