//! The filter follows the snapshot, and leaves this machine's own addresses to the kernel whatever a prefix covers.
//!
//! In: snapshots, the addresses of this machine's interfaces. Out: changes of the XDP filter, in their order.
//! Invariant: what is new reaches the threads before the filter; what goes leaves the filter before the threads.

use std::collections::BTreeSet;
use std::net::IpAddr;

use datapath::steer::{Ends, Filter};
use forwarder::{Prefix, Snapshot, TunnelSourceKind};

use super::Balancer;
use crate::doctor;

impl Balancer {
    /// What goes leaves the filter first; what comes enters it last.
    pub(super) fn publish(&mut self, snapshot: Snapshot) -> anyhow::Result<()> {
        self.own = self.own_addresses();
        self.plane.steer().narrow_to(&filter(&snapshot, &self.own))?;
        self.live.publish(snapshot);
        self.open_filter()
    }

    pub(super) fn open_filter(&mut self) -> anyhow::Result<()> {
        let filter = filter(&self.live.current(), &self.own);
        self.plane.steer().set_filter(&filter)?;
        let ends = self.ends();
        self.plane.steer().set_ends(&ends)?;
        Ok(())
    }

    /// Where tunnels end and outer packets come from: addresses of the file, and prefixes of outer sources.
    fn ends(&self) -> Ends {
        let (config, snapshot) = (self.controller.config(), self.live.current());
        let whole = |address: &IpAddr| Prefix::new(*address, if address.is_ipv4() { 32 } else { 128 });
        let own =
            config.machine(self.controller.machine()).into_iter().flat_map(|machine| machine.addresses());
        let prefixes = config.members().flat_map(|member| member.encapsulation().source_prefixes()).copied();
        let mut addresses: Vec<Prefix> = own.filter_map(whole).chain(prefixes).collect();
        addresses.sort_unstable();
        addresses.dedup();
        // Tunnels of other clusters end at VIPs, which are taken from the kernel anyway.
        let here = snapshot.tunnels().iter().filter(|source| source.kind != TunnelSourceKind::Cluster);
        let sources = here.map(|source| (source.prefix, source.carriers)).collect();
        Ends { addresses, sources }
    }

    /// Addresses come and go; only prefixes could cover them.
    pub(super) fn follow_own_addresses(&mut self) {
        if self.live.current().filter_prefixes().is_empty() {
            return;
        }
        let own = self.own_addresses();
        if own == self.own {
            return;
        }
        self.own = own;
        match self.open_filter() {
            Ok(()) => tracing::info!("this machine's addresses have changed: the kernel keeps those of now"),
            Err(error) => tracing::error!(%error, "the XDP filter could not follow this machine's addresses"),
        }
    }

    /// Those that the file gives it, and those that its interfaces have.
    pub(super) fn own_addresses(&self) -> BTreeSet<IpAddr> {
        let machine = self.controller.config().machine(self.controller.machine());
        let configured = machine.into_iter().flat_map(|machine| machine.addresses()).copied();
        configured.chain(doctor::addresses_here()).collect()
    }
}

fn filter(snapshot: &Snapshot, own: &BTreeSet<IpAddr>) -> Filter {
    let (vips, prefixes) = (snapshot.filter(), snapshot.filter_prefixes());
    Filter::new(vips.iter().copied(), prefixes.iter().copied(), own.iter().copied())
}
