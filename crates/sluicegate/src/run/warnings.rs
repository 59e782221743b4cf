//! Logs the warnings of a configuration.
//!
//! A large configuration can have the same warning for each VIP. Warnings that differ only in names
//! and numbers share one log line. `sluicegate config check` lists all warnings.

use config::words::few;

/// Logs all warnings, or the first of many similar warnings.
pub(super) fn log(warnings: &[String]) {
    for similar in groups(warnings) {
        let (shown, more) = similar.split_at(if similar.len() > SEPARATE { 1 } else { similar.len() });
        for warning in shown {
            let names = (!more.is_empty()).then(|| differing(&similar));
            let more = (!more.is_empty()).then_some(more.len());
            // log: The configuration has a warning. The field `warning` contains the file, line and
            // key. If more than eight warnings are similar, they share one line, and `more` is the
            // number of the others. Fix the file and check it with `sluicegate config check`.
            tracing::warn!(warning, more, names, "configuration warning");
        }
    }
}

/// Groups warnings that differ only in quoted names and in words with digits. Groups and warnings
/// keep their order.
fn groups(warnings: &[String]) -> Vec<Vec<&str>> {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for warning in warnings {
        let unquoted: String = warning.split('"').step_by(2).collect();
        let has_digit = |word: &&str| word.contains(|c: char| c.is_ascii_digit());
        let kind: Vec<&str> = unquoted.split_whitespace().filter(|word| !has_digit(word)).collect();
        let kind = kind.join(" ");
        let place = *places.entry(kind.clone()).or_insert(groups.len());
        if place == groups.len() {
            groups.push((kind, Vec::new()));
        }
        groups[place].1.push(warning);
    }
    groups.into_iter().map(|(_, similar)| similar).collect()
}

/// Returns the first names by which similar warnings differ.
fn differing(similar: &[&str]) -> String {
    let names = |warning: &'_ str| -> Vec<String> {
        warning.split('"').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let all: Vec<Vec<String>> = similar.iter().map(|warning| names(warning)).collect();
    let first = all.first().map(Vec::as_slice).unwrap_or_default();
    let differs = |place: &usize| all.iter().any(|names| names.get(*place) != first.get(*place));
    let place = (0..first.len()).find(differs);
    few(all.iter().filter_map(|names| names.get(place?)))
}

/// The maximum number of similar warnings with separate log lines.
const SEPARATE: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::fields::tests::logged;

    // Promise: log-volume
    #[test]
    fn warnings_of_2000_vips_share_one_line() {
        let of = |number: u32| {
            format!(
                "lb.toml:{number}:1: check \"web\" of VIP \"v{number}\" is not used by 198.51.100.{}",
                number % 200
            )
        };
        let mut warnings: Vec<String> = (1..=2_000).map(of).collect();
        warnings.insert(7, "lb.toml:3:1: no VIP is announced to these peers".to_owned());
        let lines = logged(|| log(&warnings));
        let [first, second] = &lines[..] else { panic!("{} lines", lines.len()) };
        assert!(first.starts_with(" WARN configuration warning warning=\"lb.toml:1:1: check"), "{first}");
        assert!(first.ends_with(" more=1999 names=\"v1, v2, v3 and 1997 more\""), "{first}");
        assert_eq!(
            second,
            " WARN configuration warning warning=\"lb.toml:3:1: no VIP is announced to these peers\""
        );
    }

    #[test]
    fn few_warnings_have_a_line_each() {
        let warnings: Vec<String> = (1..=8).map(|number| format!("a:{number}:1: VIP \"v\" is odd")).collect();
        let lines = logged(|| log(&warnings));
        assert_eq!(lines.len(), 8);
        assert!(lines.iter().all(|line| !line.contains("more=")), "{lines:?}");
    }
}
