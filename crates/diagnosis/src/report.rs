//! Formats a diagnosis as text for a terminal and as JSON for programs.

use std::fmt::{self, Display, Formatter};
use std::path::Path;

use datapath::interface::{Finding, Severity};
use next_hop::Unresolved;
use serde_json::{Value, json};

use crate::facts::{Facts, PathFact, Reach};
use crate::{Diagnosis, machine};

impl Display for Diagnosis {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(facts) = &self.facts {
            write_facts(f, &self.machine, facts)?;
        }
        for finding in &self.findings {
            writeln!(f, "\n{} [{}] {}", level(finding.severity), finding.id, finding.what)?;
            writeln!(f, "  why:  {}", finding.why)?;
            if let Some(command) = &finding.command {
                writeln!(f, "  fix:  {command}")?;
            }
            if let Some(hint) = &finding.hint {
                writeln!(f, "  {} {hint}", if finding.command.is_some() { "or:  " } else { "fix: " })?;
            }
        }
        let of = |severity| self.findings.iter().filter(|finding| finding.severity == severity).count();
        write!(f, "\nerrors: {}, warnings: {}", of(Severity::Error), of(Severity::Warn))?;
        match of(Severity::Advice) {
            0 => Ok(()),
            some => write!(f, ", advice: {some}"),
        }
    }
}

fn write_facts(f: &mut Formatter<'_>, machine: &str, facts: &Facts) -> fmt::Result {
    let host = &facts.host;
    writeln!(f, "machine {machine}: kernel {}, processors {}", host.kernel, machine::ranges(&host.cpus))?;
    let said = |known: Option<bool>| match known {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    };
    for (interface, hardware) in facts.usable() {
        writeln!(
            f,
            "{}: driver {}, {} of {} queues, MTU {}, native XDP {}, zero-copy {}",
            interface.name,
            interface.driver,
            interface.queues,
            interface.max_queues,
            interface.mtu_bytes,
            said(hardware.xdp.native),
            said(hardware.xdp.zero_copy),
        )?;
    }
    Ok(())
}

impl Diagnosis {
    /// Returns the diagnosis in JSON, without the `schema` field. Later versions may add keys, but
    /// never remove keys or change their meaning. `file` is the path of the configuration.
    #[must_use]
    pub fn report(&self, file: &Path) -> Value {
        json!({
            "config": file,
            "machine": self.machine,
            "findings": self.findings.iter().map(row).collect::<Vec<_>>(),
            "facts": self.facts.as_ref().map(facts_report),
        })
    }
}

pub(crate) fn row(finding: &Finding) -> Value {
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
