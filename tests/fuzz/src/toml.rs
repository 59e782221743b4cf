//! Configurations, as `config put` takes them from a client.

#[path = "../../../crates/config/src/tests/total.rs"]
mod total;

mod places;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use ::toml::Table;
use config::{Config, Problems, Severity, parse_confined};

use self::places::are_due;
use self::total::are_sound;
use self::writer::{altered, respelled};

/// A configuration is read or refused with sound problems, each where its field stands. A comment more changes nothing of it, and the
/// same written by somebody else, its keys in another order, its numbers and spans in other words, says the same; with another value
/// it says something else.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match parsed(text) {
        Ok((config, warnings)) => {
            are_sound(&warnings, text, false);
            are_due(&warnings, text);
            let (again, _) = parsed(&format!("{text}\n# a comment")).expect("a comment more is no fault");
            assert!(again == config);
            let table: Table = text.parse().expect("what is taken is TOML");
            let turn =
                bytes.iter().fold(0, |sum: usize, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
            for written in [rewritten(&table), respelled(&table, turn)] {
                let (again, _) = parsed(&written).unwrap_or_else(|problems| panic!("{problems}\n{written}"));
                assert!(again == config, "{written}");
            }
            // What is used nowhere may say anything.
            if warnings.is_empty() {
                (0..4)
                    .flat_map(|more| altered(&table, turn.wrapping_add(more)))
                    .for_each(|other| says_another(&other, &config));
            }
        }
        Err(problems) => {
            are_sound(&problems, text, true);
            are_due(&problems, text);
        }
    }
}

fn says_another(text: &str, config: &Config) {
    if let Ok((other, _)) = parsed(text) {
        assert!(other != *config, "{text}");
    }
}

/// By a writer that knows TOML alone: tables by their names, no comments, each value in its one spelling.
fn rewritten(table: &Table) -> String {
    ::toml::to_string(table).expect("what was read can be written")
}

type Parsed = Result<(Config, Problems), Problems>;

fn parsed(text: &str) -> Parsed {
    parse_confined(text, &FILE, &|_| Ok("000102030405060708090a0b0c0d0e0f".to_owned()))
}

/// In a folder that is not there: nothing is included.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| Path::new("no-such-folder").join("a.toml"));

/// The example, whole and by its sections, and a small one that is taken.
pub(crate) fn files() -> Vec<Vec<u8>> {
    let sections = EXAMPLE.split("\n[").map(|section| format!("[{section}").into_bytes());
    [SMALL, EXAMPLE].map(|text| text.as_bytes().to_vec()).into_iter().chain(sections).collect()
}

const EXAMPLE: &str = include_str!("../../../config/sluicegate.toml");
const SMALL: &str = r#"[cluster]
name = "c"
hash_key_file = "k"
[machine.lb1]
addresses = ["192.0.2.1", "2001:db8::1"]
interfaces = ["eth0"]
[admin]
socket = { path = "/run/sluicegate/admin.sock" }
[bgp]
asn = 65_101
peers = [{ address = "192.0.2.0", asn = 65_000, bfd = {} }]
[check.web]
http = { port = 8080, path = "/healthz" }
interval = "2s"
[pool.web]
checks = ["web"]
backends = [{ name = "b1", address = "198.18.1.1" }, { name = "b2", address = "198.18.1.2", weight = 2 }]
[vip.www]
addresses = ["203.0.113.10"]
announce = { min_serving = 1 }
services = [{ ports = [80, 443, "8000-8010"], protocol = "tcp", pool = "web" }]
"#;

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key of the example that has a number, a span or a truth is read, and all of it: the fuzzer comes to few of them.
    #[test]
    fn a_value_that_is_another_makes_another_configuration() {
        for text in [SMALL, EXAMPLE] {
            let (config, warnings) = parsed(text).unwrap();
            assert!(warnings.is_empty(), "{warnings}");
            let table: Table = text.parse().unwrap();
            let others = (0..writer::leaves(&table)).flat_map(|leaf| altered(&table, leaf));
            assert!(others.inspect(|other| says_another(other, &config)).count() > 20);
        }
    }
}
