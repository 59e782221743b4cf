//! The one way to print rows: aligned columns, or JSON.
//!
//! In: cells. Out: lines. Words from elsewhere (a server's error in a check) may hold anything: control characters are
//! replaced, so that none reaches the terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::sync::LazyLock;

use serde::Serialize;

use crate::out::{out, outln};

/// Rows under headings. A heading that begins with `>` is right-aligned.
#[derive(Debug)]
pub(crate) struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(headings: [&'static str; N]) -> Self {
        Self { headings: headings.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.headings.len(), "a cell for each heading");
        self.rows.push(cells.iter().map(|cell| clean(cell)).collect());
    }

    /// All lines, without spaces at their ends.
    pub(crate) fn lines(&self) -> String {
        let name = |heading: &'static str| heading.trim_start_matches('>');
        let widths: Vec<usize> = self
            .headings
            .iter()
            .enumerate()
            .map(|(column, heading)| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).fold(name(heading).len(), usize::max)
            })
            .collect();
        let mut text = String::new();
        let headings: Vec<String> =
            self.headings.iter().map(|heading| name(heading).to_uppercase()).collect();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), heading) in row.iter().zip(&widths).zip(&self.headings) {
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

    pub(crate) fn print(&self) {
        out!("{}", self.lines());
    }
}

/// Without control characters, and on a terminal not endless: what goes on to a file or a program is whole.
pub(crate) fn clean(text: &str) -> String {
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

/// As JSON for scripts.
pub(crate) fn print_json(answer: &impl Serialize) -> anyhow::Result<()> {
    outln!("{}", serde_json::to_string_pretty(answer)?);
    Ok(())
}

/// A time that has passed: its two largest units.
pub(crate) fn ago(seconds: f64) -> String {
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

/// What is not there.
pub(crate) fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

/// A value of the API by the word that JSON has for it.
pub(crate) fn word(value: &impl Serialize) -> String {
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
        let mut table = Table::new(["name", ">packets", "why"]);
        table.row(["b1".into(), "7".into(), String::new()]);
        table.row(["backend-2".into(), "123456789".into(), "no".into()]);
        assert_eq!(
            table.lines(),
            "NAME         PACKETS  WHY\nb1                 7\nbackend-2  123456789  no\n"
        );
    }

    #[test]
    fn what_a_server_says_does_not_reach_the_terminal_raw() {
        let mut table = Table::new(["error"]);
        table.row(["\x1b[2J\r\nowned\u{9b}".into()]);
        table.row([cleaned(&"x".repeat(1_000), CELL)]);
        let lines = table.lines();
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
