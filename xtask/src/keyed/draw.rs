//! Draws random keys: all with the same probability, by Zipf's law, or mostly from a few hot keys.
//!
//! The same seed produces the same sequence of keys in each run. Key 0 is the most popular key.
//!
//! References: Zipf's law with YCSB's exponent 0.99 (Cooper et al., SoCC 2010); xorshift64* (Vigna,
//! 2016).

/// The probability distribution of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Popularity {
    /// All keys have the same probability.
    Even,
    /// The probability of key `n`, counted from 0, is proportional to `1 / (n + 1)^exponent`.
    Zipf(f64),
    /// The first `keys` keys together get the fraction `share` of all requests, with the same
    /// probability for each of these keys. The remaining requests are spread evenly over all other
    /// keys.
    Hot { keys: u32, share: f64 },
}

/// A random generator that returns indices of keys.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    popularity: Popularity,
    keys: u32,
    /// The cumulative probability of keys 0 to `n` at index `n`, used only for Zipf.
    cumulative: Vec<f64>,
    state: u64,
}

impl Draw {
    /// Creates a generator for `keys` keys. This number must be at least 1 and larger than the
    /// number of hot keys. The `seed` must not be 0.
    pub(crate) fn new(popularity: Popularity, keys: u32, seed: u64) -> Self {
        let cumulative = match popularity {
            Popularity::Zipf(exponent) => cumulative(keys, exponent),
            Popularity::Even | Popularity::Hot { .. } => Vec::new(),
        };
        Self { popularity, keys, cumulative, state: seed }
    }

    /// Returns the index of the next key.
    pub(crate) fn key(&mut self) -> u32 {
        match self.popularity {
            Popularity::Even => self.below(self.keys),
            Popularity::Zipf(_) => {
                let at = self.part();
                let place = self.cumulative.partition_point(|&share| share <= at);
                u32::try_from(place).map_or(self.keys - 1, |place| place.min(self.keys - 1))
            }
            Popularity::Hot { keys, share } => {
                if self.part() < share {
                    self.below(keys)
                } else {
                    keys + self.below(self.keys - keys)
                }
            }
        }
    }

    /// Returns a random number that is at least 0 and less than 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact in an f64")]
    pub(crate) fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, bound: u32) -> u32 {
        let product = (self.next() >> 32) * u64::from(bound);
        u32::try_from(product >> 32).unwrap_or_default()
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

fn cumulative(keys: u32, exponent: f64) -> Vec<f64> {
    let mut sum = 0.0;
    let mut sums: Vec<f64> = (1..=keys)
        .map(|rank| {
            sum += f64::from(rank).powf(-exponent);
            sum
        })
        .collect();
    sums.iter_mut().for_each(|share| *share /= sum);
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWN: u32 = 400_000;

    /// Returns how many times each key was drawn.
    fn counts(popularity: Popularity, keys: u32) -> Vec<u32> {
        let mut draw = Draw::new(popularity, keys, 7);
        let mut counts = vec![0; keys as usize];
        (0..DRAWN).for_each(|_| counts[draw.key() as usize] += 1);
        counts
    }

    /// Returns `true` if the count differs from its expected value by at most five standard
    /// deviations.
    fn is_likely(count: u32, share: f64) -> bool {
        let expected = share * f64::from(DRAWN);
        (f64::from(count) - expected).abs() <= 5.0 * (expected * (1.0 - share)).sqrt()
    }

    #[test]
    fn zipf_keys_follow_the_formula() {
        let keys = 1_000;
        let harmonic: f64 = (1..=keys).map(|rank| 1.0 / f64::from(rank).powf(0.99)).sum();
        for (count, rank) in counts(Popularity::Zipf(0.99), keys).into_iter().zip(1..) {
            let share = 1.0 / f64::from(rank).powf(0.99) / harmonic;
            assert!(is_likely(count, share), "rank {rank}: {count} of {DRAWN}, share {share}");
        }
    }

    #[test]
    fn hot_keys_get_their_share_and_the_others_the_rest() {
        let counts = counts(Popularity::Hot { keys: 10, share: 0.9 }, 100);
        for (key, count) in counts.into_iter().enumerate() {
            let share = if key < 10 { 0.09 } else { 0.1 / 90.0 };
            assert!(is_likely(count, share), "key {key}: {count}");
        }
    }

    #[test]
    fn even_keys_are_drawn_evenly() {
        assert!(counts(Popularity::Even, 50).into_iter().all(|count| is_likely(count, 0.02)));
        assert_eq!(counts(Popularity::Even, 1), [DRAWN]);
        assert_eq!(counts(Popularity::Zipf(0.99), 1), [DRAWN]);
    }
}
