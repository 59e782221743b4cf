//! Where a problem has to stand: at what its field names, by the places that the `toml` crate gives.
//!
//! In: problems of a text that is TOML. Out: a panic where one stands elsewhere.
//! Not here: flaws of the syntax, whose place is the parser's word; whether places lie in the text at all (`total`).

use ::toml::de::{DeTable, DeValue};
use config::{Problems, Severity};

/// Each problem stands at its key or value, or, where its field is not there, at what ought to have it.
pub(super) fn are_due(problems: &Problems, text: &str) {
    let Ok(table) = DeTable::parse(text) else { return };
    for problem in problems {
        let Some(steps) = steps(&problem.field) else { continue };
        let [around, own @ ..] = due(&table, &steps).map(|offset| place(text, offset));
        // A warning also says of a table that it has no good value of that key.
        let places =
            if problem.severity == Severity::Warning { vec![around, own[0], own[1]] } else { own.to_vec() };
        let (line, column) = (problem.line(), problem.column());
        assert!(
            places.iter().any(|due| (Some(due.0), Some(due.1)) == (line, column)),
            "{problem}: due at {places:?}\n{text}"
        );
    }
}

/// A key, or the place in a list.
enum Step<'f> {
    Key(&'f str),
    Element(usize),
}

/// None of a field that needs quotes: how those are cut is no matter of places.
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

/// The offsets of the innermost value around, of the key and of the value; where those are not there, thrice the first.
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

/// Line and column, by counting.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let (mut line, mut column) = (1, 1);
    for (_, character) in text.char_indices().take_while(|(at, _)| *at < offset) {
        (line, column) = if character == '\n' { (line + 1, 1) } else { (line, column + 1) };
    }
    (line, column)
}
