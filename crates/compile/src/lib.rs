//! From a checked configuration to the snapshot that packet threads follow.
//!
//! In: a [`Config`], the machine's name, what is known of next hops, what stands beside the file, the time. Out: a
//! [`Snapshot`], and the [`Index`] by which a verdict finds its slots.
//! Here too: the numbers that outlive a reload (slots and services), and tables kept while their content is the same.
//! Not here: reading files, health, publishing.
//! Invariant: the tables depend on names, weights, size and key alone; a slot's number keeps its meaning until every flow
//! that could name it has timed out.
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
//! let names: Vec<&str> = compiled.index.memberships().iter().map(|found| &*found.key.backend).collect();
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
    Forwarding, Generation, HashKey, Parts, PoolTable, Prefix, PrefixGroup, PrefixSet, ServiceId, Slot,
    SlotId, SlotState, Snapshot, Timeouts, Trace, TraceKey,
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
pub use self::way::refresh_next_hops;

use self::detached_slots::DetachedSlots;
use self::guards::Guards;
use self::keyed::AllRules;
use self::rings::Rings;
use self::services::{OfServices, Services};
use self::tables::{TableKey, Tables};
use crate::slots::{Ages, Slots};
use config::{self, Config, Machine, Member, Pool};

/// Compiles one configuration after another for one machine.
#[derive(Debug, Default)]
pub struct Compiler {
    slots: Slots,
    services: HashMap<String, ServiceId>,
    tables: Tables,
    detached_slots: DetachedSlots,
    kept: Kept,
}

/// What services of the next generation share with those of this one while the file says the same.
#[derive(Debug, Default)]
struct Kept {
    guards: Guards,
    key_rules: AllRules,
    rings: Rings,
}

/// A compiled configuration.
#[derive(Debug)]
pub struct Compiled {
    /// What packet threads follow.
    pub snapshot: Snapshot,
    /// Who is who in it.
    pub index: Index,
}

/// What a compilation starts from, besides the configuration.
#[derive(Clone, Copy, Debug)]
pub struct CompileInput<'a> {
    /// The number of what comes out: another for another configuration, the same for other tables of the same one.
    pub generation: Generation,
    /// The machine's name in the file.
    pub machine: &'a str,
    /// Ways to the backends.
    pub next_hops: &'a next_hop::Table,
    /// What is in force beside the file.
    pub runtime_state: &'a RuntimeState,
    /// The states in force, by slot: a membership that goes drains only if it could be given packets.
    pub states: &'a [SlotState],
    /// A monotonic time, by which freed slots are kept apart.
    pub now: Duration,
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
    /// A keyed pool's backends give no ring.
    #[error("pool {pool}: {cause}")]
    Ring {
        /// The pool.
        pool: String,
        /// Why.
        cause: kv_switch::RingError,
    },
    /// A keyed pool's routes give no table.
    #[error("pool {pool}: {cause}")]
    Routes {
        /// The pool.
        pool: String,
        /// Why.
        cause: kv_switch::RouteError,
    },
    /// All numbers of slots or services are in use.
    #[error("more slots or services than 24 bits can number")]
    TooMany,
    /// The parts do not fit together.
    #[error(transparent)]
    Snapshot(#[from] forwarder::SnapshotError),
}

/// Compiles a configuration as the file has it: see [`Compiler::compile_file`].
///
/// # Errors
/// [`CompileError`].
pub fn compile_file(config: &Config, machine: &str) -> Result<Compiled, CompileError> {
    Compiler::default().compile_file(config, machine)
}

impl Compiler {
    /// Compiles a configuration as the file has it, every backend serving, ways unknown: for `config check`, `where`, `replay`.
    ///
    /// # Errors
    /// As [`Compiler::compile`].
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

