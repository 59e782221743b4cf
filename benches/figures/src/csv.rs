//! Rows of words under named columns, with notes above: `# key: value` lines, then a header, then rows.
//!
//! No cell holds a comma, a quote or a line's end, so there is no quoting.

use std::fmt;

use anyhow::{Context, Result, bail, ensure};

/// A table of a figure, and what is to be known of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Csv {
    notes: Vec<(String, String)>,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Csv {
    /// Without rows.
    #[must_use]
    pub fn new(columns: &[&str]) -> Self {
        Self { columns: columns.iter().map(|&name| name.into()).collect(), ..Self::default() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When it has another number of cells than there are columns.
    pub fn push(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.columns.len(), "cells of {row:?}");
        self.rows.push(row);
    }

    /// Adds a note.
    pub fn add_note(&mut self, key: &str, value: impl fmt::Display) {
        self.notes.push((key.into(), value.to_string()));
    }

    /// Reads what [`Display`](fmt::Display) wrote.
    ///
    /// # Errors
    /// A note without its key, no header, or a row of another length, with its line.
    pub fn parse(text: &str) -> Result<Self> {
        let mut csv = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(note) = line.strip_prefix("# ") {
                let (key, value) = note
                    .split_once(": ")
                    .with_context(|| format!("line {number}: {line:?} has no `key: `"))?;
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
                "line {number}: {} cells, {} columns",
                cells.len(),
                csv.columns.len()
            );
            csv.rows.push(cells);
        }
        ensure!(!csv.columns.is_empty(), "no header");
        Ok(csv)
    }

    /// What a note says.
    ///
    /// # Errors
    /// No such note.
    pub fn note(&self, key: &str) -> Result<&str> {
        let found = self.notes.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str()).with_context(|| format!("no note {key}"))
    }

    /// The cells of a column.
    ///
    /// # Errors
    /// No such column.
    pub fn words(&self, column: &str) -> Result<Vec<&str>> {
        let Some(place) = self.columns.iter().position(|name| name == column) else {
            bail!("no column {column}; there are: {}", self.columns.join(", "));
        };
        Ok(self.rows.iter().map(|row| row[place].as_str()).collect())
    }

    /// The cells of a column as numbers.
    ///
    /// # Errors
    /// No such column, or a cell that is no number.
    pub fn numbers(&self, column: &str) -> Result<Vec<f64>> {
        let number = |word: &str| word.parse().with_context(|| format!("{column}: {word:?} is no number"));
        self.words(column)?.into_iter().map(number).collect()
    }

    /// The rows whose `column` is `word`, with the same notes.
    ///
    /// # Errors
    /// No such column.
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
    fn what_is_written_is_read_again() {
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
    fn what_is_wrong_is_said_with_its_place() {
        for (text, word) in
            [("a,b\n1,2\n3\n", "line 3: 1 cells, 2 columns"), ("", "no header"), ("# a\n", "line 1")]
        {
            assert!(Csv::parse(text).unwrap_err().to_string().contains(word), "{text:?}");
        }
        let csv = Csv::parse("a,b\n1,x\n").unwrap();
        assert!(csv.numbers("c").unwrap_err().to_string().contains("there are: a, b"));
        assert!(csv.numbers("b").is_err() && csv.note("a").is_err());
    }
}
