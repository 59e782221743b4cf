//! Compiles a checked configuration into the snapshot that packet threads read.
//!
//! The input is a [`Config`], the name of the machine, the known next hops, the runtime state
//! (health states, overrides, slow start) and the current time. The output is a [`Snapshot`] and an
//! [`Index`], which maps each pool member (one backend in one leaf pool) to its slot. This crate
//! does not read files, run health checks or publish snapshots.
//!
//! Invariants: the content of a Maglev table depends only on backend names, weights, table size and
//! hash key. A slot number refers to the same backend until every flow that could refer to it has
//! timed out.
//!
//! ```
//! # let text = r#"
//! # [cluster]
//! # name = "c"
//! # hash_key_file = "hash.key"
//! # [machine.lb1]
//! # addresses = ["192.0.2.1"]
//! # interfaces = ["eth0"]
//! # [pool.web]
//! # backends = [{ name = "b1", address = "198.18.0.1" }]
//! # [vip.www]
//! # addresses = ["203.0.113.10"]
//! # services = [{ ports = [80], protocol = "tcp", pool = "web" }]"#;
//! let key = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
//! let (config, _) = config::parse(text, "sluicegate.toml".as_ref(), &key).expect("no problems");
//! let compiled = compile::compile_file(&config, "lb1")?;
//! let memberships = compiled.index.memberships();
//! let names: Vec<&str> = memberships.iter().map(|found| &*found.key.backend).collect();
//! assert_eq!(names, ["b1"]);
//! # Ok::<_, compile::CompileError>(())
//! ```

#![forbid(unsafe_code)]

mod destinations;
mod detached_slots;
mod guards;
mod index;
mod keyed;
mod keys;
mod numbers;
mod path_mtu;
mod peers;
mod remotes;
mod rings;
mod runtime_state;
mod services;
mod slots;
mod tables;
mod views;
mod way;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use forwarder::{
    Forwarding, Generation, HashKey, Parts, PoolTable, Prefix, PrefixGroup, PrefixSet, Service, ServiceId,
    Slot, SlotId, SlotState, Snapshot, Timeouts, Trace, TraceKey,
};
use maglev_hash::{BuildError, Table};
use packet::{Family, Outer, Template};

pub use self::destinations::destinations;
pub use self::index::{Index, Membership, own_weight};
pub use self::keys::{PoolView, SlotKey, VipFamily, is_checked_through_vip};
pub use self::numbers::Numbers;
pub use self::path_mtu::{LearnedMtu, PathMtus};
pub use self::peers::others;
pub use self::remotes::all as remote_pools;
pub use self::runtime_state::{Mode, Override, OverrideKey, RuntimeState};
pub use self::services::{by_family, service_name};
pub use self::views::{Views, chain};
pub use self::way::{check_hops, refresh_next_hops};

use self::detached_slots::DetachedSlots;
use self::guards::Guards;
use self::keyed::AllRules;
use self::rings::Rings;
use self::services::{OfServices, Services};
use self::tables::{TableKey, Tables};
use crate::slots::{Ages, Slots};
use config::{self, Config, Machine, Member, Pool};

/// Compiles the successive configurations of one machine. Slot numbers, service numbers and
/// unchanged tables are kept from one configuration to the next.
#[derive(Debug, Default)]
pub struct Compiler {
    slots: Slots,
    services: HashMap<String, ServiceId>,
    tables: Tables,
    detached_slots: DetachedSlots,
    kept: Kept,
}

/// Objects from the previous generation that are reused while their configuration does not change.
#[derive(Debug, Default)]
struct Kept {
    guards: Guards,
    key_rules: AllRules,
    rings: Rings,
}

/// A compiled configuration.
#[derive(Debug)]
pub struct Compiled {
    /// The snapshot for the packet threads.
    pub snapshot: Snapshot,
    /// The index of the pool members and pools in the snapshot.
    pub index: Index,
}

