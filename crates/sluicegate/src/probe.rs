//! `sluicegate probe`: are the VIPs reachable, and how fast, as a client sees it. Runs anywhere, without privileges.
//!
//! In: targets by address on the command line, or the VIPs of a configuration (`target`). Out: a live table, lines or JSON
//! (`view`), Prometheus metrics (`metrics`), and an exit code.
//! Not here: what an attempt asks (`health`), what follows from a failure: it watches and changes nothing.
//! Latency is from the first packet of the connection to the answer that passes, TLS handshake and name in between
//! included; of failed attempts none is counted.
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §4.4.

mod metrics;
mod target;
mod view;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use config::{format_duration, load_without_secrets, parse_duration};
use health::{Dialer, Failure, attempt};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, sleep, sleep_until, timeout};

use self::metrics::Metrics;
use self::target::{Target, Trust, Url};
use self::view::{Form, View};

use admin_client::{EndSignals, errln, usage, verdict};

/// What to probe, and how.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, override_usage = USAGES)]
pub(crate) struct Arguments {
    /// Targets, by address and not by a host's name: tcp://ADDRESS:PORT, http://ADDRESS/PATH, https://…, grpc://ADDRESS:PORT/SERVICE, grpcs://…,
    /// dns://ADDRESS/NAME?type=AAAA, memcached://ADDRESS, memcached+udp://ADDRESS, ntp://ADDRESS. IPv6 addresses in brackets.
    #[arg(value_name = "URL", required_unless_present = "config")]
    targets: Vec<Url>,
    /// Take the VIPs of this configuration: TCP services by a connection to each port (of a range its first), and by the
    /// checks with via = "vip" of their backends. Secrets are not read.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// From one attempt at a target to the next.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    interval: Duration,
    /// An attempt without an answer by then has failed; at most the interval.
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = duration)]
    timeout: Duration,
    /// End after so many attempts at each target; 1 as the exit code when the last one failed at any of them.
    #[arg(long, value_name = "N", value_parser = attempts_wanted)]
    count: Option<u64>,
    /// Off a terminal: print the table each time so much has passed, besides a line for each change.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    summary_interval: Option<Duration>,
    /// Print JSON, an object a line: each change, and each target's figures at each summary and at the end.
    #[arg(long)]
    json: bool,
    /// Serve Prometheus metrics at http://ADDRESS:PORT/metrics.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen)]
    metrics: Option<SocketAddr>,
    /// Certificates that may have signed those of https and grpcs targets, PEM.
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    ca: Option<PathBuf>,
    /// Let any certificate pass.
    #[arg(long)]
    insecure: bool,
    /// The Host header of http and https targets of the command line, and the name that their certificate must have.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
}

/// Probes until `--count` is reached or a signal comes.
pub(crate) fn probe(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let targets = targets(arguments)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(watch(arguments, &targets));
    // Attempts in flight end here, not at their time-out.
    runtime.shutdown_background();
    match done {
        // The pipe is closed: its reader has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Ok(all_up) => Ok(verdict(all_up)),
        Err(error) => Err(error.into()),
    }
}

