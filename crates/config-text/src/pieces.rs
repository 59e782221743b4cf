//! A large TOML text, parsed in pieces side by side.
//!
//! In: a text. Out: its tables with their offsets, one for each piece; together they say what the text says.
//! A text is cut before headers `[kind.name]`, without understanding what is around them: so a cut may fall into a string
//! or a list, or part a section from its sub-tables. Then a piece does not parse, or two name one section, and the text is
//! parsed whole. Not here: what is wrong with one that is not TOML (`syntax`).
//! Invariant: what pieces say together, the whole would say too, at the same offsets.

use std::collections::{BTreeMap, BTreeSet};

use toml::Spanned;
use toml::de::DeTable;

use crate::parallel::{self, processors};

/// A piece: where it begins in its text, and what it says.
pub(crate) type Piece<'a> = (usize, Spanned<DeTable<'a>>);

/// Parses a text, in pieces when that gives the same; `None`: it is not TOML. `named` are the kinds of which
/// [`Root::named`](crate::Root::named) is asked: their sections `[kind.name]` merge.
pub(crate) fn parse<'a>(text: &'a str, named: &[&str]) -> Option<Vec<Piece<'a>>> {
    let pieces = is_large(text.len()).then(|| parse_in_pieces(text, processors(), named)).flatten();
    pieces.or_else(|| Some(vec![(0, DeTable::parse(text).ok()?)]))
}

/// Whether texts of this length are worth a thread: some milliseconds.
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

/// At most `count` pieces of about one length, each but the first beginning with a header.
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

/// Where the first line begins that is `[kind.name]`.
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

/// Whether the pieces say together what the text says: what several of them have is one of `named`, by headers
/// `[kind.name]` alone, and each name is in one piece alone.
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

/// Whether a line may be `[kind]`, which TOML allows once: what stands in a string counts too.
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

    /// Lines that make headers, sub-tables, and texts that look like headers and are none.
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

    /// What the pieces say, merged by a rule of its own: two levels deep.
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
        // Asked of the first piece alone.
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
