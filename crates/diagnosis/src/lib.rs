//! What is wrong with the machine before it carries traffic, and the command that mends it: `sluicegate doctor`.
//!
//! In: a configuration and the name of its machine. Out: findings, and the facts that they rest on; in words or as JSON.
//! Modules: `facts` (what is known), `gather`, `reach` and `sockets` (how it is learned), `machine`, `interfaces`, `paths`, `routers`
//! (judgements), `secrets` (files that the service may not read), `report` (how it is shown).
//! Not here: changing anything. Invariant: a judgement is a function of the facts alone.
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
use config::{self, Config, Machine, Problem, Problems};
use datapath::interface::{Finding, Severity, privilege_findings};
use next_hop::{NextHopError, NextHops, Resolver};

use self::facts::Facts;
use self::reach::Heard;

/// What was found on a machine. Shown in words by its `Display`.
#[derive(Debug)]
pub struct Diagnosis {
    machine: String,
    findings: Vec<Finding>,
    /// None where the file has no such machine, or cannot be read.
    facts: Option<Facts>,
}

impl Diagnosis {
    /// All findings, the worst first.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Whether none is an error.
    #[must_use]
    pub fn is_well(&self) -> bool {
        is_well(&self.findings)
    }
}

/// Why the machine could not be looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiagnosisError {
    /// No event loop.
    #[error("cannot begin: {0}")]
    Runtime(#[from] io::Error),
    /// The kernel was not to be asked for routes.
    #[error("looking up next hops: {0}")]
    NextHops(#[from] NextHopError),
    /// The configuration has no such machine.
    #[error(transparent)]
    Machine(#[from] CompileError),
}

/// Looks at the file and at this machine, which goes by the name `machine` there. What is wrong with either is a finding.
///
/// # Errors
/// The kernel can't be asked for routes.
/// # Cost
/// Up to some seconds: backends are pinged, and neighbours that do not answer are waited for. Outside a tokio runtime alone.
pub fn diagnose(file: &Path, machine: &str) -> Result<Diagnosis, DiagnosisError> {
    let (mut findings, config, secrets) = read(file);
    let found = config.as_ref().map(|config| find_machine(config, machine).map(|machine| (config, machine)));
    let facts = match found {
        Some(Ok((config, machine))) => Some(look(config, machine)?),
        Some(Err(error)) => {
            let why = "nothing is known of its interfaces and addresses";
            let finding = Finding::error("machine", error.to_string(), why);
            findings.push(finding.hint("give its name by --machine NAME"));
            None
        }
        None => None,
    };
    findings.extend(facts.iter().flat_map(judge));
    findings.extend(secrets::findings(&secrets));
    findings.sort_by_key(|finding| finding.severity);
    Ok(Diagnosis { machine: machine.to_owned(), findings, facts })
}

/// What is wrong with the file, what it says, and the files of its secrets. Where secrets alone can't be read, as by another
/// user than the service's, the machine is looked at all the same.
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

/// Logs what [`diagnose`] would find, less the pings, and less what every start says or refuses by itself.
/// `next_hops` are those of all backends.
///
/// # Errors
/// The configuration has no such machine, or the kernel can't be asked for routes.
pub async fn warn_at_start(
    config: &Config,
    machine: &str,
    next_hops: &NextHops,
) -> Result<(), DiagnosisError> {
    let machine = find_machine(config, machine)?;
    let asked = [vip_addresses(config), peer_addresses(config, machine)].concat();
    let routes = Resolver::open()?.resolve(&asked).await?;
    let facts = gather::facts(config, machine, next_hops, &routes, &Heard::default());
    for finding in judge_at_start(&facts) {
        tracing::warn!(finding = finding.id, "{finding}");
    }
    Ok(())
}

/// The addresses of this machine's interfaces.
pub fn addresses_here() -> impl Iterator<Item = IpAddr> {
    gather::own_addresses().into_iter().map(|(own, _)| own.address)
}

/// All facts, the pings among them.
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
    // A ping makes the kernel look for the neighbours that it does not know.
    let heard = reach::ask(&gather::targets(config, machine, &first), &machine.addresses);
    let asked = [backends, peer_addresses(config, machine)].concat();
    let next_hops = runtime.block_on(next_hops(&asked))?;
    Ok(gather::facts(config, machine, &next_hops, &routes, &heard))
}

/// Next hops once the kernel has resolved each neighbour. Without CAP_NET_ADMIN it is not made to ask.
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

/// All findings of the facts.
fn judge(facts: &Facts) -> Vec<Finding> {
    let mut found: Vec<Finding> = facts.host.privileges.map(privilege_findings).unwrap_or_default();
    for (interface, _) in facts.usable() {
        let of_it = if facts.has_packet_sockets {
            interface.packet_findings()
        } else {
            interface.findings(facts.frame_size)
        };
        let of_it = of_it.into_iter();
        // A running balancer's own program is none of another's.
        found.extend(of_it.filter(|finding| !(facts.is_running && finding.id == "xdp-occupied")));
    }
    found.extend(judge_beyond_start(facts));
    found
}

/// What a start says of them: advice is for `doctor` alone.
fn judge_at_start(facts: &Facts) -> Vec<Finding> {
    judge_beyond_start(facts).into_iter().filter(|finding| finding.severity != Severity::Advice).collect()
}

/// Those that no start says by itself.
fn judge_beyond_start(facts: &Facts) -> Vec<Finding> {
    [machine::findings(facts), interfaces::findings(facts), paths::findings(facts), routers::findings(facts)]
        .concat()
}

fn of_problems(problems: &Problems) -> Vec<Finding> {
    let finding = |problem: &Problem| {
        let allowed = format!("allowed is {}", problem.allowed);
        let said = problem.sentence();
        let what = said.split_once(", allowed ").map_or(said.as_str(), |(what, _)| what).to_owned();
        match problem.severity {
            config::Severity::Error => {
                Finding::error("config", what, "the balancer does not start with this file").hint(allowed)
            }
            config::Severity::Warning => {
                Finding::warning("config", what, "it works, and probably not as meant").hint(allowed)
            }
        }
    };
    problems.iter().map(finding).collect()
}

/// An IPv4 neighbour that does not answer is given up after three seconds.
const NEIGHBOURS: Duration = Duration::from_secs(4);
