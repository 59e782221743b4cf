//! The log level: the configured level, or an operator's temporary override.
//!
//! The binary sets the level of the logger, and `rows` builds the API response. Invariant: an
//! override survives reloads, and every override expires.

use std::time::Duration;

use config::LogLevel;

/// The configured log level, and the active override if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevelOverrides {
    file: LogLevel,
    level_override: Option<LogLevelOverride>,
}

/// An override of the log level. Times are measured from the start of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevelOverride {
    /// The log level while the override is active.
    pub level: LogLevel,
    /// The time at which the override was set.
    pub at: Duration,
    /// The time at which the override expires.
    pub until: Duration,
    /// The operator who set the override.
    pub by: String,
    /// The reason that the operator gave.
    pub reason: Option<String>,
}

impl LogLevelOverrides {
    /// Creates the state for the configured level `file`, without an override.
    #[must_use]
    pub fn new(file: LogLevel) -> Self {
        Self { file, level_override: None }
    }

    /// Sets the configured level after a reload.
    pub fn follow(&mut self, file: LogLevel) {
        self.file = file;
    }

    /// Returns the level in effect, which is the override's level if an override is active.
    #[must_use]
    pub fn level(&self) -> LogLevel {
        self.level_override.as_ref().map_or(self.file, |level_override| level_override.level)
    }

    /// Returns the configured level.
    #[must_use]
    pub fn file(&self) -> LogLevel {
        self.file
    }

    /// Returns the active override, if any.
    #[must_use]
    pub fn level_override(&self) -> Option<&LogLevelOverride> {
        self.level_override.as_ref()
    }

    /// Sets the override, or removes it if `level_override` is `None`. Returns `true` if the level,
    /// the expiry or the reason changed.
    pub fn give(&mut self, level_override: Option<LogLevelOverride>) -> bool {
        let says = |level_override: &LogLevelOverride| {
            (level_override.level, level_override.until, level_override.reason.clone())
        };
        let changed = self.level_override.as_ref().map(says) != level_override.as_ref().map(says);
        if changed {
            self.level_override = level_override;
        }
        changed
    }

    /// Removes the override if it has expired by `now`, and returns it.
    pub fn expire(&mut self, now: Duration) -> Option<LogLevelOverride> {
        self.level_override.take_if(|level_override| level_override.until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn second(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    fn level_override(level: LogLevel, at: u64, until: u64) -> LogLevelOverride {
        let (at, until) = (second(at), second(until));
        LogLevelOverride { level, at, until, by: "uid 0".to_owned(), reason: None }
    }

    // Promise: log-level-expiry
    #[test]
    fn reload_changes_configured_level_but_not_override() {
        let mut log = LogLevelOverrides::new(LogLevel::Info);
        log.follow(LogLevel::Warn);
        assert_eq!(log.level(), LogLevel::Warn);
        assert!(log.give(Some(level_override(LogLevel::Debug, 0, 60))));
        for file in [LogLevel::Error, LogLevel::Debug, LogLevel::Trace] {
            log.follow(file);
            assert_eq!((log.level(), log.file()), (LogLevel::Debug, file));
        }
        assert!(log.give(None));
        assert_eq!((log.level(), log.level_override()), (LogLevel::Trace, None));
    }

    // Promise: log-level-expiry
    #[test]
    fn override_expires_once_and_not_early() {
        let mut log = LogLevelOverrides::new(LogLevel::Info);
        let debug = level_override(LogLevel::Debug, 0, 60);
        log.give(Some(debug.clone()));
        assert_eq!(log.expire(second(60) - Duration::from_nanos(1)), None);
        assert_eq!(log.level(), LogLevel::Debug);
        assert_eq!(log.expire(second(60)), Some(debug));
        assert_eq!((log.level(), log.expire(second(60))), (LogLevel::Info, None));
        assert!(!log.give(None), "the override has expired");
    }

    #[test]
    fn last_override_wins_with_its_expiry() {
        let mut log = LogLevelOverrides::new(LogLevel::Info);
        log.give(Some(level_override(LogLevel::Trace, 0, 10)));
        assert!(log.give(Some(level_override(LogLevel::Error, 5, 60))));
        assert_eq!((log.level(), log.expire(second(10))), (LogLevel::Error, None));
        assert!(log.expire(second(60)).is_some());
    }

    #[test]
    fn unchanged_override_reports_no_change() {
        let mut log = LogLevelOverrides::new(LogLevel::Info);
        assert!(!log.give(None), "no override was set");
        let debug = level_override(LogLevel::Debug, 0, 60);
        assert!(log.give(Some(debug.clone())));
        assert!(!log.give(Some(LogLevelOverride { at: second(1), by: "uid 1".to_owned(), ..debug.clone() })));
        assert_eq!(log.level_override(), Some(&debug), "the first operator stays recorded");
        for other in [
            LogLevelOverride { level: LogLevel::Info, ..debug.clone() },
            LogLevelOverride { until: second(61), ..debug.clone() },
            LogLevelOverride { reason: Some("b2 flaps".to_owned()), ..debug.clone() },
        ] {
            assert!(log.give(Some(other.clone())), "{other:?}");
            assert!(log.give(Some(debug.clone())));
        }
        assert!(log.give(None) && !log.give(None));
    }
}
