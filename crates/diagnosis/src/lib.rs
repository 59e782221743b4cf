//! Checks a configuration and a machine before the machine handles traffic, for the command
//! `sluicegate doctor`.
//!
//! The result is a list of findings. Each finding describes a problem and its effect, and contains
//! the command that fixes it. The modules `gather`, `reach` and `sockets` collect facts about the
//! machine into the types of `facts`. The modules `machine`, `interfaces`, `paths`, `routers` and
//! `secrets` derive findings from these facts, and `report` formats the result. The crate changes
//! nothing on the machine.
//!
//! ```
//! let diagnosis = diagnosis::diagnose("no/such/file.toml".as_ref(), "lb1")?;
//! assert!(!diagnosis.is_well());
//! assert_eq!(diagnosis.findings()[0].id, "config");
//! # Ok::<_, diagnosis::DiagnosisError>(())
//! ```

#![forbid(unsafe_code)]

mod facts;
mod gather;
mod interfaces;
mod machine;
mod paths;
mod reach;
mod report;
mod routers;
mod secrets;
mod sockets;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use compile::{CompileError, destinations, find_machine};
use config::words::{LogLine, log_lines};
use config::{self, Config, Machine, Problem, Problems};
use datapath::interface::{Finding, Severity, privilege_findings};
use next_hop::{NextHopError, NextHops, Resolver};

use self::facts::Facts;
use self::reach::Heard;

/// The result of the checks on a machine. The `Display` implementation writes a report for a
/// terminal.
#[derive(Debug)]
pub struct Diagnosis {
    machine: String,
    findings: Vec<Finding>,
    /// The facts about the machine, or `None` if the configuration cannot be read or does not
    /// contain the machine.
    facts: Option<Facts>,
}

impl Diagnosis {
    /// Returns all findings, errors first.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns `true` if no finding is an error.
    #[must_use]
    pub fn is_well(&self) -> bool {
        is_well(&self.findings)
    }
}

/// The reasons why the checks could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiagnosisError {
    /// The tokio runtime could not be created.
    #[error("cannot create the tokio runtime: {0}")]
    Runtime(#[from] io::Error),
    /// The next hops could not be read from the kernel.
    #[error("cannot look up next hops: {0}")]
    NextHops(#[from] NextHopError),
    /// The configuration does not contain the machine.
    #[error(transparent)]
    Machine(#[from] CompileError),
}

/// Checks the configuration file and this machine. `machine` is the name of this machine in the
/// file. Problems with the file or the machine are reported as findings.
///
/// # Errors
/// Returns an error if the routes cannot be read from the kernel.
/// # Cost
/// Takes up to several seconds, because the function pings backends and waits for neighbors that do
/// not respond. This function must be called outside of a tokio runtime.
pub fn diagnose(file: &Path, machine: &str) -> Result<Diagnosis, DiagnosisError> {
    let (mut findings, config, secrets) = read(file);
    let found = config.as_ref().map(|config| find_machine(config, machine).map(|machine| (config, machine)));
    let facts = match found {
        Some(Ok((config, machine))) => Some(look(config, machine)?),
        Some(Err(error)) => {
            let why = "its interfaces and addresses cannot be checked";
            let finding = Finding::error("machine", error.to_string(), why);
            findings.push(finding.hint("pass the name of this machine with --machine NAME"));
            None
        }
        None => None,
    };
    findings.extend(facts.iter().flat_map(judge));
    findings.extend(secrets::findings(&secrets));
    findings.sort_by_key(|finding| finding.severity);
    Ok(Diagnosis { machine: machine.to_owned(), findings, facts })
}

/// Returns the problems with the configuration file, the configuration, and the paths of its secret
/// files. If only secrets are unreadable, for example because another user runs the checks, the
/// configuration is read without secrets.
fn read(file: &Path) -> (Vec<Finding>, Option<Config>, BTreeSet<PathBuf>) {
    let (loaded, secrets) = secrets::load(file);
    let (findings, config) = match loaded {
        Ok((config, warnings)) => (of_problems(&warnings), Some(config)),
        Err(problems) => {
            (of_problems(&problems), config::load_without_secrets(file).ok().map(|(config, _)| config))
        }
    };
    (findings, config, secrets)
}

fn is_well(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.severity != Severity::Error)
}

/// Logs the findings when the load balancer starts. Runs the same checks as [`diagnose`], but sends
/// no pings, and omits advice and the problems that the load balancer itself reports at startup.
/// `next_hops` contains the next hops of all backends.
///
/// # Errors
/// Returns an error if the configuration does not contain the machine, or if the routes cannot be
/// read from the kernel.
pub async fn warn_at_start(
    config: &Config,
    machine: &str,
    next_hops: &NextHops,
) -> Result<(), DiagnosisError> {
    let machine = find_machine(config, machine)?;
    let asked = [vip_addresses(config), peer_addresses(config, machine)].concat();
    let routes = Resolver::open()?.resolve(&asked).await?;
    let facts = gather::facts(config, machine, next_hops, &routes, &Heard::default());
    log_findings(&judge_at_start(&facts));
    Ok(())
}

/// Logs findings. If the machine has many findings of one kind, for example one for each VIP, they
/// share one line.
fn log_findings(findings: &[Finding]) {
    for similar in findings.chunk_by(|one, next| one.id == next.id) {
        for line in log_lines(similar.iter().collect(), |finding| &finding.what) {
            let LogLine { names: what, count: findings, first } = line;
            // log: A check of this machine found a problem when the load balancer started. The
            // field `what` contains the problem, `why` its effect, and `fix` the command that fixes
            // it. If more than eight findings have the same kind, they share one line, and
            // `findings` is their number. `sluicegate doctor` shows all findings.
            tracing::warn!(
                finding = first.id,
                what,
                why = first.why,
                fix = first.fix(),
                findings,
                "machine check failed"
            );
        }
    }
}

/// Returns the addresses of all interfaces on this machine.
pub fn addresses_here() -> impl Iterator<Item = IpAddr> {
    gather::own_addresses().into_iter().map(|(own, _)| own.address)
}

/// Collects all facts, including the results of the pings.
fn look(config: &Config, machine: &Machine) -> Result<Facts, DiagnosisError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let backends = destinations(config, machine.name(), None);
    let (first, routes) = runtime.block_on(async {
        let mut resolver = Resolver::open()?;
        Ok::<_, NextHopError>((
            resolver.resolve(&backends).await?,
            resolver.resolve(&vip_addresses(config)).await?,
        ))
    })?;
    // A ping makes the kernel resolve unknown neighbors. The next hops are therefore looked up
    // again after the pings.
    let heard = reach::ask(&gather::targets(config, machine, &first), &machine.addresses);
    let asked = [backends, peer_addresses(config, machine)].concat();
    let next_hops = runtime.block_on(next_hops(&asked))?;
    Ok(gather::facts(config, machine, &next_hops, &routes, &heard))
}

