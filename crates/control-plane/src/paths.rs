//! The current next hops and path MTUs of backends, and the task that watches the kernel's routes
//! and neighbors.
//!
//! `next_hop` reads routes and neighbors from the kernel, and `compile::path_mtu` stores learned
//! path MTUs. This module updates snapshots with the next hops and the path MTUs. Invariant: a
//! known next hop stays in use until the kernel marks the neighbor as failed, or until health
//! checks fail through this hop and pass through a different hop.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use config::Config;
use config::words::{LogLine, log_lines};
use forwarder::Snapshot;
use health::{CheckHops, FailingHops, TargetKey};
use next_hop::{Hops, NeighbourKey, NextHopError, NextHops, Resolved, Table, Unresolved, Wanted, Watch};
use tokio::sync::{mpsc, watch};

use compile::{CompileError, LearnedMtu, PathMtus, check_hops, destinations, refresh_next_hops};

/// The current next hops and path MTUs, and the channels to the task that watches the kernel.
#[derive(Debug)]
pub struct Paths {
    /// The next hops of the kernel.
    kernel: Table,
    /// The hops through which health checks fail, by target.
    failing: HashMap<TargetKey, Vec<NeighbourKey>>,
    /// The next hops of the kernel without failing hops.
    table: Arc<Table>,
    /// The hops through which the health checks are sent.
    check_hops: CheckHops,
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
        let (mut mtus, check_hops) = (PathMtus::default(), CheckHops::default());
        mtus.follow(current, config.cluster().mtu.core);
        let (kernel, failing) = (Table::clone(&table), HashMap::new());
        let paths = Self { kernel, failing, table, check_hops, mtus, wanted, found };
        paths.follow_check_hops(config, machine);
        Ok(paths)
    }

    /// Returns the hops through which the health checks of backends with multipath routes are sent.
    #[must_use]
    pub fn check_hops(&self) -> &CheckHops {
        &self.check_hops
    }

    /// Updates the hops through which health checks are sent. Failing hops are included, so that a
    /// recovered hop can be detected.
    fn follow_check_hops(&self, config: &Config, machine: &str) {
        // The only error is an unknown machine, for which there is nothing to check.
        self.check_hops.replace(check_hops(config, machine, &self.kernel).unwrap_or_default());
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
    pub fn take(&mut self, found: Table, config: &Config, machine: &str) {
        self.kernel = merge(&self.kernel, found, &self.wanted.borrow());
        self.follow_check_hops(config, machine);
        self.avoid_failing_hops();
    }

    /// Takes the hops through which health checks fail. Returns `true` if the next hops of a
    /// backend have changed.
    pub fn take_failing_hops(&mut self, changed: Vec<FailingHops>) -> bool {
        for FailingHops { key, hops } in changed {
            if hops.is_empty() {
                self.failing.remove(&key)
            } else {
                self.failing.insert(key, hops)
            };
        }
        self.avoid_failing_hops()
    }

    /// Returns the hops through which health checks fail, for a handover.
    pub fn failing_hops(&self) -> impl Iterator<Item = (&TargetKey, &[NeighbourKey])> {
        self.failing.iter().map(|(key, hops)| (key, &**hops))
    }

    /// Replaces all hops through which health checks fail by those of the previous process.
    pub fn take_over_failing_hops(&mut self, failing: Vec<FailingHops>) {
        self.failing.clear();
        self.take_failing_hops(failing);
    }

    fn avoid_failing_hops(&mut self) -> bool {
        let next = without_failing(&self.kernel, &self.failing);
        if next == *self.table {
            return false;
        }
        log_hops(&self.table.next_hops, &next.next_hops);
        self.table = Arc::new(next);
        true
    }

    /// Adds next hops that a reload has looked up for a new configuration.
    pub fn add(&mut self, next_hops: NextHops) {
        if !next_hops.is_empty() {
            Arc::make_mut(&mut self.table).next_hops.extend(next_hops.clone());
            self.kernel.next_hops.extend(next_hops);
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
        self.follow_check_hops(config, machine);
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

/// Merges a new table with the previous table, and logs changes. If the kernel is resolving a
/// neighbor, its previous next hop is kept. If a watched destination is missing in `found`, its
/// previous next hop is kept, because the lookup may have started before a reload added the
/// destination. Each hop of a multipath route is kept separately.
fn merge(before: &Table, mut found: Table, wanted: &Wanted) -> Table {
    let (mut lost, mut restored) = (Vec::new(), Vec::new());
    for (address, next_hops) in &mut found.next_hops {
        let before = before.next_hops.get(address);
        if let Some(before) = before {
            *next_hops = with_known(before, next_hops.clone(), *address);
        }
        match next_hops.first() {
            Err(why) if before.is_none_or(|before| before.first().is_ok()) => {
                lost.push((*address, why.to_string()));
            }
            Ok(_) if before.is_none_or(|before| before.first().is_err()) => {
                restored.push(*address);
            }
            _ => {}
        }
    }
    log_addresses(lost, restored);
    for address in &wanted.destinations {
        if let Some(next_hops) = before.next_hops.get(address) {
            found.next_hops.entry(*address).or_insert_with(|| next_hops.clone());
        }
    }
    found
}

/// Logs the addresses whose next hop is unknown now, or is known again. Many addresses share one
/// log line.
fn log_addresses(mut lost: Vec<(IpAddr, String)>, mut restored: Vec<IpAddr>) {
    lost.sort();
    restored.sort();
    for LogLine { names: address, count: addresses, first } in log_lines(lost, |(address, _)| *address) {
        let why = first.1;
        // log: The next hop of a backend is unknown. Either there is no route, or the next hop does
        // not respond to ARP or neighbor discovery. Check `ip route get` and `ip neigh`.
        tracing::warn!(change = "backend", address, addresses, why, "next hop unresolved");
    }
    for LogLine { names: address, count: addresses, .. } in log_lines(restored, |address| *address) {
        // log: The next hop of a backend has become known. No action is needed.
        tracing::info!(change = "backend", address, addresses, "next hop resolved");
    }
}

/// Replaces each pending hop by its previous result. If all hops are new and at least one is
/// pending, all previous hops are kept.
fn with_known(before: &Hops, found: Hops, address: IpAddr) -> Hops {
    let known: HashMap<NeighbourKey, Resolved> = before
        .results()
        .filter_map(Result::ok)
        .map(|way| ((way.interface, way.gateway.unwrap_or(address)), way))
        .collect();
    let is_pending = |found: &Result<_, _>| matches!(found, Err(Unresolved::NeighbourPending { .. }));
    let next = found.map(|_, found| match found {
        Err(why @ Unresolved::NeighbourPending { interface, neighbour }) => {
            known.get(&(interface, neighbour)).copied().ok_or(why)
        }
        found => found,
    });
    let keeps_all = next.first().is_err() && next.results().any(|found| is_pending(&found));
    if keeps_all && before.first().is_ok() { before.clone() } else { next }
}

/// Returns the table without the hops through which a health check of a backend fails. If all hops
/// of a backend would be removed, because its checks disagree, the backend keeps all hops.
fn without_failing(table: &Table, failing: &HashMap<TargetKey, Vec<NeighbourKey>>) -> Table {
    let mut table = table.clone();
    let mut by_backend: HashMap<IpAddr, HashSet<NeighbourKey>> = HashMap::new();
    for (key, hops) in failing {
        by_backend.entry(key.address).or_default().extend(hops);
    }
    for (address, failing) in by_backend {
        let Some(hops) = table.next_hops.get_mut(&address) else { continue };
        let next = hops.clone().map(|neighbour, found| match neighbour.filter(|key| failing.contains(key)) {
            Some((interface, neighbour)) => found.and(Err(Unresolved::ChecksFail { interface, neighbour })),
            None => found,
        });
        if next.first().is_ok() {
            *hops = next;
        }
    }
    table
}

/// Logs hops of multipath routes that are no longer used, and hops that are used again. All
/// backends with the same change share one line.
fn log_hops(before: &NextHops, now: &NextHops) {
    let mut changes: BTreeMap<(NeighbourKey, Option<String>), usize> = BTreeMap::new();
    for (address, hops) in now {
        let Some(before) = before.get(address) else { continue };
        for hop in hops.several() {
            let old = before.several().iter().find(|old| old.neighbour == hop.neighbour);
            if old.is_some_and(|old| old.found.is_ok() != hop.found.is_ok()) {
                let why = hop.found.err().map(|why| why.to_string());
                *changes.entry((hop.neighbour, why)).or_default() += 1;
            }
        }
    }
    for (((interface, neighbour), why), backends) in changes {
        match why {
            Some(why) => {
                // log: A next hop is no longer used, although the route to a backend has several
                // next hops. The remaining next hops carry its flows. Check the link and the router
                // of this next hop.
                tracing::warn!(change = "backend", neighbor = %neighbour, interface, backends, %why, "next hop skipped");
            }
            None => {
                // log: A next hop of a route with several next hops is used again. No action is
                // needed.
                tracing::info!(change = "backend", neighbor = %neighbour, interface, backends, "next hop used again");
            }
        }
    }
}

const TABLES_WAITING: usize = 16;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use next_hop::Hop;

    use super::*;
    use crate::log_fields::tests::logged;

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
            next_hops: entries.iter().map(|(last, found)| (address(*last), (*found).into())).collect(),
            ..Table::default()
        };
        let before = table(&[(1, resolved(1)), (2, resolved(2)), (3, resolved(3)), (4, resolved(4))]);
        let pending = Err(Unresolved::NeighbourPending { interface: 2, neighbour: address(1) });
        let failed = Err(Unresolved::NeighbourFailed { interface: 2, neighbour: address(2) });
        let found = table(&[(1, pending), (2, failed)]);
        let wanted = Wanted { destinations: vec![address(1), address(2), address(3)], ..Wanted::default() };
        let mut merged = Table::default();
        // A line that is first logged without a subscriber could stay off in other tests.
        logged(|| merged = merge(&before, found, &wanted));
        assert_eq!(merged, table(&[(1, resolved(1)), (2, failed), (3, resolved(3))]));
    }

    const HOP: [NeighbourKey; 2] =
        [(2, IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2))), (2, IpAddr::V4(Ipv4Addr::new(192, 0, 2, 3)))];

    #[test]
    fn many_unresolved_next_hops_share_a_log_line() {
        let addresses = || (1..=2_000_u32).map(|number| IpAddr::from((0xc612_0000 + number).to_be_bytes()));
        let table = |found: Result<Resolved, Unresolved>| Table {
            next_hops: addresses().map(|address| (address, found.into())).collect(),
            ..Table::default()
        };
        let (up, down) = (table(resolved(2)), table(Err(Unresolved::NoRoute)));
        let wanted = Wanted::default();
        let lines = logged(|| {
            merge(&up, down.clone(), &wanted);
            merge(&down, up.clone(), &wanted);
        });
        let [lost, restored] = &lines[..] else { panic!("{} lines", lines.len()) };
        assert_eq!(lost["address"], "198.18.0.1, 198.18.0.2, 198.18.0.3 and 1997 more");
        assert_eq!((&lost["addresses"], &restored["addresses"]), (&2_000.into(), &2_000.into()));
    }

    /// Returns two hops with these results.
    fn hops(found: [Result<Resolved, Unresolved>; 2]) -> Hops {
        let hop = |(neighbour, found): (NeighbourKey, Result<Resolved, Unresolved>)| {
            let by = |way| Resolved { gateway: Some(neighbour.1), ..way };
            Hop { neighbour, weight: 1, found: found.map(by) }
        };
        Hops::new(HOP.into_iter().zip(found).map(hop).collect())
    }

    #[test]
    fn merge_keeps_and_drops_each_hop_separately() {
        let (interface, neighbour) = HOP[1];
        let pending = Err(Unresolved::NeighbourPending { interface, neighbour });
        let failed = Err(Unresolved::NeighbourFailed { interface, neighbour });
        let address = IpAddr::from([198, 18, 0, 1]);
        let both = hops([resolved(2), resolved(3)]);
        for (before, found, expected) in [
            (both.clone(), hops([resolved(2), pending]), both.clone()),
            (both.clone(), hops([resolved(2), failed]), hops([resolved(2), failed])),
            // A new hop is used as soon as it is resolved.
            (resolved(2).into(), hops([resolved(2), pending]), hops([resolved(2), pending])),
            // All hops are new or down, so the previous hop stays in use.
            (resolved(9).into(), hops([failed, pending]), resolved(9).into()),
        ] {
            assert_eq!(with_known(&before, found, address), expected);
        }
    }

    #[test]
    fn failing_hops_are_avoided_unless_none_is_left() {
        let address = IpAddr::from([198, 18, 0, 1]);
        let (both, other) = (hops([resolved(2), resolved(3)]), IpAddr::from([198, 18, 0, 2]));
        let table = Table {
            next_hops: NextHops::from([(address, both.clone()), (other, both.clone())]),
            ..Table::default()
        };
        let check = |port| {
            let kind = config::CheckKind::Tcp(config::TcpCheck { port, send: None, expect: None });
            let [interval, timeout] = [2, 1].map(Duration::from_secs);
            let (name, via) = ("web".into(), config::Via::Backend);
            let (rise, fall, jitter_percent) = (2, 3, 0);
            let check = config::Check {
                name,
                kind,
                via,
                interval,
                fast_interval: interval,
                timeout,
                rise,
                fall,
                jitter_percent,
            };
            TargetKey { address, check: Arc::new(check), through: None }
        };
        let (interface, neighbour) = HOP[1];
        let avoided = hops([resolved(2), Err(Unresolved::ChecksFail { interface, neighbour })]);
        let mut failing = HashMap::from([(check(80), vec![HOP[1]])]);
        let next = without_failing(&table, &failing);
        assert_eq!((&next.next_hops[&address], &next.next_hops[&other]), (&avoided, &both));
        failing.insert(check(81), vec![HOP[0]]);
        assert_eq!(without_failing(&table, &failing).next_hops[&address], both, "the checks disagree");
    }
}
