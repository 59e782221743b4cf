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

/// Quotes a string for a message. Control characters are escaped, and long strings are cut.
#[must_use]
pub fn quote(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((cut, _)) => format!("{:?}... of {} bytes", &text[..cut], text.len()),
        None => format!("{text:?}"),
    }
}

const FEW: usize = 3;

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
}
