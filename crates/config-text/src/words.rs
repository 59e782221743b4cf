//! Words that several crates write to operators: a number with its noun, a list that does not grow for ever.

use std::fmt::Display;

/// `1 thread`, `2 threads`; `1 address`, `2 addresses`.
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

/// As [`count`], of a length.
#[must_use]
pub fn count_of(number: usize, one: &str) -> String {
    count(number as u128, one)
}

/// The first few, and how many more there are: `a, b, c and 4 more`; `none` of an empty list.
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

/// A string in quotes for a message: control characters escaped, long ones cut.
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
