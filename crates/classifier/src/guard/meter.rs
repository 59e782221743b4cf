//! A rate meter in eight bytes, which implements the generic cell rate algorithm. The algorithm is
//! equivalent to a token bucket, but stores only a single timestamp.
//!
//! The bucket has room for the tokens of one second. The stored value is the time at which the
//! bucket will be full again. Each admitted event moves this time forward by 1/rate of a second. An
//! event is refused if the time would then be more than one second in the future. A stored time of
//! 0, or any other time in the past, therefore means a full bucket. The stored time remains valid
//! if the rate changes.
//!
//! The algorithm is specified in ITU-T I.371, annex A (virtual scheduling).

use crate::Now;

/// The time at which the bucket will be full again, in units of 1/16 ns. The range is 36 years. At
/// 10,000,000 events per second, the rate error is below 0.1 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Meter(u64);

impl Meter {
    /// Admits one event at `now` if the rate does not exceed `rate` events per second. Returns
    /// `false` if the event is refused.
    #[inline]
    pub fn admit(&mut self, rate: u32, now: Now) -> bool {
        self.admit_many(rate, 1, now)
    }

    /// Returns `true` if [`Self::admit`] would admit one event at `now`.
    #[must_use]
    #[inline]
    pub fn would_admit(&self, rate: u32, now: Now) -> bool {
        self.after(rate, 1, now).is_some()
    }

    /// Admits all `count` events, or none of them.
    #[inline]
    pub fn admit_many(&mut self, rate: u32, count: u32, now: Now) -> bool {
        let after = self.after(rate, count, now);
        self.0 = after.unwrap_or(self.0);
        after.is_some()
    }

    /// Returns the state of the meter after `count` events, or `None` if they are refused.
    #[inline]
    fn after(self, rate: u32, count: u32, now: Now) -> Option<u64> {
        let now = units(now);
        // The step is at most one second, so that even a larger request can be admitted when the
        // bucket is full.
        let step = (SECOND / u64::from(rate.max(1))).saturating_mul(count.into()).min(SECOND);
        let start = self.0.max(now);
        (start - now <= SECOND - step).then(|| start.saturating_add(step))
    }
}

#[inline]
fn units(now: Now) -> u64 {
    now.nanos().saturating_mul(UNITS_A_NANO)
}

const UNITS_A_NANO: u64 = 16;
const SECOND: u64 = 1_000_000_000 * UNITS_A_NANO;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NANOS: u64 = 1_000_000_000;

    #[test]
    fn a_second_s_worth_at_once_then_the_rate() {
        let mut meter = Meter::default();
        let burst =
            |meter: &mut Meter, at| (0..1000).filter(|_| meter.admit(10, Now::from_nanos(at))).count();
        assert_eq!(burst(&mut meter, 0), 10);
        assert_eq!(burst(&mut meter, NANOS / 4), 2);
        assert_eq!(burst(&mut meter, NANOS / 2), 3, "half a token was kept");
        assert_eq!(burst(&mut meter, NANOS * 60), 10, "a full bucket holds the tokens of one second");
        assert_eq!(burst(&mut meter, u64::MAX / 64), 10);
    }

    #[test]
    fn the_end_of_time_does_not_overflow() {
        let mut meter = Meter::default();
        assert!(meter.admit(1, Now::from_nanos(u64::MAX)));
        assert!(!meter.admit(1, Now::from_nanos(5)), "a clock that runs backward adds no tokens");
    }

    proptest! {
        /// Compares the meter with a token bucket that counts exact fractions.
        #[test]
        fn agrees_with_a_bucket_of_tokens(
            rate in prop::sample::select(vec![1u32, 2, 4, 5, 10, 50, 100, 125, 1000]),
            steps in prop::collection::vec(prop_oneof![Just(0u64), 0..2_000_000u64, 0..3_000_000_000u64], 1..200),
        ) {
            let (mut meter, mut now) = (Meter::default(), 7);
            let full = u128::from(rate) * u128::from(NANOS);
            let mut tokens = full;
            for step in steps {
                now += step;
                tokens = (tokens + u128::from(step) * u128::from(rate)).min(full);
                let expected = tokens >= u128::from(NANOS);
                if expected {
                    tokens -= u128::from(NANOS);
                }
                prop_assert_eq!(meter.admit(rate, Now::from_nanos(now)), expected);
            }
        }
    }

    #[test]
    fn any_rate_is_kept_to_a_thousandth() {
        for rate in [1u32, 3, 7, 999, 33_331, 999_983, 9_999_991, 10_000_000] {
            let mut meter = Meter::default();
            let at = Now::from_nanos(1_000_000);
            let burst = (0..u64::from(rate) * 2).take_while(|_| meter.admit(rate, at)).count() as u64;
            let least = u64::from(rate);
            assert!(
                (least..=least + least / 1000).contains(&burst),
                "the burst was {burst} events at a rate of {rate} per second"
            );
        }
    }
}
