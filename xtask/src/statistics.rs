//! Computes medians, percentiles and rates of measured values.

use std::time::Duration;

/// Returns the median, or 0 if there are no values. For an even number of values, the median is the
/// mean of the two middle values.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Returns a percentile of sorted values, or zero if there are no values. The percentile is given
/// in per mille.
pub(crate) fn percentile(sorted: &[Duration], per_mille: usize) -> Duration {
    let rank = (sorted.len() * per_mille).div_ceil(1_000);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// Returns the number of events per second.
#[expect(clippy::cast_precision_loss, reason = "the counts are far below 2^52")]
pub(crate) fn rate(events: u64, time: Duration) -> f64 {
    events as f64 / time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_an_even_number_is_the_mean_of_two() {
        assert!((median([4.0, 1.0, 3.0, 2.0].into_iter()) - 2.5).abs() < f64::EPSILON);
        assert!((median([3.0, 1.0, 2.0].into_iter()) - 2.0).abs() < f64::EPSILON);
    }

    #[test]
    fn percentile_is_a_measured_value() {
        let sorted: Vec<Duration> = (1..=200).map(Duration::from_micros).collect();
        assert_eq!(percentile(&sorted, 500), Duration::from_micros(100));
        assert_eq!(percentile(&sorted, 990), Duration::from_micros(198));
        assert_eq!(percentile(&sorted, 999), Duration::from_micros(200));
        assert_eq!(percentile(&sorted[..1], 990), Duration::from_micros(1));
        assert_eq!(percentile(&[], 500), Duration::ZERO);
    }
}
