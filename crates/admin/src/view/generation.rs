//! Generations: what is in force, where it came from, and what a new one changed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a reload did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReloadReport {
    /// Number of the generation in force now.
    pub generation: u64,
    /// From the start to the store.
    pub took_ms: f64,
    /// What is different, one sentence each; empty: nothing, and the generation keeps its number.
    pub changed: Vec<String>,
    /// What is configured and only a restart brings, such as `io.batch: 64 -> 32`; what an earlier reload brought included.
    pub needs_restart: Vec<String>,
    /// Warnings of the file, and others; one sentence each.
    pub warnings: Vec<String>,
}

/// The configuration in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigView {
    /// For `If-Match`; see [`entity_tag`].
    pub etag: String,
    /// SHA-256 over its texts, in hex.
    pub sha256: String,
    /// Where it came from.
    pub source: ConfigSource,
    /// Its texts: the file first, then what it includes; not the lists of prefixes. Never a secret: those stand in files of
    /// their own.
    pub files: Vec<ConfigText>,
}

/// Where a configuration came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConfigSource {
    /// The file.
    File,
    /// `PUT`.
    Api,
}

/// One file's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigText {
    /// Where it stands.
    pub path: String,
    /// As it was read.
    pub text: String,
}

/// The entity tag of a generation, without quotes: a number alone would return after a restart.
pub fn entity_tag(boot_id: &str, generation: u64) -> String {
    format!("{boot_id}-{generation}")
}
