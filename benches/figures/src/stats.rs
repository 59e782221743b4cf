//! Computes the mean, the standard deviation, the minimum, the maximum and the median of a list of
//! numbers.

/// The mean, standard deviation, minimum and maximum of a list of numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) mean: f64,
    /// The standard deviation of the whole population, not the estimate from a sample.
    pub(crate) deviation: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// Computes the distribution. `numbers` must not be empty.
    pub(crate) fn of(numbers: &[f64]) -> Self {
        let count = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / count;
        let variance = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / count;
        Self {
            mean,
            deviation: variance.sqrt(),
            least: numbers.iter().copied().fold(f64::INFINITY, f64::min),
            most: numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    /// Returns the coefficient of variation in percent: the standard deviation divided by the mean.
    pub(crate) fn variation_percent(&self) -> f64 {
        100.0 * self.deviation / self.mean
    }

    /// Returns the overprovision factor: the maximum divided by the mean.
    pub(crate) fn overprovision(&self) -> f64 {
        self.most / self.mean
    }
}

/// Returns the median: the middle value, or the mean of the two middle values. Returns 0 if there
/// are no values.
#[must_use]
pub fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_matches_hand_computed_values() {
        let spread = Spread::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!(spread, Spread { mean: 5.0, deviation: 2.0, least: 2.0, most: 9.0 });
        assert!((spread.variation_percent() - 40.0).abs() < 1e-9);
        assert!((spread.overprovision() - 1.8).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 3.0, 2.0]) - 2.5).abs() < 1e-9);
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
    }
}
