//! Generations of the configuration, and the result of a configuration change.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The result of a configuration change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReloadReport {
    /// The number of the current generation.
    pub generation: u64,
    /// The time from the start of the change to the publication of the new generation, in
    /// milliseconds.
    pub took_ms: f64,
    /// The changes. Each change is described in one sentence. An empty list means that the
    /// configuration is the same, and the generation keeps its number.
    pub changed: Vec<String>,
    /// The changed settings that need a restart, such as `io.batch: 64 -> 32`. The list includes
    /// settings that earlier reloads changed.
    pub needs_restart: Vec<String>,
    /// Warnings for the operator, one sentence each, for example about the configuration.
    pub warnings: Vec<String>,
    /// The pending confirmation, or null if the change is permanent.
    pub confirmation: Option<ConfirmationRow>,
}

/// The pending confirmation of a trial generation, which is rolled back unless it is confirmed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConfirmationRow {
    /// The number of the current generation, which waits for confirmation.
    pub generation: u64,
    /// The number of the last permanent generation. The configuration of that generation is
    /// restored if the current generation is not confirmed in time.
    pub returns_to: u64,
    /// The time until the rollback in seconds, accurate to a quarter of a second. 0 if the rollback
    /// has started or waits for the end of a drain.
    pub ends_in_seconds: f64,
}

/// The result of a confirmation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Confirmed {
    /// The number of the current generation, which is now permanent.
    pub generation: u64,
}

/// The most recent generations since the start of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryView {
    /// The generations, oldest first, at most 20.
    pub generations: Vec<GenerationRow>,
}

/// A current or earlier generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GenerationRow {
    /// The number of the generation.
    pub generation: u64,
    /// The time when the generation became active, in seconds since 1970.
    pub unix_seconds: u64,
    /// The cause of the change.
    pub cause: GenerationCause,
    /// The client that requested the change, such as `uid 0` for a client on the socket, or the
    /// certificate name and address of a TCP client. The value is null if the change did not come
    /// through the API.
    pub by: Option<String>,
    /// The digest of the configuration files in hex. The field `generation_sha256` of the status
    /// contains the same value.
    pub sha256: String,
    /// The total size of the files in bytes, including prefix lists.
    pub bytes: u64,
    /// `true` for the current generation.
    pub in_force: bool,
}

/// A generation with its configuration files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GenerationView {
    /// The number and origin of the generation.
    pub generation: GenerationRow,
    /// The configuration files: the main file first, then the included files.
    pub files: Vec<ConfigText>,
}

/// The cause of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GenerationCause {
    /// The start of the process.
    Start,
    /// The signal SIGHUP.
    Sighup,
    /// A change of the configuration file, which the process watches.
    Watch,
    /// A reload command of an operator.
    Reload,
    /// An upload with `PUT /v1/config`.
    Put,
    /// A rollback command of an operator.
    Rollback,
    /// The rollback of a generation that was not confirmed in time.
    Unconfirmed,
}

/// The current configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigView {
    /// The entity tag for the `If-Match` header.
    pub etag: String,
    /// The SHA-256 digest of all files in hex.
    pub sha256: String,
    /// The origin of the configuration.
    pub source: ConfigSource,
    /// The configuration files: the main file first, then the included files. Prefix lists and
    /// secrets are in separate files, which are not included.
    pub files: Vec<ConfigText>,
}

/// The origin of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ConfigSource {
    /// The configuration file on disk.
    File,
    /// An upload with `PUT /v1/config`.
    Api,
    /// An earlier generation, restored by a rollback.
    Kept,
}

/// A configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigText {
    /// The path of the file.
    pub path: String,
    /// The content of the file at the time of the reload.
    pub text: String,
}

/// Returns the entity tag of a generation, without quotes. The tag contains the boot ID, because
/// generation numbers repeat after a restart.
pub fn entity_tag(boot_id: &str, generation: u64) -> String {
    format!("{boot_id}-{generation}")
}
