//! Builds the API responses for backends, health check targets and VIPs, sorted by name.
//!
//! The rows are built from the current snapshot, the traffic counters of slots and services, and
//! the reports of health checks.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use forwarder::{ServiceId, SlotId, SlotState, Snapshot};

use crate::controller::Controller;
use crate::flow_counts::FlowCounts;
use admin::stats::TrafficStats;
use admin::view::{
    self, BackendRow, BackendState, CheckRow, CheckState, DownView, FamilyRow, MembershipChange,
    Override as OverrideView, SeenByVip, ServiceRow, StateTotals, TargetRow, VipRow, Why,
};
use compile::{Index, Membership, Mode, Override, OverrideKey, SlotKey, service_name};
use config::{Config, Service, Via, Vip, natural};
use health::{HealthState, ProxiedTargetKey, TargetKey, TargetReport};
use packet::Family;

impl Controller {
    /// Returns a row for each configured membership, and for each removed backend that is still
    /// draining.
    #[must_use]
    pub fn backend_rows(
        &self,
        snapshot: &Snapshot,
        traffic: impl Fn(SlotId) -> TrafficStats,
        flows: Option<&FlowCounts>,
        health: &[TargetReport],
    ) -> Vec<BackendRow> {
        let vips = vip_names(snapshot);
        let counted = |row, slots: &[SlotId]| with_flows(row, slots, flows, &vips);
        let reports: HashMap<&TargetKey, &TargetReport> =
            health.iter().map(|report| (&report.key, report)).collect();
        let shares = self.shares();
        let configured = self.seen(self.index().backends(), snapshot).into_iter().map(|seen| {
            let slots: Vec<SlotId> = seen.all.iter().map(|(membership, _)| membership.slot).collect();
            let row = counted(self.configured(&seen, &reports), &slots);
            let shares = largest(slots.iter().filter_map(|slot| shares.get(slot)).flatten());
            let traffic = slots.iter().fold(TrafficStats::default(), |mut sum, slot| {
                sum += traffic(*slot);
                sum
            });
            BackendRow { shares, ..with_traffic(row, traffic) }
        });
        let leaving: HashMap<SlotId, &SlotKey> = self.leaving().map(|(key, slot)| (slot, key)).collect();
        let gone = self.removed(snapshot).into_iter().map(|((name, address), slots)| {
            let traffic = slots.iter().fold(TrafficStats::default(), |mut sum, slot| {
                sum += traffic(*slot);
                sum
            });
            let targets: HashSet<&TargetKey> = slots
                .iter()
                .filter_map(|slot| leaving.get(slot))
                .flat_map(|key| self.targets_of(key))
                .collect();
            let mut checks: Vec<CheckRow> =
                targets.into_iter().map(|target| check_row(target, reports.get(target).copied())).collect();
            checks.sort_by(|a, b| (&a.check, a.vip).cmp(&(&b.check, b.vip)));
            let row =
                BackendRow { state: state_of_removed(&slots, snapshot), checks, ..removed(name, address) };
            with_traffic(counted(row, &slots), traffic)
        });
        let mut rows: Vec<BackendRow> = configured.chain(gone).collect();
        rows.sort_by(|a, b| natural(&a.name, &b.name).then_with(|| natural(&a.pool, &b.pool)));
        rows
    }

