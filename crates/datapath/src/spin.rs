//! Decides how long an idle packet thread polls before it sleeps.
//!
//! Polling avoids the latency of a wake-up, but it uses the processor. [`AdaptiveSpin`] measures
//! the pauses between packets and chooses the polling time with the lowest expected cost. A pause
//! that ends while the thread polls costs its own length. A longer pause costs the polling time
//! plus the price of a wake-up, which the operator sets with `io.idle.prefer`.
//!
//! On a shared processor, polling can delay the programs that would send the next packet. The
//! pauses then last longer than the polling time, no matter how long the thread polls. If polling
//! succeeds less than half as often as the measured pauses predict, the thread stops polling for a
//! number of pauses, which doubles with each further failure.

use std::time::Duration;

/// The polling time of one packet thread, adapted to its recent pauses.
#[derive(Debug)]
pub(crate) struct AdaptiveSpin {
    most: u64,
    wake_up_price: u64,
    pauses: [Pauses; CLASSES],
    /// The number of pauses until the next choice of the polling time.
    until_choice: u32,
    /// The polling time in nanoseconds.
    limit: u64,
    /// Half of the predicted share of successful polling, in 256ths.
    required: i32,
    /// Grows with each success and falls with each failure of polling.
    balance: i32,
    /// The number of pauses in which the thread does not poll.
    suspended: u32,
    last_suspension: u32,
}

/// The recent pauses whose lengths are in one class. Class `i` contains the pauses between 2^(i-1)
/// and 2^i units of 1,024 ns, and class 0 contains shorter pauses.
#[derive(Clone, Copy, Debug, Default)]
struct Pauses {
    count: u64,
    nanos: u64,
}

impl AdaptiveSpin {
    /// Creates the state of a thread that has not measured any pauses yet, and therefore does not
    /// poll. `most` is the longest polling time. `wake_up_price` is the polling time that the
    /// operator accepts for each avoided wake-up.
    pub(crate) fn new(most: Duration, wake_up_price: Duration) -> Self {
        Self {
            most: nanos(most),
            wake_up_price: nanos(wake_up_price),
            pauses: [Pauses::default(); CLASSES],
            until_choice: CHOICE_EVERY,
            limit: 0,
            required: 0,
            balance: 0,
            suspended: 0,
            last_suspension: 0,
        }
    }

    /// Returns the time for which the thread polls in the current pause.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_nanos(self.limit)
    }

    /// Records that work arrived after a pause of this length, and prepares for the next pause.
    pub(crate) fn pause_ended(&mut self, pause: Duration) {
        let pause = nanos(pause);
        let class = &mut self.pauses[class(pause)];
        class.count += 1;
        class.nanos += pause.min(LONGEST);
        if self.suspended > 0 {
            self.suspended -= 1;
            return;
        }
        if self.limit > 0 {
            self.judge(pause < self.limit);
        }
        self.until_choice -= 1;
        if self.until_choice == 0 {
            self.choose();
        }
    }

    /// Compares the result of polling with the prediction.
    fn judge(&mut self, success: bool) {
        self.balance += if success { 256 - self.required } else { -self.required };
        if self.balance >= TRUSTED {
            (self.balance, self.last_suspension) = (TRUSTED, 0);
        } else if self.balance <= -TRUSTED {
            self.last_suspension = (2 * self.last_suspension).clamp(FIRST_SUSPENSION, LONGEST_SUSPENSION);
            self.suspended = self.last_suspension;
            // After the suspension, a few failures are enough to suspend polling again.
            self.balance = -TRUSTED / 2;
            self.limit = 0;
            self.until_choice = 1;
            // Polling has extended these pauses.
            self.pauses = [Pauses::default(); CLASSES];
        }
    }

    /// Chooses the polling time with the lowest expected cost, and halves the weight of all pauses
    /// so far.
    fn choose(&mut self) {
        let all: u64 = self.pauses.iter().map(|class| class.count).sum();
        let (mut best, mut best_cost) = (0, all * self.wake_up_price);
        let (mut limit, mut success) = (0, 0);
        let (mut count, mut nanos) = (0, 0);
        for (number, class) in self.pauses.iter().enumerate() {
            if limit >= self.most {
                break;
            }
            limit = (SHORTEST << number).min(self.most);
            (count, nanos) = (count + class.count, nanos + class.nanos);
            let cost = nanos + (all - count) * (limit + self.wake_up_price);
            if cost < best_cost {
                (best, best_cost, success) = (limit, cost, count);
            }
        }
        self.limit = best;
        self.required = i32::try_from(128 * success / all.max(1)).unwrap_or(128);
        for class in &mut self.pauses {
            class.count /= 2;
            class.nanos /= 2;
        }
        self.until_choice = CHOICE_EVERY;
    }
}