/// The inputs to a compilation, apart from the configuration.
#[derive(Clone, Copy, Debug)]
pub struct CompileInput<'a> {
    /// The generation number of the resulting snapshot. A new configuration gets a new number.
    /// Rebuilding the tables for the current configuration does not change its number.
    pub generation: Generation,
    /// The name of the machine in the configuration.
    pub machine: &'a str,
    /// The next hops of the backends.
    pub next_hops: &'a next_hop::Table,
    /// Health states, overrides and other state that is not part of the configuration.
    pub runtime_state: &'a RuntimeState,
    /// The current state of each slot, indexed by slot number. The slot of a removed backend drains
    /// only if the slot could receive packets before the removal.
    pub states: &'a [SlotState],
    /// The current time of the monotonic clock, which measures drain times and the delay before
    /// slot numbers are reused.
    pub now: Duration,
}

/// The reason why a configuration cannot be compiled. These errors do not occur if the
/// configuration was checked for this machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The configuration has no machine with this name.
    #[error("unknown machine `{wanted}`; the configuration has {known}")]
    NoMachine {
        /// The requested machine name.
        wanted: String,
        /// The names of the configured machines, separated by commas.
        known: String,
    },
    /// The machine has no source address of the required IP version for the outer header of packets
    /// to the backend.
    #[error(
        "machine `{machine}` has no source address for backend `{backend}`; add an address of the same IP version as {address}"
    )]
    NoSource {
        /// The name of the backend.
        backend: String,
        /// The address of the backend.
        address: IpAddr,
        /// The name of the machine.
        machine: String,
    },
    /// The Maglev table of a pool cannot be built.
    #[error("cannot build the Maglev table of pool `{pool}`: {cause}")]
    Table {
        /// The name of the pool.
        pool: String,
        /// The error of the Maglev table builder.
        cause: BuildError,
    },
    /// The hash ring of a keyed pool cannot be built.
    #[error("cannot build the hash ring of pool `{pool}`: {cause}")]
    Ring {
        /// The name of the pool.
        pool: String,
        /// The error returned by the hash ring builder.
        cause: kv_switch::RingError,
    },
    /// The key routes of a keyed pool cannot be built.
    #[error("cannot build the key routes of pool `{pool}`: {cause}")]
    Routes {
        /// The name of the pool.
        pool: String,
        /// The error returned by the key route builder.
        cause: kv_switch::RouteError,
    },
    /// All 24-bit numbers for slots or services are in use.
    #[error("out of slot or service numbers; at most 2^24 pool members and services are supported")]
    TooMany,
    /// The parts of the snapshot contradict each other.
    #[error(transparent)]
    Snapshot(#[from] forwarder::SnapshotError),
}

/// Compiles a configuration without runtime state. See [`Compiler::compile_file`].
///
/// # Errors
/// Returns [`CompileError`] if the configuration cannot be used on this machine.
pub fn compile_file(config: &Config, machine: &str) -> Result<Compiled, CompileError> {
    Compiler::default().compile_file(config, machine)
}

impl Compiler {
    /// Compiles a configuration without runtime state. All backends are considered to be serving,
    /// and all next hops are unknown. The commands `config check`, `where` and `replay` use this
    /// function.
    pub fn compile_file(&mut self, config: &Config, machine: &str) -> Result<Compiled, CompileError> {
        let input = CompileInput {
            generation: Generation(1),
            machine,
            next_hops: &next_hop::Table::default(),
            runtime_state: &RuntimeState::default(),
            states: &[],
            now: Duration::ZERO,
        };
        self.compile(config, input)
    }

