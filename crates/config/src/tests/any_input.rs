//! Whatever stands in a file, it is read or refused; nothing panics, and nothing half-read gets out.

use proptest::prelude::*;

use super::{EXAMPLE, parsed};
use crate::Severity;

/// Reading returns; a refusal holds an error, an acceptance none, and places lie within the text.
fn is_total(text: &str) {
    let lines = text.split('\n').count();
    let (problems, refused) = match parsed(text) {
        Ok((_, warnings)) => (warnings, false),
        Err(problems) => (problems, true),
    };
    assert_eq!(problems.iter().any(|problem| problem.severity == Severity::Error), refused);
    let places: Vec<_> = problems.iter().map(|problem| (problem.line(), problem.column())).collect();
    assert!(places.is_sorted(), "{places:?}");
    assert!(
        places.iter().all(|(line, _)| line.is_some_and(|line| (1..=lines).contains(&line))),
        "{places:?}"
    );
    assert!(problems.iter().all(|problem| !problem.to_string().contains('\n')));
}

/// Pieces of the example, so that mutations stay close to valid files.
const PIECES: &[&str] = &[
    "\n",
    "=",
    "[",
    "]",
    "{",
    "}",
    "\"",
    "'",
    ".",
    ",",
    "#",
    "\\",
    "\u{0}",
    "é",
    "[pool.web]\n",
    "[[pool.web]]\n",
    "pool.web = 1\n",
    "0",
    "-1",
    "99999999999999999999",
    "1.5",
    "true",
    "\"\"",
    "\"web\"",
    "\"::\"",
    "[]",
    "{}",
    "name",
    "weight",
    "addresses",
    "1h",
    "\"65535-1\"",
    "\"any\"",
    "machine",
    "vip.www.x.y.z = 1\n",
    "include = [\"*\", \"a.toml\", \"..\"]\n",
    "[check.\"x y\"]\n",
    "http = { status = [\"200-\"], headers = { a = \"\\u0000\" } }\n",
    "fallback = { pool = \"web\" }\n",
    "tcp = { key_file = \"k\", certificate_file = \"/dev/null\" }\n",
    "shard = \"b\"\n",
    "\"1ms\"",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_024))]

    #[test]
    fn any_text_is_read_or_refused(text: String) {
        is_total(&text);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        is_total(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_pieces_are_read_or_refused(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..40)) {
        is_total(&pieces.concat());
    }

    #[test]
    fn a_mutated_example_is_read_or_refused(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0..12_usize, prop::sample::select(PIECES)), 1..6),
    ) {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        for (at, length, piece) in cuts {
            let at = at.index(text.len());
            let end = (at + length).min(text.len());
            text.splice(at..end, piece.chars());
        }
        is_total(&text.into_iter().collect::<String>());
    }

    #[test]
    fn lines_of_the_example_in_any_number_are_read_or_refused(
        lines in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let known: Vec<&str> = EXAMPLE.lines().filter(|line| !line.starts_with('#')).collect();
        let text: Vec<&str> = lines.into_iter().map(|at| known[at.index(known.len())]).collect();
        is_total(&text.join("\n"));
    }
}

#[test]
fn deep_nesting_is_refused() {
    for (open, close) in [("[", "]"), ("{a=", "}")] {
        is_total(&format!("x = {}1{}", open.repeat(100_000), close.repeat(100_000)));
    }
    is_total(&format!("[{}b]", "a.".repeat(100_000)));
}
