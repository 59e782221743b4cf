//! A section as its keys and their values in words, and what of them differs between two.
//!
//! In: pairs in the order of the file. Out: `key: A -> B`.
//! Not here: which keys a section has (`settings`, `checks`).
//! Invariant: no secret is shown; of what a file holds, only that it is another.

use std::fmt::Display;
use std::time::Duration;

use crate::digest::hex;
use config::{digest_of, format_duration};

/// A key's value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    /// As it is written in the file.
    Words(String),
    /// What is not to be shown, such as the content of a file that the key names: by its digest.
    Content([u8; 32]),
}

/// The keys of a section. One that says nothing is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys(Vec<(String, Value)>);

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
    pub(super) fn set(&mut self, key: impl Into<String>, value: impl Display) {
        self.0.push((key.into(), Value::Words(value.to_string())));
    }

    pub(super) fn time(&mut self, key: impl Into<String>, value: Duration) {
        self.set(key, format_duration(value));
    }

    pub(super) fn text(&mut self, key: impl Into<String>, value: &str) {
        self.set(key, format!("{value:?}"));
    }

    pub(super) fn content(&mut self, key: impl Into<String>, text: &str) {
        self.0.push((key.into(), Value::Content(digest_of(text))));
    }

    /// All keys, each with what tells its value from others.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (&str, String)> {
        self.0.iter().map(|(key, value)| match value {
            Value::Words(words) => (key.as_str(), words.clone()),
            Value::Content(digest) => (key.as_str(), hex(digest)),
        })
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// What differs: in the order of `self`, then what only `new` has.
    pub(super) fn differing(&self, new: &Self) -> Vec<Difference> {
        let gone = self.0.iter().map(|(key, old)| (key, Some(old), new.get(key)));
        let come = new.0.iter().filter(|(key, _)| self.get(key).is_none());
        let come = come.map(|(key, new)| (key, None, Some(new)));
        let changed = gone.chain(come).filter(|(_, old, new)| old != new);
        changed.map(|(key, old, new)| Difference { key: key.clone(), words: words(old, new) }).collect()
    }
}

fn words(old: Option<&Value>, new: Option<&Value>) -> String {
    let shown = |value: Option<&Value>| match value {
        None => "none".to_owned(),
        Some(Value::Words(words)) => words.clone(),
        Some(Value::Content(_)) => "given".to_owned(),
    };
    match (old, new) {
        (Some(Value::Content(_)), Some(Value::Content(_))) => "content changed (not shown)".to_owned(),
        _ => format!("{} -> {}", shown(old), shown(new)),
    }
}
