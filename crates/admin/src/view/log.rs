//! The log level.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The log level, which is the least severe level of the log lines that are written. The levels are
/// the same as in the configuration.
// This crate does not depend on crates with domain types, so it defines its own type for the log
// level. The crate `control-plane` converts the type (`rows/log_level_overrides.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Failures.
    Error,
    /// Problems that need attention.
    Warn,
    /// Changes of state.
    Info,
    /// Details for troubleshooting.
    Debug,
    /// All log lines.
    Trace,
}

impl LogLevel {
    /// All levels.
    pub const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    /// Returns the name of the level in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }

    /// Returns the level with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The current log level and its origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogView {
    /// The current level.
    pub level: LogLevel,
    /// The configured level, which applies if there is no override.
    pub file_level: LogLevel,
    /// The override of an operator, or null if there is none.
    pub level_override: Option<LogLevelOverrideRow>,
}

/// A log level set by an operator. The override survives a reload, but not a restart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogLevelOverrideRow {
    /// The level of the override.
    pub level: LogLevel,
    /// The time since the override was set, in seconds.
    pub since_seconds: f64,
    /// The client that set the override, such as `uid 0` for a client on the socket, or the
    /// certificate name and address of a TCP client.
    pub by: String,
    /// The reason given by the operator, or null.
    pub reason: Option<String>,
    /// The time until the override ends, in seconds.
    pub ends_in_seconds: f64,
}

/// The result of a log level change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogChange {
    /// `true` if the override changed.
    pub changed: bool,
    /// The level before the change.
    pub level_before: LogLevel,
    /// The current log level.
    #[serde(flatten)]
    pub log: LogView,
    /// Notes for the operator. Each note is one sentence.
    pub notes: Vec<String>,
}
