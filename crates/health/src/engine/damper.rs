//! Limits how often the weight of a target changes.
//!
//! Each weight change requires a table rebuild. A weight therefore changes at most once in each
//! period of the wall clock. The periods start at the same times on all machines, so machines that
//! get similar answers change their tables at nearly the same time. A drain is not delayed.

use std::time::Duration;

use crate::Advice;

/// The last published advice for one target.
#[derive(Debug, Default)]
pub(super) struct Damper {
    published: Option<Advice>,
    /// The number of the period in which the weight was published.
    period: u64,
}

impl Damper {
    /// Returns the advice to publish, or `None` if nothing changes now. `clock` is the time since
    /// the Unix epoch.
    pub(super) fn take(&mut self, new: Advice, clock: Duration) -> Option<Advice> {
        let period = clock.as_secs() / PERIOD_SECONDS;
        let next = match self.published {
            // An agent that drains does not report a weight.
            Some(old) if new.drains || period == self.period => Advice { tenths: old.tenths, ..new },
            _ => new,
        };
        if self.published == Some(next) {
            return None;
        }
        if self.published.is_none_or(|old| old.tenths != next.tenths) {
            self.period = period;
        }
        self.published = Some(next);
        self.published
    }

    pub(super) fn published(&self) -> Option<Advice> {
        self.published
    }
}

const PERIOD_SECONDS: u64 = 30;

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(drains: bool, tenths: u8) -> Advice {
        Advice { drains, tenths }
    }

    #[test]
    fn weight_changes_once_per_period_and_drain_at_once() {
        let mut damper = Damper::default();
        let mut at = |seconds, drains, tenths| {
            let published = damper.take(advice(drains, tenths), Duration::from_secs(seconds));
            published.map(|advice| (advice.drains, advice.tenths))
        };
        assert_eq!(at(60, false, 10), Some((false, 10)), "the first answer applies at once");
        assert_eq!(at(61, false, 5), None);
        assert_eq!(at(62, true, 5), Some((true, 10)), "only the drain applies at once");
        assert_eq!(at(89, true, 5), None);
        assert_eq!(at(90, true, 5), None, "a drain keeps the weight");
        assert_eq!(at(91, false, 6), Some((false, 6)), "the next period");
        assert_eq!(at(119, false, 5), None);
        assert_eq!(at(121, false, 7), Some((false, 7)), "later in the next period");
        assert_eq!(at(122, false, 8), None);
        assert_eq!(at(30, false, 8), Some((false, 8)), "the clock was set back");
    }
}
