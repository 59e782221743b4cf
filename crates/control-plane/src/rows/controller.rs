//! What the controller knows, as rows of the admin API.
//!
//! In: the snapshot in force, traffic by slot and service, what the health checks report. Out: rows, in the order of names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Instant;

use forwarder::{ServiceId, SlotId, SlotState, Snapshot};

use crate::compile::{Index, Membership, service_name};
use crate::controller::Controller;
use crate::runtime_state::{Mode, Override, OverrideKey};
use crate::slots::SlotKey;
use admin::stats::TrafficStats;
use admin::view::{
    self, BackendRow, BackendState, CheckRow, CheckState, MembershipChange, Override as OverrideView,
    ServiceRow, StateTotals, TargetRow, VipRow, Why,
};
use config::{Service, Via, Vip};
use health::{HealthState, TargetKey, TargetReport};

impl Controller {
    /// Every membership that is configured, and those that drain.
    #[must_use]
    pub fn backend_rows(
        &self,
        snapshot: &Snapshot,
        traffic: impl Fn(SlotId) -> TrafficStats,
        health: &[TargetReport],
    ) -> Vec<BackendRow> {
        let reports: HashMap<&TargetKey, &TargetReport> =
            health.iter().map(|report| (&report.key, report)).collect();
        let shares = self.shares();
        let configured = self.index().memberships().iter().map(|membership| {
            let row = self.configured(membership, snapshot, &reports);
            let shares = shares.get(&membership.slot).cloned().unwrap_or_default();
            BackendRow { shares, ..with_traffic(row, traffic(membership.slot)) }
        });
        let gone = (0..).zip(snapshot.slots()).filter_map(|(number, slot)| {
            let id = SlotId(number);
            let drains = self.index().of_slot(id).is_none() && snapshot.state(id) == SlotState::Draining;
            drains.then(|| with_traffic(removed(slot), traffic(id)))
        });
        let mut rows: Vec<BackendRow> = configured.chain(gone).collect();
        rows.sort_by(|a, b| (&a.name, &a.pool).cmp(&(&b.name, &b.pool)));
        rows
    }

    fn configured(
        &self,
        membership: &Membership,
        snapshot: &Snapshot,
        reports: &HashMap<&TargetKey, &TargetReport>,
    ) -> BackendRow {
        let key = &membership.key;
        let said = self.runtime_state().override_of(key);
        let targets = self.targets_of(key).iter();
        BackendRow {
            name: key.backend.to_string(),
            address: key.address,
            pool: key.pool.to_string(),
            state: self.state_of(key, snapshot.state(membership.slot)),
            why: self.why(membership, said),
            overridden: shown(said),
            weight_configured: membership.own_weight,
            weight_effective: self.weight(membership),
            shares: BTreeMap::new(),
            packets: 0,
            bytes: 0,
            checks: targets.map(|target| check_row(target, reports.get(target).copied())).collect(),
        }
    }

    /// In words what a slot's state is; unknown memberships are down to packets.
    fn state_of(&self, key: &SlotKey, state: SlotState) -> BackendState {
        let unknown = self.runtime_state().health(key) == HealthState::Unknown;
        match state {
            SlotState::Serving => BackendState::Serving,
            SlotState::Draining => BackendState::Draining,
            SlotState::Down | SlotState::Free
                if unknown && self.runtime_state().override_of(key).mode != Some(Mode::Down) =>
            {
                BackendState::Unknown
            }
            SlotState::Down | SlotState::Free => BackendState::Down,
        }
    }

    fn weight(&self, membership: &Membership) -> u32 {
        self.runtime_state().weight(&membership.key, membership.own_weight, membership.own_weight)
    }

    fn why(&self, membership: &Membership, said: Override) -> Option<Why> {
        let key = &membership.key;
        match (said.mode, self.runtime_state().health(key)) {
            (Some(Mode::Down), _) => Some(Why::Operator),
            (_, HealthState::Down | HealthState::Unknown) => Some(Why::Health),
            (Some(Mode::Drain), HealthState::Up) => Some(Why::Operator),
            (None, HealthState::Up) if self.runtime_state().quarters.contains_key(key) => {
                Some(Why::SlowStart)
            }
            (None, HealthState::Up) if said.weight.is_some() => Some(Why::Operator),
            (None, HealthState::Up) if membership.own_weight == 0 => Some(Why::NoWeight),
            (None, HealthState::Up) => None,
        }
    }

    /// Each slot's share of the table, by pool.
    fn shares(&self) -> HashMap<SlotId, BTreeMap<String, f64>> {
        let mut shares: HashMap<SlotId, BTreeMap<String, f64>> = HashMap::new();
        for pool in self.index().pools() {
            let Some(table) = &pool.table else { continue };
            for (slot, share) in pool.slots.iter().zip(table.shares()) {
                let share = f64::from(share) / f64::from(table.size());
                shares.entry(*slot).or_default().insert(pool.name.to_string(), share);
            }
        }
        shares
    }

    /// Every target of the health checks.
    #[must_use]
    pub fn health_rows(reports: &[TargetReport]) -> Vec<TargetRow> {
        let now = Instant::now();
        let row = |report: &TargetReport| TargetRow {
            backends: vec![report.backend.to_string()],
            address: SocketAddr::new(report.key.address, report.key.check.kind.port()),
            check: report.key.check.name.to_string(),
            via: via(report.key.check.via),
            vip: report.key.through.as_ref().map(|through| through.vip),
            state: check_state(report.state),
            since_seconds: now.duration_since(report.since).as_secs_f64(),
            passes: report.passes.into(),
            failures: report.fails.into(),
            last_error: report.last_error.clone(),
            latency_us: report.last_latency.and_then(|took| u64::try_from(took.as_micros()).ok()),
            history: report.history.clone(),
        };
        let mut rows: Vec<TargetRow> = reports.iter().map(row).collect();
        rows.sort_by(|a, b| (&a.backends, &a.check, a.vip).cmp(&(&b.backends, &b.check, b.vip)));
        rows
    }

