//! Computes the wait before the next connection attempt to a peer, with exponential backoff and
//! jitter.
//!
//! The result depends only on the number of consecutive failures and a random number, not on the
//! clock.
//!
//! See RFC 4271 §10 (jitter of 0.75 to 1) and §8.2.1 (DampPeerOscillations).

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Returns the wait after `failures` consecutive failures. The wait starts at `first`, doubles with
/// each further failure up to `longest`, and is then randomly reduced by up to a quarter. `chance`
/// is the random number that determines this reduction.
pub(crate) fn wait(failures: u32, first: Duration, longest: Duration, chance: u64) -> Duration {
    let doubled = 2_u32.checked_pow(failures.saturating_sub(1)).and_then(|factor| first.checked_mul(factor));
    let whole = doubled.map_or(longest, |wait| wait.min(longest));
    let cut = u32::try_from(chance % JITTER_STEPS).unwrap_or(0);
    whole - whole / 4 * cut / JITTER_STEPS_U32
}

/// Returns a pseudorandom number for `n`. A random `seed` makes the numbers differ between
/// processes.
pub(crate) fn chance(seed: &RandomState, n: u64) -> u64 {
    seed.hash_one(n)
}

const JITTER_STEPS: u64 = 1024;
const JITTER_STEPS_U32: u32 = 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIRST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(60);

    #[test]
    fn the_wait_doubles_up_to_the_longest() {
        let whole = |failures| wait(failures, FIRST, LONGEST, 0).as_secs();
        assert_eq!([1, 2, 3, 4, 5, 6, 7, 8, 40].map(whole), [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }

    proptest! {
        #[test]
        fn chance_takes_at_most_a_quarter(failures in 1..100_u32, chance: u64) {
            let whole = wait(failures, FIRST, LONGEST, 0);
            let less = wait(failures, FIRST, LONGEST, chance);
            prop_assert!(less <= whole && less >= whole * 3 / 4, "{less:?} of {whole:?}");
        }
    }

    #[test]
    fn waits_of_different_chance_differ() {
        let seed = RandomState::new();
        let waits: std::collections::BTreeSet<_> =
            (0..100).map(|n| wait(3, FIRST, LONGEST, chance(&seed, n))).collect();
        assert!(waits.len() > 50, "{waits:?}");
    }
}
