//! `sluicegate doctor`: what is wrong with the machine before it carries traffic, and the command that mends it.
//!
//! In: a configuration and its machine. Out: findings, in words or as JSON; exit code 1 when one is an error.
//! Rooms: `facts` (what is known), `gather`, `reach` and `sockets` (how it is learned), `machine`, `interfaces`, `paths`, `routers`
//! (judgements), `secrets` (files that the service may not read).
//! Not here: changing anything. Invariant: a judgement is a function of the facts alone.

mod facts;
mod gather;
mod interfaces;
mod machine;
mod paths;
mod reach;
mod routers;
mod secrets;
mod sockets;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use config::{self, Config, Machine, Problem, Problems};
use control_plane::compile::{destinations, find_machine};
use control_plane::look_up_next_hops;
use datapath::interface::{Finding, Severity, privilege_findings};
use next_hop::{Resolver, Unresolved};
use serde_json::{Value, json};

use self::facts::{Facts, PathFact, Reach};
use self::gather::NextHops;
use self::reach::Heard;
use crate::Source;
use crate::failure::verdict;
use crate::out::outln;

/// What to look at.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    source: Source,
    /// Print findings and facts as JSON.
    #[arg(long)]
    json: bool,
}

/// Prints all findings. 1 when one of them is an error.
pub(crate) fn diagnose(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let name = arguments.source.machine()?;
    let (mut findings, config, secrets) = read(&arguments.source.config);
    let machine = config.as_ref().map(|config| find_machine(config, &name).map(|machine| (config, machine)));
    let facts = match machine {
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
    if arguments.json {
        outln!("{:#}", report(arguments, &name, &findings, facts.as_ref()));
    } else {
        print(&name, &findings, facts.as_ref());
    }
    Ok(verdict(is_well(&findings)))
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

/// Logs what `doctor` would find, less the pings, and less what every start says or refuses by itself.
/// `next_hops` are those of all backends.
pub(crate) async fn warn_at_start(
    config: &Config,
    machine: &str,
    next_hops: &NextHops,
) -> anyhow::Result<()> {
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
pub(crate) fn addresses_here() -> impl Iterator<Item = IpAddr> {
    gather::own_addresses().into_iter().map(|(own, _)| own.address)
}

/// All facts, the pings among them.
fn look(config: &Config, machine: &Machine) -> anyhow::Result<Facts> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let backends = destinations(config, machine.name(), None);
    let (first, routes) = runtime.block_on(async {
        let mut resolver = Resolver::open()?;
        anyhow::Ok((resolver.resolve(&backends).await?, resolver.resolve(&vip_addresses(config)).await?))
    })?;
    // A ping makes the kernel look for the neighbours that it does not know.
    let heard = reach::ask(&gather::targets(config, machine, &first), &machine.addresses);
    let asked = [backends, peer_addresses(config, machine)].concat();
    let next_hops = runtime.block_on(next_hops(&asked)).context("looking up next hops")?;
    Ok(gather::facts(config, machine, &next_hops, &routes, &heard))
}

/// Next hops once the kernel has resolved each neighbour. Without CAP_NET_ADMIN it is not made to ask.
async fn next_hops(backends: &[IpAddr]) -> anyhow::Result<NextHops> {
    match look_up_next_hops(backends, NEIGHBOURS).await {
        Ok(found) => Ok(found),
        Err(_) => Ok(Resolver::open()?.resolve(backends).await?),
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
        let of_it = interface.findings(facts.frame_size).into_iter();
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

fn print(machine: &str, findings: &[Finding], facts: Option<&Facts>) {
    if let Some(facts) = facts {
        print_facts(machine, facts);
    }
    for finding in findings {
        outln!("\n{} [{}] {}", level(finding.severity), finding.id, finding.what);
        outln!("  why:  {}", finding.why);
        if let Some(command) = &finding.command {
            outln!("  mend: {command}");
        }
        if let Some(hint) = &finding.hint {
            outln!("  {} {hint}", if finding.command.is_some() { "or:  " } else { "mend:" });
        }
    }
    let of = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let advice = match of(Severity::Advice) {
        0 => String::new(),
        some => format!(", advice: {some}"),
    };
    outln!("\nerrors: {}, warnings: {}{advice}", of(Severity::Error), of(Severity::Warn));
}

fn print_facts(machine: &str, facts: &Facts) {
    let host = &facts.host;
    outln!("machine {machine}: kernel {}, processors {}", host.kernel, machine::ranges(&host.cpus));
    let said = |known: Option<bool>| match known {
        Some(true) => "yes",
        Some(false) => "no",
        None => "not known",
    };
    for (interface, hardware) in facts.usable() {
        outln!(
            "{}: driver {}, {} of {} queues, MTU {}, native XDP {}, zero-copy {}",
            interface.name,
            interface.driver,
            interface.queues,
            interface.max_queues,
            interface.mtu_bytes,
            said(hardware.xdp.native),
            said(hardware.xdp.zero_copy),
        );
    }
}

/// Schema 1. Keys may be added to it, and none changes its meaning or goes.
fn report(arguments: &Arguments, machine: &str, findings: &[Finding], facts: Option<&Facts>) -> Value {
    let rows: Vec<Value> = findings.iter().map(row).collect();
    json!({
        "schema": 1,
        "config": arguments.source.config,
        "machine": machine,
        "findings": rows,
        "facts": facts.map(facts_report),
    })
}

fn row(finding: &Finding) -> Value {
    json!({
        "id": finding.id,
        "level": level(finding.severity),
        "what": finding.what,
        "why": finding.why,
        "command": finding.command,
        "hint": finding.hint,
    })
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warn => "warning",
        Severity::Advice => "advice",
    }
}

fn facts_report(facts: &Facts) -> Value {
    let peers = facts.routers.iter().flat_map(|routers| &routers.peers).map(|peer| {
        json!({
            "name": *peer.name,
            "address": peer.address,
            "gateway": peer.gateway,
            "unresolved": peer.route.err().as_ref().map(Unresolved::to_string),
        })
    });
    json!({
        "kernel": facts.host.kernel,
        "cpus": facts.host.cpus,
        "is_running": facts.is_running,
        "interfaces": facts.usable().map(|(interface, hardware)| json!({
            "name": interface.name,
            "driver": interface.driver,
            "mtu_bytes": interface.mtu_bytes,
            "queues": interface.queues,
            "max_queues": interface.max_queues,
            "sockets": facts.sockets_on(interface),
            "rss_queues": hardware.rss_queues,
            "native_xdp": hardware.xdp.native,
            "zero_copy": hardware.xdp.zero_copy,
        })).collect::<Vec<_>>(),
        "backends": facts.paths.iter().map(path_report).collect::<Vec<_>>(),
        "peers": peers.collect::<Vec<_>>(),
    })
}

fn path_report(path: &PathFact) -> Value {
    json!({
        "backend": *path.backend,
        "address": path.address,
        "encapsulation": path.kind,
        "needed_bytes": path.needed(),
        "route_bytes": path.next_hop.map(|hop| hop.mtu_bytes).ok(),
        "unresolved": path.next_hop.err().as_ref().map(Unresolved::to_string),
        "longest_answered_bytes": match path.reach {
            Some(Reach::Longest(longest)) => Some(longest),
            _ => None,
        },
    })
}

/// An IPv4 neighbour that does not answer is given up after three seconds.
const NEIGHBOURS: Duration = Duration::from_secs(4);
