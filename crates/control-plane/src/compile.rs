//! From a checked configuration to the snapshot that packet threads follow.
//!
//! In: a [`Config`], the machine's name, what is known of next hops, the time. Out: a [`Snapshot`].
//! Here too: the numbers that outlive a reload (slots and services), and tables kept while their content is the same.
//! Not here: reading files, health, publishing.
//! Invariant: the tables depend on names, weights, size and key alone; a slot's number keeps its meaning until every flow
//! that could name it has timed out.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use forwarder::{
    Binding, Forwarding, Generation, HashKey, HashPolicy, NextHop, NextHopMode, Parts, PoolTable, Service,
    ServiceId, Slot, SlotState, Snapshot, Timeouts,
};
use maglev_hash::{BuildError, Options, Seed, Table};
use packet::{Family, Mac, Outer, SourcePrefix, Template};

use crate::config::{self, Config, EncapsulationKind, Machine, Member, Pool, Ports};
use crate::next_hop;
use crate::slots::{Ages, SlotKey, Slots};

/// Compiles one configuration after another for one machine.
#[derive(Debug, Default)]
pub struct Compiler {
    generation: u64,
    slots: Slots,
    services: HashMap<String, ServiceId>,
    tables: HashMap<TableKey, Arc<Table>>,
}

/// What a table depends on, besides the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TableKey {
    size: u32,
    backends: Vec<(Arc<str>, u32)>,
}

/// What did not fit together, in words; a configuration that was checked for this machine gives none of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The configuration has no such machine.
    #[error("the configuration has no machine `{wanted}`; it has {known}")]
    NoMachine {
        /// The name looked for.
        wanted: String,
        /// The names that are there.
        known: String,
    },
    /// No outer source address for a backend.
    #[error("backend {backend}: machine {machine} has no address of the family of {address}")]
    NoSource {
        /// The backend.
        backend: String,
        /// Its address.
        address: IpAddr,
        /// The machine.
        machine: String,
    },
    /// A pool's table could not be built.
    #[error("pool {pool}: {cause}")]
    Table {
        /// The pool.
        pool: String,
        /// Why.
        cause: BuildError,
    },
    /// All numbers of slots or services are in use.
    #[error("more slots or services than 24 bits can number")]
    TooMany,
    /// The parts do not fit together.
    #[error(transparent)]
    Snapshot(#[from] forwarder::SnapshotError),
}

impl Compiler {
    /// Compiles `config` for `machine`. `now` is a monotonic time, by which freed slots are kept apart.
    ///
    /// # Errors
    /// [`CompileError`]; the compiler is then as it was, but for numbers given out.
    /// # Cost
    /// Linear in pools and services, and one table for each set of (name, weight) that the last generation did not have.
    pub fn compile(
        &mut self,
        config: &Config,
        machine: &str,
        next_hops: &next_hop::Table,
        now: Duration,
    ) -> Result<Snapshot, CompileError> {
        let machine = find_machine(config, machine)?;
        let mut tables = HashMap::new();
        let mut pools: BTreeMap<Arc<str>, Arc<PoolTable>> = BTreeMap::new();
        let mut draft = self.slots.draft();
        for pool in config.vips().iter().flat_map(config::Vip::services).map(config::Service::pool) {
            if !pools.contains_key(pool.name()) {
                let slots = members(pool, machine, &mut draft)?;
                let table = self.table(config, pool, &mut tables)?;
                let weights = pool.members().iter().map(Member::weight).collect();
                let compiled = PoolTable { name: Arc::clone(pool.name()), table, slots, weights };
                pools.insert(Arc::clone(pool.name()), Arc::new(compiled));
            }
        }
        let (services, bindings) = services(&mut self.services, config, &pools)?;
        let slots = draft.finish(now, ages(config));
        let mut with_ways = slots.slots().to_vec();
        for slot in &mut with_ways {
            (slot.next_hop, slot.mtu) = way_to(slot.address, next_hops);
        }
        let snapshot = Snapshot::new(Parts {
            generation: Generation(self.generation + 1),
            hash_key: HashKey::new(*config.cluster().hash_key().bytes()),
            services,
            bindings,
            slots: with_ways,
            next_hop: next_hop_mode(config, next_hops),
        })?;
        self.slots = slots;
        self.tables = tables;
        self.generation += 1;
        Ok(snapshot)
    }

    /// Ends the draining of memberships that went a drain time ago: their flows are reselected. `None`: nothing to end.
    ///
    /// # Errors
    /// Never in fact: the slots are the snapshot's own.
    pub fn end_draining(
        &mut self,
        config: &Config,
        current: &Snapshot,
        now: Duration,
    ) -> Result<Option<Snapshot>, CompileError> {
        let freed = self.slots.advance(now, ages(config));
        if freed.is_empty() {
            return Ok(None);
        }
        let mut slots = current.slots().to_vec();
        for id in freed {
            if let Some(slot) = slots.get_mut(id.0 as usize) {
                slot.state = SlotState::Free;
            }
        }
        Ok(Some(current.with_slots(slots, current.next_hop_mode().clone())?))
    }

