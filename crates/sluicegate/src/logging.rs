//! Where log lines go: standard error for people or as JSON, or the journal; and those that say a change, to the events.

use std::io::IsTerminal;
use std::time::Duration;

use admin::EventLog;
use admin::view::{LogChange, LogOrderRow, LogView};
use anyhow::Context;
use config::{Log, LogFormat, LogLevel};
use control_plane::LogOrders;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

/// What stays of the start: the events, and the level, which follows the configuration and operators' orders.
#[derive(Debug)]
pub(crate) struct Logging {
    pub(crate) events: EventLog,
    orders: LogOrders,
    written: reload::Handle<LevelFilter, Registry>,
}

impl Logging {
    /// The configuration in force has this level; the events have theirs whatever is written.
    pub(crate) fn follow(&mut self, level: LogLevel) {
        self.orders.follow(level);
        self.write(self.orders.level());
    }

    /// Takes an order, or takes it back (`None`). Times are from the start of the process, here and below.
    pub(crate) fn order(&mut self, order: Option<admin::LogOrder>, now: Duration) -> LogChange {
        let change = self.orders.answer(order, now);
        self.write(self.orders.level());
        change
    }

    /// Ends an order whose time is over.
    pub(crate) fn expire(&mut self, now: Duration) {
        let before = self.orders.level();
        let Some(order) = self.orders.expire(now) else { return };
        let (after, file) = (self.orders.level(), self.orders.view(now).level);
        // Who reads the lines of either level reads that it ends.
        self.write(before.max(after));
        let why = format!("{} ordered it for {} s", order.by, (order.until - order.at).as_secs());
        tracing::info!(change = "order", %file, why, "an ordered log level has ended by its time");
        self.write(after);
    }

    /// Which level holds, and why.
    pub(crate) fn view(&self, now: Duration) -> LogView {
        self.orders.view(now)
    }

    /// The order in force.
    pub(crate) fn order_row(&self, now: Duration) -> Option<LogOrderRow> {
        self.orders.row(now)
    }

    /// Writes lines of this level and above from now on.
    fn write(&self, level: LogLevel) {
        if let Err(error) = self.written.reload(filter(level)) {
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
    let ((filter, written), events) = (reload::Layer::new(filter(level)), EventLog::default());
    let layers: Vec<Box<dyn Layer<Registry> + Send + Sync>> =
        vec![lines.with_filter(filter).boxed(), events.layer().boxed()];
    (layers, Logging { events, orders: LogOrders::new(level), written })
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
    use std::io;
    use std::sync::Arc;
    use std::time::SystemTime;

    use admin::EventQuery;
    use admin::view::EventRow;

    use super::*;

    /// What is written while `act` has the log, which begins at a level; and the events.
    fn written(level: LogLevel, act: impl FnOnce(&mut Logging)) -> (String, Vec<EventRow>) {
        let (text, pipe) = io::pipe().unwrap();
        let lines = tracing_subscriber::fmt::layer().with_writer(Arc::new(pipe)).with_ansi(false).boxed();
        let (layers, mut logging) = layers(lines, level);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layers), || act(&mut logging));
        let events = logging.events.view(&EventQuery::default(), "b", SystemTime::now()).events;
        (io::read_to_string(text).unwrap(), events)
    }

    fn order(level: admin::view::LogLevel) -> Option<admin::LogOrder> {
        let (lasts, by) = (Duration::from_secs(60), "uid 0".to_owned());
        Some(admin::LogOrder { level, lasts, by, reason: None })
    }

    #[test]
    fn the_level_follows_the_configuration_and_the_events_keep_theirs() {
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
    fn an_order_holds_over_reloads_until_its_time_and_says_when_it_ends() {
        let (text, events) = written(LogLevel::Error, |logging| {
            assert!(logging.order(order(admin::view::LogLevel::Debug), Duration::ZERO).changed);
            tracing::debug!("while it is ordered");
            logging.follow(LogLevel::Warn);
            tracing::debug!("after a reload");
            logging.expire(Duration::from_secs(59));
            tracing::debug!("before its time");
            logging.expire(Duration::from_secs(60));
            tracing::info!("after its time");
            logging.expire(Duration::from_secs(61));
            tracing::warn!("by the file");
            logging.order(order(admin::view::LogLevel::Error), Duration::from_secs(70));
            tracing::warn!("while less is ordered");
            logging.order(None, Duration::from_secs(71));
            tracing::warn!("after it was taken back");
        });
        let seen: Vec<&str> = text.lines().map(|line| line.rsplit(": ").next().unwrap()).collect();
        let ended = "an ordered log level has ended by its time change=\"order\" file=warn why=\"uid 0 ordered it for 60 s\"";
        let all = ["while it is ordered", "after a reload", "before its time", ended, "by the file"];
        assert_eq!(seen, [&all[..], &["after it was taken back"]].concat());
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_eq!(event.cause.as_deref(), Some("uid 0 ordered it for 60 s"));
        assert_eq!(event.about, [("file".to_owned(), "warn".to_owned())].into());
    }
}
