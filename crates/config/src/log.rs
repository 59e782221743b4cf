//! `[log]`: the level and format of the log.

use config_text::Section;
use serde::Serialize;

/// The level and the format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Log {
    /// The least severe level that is logged. Default: [`LogLevel::Info`].
    pub level: LogLevel,
    /// The format of log lines. Default: [`LogFormat::Human`].
    pub format: LogFormat,
}

/// The least severe level that is logged.
// The API has its own type for log levels, because `admin` does not depend on this crate.
// `control-plane` converts between the two (`rows/log_level_overrides.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Failures.
    Error,
    /// Events that need the attention of an operator.
    Warn,
    /// State changes.
    Info,
    /// Details for troubleshooting.
    Debug,
    /// All events.
    Trace,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people, on standard error.
    Human,
    /// The native protocol of the systemd journal, with structured fields.
    Journald,
    /// One JSON object per line, on standard error.
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
