//! `log = { level, format }`: what is said, and in which form.
//!
//! In: the table. Out: [`Log`]; without a table its defaults. Not here: the writing (the binary's).

use config_text::Section;
use serde::Serialize;

/// What is logged, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Log {
    /// Default [`LogLevel::Info`].
    pub level: LogLevel,
    /// Default [`LogFormat::Human`].
    pub format: LogFormat,
}

/// The least important message that is still logged.
// The API has a type of its own, as `admin` knows no domain type; `control-plane` converts (`rows/log_orders.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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

/// The form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people, on standard error.
    Human,
    /// The journal's own protocol, with fields.
    Journald,
    /// One JSON object a line, on standard error.
    Json,
}

impl Log {
    pub(super) fn read(mut section: Section<'_>) -> Self {
        let default = Self::default();
        let levels = [
            ("error", LogLevel::Error),
            ("warn", LogLevel::Warn),
            ("info", LogLevel::Info),
            ("debug", LogLevel::Debug),
            ("trace", LogLevel::Trace),
        ];
        let formats =
            [("human", LogFormat::Human), ("journald", LogFormat::Journald), ("json", LogFormat::Json)];
        let log = Self {
            level: section.or("level", default.level, |node| node.choice(&levels)),
            format: section.or("format", default.format, |node| node.choice(&formats)),
        };
        section.finish();
        log
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: LogLevel::Info, format: LogFormat::Human }
    }
}
