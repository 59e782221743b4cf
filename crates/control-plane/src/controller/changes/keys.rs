//! Sections as their keys and values in words, as they serialize, and what of them differs between two.
//!
//! In: what serializes. Out: `key: A -> B`, in the order of the keys' paths.
//! Not here: how a value serializes (`config`), what a change of it means (`changes`).
//! Invariant: no secret is shown; of what a file holds, only that it is another.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

/// Keys by their paths, such as `io.batch`. One that says nothing is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Keys(BTreeMap<String, Shown>);

/// A key's value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shown {
    Words(String),
    /// What is not to be shown: by its digest.
    Sealed(String),
}

/// A key whose value is another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) key: String,
    /// Such as `2s -> 1s`.
    pub(super) words: String,
}

impl Difference {
    /// Such as `interval 2s -> 1s`, for a list.
    pub(super) fn short(&self) -> String {
        format!("{} {}", self.key, self.words)
    }

    /// Such as `io.batch: 64 -> 32`.
    pub(super) fn sentence(&self) -> String {
        format!("{}: {}", self.key, self.words)
    }
}

impl Keys {
    /// The keys of a section, which stands at `path`; `""`: at the top.
    pub(super) fn of(path: &str, section: &impl Serialize) -> Self {
        let mut keys = Self::default();
        // Maps of the configuration have names for keys, and no number in it is a fraction: nothing fails to serialize.
        keys.enter(path, serde_json::to_value(section).unwrap_or_default());
        keys
    }

    /// Those whose path `keep` says.
    pub(super) fn filter(mut self, keep: impl Fn(&str) -> bool) -> Self {
        self.0.retain(|path, _| keep(path));
        self
    }

    /// With those of another section.
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

    /// What differs, in the order of the paths.
    pub(super) fn differing(&self, new: &Self) -> Vec<Difference> {
        let paths: BTreeSet<&String> = self.0.keys().chain(new.0.keys()).collect();
        let difference = |path: &String| {
            let (old, new) = (self.0.get(path), new.0.get(path));
            (old != new).then(|| Difference { key: path.clone(), words: from_to(path, old, new) })
        };
        paths.into_iter().filter_map(difference).collect()
    }
}

/// As the file has it; quoted where it would not be seen whole.
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

/// What a key without a value means, where that is not nothing.
fn absent(path: &str) -> &'static str {
    match path {
        "io.queues" | "peers" => "all",
        "slow_start" => "off",
        path if path.contains(".vlan.") => "keep",
        _ => "none",
    }
}

/// The one key of what `config` does not show.
const SEALED: &str = "sha256";
