//! Selects the line of a file that is printed below a problem, and the length of the marker under
//! the wrong value.
//!
//! Lines with control characters are not printed, because they could manipulate the operator's
//! terminal. Secrets are not printed either. Secrets are values that the program has marked as
//! hidden, and text that looks like a key or a password. If a secret follows the wrong value on the
//! same line, the line is cut before the secret. If a secret precedes the wrong value, the line is
//! not printed.

use std::ops::Range;

/// The part of a line that is printed below a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excerpt {
    pub(crate) line: String,
    /// The number of characters before the marked value.
    pub(crate) indent: usize,
    /// The length of the marked value in characters, at least 1.
    pub(crate) width: usize,
}

/// Returns the excerpt for the value at offset `at`, or `None` if the line must not be printed.
/// `hidden` contains the byte ranges of `text` that must not be printed. The ranges are sorted and
/// do not overlap.
///
/// # Cost
/// Linear in the length of the line. Returns `None` immediately for lines over [`LONGEST`] bytes.
pub(crate) fn excerpt(text: &str, line: Range<usize>, at: usize, hidden: &[Range<usize>]) -> Option<Excerpt> {
    let whole = text.get(line.clone())?;
    if whole.len() > LONGEST || at < line.start {
        return None;
    }
    let secret = hidden.get(hidden.partition_point(|range| range.end <= line.start));
    let secret = secret.filter(|range| range.start < line.end).map(|range| range.start);
    let rest = text.get(at..line.end)?;
    let width = token(rest);
    let (shown, cut) = match secret {
        Some(start) if start < at + width => return None,
        Some(start) => (text.get(line.start..start)?, "..."),
        None => (whole.trim_end(), ""),
    };
    if shown.trim().is_empty() || shown.contains(|c: char| c.is_control() && c != '\t') || looks_secret(shown)
    {
        return None;
    }
    let width = rest.get(..width).map_or(1, |value| value.chars().count()).max(1);
    let before = text.get(line.start..at)?.chars().count();
    let skipped = before.saturating_sub(LEFT);
    let characters: Vec<char> = shown.chars().map(|c| if c == '\t' { ' ' } else { c }).collect();
    let window: String = characters.iter().skip(skipped).take(WIDTH).collect();
    let (left, right) = (skipped > 0, characters.len() > skipped + WIDTH);
    let dots = |is_cut: bool| if is_cut { "..." } else { "" };
    let indent = before - skipped + dots(left).len();
    let room = (WIDTH + dots(left).len()).saturating_sub(indent).max(1);
    Some(Excerpt {
        line: format!("{}{window}{}{cut}", dots(left), dots(right)),
        indent,
        width: width.min(room),
    })
}

/// Returns the length in bytes of the TOML value or key at the start of `rest`.
fn token(rest: &str) -> usize {
    let Some(first) = rest.chars().next() else { return 0 };
    let end = match first {
        '"' | '\'' => rest.get(1..).and_then(|inside| inside.find(first)).map(|end| end + 2),
        '[' => closing(rest, '[', ']'),
        '{' => closing(rest, '{', '}'),
        _ => {
            let stops = |c: char| c.is_whitespace() || matches!(c, ',' | ']' | '}' | '=' | '#');
            Some(rest.find(stops).unwrap_or(rest.len()))
        }
    };
    end.unwrap_or(first.len_utf8())
}

/// Returns the offset after the bracket that closes the first bracket of `rest`. Brackets inside
/// strings are counted too, so the marker below the line may be too short.
fn closing(rest: &str, open: char, close: char) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in rest.char_indices() {
        if c == open {
            depth += 1;
        } else if c == close {
            depth = depth.checked_sub(1)?;
            if depth == 0 {
                return Some(at + 1);
            }
        }
    }
    None
}

/// Returns `true` if a line contains a word such as `password`, or a long run of characters that
/// looks like a key.
fn looks_secret(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    let is_run = |run: &str, least: usize, good: fn(u8) -> bool| run.len() >= least && run.bytes().all(good);
    WORDS.iter().any(|word| lower.contains(word))
        || line.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '+' | '/' | '=')).any(|run| {
            is_run(run, 16, |byte| byte.is_ascii_hexdigit()) || is_run(run, 32, |byte| byte != b'/')
        })
}

/// The maximum length of a printed line in bytes. Longer lines are hard to read, and each problem
/// on such a line would store a copy of the line.
const LONGEST: usize = 1_024;
/// The maximum number of characters printed from a line.
const WIDTH: usize = 110;
/// The maximum number of characters printed before the marked value.
const LEFT: usize = 70;
const WORDS: [&str; 9] =
    ["password", "passwd", "secret", "token", "authorization", "cookie", "bearer", "api-key", "private"];

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str, at: usize, hidden: &[Range<usize>]) -> Option<(String, String)> {
        let found = excerpt(line, 0..line.len(), at, hidden)?;
        Some((found.line, format!("{}{}", " ".repeat(found.indent), "^".repeat(found.width))))
    }

    #[test]
    fn excerpt_marks_the_value() {
        for (line, at, marks) in [
            ("port = \"80\"", 7, "       ^^^^"),
            ("kepp = 7 # often", 0, "^^^^"),
            ("keep = 70000, x = 1", 7, "       ^^^^^"),
            ("[pool.web]", 0, "^^^^^^^^^^"),
            ("x = [[1], 2] # y", 4, "    ^^^^^^^^"),
            ("x = [1,", 4, "    ^"),
            ("\tx = 1", 5, "     ^"),
        ] {
            assert_eq!(of(line, at, &[]).map(|(_, marks)| marks).as_deref(), Some(marks), "{line}");
        }
    }

    #[test]
    fn excerpt_of_a_secret_is_absent() {
        let (line, secret) = ("x = 1, pin = \"1234\", y = 2", std::slice::from_ref(&(13..19)));
        assert_eq!(of(line, 0, secret).unwrap(), ("x = 1, pin = ...".to_owned(), "^".to_owned()));
        assert_eq!(of(line, 13, secret), None, "the secret itself");
        assert_eq!(of(line, 21, secret), None, "behind the secret");
        let hex = format!("x = \"{}\"", "0123456789abcdef");
        for line in ["Authorization = 1", "x = \"my-password\"", &hex, "x = \"\u{1b}[2J\"", ""] {
            assert_eq!(of(line, 0, &[]), None, "{line:?}");
        }
        assert_eq!(of(&"x".repeat(2_000), 0, &[]), None);
    }

    #[test]
    fn excerpt_of_a_long_line_is_a_window() {
        let line = format!("{} x = 7 {}", "a ".repeat(100), "b ".repeat(100));
        let (shown, marks) = of(&line, 205, &[]).unwrap();
        assert_eq!(shown.chars().nth(marks.len() - 1), Some('7'), "{shown}\n{marks}");
        assert!(shown.len() < 120 && shown.starts_with("...") && shown.ends_with("..."), "{shown}");
    }
}
