//! What holds of the problems of any text.
//!
//! The fuzzer (`tests/fuzz`) compiles this file too.

use super::{Problems, Severity};

/// A refusal holds an error, an acceptance none; places lie in the text, in their order; a problem is one line.
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
