//! Initializes logging to standard error or the journal. Log lines with the field `change` are also
//! stored as events.

pub(crate) mod fields;

use std::io::IsTerminal;
use std::time::Duration;

use admin::EventLog;
use admin::view::{LogChange, LogLevelOverrideRow, LogView};
use anyhow::Context;
use config::{Log, LogFormat, LogLevel};
use control_plane::LogLevelOverrides;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

use self::fields::Logfmt;

/// The log level and the stored events. The level is the configured level, unless an operator
/// overrides it.
#[derive(Debug)]
pub(crate) struct Logging {
    pub(crate) events: EventLog,
    overrides: LogLevelOverrides,
    written: reload::Handle<LevelFilter, Registry>,
}

impl Logging {
    /// Sets the level from the configuration. An override stays in force, and the level does not
    /// filter events.
    pub(crate) fn follow(&mut self, level: LogLevel) {
        self.overrides.follow(level);
        self.write(self.overrides.level());
    }

    /// Sets an override of the level, or removes it if `level_override` is `None`. Here and in the
    /// following functions, `now` is the time since the start of the process.
    pub(crate) fn override_level(
        &mut self,
        level_override: Option<admin::LogLevelOverride>,
        now: Duration,
    ) -> LogChange {
        let change = self.overrides.answer(level_override, now);
        self.write(self.overrides.level());
        change
    }

    /// Ends the override if its time has passed.
    pub(crate) fn expire(&mut self, now: Duration) {
        let before = self.overrides.level();
        let Some(level_override) = self.overrides.expire(now) else { return };
        let (after, level) = (self.overrides.level(), self.overrides.view(now).level);
        // The more verbose of the two levels is set first, so that the line about the end of the
        // override passes the filter.
        self.write(before.max(after));
        let why = format!(
            "{} set it for {} s",
            level_override.by,
            (level_override.until - level_override.at).as_secs()
        );
        // log: A temporary log level has ended and the configured level applies again.
        tracing::info!(change = "override", %level, why, "log level override expired");
        self.write(after);
    }

    /// Returns the current level, and whether the level comes from the configuration or an
    /// override.
    pub(crate) fn view(&self, now: Duration) -> LogView {
        self.overrides.view(now)
    }

    /// Returns the active override.
    pub(crate) fn override_row(&self, now: Duration) -> Option<LogLevelOverrideRow> {
        self.overrides.row(now)
    }

    /// Sets the filter of the log output to `level`.
    fn write(&self, level: LogLevel) {
        if let Err(error) = self.written.reload(filter(level)) {
            // log: The log level could not be changed. Set it again, or restart the service to use
            // the configured level.
            tracing::error!(%error, "log level not changed");
        }
    }
}

/// Starts logging to the journal, or to standard error if there is no journal.
pub(crate) fn start(log: Log) -> anyhow::Result<Logging> {
    let (layers, logging) = layers(writer(log.format), log.level);
    tracing_subscriber::registry().with(layers).try_init().context("cannot initialize logging")?;
    Ok(logging)
}

/// Combines the layer `lines`, filtered by level, with the layer that stores events.
fn layers(lines: Box<dyn Layer<Registry> + Send + Sync>, level: LogLevel) -> (impl Layer<Registry>, Logging) {
    let ((filter, written), events) = (reload::Layer::new(filter(level)), EventLog::default());
    let layers: Vec<Box<dyn Layer<Registry> + Send + Sync>> =
        vec![lines.with_filter(filter).boxed(), events.layer().boxed()];
    (layers, Logging { events, overrides: LogLevelOverrides::new(level), written })
}

const fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

fn writer(format: LogFormat) -> Box<dyn Layer<Registry> + Send + Sync> {
    let to_stderr = || tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(in_colour());
    match (format, tracing_journald::layer()) {
        (LogFormat::Journald, Ok(journal)) => journal.boxed(),
        (LogFormat::Json, _) => to_stderr().json().flatten_event(true).boxed(),
        (LogFormat::Human | LogFormat::Journald, _) => {
            to_stderr().fmt_fields(Logfmt).with_target(false).boxed()
        }
    }
}