    /// The pool's table; `None` when all its weights are 0.
    fn table(
        &self,
        config: &Config,
        pool: &Pool,
        tables: &mut HashMap<TableKey, Arc<Table>>,
    ) -> Result<Option<Arc<Table>>, CompileError> {
        let backends: Vec<_> = pool
            .members()
            .iter()
            .map(|member| (Arc::clone(member.backend().name()), member.weight()))
            .collect();
        let key = TableKey { size: config.cluster().table_size(), backends };
        if let Some(known) = tables.get(&key).or_else(|| self.tables.get(&key)) {
            let table = Arc::clone(known);
            tables.insert(key, Arc::clone(&table));
            return Ok(Some(table));
        }
        let mut options = Options::new(Seed::new(*config.cluster().hash_key().bytes()));
        options.size = key.size;
        options.allow_coarse = true; // the configuration has warned
        let named = |(name, weight): &(Arc<str>, u32)| (name.as_bytes().to_vec(), *weight);
        let owned: Vec<(Vec<u8>, u32)> = key.backends.iter().map(named).collect();
        let backends: Vec<maglev_hash::Backend<'_>> =
            owned.iter().map(|(name, weight)| maglev_hash::Backend { name, weight: *weight }).collect();
        match maglev_hash::build(&backends, &options) {
            Ok(table) => {
                let table = Arc::new(table);
                tables.insert(key, Arc::clone(&table));
                Ok(Some(table))
            }
            Err(BuildError::NoBackends) => Ok(None),
            Err(cause) => Err(CompileError::Table { pool: pool.name().to_string(), cause }),
        }
    }
}

/// The same snapshot with what is now known of next hops.
///
/// # Errors
/// Never in fact: the slots are the snapshot's own.
pub fn refresh_next_hops(
    snapshot: &Snapshot,
    config: &Config,
    next_hops: &next_hop::Table,
) -> Result<Snapshot, CompileError> {
    let mut slots = snapshot.slots().to_vec();
    for slot in &mut slots {
        (slot.next_hop, slot.mtu) = way_to(slot.address, next_hops);
    }
    Ok(snapshot.with_slots(slots, next_hop_mode(config, next_hops))?)
}

fn ages(config: &Config) -> Ages {
    // Flows live up to two ticks longer than their time-out.
    let keep = timeouts(config).longest() + Duration::from_secs(1);
    Ages { drain: config.cluster().drain_time(), keep }
}

/// The connection table's time-outs.
#[must_use]
pub fn timeouts(config: &Config) -> Timeouts {
    let from = config.cluster().flow_timeouts();
    Timeouts {
        new: from.new_flow(),
        established: from.established(),
        closing: from.closing(),
        udp: from.udp(),
    }
}

/// The addresses that packets of this configuration are sent to, and those of `current`'s slots that still drain.
#[must_use]
pub fn destinations(config: &Config, current: Option<&Snapshot>) -> Vec<IpAddr> {
    let members = config.pools().iter().flat_map(|pool| pool.members());
    let mut addresses: Vec<IpAddr> = members.map(|member| member.backend().address()).collect();
    let in_use = current.into_iter().flat_map(Snapshot::slots).filter(|slot| slot.state != SlotState::Free);
    addresses.extend(in_use.map(|slot| slot.address));
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// All services, each under the number that it had before, and their addresses and ports.
fn services(
    numbers: &mut HashMap<String, ServiceId>,
    config: &Config,
    pools: &BTreeMap<Arc<str>, Arc<PoolTable>>,
) -> Result<(Vec<Service>, Vec<Binding>), CompileError> {
    let (mut services, mut bindings) = (Vec::new(), Vec::new());
    for vip in config.vips() {
        for service in vip.services() {
            let Some(pool) = pools.get(service.pool().name()) else { continue };
            let name = service_name(vip, service);
            let next = ServiceId(u32::try_from(numbers.len()).map_err(|_| CompileError::TooMany)?);
            let id = *numbers.entry(name.clone()).or_insert(next);
            for address in vip.addresses() {
                bindings.extend(port_ranges(service).into_iter().map(|ports| Binding {
                    address: *address,
                    protocol: service.protocol().number(),
                    ports,
                    service: services.len(),
                }));
            }
            services.push(Service {
                id,
                name: name.into(),
                policy: policy(service.hash()),
                pool: Arc::clone(pool),
            });
        }
    }
    Ok((services, bindings))
}

/// The machine of this name.
///
/// # Errors
/// [`CompileError::NoMachine`].
pub fn find_machine<'a>(config: &'a Config, wanted: &str) -> Result<&'a Machine, CompileError> {
    config.machine(wanted).ok_or_else(|| CompileError::NoMachine {
        wanted: wanted.to_owned(),
        known: config.machines().iter().map(Machine::name).collect::<Vec<_>>().join(", "),
    })
}

