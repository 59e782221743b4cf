//! `sluicegate top`: rates by VIP and backend, drops by reason, load of the packet threads; live, or once for scripts.
//!
//! In: two readings of the counters, and the time between. Out: a screen, a table, or JSON.
//! Not here: the arithmetic (`rates`), the drawing (`screen`).

mod rates;
mod screen;

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use admin::stats::Stats;
use admin::view::Status;
use clap::Args;
use config::parse_duration;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};

use self::rates::Rates;
use crate::client::{Client, Reach};
use crate::failure::usage;
use crate::table::{show, table};

/// How to look.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    reach: Reach,
    /// From one reading to the next.
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = interval)]
    interval: Duration,
    /// Take two readings, print, and end.
    #[arg(long)]
    once: bool,
    /// Print JSON; with `--once`, since it is of two readings.
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let allowed = SHORTEST..=LONGEST;
    parse_duration(text)
        .filter(|interval| allowed.contains(interval))
        .ok_or_else(|| format!("`{text}`, allowed a time from 100ms to 1h"))
}

/// Looks until `q`, or once.
pub(crate) fn top(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.json && !arguments.once {
        return Err(usage("top --json prints one interval and ends, so it wants --once: top --once --json"));
    }
    let client = Client::new(&arguments.reach)?;
    if arguments.once {
        return once(&client, arguments);
    }
    if !std::io::stdout().is_terminal() {
        return Err(usage("top wants a terminal; without one: top --once"));
    }
    // Before the screen is taken over, so that an error stays readable.
    let mut last = Reading::take(&client)?;
    let mut terminal = ratatui::try_init()?;
    let ended = watch(&client, arguments.interval, &mut terminal, &mut last);
    ratatui::try_restore()?;
    ended.map(|()| ExitCode::SUCCESS)
}

fn once(client: &Client, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let first = Reading::take(client)?;
    std::thread::sleep(arguments.interval);
    let rates = Reading::take(client)?.since(&first);
    show(&rates, arguments.json, words)?;
    Ok(ExitCode::SUCCESS)
}

struct Reading {
    stats: Stats,
    at: Instant,
}

impl Reading {
    fn take(client: &Client) -> anyhow::Result<Self> {
        let stats = client.get("/v1/counters")?;
        Ok(Self { stats, at: Instant::now() })
    }

    fn since(&self, before: &Self) -> Rates {
        Rates::between(&before.stats, &self.stats, self.at.duration_since(before.at))
    }
}

fn watch(
    client: &Client,
    interval: Duration,
    terminal: &mut DefaultTerminal,
    last: &mut Reading,
) -> anyhow::Result<()> {
    let mut history = VecDeque::with_capacity(HISTORY);
    let mut shown: Option<(Status, Rates)> = None;
    loop {
        if let Some((status, rates)) = &shown {
            terminal.draw(|frame| screen::draw(frame, status, rates, &history))?;
        }
        if ends(last.at + interval, || {
            if let Some((status, rates)) = &shown {
                terminal.draw(|frame| screen::draw(frame, status, rates, &history))?;
            }
            Ok(())
        })? {
            return Ok(());
        }
        let reading = Reading::take(client)?;
        let rates = reading.since(last);
        *last = reading;
        if history.len() == HISTORY {
            history.pop_front();
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        history.push_back(rates.total.packets_per_second as u64);
        shown = Some((client.get("/v1/status")?, rates));
    }
}

/// Waits until `deadline`; `true` when the operator wants to leave before. Draws again when the terminal's size changes.
fn ends(deadline: Instant, mut redraw: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if !event::poll(left)? {
            return Ok(false);
        }
        match event::read()? {
            Event::Key(key) if leaves(key) => return Ok(true),
            Event::Resize(..) => redraw()?,
            _ => {}
        }
    }
}

fn leaves(key: KeyEvent) -> bool {
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

fn words(rates: &Rates) -> String {
    let total = &rates.total;
    let head = format!(
        "{} packets/s, {} in, {} new flows/s, {} of {} flow entries",
        rates::short(total.packets_per_second),
        rates::bits(total.bits_per_second),
        rates::short(total.new_flows_per_second),
        rates.flow_entries,
        rates.flow_capacity,
    );
    let thread = |(number, thread): (usize, &rates::Thread)| {
        let busy = format!("{:.1}%", thread.busy_share * 100.0);
        let packets = rates::short(thread.packets_per_second);
        [number.to_string(), busy, packets, thread.flow_entries.to_string()]
    };
    let drop = |drop: &rates::Drops| {
        [drop.reason.clone(), rates::short(drop.packets_per_second), drop.packets.to_string()]
    };
    [
        head + "\n",
        traffic("vip", &rates.services),
        traffic("backend", &rates.backends),
        table([">thread", ">busy", ">packets/s", ">flows"], rates.threads.iter().enumerate().map(thread)),
        table(["drop", ">packets/s", ">since start"], rates.drops.iter().map(drop)),
    ]
    .join("\n")
}

fn traffic(heading: &'static str, rows: &[rates::Row]) -> String {
    let row = |rates::Row { name, traffic }: &rates::Row| {
        [
            name.clone(),
            rates::short(traffic.packets_per_second),
            rates::bits(traffic.bits_per_second),
            rates::short(traffic.new_flows_per_second),
        ]
    };
    table([heading, ">packets/s", ">bits/s", ">new flows/s"], rows.iter().map(row))
}

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(3_600);
/// Readings in the sparkline.
const HISTORY: usize = 240;