fn class(pause: u64) -> usize {
    let bits = u64::BITS - (pause / SHORTEST).leading_zeros();
    usize::try_from(bits).unwrap_or(CLASSES).min(CLASSES - 1)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The length of the shortest pauses, in nanoseconds.
const SHORTEST: u64 = 1_024;
/// The number of classes. The last class contains all pauses from half a second.
const CLASSES: usize = 21;
/// Longer pauses count as this length, so that sums do not overflow.
const LONGEST: u64 = 1 << 40;
const CHOICE_EVERY: u32 = 32;
const TRUSTED: i32 = 4 * 256;
const FIRST_SUSPENSION: u32 = 64;
const LONGEST_SUSPENSION: u32 = 16_384;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn micros(count: u64) -> Duration {
        Duration::from_micros(count)
    }

    fn balanced() -> AdaptiveSpin {
        AdaptiveSpin::new(micros(200), micros(100))
    }

    /// The result of many pauses: the time spent polling, the other time, and the number of pauses
    /// that ended while the thread polled.
    #[derive(Default)]
    struct Outcome {
        polled: u64,
        pauses: u64,
        successes: u64,
    }

    /// Runs `count` pauses. `length` returns the length of a pause in nanoseconds from its number
    /// and the polling time.
    fn run(spin: &mut AdaptiveSpin, count: u64, mut length: impl FnMut(u64, u64) -> u64) -> Outcome {
        let mut outcome = Outcome::default();
        for number in 0..count {
            let limit = nanos(spin.limit());
            let pause = length(number, limit);
            outcome.polled += pause.min(limit);
            outcome.pauses += pause;
            outcome.successes += u64::from(pause < limit);
            spin.pause_ended(Duration::from_nanos(pause));
        }
        outcome
    }

    #[test]
    fn short_regular_pauses_are_polled() {
        let mut spin = balanced();
        run(&mut spin, 64, |_, _| 77_000);
        let outcome = run(&mut spin, 10_000, |_, _| 77_000);
        assert_eq!(outcome.successes, 10_000);
    }

    #[test]
    fn low_cpu_does_not_poll_longer_than_a_wake_up_costs() {
        let mut spin = AdaptiveSpin::new(micros(200), micros(20));
        run(&mut spin, 64, |_, _| 77_000);
        assert_eq!(run(&mut spin, 10_000, |_, _| 77_000).polled, 0);
    }

    #[test]
    fn long_pauses_are_not_polled() {
        let mut spin = balanced();
        let outcome = run(&mut spin, 10_000, |_, _| 5_000_000);
        assert!(outcome.polled * 200 < outcome.pauses, "polled for {} ns", outcome.polled);
    }

    #[test]
    fn polling_follows_a_change_of_the_pauses() {
        let mut spin = balanced();
        run(&mut spin, 10_000, |_, _| 30_000);
        let slow = run(&mut spin, 10_000, |_, _| 2_000_000);
        assert!(slow.polled < 100 * 200_000, "polled for {} ns", slow.polled);
        run(&mut spin, 5_000, |_, _| 30_000);
        assert_eq!(run(&mut spin, 1_000, |_, _| 30_000).successes, 1_000);
    }

    /// The sender runs on the processor of the thread, so it continues only when the thread sleeps.
    #[test]
    fn polling_that_delays_the_sender_costs_less_than_one_percent() {
        for work in [5_000, 30_000, 90_000] {
            let mut spin = balanced();
            let alone = 100_000 * work;
            let outcome = run(&mut spin, 100_000, |_, limit| limit + work);
            assert!(outcome.pauses * 100 < alone * 101, "{} ns instead of {alone}", outcome.pauses);
        }
    }

    #[test]
    fn polling_resumes_when_the_processor_is_no_longer_shared() {
        let mut spin = balanced();
        run(&mut spin, 100_000, |_, limit| limit + 30_000);
        run(&mut spin, u64::from(2 * LONGEST_SUSPENSION), |_, _| 30_000);
        assert_eq!(run(&mut spin, 1_000, |_, _| 30_000).successes, 1_000);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Polling plus wake-ups cost at most 1.3 times as much as the best fixed polling time, for
        /// pauses that repeat a random distribution.
        #[test]
        fn cost_is_close_to_the_best_fixed_polling_time(
            lengths in prop::collection::vec(100_u64..1_000_000, 1..8),
            seed in any::<u64>(),
        ) {
            let mut state = seed | 1;
            let pauses: Vec<u64> = (0..20_000)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    lengths[(state >> 33) as usize % lengths.len()]
                })
                .collect();
            let cost = |pause: u64, limit: u64| if pause < limit { pause } else { limit + 100_000 };
            let best = (0..=200)
                .map(|limit| pauses.iter().map(|&pause| cost(pause, limit * 1_000)).sum::<u64>())
                .min()
                .unwrap_or(0);
            let mut spin = balanced();
            let mut paid = 0;
            for &pause in &pauses {
                paid += cost(pause, nanos(spin.limit()));
                spin.pause_ended(Duration::from_nanos(pause));
            }
            prop_assert!(paid * 10 <= best * 13 + 10 * 256 * 300_000, "{} instead of {}", paid, best);
        }
    }
}
