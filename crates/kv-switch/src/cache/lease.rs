//! How long a copy may be served, and when it pays to have one.
//!
//! In: the lease of a pool; times in nanoseconds; times to live in seconds. Not here: copies, the clock.
//! Invariant: a copy is served until the lease has passed since its server was asked, and a second less than the server said that it
//! lives: that says whole seconds, and may be one too many.

/// How long a copy is taken for true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease(u64);

impl Lease {
    /// Of so many nanoseconds; at least a millisecond, at most a second.
    #[must_use]
    pub fn from_nanos(nanos: u64) -> Self {
        Self(nanos.clamp(SHORTEST, SECOND))
    }

    /// When a copy that was asked for at `sent` and lives for `ttl` seconds (`None`: for ever) is served no more; `None`: it is never
    /// served.
    #[must_use]
    pub fn until(self, sent: u64, ttl: Option<u32>) -> Option<u64> {
        // Of two seconds one is certain, and no lease is longer.
        let is_certain = ttl.is_none_or(|seconds| seconds > 1);
        is_certain.then(|| sent.saturating_add(self.0))
    }

    /// When a copy of which that was said at `sent` is renewed, so that the answer comes before its end.
    pub(crate) fn renewed_at(self, sent: u64, until: u64) -> u64 {
        until.saturating_sub(until.saturating_sub(sent) / 8)
    }

    /// Requests a second for a key above which it is asked for: four for each that we make.
    pub(crate) fn worth_asking(self) -> u16 {
        self.rate(READS_A_FILL)
    }

    /// Requests a second for a key that pay for ours without help of others.
    pub(crate) fn pays(self) -> u16 {
        self.rate(super::COST)
    }

    fn rate(self, reads: u32) -> u16 {
        u16::try_from(u64::from(reads) * SECOND / self.0).unwrap_or(u16::MAX)
    }

    /// Whether an unchanged version says that the value is. A server that has begun anew counts versions from 1 again, and one that
    /// comes to the same number for the same key takes longer than this.
    pub(crate) const fn trusts_versions(self) -> bool {
        self.0 <= LONGEST_RENEWED
    }
}

/// Reads since it was last asked for that make a key worth asking for.
pub(crate) const READS_A_FILL: u32 = 4;
const SHORTEST: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const LONGEST_RENEWED: u64 = 100_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_ends_with_its_lease_or_a_second_before_its_time() {
        let lease = Lease::from_nanos(10_000_000);
        assert_eq!(lease.until(5, None), Some(10_000_005));
        assert_eq!(lease.until(5, Some(2)), Some(10_000_005));
        for seconds in [0, 1] {
            assert_eq!(lease.until(5, Some(seconds)), None);
        }
        let long = Lease::from_nanos(u64::MAX);
        assert_eq!((long.until(0, Some(2)), long.until(0, None)), (Some(SECOND), Some(SECOND)));
    }

    #[test]
    fn keys_are_asked_for_at_four_reads_and_pay_at_twenty() {
        let lease = |millis: u64| Lease::from_nanos(millis * 1_000_000);
        assert_eq!([10, 50, 1_000].map(|millis| lease(millis).worth_asking()), [400, 80, 4]);
        assert_eq!([10, 1_000].map(|millis| lease(millis).pays()), [2_000, 20]);
        assert_eq!(lease(8).renewed_at(0, 8_000_000), 7_000_000);
        assert!(lease(100).trusts_versions() && !lease(101).trusts_versions());
    }
}
