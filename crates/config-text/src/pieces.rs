//! Parses a large TOML text in several pieces, in parallel.
//!
//! The text is cut before headers `[kind.name]`. The cuts are chosen without parsing, so a cut may
//! be inside a string or a list, or may separate a section from its sub-tables. In these cases, a
//! piece fails to parse, or two pieces contain the same section, and the whole text is parsed
//! instead.
//!
//! Invariant: the pieces together have the same values, at the same offsets, as the whole text.

use std::collections::{BTreeMap, BTreeSet};

use toml::Spanned;
use toml::de::DeTable;

use crate::parallel::{self, processors};

/// A parsed piece: its offset in the text, and its table.
pub(crate) type Piece<'a> = (usize, Spanned<DeTable<'a>>);

/// Parses TOML text, in several pieces if the text is large. Returns `None` if the text is not
/// valid TOML.
///
/// Sections `[kind.name]` may be distributed over several pieces if `named` contains the kind.
/// [`Root::named`](crate::Root::named) merges them.
pub(crate) fn parse<'a>(text: &'a str, named: &[&str]) -> Option<Vec<Piece<'a>>> {
    let pieces = is_large(text.len()).then(|| parse_in_pieces(text, processors(), named)).flatten();
    pieces.or_else(|| Some(vec![(0, DeTable::parse(text).ok()?)]))
}

/// Returns `true` if text of this length takes milliseconds to parse. For shorter text, several
/// threads are not faster than one thread.
pub(crate) fn is_large(bytes: usize) -> bool {
    bytes >= LARGE
}

fn parse_in_pieces<'a>(text: &'a str, count: usize, named: &[&str]) -> Option<Vec<Piece<'a>>> {
    let parsed = parallel::map(cut(text, count), true, |(base, piece)| {
        let (table, errors) = DeTable::parse_recoverable(piece);
        errors.is_empty().then_some((base, table))
    });
    let pieces: Vec<Piece<'_>> = parsed.into_iter().collect::<Option<_>>()?;
    are_apart(text, &pieces, named).then_some(pieces)
}

/// Splits TOML text into at most `count` pieces of similar length. Every piece except the first
/// begins with a header.
fn cut(text: &str, count: usize) -> Vec<(usize, &str)> {
    let mut pieces = Vec::with_capacity(count);
    let mut start = 0;
    for number in 1..count {
        let wanted = text.floor_char_boundary(text.len() / count * number).max(start);
        let Some(end) = text.get(wanted..).and_then(header).map(|at| wanted + at) else { break };
        pieces.extend(text.get(start..end).map(|piece| (start, piece)));
        start = end;
    }
    pieces.extend(text.get(start..).map(|piece| (start, piece)));
    pieces
}

/// Returns the offset of the first header `[kind.name]` in TOML text.
fn header(text: &str) -> Option<usize> {
    let mut lines = text.match_indices("\n[").map(|(at, _)| at + 1);
    let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    lines.find(|&at| {
        let inside = text.get(at + 1..).and_then(|rest| rest.split_once(']')).map(|(inside, _)| inside);
        inside
            .and_then(|inside| inside.split_once('.'))
            .is_some_and(|(kind, name)| plain(kind) && plain(name))
    })
}

