//! Stores the most recent events in memory.
//!
//! A log line with a `change` field becomes an event, even if the log level suppresses the line.
//! Log and events therefore have the same source and are always consistent. The field `change`
//! contains the kind of the event. The field `error`, `reason` or `why` contains the cause. All
//! other fields describe the affected object.
//!
//! Memory is bounded: at most [`EVENTS_AT_MOST`] events are stored, and each string in an event is
//! at most [`LONGEST`] bytes long.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::command::{EVENTS_AT_MOST, EventQuery};
use crate::view::{EventKind, EventRow, EventSeverity, EventsView};

/// The stored events, which all clones share.
#[derive(Clone, Debug, Default)]
pub struct EventLog(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    newest: u64,
    rows: VecDeque<EventRow>,
}

impl EventLog {
    /// Returns the `tracing` layer that collects events.
    pub fn layer<S: Subscriber + for<'span> LookupSpan<'span>>(&self) -> impl Layer<S> + use<S> {
        let is_change = filter_fn(|line| line.is_event() && line.fields().field(CHANGE).is_some());
        // Every event has the level info, warn or error.
        Listener(self.clone()).with_filter(is_change.with_max_level_hint(LevelFilter::INFO))
    }

    /// Returns the matching events, oldest first. `now` is the current time of day.
    pub fn view(&self, query: &EventQuery, boot_id: &str, now: SystemTime) -> EventsView {
        let kept = self.kept();
        let oldest = query.since.map_or(0.0, |since| seconds(now.checked_sub(since).unwrap_or(UNIX_EPOCH)));
        let is_meant = |row: &&EventRow| {
            row.number > query.after
                && row.unix_seconds >= oldest
                && (query.kinds.is_empty() || query.kinds.contains(&row.kind))
        };
        let mut events: Vec<EventRow> =
            kept.rows.iter().rev().filter(is_meant).take(query.limit).cloned().collect();
        events.reverse();
        let first = kept.rows.front().map_or(kept.newest + 1, |row| row.number);
        let forgotten = (first - 1).saturating_sub(query.after);
        EventsView { boot_id: boot_id.to_owned(), newest: kept.newest, forgotten, events }
    }

    fn keep(&self, line: Line, severity: EventSeverity, now: SystemTime) {
        let Some(kind) = line.kind else { return };
        let mut kept = self.kept();
        kept.newest += 1;
        let Line { what, cause, about, .. } = line;
        let (number, unix_seconds) = (kept.newest, seconds(now));
        if kept.rows.len() == EVENTS_AT_MOST {
            kept.rows.pop_front();
        }
        let cause = cause.map(|(_, cause)| cause);
        kept.rows.push_back(EventRow { number, unix_seconds, kind, severity, what, about, cause });
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Listener(EventLog);

impl<S: Subscriber> Layer<S> for Listener {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        let severity = match *event.metadata().level() {
            Level::ERROR => EventSeverity::Error,
            Level::WARN => EventSeverity::Warning,
            _ => EventSeverity::Info,
        };
        self.0.keep(line, severity, SystemTime::now());
    }
}

#[derive(Debug, Default)]
struct Line {
    kind: Option<EventKind>,
    what: String,
    /// The cause, with its rank in [`CAUSES`].
    cause: Option<(usize, String)>,
    about: BTreeMap<String, String>,
}

impl Line {
    fn enter(&mut self, field: &Field, text: String) {
        let (name, text) = (field.name(), cut(text));
        match (name, CAUSES.iter().position(|cause| *cause == name)) {
            (CHANGE, _) => {
                self.kind = EventKind::named(&text);
                debug_assert!(self.kind.is_some(), "unknown event kind {text:?}");
            }
            (MESSAGE, _) => self.what = text,
            (_, Some(rank)) => match &self.cause {
                // A rejected reload has two causes. `error` is the cause of the rejection, and
                // `why` is the trigger of the reload.
                Some((first, _)) if *first < rank => drop(self.about.insert(name.to_owned(), text)),
                _ => {
                    if let Some((other, before)) = self.cause.replace((rank, text)) {
                        self.about.insert(CAUSES[other].to_owned(), before);
                    }
                }
            },
            _ => drop(self.about.insert(name.to_owned(), text)),
        }
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.enter(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.enter(field, format!("{value:?}"));
    }
}

/// Truncates the text to [`LONGEST`] bytes.
fn cut(mut text: String) -> String {
    if text.len() > LONGEST {
        let end = (0..=LONGEST - ELLIPSIS.len()).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text += ELLIPSIS;
        text.shrink_to_fit();
    }
    text
}

/// Returns the time in seconds since 1970, with millisecond precision.
fn seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Duration::new(since.as_secs(), since.subsec_millis() * 1_000_000).as_secs_f64()
}

const CHANGE: &str = "change";
const MESSAGE: &str = "message";
/// The log fields that can contain the cause of an event. If a line has several of these fields,
/// the first of these fields in this list is the cause.
const CAUSES: [&str; 3] = ["error", "reason", "why"];
/// The maximum length of a string in bytes. A log line has at most ten fields.
const LONGEST: usize = 300;
const ELLIPSIS: &str = "…";

#[cfg(test)]
mod tests {
    use std::io;