    /// Returns the slots of each backend that was removed from the configuration, and that is still
    /// draining or failed during its drain. A backend has several slots if it was in several pools,
    /// or if it was checked through VIPs.
    fn removed<'s>(&self, snapshot: &'s Snapshot) -> BTreeMap<(&'s str, IpAddr), Vec<SlotId>> {
        let mut removed: BTreeMap<_, Vec<SlotId>> = BTreeMap::new();
        for (number, slot) in (0..).zip(snapshot.slots()) {
            let id = SlotId(number);
            let is_gone = self.index().of_slot(id).is_none() && !self.index().is_peer(id);
            if is_gone && matches!(snapshot.state(id), SlotState::Draining | SlotState::Down) {
                removed.entry((&*slot.backend, slot.address)).or_default().push(id);
            }
        }
        removed
    }

    /// Groups the memberships that have the same backend and pool and differ only in the VIP of
    /// their checks. As a result, each backend of a pool is returned once.
    fn seen<'a>(
        &self,
        memberships: impl Iterator<Item = &'a Membership>,
        snapshot: &Snapshot,
    ) -> Vec<Seen<'a>> {
        let mut all: Vec<Seen<'_>> = Vec::new();
        let mut places: HashMap<(&str, &str, IpAddr), usize> = HashMap::new();
        for membership in memberships {
            let key = &membership.key;
            let state = self.state_of(key, snapshot.state(membership.slot));
            // Only pool members that are checked through VIPs have several entries.
            let apart = key.vip.as_ref().map(|_| (&*key.pool, &*key.backend, key.address));
            let place = apart.map_or(all.len(), |one| *places.entry(one).or_insert(all.len()));
            match all.get_mut(place) {
                Some(seen) => {
                    if rank(state) < rank(seen.state) {
                        (seen.best, seen.state) = (membership, state);
                    }
                    seen.all.push((membership, state));
                }
                None => all.push(Seen { best: membership, state, all: vec![(membership, state)] }),
            }
        }
        all
    }

    fn configured(&self, seen: &Seen<'_>, reports: &HashMap<&TargetKey, &TargetReport>) -> BackendRow {
        let key = &seen.best.key;
        let said = self.runtime_state().override_of(key);
        let targets = seen.all.iter().flat_map(|(membership, _)| self.targets_of(&membership.key));
        let mut checked = HashSet::new();
        let targets = targets.filter(|target| checked.insert(*target));
        BackendRow {
            name: key.backend.to_string(),
            address: key.address,
            pool: key.pool.to_string(),
            pools: seen.best.pools.iter().map(ToString::to_string).collect(),
            state: seen.state,
            why: self.why(seen.best, said),
            overridden: shown(said),
            weight_configured: seen.best.own_weight,
            weight_effective: self.weight(seen.best),
            shares: BTreeMap::new(),
            flows: None,
            active_flows: None,
            flows_by_vip: BTreeMap::new(),
            packets: 0,
            bytes: 0,
            checks: targets.map(|target| check_row(target, reports.get(target).copied())).collect(),
            flush_error: seen.all.iter().find_map(|(membership, _)| self.flush_error(&membership.key)),
            less_for: seen.less_for(),
        }
    }

    /// Returns the state to show for a pool member. `Unknown` is shown separately, although packet
    /// threads treat it like `Down`.
    fn state_of(&self, key: &SlotKey, state: SlotState) -> BackendState {
        let unknown = self.runtime_state().health(key) == HealthState::Unknown;
        match state {
            SlotState::Serving => BackendState::Serving,
            SlotState::Draining if self.runtime_state().flushing.contains(key) => BackendState::Flushing,
            SlotState::Draining => BackendState::Draining,
            SlotState::Down | SlotState::Free
                if unknown && self.runtime_state().override_of(key).mode != Some(Mode::Down) =>
            {
                BackendState::Unknown
            }
            SlotState::Down | SlotState::Free => BackendState::Down,
        }
    }

    fn flush_error(&self, key: &SlotKey) -> Option<String> {
        self.flushing(key)?.last_error.clone()
    }

    fn weight(&self, membership: &Membership) -> u32 {
        let runtime_state = self.runtime_state();
        let weight = runtime_state.weight(&membership.key, membership.own_weight, membership.own_weight);
        let tenths = u32::from(runtime_state.tenths(&membership.key));
        // A weight above 0 is never shown as 0, because a backend with such a weight receives
        // flows.
        weight.saturating_mul(tenths).div_ceil(10)
    }

    fn why(&self, membership: &Membership, said: Override) -> Option<Why> {
        let key = &membership.key;
        match (said.mode, self.runtime_state().health(key)) {
            (Some(Mode::Down), _) => Some(Why::Operator),
            (_, HealthState::Down | HealthState::Unknown) => Some(Why::Health),
            (Some(Mode::Drain), HealthState::Up) => Some(Why::Operator),
            (None, HealthState::Up) if self.runtime_state().flushing.contains(key) => Some(Why::Rejoin),
            (None, HealthState::Up) if self.runtime_state().drains(key) => Some(Why::Agent),
            (None, HealthState::Up) if self.runtime_state().quarters.contains_key(key) => {
                Some(Why::SlowStart)
            }
            (None, HealthState::Up) if said.weight.is_some() => Some(Why::Operator),
            (None, HealthState::Up) if membership.own_weight == 0 => Some(Why::NoWeight),
            (None, HealthState::Up) if self.runtime_state().tenths(key) != 10 => Some(Why::Agent),
            (None, HealthState::Up) => None,
        }
    }

    /// Returns the share of table entries that each slot has in each pool.
    fn shares(&self) -> HashMap<SlotId, BTreeMap<String, f64>> {
        let mut shares: HashMap<SlotId, BTreeMap<String, f64>> = HashMap::new();
        for (_, pool) in self.index().pools() {
            let Some(table) = &pool.table else { continue };
            for (slot, (_, share)) in pool.slots.iter().zip(table.shares()) {
                let share = f64::from(share) / f64::from(table.size());
                shares.entry(*slot).or_default().insert(pool.name.to_string(), share);
            }
        }
        shares
    }

    /// Returns a row for each health check target. The names of VIPs are those of `machine` in
    /// `config`.
    #[must_use]
    pub fn health_rows(reports: &[TargetReport], config: &Config, machine: &str) -> Vec<TargetRow> {
        let now = Instant::now();
        let vips = config.machine(machine).into_iter().flat_map(|machine| config.vips_of(machine));
        let vips = vips.flat_map(|vip| vip.reachable_at().into_iter().map(move |at| (at, vip)));
        let vips: HashMap<IpAddr, &Vip> = vips.collect();
        let name = |through: &ProxiedTargetKey| Some(vips.get(&through.vip)?.name.to_string());
        let row = |report: &TargetReport| TargetRow {
            backends: vec![report.backend.to_string()],
            address: SocketAddr::new(report.key.address, report.key.check.kind.port()),
            check: report.key.check.name.to_string(),
            via: via(report.key.check.via),
            vip: report.key.through.as_ref().map(|through| through.vip),
            vip_name: report.key.through.as_ref().and_then(name),
            state: check_state(report.state),
            since_seconds: now.duration_since(report.since).as_secs_f64(),
            passes: report.passes.into(),
            failures: report.fails.into(),
            last_error: report.last_error.clone(),
            last_error_seconds: report.last_error_at.map(|at| now.duration_since(at).as_secs_f64()),
            latency_us: report.last_latency.and_then(|took| u64::try_from(took.as_micros()).ok()),
            history: report.history.clone(),
        };
        let mut rows: Vec<TargetRow> = reports.iter().map(row).collect();
        rows.sort_by(|a, b| {
            let by_backend = natural(&a.backends.concat(), &b.backends.concat());
            by_backend.then_with(|| natural(&a.check, &b.check)).then_with(|| a.vip.cmp(&b.vip))
        });
        rows
    }

    /// Returns a row for each VIP of this machine. [`Readiness::fill`](admin::Readiness::fill) sets
    /// the readiness in the rows.
    #[must_use]
    pub fn vip_rows(&self, snapshot: &Snapshot, traffic: impl Fn(ServiceId) -> TrafficStats) -> Vec<VipRow> {
        let Some(machine) = self.config().machine(self.machine()) else { return Vec::new() };
        let mut by_name: HashMap<&str, Vec<&forwarder::Service>> = HashMap::new();
        for service in snapshot.services() {
            by_name.entry(&*service.name).or_default().push(service);
        }
        let row = |vip: &Vip| {
            let services: Vec<ServiceRow> = vip
                .services
                .iter()
                .filter_map(|service| {
                    let name = service_name(vip, service);
                    let found = by_name.get(&*name)?;
                    let traffic = traffic(found.first()?.id);
                    service_row(name, service, found, snapshot, traffic)
                })
                .collect();
            VipRow {
                name: vip.name.to_string(),
                addresses: vip.shown_addresses().collect(),
                ready: false,
                not_ready: Vec::new(),
                serving: services.iter().all(|service| service.ready),
                announced_to: None,
                services,
            }
        };
        let mut rows: Vec<VipRow> = self.config().vips_of(machine).map(row).collect();
        rows.sort_by(|a, b| natural(&a.name, &b.name));
        rows
    }

    /// Returns the number of backends in each state, and the names of at most [`DownView::MOST`]
    /// backends that are down. Each row of [`Self::backend_rows`] is counted once.
    #[must_use]
    pub fn state_totals(&self, snapshot: &Snapshot) -> (StateTotals, Vec<String>) {
        let (mut totals, mut down) = (StateTotals::default(), Vec::new());
        let configured = self.seen(self.index().backends(), snapshot).into_iter().map(|seen| {
            let key = &seen.best.key;
            (seen.state, format!("{} in {}", key.backend, key.pool))
        });
        let removed = self
            .removed(snapshot)
            .into_iter()
            .map(|((name, _), slots)| (state_of_removed(&slots, snapshot), format!("{name} (removed)")));
        for (state, name) in configured.chain(removed) {
            if state == BackendState::Down && down.len() < DownView::MOST {
                down.push(name);
            }
            *match state {
                BackendState::Serving => &mut totals.serving,
                BackendState::Draining => &mut totals.draining,
                BackendState::Down => &mut totals.down,
                BackendState::Unknown => &mut totals.unknown,
                BackendState::Flushing => &mut totals.flushing,
            } += 1;
        }
        (totals, down)
    }

    /// Returns the current state of the pool members to which an override applies. Callers compare
    /// the states before and after a command.
    #[must_use]
    pub fn stand(&self, backend: &OverrideKey, snapshot: &Snapshot) -> Vec<MembershipChange> {
        let row = |seen: Seen<'_>| {
            let weight = self.weight(seen.best);
            MembershipChange {
                pool: seen.best.key.pool.to_string(),
                before: seen.state,
                after: seen.state,
                weight_before: weight,
                weight_after: weight,
                overridden: shown(self.runtime_state().override_of(&seen.best.key)),
            }
        };
        self.seen(self.memberships_of(backend), snapshot).into_iter().map(row).collect()
    }
}