/// Returns the next hops after the kernel has resolved the neighbors. Without CAP_NET_ADMIN this
/// process cannot start the resolution, so the result contains only neighbors that the kernel
/// already knows.
async fn next_hops(backends: &[IpAddr]) -> Result<NextHops, NextHopError> {
    match next_hop::look_up(backends, NEIGHBOURS).await {
        Ok(found) => Ok(found),
        Err(_) => Resolver::open()?.resolve(backends).await,
    }
}

fn peer_addresses(config: &Config, machine: &Machine) -> Vec<IpAddr> {
    let peers = config.bgp().into_iter().flat_map(|bgp| bgp.peers_of(machine.name()));
    peers.map(|peer| peer.address).collect()
}

fn vip_addresses(config: &Config) -> Vec<IpAddr> {
    config.vips().iter().flat_map(config::Vip::reachable_at).collect()
}

/// Derives all findings from the facts.
fn judge(facts: &Facts) -> Vec<Finding> {
    let mut found: Vec<Finding> = facts.host.privileges.map(privilege_findings).unwrap_or_default();
    for (interface, _) in facts.usable() {
        let of_it = if facts.has_packet_sockets {
            interface.packet_findings()
        } else {
            interface.findings(facts.frame_size)
        };
        let of_it = of_it.into_iter();
        // The XDP program of a running load balancer is not a problem.
        found.extend(of_it.filter(|finding| !(facts.is_running && finding.id == "xdp-occupied")));
    }
    found.extend(judge_beyond_start(facts));
    found
}

/// Derives the findings that are logged at startup. Advice is not logged.
fn judge_at_start(facts: &Facts) -> Vec<Finding> {
    judge_beyond_start(facts).into_iter().filter(|finding| finding.severity != Severity::Advice).collect()
}

/// Derives the findings that the load balancer itself does not report at startup.
fn judge_beyond_start(facts: &Facts) -> Vec<Finding> {
    [machine::findings(facts), interfaces::findings(facts), paths::findings(facts), routers::findings(facts)]
        .concat()
}

fn of_problems(problems: &Problems) -> Vec<Finding> {
    let finding = |problem: &Problem| {
        let what = problem.to_string();
        let finding = match problem.severity {
            config::Severity::Error => {
                Finding::error("config", what, "the load balancer does not start with this file")
            }
            config::Severity::Warning => {
                Finding::warning("config", what, "the file is valid, but probably not as intended")
            }
        };
        finding.hint(
            problem.help.as_deref().unwrap_or("correct the file, and test it with `sluicegate config check`"),
        )
    };
    problems.iter().map(finding).collect()
}

/// The maximum time for resolving neighbors. The kernel gives up on an IPv4 neighbor after three
/// seconds without a reply.
const NEIGHBOURS: Duration = Duration::from_secs(4);
