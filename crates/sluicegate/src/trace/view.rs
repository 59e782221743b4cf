//! Collects the reports of a trace and formats them as a tree or as JSON.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use admin::view::Step;
use control_plane::trace_report::{Opened, Report};
use serde::Serialize;

use super::Arguments;
use super::link::Link;
use admin_client::word;

/// A running trace with the reports received so far.
#[derive(Debug, Serialize)]
pub(super) struct Trace {
    #[serde(skip)]
    pub(super) id: u64,
    trace: String,
    source: SocketAddr,
    destination: SocketAddr,
    protocol: &'static str,
    via: IpAddr,
    via_mac: String,
    interface: String,
    receiver: SocketAddr,
    /// The number of received datagrams that are not reports of this trace.
    strangers: u64,
    /// The number of fragments per packet, or 1 if packets are sent whole.
    pieces: usize,
    pub(super) probes: Vec<Seen>,
}

/// A packet that was sent, possibly as fragments, and the reports about it.
#[derive(Debug, Serialize)]
pub(super) struct Seen {
    pub(super) probe: u32,
    pub(super) sent_unix_micros: u64,
    pub(super) reports: Vec<Report>,
}

/// A report, together with the reports of the machine to which the packet was redirected.
struct Path<'a> {
    report: &'a Report,
    onward: Vec<&'a Report>,
}

impl Seen {
    /// Returns the reports of machines that received the packet directly from the router. Each
    /// report is returned together with the reports of the machines to which the first machine
    /// redirected the packet.
    fn paths(&self) -> Vec<Path<'_>> {
        let comes_of = |onward: &Report, report: &Report| {
            let to = report.explained.backend.as_ref().map(|machine| &*machine.name);
            onward.opened == Some(Opened::Peer)
                && is_redirect(report)
                && to == Some(&*onward.machine)
                && is_later(onward) == is_later(report)
        };
        // A packet that the network duplicated is reported twice. All reports of redirected packets
        // are shown below the first of the two reports.
        let first_of = |onward| self.reports.iter().position(|report| comes_of(onward, report));
        let onward_of = |n| self.reports.iter().filter(move |onward| first_of(onward) == Some(n)).collect();
        let all = self.reports.iter().enumerate().filter(|(_, report)| first_of(report).is_none());
        all.map(|(n, report)| Path { report, onward: onward_of(n) }).collect()
    }

    fn branches(&self, text: &mut String) {
        let paths = self.paths();
        for (n, Path { report, onward }) in paths.iter().enumerate() {
            let (branch, stem) = if n + 1 == paths.len() { ("└─", "   ") } else { ("├─", "│  ") };
            let _ = writeln!(text, "{branch} {}", line(report, self.sent_unix_micros));
            for (n, report) in onward.iter().enumerate() {
                let branch = if n + 1 == onward.len() { "└─" } else { "├─" };
                let _ = writeln!(text, "{stem}{branch} {}", line(report, self.sent_unix_micros));
            }
            if is_redirect(report) && onward.is_empty() {
                let _ = writeln!(text, "{stem}└─ no report");
            }
        }
        if paths.is_empty() {
            text.push_str("└─ no report\n");
        }
    }
}

impl Trace {
    pub(super) fn new(arguments: &Arguments, link: &Link, receiver: SocketAddr, id: u64) -> Self {
        Self {
            id,
            trace: format!("{id:016x}"),
            source: arguments.source,
            destination: arguments.destination,
            protocol: arguments.protocol.name(),
            via: arguments.via,
            via_mac: link.router_mac(),
            interface: link.interface.clone(),
            receiver,
            strangers: 0,
            pieces: if arguments.fragments { 2 } else { 1 },
            probes: Vec::new(),
        }
    }

    /// Adds a report to its packet. Reports are sorted by time.
    pub(super) fn take(&mut self, report: Option<Report>) {
        let report = report.filter(|report| report.trace == self.trace);
        let seen =
            report.as_ref().and_then(|report| self.probes.iter_mut().find(|seen| seen.probe == report.probe));
        match (report, seen) {
            (Some(report), Some(seen)) if seen.reports.len() < MOST_REPORTS => {
                seen.reports.push(report);
                seen.reports.sort_by_key(|report| report.unix_micros);
            }
            _ => self.strangers += 1,
        }
    }

