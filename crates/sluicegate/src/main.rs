//! Parses the command line, runs the selected subcommand and returns its exit code.
//!
//! The modules `run`, `listeners`, `stats`, `liveness`, `notify`, `privileges` and `logging` form
//! the daemon. Every other module implements a subcommand that needs no daemon. These modules have
//! the names of their subcommands, except that `flow_path` implements `where`, `backend` implements
//! `decap`, and `shell` implements `completions` and `man`. Subcommands that only query the daemon
//! are in the crate `admin_client`. The module `run_checks` is a second daemon.
//!
//! Exit codes are 0 for success, 1 for a finding, 2 for wrong usage, and 3 if the daemon cannot be
//! reached.

#![forbid(unsafe_code)]
// `println!` panics if standard output is a closed pipe, but the macros of the module `out` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod backend;
mod config_check;
mod config_diff;
mod config_import;
mod digest;
mod doctor;
mod flow_path;
mod listeners;
mod liveness;
mod logging;
mod notify;
mod privileges;
mod probe;
mod replay;
mod run;
mod run_checks;
mod shell;
mod simulate;
mod stats;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;

use admin_client::{
    BackendVerb, BgpVerb, CaptureArguments, Common, EventsArguments, FlowVerb, HealthVerb, KvVerb, LogVerb,
    MachineVerb, TopArguments, VipVerb, live_config,
};
use clap::{Args, CommandFactory as _, Parser, Subcommand};

/// Run and control a layer-4 load balancer in user space on AF_XDP
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the load balancer. SIGHUP reloads the configuration, SIGTERM or SIGINT drains and exits,
    /// a second SIGTERM or SIGINT exits immediately
    Run(Source),
    /// Run the programs of exec checks for the load balancer; needs a user of its own
    ///
    /// A program is a file in the folder of check programs. It runs without a shell and without
    /// privileges. At its time limit, it is killed with all processes that it has started.
    RunChecks(run_checks::Arguments),
    /// Check, compare, read and change configurations
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Check this machine for problems and print how to fix them
    Doctor(doctor::Arguments),
    /// Show the state of the running load balancer; the exit code is 1 if it is not ready or a
    /// fault is shown
    Status(Common),
    /// Print digests of the configuration and of the lookup tables, to compare the machines of a
    /// cluster
    Digest(digest::Arguments),
    /// Print recent state changes of the running load balancer with their times and causes
    Events(EventsArguments),
    /// Show live traffic rates
    Top(TopArguments),
    /// List backends, and drain, stop or reweight them
    #[command(subcommand)]
    Backend(BackendVerb),
    /// List VIPs
    #[command(subcommand)]
    Vip(VipVerb),
    /// List health checks
    #[command(subcommand)]
    Health(HealthVerb),
    /// Show BGP sessions and announced routes
    #[command(subcommand)]
    Bgp(BgpVerb),
    /// Drain or upgrade this machine
    #[command(subcommand)]
    Machine(MachineVerb),
    /// List or delete tracked flows
    #[command(subcommand)]
    Flow(FlowVerb),
    /// Show the most requested keys of keyed services
    #[command(subcommand)]
    Kv(KvVerb),
    /// Show or temporarily change the log level
    #[command(subcommand)]
    Log(LogVerb),
    /// Print which backend a flow is sent to and why, using the configuration file or the running
    /// load balancer
    Where(flow_path::Arguments),
    /// Write packets of the running load balancer to a pcapng file for Wireshark
    ///
    /// Each packet is written twice: on the interface `before` as received, and on `after` as sent,
    /// with the verdict as a comment. A packet must match all given conditions. Later fragments of
    /// a packet that was too large, replies to fragments, and packets dropped after the verdict
    /// (`tx_full`, `mailbox_full`, `no_frame`) are not captured. A fragment that is held is
    /// captured when it arrives and when it leaves.
    Capture(CaptureArguments),
    /// Send marked packets through a router and print which machines forward them and to which
    /// backends; needs CAP_NET_RAW
    Trace(trace::Arguments),
    /// Run a capture file through the packet processing loop, offline
    ///
    /// The timestamps in the capture serve as the clock, so fragments, flows and rate limits expire
    /// at the same packets as during the capture. One packet thread forwards the packets, and every
    /// backend is considered up. Outgoing frames in the capture are skipped. Packets that the
    /// capture truncated are padded with zeros.
    Replay(replay::Arguments),
    /// Simulate a cluster behind ECMP, offline, and print which connections break after a change
    Simulate(::simulate::Arguments),
    /// Remove tunnel headers on a backend with an XDP program; replaces a tunnel device
    Decap(backend::Arguments),
    /// Measure reachability and latency of VIPs as a client; needs no privileges
    Probe(probe::Arguments),
    /// Print a shell script that completes subcommands and options
    Completions(shell::Completions),
    /// Write manual pages of all subcommands to a folder
    Man(shell::Manual),
}

