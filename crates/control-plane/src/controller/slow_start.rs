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
    ramps: HashMap<SlotKey, Ramp>,
    /// `true` once all pool members have had a first check result. Only pool members that come up
    /// after this time go through slow start.
    pub(super) settled: bool,
}

/// The slow start of one pool member.
#[derive(Clone, Copy, Debug)]
struct Ramp {
    /// The time that has passed, without the time in which the pool member got no new flows.
    passed: Duration,
    /// The time at which `passed` was last updated.
    updated: Duration,
    /// The duration of the slow start.
    over: Duration,
}

impl SlowStart {
    /// Starts the slow start of a pool member at `now`. `over` is the duration of the slow start.
    pub(super) fn begin(&mut self, key: SlotKey, now: Duration, over: Duration) {
        if !over.is_zero() {
            self.ramps.insert(key, Ramp { passed: Duration::ZERO, updated: now, over });
        }
    }

    /// Removes the pool members for which `is_up` returns `false`.
    pub(super) fn retain(&mut self, is_up: impl Fn(&SlotKey) -> bool) {
        self.ramps.retain(|key, _| is_up(key));
    }

    /// Returns the weight of each pool member in slow start, in quarters of its full weight (1 to
    /// 3). Memberships that have completed slow start are removed. Slow start is paused while
    /// `serves` returns `false`, because a drained backend gets no new flows.
    pub(super) fn quarters(
        &mut self,
        now: Duration,
        serves: impl Fn(&SlotKey) -> bool,
    ) -> HashMap<SlotKey, u8> {
        for (key, ramp) in &mut self.ramps {
            if serves(key) {
                ramp.passed += now.saturating_sub(ramp.updated);
            }
            ramp.updated = now;
        }
        let quarter = |ramp: &Ramp| {
            let quarters = ramp.passed.as_nanos() * 4 / ramp.over.as_nanos().max(1);
            u8::try_from(quarters.min(4)).unwrap_or(4)
        };
        self.ramps.retain(|_, ramp| quarter(ramp) < 4);
        // Slow start begins with a quarter of the pool member's weight and ends with the full
        // weight.
        self.ramps.iter().map(|(key, ramp)| (key.clone(), quarter(ramp).max(1))).collect()
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
        let mut at = |seconds| slow.quarters(Duration::from_secs(seconds), |_| true).get(&key).copied();
        assert_eq!(
            [100, 104, 109, 110, 115, 119, 120, 121].map(&mut at),
            [Some(1), Some(1), Some(1), Some(2), Some(3), Some(3), None, None]
        );
        slow.begin(key.clone(), Duration::from_secs(200), Duration::from_secs(20));
        slow.retain(|_| false);
        assert!(slow.quarters(Duration::from_secs(201), |_| true).is_empty());
        slow.begin(key, Duration::from_secs(300), Duration::ZERO);
        assert!(slow.quarters(Duration::from_secs(300), |_| true).is_empty());
    }
}
