//! Connects the control loop to the data plane: packet threads, the XDP filter, interfaces and
//! trace reports. `control_plane::publisher` defines the order of the steps when the filter
//! changes. `control_plane::questions` sends requests to packet threads.

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
use datapath::steer::{Filter, ReservedPorts, SteerError, TunnelEndpoints};
use forwarder::{Prefix, Reply, Request, Snapshot, ThreadId, TraceEvent, TunnelSourceKind};

use super::links::Links;
use super::reports::{Reports, unix_micros};
use crate::stats::stats;

#[derive(Debug)]
pub(super) struct Forwarding {
    pub(super) plane: DataPlane,
    pub(super) links: Links,
    reports: Reports,
    source_ports: RangeInclusive<u16>,
    /// The reserved ports of the source port pool, or `None` if no configuration has needed them
    /// yet.
    reserved: Option<ReservedPorts>,
    /// `true` during an upgrade, while the other process may also reserve these ports.
    shares_ports: bool,
}

impl Forwarding {
    /// Creates the state. The argument `source_ports` is the source port pool.
    pub(super) fn new(plane: DataPlane, source_ports: RangeInclusive<u16>) -> Self {
        let links = Links::new(&plane.interfaces, plane.largest_packet);
        Self { plane, links, reports: Reports::default(), source_ports, reserved: None, shares_ports: false }
    }

    /// Allows the new process of an upgrade to reserve the same ports.
    pub(super) fn share_ports(&self) -> io::Result<()> {
        self.reserved.iter().try_for_each(ReservedPorts::share)
    }

    /// Reserves ports that the old process still reserves too.
    pub(super) fn reserve_beside(&mut self, snapshot: &Snapshot) -> Result<(), SteerError> {
        self.shares_ports = true;
        self.reserve_for(snapshot)
    }

    /// Makes the reservation of the ports exclusive again after an upgrade.
    pub(super) fn keep_ports(&mut self) {
        self.shares_ports = false;
        if let Err(error) = self.reserved.iter().try_for_each(ReservedPorts::keep) {
            tracing::debug!(%error, "source ports still shared with processes of the same user");
        }
    }

    fn reserve_for(&mut self, snapshot: &Snapshot) -> Result<(), SteerError> {
        if snapshot.has_upstream_requests() && self.reserved.is_none() {
            let reserve = if self.shares_ports { ReservedPorts::beside } else { ReservedPorts::new };
            self.reserved = Some(reserve(&self.source_ports)?);
        }
        Ok(())
    }

    pub(super) fn interface_names(&self) -> Vec<String> {
        self.plane.interfaces.iter().map(|interface| interface.name.clone()).collect()
    }

    /// Returns the number of packets sent since the process was started.
    pub(super) fn forwarded(&self) -> u64 {
        self.plane.counters.iter().map(|thread| thread.tx.read()).sum()
    }

    pub(super) fn stats(&mut self, snapshot: &Snapshot, index: &Index) -> Stats {
        stats(&mut self.plane, snapshot, index)
    }

    /// Checks the interfaces and logs their changes.
    ///
    /// # Errors
    /// Returns an error if an interface no longer exists. The XDP program and the sockets of that
    /// interface are lost, and only a restart creates them again.
    pub(super) fn look_at_links(&mut self) -> anyhow::Result<()> {
        let now: Vec<Interface> = self.plane.interfaces.iter().map(seen_again).collect::<Result<_, _>>()?;
        self.links.take(&now);
        Ok(())
    }

    /// Sends a report for each trace event to the receiver that the marked packet specifies.
    pub(super) fn report(&mut self, events: &[TraceEvent], snapshot: &Snapshot, controller: &Controller) {
        // Both clocks are read only once, so all events in one batch have consistent timestamps.
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
        self.plane.steers.set_tunnel_endpoints(&ends(now, addresses, self.source_ports.clone()))
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

/// Returns the filter entries for the addresses of the VIPs. Packets to `own` addresses are passed
/// to the kernel.
pub(crate) fn filter(snapshot: &Snapshot, own: &BTreeSet<IpAddr>) -> Filter {
    let (vips, prefixes) = (snapshot.filter(), snapshot.filter_prefixes());
    Filter::new(vips.iter().copied(), prefixes.iter().copied(), own.iter().copied())
}

/// Returns the filter entries for packets to the machine's own addresses: tunneled packets and
/// replies to upstream requests. Tunnels from other clusters are not included, because these
/// tunnels end at VIPs.
pub(crate) fn ends(
    snapshot: &Snapshot,
    addresses: Vec<Prefix>,
    source_ports: RangeInclusive<u16>,
) -> TunnelEndpoints {
    let here = snapshot.tunnels().iter().filter(|source| source.kind != TunnelSourceKind::Cluster);
    let sources = here.map(|source| (source.prefix, source.carriers)).collect();
    let answers = if snapshot.has_upstream_requests() { snapshot.own().to_vec() } else { Vec::new() };
    TunnelEndpoints { addresses, sources, answers, source_ports }
}

/// Reads the state of an interface again. Returns the state at startup if the kernel does not
/// respond.
fn seen_again(mine: &Interface) -> anyhow::Result<Interface> {
    match Interface::read(&mine.name) {
        Ok(found) if found.index == mine.index => Ok(found),
        // The interface was removed, or another interface now has its name.
        Ok(_) | Err(InterfaceError::Absent(_)) => {
            anyhow::bail!("interface {} no longer exists, so its XDP program and sockets are lost", mine.name)
        }
        Err(_) => Ok(mine.clone()),
    }
}