    /// Compiles `config`.
    ///
    /// # Errors
    /// [`CompileError`]; the compiler is then as it was, but for numbers given out.
    /// # Cost
    /// Linear in memberships and services, and one table for each set of (name, weight) that the last generation did not have,
    /// built on all processors.
    pub fn compile(&mut self, config: &Config, from: CompileInput<'_>) -> Result<Compiled, CompileError> {
        let machine = find_machine(config, from.machine)?;
        let views = Views::new(config, machine);
        let reach = views.reach();
        let (mut laid_out, tables) = self.lay_out(config, machine, &reach, from)?;
        let peers = laid_out.complete(&views, &reach, &tables);
        let LaidOut { mut index, slots, with_ways, .. } = laid_out;
        let (services, kept) = self.services_of(&views, &index, &tables, from)?;
        let Services { mut services, bindings, configured } = services;
        index.configure(configured);
        let detached_slots = self.detached_slots.after(&services, &index, from.now, ages(config));
        let states = slots.states(|key| from.runtime_state.state(key));
        index.lead(&mut services, from.runtime_state, &states);
        detached_slots.exclude(&mut services);
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

    /// The services, and what of them the next generation may keep.
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

    /// Memberships, and beside them tables, into which most of the time goes.
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

    /// The states of all slots under what stands now.
    #[must_use]
    pub fn states(&self, runtime_state: &RuntimeState) -> Vec<SlotState> {
        self.slots.states(|key| runtime_state.state(key))
    }

    /// Ends what a drain time ago began to drain: memberships that went, and flows that a service left behind on slots that
    /// serve others. `None`: nothing to end.
    ///
    /// # Errors
    /// [`CompileError::Snapshot`]: `current` is not of the last configuration that was compiled.
    pub fn end_draining(
        &mut self,
        config: &Config,
        runtime_state: &RuntimeState,
        current: &Snapshot,
        now: Duration,
    ) -> Result<Option<Snapshot>, CompileError> {
        let freed = self.slots.advance(now, ages(config));
        let excluded_slots = self.detached_slots.advance(now, ages(config));
        if freed.is_empty() && !excluded_slots {
            return Ok(None);
        }
        let mut services = current.services().to_vec();
        self.detached_slots.exclude(&mut services);
        let snapshot = current.with_services(services)?.with_states(self.states(runtime_state))?;
        Ok(Some(snapshot))
    }
}

/// The receivers of reports about marked packets.
fn trace(config: &Config) -> Option<Trace> {
    let wanted = config.trace()?;
    let receivers = wanted.receivers.iter().map(|prefix| (prefix.address(), prefix.length()));
    let (receivers, per_second) = (PrefixSet::new(receivers), wanted.max_per_second);
    Some(Trace { key: trace_key(config), receivers, per_second })
}

/// What a cluster's marks and reports are signed under.
#[must_use]
pub fn trace_key(config: &Config) -> TraceKey {
    TraceKey::derive(&HashKey::new(*config.cluster().hash_key.bytes()))
}

/// The pools that a machine's VIPs reach, as each sees them.
type Reach<'a> = BTreeMap<PoolView, &'a Arc<Pool>>;

/// The memberships of a configuration, each under its number, before anything is known of the tables.
struct LaidOut {
    index: Index,
    slots: Slots,
    /// Those of the pools in reach, of other clusters, of the other machines.
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

    /// Gives each pool its table; returns the one by which fragments are shared out among machines.
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
    // Flows live up to two ticks longer than their time-out.
    let keep = timeouts(config).longest() + Duration::from_secs(1);
    Ages { drain: config.cluster().drain_time, keep }
}

/// The connection table's time-outs.
#[must_use]
pub fn timeouts(config: &Config) -> Timeouts {
    let from = config.cluster().flow_timeouts;
    Timeouts { new: from.new, established: from.established, closing: from.closing, udp: from.udp }
}

/// All groups: one whose VIPs other machines serve keeps its addresses out of groups with shorter prefixes here too.
fn groups(config: &Config) -> Vec<PrefixGroup> {
    let group = |group: &Arc<config::PrefixGroup>| PrefixGroup {
        name: Arc::clone(&group.name),
        prefixes: group.prefixes.to_vec(),
    };
    config.groups().iter().map(group).collect()
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

fn slot(member: &Member, machine: &Machine) -> Result<Slot, CompileError> {
    Ok(Slot {
        backend: Arc::clone(&member.backend.name),
        address: member.backend.address,
        forwarding: forwarding(member, machine)?,
        next_hop: None, // the compiler fills in the way, as for slots that drain
        mtu: way::ETHERNET_MTU,
        too_big: member.encapsulation.too_big,
    })
}

/// A packet that is redirected says so, that it is not redirected again (RFC 1701: recursion control).
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
