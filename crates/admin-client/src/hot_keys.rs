//! Implements `sluicegate kv top`, which prints the most requested keys of keyed pools as a live
//! screen, a table or JSON.
//!
//! The daemon counts requests per key only while a request from this subcommand is pending. The
//! daemon counts for the time given by `--for` and then sends the result.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::Duration;

use admin::view::{HotKeyRow, HotKeysView, HotServiceRow};
use admin::{HOT_KEYS_AT_MOST, HOT_KEYS_SECONDS_AT_MOST, RefusalKind};
use clap::{Args, Subcommand};
use config::parse_duration;
use ratatui::widgets::Paragraph;

use crate::client::{Client, Reach, escape};
use crate::failure::Failure;
use crate::table::{clean, show, table};
use crate::top::{KEYS_EVERY, operator_leaves};

/// The subcommands of `sluicegate kv`.
#[derive(Debug, Subcommand)]
pub enum KvVerb {
    /// Show the most requested keys, and for each key the backend that currently serves it; press
    /// `q` to quit the live screen
    Top(Arguments),
}

/// The arguments of `sluicegate kv top`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    reach: Reach,
    /// Show only keys of services of this VIP
    #[arg(long, value_name = "NAME")]
    vip: Option<String>,
    /// Show at most N keys, 1 to 1000
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = limit)]
    limit: usize,
    /// Count requests for this time before each update, 1s to 20s in whole seconds
    #[arg(long = "for", default_value = "2s", value_name = "DURATION", value_parser = within)]
    within: Duration,
    /// Count once, print a table and exit; this is the default without a terminal
    #[arg(long)]
    once: bool,
    /// Count once, print JSON and exit
    #[arg(long)]
    json: bool,
}

fn limit(text: &str) -> Result<usize, String> {
    let found = text.parse().ok().filter(|limit| (1..=HOT_KEYS_AT_MOST).contains(limit));
    found.ok_or_else(|| format!("expected a number from 1 to {HOT_KEYS_AT_MOST}"))
}

fn within(text: &str) -> Result<Duration, String> {
    let is_allowed = |time: &Duration| {
        time.subsec_nanos() == 0 && (1..=HOT_KEYS_SECONDS_AT_MOST).contains(&time.as_secs())
    };
    parse_duration(text)
        .filter(is_allowed)
        .ok_or_else(|| format!("expected whole seconds from 1s to {HOT_KEYS_SECONDS_AT_MOST}s"))
}

