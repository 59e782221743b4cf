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
    /// When what is in force is taken back; null: it stays.
    pub confirmation: Option<ConfirmationRow>,
}

/// What is in force is taken back unless it is confirmed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfirmationRow {
    /// Number of the generation in force, which waits for it.
    pub generation: u64,
    /// Number of the last one that needs none: what it says is in force again then.
    pub returns_to: u64,
    /// When, at the latest a quarter of a second after; 0: the way back has begun, or waits for the end of a drain.
    pub ends_in_seconds: f64,
}

/// What has been confirmed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Confirmed {
    /// Number of the generation in force, which stays.
    pub generation: u64,
}

/// The last generations since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryView {
    /// Oldest first, at most 20.
    pub generations: Vec<GenerationRow>,
}

/// A generation that is in force, or was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GenerationRow {
    /// Its number.
    pub generation: u64,
    /// Time of day when it came into force.
    pub unix_seconds: u64,
    /// By what.
    pub cause: GenerationCause,
    /// By whom: `uid 0` at the socket, the certificate's name and address on TCP; null: by nobody who came by the API.
    pub by: Option<String>,
    /// Which texts it was read from, in hex, as `generation_sha256` of the status.
    pub sha256: String,
    /// Of its files, lists of prefixes included.
    pub bytes: u64,
    /// It is in force.
    pub in_force: bool,
}

/// A generation with its texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GenerationView {
    /// Which, and how it came into force.
    pub generation: GenerationRow,
    /// Its texts, as those of [`ConfigView`].
    pub files: Vec<ConfigText>,
}

/// By what a generation came into force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GenerationCause {
    /// The start of the process.
    Start,
    /// SIGHUP.
    Sighup,
    /// A change of the file, which is watched.
    Watch,
    /// An operator had the file read again.
    Reload,
    /// `PUT`.
    Put,
    /// An operator went back.
    Rollback,
    /// Nobody confirmed the one before in time.
    Unconfirmed,
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
    /// A generation that was in force before, by a way back.
    Kept,
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
