//! Formats counts, lists and quoted strings for messages.

use std::fmt::Display;

/// Formats a number with a singular or plural noun: `1 thread`, `2 threads`, `2 addresses`.
#[must_use]
pub fn count(number: impl Into<u128>, one: &str) -> String {
    let number = number.into();
    let plural = match number {
        1 => "",
        _ if one.ends_with(['s', 'x']) => "es",
        _ => "s",
    };
    format!("{number} {one}{plural}")
}

/// Formats a `usize` with a noun, in the same way as [`count`].
#[must_use]
pub fn count_of(number: usize, one: &str) -> String {
    count(number as u128, one)
}

/// Formats the first elements of a list and the number of remaining elements: `a, b, c and 4 more`.
/// Returns `none` for an empty list.
#[must_use]
pub fn few<T: Display>(all: impl IntoIterator<Item = T>) -> String {
    let mut all = all.into_iter();
    let first: Vec<String> = all.by_ref().take(FEW).map(|one| one.to_string()).collect();
    match (first.is_empty(), all.count()) {
        (true, _) => "none".to_owned(),
        (false, 0) => first.join(", "),
        (false, more) => format!("{} and {more} more", first.join(", ")),
    }
}

/// A log line about one change, or about several similar changes.
#[derive(Debug)]
pub struct LogLine<T> {
    /// The name of the affected object, or the first names.
    pub names: String,
    /// The number of changes, or `None` if the line describes only one.
    pub count: Option<usize>,
    /// The first change.
    pub first: T,
}

/// Limits the number of log lines for changes that happen together. Up to eight changes have one
/// line each. More changes share one line.
pub fn log_lines<T, N: Display>(changes: Vec<T>, name: impl Fn(&T) -> N) -> Vec<LogLine<T>> {
    let (names, count) = (few(changes.iter().map(&name)), changes.len());
    if count > LINES {
        return changes
            .into_iter()
            .take(1)
            .map(|first| LogLine { names: names.clone(), count: Some(count), first })
            .collect();
    }
    changes.into_iter().map(|first| LogLine { names: name(&first).to_string(), count: None, first }).collect()
}

/// Quotes a string for a message. Control characters are escaped, and long strings are cut.
#[must_use]
pub fn quote(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((cut, _)) => format!("{:?}... of {} bytes", &text[..cut], text.len()),
        None => format!("{text:?}"),
    }
}

const FEW: usize = 3;
/// The maximum number of similar changes with separate log lines.
const LINES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_all_else_is_not() {
        let said = [(0, "thread"), (1, "thread"), (2, "thread"), (1, "address"), (3, "address")];
        let said = said.map(|(number, one)| count_of(number, one));
        assert_eq!(said, ["0 threads", "1 thread", "2 threads", "1 address", "3 addresses"]);
    }

    #[test]
    fn a_long_list_ends_with_how_many_more() {
        assert_eq!(few([1; 0]), "none");
        assert_eq!(few(["a", "b", "c"]), "a, b, c");
        assert_eq!(few(1..=5), "1, 2, 3 and 2 more");
    }

    #[test]
    fn more_than_eight_changes_share_a_log_line() {
        let of = |count: u32| log_lines((1..=count).collect(), |number| format!("v{number}"));
        assert!(of(0).is_empty());
        let all = of(8);
        assert_eq!((all.len(), &*all[7].names, all[7].count, all[7].first), (8, "v8", None, 8));
        let [one] = &of(2_000)[..] else { panic!("more than one line") };
        assert_eq!((&*one.names, one.count, one.first), ("v1, v2, v3 and 1997 more", Some(2_000), 1));
    }
}
