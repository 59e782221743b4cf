//! Implements `sluicegate events`, which prints the stored events (state changes), and new events
//! as they occur if `--follow` is set.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use admin::view::{EventKind, EventRow, EventSeverity, EventsView};
use clap::Args;
use clap::builder::PossibleValuesParser;
use config::words::count;
use time::OffsetDateTime;

use crate::client::Common;
use crate::client::whole_seconds;
use crate::out::{errln, outln};
use crate::table::{clean, json_line, lines};

/// The arguments of `sluicegate events`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Print only events from the last TIME, such as `10m`; 1 s to 30 days in whole seconds
    /// (default: all)
    #[arg(long, value_name = "TIME", value_parser = whole_seconds)]
    since: Option<u64>,
    /// Print at most N events, 1 to 1000 (default: all stored events)
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    limit: Option<u64>,
    /// Print only events of this kind; repeat the option for several kinds (default: all kinds)
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(EventKind::ALL.map(EventKind::name)))]
    kind: Vec<String>,
    /// Print only events about this VIP, and events that may concern it because they name only
    /// the first of many
    #[arg(long, value_name = "VIP")]
    vip: Option<String>,
    /// Print only events about this pool, and events that may concern it because they name only
    /// the first of many
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Print only events about this backend, and events that may concern it because they name only
    /// the first of many
    #[arg(long, value_name = "BACKEND")]
    backend: Option<String>,
    /// Continue with new events until Ctrl-C; the exit code is 3 if the load balancer exits
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    common: Common,
}

impl Arguments {
    fn selected(&self) -> impl Iterator<Item = (&str, &String)> {
        let fields = [("vip", &self.vip), ("pool", &self.pool), ("backend", &self.backend)];
        fields.into_iter().filter_map(|(field, name)| Some((field, name.as_ref()?)))
    }

    fn selects(&self) -> bool {
        self.selected().next().is_some()
    }

    /// Returns `true` if the event has all selected names in its fields. A field may contain
    /// several names. An event that lists only the first of many names may concern any name.
    fn is_about(&self, row: &EventRow) -> bool {
        self.selected().all(|(field, name)| {
            row.about
                .get(field)
                .is_some_and(|names| is_cut(names) || names.split([',', ' ']).any(|one| one == name))
        })
    }
}

/// Returns `true` if a list of names ends in `and N more`.
fn is_cut(names: &str) -> bool {
    let number = names.strip_suffix(" more").and_then(|names| names.rsplit_once(" and "));
    number.is_some_and(|(_, number)| number.parse::<usize>().is_ok())
}