/// Those of the configuration, then those of the command line, each once.
fn targets(arguments: &Arguments) -> anyhow::Result<Vec<Target>> {
    if arguments.timeout > arguments.interval {
        let [timeout, interval] = [arguments.timeout, arguments.interval].map(format_duration);
        return Err(usage(format!(
            "--timeout {timeout} is longer than --interval {interval}, and attempts at a target would overlap: raise --interval \
             or lower --timeout"
        )));
    }
    let read =
        |file: &PathBuf| std::fs::read_to_string(file).with_context(|| format!("--ca {}", file.display()));
    let ca = arguments.ca.as_ref().map(read).transpose()?;
    let trust = Trust::new(ca, arguments.insecure);
    let mut targets = match &arguments.config {
        Some(file) => of_file(file, &trust)?,
        None => Vec::new(),
    };
    for url in &arguments.targets {
        let target = url.target(&trust, arguments.host.as_deref()).map_err(usage)?;
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    match targets.len() {
        0 => Err(usage("nothing to probe")),
        1..=MOST_TARGETS => Ok(targets),
        many => Err(usage(format!(
            "{many} targets, at most {MOST_TARGETS}: each needs a descriptor and 30 series of metrics"
        ))),
    }
}

fn of_file(file: &Path, trust: &Trust) -> anyhow::Result<Vec<Target>> {
    let (config, _) = load_without_secrets(file)
        .map_err(|problems| anyhow::anyhow!("the configuration has problems:\n{problems}"))?;
    let (targets, left_out) = target::of_config(&config, trust).map_err(usage)?;
    left_out.iter().for_each(|what| errln!("not probed: {what}"));
    Ok(targets)
}

/// One attempt that has ended.
#[derive(Debug)]
struct Outcome {
    target: usize,
    verdict: Result<Duration, Failure>,
}

/// Returns whether all targets were up at the end.
async fn watch(arguments: &Arguments, targets: &[Target]) -> std::io::Result<bool> {
    let metrics = Metrics::new(targets);
    if let Some(address) = arguments.metrics {
        let bound = metrics.serve(address).await;
        let address = bound
            .map_err(|error| std::io::Error::new(error.kind(), format!("--metrics {address}: {error}")))?;
        errln!("metrics at http://{address}/metrics");
    }
    let form = form(arguments);
    let mut view = View::new(form, targets, std::io::stdout());
    let usual = if form == Form::Terminal { REDRAW } else { NEVER };
    let every = arguments.summary_interval.unwrap_or(usual);
    let mut outcomes = ask(arguments, targets);
    let mut end = EndSignals::catch()?;
    let mut due = tokio::time::Instant::now() + every;
    loop {
        tokio::select! {
            outcome = outcomes.recv() => {
                let Some(outcome) = outcome else { break };
                metrics.count(&outcome);
                view.take(outcome)?;
            }
            () = sleep_until(due) => {
                view.summary()?;
                due += every;
            }
            () = end.recv() => break,
        }
    }
    view.summary()?;
    Ok(view.all_up())
}

fn form(arguments: &Arguments) -> Form {
    match (arguments.json, std::io::stdout().is_terminal()) {
        (true, _) => Form::Json,
        (false, true) => Form::Terminal,
        (false, false) => Form::Lines,
    }
}

/// Begins to ask all targets, spread over the first interval, so that not all of them are asked at once.
fn ask(arguments: &Arguments, targets: &[Target]) -> mpsc::Receiver<Outcome> {
    let (sender, outcomes) = mpsc::channel(targets.len());
    for (number, target) in targets.iter().enumerate() {
        let wait = spread(arguments.interval, number, targets.len());
        tokio::spawn(attempts(number, target.clone(), wait, Pace::of(arguments), sender.clone()));
    }
    outcomes
}

#[derive(Clone, Copy)]
struct Pace {
    interval: Duration,
    timeout: Duration,
    count: Option<u64>,
}

impl Pace {
    fn of(arguments: &Arguments) -> Self {
        Self { interval: arguments.interval, timeout: arguments.timeout, count: arguments.count }
    }
}

fn spread(interval: Duration, number: usize, of: usize) -> Duration {
    let part = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    interval / part(of).max(1) * part(number)
}

/// Asks one target again and again; ends when the view does.
async fn attempts(
    number: usize,
    target: Target,
    wait: Duration,
    pace: Pace,
    outcomes: mpsc::Sender<Outcome>,
) {
    sleep(wait).await;
    let mut ticks = tokio::time::interval(pace.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut left = pace.count;
    while left != Some(0) {
        ticks.tick().await;
        let started = Instant::now();
        let asked = attempt(&target.kind, target.address, &Dialer::Direct);
        let verdict = timeout(pace.timeout, asked).await.unwrap_or(Err(Failure::NoAnswer));
        let verdict = verdict.map(|()| started.elapsed());
        if outcomes.send(Outcome { target: number, verdict }).await.is_err() {
            return;
        }
        left = left.map(|left| left - 1);
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let least = Duration::from_millis(1);
    parse_duration(text)
        .filter(|duration| (least..=Duration::from_secs(3_600)).contains(duration))
        .ok_or_else(|| "a duration from 1ms to 1h, such as \"500ms\"".into())
}

fn attempts_wanted(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "wanted a whole number from 1".into())
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "wanted an address with a port, such as 127.0.0.1:9852 or [::1]:9852".into())
}

const USAGES: &str =
    "sluicegate probe [OPTIONS] <URL>...\n       sluicegate probe [OPTIONS] --config <FILE> [URL]...";
/// Below the usual limit of 1,024 descriptors.
const MOST_TARGETS: usize = 1_000;
const REDRAW: Duration = Duration::from_secs(1);
/// Ten years.
const NEVER: Duration = Duration::from_secs(315_360_000);
const AFTER_HELP: &str = "Latency is from the start of the connection to the answer that passes, a TLS handshake included. \
                          Exit codes: 0 all targets were up at the end, 1 one was not, 2 wrong usage.";
