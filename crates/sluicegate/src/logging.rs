//! Where log lines go: standard error for people or as JSON, or the journal; and those that say a change, to the events.

use std::io::IsTerminal;

use anyhow::Context;
use config::{Log, LogFormat, LogLevel};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::event_log::EventLog;

/// Starts logging as the configuration says. Where there is no journal, lines go to standard error. Gives the events.
pub(crate) fn start(log: Log) -> anyhow::Result<EventLog> {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let events = EventLog::default();
    let lines = writer(log.format).with_filter(level);
    let started = tracing_subscriber::registry().with(lines).with(events.layer()).try_init();
    started.context("starting the log")?;
    Ok(events)
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
