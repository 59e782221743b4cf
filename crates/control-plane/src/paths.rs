//! The current next hops and path MTUs of backends, and the task that watches the kernel's routes
//! and neighbors.
//!
//! `next_hop` reads routes and neighbors from the kernel, and `compile::path_mtu` stores learned
//! path MTUs. This module updates snapshots with the next hops and the path MTUs. Invariant: a
//! known next hop stays in use until the kernel marks the neighbor as failed.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use config::Config;
use forwarder::Snapshot;
use next_hop::{NextHopError, NextHops, Table, Unresolved, Wanted, Watch};
use tokio::sync::{mpsc, watch};

use compile::{CompileError, LearnedMtu, PathMtus, destinations, refresh_next_hops};

/// The current next hops and path MTUs, and the channels to the task that watches the kernel.
#[derive(Debug)]
pub struct Paths {
    table: Arc<Table>,
    mtus: PathMtus,
    wanted: watch::Sender<Wanted>,
    found: mpsc::Receiver<Table>,
}

impl Paths {
    /// Creates the paths with the next hops in `table`, and spawns the task that watches the
    /// kernel.
    ///
    /// # Errors
    /// Returns [`NextHopError`] if the netlink socket cannot be opened.
    pub fn open(
        table: Arc<Table>,
        config: &Config,
        machine: &str,
        current: &Snapshot,
    ) -> Result<Self, NextHopError> {
        let (wanted, receiver) = watch::channel(wanted(&table, config, machine, current));
        let (tables, found) = mpsc::channel(TABLES_WAITING);
        let kernel = Watch::open()?;
        tokio::spawn(async move {
            // If the queue is full, the table is dropped. No update is lost, because the next table
            // is complete as well.
            let ended = kernel.run(receiver, std::future::pending(), |table| {
                let _ = tables.try_send(table.clone());
            });
            if let Err(error) = ended.await {
                // log: The kernel closed the netlink socket, so next hops are no longer updated.
                // Restart the process soon. Until then, a backend whose MAC address changes is
                // unreachable.
                tracing::error!(%error, "next hop updates stopped");
            }
        });
        let mut mtus = PathMtus::default();
        mtus.follow(current, config.cluster().mtu.core);
        Ok(Self { table, mtus, wanted, found })
    }

    /// Returns the current next hops.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Waits for the next table from the kernel. Returns `None` if the task has ended. This
    /// function is cancel safe.
    pub async fn found(&mut self) -> Option<Table> {
        self.found.recv().await
    }

    /// Merges the next-hop table `found` with the previous table, and makes the result the current
    /// table.
    pub fn take(&mut self, found: Table) {
        self.table = Arc::new(merge(&self.table, found, &self.wanted.borrow()));
    }

    /// Adds next hops that a reload has looked up for a new configuration.
    pub fn add(&mut self, next_hops: NextHops) {
        if !next_hops.is_empty() {
            Arc::make_mut(&mut self.table).next_hops.extend(next_hops);
        }
    }

    /// Records a path MTU report. Returns `true` if the MTU of a path became lower.
    pub fn learn(&mut self, destination: IpAddr, mtu: u16, now: Duration) -> bool {
        self.mtus.learn(destination, mtu, now)
    }

    /// Returns the learned path MTUs, for a handover.
    pub fn learned(&self) -> impl Iterator<Item = LearnedMtu> {
        self.mtus.learned()
    }

    /// Imports the path MTUs of the previous process.
    pub fn take_over(&mut self, learned: impl IntoIterator<Item = LearnedMtu>) {
        self.mtus.take_over(learned);
    }

    /// Removes expired path MTUs. Returns `true` if at least one path MTU was removed.
    pub fn expire(&mut self, now: Duration) -> bool {
        self.mtus.expire(now)
    }

    /// Sets the configuration and the snapshot that determine which destinations are watched. Slots
    /// that are still draining are included.
    pub fn follow(&mut self, config: &Config, machine: &str, current: &Snapshot) {
        self.mtus.follow(current, config.cluster().mtu.core);
        self.wanted.send_replace(wanted(&self.table, config, machine, current));
    }

