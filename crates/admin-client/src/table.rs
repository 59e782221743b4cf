//! JSON output is always one object with a schema number. Control characters in text are replaced,
//! because text from other machines, such as a health check error, may contain terminal escape
//! sequences.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::sync::LazyLock;

use serde::Serialize;

use crate::out::{out, outln};

/// Formats rows as columns under headings, without trailing spaces. A heading that starts with `>`
/// is right-aligned. A cell with more than 120 characters does not widen its column, because
/// the text would have a length of the number of rows times the length of that cell.
pub fn table<const N: usize>(
    headings: [&'static str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let names = headings.map(|heading| heading.trim_start_matches('>').to_uppercase());
    let rows: Vec<[String; N]> =
        std::iter::once(names).chain(rows.into_iter().map(|row| row.map(|cell| clean(&cell)))).collect();
    let mut widths = [0; N];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().min(CELL).max(*width);
        }
    }
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for ((cell, width), heading) in row.iter().zip(widths).zip(headings) {
            // Writing to a string does not fail.
            let _ = if heading.starts_with('>') {
                write!(line, "{cell:>width$}  ")
            } else {
                write!(line, "{cell:<width$}  ")
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Formats each string on a separate line that starts with `head`.
pub(crate) fn lines(head: &str, texts: &[String]) -> String {
    texts.iter().map(|text| format!("{head}{}\n", clean(text))).collect()
}

/// Prints a response as JSON if `json` is set, otherwise as the text that `words` returns.
pub fn show<T: Serialize>(answer: &T, json: bool, words: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
    if json {
        return print_json(answer);
    }
    out!("{}", words(answer));
    Ok(())
}

/// Replaces control characters, and truncates long text if standard output is a terminal. Text for
/// a file or a pipe is not truncated.
pub fn clean(text: &str) -> String {
    static LONGEST: LazyLock<usize> =
        LazyLock::new(|| if io::stdout().is_terminal() { CELL } else { usize::MAX });
    cleaned(text, *LONGEST)
}

fn cleaned(text: &str, longest: usize) -> String {
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    let mut clean: String = text.chars().take(longest).map(shown).collect();
    if text.chars().nth(longest).is_some() {
        clean.push('…');
    }
    clean
}

/// A response that is printed as JSON. Schema 1 is stable: later versions may add keys, but
/// existing keys keep their meaning.
#[derive(Serialize)]
struct Answer<'a, T> {
    schema: u32,
    /// The response, which must be an object, so callers wrap lists in an object.
    #[serde(flatten)]
    answer: &'a T,
}

/// Prints a response as JSON.
///
/// # Errors
/// Returns an error if the response is not an object.
pub fn print_json(answer: &impl Serialize) -> anyhow::Result<()> {
    outln!("{}", serde_json::to_string_pretty(&Answer { schema: 1, answer })?);
    Ok(())
}

/// Formats a response as a single line of JSON without a newline, for output with several
/// responses.
///
/// # Errors
/// Returns an error if the response is not an object.
pub fn json_line(answer: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(&Answer { schema: 1, answer })
}

/// Formats a duration with its two largest units.
pub fn ago(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{whole}s"),
        60..3_600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3_600..86_400 => format!("{}h{:02}m", whole / 3_600, whole / 60 % 60),
        _ => format!("{}d{:02}h", whole / 86_400, whole / 3_600 % 24),
    }
}

/// Formats the last error and its age, or `-` if there was no error.
pub(crate) fn failed(why: Option<&str>, seconds: Option<f64>) -> String {
    let at = seconds.map(|seconds| format!(" ({} ago)", ago(seconds))).unwrap_or_default();
    or_dash(why.map(|why| format!("{}{at}", clean(why))))
}

/// Formats a value, or returns `-` for `None`.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Formats a value as its JSON text, for example `serving` for an enum variant. Returns `-` for
/// null.
pub fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(serde_json::Value::Null) | Err(_) => "-".to_owned(),
        Ok(other) => other.to_string(),
    }
}

/// The maximum number of characters in a cell on a terminal, and the maximum width of a column. A
/// cell in a file or pipe has no limit.
const CELL: usize = 120;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["b1", "7", ""], ["backend-2", "123456789", "no"]].map(|row| row.map(str::to_owned));
        assert_eq!(
            table(["name", ">packets", "why"], rows),
            "NAME         PACKETS  WHY\nb1                 7\nbackend-2  123456789  no\n"
        );
    }

    #[test]
    fn table_replaces_control_characters() {
        let lines =
            table(["error"], [["\x1b[2J\r\nowned\u{9b}".into()], [cleaned(&"x".repeat(1_000), CELL)]]);
        assert!(lines.chars().all(|c| c == '\n' || !c.is_control()), "{lines:?}");
        assert_eq!(lines.lines().count(), 3);
        assert!(lines.lines().all(|line| line.chars().count() <= CELL + 1));
    }

    #[test]
    fn long_cell_is_truncated_on_terminal_only() {
        let long = "é".repeat(CELL + 1);
        assert_eq!(cleaned(&long, usize::MAX), long);
        assert_eq!(cleaned(&long, CELL), format!("{}…", "é".repeat(CELL)));
        assert_eq!(cleaned(&long, CELL + 1), long, "text that fits is not truncated");
    }

    #[test]
    fn times_have_two_units() {
        for (seconds, text) in [
            (0.9, "0s"),
            (59.99, "59s"),
            (60.0, "1m00s"),
            (3_599.0, "59m59s"),
            (3_725.0, "1h02m"),
            (86_400.0 * 3.5, "3d12h"),
            (-1.0, "0s"),
            (f64::NAN, "0s"),
        ] {
            assert_eq!(ago(seconds), text);
        }
    }
}
