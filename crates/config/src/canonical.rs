//! The canonical form of a checked configuration, as serde writes it: the digest hashes it, and `config diff` compares it.
//!
//! In: values. Out: how those fields serialize whose type does not say it: durations as the file has them, what has no order
//! sorted, secrets and the content of files as their SHA-256.
//! Not here: hashing and comparing (the control plane).
//! Invariant: configurations that say the same serialize alike, whatever the order of their files; no secret is written.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use config_text::format_duration;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::ports::show;

pub(super) fn span<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format_duration(*value))
}

pub(super) fn some_span<S: Serializer>(value: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    value.map(format_duration).serialize(to)
}

pub(super) fn some_percent<S: Serializer>(value: &Option<u8>, to: S) -> Result<S::Ok, S::Error> {
    value.map(|percent| format!("{percent}%")).serialize(to)
}

/// As its `Display` writes it.
pub(super) fn words<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

/// The word of `words` that means a value.
pub(super) fn word<T: PartialEq, S: Serializer>(
    words: &[(&str, T)],
    value: &T,
    to: S,
) -> Result<S::Ok, S::Error> {
    words.iter().find(|(_, meant)| meant == value).map(|(word, _)| word).serialize(to)
}

/// A list whose order says nothing, each once.
pub(super) fn set<S: Serializer>(values: &[impl Display], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(values.iter().map(ToString::to_string).collect::<BTreeSet<_>>())
}

/// Values in their own order, whatever that of the file.
pub(super) fn sorted<S: Serializer, T: Ord + Serialize>(values: &[T], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(values.iter().collect::<BTreeSet<_>>())
}

/// A list in its order.
pub(super) fn list<S: Serializer>(values: &[impl Display], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(values.iter().map(ToString::to_string))
}

/// Names and the values that they have, in the order of the names.
pub(super) fn map<S: Serializer, K: Ord + Serialize, V: Display + PartialEq + Default>(
    values: &BTreeMap<K, V>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let said = values.iter().filter(|(_, value)| **value != V::default());
    to.collect_map(said.map(|(key, value)| (key, value.to_string())))
}

/// Numbers and ranges as the file has them.
pub(super) fn ranges<S: Serializer>(values: &[RangeInclusive<u16>], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(values.iter().map(show))
}

/// What is not shown, such as the content of a file that a key names.
#[derive(Serialize)]
pub(super) struct Sealed {
    sha256: String,
}

impl Sealed {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self { sha256: Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect() }
    }
}

pub(super) fn sealed<S: Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
    Sealed::of(text.as_bytes()).serialize(to)
}

pub(super) fn some_sealed<S: Serializer>(text: &Option<Arc<str>>, to: S) -> Result<S::Ok, S::Error> {
    text.as_ref().map(|text| Sealed::of(text.as_bytes())).serialize(to)
}

/// Headers: a value may be a password.
pub(super) fn sealed_values<S: Serializer>(
    values: &[(Arc<str>, Arc<str>)],
    to: S,
) -> Result<S::Ok, S::Error> {
    let sealed: BTreeMap<&str, Sealed> =
        values.iter().map(|(name, value)| (&**name, Sealed::of(value.as_bytes()))).collect();
    sealed.serialize(to)
}