    /// Every VIP of this machine.
    #[must_use]
    pub fn vip_rows(&self, snapshot: &Snapshot, traffic: impl Fn(ServiceId) -> TrafficStats) -> Vec<VipRow> {
        let Some(machine) = self.config().machine(self.machine()) else { return Vec::new() };
        let by_name: HashMap<&str, &forwarder::Service> =
            snapshot.services().iter().map(|service| (&*service.name, service)).collect();
        let row = |vip: &Vip| {
            let services: Vec<ServiceRow> = vip
                .services
                .iter()
                .filter_map(|service| {
                    let name = service_name(vip, service);
                    let found = by_name.get(&*name)?;
                    Some(service_row(name, service, found, snapshot, traffic(found.id)))
                })
                .collect();
            VipRow {
                name: vip.name.to_string(),
                addresses: vip.shown_addresses().collect(),
                ready: services.iter().all(|service| service.ready),
                services,
            }
        };
        self.config().vips_of(machine).map(row).collect()
    }

    /// Memberships by state.
    #[must_use]
    pub fn state_totals(&self, snapshot: &Snapshot) -> StateTotals {
        let mut totals = StateTotals::default();
        for membership in self.index().memberships() {
            *match self.state_of(&membership.key, snapshot.state(membership.slot)) {
                BackendState::Serving => &mut totals.serving,
                BackendState::Draining => &mut totals.draining,
                BackendState::Down => &mut totals.down,
                BackendState::Unknown => &mut totals.unknown,
            } += 1;
        }
        totals
    }

    /// How the memberships of an override stand; taken before and after an order.
    #[must_use]
    pub fn stand(&self, backend: &OverrideKey, snapshot: &Snapshot) -> Vec<MembershipChange> {
        self.memberships_of(backend)
            .map(|membership| {
                let state = self.state_of(&membership.key, snapshot.state(membership.slot));
                let weight = self.weight(membership);
                MembershipChange {
                    pool: membership.key.pool.to_string(),
                    before: state,
                    after: state,
                    weight_before: weight,
                    weight_after: weight,
                    overridden: shown(self.runtime_state().override_of(&membership.key)),
                }
            })
            .collect()
    }
}

/// An override as the API shows it; `None`: it says nothing.
#[must_use]
pub fn shown(said: Override) -> Option<OverrideView> {
    let state = said.mode.map(|mode| match mode {
        Mode::Drain => BackendState::Draining,
        Mode::Down => BackendState::Down,
    });
    (said != Override::default()).then_some(OverrideView { state, weight: said.weight })
}

fn service_row(
    name: String,
    service: &Service,
    found: &forwarder::Service,
    snapshot: &Snapshot,
    traffic: TrafficStats,
) -> ServiceRow {
    let pool = &found.pool;
    let serving = Index::serving(pool, snapshot.states());
    let redirected_to = redirected_to(found, serving, snapshot);
    ServiceRow {
        ports: name.rsplit(' ').next().unwrap_or_default().to_owned(),
        protocol: service.protocol.to_string(),
        name,
        pool: service.pool.name.to_string(),
        serving_pool: pool.name.to_string(),
        serving,
        total: pool.slots.len(),
        ready: serving > 0 && pool.table.is_some() || !redirected_to.is_empty(),
        redirected_to,
        packets: traffic.packets,
        bytes: traffic.bytes,
    }
}

/// The other clusters that new flows go to, whichever of the service's addresses they are for.
fn redirected_to(found: &forwarder::Service, serving: usize, snapshot: &Snapshot) -> Vec<String> {
    let remotes = found.remotes.as_deref().filter(|_| serving == 0).into_iter().flatten();
    let slots = remotes.flat_map(|remote| remote.pool.slots.iter());
    let serving = slots.filter(|slot| snapshot.state(**slot) == SlotState::Serving);
    let names = serving.filter_map(|slot| Some(snapshot.slots().get(slot.0 as usize)?.backend.to_string()));
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

fn with_traffic(row: BackendRow, traffic: TrafficStats) -> BackendRow {
    BackendRow { packets: traffic.packets, bytes: traffic.bytes, ..row }
}

fn removed(slot: &forwarder::Slot) -> BackendRow {
    BackendRow {
        name: slot.backend.to_string(),
        address: slot.address,
        pool: String::new(),
        state: BackendState::Draining,
        why: Some(Why::Removed),
        overridden: None,
        weight_configured: 0,
        weight_effective: 0,
        shares: BTreeMap::new(),
        packets: 0,
        bytes: 0,
        checks: Vec::new(),
    }
}

fn check_row(target: &TargetKey, report: Option<&TargetReport>) -> CheckRow {
    CheckRow {
        check: target.check.name.to_string(),
        via: via(target.check.via),
        state: check_state(report.map_or(HealthState::Unknown, |report| report.state)),
        since_seconds: report.map_or(0.0, |report| Instant::now().duration_since(report.since).as_secs_f64()),
        last_error: report.and_then(|report| report.last_error.clone()),
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
