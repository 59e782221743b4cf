//! Implements `sluicegate top`, which reads the counters twice and divides the differences by the
//! time between the two readings. The result is a live screen, or with `--once` a table or JSON.
//! The submodule `rates` computes the rates, `screen` draws the screen, and `controls` handles
//! keys.

mod controls;
mod rates;
mod screen;

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use admin::stats::Stats;
use admin::view::{BackendRow, StateTotals, Status, VipRow};
use clap::Args;
use config::parse_duration;
use ratatui::crossterm::event::{self, Event, KeyEvent};

use self::controls::{Controls, Sort};
use self::rates::Rates;
use crate::client::{Client, Reach};
use crate::failure::usage;
use crate::table::{or_dash, show, table};

/// The arguments of `sluicegate top`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    reach: Reach,
    /// Update the rates at this interval, 100ms to 1h
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = interval)]
    interval: Duration,
    /// Sort VIPs and backends by this column; on the live screen, `s` selects the next column
    #[arg(long, value_name = "COLUMN", default_value = "packets")]
    sort: Sort,
    /// Show only VIPs, backends and drop reasons whose names contain this text; on the live screen,
    /// `/` changes the text
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print at most N VIPs and N backends; requires `--once` (default: all)
    #[arg(long, value_name = "N", requires = "once")]
    limit: Option<usize>,
    /// Read the counters twice, print one table and exit
    #[arg(long)]
    once: bool,
    /// Print JSON; requires `--once`
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn controls(&self) -> Controls {
        Controls { sort: self.sort, filter: self.filter.to_lowercase(), ..Controls::default() }
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let allowed = SHORTEST..=LONGEST;
    parse_duration(text)
        .filter(|interval| allowed.contains(interval))
        .ok_or_else(|| "expected a duration from 100ms to 1h, such as 1s".to_owned())
}

/// Shows rates until the operator presses `q`, or prints them once if `--once` is set.
pub fn top(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.json && !arguments.once {
        return Err(usage("`top --json` covers one interval and needs --once"));
    }
    let client = Client::new(&arguments.reach)?;
    if arguments.once {
        return once(&client, arguments);
    }
    if !std::io::stdout().is_terminal() {
        return Err(usage("`top` needs a terminal, use `top --once` without one"));
    }
    // The counters are read before the screen switches to full-screen mode, so that an error
    // message remains visible.
    let first = Reading::take(&client)?;
    let mut terminal = ratatui::try_init()?;
    let looks = look_on(client, arguments.interval, first);
    let draw = |shown: &Shown, controls: &Controls| {
        Ok(terminal.draw(|frame| screen::draw(frame, shown, controls)).map(|_| ())?)
    };
    let leaves = |wait, controls: &mut Controls| keys(wait, |key| controls.press(key));
    let ended = watch(&looks, arguments.interval, arguments.controls(), draw, leaves);
    ratatui::try_restore()?;
    ended.map(|()| ExitCode::SUCCESS)
}

fn once(client: &Client, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut last = Reading::take(client)?;
    std::thread::sleep(arguments.interval);
    let mut rates = Look::take(client, &mut last)?.rates;
    let controls = arguments.controls();
    for rows in [&mut rates.services, &mut rates.backends] {
        let shown = controls.arrange(rows).into_iter().take(arguments.limit.unwrap_or(usize::MAX));
        *rows = shown.cloned().collect();
    }
    rates.drops.retain(|drop| controls.has(&drop.reason));
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

/// The data for one screen update.
struct Look {
    status: Status,
    rates: Rates,
}

impl Look {
    /// Computes the rates since `last` and replaces `last` with the new reading.
    fn take(client: &Client, last: &mut Reading) -> anyhow::Result<Self> {
        let reading = Reading::take(client)?;
        let mut rates = reading.since(last);
        *last = reading;
        let status: Status = client.get("/v1/status")?;
        let StateTotals { serving, draining, down, unknown, flushing } = status.backends;
        if serving + draining + down + unknown + flushing <= MOST_STATES {
            rates.enter_states(&client.get::<Vec<BackendRow>>("/v1/backends")?);
        }
        if status.vips.total <= MOST_STATES {
            rates.enter_ready(&client.get::<Vec<VipRow>>("/v1/vips")?);
        }
        Ok(Self { status, rates })
    }
}

/// Reads the counters at every interval on a separate thread, so that the operator can quit while
/// the daemon does not respond.
fn look_on(client: Client, interval: Duration, mut last: Reading) -> Receiver<anyhow::Result<Look>> {
    let (sender, looks) = mpsc::channel();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(interval.saturating_sub(last.at.elapsed()));
            let look = Look::take(&client, &mut last);
            let is_last = look.is_err();
            if sender.send(look).is_err() || is_last {
                return;
            }
        }
    });
    looks
}

