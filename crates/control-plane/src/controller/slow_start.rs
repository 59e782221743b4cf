//! Slow start: the weight of a recovered pool member increases in four steps over the `slow_start`
//! time of its pool.
//!
//! The number of steps is small, so tables change rarely and each step moves few flows.

use std::collections::HashMap;
use std::time::Duration;

use compile::SlotKey;

/// The pool members in slow start.
#[derive(Clone, Debug, Default)]
pub(super) struct SlowStart {
    since: HashMap<SlotKey, (Duration, Duration)>,
    /// `true` once all pool members have had a first check result. Only pool members that come up
    /// after this time go through slow start.
    pub(super) settled: bool,
}

impl SlowStart {
    /// Starts the slow start of a pool member at `now`. `over` is the duration of the slow start.
    pub(super) fn begin(&mut self, key: SlotKey, now: Duration, over: Duration) {
        if !over.is_zero() {
            self.since.insert(key, (now, over));
        }
    }

    /// Removes the pool members for which `serves` returns `false`.
    pub(super) fn retain(&mut self, serves: impl Fn(&SlotKey) -> bool) {
        self.since.retain(|key, _| serves(key));
    }

    /// Returns the weight of each pool member in slow start, in quarters of its full weight (1 to
    /// 3). Pool members that have completed slow start are removed.
    pub(super) fn quarters(&mut self, now: Duration) -> HashMap<SlotKey, u8> {
        let quarter = |(since, over): &(Duration, Duration)| {
            let passed = now.saturating_sub(*since).as_nanos();
            u8::try_from((passed * 4 / over.as_nanos().max(1)).min(4)).unwrap_or(4)
        };
        self.since.retain(|_, ramp| quarter(ramp) < 4);
        // Slow start begins with a quarter of the pool member's weight and ends with the full
        // weight.
        self.since.iter().map(|(key, ramp)| (key.clone(), quarter(ramp).max(1))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_increases_by_quarters() {
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
