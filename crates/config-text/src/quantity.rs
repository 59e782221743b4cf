//! Parses and formats quantities with a unit. In TOML, quantities are strings such as `"250ms"`.
//!
//! A duration is a whole number directly followed by a unit. Ranges are checked by the module
//! `reader`.

use std::time::Duration;

/// Parses a duration such as `"50us"`, `"250ms"`, `"30s"`, `"15m"` or `"1h"`. Returns `None` if the
/// text is not a duration or the duration overflows.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let (_, micros) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*micros).map(Duration::from_micros)
}

/// Formats a duration in the largest unit in which it is a whole number. Fractions of a microsecond
/// are dropped.
pub fn format_duration(duration: Duration) -> String {
    let micros = duration.as_micros();
    if micros == 0 {
        return "0s".to_owned();
    }
    let exact = UNITS.iter().find(|(_, unit)| micros.is_multiple_of(u128::from(*unit)));
    let (name, unit) = exact.copied().unwrap_or(("us", 1));
    format!("{}{name}", micros / u128::from(unit))
}

/// Parses a percentage such as `"50%"`. Returns `None` if the text is not a percentage or the
/// number exceeds 255.
pub(crate) fn parse_percent(text: &str) -> Option<u8> {
    let digits = text.strip_suffix('%')?;
    digits.parse().ok().filter(|_| digits.bytes().all(|digit| digit.is_ascii_digit()))
}

/// The units and their lengths in microseconds, longest first.
const UNITS: [(&str, u64); 5] =
    [("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::{format_duration, parse_duration};

    #[test]
    fn durations_are_a_whole_number_and_a_unit() {
        let table = [
            ("50us", Some(Duration::from_micros(50))),
            ("250ms", Some(Duration::from_millis(250))),
            ("30s", Some(Duration::from_secs(30))),
            ("15m", Some(Duration::from_secs(900))),
            ("1h", Some(Duration::from_secs(3_600))),
            ("0s", Some(Duration::ZERO)),
            ("", None),
            ("30", None),
            ("s", None),
            ("-1s", None),
            ("+1s", None),
            ("1.5s", None),
            ("1 s", None),
            (" 1s", None),
            ("1s ", None),
            ("1S", None),
            ("1d", None),
            ("1µs", None),
            ("1_000s", None),
            ("18446744073709551615us", Some(Duration::from_micros(u64::MAX))),
            ("18446744073709551616us", None),
            ("18446744073709551615ms", None),
            ("99999999999999999999999h", None),
        ];
        for (text, expected) in table {
            assert_eq!(parse_duration(text), expected, "{text:?}");
        }
    }

    #[test]
    fn percentages_are_a_whole_number_and_a_sign() {
        let table = [("50%", Some(50)), ("0%", Some(0)), ("255%", Some(255)), ("256%", None), ("50", None)];
        let more = [("%", None), ("+5%", None), ("5.0%", None), ("5 %", None), ("-1%", None), ("5%%", None)];
        for (text, expected) in table.into_iter().chain(more) {
            assert_eq!(super::parse_percent(text), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(micros: u64) {
            let duration = Duration::from_micros(micros);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Some(duration));
        }

        #[test]
        fn each_unit_is_a_multiple_of_the_one_below(number in 0..1_000_000_u64) {
            let chain = [("h", "m", 60), ("m", "s", 60), ("s", "ms", 1_000), ("ms", "us", 1_000)];
            for (large, small, times) in chain {
                let (a, b) = (format!("{number}{large}"), format!("{}{small}", number * times));
                prop_assert!(parse_duration(&a).is_some());
                prop_assert_eq!(parse_duration(&a), parse_duration(&b));
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = parse_duration(&text);
        }
    }
}
