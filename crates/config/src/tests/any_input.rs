//! Property tests: any file content is accepted or rejected without a panic, and a rejected file
//! returns no configuration.

use proptest::prelude::*;

use super::total::are_sound;
use super::{EXAMPLE, parsed};

/// Parses the text and checks that its problems are well-formed.
fn is_total(text: &str) {
    match parsed(text) {
        Ok((_, warnings)) => are_sound(&warnings, text, false),
        Err(problems) => are_sound(&problems, text, true),
    }
}

/// Fragments of the example file, which can be combined into almost valid files.
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
