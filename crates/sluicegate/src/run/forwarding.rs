//! The forwarder in the daemon: packet threads, the XDP filter, links, the tracer's reports.
//!
//! In: snapshots that the filter follows, questions to threads. Out: counts, states of links, what threads have noticed.
//! Not here: who changes the filter and when (`control_plane::publisher`), which questions (`control_plane::questions`).

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::SystemTime;

use admin::stats::Stats;
use compile::Index;
use control_plane::{Controller, publisher, questions};
use datapath::DataPlane;
use datapath::interface::{Interface, InterfaceError};
use datapath::steer::{Ends, Filter, ReservedPorts, SteerError};
use forwarder::{Prefix, Reply, Request, Snapshot, ThreadId, TraceEvent, TunnelSourceKind};

use super::links::Links;
use super::reports::{Reports, unix_micros};
use crate::stats::stats;

#[derive(Debug)]
pub(super) struct Forwarding {
    pub(super) plane: DataPlane,
    pub(super) links: Links,
    reports: Reports,
    own_ports: RangeInclusive<u16>,
    /// Since the first configuration that asks from them.
    reserved: Option<ReservedPorts>,
    /// Another process may have them too.
    shares_ports: bool,
}

impl Forwarding {
    /// `own_ports`: those that packet threads ask from.
    pub(super) fn new(plane: DataPlane, own_ports: RangeInclusive<u16>) -> Self {
        let links = Links::new(&plane.interfaces, plane.largest_packet);
        Self { plane, links, reports: Reports::default(), own_ports, reserved: None, shares_ports: false }
    }

    /// Lets a process that is to come in this one's place reserve the same ports.
    pub(super) fn share_ports(&self) -> io::Result<()> {
        self.reserved.iter().try_for_each(ReservedPorts::share)
    }

    /// Reserves ports beside the process that has them still.
    pub(super) fn reserve_beside(&mut self, snapshot: &Snapshot) -> Result<(), SteerError> {
        self.shares_ports = true;
        self.reserve_for(snapshot)
    }

    /// No other process may have the ports any more.
    pub(super) fn keep_ports(&mut self) {
        self.shares_ports = false;
        if let Err(error) = self.reserved.iter().try_for_each(ReservedPorts::keep) {
            tracing::debug!(%error, "ports of io.own_ports stay shared with processes of the same user");
        }
    }

    fn reserve_for(&mut self, snapshot: &Snapshot) -> Result<(), SteerError> {
        if snapshot.has_own_requests() && self.reserved.is_none() {
            let reserve = if self.shares_ports { ReservedPorts::beside } else { ReservedPorts::new };
            self.reserved = Some(reserve(&self.own_ports)?);
        }
        Ok(())
    }

    pub(super) fn interface_names(&self) -> Vec<String> {
        self.plane.interfaces.iter().map(|interface| interface.name.clone()).collect()
    }

    /// Packets sent since the start.
    pub(super) fn forwarded(&self) -> u64 {
        self.plane.counters.iter().map(|thread| thread.tx.read()).sum()
    }

    pub(super) fn stats(&mut self, snapshot: &Snapshot, index: &Index) -> Stats {
        stats(&mut self.plane, snapshot, index)
    }

    /// # Errors
    /// When an interface is gone: program and sockets went with it, and only a new start can bring them back.
    pub(super) fn look_at_links(&mut self) -> anyhow::Result<()> {
        let now: Vec<Interface> = self.plane.interfaces.iter().map(seen_again).collect::<Result<_, _>>()?;
        self.links.take(&now);
        Ok(())
    }

    /// Sends a report of each event to its receiver.
    pub(super) fn report(&mut self, events: &[TraceEvent], snapshot: &Snapshot, controller: &Controller) {
        // Both clocks once, so that what one batch saw is reported with one time.
        let (micros, now) = (unix_micros(SystemTime::now()), self.plane.now());
        let names = [controller.config().cluster().name(), controller.machine()];
        for event in events {
            let ago = now.nanos().saturating_sub(event.at.nanos()) / 1_000;
            self.reports.send_report(event, micros.saturating_sub(ago), snapshot, names);
        }
    }
}

impl publisher::Filter for Forwarding {
    type Error = SteerError;

    fn narrow_to(&mut self, next: &Snapshot, own: &BTreeSet<IpAddr>) -> Result<(), SteerError> {
        self.plane.steers.narrow_to(&filter(next, own)).map(drop)
    }

    fn set(
        &mut self,
        now: &Snapshot,
        own: &BTreeSet<IpAddr>,
        addresses: Vec<Prefix>,
    ) -> Result<(), SteerError> {
        self.reserve_for(now)?;
        self.plane.steers.set_filter(&filter(now, own))?;
        self.plane.steers.set_ends(&ends(now, addresses, self.own_ports.clone()))
    }
}

impl questions::Threads for Forwarding {
    fn count(&self) -> usize {
        self.plane.packet_threads()
    }

    fn ask(&mut self, thread: ThreadId, request: Request) -> Result<(), Request> {
        let asked = match self.plane.requests(thread) {
            Some(port) => port.ask(request),
            None => Err(request),
        };
        self.plane.wake(thread);
        asked
    }

    fn answer(&mut self, thread: ThreadId) -> Option<Reply> {
        self.plane.requests(thread)?.answer()
    }
}

/// What is taken from the kernel by address.
pub(crate) fn filter(snapshot: &Snapshot, own: &BTreeSet<IpAddr>) -> Filter {
    let (vips, prefixes) = (snapshot.filter(), snapshot.filter_prefixes());
    Filter::new(vips.iter().copied(), prefixes.iter().copied(), own.iter().copied())
}

/// What is taken from the kernel of what is sent to the machine itself. Tunnels of other clusters end at VIPs.
pub(crate) fn ends(snapshot: &Snapshot, addresses: Vec<Prefix>, own_ports: RangeInclusive<u16>) -> Ends {
    let here = snapshot.tunnels().iter().filter(|source| source.kind != TunnelSourceKind::Cluster);
    let sources = here.map(|source| (source.prefix, source.carriers)).collect();
    let answers = if snapshot.has_own_requests() { snapshot.own().to_vec() } else { Vec::new() };
    Ends { addresses, sources, answers, own_ports }
}

/// As it is now; as it was at the start when the kernel does not say.
fn seen_again(mine: &Interface) -> anyhow::Result<Interface> {
    match Interface::read(&mine.name) {
        Ok(found) if found.index == mine.index => Ok(found),
        // Gone, or another has taken its name.
        Ok(_) | Err(InterfaceError::Absent(_)) => {
            anyhow::bail!("interface {} is gone, and the XDP program and the sockets with it", mine.name)
        }
        Err(_) => Ok(mine.clone()),
    }
}
