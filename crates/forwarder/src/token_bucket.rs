//! A rate limit for what is rare: answers in place.

use crate::Now;

/// `rate` a second, with bursts of as many.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    rate: u64,
    /// In billionths of a token, so that a nanosecond is worth `rate` of them.
    level: u64,
    last: Now,
}

impl TokenBucket {
    pub(crate) fn new(rate: u32) -> Self {
        let rate = u64::from(rate);
        Self { rate, level: rate * TOKEN, last: Now::default() }
    }

    /// Takes one token, if there is one.
    pub(crate) fn take(&mut self, now: Now) -> bool {
        let passed = now.nanos().saturating_sub(self.last.nanos());
        self.last = self.last.max(now);
        self.level = self.level.saturating_add(passed.saturating_mul(self.rate)).min(self.rate * TOKEN);
        if self.level < TOKEN {
            return false;
        }
        self.level -= TOKEN;
        true
    }
}

const TOKEN: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_the_rate_then_the_rate() {
        let mut bucket = TokenBucket::new(10);
        let start = Now::from_nanos(5);
        assert_eq!((0..100).filter(|_| bucket.take(start)).count(), 10);
        let later = Now::from_nanos(5 + 250_000_000);
        assert_eq!((0..100).filter(|_| bucket.take(later)).count(), 2);
        let much_later = Now::from_nanos(u64::MAX);
        assert_eq!((0..100).filter(|_| bucket.take(much_later)).count(), 10);
    }

    #[test]
    fn a_clock_that_goes_back_gives_nothing() {
        let mut bucket = TokenBucket::new(1);
        assert!(bucket.take(Now::from_nanos(9_000_000_000)));
        assert!(!bucket.take(Now::from_nanos(1)));
        assert!(!bucket.take(Now::from_nanos(9_000_000_001)));
    }
}