/// Returns `true` if the output may have colors. This requires that standard error is a terminal
/// and that `NO_COLOR` is empty (<https://no-color.org>).
fn in_colour() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Starts logging to standard error, for subcommands without a configuration.
pub(crate) fn start_plain() -> anyhow::Result<()> {
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .fmt_fields(Logfmt)
        .with_target(false)
        .with_ansi(in_colour());
    tracing_subscriber::registry()
        .with(LevelFilter::INFO)
        .with(layer)
        .try_init()
        .context("cannot initialize logging")
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::time::SystemTime;

    use admin::EventQuery;
    use admin::view::EventRow;

    use super::*;

    /// Runs `act` with logging at `level`, and returns the log lines and the events.
    fn written(level: LogLevel, act: impl FnOnce(&mut Logging)) -> (String, Vec<EventRow>) {
        let (text, pipe) = io::pipe().unwrap();
        let lines = tracing_subscriber::fmt::layer().with_writer(Arc::new(pipe)).with_ansi(false).boxed();
        let (layers, mut logging) = layers(lines, level);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layers), || act(&mut logging));
        let events = logging.events.view(&EventQuery::default(), "b", SystemTime::now()).events;
        (io::read_to_string(text).unwrap(), events)
    }

    fn level_override(level: admin::view::LogLevel) -> Option<admin::LogLevelOverride> {
        let (lasts, by) = (Duration::from_secs(60), "uid 0".to_owned());
        Some(admin::LogLevelOverride { level, lasts, by, reason: None })
    }

    #[test]
    fn log_level_follows_reload_and_events_do_not() {
        let (text, events) = written(LogLevel::Warn, |logging| {
            for level in [LogLevel::Warn, LogLevel::Debug, LogLevel::Error] {
                logging.follow(level);
                tracing::debug!("a detail at {level:?}");
                tracing::info!(change = "backend", "a change at {level:?}");
                tracing::error!("a fault at {level:?}");
            }
        });
        let seen = |words: &str| text.contains(words);
        assert!(
            !seen("a detail at Warn") && seen("a detail at Debug") && !seen("a detail at Error"),
            "{text}"
        );
        assert!(
            !seen("a change at Warn") && seen("a change at Debug") && !seen("a change at Error"),
            "{text}"
        );
        assert!(
            ["Warn", "Debug", "Error"].iter().all(|level| seen(&format!("a fault at {level}"))),
            "{text}"
        );
        assert_eq!(events.len(), 3, "{events:?}");
    }

    #[test]
    fn log_override_survives_reload_and_logs_its_end() {
        let (text, events) = written(LogLevel::Error, |logging| {
            assert!(
                logging.override_level(level_override(admin::view::LogLevel::Debug), Duration::ZERO).changed
            );
            tracing::debug!("while it is ordered");
            logging.follow(LogLevel::Warn);
            tracing::debug!("after a reload");
            logging.expire(Duration::from_secs(59));
            tracing::debug!("before its time");
            logging.expire(Duration::from_secs(60));
            tracing::info!("after its time");
            logging.expire(Duration::from_secs(61));
            tracing::warn!("by the file");
            logging.override_level(level_override(admin::view::LogLevel::Error), Duration::from_secs(70));
            tracing::warn!("while less is ordered");
            logging.override_level(None, Duration::from_secs(71));
            tracing::warn!("after it was taken back");
        });
        let seen: Vec<&str> = text.lines().map(|line| line.rsplit(": ").next().unwrap()).collect();
        let ended = "log level override expired change=\"override\" level=warn why=\"uid 0 set it for 60 s\"";
        let all = ["while it is ordered", "after a reload", "before its time", ended, "by the file"];
        assert_eq!(seen, [&all[..], &["after it was taken back"]].concat());
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_eq!(event.cause.as_deref(), Some("uid 0 set it for 60 s"));
        assert_eq!(event.about, [("level".to_owned(), "warn".to_owned())].into());
    }
}
