//! The one way to print rows: aligned columns, or JSON, which is always one object with its schema.
//!
//! In: cells. Out: lines. Words from elsewhere (a server's error in a check) may hold anything: control characters are
//! replaced, so that none reaches the terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::sync::LazyLock;

use serde::Serialize;

use crate::out::{out, outln};

/// Lines of rows under headings, without spaces at their ends. A heading that begins with `>` is right-aligned.
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
            *width = cell.chars().count().max(*width);
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

/// Each text on a line of its own, behind `head`.
pub(crate) fn lines(head: &str, texts: &[String]) -> String {
    texts.iter().map(|text| format!("{head}{}\n", clean(text))).collect()
}

/// Prints an answer: as JSON for scripts, else in words.
pub fn show<T: Serialize>(answer: &T, json: bool, words: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
    if json {
        return print_json(answer);
    }
    out!("{}", words(answer));
    Ok(())
}

/// Without control characters, and on a terminal not endless: what goes on to a file or a program is whole.
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

/// An answer as JSON. To schema 1 keys may be added, and none changes its meaning or goes.
#[derive(Serialize)]
struct Answer<'a, T> {
    schema: u32,
    /// An object: what is a list has a name in one.
    #[serde(flatten)]
    answer: &'a T,
}

/// Prints an answer as JSON.
///
/// # Errors
/// Of an answer that is no object.
pub fn print_json(answer: &impl Serialize) -> anyhow::Result<()> {
    outln!("{}", serde_json::to_string_pretty(&Answer { schema: 1, answer })?);
    Ok(())
}

/// An answer of several as JSON on one line, which is not ended.
///
/// # Errors
/// As [`print_json`].
pub fn json_line(answer: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(&Answer { schema: 1, answer })
}

/// A time that has passed: its two largest units.
pub fn ago(seconds: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, which is as good"
    )]
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{whole}s"),
        60..3_600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3_600..86_400 => format!("{}h{:02}m", whole / 3_600, whole / 60 % 60),
        _ => format!("{}d{:02}h", whole / 86_400, whole / 3_600 % 24),
    }
}

/// Why something failed last, and how long ago; `-` where nothing has.
pub(crate) fn failed(why: Option<&str>, seconds: Option<f64>) -> String {
    let at = seconds.map(|seconds| format!(" ({} ago)", ago(seconds))).unwrap_or_default();
    or_dash(why.map(|why| format!("{}{at}", clean(why))))
}

/// A value, or `-` where there is none.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A value of the API by the word that JSON has for it.
pub fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(serde_json::Value::Null) | Err(_) => "-".to_owned(),
        Ok(other) => other.to_string(),
    }
}

/// The longest cell on a terminal; what is longer is whole in a pipe.
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
    fn what_a_server_says_does_not_reach_the_terminal_raw() {
        let lines =
            table(["error"], [["\x1b[2J\r\nowned\u{9b}".into()], [cleaned(&"x".repeat(1_000), CELL)]]);
        assert!(lines.chars().all(|c| c == '\n' || !c.is_control()), "{lines:?}");
        assert_eq!(lines.lines().count(), 3);
        assert!(lines.lines().all(|line| line.chars().count() <= CELL + 1));
    }

    #[test]
    fn a_long_cell_is_cut_for_a_terminal_alone() {
        let long = "é".repeat(CELL + 1);
        assert_eq!(cleaned(&long, usize::MAX), long);
        assert_eq!(cleaned(&long, CELL), format!("{}…", "é".repeat(CELL)));
        assert_eq!(cleaned(&long, CELL + 1), long, "what fits to the last character");
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