fn members(
    pool: &Pool,
    machine: &Machine,
    draft: &mut crate::slots::Draft<'_>,
) -> Result<Box<[forwarder::SlotId]>, CompileError> {
    let mut slots = Vec::with_capacity(pool.members().len());
    for member in pool.members() {
        let (backend, leaf) = (member.backend(), member.leaf());
        let key = SlotKey {
            pool: Arc::clone(leaf),
            backend: Arc::clone(backend.name()),
            address: backend.address(),
        };
        let slot = Slot {
            backend: Arc::clone(backend.name()),
            address: backend.address(),
            state: SlotState::Serving,
            forwarding: forwarding(member, machine)?,
            next_hop: None, // the compiler fills in the way, as for slots that drain
            mtu: ETHERNET_MTU,
        };
        slots.push(draft.claim(key, slot).ok_or(CompileError::TooMany)?);
    }
    Ok(slots.into())
}

fn forwarding(member: &Member, machine: &Machine) -> Result<Forwarding, CompileError> {
    let encapsulation = member.encapsulation();
    let kind = match encapsulation.kind() {
        EncapsulationKind::Gre => packet::Encapsulation::Gre,
        EncapsulationKind::Ipip => packet::Encapsulation::Ipip,
        EncapsulationKind::Gue { udp_checksum } => packet::Encapsulation::Gue { udp_checksum },
        EncapsulationKind::L2 => return Ok(Forwarding::L2),
    };
    let address = member.backend().address();
    let same_family = |other: IpAddr| other.is_ipv4() == address.is_ipv4();
    let prefix = encapsulation.source_prefixes().iter().find(|prefix| same_family(prefix.address()));
    let prefix = prefix.and_then(|prefix| SourcePrefix::new(prefix.address(), prefix.length()).ok());
    let own = machine.addresses().iter().copied().find(|own| same_family(*own));
    let source =
        own.or_else(|| prefix.map(|prefix| prefix.pick(0))).ok_or_else(|| CompileError::NoSource {
            backend: member.backend().name().to_string(),
            address,
            machine: machine.name().to_owned(),
        })?;
    let outer = match (source, address) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Outer::V4 { source, destination },
        (IpAddr::V6(source), IpAddr::V6(destination)) => Outer::V6 { source, destination },
        _ => return Ok(Forwarding::L2),
    };
    let template = |inner| {
        let plain = Template::new(kind, outer, inner, encapsulation.dont_fragment());
        prefix.and_then(|prefix| plain.with_source(prefix)).unwrap_or(plain)
    };
    Ok(Forwarding::Tunnel { v4: template(Family::V4), v6: template(Family::V6) })
}

/// The next hop and the MTU of the way; without a way the MTU is Ethernet's, and packets are dropped for want of a way.
fn way_to(address: IpAddr, next_hops: &next_hop::Table) -> (Option<NextHop>, u16) {
    match next_hops.next_hops.get(&address) {
        Some(Ok(found)) => {
            let hop = NextHop { destination: Mac(found.destination), source: Mac(found.source) };
            (Some(hop), u16::try_from(found.mtu_bytes).unwrap_or(u16::MAX))
        }
        _ => (None, ETHERNET_MTU),
    }
}

fn next_hop_mode(config: &Config, next_hops: &next_hop::Table) -> NextHopMode {
    match config.io().next_hop() {
        config::NextHop::Resolve => NextHopMode::Resolve,
        config::NextHop::Reflect => NextHopMode::Reflect {
            gateways: next_hops.gateways.iter().map(|gateway| Mac(gateway.mac)).collect(),
        },
    }
}

fn policy(hash: config::Hash) -> HashPolicy {
    match hash {
        config::Hash::FiveTuple => HashPolicy::FiveTuple,
        config::Hash::Addresses => HashPolicy::Addresses,
        config::Hash::Source => HashPolicy::Source,
    }
}

fn port_ranges(service: &config::Service) -> Vec<RangeInclusive<u16>> {
    match service.ports() {
        Ports::Any => vec![0..=u16::MAX],
        Ports::Listed(ranges) => ranges.clone(),
    }
}

/// Names a service in logs and metrics, and keeps its number over reloads: `www tcp 80,443`.
fn service_name(vip: &config::Vip, service: &config::Service) -> String {
    let protocol = match service.protocol() {
        config::Protocol::Tcp => "tcp".to_owned(),
        config::Protocol::Udp => "udp".to_owned(),
        config::Protocol::Number(number) => number.to_string(),
    };
    let ports = match service.ports() {
        Ports::Any => "any".to_owned(),
        Ports::Listed(ranges) => {
            let one = |range: &RangeInclusive<u16>| match (range.start(), range.end()) {
                (first, last) if first == last => first.to_string(),
                (first, last) => format!("{first}-{last}"),
            };
            ranges.iter().map(one).collect::<Vec<_>>().join(",")
        }
    };
    format!("{} {protocol} {ports}", vip.name())
}

const ETHERNET_MTU: u16 = 1500;