    /// Returns a copy of `base` with the current next hops and path MTUs.
    ///
    /// # Errors
    /// Returns [`CompileError`] if the configuration has no machine with this name.
    pub fn renewed(&self, base: &Snapshot, config: &Config, machine: &str) -> Result<Snapshot, CompileError> {
        refresh_next_hops(base, config, machine, &self.table, &self.mtus)
    }

    /// Returns `true` if `table` is still current and no path MTU is learned. A snapshot compiled
    /// with the next hops in `table` is then up to date.
    #[must_use]
    pub fn are_those_of(&self, table: &Arc<Table>) -> bool {
        Arc::ptr_eq(table, &self.table) && self.mtus.is_empty()
    }
}

fn wanted(table: &Table, config: &Config, machine: &str, current: &Snapshot) -> Wanted {
    let reflects = config.io().next_hop == config::NextHop::Reflect;
    Wanted {
        destinations: destinations(config, machine, Some(current)),
        gateway_interfaces: if reflects { table.interfaces.clone() } else { Vec::new() },
        interfaces: table.interfaces.clone(),
    }
}

/// Merges a new table with the previous one, and logs changes. If the kernel is resolving a
/// neighbor, its previous next hop is kept. If a watched destination is missing in `found`, its
/// previous next hop is kept, because the lookup may have started before a reload added the
/// destination.
fn merge(before: &Table, mut found: Table, wanted: &Wanted) -> Table {
    for (address, next_hop) in &mut found.next_hops {
        let before = before.next_hops.get(address);
        match next_hop {
            Err(Unresolved::NeighbourPending { .. }) if matches!(before, Some(Ok(_))) => {
                *next_hop = before.cloned().unwrap_or(Err(Unresolved::NoRoute));
            }
            Err(why) if before.is_none_or(|before| before.is_ok()) => {
                // log: The next hop of a backend is unknown. Either there is no route, or the next
                // hop does not respond to ARP or neighbor discovery. Check `ip route get` and `ip
                // neigh`.
                tracing::warn!(change = "backend", backend = %address, %why, "next hop unresolved");
            }
            Ok(_) if !matches!(before, Some(Ok(_))) => {
                // log: The next hop of a backend has become known. No action is needed.
                tracing::info!(change = "backend", backend = %address, "next hop resolved");
            }
            _ => {}
        }
    }
    for address in &wanted.destinations {
        if let Some(next_hop) = before.next_hops.get(address) {
            found.next_hops.entry(*address).or_insert(*next_hop);
        }
    }
    found
}

const TABLES_WAITING: usize = 16;

#[cfg(test)]
mod tests {
    use next_hop::Resolved;

    use super::*;

    fn resolved(last: u8) -> Result<Resolved, Unresolved> {
        Ok(Resolved {
            interface: 2,
            leaves_by: 2,
            tags: packet::Tags::default(),
            destination: [2, 0, 0, 0, 0, last],
            source: [2, 0, 0, 0, 1, 0],
            mtu_bytes: 1_500,
            gateway: None,
            preferred_source: None,
        })
    }

    #[test]
    fn merge_keeps_pending_neighbor_and_drops_failed_one() {
        let address = |last: u8| IpAddr::from([198, 18, 0, last]);
        let table = |entries: &[(u8, Result<Resolved, Unresolved>)]| Table {
            next_hops: entries.iter().map(|(last, found)| (address(*last), *found)).collect(),
            ..Table::default()
        };
        let before = table(&[(1, resolved(1)), (2, resolved(2)), (3, resolved(3)), (4, resolved(4))]);
        let pending = Err(Unresolved::NeighbourPending { interface: 2, neighbour: address(1) });
        let failed = Err(Unresolved::NeighbourFailed { interface: 2, neighbour: address(2) });
        let found = table(&[(1, pending), (2, failed)]);
        let wanted = Wanted { destinations: vec![address(1), address(2), address(3)], ..Wanted::default() };
        let merged = merge(&before, found, &wanted);
        assert_eq!(merged, table(&[(1, resolved(1)), (2, failed), (3, resolved(3))]));
    }
}
