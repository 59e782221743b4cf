//! `sluicegate log level`: which lines of the log are written, and an operator's order of others.

use std::process::ExitCode;

use admin::view::{LogChange, LogLevel, LogOrderRow, LogView};
use clap::{Args, Subcommand};

use crate::client::{Common, escape};
use crate::failure::{usage, verdict};
use crate::operate::whole_seconds;
use crate::table::{ago, clean, lines};

/// `sluicegate log`.
#[derive(Debug, Subcommand)]
pub enum LogVerb {
    /// Show the level of the log, the file's, and who ordered what until when; with LEVEL order another one for a while.
    ///
    /// An order outlives a reload, not a restart. The events keep their own lines, whatever is written.
    Level(Arguments),
}

/// Which level, and how long.
#[derive(Debug, Args)]
pub struct Arguments {
    /// `error`, `warn`, `info`, `debug` or `trace`, each with what stands before it; `file` takes an order back, exit code 1 when
    /// there is none.
    #[arg(value_name = "LEVEL", value_parser = level)]
    level: Option<LevelOrFile>,
    /// The order ends by itself after this, such as `10m`: 1 s to 30 days, in whole seconds.
    #[arg(long = "for", value_name = "DURATION", value_parser = whole_seconds, requires = "level")]
    lasts: Option<u64>,
    /// Why: shown by `status`, and among the events.
    #[arg(long, value_name = "TEXT", requires = "level")]
    reason: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// A level, or the file's.
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
        .ok_or_else(|| format!("`{text}` is no level, allowed {names} or file"))
}

/// Carries out a verb of `log`.
pub fn log(LogVerb::Level(asked): &LogVerb) -> anyhow::Result<ExitCode> {
    let Arguments { level, lasts, reason, common } = asked;
    let change: LogChange = match (level, lasts, reason) {
        (None, ..) => {
            common.show(&common.get::<LogView>(PATH)?, words)?;
            return Ok(ExitCode::SUCCESS);
        }
        (Some(LevelOrFile::File), None, None) => common.client()?.delete(PATH)?,
        (Some(LevelOrFile::File), ..) => {
            return Err(usage("`file` takes an order back: it has no --for and no --reason"));
        }
        (Some(LevelOrFile::Level(level)), None, _) => {
            let why = "an order ends by itself: what is to last stands in the file (log.level)";
            return Err(usage(format!("say for how long, such as `log level {level} --for 10m`: {why}")));
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

/// `info, as the file says`, or `debug, for 12s, by uid 0, ends in 9m48s, because: b2 flaps; the file says info`.
fn words(log: &LogView) -> String {
    let text = match &log.order {
        None => format!("{}, as the file says", log.level),
        Some(order) => format!("{}; the file says {}", ordered(order), log.file_level),
    };
    clean(&text) + "\n"
}

/// An order, and who gave it until when and why.
pub(crate) fn ordered(order: &LogOrderRow) -> String {
    let reason = order.reason.as_ref().map(|reason| format!(", because: {reason}")).unwrap_or_default();
    let [since, left] = [order.since_seconds, order.ends_in_seconds].map(ago);
    format!("{}, for {since}, by {}, ends in {left}{reason}", order.level, order.by)
}

const PATH: &str = "/v1/log/level";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_is_said_with_what_it_comes_from() {
        let file = LogView { level: LogLevel::Warn, file_level: LogLevel::Warn, order: None };
        assert_eq!(words(&file), "warn, as the file says\n");
        let order = LogOrderRow {
            level: LogLevel::Debug,
            since_seconds: 12.2,
            by: "uid 0".to_owned(),
            reason: Some("b2\nflaps".to_owned()),
            ends_in_seconds: 587.8,
        };
        let view = LogView { level: LogLevel::Debug, order: Some(order.clone()), ..file };
        let said = "debug, for 12s, by uid 0, ends in 9m47s, because: b2\u{fffd}flaps; the file says warn\n";
        assert_eq!(words(&view), said);
        assert_eq!(
            ordered(&LogOrderRow { reason: None, ..order }),
            "debug, for 12s, by uid 0, ends in 9m47s"
        );
    }
}
