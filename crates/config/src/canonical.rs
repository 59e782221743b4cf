//! Serializes a checked configuration in a canonical form, which is hashed for the digest and
//! compared by `config diff`.
//!
//! Configurations with the same content have the same canonical form, even if their sections and
//! files are in a different order. Durations are written as in the configuration, and lists whose
//! order has no effect are sorted. Secrets and the content of files are replaced by their SHA-256.

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

pub(super) fn percent<S: Serializer>(value: &u8, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{value}%"))
}

pub(super) fn some_percent<S: Serializer>(value: &Option<u8>, to: S) -> Result<S::Ok, S::Error> {
    value.map(|percent| format!("{percent}%")).serialize(to)
}

/// Serializes a value in its `Display` form.
pub(super) fn words<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

/// Serializes a value as the keyword that represents it in the configuration.
pub(super) fn word<T: PartialEq, S: Serializer>(
    words: &[(&str, T)],
    value: &T,
    to: S,
) -> Result<S::Ok, S::Error> {
    words.iter().find(|(_, meant)| meant == value).map(|(word, _)| word).serialize(to)
}

/// Serializes a list whose order has no effect, in sorted order and without duplicates.
pub(super) fn set<S: Serializer>(values: &[impl Display], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(values.iter().map(ToString::to_string).collect::<BTreeSet<_>>())
}

/// Serializes a list whose order has no effect, in the sort order of its element type.
pub(super) fn sorted<S: Serializer, T: Ord + Serialize>(values: &[T], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(values.iter().collect::<BTreeSet<_>>())
}

/// Serializes a list in the order of its elements.
pub(super) fn list<S: Serializer>(values: &[impl Display], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(values.iter().map(ToString::to_string))
}

/// Serializes a map sorted by key. Default values are omitted.
pub(super) fn map<S: Serializer, K: Ord + Serialize, V: Display + PartialEq + Default>(
    values: &BTreeMap<K, V>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let set = values.iter().filter(|(_, value)| **value != V::default());
    to.collect_map(set.map(|(key, value)| (key, value.to_string())))
}

/// Serializes ports or status codes as in the configuration: single numbers or ranges.
pub(super) fn ranges<S: Serializer>(values: &[RangeInclusive<u16>], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(values.iter().map(show))
}

/// The SHA-256 digest of a string that must not be shown, such as the content of a file.
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

/// Header values are hashed, because they may be passwords.
pub(super) fn sealed_values<S: Serializer>(
    values: &[(Arc<str>, Arc<str>)],
    to: S,
) -> Result<S::Ok, S::Error> {
    let sealed: BTreeMap<&str, Sealed> =
        values.iter().map(|(name, value)| (&**name, Sealed::of(value.as_bytes()))).collect();
    sealed.serialize(to)
}