/// Returns `true` if the pieces together have the same values as the whole text. If several pieces
/// have sections of the same kind, three conditions must hold. `named` must contain the kind, all
/// headers of the kind must have the form `[kind.name]`, and no name may occur in two pieces.
fn are_apart(text: &str, pieces: &[Piece<'_>], named: &[&str]) -> bool {
    let mut kinds: BTreeMap<&str, Vec<Option<&DeTable<'_>>>> = BTreeMap::new();
    for (base, table) in pieces {
        for (key, value) in table.get_ref() {
            let headed = text.get(..base + key.span().start).is_some_and(|before| before.ends_with('['));
            let sections = value.get_ref().as_table().filter(|_| headed);
            kinds.entry(key.get_ref()).or_default().push(sections);
        }
    }
    let first = pieces.first().map(|(_, table)| table.get_ref());
    let asked_first = |kind: &str| kind != "include" || first.is_some_and(|table| table.contains_key(kind));
    let mut shared = kinds.iter().filter(|(_, in_pieces)| in_pieces.len() > 1);
    kinds.keys().all(|kind| asked_first(kind))
        && shared
            .all(|(kind, in_pieces)| named.contains(kind) && differ(in_pieces) && !has_header(text, kind))
}

fn differ(in_pieces: &[Option<&DeTable<'_>>]) -> bool {
    let mut names = BTreeSet::new();
    in_pieces.iter().all(|sections| {
        sections.is_some_and(|sections| sections.keys().all(|name| names.insert(name.get_ref())))
    })
}

/// Returns `true` if a line looks like the header `[kind]`, which TOML allows only once. Lines
/// inside multi-line strings are also considered.
fn has_header(text: &str, kind: &str) -> bool {
    let inside = |line: &'_ str| {
        let (inside, _) = line.trim_start().strip_prefix('[')?.split_once(']')?;
        Some(inside.trim().trim_matches(['"', '\'']).to_owned())
    };
    text.lines().filter_map(inside).any(|inside| inside == kind || inside.contains('\\'))
}

const LARGE: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use toml::{Table, Value};

    use super::*;

    const NAMED: &[&str] = &["pool", "vip"];

    /// Lines from which the test texts are built: headers, sub-tables, and strings that look like
    /// headers.
    const LINES: [&str; 18] = [
        "[pool.a]",
        "[pool]",
        "[ 'pool' ]",
        "[pool.b]",
        "[vip.a]",
        "[vip.a.services]",
        "[[vip.b.services]]",
        "[log]",
        "[ vip.c ]",
        "x = 1",
        "y = [\n[1],\n[2]]",
        "z = \"\"\"\n[pool.c]\n\"\"\"",
        "z = '''\n[pool.d]",
        "'''",
        "pool.e = 1",
        "vip = { d = 1 }",
        "include = ['x']",
        "# [pool.f]",
    ];

    /// Merges the tables of the pieces, two levels deep.
    fn merged(text: &str, pieces: &[Piece<'_>]) -> Table {
        let mut all = Table::new();
        let ends = pieces.iter().skip(1).map(|(base, _)| *base).chain([text.len()]);
        for ((base, _), end) in pieces.iter().zip(ends) {
            for (kind, value) in text[*base..end].parse::<Table>().unwrap() {
                match (all.get_mut(&kind), value) {
                    (Some(Value::Table(there)), Value::Table(more)) => there.extend(more),
                    (_, value) => _ = all.insert(kind, value),
                }
            }
        }
        all
    }

    proptest! {
        #[test]
        fn pieces_say_what_the_whole_says(
            lines in prop::collection::vec(prop::sample::select(&LINES[..]), 0..24),
            count in 1_usize..5,
        ) {
            let text = lines.join("\n");
            let whole = DeTable::parse_recoverable(&text);
            let Some(pieces) = parse_in_pieces(&text, count, NAMED) else { return Ok(()) };
            prop_assert!(whole.1.is_empty(), "{text}");
            prop_assert_eq!(merged(&text, &pieces), text.parse::<Table>().unwrap());
            for (base, piece) in &pieces {
                for (kind, sections) in piece.get_ref() {
                    let Some(sections) = sections.get_ref().as_table() else { continue };
                    for (name, value) in sections {
                        let same = whole.0.get_ref()[kind.get_ref().as_ref()].get_ref().as_table().unwrap();
                        let at = same[name.get_ref().as_ref()].span().start;
                        prop_assert_eq!(base + value.span().start, at, "{}.{}", kind.get_ref(), name.get_ref());
                    }
                }
            }
        }
    }

    #[test]
    fn a_large_text_of_sections_is_parsed_in_pieces() {
        let section = |number| format!("[pool.p{number}]\nbackends = [{{ name = \"b{number}\" }}]\n\n");
        let text: String = (0..100).map(section).collect();
        let pieces = parse_in_pieces(&text, 4, NAMED).unwrap();
        assert_eq!(pieces.len(), 4);
        assert!(pieces.iter().all(|(base, _)| text[*base..].starts_with("[pool.p")));
        let names = |(_, table): &Piece<'_>| table.get_ref()["pool"].get_ref().as_table().unwrap().len();
        assert_eq!(pieces.iter().map(names).sum::<usize>(), 100);
    }

    #[test]
    fn a_section_that_stands_once_is_never_parted() {
        let text = "[admin.socket]\npath = 1\n[pool.a]\nx = 1\n[admin.tcp]\naddress = 2\n";
        assert!(parse_in_pieces(text, 2, NAMED).is_none());
        assert!(parse_in_pieces(&text.replace("[admin.socket]", "[pool.c]"), 2, NAMED).is_some());
        // Only the first piece may have the key `include`.
        assert!(parse_in_pieces("[pool.a]\nx = 1_000_000_000_000\n[include.b]\nx = 1\n", 2, NAMED).is_none());
    }

    #[test]
    fn what_toml_refuses_is_parsed_whole() {
        let refused = [
            "[pool.a]\nx = 1\n\n[pool.a]\nx = 2",
            "pool = { a = 1 }\n\n\n[pool.b]\nx = 2",
            "x = 1\n[pool.a]\nx = [\n[pool.b]\n",
            "[log]\nz = '''\n[pool.d]\nz = '''\n[pool.d]\n[log]",
            "[pool]\na = { x = 1 }\n[pool.b]\n[pool]\nc = { x = 1 }",
            "[pool.a]\nx = 1\n[ pool ]\n[pool.b]\nx = 1\n['pool']",
        ];
        for text in refused {
            assert!(parse_in_pieces(text, 2, NAMED).is_none(), "{text}");
            assert!(!DeTable::parse_recoverable(text).1.is_empty(), "{text}");
        }
    }
}
