//! Prints the results of a probe. On a terminal the table is redrawn, with failed targets first. On
//! any other output, each change is printed as a line or as a JSON object.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use health::Failure;
use serde_json::json;

use super::Outcome;
use super::target::Target;
use admin_client::json_line;

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Terminal,
    Lines,
    Json,
}

/// The measured values of one target.
#[derive(Clone, Debug, Default)]
struct Row {
    attempts: u64,
    failed: u64,
    /// The state, or `None` until the first attempt ends.
    up: Option<bool>,
    since: Option<Instant>,
    last: Option<Duration>,
    most: Duration,
    sum: Duration,
    why: Option<Failure>,
}

impl Row {
    /// Adds the result of an attempt, and returns `true` if the state changed.
    fn take(&mut self, verdict: Result<Duration, Failure>, now: Instant) -> bool {
        self.attempts += 1;
        let changed = self.up != Some(verdict.is_ok());
        self.up = Some(verdict.is_ok());
        match verdict {
            Ok(latency) => {
                self.last = Some(latency);
                self.most = self.most.max(latency);
                self.sum += latency;
            }
            Err(failure) => {
                self.failed += 1;
                self.why = Some(failure);
            }
        }
        if changed {
            self.since = Some(now);
        }
        changed
    }

    fn mean(&self) -> Option<Duration> {
        let passed = u32::try_from(self.attempts - self.failed).unwrap_or(u32::MAX);
        self.sum.checked_div(passed)
    }

    fn word(&self) -> &'static str {
        match self.up {
            None => "unknown",
            Some(true) => "up",
            Some(false) => "DOWN",
        }
    }
}

/// The measured values of all targets, and the output.
pub(super) struct View<W> {
    form: Form,
    targets: Vec<Target>,
    rows: Vec<Row>,
    started: Instant,
    out: W,
}

impl<W: Write> View<W> {
    pub(super) fn new(form: Form, targets: &[Target], out: W) -> Self {
        let rows = vec![Row::default(); targets.len()];
        Self { form, targets: targets.to_vec(), rows, started: Instant::now(), out }
    }

    /// Adds the result of an attempt, and prints the target if its state changed.
    pub(super) fn take(&mut self, outcome: Outcome) -> io::Result<()> {
        let now = Instant::now();
        let target = &self.targets[outcome.target];
        let row = &mut self.rows[outcome.target];
        if !row.take(outcome.verdict, now) {
            return Ok(());
        }
        match self.form {
            Form::Terminal => return self.summary(),
            Form::Lines => {
                let at = now.duration_since(self.started).as_secs_f64();
                let words = match &row.why {
                    Some(why) if row.up == Some(false) => why.to_string(),
                    _ => milliseconds(row.last),
                };
                writeln!(self.out, "+{at:.3}s {} {} {words}", row.word(), target.name)?;
            }
            Form::Json => writeln!(self.out, "{}", json_line(&object("change", target, row))?)?,
        }
        self.out.flush()
    }

    /// Prints the measured values of all targets.
    pub(super) fn summary(&mut self) -> io::Result<()> {
        match self.form {
            Form::Json => {
                for (target, row) in self.targets.iter().zip(&self.rows) {
                    writeln!(self.out, "{}", json_line(&object("summary", target, row))?)?;
                }
            }
            // Moving the cursor home before the screen is cleared avoids flicker.
            Form::Terminal => write!(self.out, "\x1b[H\x1b[J{}", self.table())?,
            Form::Lines => write!(self.out, "{}", self.table())?,
        }
        self.out.flush()
    }

    pub(super) fn all_up(&self) -> bool {
        self.rows.iter().all(|row| row.up != Some(false))
    }

    fn table(&self) -> String {
        let width = self.targets.iter().map(|target| target.name.len()).max().unwrap_or(0).max(6);
        let vips = self.targets.iter().map(|target| target.vip.len()).max().unwrap_or(0).max(3);
        let mut text = format!(
            "{:width$} {:vips$} {:7} {:>8} {:>11} {:>11} {:>11} {:>9} {:>9} LAST FAILURE\n",
            "TARGET", "VIP", "STATE", "SINCE", "LAST", "MEAN", "MAX", "ATTEMPTS", "FAILED"
        );
        let mut order: Vec<_> = self.targets.iter().zip(&self.rows).collect();
        // The sort is stable, so targets in the same state keep their order.
        order.sort_by_key(|(_, row)| row.up != Some(false));
        for (target, row) in order {
            let since = row.since.map_or_else(String::new, |since| format!("{}s", since.elapsed().as_secs()));
            let most = (row.attempts > row.failed).then_some(row.most);
            let why = row.why.as_ref().map_or_else(String::new, ToString::to_string);
            let _ = writeln!(
                text,
                "{:width$} {:vips$} {:7} {since:>8} {:>11} {:>11} {:>11} {:>9} {:>9} {why}",
                target.name,
                target.vip,
                row.word(),
                milliseconds(row.last),
                milliseconds(row.mean()),
                milliseconds(most),
                row.attempts,
                row.failed,
            );
        }
        text
    }
}

