//! A simple CSV format: notes in `# key: value` lines, a header, and rows.
//!
//! Cells must not contain commas, quotes or line breaks, because the format has no quoting.

use std::fmt;

use anyhow::{Context, Result, bail, ensure};

/// The rows and notes of a figure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Csv {
    notes: Vec<(String, String)>,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Csv {
    /// Creates a table without rows.
    #[must_use]
    pub fn new(columns: &[&str]) -> Self {
        Self { columns: columns.iter().map(|&name| name.into()).collect(), ..Self::default() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// Panics if the number of cells differs from the number of columns.
    pub fn push(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.columns.len(), "cells of {row:?}");
        self.rows.push(row);
    }

    /// Adds a note, which becomes a `# key: value` line.
    pub fn add_note(&mut self, key: &str, value: impl fmt::Display) {
        self.notes.push((key.into(), value.to_string()));
    }

    /// Parses text that the [`Display`](fmt::Display) implementation wrote.
    pub fn parse(text: &str) -> Result<Self> {
        let mut csv = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(note) = line.strip_prefix("# ") {
                let (key, value) = note.split_once(": ").with_context(|| {
                    format!("line {number} is not a note of the form `# key: value`, {line:?}")
                })?;
                csv.add_note(key, value);
                continue;
            }
            let cells: Vec<String> = line.split(',').map(Into::into).collect();
            if csv.columns.is_empty() {
                csv.columns = cells;
                continue;
            }
            ensure!(
                cells.len() == csv.columns.len(),
                "line {number} has the wrong number of cells, {} instead of {}",
                cells.len(),
                csv.columns.len()
            );
            csv.rows.push(cells);
        }
        ensure!(!csv.columns.is_empty(), "the file has no header");
        Ok(csv)
    }

    /// Returns the value of the note with this key.
    pub fn note(&self, key: &str) -> Result<&str> {
        let found = self.notes.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str()).with_context(|| format!("the file has no note {key}"))
    }

    /// Returns the cells of a column.
    ///
    /// # Errors
    /// Returns an error if there is no such column.
    pub fn words(&self, column: &str) -> Result<Vec<&str>> {
        let Some(place) = self.columns.iter().position(|name| name == column) else {
            bail!("the file has no column {column} (columns: {})", self.columns.join(", "));
        };
        Ok(self.rows.iter().map(|row| row[place].as_str()).collect())
    }

    /// Returns the cells of a column as numbers.
    ///
    /// # Errors
    /// Returns an error if there is no such column, or if a cell is not a number.
    pub fn numbers(&self, column: &str) -> Result<Vec<f64>> {
        let number =
            |word: &str| word.parse().with_context(|| format!("{word:?} in column {column} is not a number"));
        self.words(column)?.into_iter().map(number).collect()
    }

    /// Returns the rows that have `word` in `column`, together with all notes.
    pub fn filter(&self, column: &str, word: &str) -> Result<Self> {
        let kept = self.words(column)?.into_iter().map(|found| found == word);
        let rows = self.rows.iter().zip(kept).filter(|(_, kept)| *kept).map(|(row, _)| row.clone()).collect();
        Ok(Self { rows, ..self.clone() })
    }
}

impl fmt::Display for Csv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.notes.iter().try_for_each(|(key, value)| writeln!(f, "# {key}: {value}"))?;
        writeln!(f, "{}", self.columns.join(","))?;
        self.rows.iter().try_for_each(|row| writeln!(f, "{}", row.join(",")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_text_is_parsed_again() {
        let mut csv = Csv::new(&["method", "slots"]);
        csv.add_note("machine", "any: a simulation");
        csv.push(vec!["maglev".into(), "65537".into()]);
        csv.push(vec!["karger".into(), "13".into()]);
        let text = "# machine: any: a simulation\nmethod,slots\nmaglev,65537\nkarger,13\n";
        assert_eq!(csv.to_string(), text);
        assert_eq!(Csv::parse(text).unwrap(), csv);
        assert_eq!(csv.numbers("slots").unwrap(), [65_537.0, 13.0]);
        assert_eq!(csv.note("machine").unwrap(), "any: a simulation");
        assert_eq!(csv.filter("method", "karger").unwrap().words("slots").unwrap(), ["13"]);
    }

    #[test]
    fn errors_have_their_line() {
        for (text, word) in [
            ("a,b\n1,2\n3\n", "line 3 has the wrong number of cells, 1 instead of 2"),
            ("", "no header"),
            ("# a\n", "line 1"),
        ] {
            assert!(Csv::parse(text).unwrap_err().to_string().contains(word), "{text:?}");
        }
        let csv = Csv::parse("a,b\n1,x\n").unwrap();
        assert!(csv.numbers("c").unwrap_err().to_string().contains("columns: a, b"));
        assert!(csv.numbers("b").is_err() && csv.note("a").is_err());
    }
}
