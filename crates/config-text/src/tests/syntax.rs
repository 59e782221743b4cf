//! Tests of texts with syntax errors or duplicate keys. Each mistake causes one problem, on its
//! line.

use proptest::prelude::*;
use toml::de::DeTable;

use crate::statements::statements;
use crate::steps;
use crate::syntax::repair;

/// Valid configuration text with eight statements in four sections.
const TEXT: &str = "\
[machine.lb1]
addresses = [\"192.0.2.1\"]
[pool.web]
backends = [
  { name = \"b1\", address = \"198.18.1.1\" }, # one
  { name = \"b2\", address = \"198.18.1.2\" },
]
[vip.www]
addresses = [\"203.0.113.10\"]
services = [{ ports = [80], pool = \"web\" }]

[vip.api]
addresses = [\"203.0.113.11\"]
services = [{ ports = [80], pool = \"web\" }]
";

/// Returns the line and message of each error, and the keys of the sections that can still be read.
fn flaws(text: &str) -> (Vec<String>, Vec<String>) {
    let (left, flaws) = repair(text);
    assert_eq!(left.len(), text.len());
    let line = |at: usize| text[..at].matches('\n').count() + 1;
    let flaws = flaws.iter().map(|flaw| {
        let help = flaw.message.help.as_deref().unwrap_or_default();
        format!("{}: {}, {help}", line(flaw.offset), flaw.message.text)
    });
    let table: toml::Table = left.parse().unwrap();
    let kinds = table.iter().flat_map(|(kind, names)| {
        names.as_table().unwrap().iter().map(move |(name, keys)| {
            let keys: Vec<&str> = keys.as_table().unwrap().keys().map(String::as_str).collect();
            format!("{kind}.{name}: {}", keys.join(" "))
        })
    });
    (flaws.collect(), kinds.collect())
}

#[test]
fn missing_bracket_is_one_problem_at_its_line() {
    let missing = |line: usize, part: &str, with: &str| {
        let lines = TEXT.lines().enumerate().map(|(at, text)| {
            assert!(at + 1 != line || text.contains(part), "{line}: {text}");
            if at + 1 == line { text.replacen(part, with, 1) } else { text.to_owned() }
        });
        flaws(&lines.collect::<Vec<_>>().join("\n"))
    };
    let closed = |line: usize, words: &str| format!("{line}: {words}");
    let list = "`[` is not closed, add `]`";
    let whole = [
        "machine.lb1: addresses",
        "pool.web: backends",
        "vip.api: addresses services",
        "vip.www: addresses services",
    ];
    for ((line, part, with), words, lost) in [
        ((1, "]", ""), list, (0, None)),
        ((3, "]", ""), list, (1, None)),
        ((12, "]", ""), list, (2, None)),
        ((2, "]", ""), list, (0, Some("machine.lb1: "))),
        ((9, "]", ""), list, (3, Some("vip.www: services"))),
        ((10, "80]", "80"), list, (3, Some("vip.www: addresses"))),
        ((10, "}]", "}"), list, (3, Some("vip.www: addresses"))),
        ((10, "}]", "]"), "`{` is not closed, add `}`", (3, Some("vip.www: addresses"))),
        ((14, "}]", "}"), list, (2, Some("vip.api: addresses"))),
        ((14, "}]", ""), "`{` is not closed, add `}`", (2, Some("vip.api: addresses"))),
    ] {
        let (found, left) = missing(line, part, with);
        assert_eq!(found, [closed(line, words)], "{line} {part}");
        let mut expected: Vec<&str> = whole.to_vec();
        match lost.1 {
            Some(less) => expected[lost.0] = less,
            None => _ = expected.remove(lost.0),
        }
        assert_eq!(left, expected, "{line} {part}");
    }
    // If a list spans several lines, the error is reported on the line where the bracket is
    // missing, and contains the line number of the opening bracket.
    let (found, left) = missing(7, "]", "");
    assert_eq!(found, [closed(6, "`[` on line 4 is not closed, add `]`")]);
    assert_eq!(left[1], "pool.web: ");
}

#[test]
fn every_cause_is_told_once_and_in_its_order() {
    let text = TEXT.replacen("lb1]", "lb1", 1).replace("\"203.0.113.10\"]", "\"203.0.113.10]").replace(
        "[80], pool = \"web\" }]\n\n",
        "[80, pool = \"web\" }]\nservices = 1\n= 3\n[vip.www]\nx = 1\n[vip.www]\n",
    );
    let (found, _) = flaws(&text);
    let lines: Vec<&str> = found.iter().map(|flaw| flaw.split(' ').next().unwrap()).collect();
    assert_eq!(lines, ["1:", "9:", "10:", "12:", "13:", "15:"], "{found:#?}");
    assert_eq!(found[4], "13: section [vip.www] is defined twice, the first definition is on line 8");
    let many = "= 1\n".repeat(1_000) + "x = 1\n";
    let (left, flaws) = repair(&many);
    assert_eq!((flaws.len(), left.trim()), (20, ""), "text remains after the last error");
    // Even a large text is parsed twice.
    let large = "= 1\n".repeat(3) + &"# a comment\n".repeat(1 << 20);
    assert_eq!(repair(&large).1.len(), 2);
}

#[test]
fn what_is_given_twice_names_both_places() {
    for (more, flaw) in [
        (
            "[vip.www]\naddresses = []\nservices = []\n",
            "15: section [vip.www] is defined twice, the first definition is on line 8".to_owned(),
        ),
        (
            "[ 'vip' . \"www\" ] # again\n",
            "15: section [vip.www] is defined twice, the first definition is on line 8".to_owned(),
        ),
        (
            "services = []\n",
            "15: key \"vip.api.services\" is defined twice, the first definition is on line 14".to_owned(),
        ),
        (
            "a.b = 1\n\n\"a\".b = 2\n",
            "17: key \"vip.api.a.b\" is defined twice, the first definition is on line 15".to_owned(),
        ),
        ("a = 1\na.b = 2\n", "16: ".to_owned()),
        ("x = { a = 1, a = 2 }\n", "15: a key is defined twice in one table, ".to_owned()),
        (
            "[[vip.y.services]]\na = 1\n[[vip.y.services]]\na = 1\na = 2\n",
            "19: key \"vip.y.services.a\" is defined twice, the first definition is on line 18".to_owned(),
        ),
    ] {
        let (found, _) = flaws(&format!("{TEXT}{more}"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&flaw), "{found:?} not {flaw}");
    }
}

proptest! {
    /// For any text, the part that can be read is valid TOML unless the error limit was reached,
    /// and statements do not overlap.
    #[test]
    fn any_text_is_mended_within_its_length(
        parts in prop::collection::vec(prop::sample::select(&PARTS[..]), 0..24),
    ) {
        let text = parts.concat();
        let (left, flaws) = repair(&text);
        prop_assert!(left.len() == text.len() || flaws.len() == 20);
        prop_assert_eq!(flaws.is_empty(), DeTable::parse(&text).is_ok(), "{}", text);
        prop_assert!(flaws.iter().all(|flaw| flaw.offset <= text.len()));
        let all = statements(&text);
        prop_assert!(all.windows(2).all(|two| two[0].range.end <= two[1].range.start));
        prop_assert!(all.iter().all(|one| one.keys.start >= one.range.start && text.get(one.range.clone()).is_some()));
    }

    /// Valid TOML is split only between statements, so each statement is valid TOML on its own.
    #[test]
    fn statements_of_what_is_right_are_right_one_by_one(
        parts in prop::collection::vec(prop::sample::select(&PARTS[..]), 0..12),
    ) {
        let text = parts.concat();
        if DeTable::parse(&text).is_ok() {
            for one in statements(&text) {
                prop_assert!(one.unclosed.is_none(), "{text}");
                prop_assert!(DeTable::parse(&text[one.range.clone()]).is_ok(), "{} in {text}", &text[one.range]);
            }
        }
    }
}

const PARTS: [&str; 26] = [
    "[a.b]\n",
    "[[a.c]]\n",
    "x = 1\n",
    "y = [\n1,\n[2],\n",
    "]\n",
    "z = {",
    "}\n",
    "k = \"é\"\n",
    "\"",
    "'",
    "\"\"\"\n",
    "'''",
    "# [a]\n",
    "\n",
    "é",
    "=",
    "[",
    "]",
    "v = '''\n[q]\n'''\n",
    "w = \"a\\\"b\" # \"\n",
    "[d\n",
    "s = [true, [\n\"[e]\"\n]]\n",
    "t.u = { v = [\n] }\n",
    "\\",
    "\r\n",
    ",",
];

/// The parts of broken texts: a start, an opening part and a closing part. The last two parts are
/// repeated.
const BROKEN: [(&str, &str, &str); 9] = [
    ("a = ", "[", ""),
    ("a = ", "{", "]"),
    ("a = ", "[", "}"),
    ("a = ", "[{", "]"),
    ("a = ", "{[", "}}"),
    ("", "a = [\n", "]"),
    ("", "a = [\n# b\n", "[c]\n"),
    ("", "a = \"\n", "\"\"\"\n"),
    ("", "[\"\"\"\n", "['''\n"),
];

#[test]
fn cost_of_broken_texts_is_linear() {
    for (start, open, close) in BROKEN {
        let steps = |count| {
            let text = format!("{start}{}{}", open.repeat(count), close.repeat(count));
            steps::of(|| drop(statements(&text)))
        };
        let few = steps(1_000);
        let many = steps(8_000);
        assert!(many <= 9 * few, "{open:?} {close:?}: {few} steps, {many} steps for 8 times the length");
    }
}
