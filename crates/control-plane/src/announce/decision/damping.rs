//! Flap damping for one VIP and one cause of withdrawals.
//!
//! Each withdrawal adds 1 to a penalty, which halves in the configured half-life. The hold-down
//! after a withdrawal doubles with each full point of the penalty, up to the configured maximum.
//! Causes are independent: the hold-down of one cause ends when this cause has been absent for the
//! hold-down, regardless of other causes.
//!
//! Reference: RFC 2439 §4.2, which uses a penalty with a half-life for routes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Times;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Damping {
    /// The penalty at the time of the last withdrawal.
    penalty: f64,
    withdrawn: Duration,
    hold: Option<Hold>,
}

/// A hold-down that has not ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Hold {
    wait: Duration,
    /// The time at which the cause ended, or `None` while the cause is present.
    absent: Option<Duration>,
}

impl Damping {
    /// Returns `true` from a withdrawal for this cause until the VIP is announced again.
    pub(super) fn is_held(&self) -> bool {
        self.hold.is_some()
    }

    /// Records whether the cause is absent at `now`.
    pub(super) fn observe(&mut self, is_absent: bool, now: Duration) {
        if let Some(hold) = &mut self.hold {
            hold.absent = is_absent.then(|| hold.absent.unwrap_or(now));
        }
    }

    /// Records a withdrawal for this cause, and starts the hold-down.
    pub(super) fn withdrawn(&mut self, times: Times, now: Duration) {
        let Times { hold_down, longest, half_life, .. } = times;
        let rest = if half_life.is_zero() {
            0.0
        } else {
            let passed = now.saturating_sub(self.withdrawn).as_secs_f64() / half_life.as_secs_f64();
            self.penalty * (-passed).exp2()
        };
        // A higher penalty would exceed the longest hold-down, and would only take longer to decay.
        let doublings = (longest.as_secs_f64() / hold_down.as_secs_f64()).log2();
        self.penalty = (rest + 1.0).min(1.0 + doublings.max(0.0));
        self.withdrawn = now;
        self.hold = Some(Hold { wait: wait(self.penalty, times), absent: None });
    }

    /// Shortens a hold-down in progress after a reload that shortens `hold_down` or
    /// `max_hold_down`. A reload never extends the hold-down.
    pub(super) fn shorten(&mut self, times: Times) {
        let penalty = self.penalty;
        if let Some(hold) = &mut self.hold {
            hold.wait = hold.wait.min(wait(penalty, times));
        }
    }

    /// Returns the remaining hold-down.
    pub(super) fn left(&self, now: Duration) -> Duration {
        let Some(hold) = &self.hold else { return Duration::ZERO };
        hold.wait.saturating_sub(hold.absent.map_or(Duration::ZERO, |absent| now.saturating_sub(absent)))
    }

    /// Ends the hold-down, because the VIP is announced. The penalty remains.
    pub(super) fn announced(&mut self) {
        self.hold = None;
    }
}

/// Returns the hold-down for a penalty.
fn wait(penalty: f64, Times { hold_down, longest, .. }: Times) -> Duration {
    // With a hold-down of zero, the maximum is not a number, and the penalty is not limited.
    if hold_down.is_zero() {
        return Duration::ZERO;
    }
    let most = longest.max(hold_down);
    // While the hold-down was zero, the penalty may have grown until the product does not fit into
    // a duration.
    let product = Duration::try_from_secs_f64(hold_down.as_secs_f64() * (penalty - 1.0).exp2());
    product.map_or(most, |wait| wait.min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raised_hold_down_after_many_withdrawals_keeps_the_shorter_wait() {
        let day = Duration::from_secs(86_400);
        let none = Times { half_life: day, longest: day, ..Times::default() };
        let mut damping = Damping::default();
        (0..2_000).for_each(|second| damping.withdrawn(none, Duration::from_secs(second)));
        let raised = Times { hold_down: Duration::from_secs(10), ..none };
        damping.shorten(raised);
        assert_eq!(damping.left(Duration::from_secs(2_000)), Duration::ZERO);
        assert_eq!(wait(damping.penalty, raised), day);
    }
}
