//! Divides the entries of a table among pools.
//!
//! [`Shares`] limits the number of entries that the requests of one pool occupy. If the servers of
//! a pool do not reply, its requests stay in the table until they time out, and the requests of
//! other pools still get entries. A pool may take an entry if it has at most [`SPARE`] times as
//! many entries as are free. A single busy pool gets its whole limit. Several busy pools get equal
//! shares, and a few entries remain free for other pools.
//!
//! References: Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet
//! Switches", 1998.

/// The number of entries that each pool occupies in a table.
#[derive(Clone, Debug)]
pub struct Shares {
    limit: usize,
    total: usize,
    taken: usize,
    pools: Box<[usize; POOLS]>,
}

impl Shares {
    /// Creates the shares of an empty table in which one pool may occupy at most `limit` entries.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let total = limit.saturating_add(limit.div_ceil(SPARE));
        Self { limit, total, taken: 0, pools: Box::new([0; POOLS]) }
    }

    /// Returns the number of entries of the table, which is one and a half times the limit of a
    /// pool.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.total
    }

    /// Takes `count` entries for a pool. Returns `false` if the pool or the table has no room for
    /// them. Two pools whose numbers differ by a multiple of 256 share one limit.
    #[must_use]
    pub fn take(&mut self, pool: u32, count: usize) -> bool {
        let Some(left) = self.total.checked_sub(self.taken + count) else { return false };
        let Some(own) = self.pools.get_mut(pool as usize % POOLS) else { return false };
        if *own + count > self.limit || *own + count > SPARE * left {
            return false;
        }
        *own += count;
        self.taken += count;
        true
    }

    /// Frees `count` entries that the pool obtained from [`Self::take`].
    pub fn give(&mut self, pool: u32, count: usize) {
        let Some(own) = self.pools.get_mut(pool as usize % POOLS) else { return };
        debug_assert!(*own >= count && self.taken >= count, "entries must not be freed twice");
        *own = own.saturating_sub(count);
        self.taken = self.taken.saturating_sub(count);
    }
}

/// The number of entries that a pool may have for each free entry.
const SPARE: usize = 2;
const POOLS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes entries for a pool until the pool's limit is reached, and returns the number of
    /// entries taken.
    fn take_all(shares: &mut Shares, pool: u32) -> usize {
        std::iter::from_fn(|| shares.take(pool, 1).then_some(())).count()
    }

    #[test]
    fn shares_single_pool_gets_its_whole_limit() {
        for limit in [0, 1, 4, 7, 8, 9, 1_024, 8_192] {
            let mut shares = Shares::new(limit);
            assert_eq!(take_all(&mut shares, 3), limit);
            assert!(shares.total() <= limit + limit / 2 + 1);
            shares.give(3, limit);
            assert_eq!(take_all(&mut shares, 4), limit);
        }
    }

    #[test]
    fn shares_greedy_pools_leave_room_for_others() {
        let mut shares = Shares::new(1_024);
        let all: usize = (0..5).map(|pool| take_all(&mut shares, pool)).sum();
        assert!(take_all(&mut shares, 5) > 0 && all < shares.total());
        // As entries become free, greedy pools get equal shares.
        let mut shares = Shares::new(1_024);
        let mut have = [take_all(&mut shares, 0), take_all(&mut shares, 1)];
        for _ in 0..2_000 {
            for (pool, own) in (0..).zip(&mut have) {
                shares.give(pool, 1);
                *own -= 1;
            }
            for (pool, own) in (0..).zip(&mut have) {
                *own += take_all(&mut shares, pool);
            }
        }
        assert!(have.iter().all(|own| (560..=660).contains(own)), "{have:?}");
    }

    #[test]
    fn shares_several_entries_are_taken_together_or_not() {
        let mut shares = Shares::new(16);
        assert!(shares.take(0, 10) && !shares.take(0, 7) && shares.take(0, 6) && !shares.take(0, 1));
        shares.give(0, 16);
        assert_eq!(take_all(&mut shares, 256), 16, "pools 0 and 256 share one limit");
    }
}
