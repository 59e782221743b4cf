//! `sluicegate kv top`: the keys that are asked for most; live, or once for scripts.
//!
//! In: what the balancer counted while it was asked. Out: a screen, a table, or JSON.
//! Not here: the counting: the balancer does it only while somebody asks.

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

/// `sluicegate kv`.
#[derive(Debug, Subcommand)]
pub enum KvVerb {
    /// The keys that are asked for most, with the backend that has each now; on a terminal until `q`.
    Top(Arguments),
}

/// Which keys, and how to look.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    reach: Reach,
    /// Of this VIP's services.
    #[arg(long, value_name = "NAME")]
    vip: Option<String>,
    /// At most so many keys, up to 1,000.
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = limit)]
    limit: usize,
    /// How long requests are counted for one look, up to 20s.
    #[arg(long = "for", default_value = "2s", value_name = "DURATION", value_parser = within)]
    within: Duration,
    /// Count once, print, and end; so it is without a terminal.
    #[arg(long)]
    once: bool,
    /// Print JSON, of one look.
    #[arg(long)]
    json: bool,
}

fn limit(text: &str) -> Result<usize, String> {
    let found = text.parse().ok().filter(|limit| (1..=HOT_KEYS_AT_MOST).contains(limit));
    found.ok_or_else(|| format!("`{text}`, allowed 1 to {HOT_KEYS_AT_MOST}"))
}

fn within(text: &str) -> Result<Duration, String> {
    let is_allowed = |time: &Duration| {
        time.subsec_nanos() == 0 && (1..=HOT_KEYS_SECONDS_AT_MOST).contains(&time.as_secs())
    };
    parse_duration(text)
        .filter(is_allowed)
        .ok_or_else(|| format!("`{text}`, allowed whole seconds from 1s to {HOT_KEYS_SECONDS_AT_MOST}s"))
}

/// Carries out a verb of `kv`.
pub fn kv(verb: &KvVerb) -> anyhow::Result<ExitCode> {
    let KvVerb::Top(arguments) = verb;
    let question = Question::of(arguments)?;
    // On a terminal before the screen is taken over, so that an error stays readable.
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
        // The answer comes when the time is over.
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

/// One look after the other, on a thread of its own: a balancer that counts must not keep the operator from leaving. Where
/// another client's look comes between, the next one waits for its end.
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

/// Draws looks as they come, until `leaves` returns true; it waits for the operator's keys for the time that it is given.
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
    // Of services whose keys are shown: there may be more than the screen has lines.
    let is_shown = |row: &&HotServiceRow| view.keys.iter().any(|key| key.service == row.service);
    let head: String = view.services.iter().filter(is_shown).map(service).collect();
    if view.keys.is_empty() {
        return format!("no key was asked for in {:.1} s\n", view.seconds);
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

/// Beyond the time that is counted.
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
            assert!(of(wrong).unwrap_err().contains("allowed"), "{wrong}");
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
            "no key was asked for in 2.0 s\n"
        );
    }

    #[test]
    fn what_was_seen_stays_until_the_operator_leaves_and_an_error_ends_it() {
        let (sender, looks) = mpsc::channel();
        sender.send(Ok(view())).unwrap();
        let (mut drawn, mut turns) = (Vec::new(), 0);
        let draw = |drawn: &mut Vec<String>, text: &str| {
            drawn.push(text.to_owned());
            Ok(())
        };
        let leaves = |_: Duration| {
            turns += 1;
            Ok(turns == 3)
        };
        watch(&looks, |text| draw(&mut drawn, text), leaves).unwrap();
        assert_eq!(drawn, [words(&view()), words(&view()), words(&view())]);
        sender.send(Err(anyhow::anyhow!("keys are being counted"))).unwrap();
        let ended = watch(&looks, |_| panic!("nothing to draw"), |_| Ok(false));
        assert_eq!(ended.unwrap_err().to_string(), "keys are being counted");
    }
}
