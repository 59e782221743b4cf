//! Compares the positions of configuration problems with the positions that the `toml` crate
//! reports.
//!
//! Syntax errors are excluded from the comparison, because the `toml` crate itself reports their
//! positions. The module `total` checks that all positions are inside the text.

use ::toml::de::{DeTable, DeValue};
use config::{Problems, Severity};

/// Checks that each problem is located at its key or value. If the key is missing, the problem must
/// be located at the table in which the key is expected.
pub(super) fn are_due(problems: &Problems, text: &str) {
    let Ok(table) = DeTable::parse(text) else { return };
    for problem in problems {
        let Some(steps) = steps(&problem.field) else { continue };
        let [around, own @ ..] = due(&table, &steps).map(|offset| place(text, offset));
        // If the enclosing table does not contain a valid value for the key, a warning can also be
        // located at this table.
        let places =
            if problem.severity == Severity::Warning { vec![around, own[0], own[1]] } else { own.to_vec() };
        let (line, column) = (problem.line(), problem.column());
        assert!(
            places.iter().any(|due| (Some(due.0), Some(due.1)) == (line, column)),
            "{problem} should be at {places:?}\n{text}"
        );
    }
}

/// One step of a path to a field: a key, or an index in a list.
enum Step<'f> {
    Key(&'f str),
    Element(usize),
}

/// Splits the path of a field into steps. Returns `None` if the path has quotes, which this
/// function does not support.
fn steps(field: &str) -> Option<Vec<Step<'_>>> {
    if field.is_empty() || field.contains('"') {
        return None;
    }
    let keys = field.split('.').flat_map(|key| {
        let mut parts = key.split('[');
        let name = parts.next().map(Step::Key);
        name.into_iter()
            .chain(parts.filter_map(|part| part.trim_end_matches(']').parse().ok().map(Step::Element)))
    });
    Some(keys.collect())
}

/// Returns the offsets of the enclosing value, of the key and of the value. If the key is missing,
/// all three offsets are the offset of the enclosing value.
fn due(table: &::toml::Spanned<DeTable<'_>>, steps: &[Step<'_>]) -> [usize; 3] {
    let (mut around, mut places) = (0, [0; 3]);
    let mut tables = Some(table.get_ref());
    let mut lists = None;
    for step in steps {
        let found = match step {
            Step::Key(name) => tables
                .and_then(|table| table.get_key_value(*name))
                .map(|(key, value)| (key.span().start, value)),
            Step::Element(number) => lists
                .and_then(|list: &::toml::de::DeArray<'_>| list.get(*number))
                .map(|value| (value.span().start, value)),
        };
        let Some((key, value)) = found else { return [around; 3] };
        places = [around, key, value.span().start];
        around = value.span().start;
        (tables, lists) = match value.get_ref() {
            DeValue::Table(table) => (Some(table), None),
            DeValue::Array(list) => (None, Some(list)),
            _ => (None, None),
        };
    }
    places
}

/// Returns the line and the column of an offset in the text.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let (mut line, mut column) = (1, 1);
    for (_, character) in text.char_indices().take_while(|(at, _)| *at < offset) {
        (line, column) = if character == '\n' { (line + 1, 1) } else { (line, column + 1) };
    }
    (line, column)
}