    /// Returns `true` if all reports have arrived: one for each packet or fragment, and one from
    /// each machine to which a packet or fragment was redirected.
    pub(super) fn is_complete(&self) -> bool {
        let is_reported =
            |seen: &Seen| (0..self.pieces).all(|piece| seen.reports.iter().any(is_piece(piece)));
        let arrived = |seen: &Seen| {
            let paths = seen.paths();
            paths.iter().all(|path| !is_redirect(path.report) || !path.onward.is_empty())
        };
        self.probes.iter().all(|seen| is_reported(seen) && arrived(seen))
    }

    /// Returns `true` if all packets were reported and none was dropped.
    pub(super) fn is_well(&self) -> bool {
        let served = |seen: &Seen| seen.reports.iter().all(|report| report.explained.is_served());
        self.is_complete() && self.probes.iter().all(served)
    }

    pub(super) fn tree(&self) -> String {
        let Self { trace, source, destination, protocol, via, via_mac, interface, receiver, .. } = self;
        let mut text = format!(
            "trace {trace}: {source} -> {destination} {protocol}, via {via} ({via_mac} on {interface}), reports to {receiver}\n"
        );
        for seen in &self.probes {
            let _ = writeln!(text, "packet {}", seen.probe);
            seen.branches(&mut text);
        }
        if !self.is_complete() {
            text.push_str(SILENCE);
        }
        if self.strangers > 0 {
            let _ = writeln!(
                text,
                "{} datagrams ignored that are not reports of this trace with the key of this cluster",
                self.strangers
            );
        }
        text
    }
}

fn is_redirect(report: &Report) -> bool {
    report.explained.step == Some(Step::Redirect)
}

/// Returns `true` if the report is about a later fragment. Such fragments have no ports.
fn is_later(report: &Report) -> bool {
    report.source.port() == 0 && report.destination.port() == 0
}

/// Returns a filter that selects the reports about one fragment. The fragment number 0 selects a
/// whole packet or its first fragment.
fn is_piece(number: usize) -> impl Fn(&Report) -> bool {
    move |report| is_later(report) == (number > 0)
}

fn line(report: &Report, sent: u64) -> String {
    let (sign, micros) = match report.unix_micros.checked_sub(sent) {
        Some(later) => ('+', later),
        None => ('-', sent - report.unix_micros),
    };
    let piece = if is_later(report) { "later fragment: " } else { "" };
    let opened =
        report.opened.map(|sender| format!("decapsulated, from {}: ", word(&sender))).unwrap_or_default();
    format!(
        "{} (generation {}, thread {}) at {sign}{}.{} ms: {piece}{opened}{}",
        report.machine,
        report.generation,
        report.thread,
        micros / 1_000,
        micros % 1_000 / 100,
        report.explained.sentence()
    )
}

/// The maximum number of stored reports per packet. No packet passes through that many machines.
const MOST_REPORTS: usize = 64;
const SILENCE: &str = "Some packets have no report. Possible causes: the router has another route to the VIP; the machine has another hash key, or \
                       no [trace] section with this receiver; the clocks differ by more than a minute; the rate limit of reports is reached. \
                       The metric sluicegate_thread_trace_refused_packets_total of the machine counts the causes.\n";

#[cfg(test)]
mod tests {
    use admin::view::{Encapsulation, Explained, Verdict, WhereBackend};

    use super::*;

    fn report(probe: u32, machine: &str, micros: u64, step: Step) -> Report {
        let backend = WhereBackend {
            name: "b3".to_owned(),
            address: [198, 18, 2, 3].into(),
            encapsulation: Encapsulation::Gre,
        };
        Report {
            version: 1,
            trace: "000000000000004d".to_owned(),
            probe,
            cluster: "fra1".to_owned(),
            machine: machine.to_owned(),
            generation: 7,
            thread: 2,
            unix_micros: micros,
            source: "192.0.2.7:40000".parse().unwrap(),
            destination: "203.0.113.10:80".parse().unwrap(),
            protocol: 6,
            opened: None,
            explained: Explained {
                verdict: Verdict::Forward,
                step: Some(step),
                table_entry: Some(17),
                table_size: Some(65_537),
                backend: Some(backend),
                ..Explained::default()
            },
        }
    }

    fn trace() -> Trace {
        let seen = |probe, sent_unix_micros| Seen { probe, sent_unix_micros, reports: Vec::new() };
        Trace {
            id: 77,
            trace: "000000000000004d".to_owned(),
            source: "192.0.2.7:40000".parse().unwrap(),
            destination: "203.0.113.10:80".parse().unwrap(),
            protocol: "tcp",
            via: [198, 18, 0, 1].into(),
            via_mac: "02:00:00:00:00:01".to_owned(),
            interface: "eth0".to_owned(),
            receiver: "198.18.0.9:9000".parse().unwrap(),
            strangers: 0,
            pieces: 1,
            probes: vec![seen(1, 1_000_000), seen(2, 2_000_000)],
        }
    }