#[derive(Debug, Subcommand)]
enum ConfigVerb {
    /// Report all problems of a configuration file, with line and key
    Check(config_check::Arguments),
    /// Print the differences between two configurations, and how many entries of each Maglev table
    /// move to a different backend
    Diff(config_diff::Arguments),
    /// Convert the configuration of another load balancer
    #[command(subcommand)]
    Import(config_import::ImportVerb),
    /// Print a JSON schema of the configuration file, which editors use to complete and check it
    Schema,
    /// Print the configuration of the running load balancer
    Get(Common),
    /// Replace the configuration of the running load balancer through the API; needs `admin.put`
    Put(live_config::Put),
    /// Reload the configuration file in the running load balancer
    Reload(live_config::Reload),
    /// Confirm a change that was made with `--confirm`, so that it is not rolled back
    Confirm(Common),
    /// List recent generations of the running load balancer, or print the files of one generation
    History(live_config::History),
    /// Return the running load balancer to an earlier generation, without changing the file
    Rollback(live_config::Rollback),
}

#[derive(Debug, Args)]
struct Source {
    /// Read this configuration file
    #[arg(long, value_name = "FILE", default_value = USUAL_FILE)]
    config: PathBuf,
    /// Use this machine of the configuration (default: the host name up to the first dot)
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// Take over from the process that is connected to standard input; only `machine upgrade` uses
    /// this option
    #[arg(long, hide = true)]
    take_over: bool,
}

impl Source {
    /// Returns the given machine, or the first machine of the configuration. Use this for
    /// subcommands whose result is the same on all machines.
    fn machine_or_first(&self, config: &config::Config) -> String {
        let first = || config.machines().first().map(|machine| machine.name().to_owned());
        self.machine.clone().or_else(first).unwrap_or_default()
    }

    /// Returns the given machine, or the host name up to the first dot.
    fn machine(&self) -> anyhow::Result<String> {
        if let Some(name) = &self.machine {
            return Ok(name.clone());
        }
        let host = nix::unistd::gethostname()?;
        let host = host.to_string_lossy();
        Ok(host.split('.').next().unwrap_or_default().to_owned())
    }
}

/// The default path of the configuration.
const USUAL_FILE: &str = "/etc/sluicegate/sluicegate.toml";

fn main() -> ExitCode {
    privileges::keep_out_of_cores();
    match Cli::try_parse() {
        Ok(Cli { verb }) => carry_out(verb).unwrap_or_else(|error| admin_client::tell(&error)),
        Err(error) => admin_client::tell_unread(&error),
    }
}

fn carry_out(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Run(source) => run::run(&source).map(|()| ExitCode::SUCCESS),
        Verb::RunChecks(arguments) => run_checks::run(arguments).map(|()| ExitCode::SUCCESS),
        Verb::Config(verb) => configure(verb),
        Verb::Doctor(arguments) => doctor::diagnose(&arguments),
        Verb::Status(common) => admin_client::status(&common),
        Verb::Digest(arguments) => digest::digest(&arguments),
        Verb::Events(arguments) => admin_client::events(&arguments),
        Verb::Top(arguments) => admin_client::top(&arguments),
        Verb::Backend(verb) => admin_client::backend(&verb),
        Verb::Vip(verb) => admin_client::vip(&verb),
        Verb::Health(verb) => admin_client::health(&verb),
        Verb::Bgp(verb) => admin_client::bgp(&verb),
        Verb::Machine(verb) => admin_client::machine(&verb),
        Verb::Flow(verb) => admin_client::flow(&verb),
        Verb::Kv(verb) => admin_client::kv(&verb),
        Verb::Log(verb) => admin_client::log(&verb),
        Verb::Where(arguments) => flow_path::answer(&arguments),
        Verb::Capture(arguments) => admin_client::capture(&arguments),
        Verb::Trace(arguments) => trace::trace(&arguments),
        Verb::Replay(arguments) => replay::replay(&arguments),
        Verb::Simulate(arguments) => simulate::simulate(&arguments),
        Verb::Probe(arguments) => probe::probe(&arguments),
        Verb::Completions(asked) => Ok(shell::completions(&asked, Cli::command())),
        Verb::Man(asked) => shell::manual(&asked, Cli::command()),
        Verb::Decap(arguments) => backend::decap(&arguments).map(|()| ExitCode::SUCCESS),
    }
}

/// Runs a subcommand of `config`, either on files or on the running load balancer.
fn configure(verb: ConfigVerb) -> anyhow::Result<ExitCode> {
    match verb {
        ConfigVerb::Check(arguments) => config_check::check(&arguments),
        ConfigVerb::Diff(arguments) => config_diff::diff(&arguments),
        ConfigVerb::Schema => Ok(config_check::schema()),
        ConfigVerb::Import(verb) => config_import::import(&verb),
        ConfigVerb::Get(common) => live_config::get(&common),
        ConfigVerb::Put(put) => live_config::put(&put),
        ConfigVerb::Reload(reload) => live_config::reload(&reload),
        ConfigVerb::Confirm(common) => live_config::confirm(&common),
        ConfigVerb::History(which) => live_config::history(&which),
        ConfigVerb::Rollback(which) => live_config::rollback(&which),
    }
}
