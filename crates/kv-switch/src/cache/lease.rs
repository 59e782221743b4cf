//! The lease of a cached value, which limits how long the value may be served.
//!
//! Times are in nanoseconds, and times to live are in seconds. A lease starts when the fetch of the
//! value is sent. Values with a time to live of one second or less are not served, because servers
//! round to whole seconds and may report up to one second too much.

/// The time for which a cached value may be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease(u32);

impl Lease {
    /// Creates a lease of `nanos` nanoseconds. Values outside the range from one millisecond to one
    /// second are clamped.
    #[must_use]
    pub fn from_nanos(nanos: u64) -> Self {
        Self(u32::try_from(nanos.clamp(SHORTEST, SECOND)).unwrap_or(u32::MAX))
    }

    /// Returns the time at which a cached value must no longer be served. `sent` is the time when
    /// its fetch was sent. `ttl` is its time to live in seconds, or `None` if the value does not
    /// expire. Returns `None` if the value must not be served at all.
    #[must_use]
    pub fn until(self, sent: u64, ttl: Option<u32>) -> Option<u64> {
        // If the server reports 2 seconds, the actual time to live is at least 1 second, which is
        // the longest lease.
        let is_certain = ttl.is_none_or(|seconds| seconds > 1);
        is_certain.then(|| sent.saturating_add(self.0.into()))
    }

    /// Returns the time at which a cached value is to be renewed, early enough for the answer to
    /// arrive before the lease ends.
    pub(crate) fn renewed_at(self, until: u64) -> u64 {
        until.saturating_sub(u64::from(self.0 / 8))
    }

    /// Returns the number of reads per second above which it is worthwhile to fetch a key. At this
    /// rate, each fetched value answers four reads.
    pub(crate) fn worth_asking(self) -> u16 {
        self.rate(READS_A_FILL)
    }

    /// Returns the read rate, in reads per second, above which the hits of a key earn enough
    /// credits for its own fetches.
    pub(crate) fn pays(self) -> u16 {
        self.rate(super::COST)
    }

    fn rate(self, reads: u32) -> u16 {
        u16::try_from(u64::from(reads) * SECOND / u64::from(self.0)).unwrap_or(u16::MAX)
    }

    /// Returns `true` if an unchanged version is accepted as proof of an unchanged value. After a
    /// restart, a server counts versions from 1 again, so a new value could get the version of the
    /// cached value. During a lease of at most 100 ms, such a coincidence is so unlikely that
    /// versions are trusted.
    pub(crate) const fn trusts_versions(self) -> bool {
        self.0 <= LONGEST_RENEWED
    }
}

/// The number of reads since the last fetch that make another fetch of the key worthwhile.
pub(crate) const READS_A_FILL: u32 = 4;
const SHORTEST: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const LONGEST_RENEWED: u32 = 100_000_000;

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
        assert_eq!(lease(8).renewed_at(8_000_000), 7_000_000);
        assert!(lease(100).trusts_versions() && !lease(101).trusts_versions());
    }
}