    #[test]
    fn a_tree_has_a_line_a_machine_in_the_order_of_time() {
        let mut trace = trace();
        trace.take(Some(report(1, "lb2", 1_001_000, Step::Maglev)));
        trace.take(Some(report(1, "lb1", 1_000_450, Step::FlowTable)));
        assert!(!trace.is_complete());
        trace.take(Some(report(2, "lb1", 1_999_900, Step::FlowTable)));
        assert!(trace.is_well());
        let expected = "trace 000000000000004d: 192.0.2.7:40000 -> 203.0.113.10:80 tcp, via 198.18.0.1 (02:00:00:00:00:01 on eth0), \
                        reports to 198.18.0.9:9000\n\
                        packet 1\n\
                        ├─ lb1 (generation 7, thread 2) at +0.4 ms: flow table -> backend b3 at 198.18.2.3 by gre\n\
                        └─ lb2 (generation 7, thread 2) at +1.0 ms: Maglev entry 17 of 65537 -> backend b3 at 198.18.2.3 by gre\n\
                        packet 2\n\
                        └─ lb1 (generation 7, thread 2) at -0.1 ms: flow table -> backend b3 at 198.18.2.3 by gre\n";
        assert_eq!(trace.tree(), expected);
    }

    #[test]
    fn a_redirected_piece_has_its_way_below_and_is_awaited_there() {
        let mut trace = trace();
        (trace.pieces, trace.probes) = (2, vec![trace.probes.remove(0)]);
        let redirected = |micros, ports: bool| {
            let mut report = report(1, "lb1", micros, Step::Redirect);
            report.explained.backend.as_mut().unwrap().name = "lb2".to_owned();
            if !ports {
                report.source.set_port(0);
                report.destination.set_port(0);
            }
            report
        };
        let onward = |micros, like: &Report, step| Report {
            opened: Some(Opened::Peer),
            source: like.source,
            destination: like.destination,
            ..report(1, "lb2", micros, step)
        };
        let (first, later) = (redirected(1_000_100, true), redirected(1_000_200, false));
        // The clock of the other machine may be ahead or behind.
        trace.take(Some(onward(1_000_000, &first, Step::Maglev)));
        trace.take(Some(first.clone()));
        assert!(!trace.is_complete(), "the later fragment was not reported");
        trace.take(Some(later.clone()));
        assert!(!trace.is_complete() && trace.tree().contains("\n   └─ no report\n"), "{}", trace.tree());
        trace.take(Some(onward(1_000_900, &later, Step::FragmentTable)));
        assert!(trace.is_well());
        let lines = "packet 1\n\
                     ├─ lb1 (generation 7, thread 2) at +0.1 ms: redirected -> machine lb2 at 198.18.2.3 by gre\n\
                     │  └─ lb2 (generation 7, thread 2) at +0.0 ms: decapsulated, from peer: Maglev entry 17 of 65537 -> backend b3 at 198.18.2.3 by gre\n\
                     └─ lb1 (generation 7, thread 2) at +0.2 ms: later fragment: redirected -> machine lb2 at 198.18.2.3 by gre\n   \
                     └─ lb2 (generation 7, thread 2) at +0.9 ms: later fragment: decapsulated, from peer: fragment table -> backend b3 at 198.18.2.3 by gre\n";
        assert!(trace.tree().ends_with(lines), "{}", trace.tree());
    }

    #[test]
    fn trace_fails_on_missing_reports_and_drops() {
        let mut trace = trace();
        trace.take(None);
        let mut other = report(1, "lb1", 0, Step::Maglev);
        other.trace = "000000000000004e".to_owned();
        trace.take(Some(other));
        trace.take(Some(report(3, "lb1", 0, Step::Maglev)));
        assert!(trace.strangers == 3 && !trace.is_complete() && !trace.is_well());
        let tree = trace.tree();
        assert!(tree.contains("packet 2\n└─ no report\n") && tree.contains("have no report"), "{tree}");
        assert!(tree.contains("3 datagrams ignored"), "{tree}");
        let mut dropped = report(1, "lb1", 0, Step::FlowTable);
        dropped.explained.verdict = Verdict::Drop("ttl".to_owned());
        trace.take(Some(dropped));
        trace.take(Some(report(2, "lb1", 0, Step::FlowTable)));
        assert!(trace.is_complete() && !trace.is_well());
    }
}
