//! Checks properties that the reported problems must have for any configuration text.
//!
//! The fuzz target in `tests/fuzz` includes this file too.

use super::{Problems, Severity};

/// Checks that a rejected text has an error and an accepted text has none. Positions must be inside
/// the text and in ascending order, and each message must be a single line.
pub(super) fn are_sound(problems: &Problems, text: &str, is_refused: bool) {
    let lines = text.split('\n').count();
    assert_eq!(problems.iter().any(|problem| problem.severity == Severity::Error), is_refused);
    let places: Vec<_> = problems.iter().map(|problem| (problem.line(), problem.column())).collect();
    assert!(places.is_sorted(), "{places:?}");
    assert!(
        places.iter().all(|(line, _)| line.is_some_and(|line| (1..=lines).contains(&line))),
        "{places:?}"
    );
    assert!(problems.iter().all(|problem| !problem.to_string().contains('\n')));
}