fn milliseconds(latency: Option<Duration>) -> String {
    latency.map_or_else(|| "-".into(), |latency| format!("{:.3} ms", latency.as_secs_f64() * 1e3))
}

fn object(event: &str, target: &Target, row: &Row) -> serde_json::Value {
    let seconds = |latency: Option<Duration>| latency.map(|latency| latency.as_secs_f64());
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    json!({
        "event": event,
        "unix_seconds": unix,
        "target": &*target.name,
        "vip": &*target.vip,
        "kind": target.protocol(),
        "up": row.up,
        "attempts": row.attempts,
        "failed": row.failed,
        "last_seconds": seconds(row.last),
        "mean_seconds": seconds(row.mean()),
        "most_seconds": seconds((row.attempts > row.failed).then_some(row.most)),
        "last_failure": row.why.as_ref().map(ToString::to_string),
        "last_reason": row.why.as_ref().map(Failure::reason),
    })
}

#[cfg(test)]
mod tests {
    use super::super::target::{Trust, Url};
    use super::*;

    fn view(form: Form) -> View<Vec<u8>> {
        let urls = ["tcp://192.0.2.1:80", "http://192.0.2.2/"];
        let target = |url: &str| url.parse::<Url>().unwrap().target(&Trust::new(None, false), None).unwrap();
        View::new(form, &urls.map(target), Vec::new())
    }

    fn feed(view: &mut View<Vec<u8>>) {
        let passed = |target, ms| Outcome { target, verdict: Ok(Duration::from_millis(ms)) };
        let failed = |target| Outcome { target, verdict: Err(Failure::Refused) };
        for outcome in [passed(0, 2), passed(0, 4), passed(1, 1), failed(1), failed(1)] {
            view.take(outcome).unwrap();
        }
    }

    fn text(view: View<Vec<u8>>) -> String {
        String::from_utf8(view.out).unwrap()
    }

    #[test]
    fn off_a_terminal_each_change_is_a_line_and_nothing_else_is() {
        let mut view = view(Form::Lines);
        feed(&mut view);
        assert!(!view.all_up());
        let text = text(view);
        let lines: Vec<&str> =
            text.lines().filter_map(|line| line.split_once("s ")).map(|(_, line)| line).collect();
        let expected = [
            "up tcp://192.0.2.1:80 2.000 ms",
            "up http://192.0.2.2:80/ 1.000 ms",
            "DOWN http://192.0.2.2:80/ connection refused",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn table_lists_failed_targets_first() {
        let mut view = view(Form::Lines);
        feed(&mut view);
        view.out.clear();
        view.summary().unwrap();
        let text = text(view);
        let words = |line: &str| line.split_whitespace().map(ToOwned::to_owned).collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(words).collect();
        assert_eq!(lines[0], "TARGET VIP STATE SINCE LAST MEAN MAX ATTEMPTS FAILED LAST FAILURE");
        assert_eq!(
            lines[1],
            "http://192.0.2.2:80/ DOWN 0s 1.000 ms 1.000 ms 1.000 ms 3 2 connection refused"
        );
        assert_eq!(lines[2], "tcp://192.0.2.1:80 up 0s 4.000 ms 3.000 ms 4.000 ms 2 0");
    }

    #[test]
    fn json_is_an_object_a_line() {
        let mut view = view(Form::Json);
        feed(&mut view);
        view.summary().unwrap();
        let text = text(view);
        let objects: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let events: Vec<_> = objects
            .iter()
            .map(|object| (object["event"].as_str().unwrap(), object["up"].as_bool().unwrap()))
            .collect();
        assert_eq!(
            events,
            [("change", true), ("change", true), ("change", false), ("summary", true), ("summary", false)]
        );
        assert!(objects.iter().all(|object| object["schema"] == 1), "{objects:?}");
        assert_eq!(objects[4]["last_reason"], "refused");
        assert_eq!(objects[3]["mean_seconds"], 0.003);
    }

    #[test]
    fn a_target_that_was_not_asked_yet_is_neither_up_nor_down() {
        let mut view = view(Form::Lines);
        assert!(view.all_up());
        view.summary().unwrap();
        assert!(text(view).lines().skip(1).all(|line| line.contains(" unknown ")));
    }
}
