//! Flattens configuration sections into keys with values, and compares them.
//!
//! Each changed key is described with its old and new value, sorted by path. Values are formatted
//! as `config` serializes them. Invariant: a changed secret is reported without its value.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

/// The keys of a section with their values. A key is a path, such as `io.batch`. Empty values are
/// omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Keys(BTreeMap<String, Shown>);

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shown {
    Words(String),
    /// The digest of a secret, which is compared but not shown.
    Sealed(String),
}

/// A key whose value changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) key: String,
    /// The old and new value, such as `2s -> 1s`.
    pub(super) words: String,
}

impl Difference {
    /// Formats the difference for a list of differences, such as `interval 2s -> 1s`.
    pub(super) fn short(&self) -> String {
        format!("{} {}", self.key, self.words)
    }

    /// Formats the difference as a sentence, such as `io.batch: 64 -> 32`.
    pub(super) fn sentence(&self) -> String {
        format!("{}: {}", self.key, self.words)
    }
}

impl Keys {
    /// Returns the keys of a section. `path` is prepended to each key and may be empty.
    pub(super) fn of(path: &str, section: &impl Serialize) -> Self {
        let mut keys = Self::default();
        // Serialization cannot fail, because map keys are strings and all numbers are integers.
        keys.enter(path, serde_json::to_value(section).unwrap_or_default());
        keys
    }

    /// Removes the keys for which `keep` returns `false`.
    pub(super) fn filter(mut self, keep: impl Fn(&str) -> bool) -> Self {
        self.0.retain(|path, _| keep(path));
        self
    }

    /// Adds the keys of another section.
    pub(super) fn join(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    fn enter(&mut self, path: &str, value: Value) {
        let shown = match value {
            Value::Null => return,
            Value::Object(map) => match map.get(SEALED) {
                Some(Value::String(digest)) if map.len() == 1 => Shown::Sealed(digest.clone()),
                _ => {
                    let dot = if path.is_empty() { "" } else { "." };
                    return map.into_iter().for_each(|(key, value)| {
                        self.enter(&format!("{path}{dot}{key}"), value);
                    });
                }
            },
            Value::Array(items) if items.is_empty() => return,
            Value::Array(items) => Shown::Words(items.iter().map(words).collect::<Vec<_>>().join(", ")),
            value => Shown::Words(words(&value)),
        };
        self.0.insert(path.to_owned(), shown);
    }

    /// Returns the keys whose values differ in `new`, sorted by path.
    pub(super) fn differing(&self, new: &Self) -> Vec<Difference> {
        let paths: BTreeSet<&String> = self.0.keys().chain(new.0.keys()).collect();
        let difference = |path: &String| {
            let (old, new) = (self.0.get(path), new.0.get(path));
            (old != new).then(|| Difference { key: path.clone(), words: from_to(path, old, new) })
        };
        paths.into_iter().filter_map(difference).collect()
    }
}

/// Formats a value as it is written in the configuration. A value with invisible characters is
/// quoted.
fn words(value: &Value) -> String {
    match value {
        Value::String(text) => {
            let hidden = |c: char| c == '"' || c.is_control();
            let plain = !text.is_empty() && text.trim() == text && !text.contains(hidden);
            if plain { text.clone() } else { format!("{text:?}") }
        }
        value => value.to_string(),
    }
}

fn from_to(path: &str, old: Option<&Shown>, new: Option<&Shown>) -> String {
    let shown = |value: Option<&Shown>| match value {
        None => absent(path).to_owned(),
        Some(Shown::Words(words)) => words.clone(),
        Some(Shown::Sealed(_)) => "given".to_owned(),
    };
    match (old, new) {
        (Some(Shown::Sealed(_)), Some(Shown::Sealed(_))) => "content changed (not shown)".to_owned(),
        _ => format!("{} -> {}", shown(old), shown(new)),
    }
}

/// Returns the text to show for a missing key, which describes the default.
fn absent(path: &str) -> &'static str {
    match path {
        "io.queues" | "peers" => "all",
        "slow_start" => "off",
        path if path.contains(".vlan.") => "keep",
        _ => "none",
    }
}

/// The key under which a secret is serialized as its digest.
const SEALED: &str = "sha256";