/// Runs a subcommand of `kv`.
pub fn kv(verb: &KvVerb) -> anyhow::Result<ExitCode> {
    let KvVerb::Top(arguments) = verb;
    let question = Question::of(arguments)?;
    // The first request is sent before the screen switches to full-screen mode, so that an error
    // message remains visible.
    let first = question.ask()?;
    if arguments.once || arguments.json || !std::io::stdout().is_terminal() {
        show(&first, arguments.json, words)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut terminal = ratatui::try_init()?;
    let looks = look_on(question, first);
    let draw = |text: &str| {
        Ok(terminal.draw(|frame| frame.render_widget(Paragraph::new(text), frame.area())).map(|_| ())?)
    };
    let ended = watch(&looks, draw, operator_leaves);
    ratatui::try_restore()?;
    ended.map(|()| ExitCode::SUCCESS)
}

struct Question {
    client: Client,
    path: String,
}

impl Question {
    fn of(arguments: &Arguments) -> anyhow::Result<Self> {
        // The daemon responds only after the counting time, so the response timeout must be longer
        // than this time.
        let wait = arguments.reach.wait.unwrap_or(arguments.within + PATIENCE);
        let client = Client::new(&Reach { wait: Some(wait), ..arguments.reach.clone() })?;
        Ok(Self { client, path: path(arguments) })
    }

    fn ask(&self) -> anyhow::Result<HotKeysView> {
        self.client.post(&self.path, &())
    }
}

fn path(arguments: &Arguments) -> String {
    let vip = arguments.vip.as_ref().map(|name| format!("&vip={}", escape(name))).unwrap_or_default();
    format!("/v1/kv/top?limit={}&seconds={}{vip}", arguments.limit, arguments.within.as_secs())
}

/// Sends requests repeatedly on a separate thread, so that the operator can quit while a response
/// is pending. If the daemon is counting for another client, the request is repeated until the
/// daemon accepts it.
fn look_on(question: Question, first: HotKeysView) -> Receiver<anyhow::Result<HotKeysView>> {
    let (sender, looks) = mpsc::channel();
    std::thread::spawn(move || {
        let mut look = Ok(first);
        loop {
            let is_last = look.is_err();
            if sender.send(look).is_err() || is_last {
                return;
            }
            look = question.ask();
            while look.as_ref().is_err_and(is_conflict) {
                std::thread::sleep(KEYS_EVERY);
                look = question.ask();
            }
        }
    });
    looks
}

fn is_conflict(error: &anyhow::Error) -> bool {
    let failure = error.downcast_ref::<Failure>();
    failure.is_some_and(
        |failure| matches!(failure, Failure::Refused(refusal) if refusal.kind == RefusalKind::Conflict),
    )
}

/// Draws results as they arrive, until `leaves` returns `true`. The closure `leaves` waits for a
/// key press, at most for the given time.
fn watch(
    looks: &Receiver<anyhow::Result<HotKeysView>>,
    mut draw: impl FnMut(&str) -> anyhow::Result<()>,
    mut leaves: impl FnMut(Duration) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let mut text = String::new();
    loop {
        match looks.try_recv() {
            Ok(look) => text = words(&look?),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        draw(&text)?;
        if leaves(KEYS_EVERY)? {
            return Ok(());
        }
    }
}

fn words(view: &HotKeysView) -> String {
    let service =
        |row: &HotServiceRow| format!("{}: {:.1} keys/s\n", clean(&row.service), row.keys_per_second);
    // Only services with a key in the list are shown, because there may be more services than
    // screen lines.
    let is_shown = |row: &&HotServiceRow| view.keys.iter().any(|key| key.service == row.service);
    let head: String = view.services.iter().filter(is_shown).map(service).collect();
    if view.keys.is_empty() {
        return format!("no keys requested in {:.1} s\n", view.seconds);
    }
    let row = |row: &HotKeyRow| {
        [
            format!("{:.1}", row.requests_per_second),
            format!("{:.1}", row.requests_per_second_at_most),
            format!("{:.1}%", row.share * 100.0),
            if row.backends.is_empty() { "-".to_owned() } else { row.backends.join(" ") },
            row.service.clone(),
            row.key.clone(),
        ]
    };
    let headings = [">requests/s", ">at most", ">share", "backend", "service", "key"];
    format!("{head}\n{}", table(headings, view.keys.iter().map(row)))
}

/// The time that is added to the counting time to obtain the response timeout.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn of(line: &str) -> Result<String, String> {
        let words = std::iter::once("top").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| path(&line.arguments)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_command_line_becomes_a_query() {
        for (line, query) in [
            ("", "limit=20&seconds=2"),
            ("--for 20s --limit 1000 --vip a/b", "limit=1000&seconds=20&vip=a%2Fb"),
        ] {
            assert_eq!(of(line).unwrap(), format!("/v1/kv/top?{query}"));
        }
        for wrong in ["--for 21s", "--for 500ms", "--for 0s", "--for 1500ms", "--limit 0", "--limit 1001"] {
            assert!(of(wrong).unwrap_err().contains("expected"), "{wrong}");
        }
    }

    fn view() -> HotKeysView {
        let row = |key: &str, rate, backends: &[&str]| HotKeyRow {
            service: "users udp 11211".to_owned(),
            key: key.to_owned(),
            requests_per_second: rate,
            requests_per_second_at_most: rate + 2.0,
            share: rate / 200.0,
            backends: backends.iter().map(|name| (*name).to_owned()).collect(),
        };
        HotKeysView {
            seconds: 2.0,
            services: vec![HotServiceRow { service: "users udp 11211".to_owned(), keys_per_second: 200.0 }],
            keys: vec![row("user:17", 125.0, &["m1"]), row("\\x1b[2J", 9.5, &[])],
        }
    }

    #[test]
    fn a_look_is_a_table_with_the_services_above() {
        assert_eq!(
            words(&view()),
            "users udp 11211: 200.0 keys/s\n\n\
             REQUESTS/S  AT MOST  SHARE  BACKEND  SERVICE          KEY\n     \
             125.0    127.0  62.5%  m1       users udp 11211  user:17\n       \
             9.5     11.5   4.8%  -        users udp 11211  \\x1b[2J\n"
        );
        assert_eq!(
            words(&HotKeysView { seconds: 2.0, ..HotKeysView::default() }),
            "no keys requested in 2.0 s\n"
        );
    }

    #[test]
    fn watch_redraws_until_quit_or_error() {
        let (sender, looks) = mpsc::channel();
        sender.send(Ok(view())).unwrap();
        let (mut drawn, mut iterations) = (Vec::new(), 0);
        let draw = |drawn: &mut Vec<String>, text: &str| {
            drawn.push(text.to_owned());
            Ok(())
        };
        let leaves = |_: Duration| {
            iterations += 1;
            Ok(iterations == 3)
        };
        watch(&looks, |text| draw(&mut drawn, text), leaves).unwrap();
        assert_eq!(drawn, [words(&view()), words(&view()), words(&view())]);
        sender.send(Err(anyhow::anyhow!("keys are being counted"))).unwrap();
        let ended = watch(&looks, |_| panic!("drawn without a result"), |_| Ok(false));
        assert_eq!(ended.unwrap_err().to_string(), "keys are being counted");
    }
}
