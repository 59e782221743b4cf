//! Decides when a pool is replaced by its fallback pool.
//!
//! A fallback is activated immediately when fewer than `below` backends of the pool are in service.
//! To avoid flapping, the fallback is deactivated only after at least `below` backends have been in
//! service without interruption for the time `hold`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use compile::PoolView;

use crate::log_fields;

/// The fallback settings of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) below: u32,
    pub(super) hold: Duration,
}

/// The active fallbacks.
#[derive(Clone, Debug, Default)]
pub(super) struct Fallbacks {
    /// The pools that are currently replaced by their fallback pools. The value is the time since
    /// which the pool has had enough backends in service again, or `None` if the pool still has too
    /// few.
    called: BTreeMap<PoolView, Option<Duration>>,
}

impl Fallbacks {
    /// Updates the fallback of `pool`. `serving` is the number of backends that are in service at
    /// the time `now`.
    pub(super) fn observe(&mut self, pool: &PoolView, rule: Rule, serving: usize, now: Duration) {
        let enough = u32::try_from(serving).unwrap_or(u32::MAX) >= rule.below;
        match (enough, self.called.get_mut(pool)) {
            (false, Some(since)) => *since = None,
            (false, None) => {
                log(pool, serving, true);
                self.called.insert(pool.clone(), None);
            }
            (true, Some(since)) => {
                if now.saturating_sub(*since.get_or_insert(now)) >= rule.hold {
                    log(pool, serving, false);
                    self.called.remove(pool);
                }
            }
            (true, None) => {}
        }
    }

    /// Removes the pools for which `has_fallback` returns `false`, because their fallback is no
    /// longer configured.
    pub(super) fn retain(&mut self, has_fallback: impl Fn(&PoolView) -> bool) {
        self.called.retain(|pool, _| has_fallback(pool));
    }

    /// Returns `true` if the hold time of a fallback is running. In this case, the fallback can end
    /// without a further state change.
    pub(super) fn is_waiting(&self) -> bool {
        self.called.values().any(Option::is_some)
    }

    /// Returns `true` if the fallback of a pool is active.
    pub(super) fn is_called(&self, pool: &PoolView) -> bool {
        self.called.contains_key(pool)
    }

    /// Returns the pools that their fallback pool currently replaces.
    pub(super) fn called(&self) -> BTreeSet<PoolView> {
        self.called.keys().cloned().collect()
    }
}

fn log(pool: &PoolView, serving: usize, active: bool) {
    let vip = pool.vip.as_ref().map(|at| &*at.vip);
    let family = pool.vip.as_ref().map(|at| log_fields::family(at.family));
    let pool = &*pool.pool;
    if active {
        // log: Too few backends of a pool serve, so its fallback pool is used. Check the backends
        // of the pool.
        tracing::info!(change = "vip", pool, vip, family, serving, "fallback pool activated");
    } else {
        // log: Enough backends of a pool serve again, so its fallback pool is no longer used.
        tracing::info!(change = "vip", pool, vip, family, serving, "fallback pool deactivated");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(below: u32, hold: u64) -> Rule {
        Rule { below, hold: Duration::from_secs(hold) }
    }

    #[test]
    fn fallback_activates_immediately_and_ends_after_hold() {
        let (mut fallbacks, pool, rule) =
            (Fallbacks::default(), PoolView::of_all(&"web".into()), rule(2, 30));
        let mut observe = |serving, now| {
            fallbacks.observe(&pool, rule, serving, Duration::from_secs(now));
            !fallbacks.called().is_empty()
        };
        assert!(!observe(2, 0));
        assert!(observe(1, 1));
        assert!(observe(2, 2) && observe(2, 31), "enough backends for 29 s only");
        assert!(observe(1, 31), "the hold time starts again");
        assert!(observe(2, 40) && observe(3, 69));
        assert!(!observe(2, 70));
    }

    proptest! {
        /// Compares the fallback with the documented rules, which the test applies to the whole
        /// history.
        #[test]
        fn fallback_matches_a_model_over_history(
            steps in prop::collection::vec((0usize..4, 0u64..20), 1..40), below in 1u32..4, hold in 0u64..40,
        ) {
            let (mut fallbacks, pool, rule) = (Fallbacks::default(), PoolView::of_all(&"web".into()), rule(below, hold));
            let (mut history, mut now) = (Vec::new(), 0);
            for (serving, pause) in steps {
                now += pause;
                history.push((now, serving >= below as usize));
                fallbacks.observe(&pool, rule, serving, Duration::from_secs(now));
                // The fallback is inactive if the pool has had enough backends for the hold time
                // since the last observation with too few backends.
                let last_bad = history.iter().rposition(|(_, enough)| !enough);
                let called = last_bad.is_some_and(|bad| {
                    let since = history.get(bad + 1).map(|(first, _)| *first);
                    since.is_none_or(|first| now - first < hold)
                });
                prop_assert_eq!(!fallbacks.called().is_empty(), called);
            }
        }
    }
}
