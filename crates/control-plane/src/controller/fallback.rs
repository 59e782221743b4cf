//! When a fallback pool takes over, and when it gives back.
//!
//! In: how many backends of each pool serve, the time. Out: the pools whose fallback is called for.
//! It takes over at once when fewer than `below` serve, and gives back once at least `below` have served for `hold` without a
//! break: that is the hysteresis.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use compile::PoolView;

/// What a pool says of its fallback.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) below: u32,
    pub(super) hold: Duration,
}

/// The pools that are not well, and since when they might be.
#[derive(Clone, Debug, Default)]
pub(super) struct Fallbacks {
    /// `Some`: enough have served since then.
    called: BTreeMap<PoolView, Option<Duration>>,
}

impl Fallbacks {
    /// Takes in how many backends of `pool` serve at `now`.
    pub(super) fn observe(&mut self, pool: &PoolView, rule: Rule, serving: usize, now: Duration) {
        let enough = u32::try_from(serving).unwrap_or(u32::MAX) >= rule.below;
        match (enough, self.called.get_mut(pool)) {
            (false, Some(since)) => *since = None,
            (false, None) => {
                log(pool, serving, "the fallback takes over: too few backends of its pool serve");
                self.called.insert(pool.clone(), None);
            }
            (true, Some(since)) => {
                if now.saturating_sub(*since.get_or_insert(now)) >= rule.hold {
                    log(pool, serving, "the pool serves again, its fallback gives back");
                    self.called.remove(pool);
                }
            }
            (true, None) => {}
        }
    }

    /// Forgets pools that have no fallback any more.
    pub(super) fn retain(&mut self, has_fallback: impl Fn(&PoolView) -> bool) {
        self.called.retain(|pool, _| has_fallback(pool));
    }

    /// Whether the time alone may change anything.
    pub(super) fn is_waiting(&self) -> bool {
        self.called.values().any(Option::is_some)
    }

    /// Whether a pool's fallback is wanted.
    pub(super) fn is_called(&self, pool: &PoolView) -> bool {
        self.called.contains_key(pool)
    }

    /// The pools in whose place their fallback is wanted.
    pub(super) fn called(&self) -> BTreeSet<PoolView> {
        self.called.keys().cloned().collect()
    }
}

fn log(pool: &PoolView, serving: usize, what: &str) {
    let vip = pool.vip.as_ref().map(|at| &*at.vip);
    tracing::info!(change = "vip", pool = &*pool.pool, vip, serving, "{what}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(below: u32, hold: u64) -> Rule {
        Rule { below, hold: Duration::from_secs(hold) }
    }

    #[test]
    fn it_takes_over_at_once_and_gives_back_after_the_hold_without_a_break() {
        let (mut fallbacks, pool, rule) =
            (Fallbacks::default(), PoolView::of_all(&"web".into()), rule(2, 30));
        let mut observe = |serving, now| {
            fallbacks.observe(&pool, rule, serving, Duration::from_secs(now));
            !fallbacks.called().is_empty()
        };
        assert!(!observe(2, 0));
        assert!(observe(1, 1));
        assert!(observe(2, 2) && observe(2, 31), "29 s");
        assert!(observe(1, 31), "a break");
        assert!(observe(2, 40) && observe(3, 69));
        assert!(!observe(2, 70));
    }

    proptest! {
        /// Against the words of the documentation, applied to the whole history each time.
        #[test]
        fn agrees_with_a_look_at_the_whole_history(
            steps in prop::collection::vec((0usize..4, 0u64..20), 1..40), below in 1u32..4, hold in 0u64..40,
        ) {
            let (mut fallbacks, pool, rule) = (Fallbacks::default(), PoolView::of_all(&"web".into()), rule(below, hold));
            let (mut history, mut now) = (Vec::new(), 0);
            for (serving, pause) in steps {
                now += pause;
                history.push((now, serving >= below as usize));
                fallbacks.observe(&pool, rule, serving, Duration::from_secs(now));
                // Well: since the last bad look, if any, the good looks that followed span the hold at some point.
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
