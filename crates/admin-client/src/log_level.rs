//! Implements `sluicegate log level`, which shows the log level and sets a temporary override.

use std::process::ExitCode;

use admin::view::{LogChange, LogLevel, LogLevelOverrideRow, LogView};
use clap::{Args, Subcommand};

use crate::client::{Common, escape, whole_seconds};
use crate::failure::{usage, verdict};
use crate::table::{ago, clean, lines};

/// The subcommands of `sluicegate log`.
#[derive(Debug, Subcommand)]
pub enum LogVerb {
    /// Show the log level and its source, or set a different level for a limited time
    ///
    /// A temporary level survives a reload but not a restart. The log level does not affect
    /// `sluicegate events`.
    Level(Arguments),
}

/// The arguments of `log level`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Set this level: `error`, `warn`, `info`, `debug` or `trace`, each of which includes the
    /// levels before it. `file` returns to the configured level, with exit code 1 if there is no
    /// override
    #[arg(value_name = "LEVEL", value_parser = level)]
    level: Option<LevelOrFile>,
    /// End the override after this time, such as `10m`; 1 s to 30 days in whole seconds
    #[arg(long = "for", value_name = "DURATION", value_parser = whole_seconds, requires = "level")]
    lasts: Option<u64>,
    /// Record this reason, which `status` and `events` show
    #[arg(long, value_name = "TEXT", requires = "level")]
    reason: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// A log level, or the keyword `file` for the configured level.
#[derive(Clone, Copy, Debug)]
enum LevelOrFile {
    Level(LogLevel),
    File,
}

fn level(text: &str) -> Result<LevelOrFile, String> {
    let level = LogLevel::named(text).map(LevelOrFile::Level);
    let names = LogLevel::ALL.map(LogLevel::name).join(", ");
    level
        .or_else(|| (text == "file").then_some(LevelOrFile::File))
        .ok_or_else(|| format!("expected {names} or file"))
}

/// Runs a subcommand of `log`.
pub fn log(LogVerb::Level(asked): &LogVerb) -> anyhow::Result<ExitCode> {
    let Arguments { level, lasts, reason, common } = asked;
    let change: LogChange = match (level, lasts, reason) {
        (None, ..) => {
            common.show(&common.get::<LogView>(PATH)?, words)?;
            return Ok(ExitCode::SUCCESS);
        }
        (Some(LevelOrFile::File), None, None) => common.client()?.delete(PATH)?,
        (Some(LevelOrFile::File), ..) => {
            return Err(usage("`log level file` does not accept --for or --reason"));
        }
        (Some(LevelOrFile::Level(level)), None, _) => {
            let permanent = "set log.level in the configuration for a permanent change";
            return Err(usage(format!(
                "--for is missing, such as `log level {level} --for 10m`; {permanent}"
            )));
        }
        (Some(LevelOrFile::Level(level)), Some(seconds), reason) => {
            let reason = reason.as_ref().map(|reason| format!("&reason={}", escape(reason)));
            let path = format!("{PATH}?level={level}&for_seconds={seconds}{}", reason.unwrap_or_default());
            common.client()?.post(&path, &None::<()>)?
        }
    };
    common.show(&change, |change| words(&change.log) + &lines("note: ", &change.notes))?;
    Ok(verdict(change.changed))
}

/// Formats the log level, for example `info (from the configuration)` or `debug, set 12s ago by uid
/// 0, ends in 9m48s, reason: b2 flaps; configured level: info`.
fn words(log: &LogView) -> String {
    let text = match &log.level_override {
        None => format!("{} (from the configuration)", log.level),
        Some(level_override) => {
            format!("{}; configured level: {}", describe_override(level_override), log.file_level)
        }
    };
    clean(&text) + "\n"
}

/// Formats an override with its age, author, end and reason.
pub(crate) fn describe_override(level_override: &LogLevelOverrideRow) -> String {
    let reason =
        level_override.reason.as_ref().map(|reason| format!(", reason: {reason}")).unwrap_or_default();
    let [since, left] = [level_override.since_seconds, level_override.ends_in_seconds].map(ago);
    format!("{}, set {since} ago by {}, ends in {left}{reason}", level_override.level, level_override.by)
}

const PATH: &str = "/v1/log/level";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_level_is_printed_with_its_source() {
        let file = LogView { level: LogLevel::Warn, file_level: LogLevel::Warn, level_override: None };
        assert_eq!(words(&file), "warn (from the configuration)\n");
        let level_override = LogLevelOverrideRow {
            level: LogLevel::Debug,
            since_seconds: 12.2,
            by: "uid 0".to_owned(),
            reason: Some("b2\nflaps".to_owned()),
            ends_in_seconds: 587.8,
        };
        let view = LogView { level: LogLevel::Debug, level_override: Some(level_override.clone()), ..file };
        let said =
            "debug, set 12s ago by uid 0, ends in 9m47s, reason: b2\u{fffd}flaps; configured level: warn\n";
        assert_eq!(words(&view), said);
        assert_eq!(
            describe_override(&LogLevelOverrideRow { reason: None, ..level_override }),
            "debug, set 12s ago by uid 0, ends in 9m47s"
        );
    }
}