    use proptest::prelude::*;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Runs `act`, and returns the log output at this level and the events.
    fn said(level: LevelFilter, act: impl FnOnce()) -> (String, Vec<EventRow>) {
        let (events, (text, pipe)) = (EventLog::default(), io::pipe().unwrap());
        let log = tracing_subscriber::fmt::layer().json().flatten_event(true);
        let log = log.with_writer(Arc::new(pipe)).with_filter(level);
        let subscriber = tracing_subscriber::registry().with(log).with(events.layer());
        tracing::subscriber::with_default(subscriber, act);
        let events = events.view(&EventQuery::default(), "b", SystemTime::now()).events;
        (io::read_to_string(text).unwrap(), events)
    }

    // Promise: events-match-log
    #[test]
    fn a_change_is_logged_and_recorded_with_the_same_text() {
        let (log, events) = said(LevelFilter::INFO, || {
            tracing::warn!(change = "backend", backend = "b1", pool = %"web", reason = "refused", "backend down");
            tracing::info!(backend = "b1", "no event");
            tracing::error!(change = "reload", error = %"no", why = "SIGHUP", "reload refused");
            tracing::error!(change = "reload", why = "SIGHUP", error = %"no", "reload refused");
            tracing::info!(change = "machine", count = 7, left_out = None::<&str>, "ready");
        });
        let lines: Vec<serde_json::Value> =
            log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((lines.len(), events.len()), (5, 4), "{log}");
        let marked = lines.iter().filter(|line| line.get("change").is_some());
        for (number, (line, event)) in (1..).zip(marked.zip(&events)) {
            assert_eq!((line["message"].as_str(), event.number), (Some(&*event.what), number));
            assert_eq!(line["change"], event.kind.name());
            for (name, value) in &event.about {
                assert_eq!(line[name].to_string().trim_matches('"'), value, "{name}");
            }
        }
        let causes: Vec<_> = events.iter().map(|event| event.cause.as_deref()).collect();
        assert_eq!(causes, [Some("refused"), Some("no"), Some("no"), None]);
        assert_eq!((&*events[1].about["why"], &*events[2].about["why"]), ("SIGHUP", "SIGHUP"));
        let severities =
            [EventSeverity::Warning, EventSeverity::Error, EventSeverity::Error, EventSeverity::Info];
        assert_eq!(events.iter().map(|event| event.severity).collect::<Vec<_>>(), severities);
        assert_eq!(events[3].about, [("count".to_owned(), "7".to_owned())].into());
    }

