//! Which lines of the log are written.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The least important lines that are written, as in the file.
// Not `config`'s: this crate knows no domain type. `control-plane` converts (`rows/log_orders.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What failed.
    Error,
    /// What works and should be looked at.
    Warn,
    /// Changes of state.
    Info,
    /// For finding faults.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    /// As in JSON.
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

    /// That of this name.
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

/// Which lines are written now, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogView {
    /// The level now.
    pub level: LogLevel,
    /// That of the configuration in force, which holds while there is no order.
    pub file_level: LogLevel,
    /// An operator's order; null: there is none.
    pub order: Option<LogOrderRow>,
}

/// An operator's order, which a reload does not end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogOrderRow {
    /// The level that it asks for.
    pub level: LogLevel,
    /// Since it was given.
    pub since_seconds: f64,
    /// Who gave it: `uid 0` at the socket, the certificate's name and address on TCP.
    pub by: String,
    /// Why; null: nobody has said.
    pub reason: Option<String>,
    /// When it ends by itself.
    pub ends_in_seconds: f64,
}

/// What an order did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogChange {
    /// Whether there is another order than before.
    pub changed: bool,
    /// The level before.
    pub level_before: LogLevel,
    /// What holds now.
    #[serde(flatten)]
    pub log: LogView,
    /// What an operator should know, one sentence each.
    pub notes: Vec<String>,
}
