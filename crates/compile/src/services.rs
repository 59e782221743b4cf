//! Builds the services of a generation, and the bindings that map addresses and ports to services.
//!
//! Other modules provide each service's pool, guard, key rules and remote clusters. A service keeps
//! its number while its name (VIP, protocol and ports) is in the configuration.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use config::{Config, OnDrain, Ports, Unserved, Vip};
use forwarder::{Binding, HashPolicy, Keyed, Rejects, Service, ServiceId, VipAddress};
use packet::Family;

use crate::guards::Guards;
use crate::index::Index;
use crate::keyed::{AllRules, Inputs};
use crate::keys::PoolView;
use crate::rings::Rings;
use crate::runtime_state::RuntimeState;
use crate::tables::Tables;
use crate::views::Views;
use crate::{CompileError, remotes};

/// The services of a generation.
#[derive(Default)]
pub(crate) struct Services {
    pub(crate) services: Vec<Service>,
    pub(crate) bindings: Vec<Binding>,
    /// The configured pool of each service.
    pub(crate) configured: Vec<PoolView>,
    /// For each service, `true` if its flows move immediately when their backend drains.
    pub(crate) moves_flows: Vec<bool>,
}

/// The inputs from which services are built.
pub(crate) struct OfServices<'a> {
    pub(crate) views: &'a Views<'a>,
    pub(crate) index: &'a Index,
    pub(crate) guards: &'a Guards,
    pub(crate) key_rules: &'a AllRules,
    pub(crate) tables: &'a Tables,
    pub(crate) runtime_state: &'a RuntimeState,
}

impl OfServices<'_> {
    /// Builds all services of a machine. A service that existed in the previous generation keeps
    /// its number.
    pub(crate) fn all(
        &self,
        numbers: &mut HashMap<String, ServiceId>,
        rings: &mut Rings,
    ) -> Result<Services, CompileError> {
        let Self { views, index, .. } = *self;
        let mut all = Services::default();
        for vip in views.config.vips_of(views.machine) {
            let (guard, remotes) = (self.guards.of(vip), remotes::of(vip, index));
            for service in &vip.services {
                let name: Arc<str> = service_name(vip, service).into();
                let next = ServiceId(u32::try_from(numbers.len()).map_err(|_| CompileError::TooMany)?);
                let id = *numbers.entry(name.to_string()).or_insert(next);
                for (family, view) in by_family(views, vip, service) {
                    let Some(pool) = index.pool(&view) else { continue };
                    let bindings = bindings_of(views.config, vip, service, family, all.services.len());
                    all.bindings.extend(bindings);
                    all.services.push(Service {
                        id,
                        name: Arc::clone(&name),
                        family,
                        policy: service.hash,
                        pool: Arc::clone(pool),
                        excluded_slots: Arc::default(),
                        guard: guard.clone(),
                        remotes: remotes.clone(),
                        keyed: self.keyed(service, &view, rings)?,
                        fragments: vip.fragments,
                        rejects: rejects(vip),
                    });
                    all.configured.push(view);
                    all.moves_flows.push(service.on_drain == OnDrain::Move);
                }
            }
        }
        Ok(all)
    }

    /// Returns the key rules of a service, or `None` if the service does not route requests by key.
    fn keyed(
        &self,
        service: &config::Service,
        view: &PoolView,
        rings: &mut Rings,
    ) -> Result<Option<Arc<Keyed>>, CompileError> {
        if service.hash != HashPolicy::Key {
            return Ok(None);
        }
        let Self { views, index, tables, runtime_state, .. } = *self;
        self.key_rules.of(&Inputs { views, index, tables, runtime_state }, view, rings)
    }
}

fn rejects(vip: &Vip) -> Rejects {
    Rejects {
        no_backend: vip.on_no_backend == Unserved::Reject,
        unserved_port: vip.on_unserved_port == Unserved::Reject,
    }
}

/// Returns the view of the service's pool for each address family of the VIP. If both address
/// families share a view, the result has one entry with the family `None`.
#[must_use]
pub fn by_family(
    views: &Views<'_>,
    vip: &config::Vip,
    service: &config::Service,
) -> Vec<(Option<Family>, PoolView)> {
    let families = Views::families(vip).into_iter();
    let seen: Vec<_> =
        families.map(|family| (Some(family), views.of(vip, family, &service.pool.name))).collect();
    match &*seen {
        [(_, first), rest @ ..] if rest.iter().all(|(_, view)| view == first) => vec![(None, first.clone())],
        _ => seen,
    }
}

/// Returns a binding for each address and port range of a service. `number` is the index of the
/// service in the snapshot.
fn bindings_of<'a>(
    config: &Config,
    vip: &config::Vip,
    service: &'a config::Service,
    family: Option<Family>,
    number: usize,
) -> impl Iterator<Item = Binding> + use<'a> {
    let protocol = service.protocol.number();
    let addresses = vip_addresses(config, vip).into_iter();
    let wanted = addresses.filter(move |at| family.is_none_or(|family| at.family() == family));
    wanted.flat_map(move |address| {
        let ranges = port_ranges(service).into_iter();
        ranges.map(move |ports| Binding { address, protocol, ports, service: number })
    })
}

/// Returns the addresses of a VIP: single addresses, and address suffixes in a prefix group.
fn vip_addresses(config: &Config, vip: &config::Vip) -> Vec<VipAddress> {
    let number = vip
        .group
        .as_ref()
        .and_then(|own| config.groups().binary_search_by(|group| group.name.cmp(&own.name)).ok());
    let suffixes = number.into_iter().flat_map(|group| {
        vip.suffixes.iter().map(move |suffix| VipAddress::Suffix { group, suffix: *suffix })
    });
    vip.addresses.iter().copied().map(VipAddress::Exact).chain(suffixes).collect()
}

fn port_ranges(service: &config::Service) -> Vec<RangeInclusive<u16>> {
    match &service.ports {
        Ports::Any => vec![0..=u16::MAX],
        Ports::Listed(ranges) => ranges.clone(),
    }
}

/// Returns the name of a service, such as `www tcp 80,443`. The name appears in logs and metrics. A
/// service with an unchanged name keeps its number across reloads.
#[must_use]
pub fn service_name(vip: &config::Vip, service: &config::Service) -> String {
    let protocol = match service.protocol {
        config::Protocol::Number(number) => number.to_string(),
        named => named.to_string(),
    };
    let ports = match &service.ports {
        Ports::Any => "any".to_owned(),
        Ports::Listed(ranges) => {
            let one = |range: &RangeInclusive<u16>| match (range.start(), range.end()) {
                (first, last) if first == last => first.to_string(),
                (first, last) => format!("{first}-{last}"),
            };
            ranges.iter().map(one).collect::<Vec<_>>().join(",")
        }
    };
    format!("{} {protocol} {ports}", vip.name)
}