    /// Compiles `config` with the inputs in `from`.
    ///
    /// # Errors
    /// Returns [`CompileError`] if the configuration cannot be used on this machine. An error does
    /// not change the compiler, except that newly allocated service numbers remain allocated.
    /// # Cost
    /// Linear in the number of pool members and services. In addition, one table is built for each
    /// set of (name, weight) pairs for which the previous generation had no table. Tables are built
    /// on all processors in parallel.
    pub fn compile(&mut self, config: &Config, from: CompileInput<'_>) -> Result<Compiled, CompileError> {
        let machine = find_machine(config, from.machine)?;
        let views = Views::new(config, machine);
        let reach = views.reach();
        let (mut laid_out, tables) = self.lay_out(config, machine, &reach, from)?;
        let peers = laid_out.complete(&views, &reach, &tables);
        let LaidOut { mut index, slots, with_ways, .. } = laid_out;
        let (services, kept) = self.services_of(&views, &index, &tables, from)?;
        let Services { mut services, bindings, configured, moves_flows } = services;
        index.configure(configured, moves_flows, &services);
        let detached_slots = self.detached_slots.after(&services, &index, from.now, ages(config));
        let states = slots.states(|key| from.runtime_state.state(key));
        index.exclude(detached_slots.excluded(&services, &index));
        index.lead(&mut services, from.runtime_state, &states);
        let snapshot = Snapshot::new(Parts {
            generation: from.generation,
            hash_key: HashKey::new(*config.cluster().hash_key.bytes()),
            services,
            bindings,
            groups: groups(config),
            states,
            slots: with_ways,
            next_hop: way::mode(config, machine, from.next_hops),
            own: machine.addresses.to_vec(),
            tunnels: peers::senders(config, machine),
            peers,
        })?
        .with_trace(trace(config));
        (self.slots, self.tables, self.detached_slots) = (slots, tables, detached_slots);
        self.kept = kept;
        Ok(Compiled { snapshot, index })
    }

    /// Builds the services. Returns the compiled objects together with the objects that the next
    /// generation may reuse.
    fn services_of(
        &mut self,
        views: &Views<'_>,
        index: &Index,
        tables: &Tables,
        from: CompileInput<'_>,
    ) -> Result<(Services, Kept), CompileError> {
        let guards = self.kept.guards.after(views.config.vips_of(views.machine));
        let (key_rules, mut rings) = (self.kept.key_rules.after(views.config)?, self.kept.rings.after());
        let runtime_state = from.runtime_state;
        let inputs =
            OfServices { views, index, guards: &guards, key_rules: &key_rules, tables, runtime_state };
        let services = inputs.all(&mut self.services, &mut rings)?;
        Ok((services, Kept { guards, key_rules, rings: rings.settled() }))
    }

