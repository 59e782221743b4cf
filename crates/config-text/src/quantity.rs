//! Quantities in TOML are strings with their unit: `"250ms"`.
//!
//! In: text. Out: [`Duration`]s, and the same written back. Not here: ranges (`reader` checks them).
//! A duration is one whole number and one unit, without a space: the same span has few spellings.

use std::time::Duration;

/// Reads `"50us"`, `"250ms"`, `"30s"`, `"15m"`, `"1h"`; `None` for anything else and when it overflows.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let (_, micros) = UNITS.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*micros).map(Duration::from_micros)
}

/// Writes a duration in the largest unit that holds it exactly; what is below a microsecond is lost.
pub fn format_duration(duration: Duration) -> String {
    let micros = duration.as_micros();
    if micros == 0 {
        return "0s".to_owned();
    }
    let exact = UNITS.iter().find(|(_, unit)| micros.is_multiple_of(u128::from(*unit)));
    let (name, unit) = exact.copied().unwrap_or(("us", 1));
    format!("{}{name}", micros / u128::from(unit))
}

/// Reads `"50%"`; `None` for anything else, and above 255.
pub(crate) fn parse_percent(text: &str) -> Option<u8> {
    let digits = text.strip_suffix('%')?;
    digits.parse().ok().filter(|_| digits.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Units and their microseconds, largest first.
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