/// A pool member with its state for each VIP through which it is checked.
struct Seen<'a> {
    /// The entry of the pool member with the best state, which is the state with the lowest rank.
    best: &'a Membership,
    state: BackendState,
    all: Vec<(&'a Membership, BackendState)>,
}

impl Seen<'_> {
    fn less_for(&self) -> Vec<SeenByVip> {
        let other = |(membership, state): &(&Membership, BackendState)| {
            let at = membership.key.vip.as_ref().filter(|_| *state != self.state)?;
            Some(SeenByVip { vip: at.vip.to_string(), family: family(at.family), state: *state })
        };
        self.all.iter().filter_map(other).collect()
    }
}

/// Returns the rank of a state. A pool member in a state with a lower rank receives more traffic.
fn rank(state: BackendState) -> u8 {
    match state {
        BackendState::Serving => 0,
        BackendState::Draining => 1,
        BackendState::Flushing => 2,
        BackendState::Unknown => 3,
        BackendState::Down => 4,
    }
}

fn family(family: Family) -> view::Family {
    match family {
        Family::V4 => view::Family::Ipv4,
        Family::V6 => view::Family::Ipv6,
    }
}

/// Converts an override to the API type. Returns `None` if the override is empty.
#[must_use]
pub fn shown(said: Override) -> Option<OverrideView> {
    let state = said.mode.map(|mode| match mode {
        Mode::Drain => BackendState::Draining,
        Mode::Down => BackendState::Down,
    });
    (said != Override::default()).then_some(OverrideView { state, weight: said.weight })
}