    /// Assigns slots to pool members. In parallel, another thread builds the tables, which take
    /// most of the time.
    fn lay_out(
        &self,
        config: &Config,
        machine: &Machine,
        reach: &Reach<'_>,
        from: CompileInput<'_>,
    ) -> Result<(LaidOut, Tables), CompileError> {
        let keys = reach.iter().map(|(view, pool)| TableKey::of(config, view, pool, from.runtime_state));
        let remotes = remotes::all(config, machine).map(|remote| &remote.pool);
        let fixed = remotes.chain(config.peers(machine));
        let first = keyed::of_first_choice(config);
        let first = reach.iter().filter(|(view, _)| first.contains(&*view.pool));
        let first =
            first.map(|(view, pool)| TableKey::of_first_choice(config, view, pool, from.runtime_state));
        let keys = keys.chain(fixed.map(|pool| TableKey::of_all(config, pool))).chain(first).collect();
        let (laid_out, tables) = std::thread::scope(|scope| {
            let tables = scope.spawn(|| self.tables.build(keys, config.cluster()));
            let laid_out = LaidOut::new(&self.slots, config, machine, reach, from);
            (laid_out, tables.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        Ok((laid_out?, tables?))
    }

    /// Returns the state of each slot for `runtime_state`.
    #[must_use]
    pub fn states(&self, runtime_state: &RuntimeState) -> Vec<SlotState> {
        self.slots.states(|key| runtime_state.state(key))
    }

    /// Ends each drain whose drain time has passed. Slots of removed backends become free, and
    /// services stop using slots from which they were moved. Returns the changed index, or `None`
    /// if no drain ended. `services` are the services of the current snapshot.
    pub fn end_draining(
        &mut self,
        config: &Config,
        services: &[Service],
        index: &Index,
        now: Duration,
    ) -> Option<Index> {
        let freed = self.slots.advance(now, ages(config));
        let excluded_slots = self.detached_slots.advance(now, ages(config));
        if freed.is_empty() && !excluded_slots {
            return None;
        }
        let mut index = index.clone();
        index.exclude(self.detached_slots.excluded(services, &index));
        Some(index)
    }
}

/// Returns the configured receivers of trace reports about marked packets.
fn trace(config: &Config) -> Option<Trace> {
    let wanted = config.trace()?;
    let receivers = wanted.receivers.iter().map(|prefix| (prefix.address(), prefix.length()));
    let (receivers, per_second) = (PrefixSet::new(receivers), wanted.max_per_second);
    Some(Trace { key: trace_key(config), receivers, per_second })
}

/// Derives the key that authenticates trace marks and trace reports of the cluster.
#[must_use]
pub fn trace_key(config: &Config) -> TraceKey {
    TraceKey::derive(&HashKey::new(*config.cluster().hash_key.bytes()))
}

/// The pools that the VIPs of a machine use, sorted by view.
type Reach<'a> = BTreeMap<PoolView, &'a Arc<Pool>>;

/// The slots of all pool members in a configuration, before tables are added to the pools.
struct LaidOut {
    index: Index,
    slots: Slots,
    /// The slots of each pool. The order is: pools of this cluster, pools of other clusters, the
    /// pool of peers.
    in_pools: Vec<Vec<SlotId>>,
    with_ways: Vec<Slot>,
    others: Option<Pool>,
}

impl LaidOut {
    fn new(
        before: &Slots,
        config: &Config,
        machine: &Machine,
        reach: &Reach<'_>,
        from: CompileInput<'_>,
    ) -> Result<Self, CompileError> {
        let mut draft = before.draft();
        let (mut index, mut in_pools) = (Index::default(), Vec::with_capacity(reach.len()));
        for (view, pool) in reach {
            in_pools.push(index.enter(config, pool, view, |key, member| {
                draft.claim(key, slot(member, machine)?).ok_or(CompileError::TooMany)
            })?);
        }
        in_pools.extend(remotes::enter(&mut index, &mut draft, config, machine)?);
        let others = peers::others(config, machine);
        if let Some(others) = &others {
            in_pools.push(index.enter(config, others, &PoolView::of_all(&others.name), |key, member| {
                let claimed = draft.claim(key, as_peer(slot(member, machine)?));
                claimed.ok_or(CompileError::TooMany)
            })?);
        }
        let slots = draft.finish(from.now, ages(config), |id| state_of(from.states, id));
        index.know_peers(slots.peers());
        let mut with_ways = slots.slots().to_vec();
        way::fill_in(&mut with_ways, machine, from.next_hops);
        Ok(Self { index, slots, in_pools, with_ways, others })
    }

    /// Adds each pool with its table to the index. Returns the table that assigns IP fragments to
    /// machines.
    fn complete(&mut self, views: &Views<'_>, reach: &Reach<'_>, tables: &Tables) -> Option<Arc<PoolTable>> {
        let (config, machine) = (views.config, views.machine);
        let (mut built, mut in_pools) = (tables.of_pools(), std::mem::take(&mut self.in_pools).into_iter());
        let remotes = remotes::all(config, machine).map(|remote| &remote.pool);
        let remotes = remotes.map(|pool| (PoolView::of_all(&pool.name), &**pool));
        let fixed = reach.iter().map(|(view, pool)| (view.clone(), &***pool)).chain(remotes);
        for (((view, pool), slots), (table, weights)) in fixed.zip(&mut in_pools).zip(&mut built) {
            let fallback = pool.fallback.clone().zip(views.fallback(&view));
            self.index.complete(view, pool_table(pool, table, slots, weights), fallback);
        }
        let peers = config.peers(machine).zip(built.next());
        let peers = peers.map(|(pool, (table, _))| Arc::new(peers::table(pool, machine, &self.index, table)));
        if let Some((others, slots)) = self.others.as_ref().zip(in_pools.next()) {
            let weights = others.members.iter().map(|member| member.weight).collect();
            let table = pool_table(others, None, slots, weights);
            self.index.complete(PoolView::of_all(&others.name), table, None);
        }
        peers
    }
}

fn pool_table(pool: &Pool, table: Option<Arc<Table>>, slots: Vec<SlotId>, weights: Vec<u32>) -> PoolTable {
    PoolTable { name: Arc::clone(&pool.name), table, slots: slots.into(), weights: weights.into() }
}

fn state_of(states: &[SlotState], id: SlotId) -> SlotState {
    states.get(id.0 as usize).copied().unwrap_or_default()
}

fn ages(config: &Config) -> Ages {
    // A connection table entry lives up to two clock ticks longer than its timeout.
    let keep = timeouts(config).longest() + Duration::from_secs(1);
    Ages { drain: config.cluster().drain_time, keep }
}

/// Returns the idle timeouts of the connection table.
#[must_use]
pub fn timeouts(config: &Config) -> Timeouts {
    let from = config.cluster().flow_timeouts;
    Timeouts { new: from.new, established: from.established, closing: from.closing, udp: from.udp }
}

/// Returns all prefix groups, including groups whose VIPs belong to other machines. Prefixes of
/// such groups still take precedence over shorter prefixes of other groups.
fn groups(config: &Config) -> Vec<PrefixGroup> {
    let group = |group: &Arc<config::PrefixGroup>| PrefixGroup {
        name: Arc::clone(&group.name),
        prefixes: group.prefixes.to_vec(),
    };
    config.groups().iter().map(group).collect()
}

/// Returns the machine with the name `wanted` from the configuration.
pub fn find_machine<'a>(config: &'a Config, wanted: &str) -> Result<&'a Machine, CompileError> {
    config.machine(wanted).ok_or_else(|| CompileError::NoMachine {
        wanted: wanted.to_owned(),
        known: config.machines().iter().map(Machine::name).collect::<Vec<_>>().join(", "),
    })
}

fn slot(member: &Member, machine: &Machine) -> Result<Slot, CompileError> {
    Ok(Slot {
        backend: Arc::clone(&member.backend.name),
        address: member.backend.address,
        forwarding: forwarding(member, machine)?,
        next_hop: None, // `way::fill_in` sets the next hop later
        spread: None,
        mtu: way::ETHERNET_MTU,
        too_big: member.encapsulation.too_big,
    })
}

/// Sets the recursion control field of the GRE header to 1. The receiving machine then does not
/// redirect the packet again (RFC 1701).
fn as_peer(slot: Slot) -> Slot {
    let forwarding = match slot.forwarding {
        Forwarding::Tunnel { v4, v6 } => {
            Forwarding::Tunnel { v4: v4.with_recursion(1), v6: v6.with_recursion(1) }
        }
        Forwarding::L2 => Forwarding::L2,
    };
    Slot { forwarding, ..slot }
}

fn forwarding(member: &Member, machine: &Machine) -> Result<Forwarding, CompileError> {
    let encapsulation = &member.encapsulation;
    if encapsulation.kind == packet::Encapsulation::L2 {
        return Ok(Forwarding::L2);
    }
    let address = member.backend.address;
    let same_family = |other: IpAddr| other.is_ipv4() == address.is_ipv4();
    let prefix = encapsulation.source_prefixes.iter().find(|prefix| same_family(prefix.address()));
    let own = machine.addresses.iter().copied().find(|own| same_family(*own));
    let source = own.or_else(|| prefix.map(Prefix::address)).ok_or_else(|| CompileError::NoSource {
        backend: member.backend.name.to_string(),
        address,
        machine: machine.name().to_owned(),
    })?;
    let outer = match (source, address) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Outer::V4 { source, destination },
        (IpAddr::V6(source), IpAddr::V6(destination)) => Outer::V6 { source, destination },
        _ => return Ok(Forwarding::L2),
    };
    let template = |inner| {
        let plain = Template::new(encapsulation.kind, outer, inner, encapsulation.dont_fragment);
        let spread = prefix.and_then(|prefix| plain.with_source(prefix.address(), prefix.length()));
        spread.unwrap_or(plain)
    };
    Ok(Forwarding::Tunnel { v4: template(Family::V4), v6: template(Family::V6) })
}