    // Promise: events-match-log
    #[test]
    fn event_fields_have_at_most_300_bytes() {
        let long = "é".repeat(1_000);
        let (log, events) = said(LevelFilter::INFO, || {
            tracing::warn!(change = "backend", backend = %long, reason = %long, "{long}");
        });
        assert!(log.contains(&long), "the log line is complete");
        let [event] = &events[..] else { panic!("{events:?}") };
        let fields = [&event.what, &event.about["backend"], event.cause.as_ref().unwrap()];
        assert!(fields.iter().all(|text| text.len() <= 300 && text.ends_with('…')), "{event:?}");
    }

    // Promise: events-match-log
    #[test]
    fn events_are_recorded_at_every_log_level() {
        let (log, events) = said(LevelFilter::OFF, || tracing::info!(change = "vip", "announced"));
        assert_eq!((&*log, &*events[0].what), ("", "announced"));
    }

    #[test]
    fn a_long_text_is_cut_at_a_character_with_an_ellipsis() {
        for text in ["x".repeat(LONGEST + 1), "é".repeat(LONGEST), "é".repeat(LONGEST / 2) + "xx"] {
            let cut = cut(text.clone());
            assert!(cut.len() <= LONGEST && cut.len() > LONGEST - 4 && cut.ends_with('…'), "{cut}");
            assert!(text.starts_with(cut.trim_end_matches('…')));
        }
        assert_eq!(cut("x".repeat(LONGEST)).len(), LONGEST);
    }

    #[test]
    fn every_change_field_in_the_sources_is_an_event_kind() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let (mut folders, mut found) = (vec![crates.to_owned()], std::collections::BTreeSet::new());
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let names = text.split("(change = \"").chain(text.split(" change = \"")).skip(1);
                    found.extend(names.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
                }
            }
        }
        found.retain(|name| name.chars().all(|letter| letter.is_ascii_lowercase()));
        let kinds = EventKind::ALL.map(|kind| kind.name().to_owned()).into();
        assert_eq!(found, kinds);
    }

    fn kind() -> impl Strategy<Value = EventKind> {
        prop::sample::select(EventKind::ALL.to_vec())
    }

    proptest! {
        // Promise: events-match-log
        /// Checks that the event log returns the same events as a model, which stores all events in
        /// an unbounded list.
        #[test]
        fn the_last_1000_events_are_stored_and_found(
            first in 0_usize..2_500,
            kinds in prop::collection::vec((kind(), 0_u64..3), 1..60),
            wanted in prop::collection::vec(kind(), 0..3),
            after in 0_u64..2_600,
            since in prop::option::of(0_u64..100),
            limit in 1_usize..=1_000,
        ) {
            let (events, mut all, mut now) = (EventLog::default(), Vec::new(), 1_700_000_000);
            let filler = std::iter::repeat_n((EventKind::Link, 0), first);
            for (kind, pause) in filler.chain(kinds) {
                now += pause;
                let line = Line { kind: Some(kind), ..Line::default() };
                events.keep(line, EventSeverity::Info, UNIX_EPOCH + Duration::from_secs(now));
                all.push((all.len() as u64 + 1, kind, now));
            }
            let kept = &all[all.len().saturating_sub(1_000)..];
            let meant: Vec<u64> = kept.iter().filter(|(number, kind, at)| {
                *number > after && since.is_none_or(|since| now - at <= since)
                    && (wanted.is_empty() || wanted.contains(kind))
            }).map(|(number, ..)| *number).collect();
            let query = EventQuery { kinds: wanted, after, since: since.map(Duration::from_secs), limit };
            let view = events.view(&query, "b", UNIX_EPOCH + Duration::from_secs(now));
            let found: Vec<u64> = view.events.iter().map(|row| row.number).collect();
            prop_assert_eq!(&found[..], &meant[meant.len().saturating_sub(limit)..]);
            prop_assert_eq!(view.newest, all.len() as u64);
            let gone = all.iter().filter(|(number, ..)| *number > after && *number < kept[0].0);
            prop_assert_eq!(view.forgotten, gone.count() as u64);
        }
    }
}
