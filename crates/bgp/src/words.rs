//! Formats durations and lists for operators.

use std::fmt::Display;
use std::time::Duration;

/// Formats a duration, such as `50 ms`, `0.8 s` or `90 s`.
pub(crate) fn span(time: Duration) -> String {
    match time.as_millis() {
        ms @ 0..100 => format!("{ms} ms"),
        _ if time.subsec_nanos() == 0 => format!("{} s", time.as_secs()),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

/// Formats a list, such as `ipv4, ipv6`.
pub(crate) fn list<T: Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_lists_are_words() {
        let spans = [42, 831, 1_250, 90_000].map(|ms| span(Duration::from_millis(ms)));
        assert_eq!(spans, ["42 ms", "0.8 s", "1.2 s", "90 s"]);
        assert_eq!(list(&["ipv4", "ipv6"]), "ipv4, ipv6");
    }
}
