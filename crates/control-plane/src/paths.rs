//! The paths to backends as they are known now: next hops and path MTUs.
//!
//! In: looks at the kernel (`next_hop`), routers' reports of smaller MTUs, configurations. Out: snapshots over them.
//! Not here: how the kernel is asked (`next_hop`), how long a report holds (`path_mtu`).
//! Invariant: until the kernel gives a neighbour up, the last next hop stands.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use config::Config;
use forwarder::Snapshot;
use next_hop::{NextHopError, NextHops, Table, Unresolved, Wanted, Watch};
use tokio::sync::{mpsc, watch};

use compile::{CompileError, LearnedMtu, PathMtus, destinations, refresh_next_hops};

/// Next hops and path MTUs, and the task that keeps the former fresh.
#[derive(Debug)]
pub struct Paths {
    table: Arc<Table>,
    mtus: PathMtus,
    wanted: watch::Sender<Wanted>,
    found: mpsc::Receiver<Table>,
}

impl Paths {
    /// Begins with `table`, and spawns the task that watches the kernel.
    ///
    /// # Errors
    /// No netlink socket.
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
            // Tables come whole: one that does not fit into the queue is made good by the next.
            let ended = kernel.run(receiver, std::future::pending(), |table| {
                let _ = tables.try_send(table.clone());
            });
            if let Err(error) = ended.await {
                tracing::error!(%error, "next hops are no longer kept fresh");
            }
        });
        let mut mtus = PathMtus::default();
        mtus.follow(current, config.cluster().mtu.core);
        Ok(Self { table, mtus, wanted, found })
    }

    /// The next hops.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// The next table that the kernel gave; `None`: no more come. Cancel safe.
    pub async fn found(&mut self) -> Option<Table> {
        self.found.recv().await
    }

    /// Takes a table over.
    pub fn take(&mut self, found: Table) {
        self.table = Arc::new(merge(&self.table, found, &self.wanted.borrow()));
    }

    /// Adds next hops that were looked up for a configuration to come.
    pub fn add(&mut self, next_hops: NextHops) {
        if !next_hops.is_empty() {
            Arc::make_mut(&mut self.table).next_hops.extend(next_hops);
        }
    }

    /// Takes a router's report in; whether it lowers the MTU.
    pub fn learn(&mut self, destination: IpAddr, mtu: u16, now: Duration) -> bool {
        self.mtus.learn(destination, mtu, now)
    }

    /// Path MTUs, for a process that comes in this one's place.
    pub fn learned(&self) -> impl Iterator<Item = LearnedMtu> {
        self.mtus.learned()
    }

    /// Takes over what another process has learned.
    pub fn take_over(&mut self, learned: impl IntoIterator<Item = LearnedMtu>) {
        self.mtus.take_over(learned);
    }

    /// Forgets old reports; whether there was one.
    pub fn expire(&mut self, now: Duration) -> bool {
        self.mtus.expire(now)
    }

    /// From now on the destinations of this configuration are watched, and those that still drain.
    pub fn follow(&mut self, config: &Config, machine: &str, current: &Snapshot) {
        self.mtus.follow(current, config.cluster().mtu.core);
        self.wanted.send_replace(wanted(&self.table, config, machine, current));
    }

    /// `base` over the paths of now.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn renewed(&self, base: &Snapshot, config: &Config, machine: &str) -> Result<Snapshot, CompileError> {
        refresh_next_hops(base, config, machine, &self.table, &self.mtus)
    }

    /// Whether a snapshot that was compiled over `table` has the paths of now.
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

/// What a look found, with what an earlier one knew: a flushed neighbour is back in a moment, so its next hop stands until the
/// kernel gives up; and a look that began before a reload does not know the backends that came by it.
fn merge(before: &Table, mut found: Table, wanted: &Wanted) -> Table {
    for (address, next_hop) in &mut found.next_hops {
        let before = before.next_hops.get(address);
        match next_hop {
            Err(Unresolved::NeighbourPending { .. }) if matches!(before, Some(Ok(_))) => {
                *next_hop = before.cloned().unwrap_or(Err(Unresolved::NoRoute));
            }
            Err(why) if before.is_none_or(|before| before.is_ok()) => {
                tracing::warn!(change = "backend", backend = %address, %why, "no way to this backend");
            }
            Ok(_) if !matches!(before, Some(Ok(_))) => {
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
    fn a_flushed_neighbour_keeps_its_next_hop_and_one_that_failed_loses_it() {
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
