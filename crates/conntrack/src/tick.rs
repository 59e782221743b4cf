//! Coarse time in quarter seconds. A tick is 24 bits wide, so that an entry can store the time of
//! its last packet in three bytes. The caller supplies the clock.

use core::time::Duration;

/// The number of ticks per second.
pub const TICKS_PER_SECOND: u32 = 4;

/// A time in quarter seconds since an origin that the caller chooses, modulo 2^24 (48.5 days).
///
/// The times that are passed to one table should not decrease. A time that is up to [`Tick::GRACE`]
/// earlier than the time of an entry is treated as the same time. An even earlier time is
/// interpreted as almost one wrap (48.5 days) later, so that entries expire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tick(u32);

impl Tick {
    /// The tolerance for times that go backward, in ticks (10 s). A time that is earlier than the
    /// time of an entry by at most this much is treated as the same time.
    pub const GRACE: u32 = 10 * TICKS_PER_SECOND;

    /// Returns the tick with this number, modulo 2^24.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number & MASK)
    }

    /// Returns the tick that contains the given millisecond.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        let number = (millis / MILLIS_PER_TICK) & MASK as u64;
        #[expect(clippy::cast_possible_truncation, reason = "masked to 24 bits")]
        Self(number as u32)
    }

    /// Returns the tick that contains the time `since_origin` after the caller's origin.
    #[must_use]
    pub const fn from_duration(since_origin: Duration) -> Self {
        let number = (since_origin.as_millis() / MILLIS_PER_TICK as u128) & MASK as u128;
        #[expect(clippy::cast_possible_truncation, reason = "masked to 24 bits")]
        Self(number as u32)
    }

    /// Returns the number of the tick, which is below 2^24.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns the number of ticks from `earlier` to this tick, even across a wrap. Returns 0 if
    /// `earlier` is later than this tick by at most [`Tick::GRACE`].
    #[inline]
    #[must_use]
    pub const fn since(self, earlier: Self) -> u32 {
        let age = self.0.wrapping_sub(earlier.0) & MASK;
        if age > MASK - Self::GRACE { 0 } else { age }
    }
}

impl Tick {
    /// Returns `true` if this tick is later than `other`, if they are less than half a wrap apart.
    pub(crate) const fn is_later_than(self, other: Self) -> bool {
        let ahead = self.0.wrapping_sub(other.0) & MASK;
        ahead != 0 && ahead <= MASK / 2
    }

    /// Returns the number of ticks from `earlier` to this tick, plus [`Tick::GRACE`]. The result is
    /// below `GRACE` if `earlier` is later than this tick.
    #[inline(always)]
    pub(crate) const fn since_with_grace(self, earlier: Self) -> u32 {
        self.0.wrapping_add(Self::GRACE).wrapping_sub(earlier.0) & MASK
    }
}

/// Converts a duration to ticks, rounded up.
pub(crate) fn ticks_covering(span: Duration) -> u32 {
    u32::try_from(span.as_millis().div_ceil(u128::from(MILLIS_PER_TICK))).unwrap_or(u32::MAX)
}

pub(crate) fn span_of(ticks: u32) -> Duration {
    Duration::from_millis(u64::from(ticks) * MILLIS_PER_TICK)
}

const MILLIS_PER_TICK: u64 = 1_000 / TICKS_PER_SECOND as u64;
const MASK: u32 = (1 << 24) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_fall_into_quarter_seconds_and_wrap_at_24_bits() {
        let wrap_millis = u64::from(MASK) * 250 + 250;
        for (millis, number) in
            [(0, 0), (249, 0), (250, 1), (1_000, 4), (wrap_millis - 1, MASK), (wrap_millis, 0)]
        {
            assert_eq!(Tick::from_millis(millis).number(), number, "{millis}");
            assert_eq!(Tick::from_duration(Duration::from_millis(millis)).number(), number, "{millis}");
        }
    }

    #[test]
    fn an_age_is_right_across_the_wrap() {
        for (this, other) in [(5, 3), (1, MASK), (MASK / 2, 0)] {
            assert!(Tick::new(this).is_later_than(Tick::new(other)), "{this} {other}");
            assert!(!Tick::new(other).is_later_than(Tick::new(this)), "{this} {other}");
        }
        assert!(!Tick::new(5).is_later_than(Tick::new(5)));
        for (now, earlier, age) in [(5, 5, 0), (5, 3, 2), (0, MASK, 1), (3, MASK - 1, 5)] {
            assert_eq!(Tick::new(now).since(Tick::new(earlier)), age, "{now} {earlier}");
        }
    }

    #[test]
    fn a_moment_up_to_ten_seconds_back_is_the_present() {
        for (now, earlier, age) in
            [(3, 4, 0), (3, 43, 0), (3, 44, MASK - 40), (MASK, 39, 0), (MASK - 1, 39, MASK - 40)]
        {
            assert_eq!(Tick::new(now).since(Tick::new(earlier)), age, "{now} {earlier}");
        }
    }

    #[test]
    fn a_span_is_covered_by_whole_ticks() {
        for (millis, ticks) in [(0, 0), (1, 1), (250, 1), (251, 2), (10_000, 40)] {
            assert_eq!(ticks_covering(Duration::from_millis(millis)), ticks, "{millis}");
        }
        assert_eq!(ticks_covering(Duration::MAX), u32::MAX);
    }
}
