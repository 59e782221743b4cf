//! Slow start: a membership that came up takes its weight in four quarters over its pool's time.
//!
//! In: which membership came up, its pool's time, the time. Out: the quarters that each has. Four steps and no more, so that
//! tables change seldom, and each moves only the flows that the step needs.

use std::collections::HashMap;
use std::time::Duration;

use compile::SlotKey;

/// Those on their way up.
#[derive(Clone, Debug, Default)]
pub(super) struct SlowStart {
    since: HashMap<SlotKey, (Duration, Duration)>,
    /// All memberships had a first verdict once: from now on a newcomer starts slowly.
    pub(super) settled: bool,
}

impl SlowStart {
    /// A membership came up at `now` and takes `over` to its full weight.
    pub(super) fn begin(&mut self, key: SlotKey, now: Duration, over: Duration) {
        if !over.is_zero() {
            self.since.insert(key, (now, over));
        }
    }

    /// It no longer serves, or is no longer there.
    pub(super) fn retain(&mut self, serves: impl Fn(&SlotKey) -> bool) {
        self.since.retain(|key, _| serves(key));
    }

    /// Quarters, 1 to 3, of those that have not arrived at `now`; the others are forgotten.
    pub(super) fn quarters(&mut self, now: Duration) -> HashMap<SlotKey, u8> {
        let quarter = |(since, over): &(Duration, Duration)| {
            let passed = now.saturating_sub(*since).as_nanos();
            u8::try_from((passed * 4 / over.as_nanos().max(1)).min(4)).unwrap_or(4)
        };
        self.since.retain(|_, ramp| quarter(ramp) < 4);
        // The first quarter is there from the start; the whole from the end of the time on.
        self.since.iter().map(|(key, ramp)| (key.clone(), quarter(ramp).max(1))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quarters_come_one_after_the_other_and_end_with_the_whole() {
        let key =
            SlotKey { pool: "web".into(), backend: "b1".into(), address: [192, 0, 2, 1].into(), vip: None };
        let mut slow = SlowStart::default();
        slow.begin(key.clone(), Duration::from_secs(100), Duration::from_secs(20));
        let mut at = |seconds| slow.quarters(Duration::from_secs(seconds)).get(&key).copied();
        assert_eq!(
            [100, 104, 109, 110, 115, 119, 120, 121].map(&mut at),
            [Some(1), Some(1), Some(1), Some(2), Some(3), Some(3), None, None]
        );
        slow.begin(key.clone(), Duration::from_secs(200), Duration::from_secs(20));
        slow.retain(|_| false);
        assert!(slow.quarters(Duration::from_secs(201)).is_empty());
        slow.begin(key, Duration::from_secs(300), Duration::ZERO);
        assert!(slow.quarters(Duration::from_secs(300)).is_empty());
    }
}
