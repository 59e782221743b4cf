//! A fuzz target for configurations that a client sends with `config put`.

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

/// Checks that a configuration is either accepted or rejected with problems at the right positions.
/// An added comment must not change the result. Reordering the keys or spelling the values
/// differently must not change the configuration. Changing one value must change the configuration.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match parsed(text) {
        Ok((config, warnings)) => {
            are_sound(&warnings, text, false);
            are_due(&warnings, text);
            let (again, _) =
                parsed(&format!("{text}\n# a comment")).expect("an additional comment is rejected");
            assert!(again == config);
            let table: Table = text.parse().expect("the accepted text is not TOML");
            let turn =
                bytes.iter().fold(0, |sum: usize, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
            for written in [rewritten(&table), respelled(&table, turn)] {
                let (again, _) = parsed(&written).unwrap_or_else(|problems| panic!("{problems}\n{written}"));
                assert!(again == config, "{written}");
            }
            // A warning may mean that a value has no effect. In this case, a different value
            // results in the same configuration.
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

/// Writes the table with the `toml` crate, which drops comments and writes each value in one
/// standard form.
fn rewritten(table: &Table) -> String {
    ::toml::to_string(table).expect("the table cannot be written")
}

type Parsed = Result<(Config, Problems), Problems>;

fn parsed(text: &str) -> Parsed {
    parse_confined(text, &FILE, &|_| Ok("000102030405060708090a0b0c0d0e0f".to_owned()))
}

/// The path of the configuration file. The folder in this path does not exist, so the configuration
/// cannot include other files.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| Path::new("no-such-folder").join("a.toml"));

/// Returns the seeds: the example configuration, each of its sections, and a small valid
/// configuration.
pub(crate) fn files() -> Vec<Vec<u8>> {
    let sections = EXAMPLE.split("\n[").map(|section| format!("[{section}").into_bytes());
    [SMALL, EXAMPLE].map(|text| text.as_bytes().to_vec()).into_iter().chain(sections).collect()
}

const EXAMPLE: &str = include_str!("../../../crates/config/every-key.toml");
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

    /// Checks that changing any number, duration or boolean of the example changes the
    /// configuration. The fuzzer alone would change only a few of these values.
    #[test]
    fn changed_value_changes_the_configuration() {
        for text in [SMALL, EXAMPLE] {
            let (config, warnings) = parsed(text).unwrap();
            assert!(warnings.is_empty(), "{warnings}");
            let table: Table = text.parse().unwrap();
            let others = (0..writer::leaves(&table)).flat_map(|leaf| altered(&table, leaf));
            assert!(others.inspect(|other| says_another(other, &config)).count() > 20);
        }
    }
}
