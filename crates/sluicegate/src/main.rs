//! The command line: what the operator types, and the exit code it ends with.
//!
//! The daemon: `run` (wired from both planes), `listeners` (of its API), `stats`, `liveness`, `notify` (the service
//! manager), `privileges`, `logging`. What needs none, or only may ask it: `config_check`, `config_diff`, `config_import`, `digest`,
//! `doctor`, `probe`, `flow_path` (`where`), `trace`, `replay`, `simulate`, `backend` (`decap`), `shell` (`completions`, `man`). Not
//! here: verbs that ask it and print (`admin_client`).
//! Exit codes: 0 well, 1 a finding, 2 wrong usage, 3 no daemon.

#![forbid(unsafe_code)]
// They panic when the pipe is closed: `out` does not.
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

/// A layer-4 load balancer in user space on AF_XDP.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Carry traffic until SIGTERM or SIGINT, drain, leave; a second one ends at once. SIGHUP reloads the configuration.
    Run(Source),
    /// Look at configuration files.
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Look at the machine before it carries traffic: what is wrong, why it matters, which command mends it.
    Doctor(doctor::Arguments),
    /// How the running balancer is; 1 when traffic would not be served, or something is wrong.
    Status(Common),
    /// Digests of the configuration and of the tables in force, by which machines of a cluster are compared.
    Digest(digest::Arguments),
    /// The last changes of state of the running balancer, with time and cause.
    Events(EventsArguments),
    /// Rates of the running balancer, live.
    Top(TopArguments),
    /// Backends of the running balancer, and an operator's orders to them.
    #[command(subcommand)]
    Backend(BackendVerb),
    /// VIPs of the running balancer.
    #[command(subcommand)]
    Vip(VipVerb),
    /// Health checks of the running balancer.
    #[command(subcommand)]
    Health(HealthVerb),
    /// Routers that the running balancer announces its VIPs to.
    #[command(subcommand)]
    Bgp(BgpVerb),
    /// The machine on which the balancer runs.
    #[command(subcommand)]
    Machine(MachineVerb),
    /// Tracked flows of the running balancer.
    #[command(subcommand)]
    Flow(FlowVerb),
    /// Requests by key of the running balancer.
    #[command(subcommand)]
    Kv(KvVerb),
    /// The log of the running balancer.
    #[command(subcommand)]
    Log(LogVerb),
    /// Say which backend a flow would go to, and why: from the file alone, or by the running balancer.
    Where(flow_path::Arguments),
    /// Write packets of the running balancer to a file that Wireshark reads, as they came and as they left, with what was decided.
    Capture(CaptureArguments),
    /// Send marked packets by a router, and print by which machines, and why, they go to which backend. Needs CAP_NET_RAW.
    Trace(trace::Arguments),
    /// Run a capture through the packet thread's own loop, offline.
    Replay(replay::Arguments),
    /// Simulate a cluster behind ECMP, offline: what breaks when machines or backends change, or by a change of the configuration.
    Simulate(::simulate::Arguments),
    /// The backend's side: take outer headers off, where a tunnel device is not wanted.
    Decap(backend::Arguments),
    /// Ask VIPs again and again, as a client would: are they reachable, and how fast. Needs no privileges.
    Probe(probe::Arguments),
    /// Print a script by which a shell completes verbs and options.
    Completions(shell::Completions),
    /// Write manual pages of the program and all its verbs into a folder.
    Man(shell::Manual),
}

#[derive(Debug, Subcommand)]
enum ConfigVerb {
    /// Report every problem of a file at once, with line, field, what was found and what is allowed.
    Check(config_check::Arguments),
    /// Say in words what a change of files would change, and how many slots of each table would move.
    Diff(config_diff::Arguments),
    /// Print a configuration made of another load balancer's.
    #[command(subcommand)]
    Import(config_import::ImportVerb),
    /// Print a JSON schema of the file, by which editors complete and judge keys.
    Schema,
    /// Print the configuration that is in force in the running balancer.
    Get(Common),
    /// Have the running balancer take a configuration in its file's place, where `admin.put` allows it.
    Put(live_config::Put),
    /// Have the running balancer read its file again.
    Reload(live_config::Reload),
    /// Keep what came with `--confirm`, before its time is up.
    Confirm(Common),
    /// List the last generations of the running balancer, or print the texts of one.
    History(live_config::History),
    /// Have the running balancer go back to a generation that was in force before; the file stays as it is.
    Rollback(live_config::Rollback),
}

/// Which configuration, and which machine of it.
#[derive(Debug, Args)]
struct Source {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = USUAL_FILE)]
    config: PathBuf,
    /// The machine's name in the file. Default: the host's name, up to its first dot.
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// Come in the place of the process at the other end of standard input: `machine upgrade` starts a balancer so.
    #[arg(long, hide = true)]
    take_over: bool,
}

impl Source {
    /// The machine's name: as given, or the first of the file, for what is the same on every machine of the cluster.
    fn machine_or_first(&self, config: &config::Config) -> String {
        let first = || config.machines().first().map(|machine| machine.name().to_owned());
        self.machine.clone().or_else(first).unwrap_or_default()
    }

    /// The machine's name: as given, or the host's up to its first dot.
    fn machine(&self) -> anyhow::Result<String> {
        if let Some(name) = &self.machine {
            return Ok(name.clone());
        }
        let host = nix::unistd::gethostname()?;
        let host = host.to_string_lossy();
        Ok(host.split('.').next().unwrap_or_default().to_owned())
    }
}

/// Where the configuration is, unless it is said.
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

/// The verbs of `config`: of files, then of the configuration in force.
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
