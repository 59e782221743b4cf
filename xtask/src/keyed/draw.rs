//! Which keys are asked for: evenly, by Zipf, or mostly a few hot ones.
//!
//! In: a distribution, how many keys, a seed. Out: keys by number, the same sequence of each seed. Key 0 is the most popular.
//! Source: Zipf's law with YCSB's exponent 0.99 (Cooper et al., SoCC 2010); xorshift64* (Vigna, 2016).

/// How often each key is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Popularity {
    /// All equally often.
    Even,
    /// Key `n` (from 0) in proportion to `1 / (n + 1)^exponent`.
    Zipf(f64),
    /// The first `keys` take `share` of all requests, equally often each; the others the rest.
    Hot { keys: u32, share: f64 },
}

/// Draws keys at random.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    popularity: Popularity,
    keys: u32,
    /// Of Zipf: the share of keys 0 to `n` together, by `n`.
    cumulative: Vec<f64>,
    state: u64,
}

impl Draw {
    /// Of `keys` keys, at least one and more than are hot; `seed` is not 0.
    pub(crate) fn new(popularity: Popularity, keys: u32, seed: u64) -> Self {
        let cumulative = match popularity {
            Popularity::Zipf(exponent) => cumulative(keys, exponent),
            Popularity::Even | Popularity::Hot { .. } => Vec::new(),
        };
        Self { popularity, keys, cumulative, state: seed }
    }

    /// The next key: its number.
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

    /// A number from 0 to below 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
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

    /// How often each key was drawn.
    fn counts(popularity: Popularity, keys: u32) -> Vec<u32> {
        let mut draw = Draw::new(popularity, keys, 7);
        let mut counts = vec![0; keys as usize];
        (0..DRAWN).for_each(|_| counts[draw.key() as usize] += 1);
        counts
    }

    /// Whether a count is what chance lets it be, five deviations at most from a key's share of all.
    fn is_likely(count: u32, share: f64) -> bool {
        let expected = share * f64::from(DRAWN);
        (f64::from(count) - expected).abs() <= 5.0 * (expected * (1.0 - share)).sqrt()
    }

    #[test]
    fn zipf_s_keys_are_drawn_as_the_formula_says() {
        let keys = 1_000;
        let harmonic: f64 = (1..=keys).map(|rank| 1.0 / f64::from(rank).powf(0.99)).sum();
        for (count, rank) in counts(Popularity::Zipf(0.99), keys).into_iter().zip(1..) {
            let share = 1.0 / f64::from(rank).powf(0.99) / harmonic;
            assert!(is_likely(count, share), "rank {rank}: {count} of {DRAWN}, share {share}");
        }
    }

    #[test]
    fn hot_keys_take_their_share_evenly_and_the_others_the_rest() {
        let counts = counts(Popularity::Hot { keys: 10, share: 0.9 }, 100);
        for (key, count) in counts.into_iter().enumerate() {
            let share = if key < 10 { 0.09 } else { 0.1 / 90.0 };
            assert!(is_likely(count, share), "key {key}: {count}");
        }
    }

    #[test]
    fn even_keys_are_drawn_evenly_and_a_single_one_always() {
        assert!(counts(Popularity::Even, 50).into_iter().all(|count| is_likely(count, 0.02)));
        assert_eq!(counts(Popularity::Even, 1), [DRAWN]);
        assert_eq!(counts(Popularity::Zipf(0.99), 1), [DRAWN]);
    }
}