/// The content of the screen.
struct Shown {
    look: Look,
    /// Packets per second, oldest first.
    history: VecDeque<u64>,
    /// The time that has passed since the next update was due.
    silence: Duration,
}

/// Draws updates as they arrive, until `leaves` returns `true`. The closure `leaves` waits for a
/// key press, at most for the given time, and applies it to the controls.
fn watch(
    looks: &Receiver<anyhow::Result<Look>>,
    interval: Duration,
    mut controls: Controls,
    mut draw: impl FnMut(&Shown, &Controls) -> anyhow::Result<()>,
    mut leaves: impl FnMut(Duration, &mut Controls) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let (mut shown, mut last): (Option<Shown>, _) = (None, Instant::now());
    loop {
        match looks.try_recv() {
            Ok(look) => {
                let look = look?;
                last = Instant::now();
                let mut history = shown.map(|shown| shown.history).unwrap_or_default();
                if history.len() == HISTORY {
                    history.pop_front();
                }
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
                history.push_back(look.rates.total.packets_per_second as u64);
                shown = Some(Shown { look, history, silence: Duration::ZERO });
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        if let Some(shown) = &mut shown {
            shown.silence = last.elapsed().saturating_sub(interval);
            draw(shown, &controls)?;
        }
        if leaves(KEYS_EVERY, &mut controls)? {
            return Ok(());
        }
    }
}

/// Waits until the operator presses a key that quits, or until the screen must be drawn again.
/// Returns `true` if the operator quits.
pub(crate) fn operator_leaves(wait: Duration) -> anyhow::Result<bool> {
    keys(wait, |key| Controls::default().press(key))
}

/// Waits for a key, and returns the result of `press`. Returns `false` if the screen must be drawn
/// again for another reason.
fn keys(wait: Duration, mut press: impl FnMut(KeyEvent) -> bool) -> anyhow::Result<bool> {
    if !event::poll(wait)? {
        return Ok(false);
    }
    Ok(matches!(event::read()?, Event::Key(key) if press(key)))
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
    let row = |rates::Row { name, state, traffic }: &rates::Row| {
        [
            name.clone(),
            or_dash(state.as_ref()),
            rates::short(traffic.packets_per_second),
            rates::bits(traffic.bits_per_second),
            rates::short(traffic.new_flows_per_second),
        ]
    };
    table([heading, "state", ">packets/s", ">bits/s", ">new flows/s"], rows.iter().map(row))
}

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(3_600);
/// The maximum number of backends or VIPs whose states are requested. With more backends or VIPs,
/// each update would transfer megabytes, and the screen could not show all states.
const MOST_STATES: usize = 1_000;
/// The interval at which the screen is drawn again if no new data arrives.
pub(crate) const KEYS_EVERY: Duration = Duration::from_millis(100);
/// The number of readings in the sparkline.
const HISTORY: usize = 240;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::client::Endpoint;

    // Promise: top-exit
    #[test]
    fn top_quits_while_balancer_is_unresponsive() {
        let folder = std::env::temp_dir().join(format!("sluicegate-top-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let socket = folder.join("mute.sock");
        let mute = UnixListener::bind(&socket).unwrap();
        let hour = Duration::from_secs(3_600);
        let client = Client::new(&Reach {
            endpoint: Endpoint { socket: Some(socket), ..Endpoint::default() },
            wait: Some(hour),
        })
        .unwrap();
        let looks = look_on(client, Duration::ZERO, Reading { stats: Stats::default(), at: Instant::now() });
        // The client thread sends its first request and then waits up to an hour for the response.
        let asked = mute.accept().unwrap();
        let mut iterations = 0;
        let leaves = |wait: Duration, _: &mut Controls| {
            assert!(wait <= Duration::from_millis(100), "a key press takes effect after {wait:?}");
            iterations += 1;
            Ok(iterations == 3)
        };
        watch(&looks, hour, Controls::default(), |_, _| panic!("no response was sent"), leaves).unwrap();
        assert_eq!(iterations, 3);
        drop(asked);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn top_keeps_last_update_until_error() {
        let (sender, looks) = mpsc::channel();
        let rates = Rates::between(&Stats::default(), &Stats::default(), Duration::from_secs(1));
        sender.send(Ok(Look { status: Status::default(), rates })).unwrap();
        let mut drawn = Vec::new();
        let mut sender = Some(sender);
        let leaves = |_: Duration, _: &mut Controls| {
            std::thread::sleep(Duration::from_millis(1));
            if let Some(sender) = sender.take() {
                sender.send(Err(anyhow::anyhow!("no response"))).unwrap();
            }
            Ok(false)
        };
        let ended = watch(
            &looks,
            Duration::ZERO,
            Controls::default(),
            |shown, _| {
                drawn.push(shown.history.len());
                Ok(())
            },
            leaves,
        );
        assert_eq!(ended.unwrap_err().to_string(), "no response");
        assert_eq!(drawn, [1]);
    }
}
