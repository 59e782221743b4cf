//! Builds the API response for the log level and its override.

use std::time::Duration;

use admin::view::{self, LogChange, LogLevelOverrideRow, LogView};

use crate::log_level_overrides::{LogLevelOverride, LogLevelOverrides};

impl LogLevelOverrides {
    /// Sets the log level override, or removes it if `level_override` is `None`. Returns the levels
    /// before and after the change, with notes for the operator. `now` is the time since the
    /// process started.
    pub fn answer(&mut self, level_override: Option<admin::LogLevelOverride>, now: Duration) -> LogChange {
        let (level_before, is_order) = (level_shown(self.level()), level_override.is_some());
        let changed =
            self.give(level_override.map(|level_override| LogLevelOverride::of(level_override, now)));
        let log = self.view(now);
        let mut notes = Vec::new();
        if !changed {
            let why = if is_order { "this override is already active" } else { "no override is active" };
            notes.push(format!("nothing changed, because {why}"));
        }
        if is_order && log.level == log.file_level {
            notes.push(format!("the configured level is also {}", log.level));
        }
        LogChange { changed, level_before, log, notes }
    }

    /// Returns the level in effect, the configured level, and the override if there is one.
    #[must_use]
    pub fn view(&self, now: Duration) -> LogView {
        let [level, file_level] = [self.level(), self.file()].map(level_shown);
        LogView { level, file_level, level_override: self.row(now) }
    }

    /// Returns the row for the active override, if any.
    #[must_use]
    pub fn row(&self, now: Duration) -> Option<LogLevelOverrideRow> {
        self.level_override().map(|level_override| LogLevelOverrideRow {
            level: level_shown(level_override.level),
            since_seconds: now.saturating_sub(level_override.at).as_secs_f64(),
            by: level_override.by.clone(),
            reason: level_override.reason.clone(),
            ends_in_seconds: level_override.until.saturating_sub(now).as_secs_f64(),
        })
    }
}

impl LogLevelOverride {
    fn of(level_override: admin::LogLevelOverride, now: Duration) -> Self {
        let admin::LogLevelOverride { level, lasts, by, reason } = level_override;
        Self { level: meant(level), at: now, until: now + lasts, by, reason }
    }
}

const fn meant(level: view::LogLevel) -> config::LogLevel {
    match level {
        view::LogLevel::Error => config::LogLevel::Error,
        view::LogLevel::Warn => config::LogLevel::Warn,
        view::LogLevel::Info => config::LogLevel::Info,
        view::LogLevel::Debug => config::LogLevel::Debug,
        view::LogLevel::Trace => config::LogLevel::Trace,
    }
}

const fn level_shown(level: config::LogLevel) -> view::LogLevel {
    match level {
        config::LogLevel::Error => view::LogLevel::Error,
        config::LogLevel::Warn => view::LogLevel::Warn,
        config::LogLevel::Info => view::LogLevel::Info,
        config::LogLevel::Debug => view::LogLevel::Debug,
        config::LogLevel::Trace => view::LogLevel::Trace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level_override(level: view::LogLevel, lasts: u64) -> Option<admin::LogLevelOverride> {
        let (lasts, by) = (Duration::from_secs(lasts), "uid 0".to_owned());
        Some(admin::LogLevelOverride { level, lasts, by, reason: Some("b2 flaps".to_owned()) })
    }

    #[test]
    fn levels_convert_in_both_directions() {
        for level in view::LogLevel::ALL {
            assert_eq!(level_shown(meant(level)), level);
        }
    }

    #[test]
    fn answer_has_levels_and_expiry() {
        let mut log = LogLevelOverrides::new(config::LogLevel::Info);
        let change = log.answer(level_override(view::LogLevel::Debug, 60), Duration::from_secs(5));
        let levels = (change.level_before, change.log.level, change.log.file_level);
        assert_eq!(levels, (view::LogLevel::Info, view::LogLevel::Debug, view::LogLevel::Info));
        assert!(change.changed && change.notes.is_empty(), "{change:?}");
        let row = log.row(Duration::from_secs(15)).unwrap();
        let times = (row.since_seconds, row.ends_in_seconds);
        assert_eq!((times, row.by, row.reason), ((10.0, 50.0), "uid 0".into(), Some("b2 flaps".into())));
        let again = log.answer(level_override(view::LogLevel::Debug, 60), Duration::from_secs(5));
        let why = "nothing changed, because this override is already active";
        assert_eq!((again.changed, &*again.notes[0]), (false, why));
    }

    #[test]
    fn command_without_effect_returns_a_note() {
        let mut log = LogLevelOverrides::new(config::LogLevel::Info);
        let change = log.answer(None, Duration::ZERO);
        assert_eq!(
            (change.changed, &*change.notes[0]),
            (false, "nothing changed, because no override is active")
        );
        let change = log.answer(level_override(view::LogLevel::Info, 60), Duration::ZERO);
        assert!(change.changed && change.notes[0] == "the configured level is also info", "{change:?}");
        assert!(log.answer(None, Duration::ZERO).changed);
    }
}