/// Builds the row of a service. `found` has one entry for both address families, or one entry per
/// address family.
fn service_row(
    name: String,
    service: &Service,
    found: &[&forwarder::Service],
    snapshot: &Snapshot,
    traffic: TrafficStats,
) -> Option<ServiceRow> {
    let rows = || found.iter().map(|found| (*found, family_row(found, snapshot)));
    let (fewest, row) = rows().min_by_key(|(_, row)| (row.ready, row.serving))?;
    Some(ServiceRow {
        ports: name.rsplit(' ').next().unwrap_or_default().to_owned(),
        protocol: service.protocol.to_string(),
        name,
        pool: service.pool.name.to_string(),
        serving_pool: row.serving_pool,
        serving: row.serving,
        total: row.total,
        ready: row.ready,
        redirected_to: redirected_to(fewest, row.serving, snapshot),
        families: rows().map(|(_, row)| row).filter(|row| row.family.is_some()).collect(),
        flows: None,
        packets: traffic.packets,
        bytes: traffic.bytes,
    })
}

fn family_row(found: &forwarder::Service, snapshot: &Snapshot) -> FamilyRow {
    let pool = &found.pool;
    let serving = Index::serving(pool, snapshot.states());
    FamilyRow {
        family: found.family.map(family),
        serving_pool: pool.name.to_string(),
        serving,
        total: pool.slots.len(),
        ready: serving > 0 && pool.table.is_some() || !redirected_to(found, serving, snapshot).is_empty(),
    }
}

