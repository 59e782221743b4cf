//! Implements `sluicegate probe`, which measures the reachability and latency of VIPs from a
//! client's perspective.
//!
//! The subcommand runs on any machine without privileges and changes no state. Targets are URLs on
//! the command line, or the VIPs of a configuration (`target`). The results are shown as a live
//! table, as lines or as JSON (`view`), and as Prometheus metrics (`metrics`). Latency is the time
//! from the first packet of a connection to the response that passes the check, including the TLS
//! handshake. No latency is recorded for failed attempts. The crate `health` implements the
//! attempts.
//!
//! References: Eisenbud et al., *Maglev*, NSDI 2016, §4.4.

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
use config::{ClientCertificate, PrivateKey, format_duration, load_without_secrets, parse_duration};
use health::{Dialer, Failure, Interim, attempt};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, sleep, sleep_until, timeout};

use self::metrics::Metrics;
use self::target::{Target, Trust, Url};
use self::view::{Form, View};

use admin_client::{EndSignals, errln, usage, verdict};

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP, override_usage = USAGES)]
pub(crate) struct Arguments {
    /// Probe these URLs: tcp://ADDRESS:PORT, tcp://ADDRESS:PORT?send=TEXT&expect=TEXT,
    /// udp://ADDRESS:PORT?send=TEXT&expect=TEXT, http://ADDRESS/PATH, https://…,
    /// grpc://ADDRESS:PORT/SERVICE, grpcs://…, dns://ADDRESS/NAME?type=AAAA, memcached://ADDRESS,
    /// memcached+udp://ADDRESS, ntp://ADDRESS, agent://ADDRESS:PORT. ADDRESS is an IP address; put
    /// IPv6 addresses in brackets. TEXT is percent-encoded; the other keys of the query are
    /// send_hex, expect_hex and expect_regex
    #[arg(value_name = "URL", required_unless_present = "config")]
    targets: Vec<Url>,
    /// Probe the VIPs of this configuration: open a connection to each TCP port (for a range, to
    /// its first port), and run the checks with via = "vip"; secrets are not read
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Start a new attempt at each target at this interval, 1ms to 1h
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    interval: Duration,
    /// Fail an attempt if no response arrives within this time, 1ms to the interval
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = duration)]
    timeout: Duration,
    /// Stop after N attempts at each target; the exit code is 1 if the last attempt at any target
    /// failed
    #[arg(long, value_name = "N", value_parser = attempts_wanted)]
    count: Option<u64>,
    /// Print the table at this interval, 1ms to 1h, in addition to each change; only if the output
    /// is not a terminal
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    summary_interval: Option<Duration>,
    /// Print JSON, one object per line, for each change; the figures of each target follow at each
    /// summary interval and at the end
    #[arg(long)]
    json: bool,
    /// Serve Prometheus metrics at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = listen)]
    metrics: Option<SocketAddr>,
    /// Trust the CA certificates in this PEM file for https and grpcs targets
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    ca: Option<PathBuf>,
    /// Accept all TLS certificates without verification
    #[arg(long)]
    insecure: bool,
    /// Present the client certificate in this PEM file to https and grpcs targets
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Use the private key in this PEM file for --cert
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Send this Host header to the http and https targets of the command line; certificates must
    /// be valid for this name
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
}

/// Probes all targets until `--count` is reached or a signal arrives.
pub(crate) fn probe(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let targets = targets(arguments)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(watch(arguments, &targets));
    // Running attempts are abandoned, so the program does not wait for their timeouts.
    runtime.shutdown_background();
    match done {
        // The reader of the pipe has exited, which is not an error.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Ok(all_up) => Ok(verdict(all_up)),
        Err(error) => Err(error.into()),
    }
}

/// Returns the targets of the configuration and of the command line, without duplicates.
fn targets(arguments: &Arguments) -> anyhow::Result<Vec<Target>> {
    if arguments.timeout > arguments.interval {
        let [timeout, interval] = [arguments.timeout, arguments.interval].map(format_duration);
        return Err(usage(format!(
            "--timeout {timeout} is longer than --interval {interval}, so attempts would overlap; raise --interval or lower \
             --timeout"
        )));
    }
    let ca = arguments.ca.as_ref().map(|file| read("--ca", file)).transpose()?;
    let trust = Trust::new(ca, arguments.insecure).with_client(client_certificate(arguments)?);
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
        0 => Err(usage("the configuration has no VIP to probe")),
        1..=MOST_TARGETS => Ok(targets),
        many => Err(usage(format!(
            "{many} targets exceed the maximum of {MOST_TARGETS}, since each needs a file descriptor and 30 metric series"
        ))),
    }
}

fn read(option: &str, file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {option} {}", file.display()))
}

fn client_certificate(arguments: &Arguments) -> anyhow::Result<Option<ClientCertificate>> {
    let (Some(cert), Some(key)) = (&arguments.cert, &arguments.key) else { return Ok(None) };
    let certificates = read("--cert", cert)?.into();
    let parsed = PrivateKey::parse(&read("--key", key)?);
    let key = parsed.with_context(|| format!("--key {} has no private key in PEM", key.display()))?;
    Ok(Some(ClientCertificate { certificates, key }))
}

fn of_file(file: &Path, trust: &Trust) -> anyhow::Result<Vec<Target>> {
    let (config, _) = load_without_secrets(file)
        .map_err(|problems| anyhow::anyhow!("the configuration has problems:\n{problems}"))?;
    let (targets, left_out) = target::of_config(&config, trust).map_err(usage)?;
    left_out.iter().for_each(|what| errln!("not probed: {what}"));
    Ok(targets)
}

/// The result of one attempt.
#[derive(Debug)]
struct Outcome {
    target: usize,
    verdict: Result<Duration, Failure>,
}

/// Probes all targets, and returns `true` if all of them are up at the end.
async fn watch(arguments: &Arguments, targets: &[Target]) -> std::io::Result<bool> {
    let metrics = Metrics::new(targets);
    if let Some(address) = arguments.metrics {
        let bound = metrics.serve(address).await;
        let address = bound.map_err(|error| {
            std::io::Error::new(error.kind(), format!("cannot serve --metrics {address}: {error}"))
        })?;
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

/// Starts the attempts at all targets. The first attempts are spread evenly over one interval.
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

/// Repeats the attempts at one target until the view is closed.
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
        let interim = Interim::default();
        let asked = attempt(&target.kind, target.address, &Dialer::Direct, &interim);
        let verdict = timeout(pace.timeout, asked).await.unwrap_or_else(|_| interim.expired());
        let verdict = verdict.map(|_| started.elapsed());
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
        .ok_or_else(|| "expected a duration from 1ms to 1h, such as 500ms".into())
}

fn attempts_wanted(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "expected a number of at least 1".into())
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected an address with a port, such as 127.0.0.1:9852 or [::1]:9852".into())
}

const USAGES: &str =
    "sluicegate probe [OPTIONS] <URL>...\n       sluicegate probe [OPTIONS] --config <FILE> [URL]...";
/// The maximum number of targets, which stays below the usual limit of 1,024 file descriptors.
const MOST_TARGETS: usize = 1_000;
const REDRAW: Duration = Duration::from_secs(1);
/// Ten years, which represents "no summaries".
const NEVER: Duration = Duration::from_secs(315_360_000);
const AFTER_HELP: &str = "Latency is measured from the start of the connection to the response, and includes the TLS handshake. \
                          Exit codes: 0 if all targets are up at the end, 1 if one is down, 2 for wrong usage.";
