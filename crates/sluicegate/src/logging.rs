//! Where log lines go: standard error for people or as JSON, or the journal; and those that say a change, to the events.

use std::io::IsTerminal;

use anyhow::Context;
use config::{Log, LogFormat, LogLevel};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

use crate::event_log::EventLog;

/// What stays of the start: the events, and the level, which follows the configuration.
#[derive(Clone, Debug)]
pub(crate) struct Logging {
    pub(crate) events: EventLog,
    level: reload::Handle<LevelFilter, Registry>,
}

impl Logging {
    /// Writes lines of this level and above from now on; the events have theirs whatever is written.
    pub(crate) fn follow(&self, level: LogLevel) {
        if let Err(error) = self.level.reload(filter(level)) {
            tracing::error!(%error, "the log level could not be changed");
        }
    }
}

/// Starts logging as the configuration says. Where there is no journal, lines go to standard error.
pub(crate) fn start(log: Log) -> anyhow::Result<Logging> {
    let (layers, logging) = layers(writer(log.format), log.level);
    tracing_subscriber::registry().with(layers).try_init().context("starting the log")?;
    Ok(logging)
}

/// `lines` by level, and the events beside them.
fn layers(lines: Box<dyn Layer<Registry> + Send + Sync>, level: LogLevel) -> (impl Layer<Registry>, Logging) {
    let ((filter, level), events) = (reload::Layer::new(filter(level)), EventLog::default());
    let layers: Vec<Box<dyn Layer<Registry> + Send + Sync>> =
        vec![lines.with_filter(filter).boxed(), events.layer().boxed()];
    (layers, Logging { events, level })
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
        (LogFormat::Human | LogFormat::Journald, _) => to_stderr().with_target(false).boxed(),
    }
}

/// Escape sequences are for a terminal alone, and not for one whose owner wants none (<https://no-color.org>).
fn in_colour() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// For verbs without a configuration.
pub(crate) fn start_plain() -> anyhow::Result<()> {
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(in_colour());
    tracing_subscriber::registry().with(LevelFilter::INFO).with(layer).try_init().context("starting the log")
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};
    use std::time::SystemTime;

    use admin::EventQuery;

    use super::*;

    #[derive(Clone, Debug, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_level_follows_the_configuration_and_the_events_keep_theirs() {
        let written = Written::default();
        let writer = written.clone();
        let lines = tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).boxed();
        let (layers, logging) = layers(lines, LogLevel::Warn);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layers), || {
            for level in [LogLevel::Warn, LogLevel::Debug, LogLevel::Error] {
                logging.follow(level);
                tracing::debug!("a detail at {level:?}");
                tracing::info!(change = "backend", "a change at {level:?}");
                tracing::error!("a fault at {level:?}");
            }
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
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
        let events = logging.events.view(&EventQuery::default(), "b", SystemTime::now()).events;
        assert_eq!(events.len(), 3, "{events:?}");
    }
}