/// Returns the names of the remote clusters that currently receive new flows of the service.
fn redirected_to(found: &forwarder::Service, serving: usize, snapshot: &Snapshot) -> Vec<String> {
    let remotes = found.remotes.as_deref().filter(|_| serving == 0).into_iter().flatten();
    let slots = remotes.flat_map(|remote| remote.pool.slots.iter());
    let serving = slots.filter(|slot| snapshot.state(**slot) == SlotState::Serving);
    let names = serving.filter_map(|slot| Some(snapshot.slots().get(slot.0 as usize)?.backend.to_string()));
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the VIP name of each service. The VIP name is the first word of the service name, such
/// as `www` in `www tcp 80`.
fn vip_names(snapshot: &Snapshot) -> HashMap<ServiceId, &str> {
    let named = snapshot.services().iter().map(|service| (service.id, service.name.split(' ').next()));
    named.filter_map(|(id, vip)| Some((id, vip?))).collect()
}

fn with_flows(
    row: BackendRow,
    slots: &[SlotId],
    flows: Option<&FlowCounts>,
    vips: &HashMap<ServiceId, &str>,
) -> BackendRow {
    let Some(counts) = flows else { return row };
    let (mut sum, mut active, mut by_vip) = (0, 0, BTreeMap::new());
    for (service, count) in slots.iter().flat_map(|slot| counts.of_slot(*slot)) {
        sum += count.all;
        active += count.active;
        if let Some(vip) = vips.get(&service) {
            *by_vip.entry((*vip).to_owned()).or_default() += count.all;
        }
    }
    BackendRow { flows: Some(sum), active_flows: Some(active), flows_by_vip: by_vip, ..row }
}

/// Sets the flow count of each service in the VIP rows.
pub fn count_vips(rows: &mut [VipRow], counts: &FlowCounts, snapshot: &Snapshot) {
    let by_service = counts.by_service();
    let named = snapshot.services().iter().map(|service| (&*service.name, service.id));
    let by_name: HashMap<&str, u64> =
        named.map(|(name, id)| (name, by_service.get(&id).copied().unwrap_or(0))).collect();
    for service in rows.iter_mut().flat_map(|vip| &mut vip.services) {
        service.flows = by_name.get(&*service.name).copied();
    }
}

/// Returns the largest share in each pool. The share of a backend can differ between VIPs, because
/// backends that fail the checks through a VIP are left out of the table for this VIP.
fn largest<'a>(shares: impl Iterator<Item = (&'a String, &'a f64)>) -> BTreeMap<String, f64> {
    let mut largest: BTreeMap<String, f64> = BTreeMap::new();
    for (pool, share) in shares {
        let known = largest.entry(pool.clone()).or_default();
        *known = known.max(*share);
    }
    largest
}

fn with_traffic(row: BackendRow, traffic: TrafficStats) -> BackendRow {
    BackendRow { packets: traffic.packets, bytes: traffic.bytes, ..row }
}

/// Returns the state of a backend that was removed from the configuration.
fn state_of_removed(slots: &[SlotId], snapshot: &Snapshot) -> BackendState {
    let drains = slots.iter().any(|slot| snapshot.state(*slot) == SlotState::Draining);
    if drains { BackendState::Draining } else { BackendState::Down }
}

fn removed(name: &str, address: IpAddr) -> BackendRow {
    BackendRow {
        name: name.to_owned(),
        address,
        pool: String::new(),
        pools: Vec::new(),
        state: BackendState::Draining,
        why: Some(Why::Removed),
        overridden: None,
        weight_configured: 0,
        weight_effective: 0,
        shares: BTreeMap::new(),
        flows: None,
        active_flows: None,
        flows_by_vip: BTreeMap::new(),
        packets: 0,
        bytes: 0,
        checks: Vec::new(),
        flush_error: None,
        less_for: Vec::new(),
    }
}

fn check_row(target: &TargetKey, report: Option<&TargetReport>) -> CheckRow {
    CheckRow {
        check: target.check.name.to_string(),
        via: via(target.check.via),
        vip: target.through.as_ref().map(|through| through.vip),
        state: check_state(report.map_or(HealthState::Unknown, |report| report.state)),
        since_seconds: report.map_or(0.0, |report| Instant::now().duration_since(report.since).as_secs_f64()),
        last_error: report.and_then(|report| report.last_error.clone()),
        last_error_seconds: report
            .and_then(|report| report.last_error_at)
            .map(|at| Instant::now().duration_since(at).as_secs_f64()),
    }
}

pub(crate) fn check_state(state: HealthState) -> CheckState {
    match state {
        HealthState::Unknown => CheckState::Unknown,
        HealthState::Up => CheckState::Up,
        HealthState::Down => CheckState::Down,
    }
}

pub(crate) fn via(via: Via) -> view::Via {
    match via {
        Via::Backend => view::Via::Backend,
        Via::Vip => view::Via::Vip,
    }
}