/// Prints the selected events, oldest first.
pub fn events(asked: &Arguments) -> anyhow::Result<ExitCode> {
    let client = asked.common.client()?;
    let mut about = Vec::new();
    about.extend((!asked.kind.is_empty()).then(|| format!("kind={}", asked.kind.join(","))));
    let first = asked.since.map(|seconds| format!("since_seconds={seconds}"));
    // The API does not select events by their fields, so the limit applies after the selection.
    let limit = asked.limit.filter(|_| !asked.selects());
    let first = first.into_iter().chain(limit.map(|limit| format!("limit={limit}")));
    let mut view: EventsView = client.get(&path(about.iter().cloned().chain(first)))?;
    view.events.retain(|row| asked.is_about(row));
    let before = view
        .events
        .len()
        .saturating_sub(asked.limit.and_then(|limit| limit.try_into().ok()).unwrap_or(usize::MAX));
    view.events.drain(..before);
    if !asked.follow {
        asked.common.show(&view, |view| {
            let rows: Vec<String> = view.events.iter().map(words).collect();
            if rows.is_empty() { "no events\n".to_owned() } else { lines("", &rows) }
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        print(&view, asked.common.json)?;
        sleep(LOOK);
        let next: EventsView =
            client.get(&path(about.iter().cloned().chain([format!("after={}", view.newest)])))?;
        view = if next.boot_id == view.boot_id { next } else { client.get(&path(about.iter().cloned()))? };
        view.events.retain(|row| asked.is_about(row));
        if view.forgotten > 0 {
            errln!("{} missed", count(view.forgotten, "event"));
        }
    }
}

fn path(about: impl Iterator<Item = String>) -> String {
    let about = about.collect::<Vec<_>>().join("&");
    if about.is_empty() { "/v1/events".to_owned() } else { format!("/v1/events?{about}") }
}

/// Prints one line for each event. Flushes each line, so that a program that reads the pipe
/// receives it without delay.
fn print(view: &EventsView, json: bool) -> anyhow::Result<()> {
    for row in &view.events {
        match json {
            true => outln!("{}", json_line(row)?),
            false => outln!("{}", clean(&words(row))),
        }
    }
    Ok(())
}

/// Formats one event, for example `2026-01-31T12:00:00.250Z warning backend backend down
/// (backend=b1 pool=web): connection refused`.
pub(crate) fn words(row: &EventRow) -> String {
    let severity = match row.severity {
        EventSeverity::Error => "error",
        EventSeverity::Warning => "warning",
        EventSeverity::Info => "info",
    };
    let about: Vec<String> =
        row.about.iter().map(|(name, value)| format!("{name}={}", quoted(value))).collect();
    let about = if about.is_empty() { String::new() } else { format!(" ({})", about.join(" ")) };
    let cause = row.cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{} {severity:<7} {:<7} {}{about}{cause}", clock(row.unix_seconds), row.kind.name(), row.what)
}

fn quoted(value: &str) -> String {
    if value.contains([' ', '"']) || value.is_empty() { format!("{value:?}") } else { value.to_owned() }
}

/// Formats a Unix time in UTC according to RFC 3339.
fn clock(unix_seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "saturates; an invalid time becomes the epoch")]
    let nanos = ((unix_seconds * 1e3).round() as i128).saturating_mul(1_000_000);
    let at = OffsetDateTime::from_unix_timestamp_nanos(nanos).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (date, time) = (at.date(), at.time());
    format!("{date}T{:02}:{:02}:{:02}.{:03}Z", time.hour(), time.minute(), time.second(), time.millisecond())
}

/// The interval between two requests with `--follow`.
const LOOK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_rfc_3339_has_it() {
        for (seconds, text) in [
            (0.0, "1970-01-01T00:00:00.000Z"),
            (951_782_399.999, "2000-02-28T23:59:59.999Z"),
            (1_709_164_800.25, "2024-02-29T00:00:00.250Z"),
            (f64::MAX, "1970-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(clock(seconds), text);
        }
    }

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn event_that_names_only_the_first_of_many_may_be_about_any() {
        let line = <Line as clap::Parser>::parse_from(["events", "--vip", "v7"]);
        for (field, names, is_about) in [
            ("vip", "v7", true),
            ("vip", "v1, v7", true),
            ("vip", "v70", false),
            ("vip", "v1, v2, v3 and 97 more", true),
            ("vip", "v1 and more", false),
            ("pool", "v1, v2, v3 and 97 more", false),
        ] {
            let row = EventRow {
                number: 1,
                unix_seconds: 0.0,
                kind: EventKind::Backend,
                severity: EventSeverity::Info,
                what: String::new(),
                about: [(field.to_owned(), names.to_owned())].into(),
                cause: None,
            };
            assert_eq!(line.arguments.is_about(&row), is_about, "{field}={names}");
        }
    }

    #[test]
    fn event_row_has_time_fields_and_cause() {
        let about = [("backend", "b1"), ("pool", "web and more"), ("vip", "")];
        let about = about.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let row = EventRow {
            number: 1,
            unix_seconds: 1_700_000_000.5,
            kind: EventKind::Backend,
            severity: EventSeverity::Warning,
            what: "backend down".to_owned(),
            about,
            cause: Some("refused".to_owned()),
        };
        assert_eq!(
            words(&row),
            "2023-11-14T22:13:20.500Z warning backend backend down (backend=b1 pool=\"web and more\" vip=\"\"): refused"
        );
        let bare = EventRow { about: [].into(), cause: None, ..row };
        assert_eq!(words(&bare), "2023-11-14T22:13:20.500Z warning backend backend down");
    }
}
