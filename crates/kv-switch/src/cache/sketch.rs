//! Estimates how often keys are requested, in a fixed amount of memory.
//!
//! [`Sketch`] is a count-min sketch with conservative update. All cells are halved every second. An
//! estimate is never below the true count if that count is halved every second as well. An estimate
//! is too high only if the key shares each of its four cells with more frequent keys.
//!
//! The sketch is described in Cormode and Muthukrishnan, *The Count-Min Sketch*, 2005. The
//! conservative update is described in Estan and Varghese, SIGCOMM 2002, §3.2.

#[derive(Debug)]
pub(crate) struct Sketch {
    /// The cells of all rows, stored one row after the other.
    cells: Box<[u16]>,
    width: usize,
    halved: u64,
}

impl Sketch {
    /// Creates a sketch with `width` cells per row. `width` must be a power of two.
    pub(crate) fn new(width: usize) -> Self {
        Self { cells: vec![0; width * ROWS].into(), width, halved: 0 }
    }

    /// Counts one read of a key and returns the estimated count.
    ///
    /// # Cost
    /// Four loads. Once per second, the function also halves all cells.
    pub(crate) fn count(&mut self, now: u64, hash: u64) -> u16 {
        self.halve(now);
        let places = self.places(hash);
        let least = places.iter().filter_map(|place| self.cells.get(*place)).min().copied().unwrap_or(0);
        let count = least.saturating_add(1);
        for place in places {
            if let Some(cell) = self.cells.get_mut(place) {
                *cell = count.max(*cell);
            }
        }
        count
    }

    fn halve(&mut self, now: u64) {
        let seconds = now.saturating_sub(self.halved) / SECOND;
        if seconds > 0 {
            self.halved = now - (now - self.halved) % SECOND;
            let by = u32::try_from(seconds.min(u64::from(u16::BITS) - 1)).unwrap_or(0);
            self.cells.iter_mut().for_each(|cell| *cell >>= by);
        }
    }

    /// Returns the index of the key's cell in each row.
    fn places(&self, hash: u64) -> [usize; ROWS] {
        let [low, high] = [hash & 0xffff_ffff, hash >> 32 | 1];
        std::array::from_fn(|row| {
            #[expect(clippy::cast_possible_truncation, reason = "the mask limits the value to the length")]
            let place = low.wrapping_add(high.wrapping_mul(row as u64)) as usize & (self.width - 1);
            row * self.width + place
        })
    }
}

const ROWS: usize = 4;
const SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::KeyHash;

    proptest! {
        #[test]
        fn an_estimate_is_never_below_the_count(
            // The test counts many keys in few cells. One to three seconds pass between some of the
            // reads.
            stream in prop::collection::vec((0_u32..200, prop::option::weighted(0.02, 1_u64..4)), 0..2_000),
        ) {
            let (mut sketch, mut exact, mut now) = (Sketch::new(16), HashMap::<u64, u16>::new(), 0);
            for (key, seconds) in stream {
                if let Some(seconds) = seconds {
                    now += seconds * SECOND;
                    exact.values_mut().for_each(|count| *count >>= seconds);
                }
                let hash = KeyHash::sip(1, 2).hash(&key.to_le_bytes());
                let truth = exact.entry(hash).or_default();
                *truth += 1;
                prop_assert!(sketch.count(now, hash) >= *truth);
            }
        }
    }

    #[test]
    fn a_hot_key_stands_out_of_a_hundred_thousand_cold_ones() {
        let (mut sketch, hash) = (Sketch::new(1 << 15), KeyHash::sip(1, 2));
        let (mut hot, mut cold) = (0, 0);
        for turn in 0..100_000_u64 {
            cold = cold.max(sketch.count(0, hash.hash(&turn.to_le_bytes())));
            if turn % 100 == 0 {
                hot = sketch.count(0, hash.hash(b"hot"));
            }
        }
        assert!((1_000..1_010).contains(&hot) && cold < 20, "{hot} {cold}");
    }

    #[test]
    fn a_count_stays_at_its_end() {
        let mut sketch = Sketch::new(1);
        let last = (0..70_000).map(|_| sketch.count(0, 9)).last();
        assert_eq!((last, sketch.count(SECOND, 9)), (Some(u16::MAX), u16::MAX / 2 + 1));
    }
}
