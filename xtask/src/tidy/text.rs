//! Checks the text of one file.
//!
//! The checked rules are about file sizes, file names, module headers, unfinished work, unsafe code
//! and IP addresses. A finding has the form `file:line: what`.

use std::net::Ipv4Addr;
use std::path::Path;

/// Returns the findings in one file. The argument `name` is the path of the file, relative to the
/// checkout.
pub(super) fn check(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let code = name.ends_with(".rs") || name.ends_with(".c");
    let lines = text.lines().count();
    if code && lines > MAX_LINES {
        found.push(format!("{name}:1: the file has {lines} lines, more than {MAX_LINES}"));
    }
    let stem = Path::new(name).file_stem().unwrap_or_default().to_string_lossy();
    if code && VAGUE.contains(&&*stem) {
        found.push(format!("{name}:1: a module must be named after its content, not {stem:?}"));
    }
    if name.ends_with(".rs") {
        let header = header_lines(text);
        // A file `tests.rs` contains the tests of its parent module and needs no header.
        let least = usize::from(stem != "tests");
        if !(least..=MAX_HEADER).contains(&header) {
            found.push(format!("{name}:1: the module header has {header} lines; it needs 1 to {MAX_HEADER}"));
        }
        let is_root = name.ends_with("src/lib.rs") || name.ends_with("src/main.rs");
        let may_be_unsafe = UNSAFE.iter().any(|folder| name.starts_with(folder));
        if is_root && !may_be_unsafe && !text.contains("#![forbid(unsafe_code)]") {
            found.push(format!("{name}:1: #![forbid(unsafe_code)] is missing"));
        }
    }
    found.extend(text.lines().enumerate().flat_map(|(n, line)| check_line(name, code, n + 1, line)));
    found
}

fn check_line(name: &str, code: bool, at: usize, line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let door = DOORS.iter().find(|(foreign, door)| line.contains(&foreign.concat()) && name != *door);
    if let Some((foreign, door)) = door.filter(|_| code && !name.starts_with("xtask/")) {
        found.push(format!("{name}:{at}: {} may be named only in {door}", foreign.concat()));
    }
    let unfinished =
        UNFINISHED.iter().find(|parts| line.contains(&parts.concat())).map(|parts| parts.concat());
    if let Some(mark) = unfinished.filter(|_| code) {
        found.push(format!("{name}:{at}: unfinished code, {mark}"));
    }
    if code && is_long_comment(line) {
        found.push(format!("{name}:{at}: the comment is wider than {COMMENT_COLUMNS} columns"));
    }
    for address in foreign_addresses(line) {
        found.push(format!("{name}:{at}: {address} is not in a documentation range"));
    }
    found
}

/// Returns the number of header lines before the first section or example.
fn header_lines(text: &str) -> usize {
    let ends = ["//! #", "//! ```"];
    let header = text.lines().take_while(|line| line.starts_with("//!"));
    header.take_while(|line| !ends.iter().any(|end| line.starts_with(end))).count()
}

/// Returns `true` for a comment that is too long and could be wrapped. Quotations of RFCs keep
/// their line breaks.
fn is_long_comment(line: &str) -> bool {
    let text = line.trim_start();
    let is_quote = text.starts_with("//=") || text.starts_with("//#");
    text.starts_with("//") && !is_quote && text.contains(' ') && line.chars().count() > COMMENT_COLUMNS
}

/// Returns the IPv4 addresses in a line that are not reserved for documentation or a different
/// special use. Section numbers that follow `§` are skipped.
fn foreign_addresses(line: &str) -> Vec<Ipv4Addr> {
    let numbered = |c: char| c.is_ascii_digit() || c == '.';
    let parts = line.split('§').enumerate();
    let parts = parts.map(|(n, part)| if n == 0 { part } else { part.trim_start_matches(numbered) });
    parts.flat_map(foreign_in).collect()
}

fn foreign_in(part: &str) -> Vec<Ipv4Addr> {
    let words = part.split(|c: char| !c.is_ascii_digit() && c != '.').map(|word| word.trim_matches('.'));
    words.filter_map(|word| word.parse().ok()).filter(|&address| !is_for_documents(address)).collect()
}

fn is_for_documents(address: Ipv4Addr) -> bool {
    let [a, b, ..] = address.octets();
    address.is_documentation() || (a == 198 && b & 0xfe == 18) || a == 0 || a == 127 || a >= 224
}

const MAX_LINES: usize = 600;
const MAX_HEADER: usize = 16;
const COMMENT_COLUMNS: usize = 100;
const VAGUE: [&str; 5] = ["utils", "util", "common", "helpers", "misc"];
const UNSAFE: [&str; 2] = ["crates/datapath/", "crates/conntrack/"];
/// Crates that must remain replaceable by changing a single file. Only the given file may name such
/// a crate.
const DOORS: [([&str; 2], &str); 2] =
    [(["rustbgpd", "_wire"], "crates/bgp/src/codec.rs"), (["rustbgpd", "_fsm"], "crates/bgp/src/machine.rs")];
/// The words are split, so that this check does not find them in its own source file.
const UNFINISHED: [[&str; 2]; 6] =
    [["to", "do!("], ["unimple", "mented!("], ["db", "g!("], ["FIX", "ME"], ["XX", "X"], ["TO", "DO"]];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tidy_file_has_no_finding() {
        assert_eq!(check("crates/x/src/lib.rs", "//! X.\n#![forbid(unsafe_code)]\n"), [""; 0]);
        assert_eq!(check("crates/x/src/tests.rs", "use super::*;\n"), [""; 0]);
        assert_eq!(
            check("crates/x/src/x.rs", &format!("//! X.\n//! # More\n{}", "//! x\n".repeat(20))),
            [""; 0]
        );
        assert_eq!(check("README.md", "198.18.0.1, 198.19.255.255, §3.2.2.6"), [""; 0]);
        assert_eq!(check("README.md", "VIP 203.0.113.10, version 1.95.0, 0.0.0.20/7, 224.0.0.1"), [""; 0]);
    }

    #[test]
    fn each_rule_finds_its_violation() {
        let long = format!("//! X.\n{}", "\n".repeat(MAX_LINES));
        let foreign = [10, 0, 0, 1].map(|part| part.to_string()).join(".");
        for (name, text, word) in [
            ("crates/x/src/long.rs", long.as_str(), "601 lines"),
            ("crates/x/src/utils.rs", "//! X.\n", "named"),
            ("crates/x/src/plain.rs", "fn x() {}\n", "header has 0"),
            ("crates/x/src/long.rs", &"//! X.\n".repeat(17), "header has 17"),
            ("crates/x/src/lib.rs", "//! X.\n", "forbid"),
            ("crates/x/src/x.rs", &format!("//! X.\n// {}", UNFINISHED[3].concat()), "unfinished"),
            (
                "crates/bgp/src/peer.rs",
                "//! X.\nuse rustbgpd_fsm as fsm;\n",
                "only in crates/bgp/src/machine.rs",
            ),
            ("crates/x/src/x.rs", &format!("//! X.\n// {}", "word ".repeat(20)), "columns"),
            ("README.md", &format!("ping {foreign}."), "documentation range"),
            ("README.md", &format!("see §3.2.2.6 of 198.{}", "20.0.1"), "is not in a documentation range"),
            ("README.md", &format!("198.{}", "17.0.1"), "documentation range"),
        ] {
            let found = check(name, text);
            assert!(found.len() == 1 && found[0].contains(word), "{name}: {found:?}");
        }
        assert_eq!(check("crates/datapath/src/lib.rs", "//! X.\n"), [""; 0]);
    }
}
