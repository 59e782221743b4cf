//! `[pool.NAME]`: backends with weights, and pools inside pools.
//!
//! This module reads the sections and defines [`Pool`], the flattened form. The module `flatten`
//! combines nested pools, and `check` reads health checks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use config_text::{At, Expected, Node, Place, Root, Section, distinct, parallel};
use serde::{Serialize, Serializer};

use super::address::AddressNode;
use super::canonical;
use super::check::Check;
use super::encapsulation::Encapsulation;
use super::kv::{Kv, KvDraft};

/// A server that receives traffic. A backend is identified by its name, which is unique in the
/// cluster and is the input of Maglev hashing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backend {
    /// The unique name of the backend.
    pub name: Arc<str>,
    /// The address to which packets for the backend are sent.
    pub address: IpAddr,
}

/// A backend within a flattened pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    /// The backend that belongs to the pool.
    #[serde(flatten)]
    pub backend: Arc<Backend>,
    /// The pool that lists the backend directly. If several pools list the backend, this is the
    /// alphabetically first of these pools.
    #[serde(rename = "listed_by")]
    pub leaf: Arc<str>,
    /// The encapsulation of packets to the backend. The encapsulation is set in the pool that lists
    /// the backend.
    #[serde(serialize_with = "encapsulation_name")]
    pub encapsulation: Arc<Encapsulation>,
    /// The name of the backend on the ketama ring, which is unique in the pool. `None` if the pool
    /// has no ring.
    pub ring_name: Option<Arc<str>>,
    /// The weight of the backend. If nested pools contain the backend, the weights along each path
    /// of pools are multiplied, and the products are added. A backend with weight 0 receives no new
    /// flows.
    pub weight: u32,
    /// The health checks that must all pass, sorted by name, at most 64. The list contains the
    /// checks of the pool that lists the backend, and of all pools that contain this pool. Without
    /// checks, the backend is always considered up. A backend that only one pool lists has the same
    /// checks in all pools.
    #[serde(serialize_with = "check_names")]
    pub checks: Arc<[Arc<Check>]>,
}

fn encapsulation_name<S: Serializer>(encapsulation: &Encapsulation, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&encapsulation.name)
}

/// Serializes the names of checks in sorted order. The checks of a remote cluster are not sorted.
fn check_names<S: Serializer>(checks: &[Arc<Check>], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(checks.iter().map(|check| &*check.name).collect::<BTreeSet<_>>())
}

/// A pool with all nested pools flattened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// The name of the pool.
    pub name: Arc<str>,
    pub(super) shard: Option<Arc<str>>,
    /// One or more backends, sorted by name and without duplicates.
    #[serde(rename = "backends")]
    pub members: Vec<Member>,
    /// The fallback pool, which takes over while too few backends of this pool are up.
    pub fallback: Option<Fallback>,
    /// The duration of a slow start, 1 s to 1 h. During a slow start, a backend that has just come
    /// up receives an increasing share of new flows. If `None` (the default), the backend receives
    /// its full share immediately.
    #[serde(serialize_with = "canonical::some_span")]
    pub slow_start: Option<Duration>,
    /// The maximum percentage of backends that health checks may take out of service: 1 to 99. If
    /// `None` (the default), there is no limit.
    #[serde(serialize_with = "canonical::some_percent")]
    pub max_down: Option<u8>,
    /// The settings of a keyed pool, in which the key of each UDP request chooses the backend.
    /// Default: none.
    pub kv: Option<Arc<Kv>>,
}

/// The pool that takes over while too few backends of another pool are up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fallback {
    /// The name of the pool that takes over. [`Config::pool`](super::Config::pool) returns the
    /// pool. Fallbacks never form a cycle.
    pub pool: Arc<str>,
    /// The number of backends below which the fallback pool takes over: 1 to 65,535. Only backends
    /// that are up are counted. Default: 1.
    pub below: u32,
    /// The minimum time for which enough backends must be up before the original pool takes over
    /// again, 0 s to 1 h. Default: 30 s.
    #[serde(serialize_with = "canonical::span")]
    pub hold: Duration,
}

impl Pool {
    /// Returns the shard whose VIPs may use the pool, or `None` if any VIP may use the pool.
    pub fn shard(&self) -> Option<&str> {
        self.shard.as_deref()
    }

    /// Returns a copy of the pool without the given backend.
    pub fn without(&self, backend: &str) -> Self {
        let mut other = self.clone();
        other.members.retain(|member| *member.backend.name != *backend);
        other
    }

    /// Returns the names of the other pools that may receive traffic of this pool: its fallback,
    /// and the pools in `kv`.
    pub fn others(&self) -> impl Iterator<Item = &Arc<str>> {
        let fallback = self.fallback.iter().map(|fallback| &fallback.pool);
        fallback.chain(self.kv.iter().flat_map(|kv| &kv.pools))
    }

    /// Returns a copy of the pool without backends.
    pub fn without_members(&self) -> Self {
        let Self { name, shard, members: _, fallback, slow_start, max_down, kv } = self;
        let (name, shard, fallback, kv) = (Arc::clone(name), shard.clone(), fallback.clone(), kv.clone());
        Self { name, shard, members: Vec::new(), fallback, slow_start: *slow_start, max_down: *max_down, kv }
    }
}

/// The section of a pool, with the positions of its values.
#[derive(Default)]
pub(super) struct PoolDraft {
    pub(super) place: Place,
    pub(super) shard: Option<At<Arc<str>>>,
    /// The name of the encapsulation. `None` means the built-in encapsulation `gre`.
    pub(super) encapsulation: Option<At<Arc<str>>>,
    pub(super) backends: Vec<BackendDraft>,
    pub(super) pools: Vec<PoolReference>,
    pub(super) checks: Vec<At<Arc<str>>>,
    /// `true` if the key `checks` is present, even if its list is empty.
    pub(super) has_checks: bool,
    pub(super) fallback: Option<At<Fallback>>,
    pub(super) slow_start: Option<At<Duration>>,
    pub(super) max_down: Option<At<u8>>,
    pub(super) kv: Option<KvDraft>,
}

/// A backend, with the positions of its values.
pub(super) struct BackendDraft {
    pub(super) name: At<Arc<str>>,
    pub(super) address: At<IpAddr>,
    pub(super) weight: u32,
    /// The name of the server in the clients' configuration. `None` represents the default name:
    /// the address, followed by the port unless it is the memcached port.
    pub(super) ring_name: Option<Arc<str>>,
}

/// A reference to a nested pool.
pub(super) struct PoolReference {
    pub(super) pool: At<Arc<str>>,
    pub(super) weight: u32,
}

impl PoolDraft {
    pub(super) fn shard(&self) -> Option<&Arc<str>> {
        self.shard.as_ref().map(|shard| &shard.value)
    }

    /// Returns the name of the fallback, with its position.
    pub(super) fn fallback_pool(&self) -> Option<At<Arc<str>>> {
        let fallback = self.fallback.as_ref()?;
        Some(At { value: Arc::clone(&fallback.value.pool), place: fallback.place.clone() })
    }

    /// Returns the other pools that may store keys of this pool.
    pub(super) fn kv_pools(&self) -> impl Iterator<Item = &At<Arc<str>>> {
        self.kv.iter().flat_map(|kv| &kv.pools)
    }

    /// Reads all pools. Returns a map from name to pool, which includes pools with errors so that
    /// references to them are valid.
    pub(super) fn read_all(root: &mut Root<'_>) -> BTreeMap<Arc<str>, Self> {
        let large = root.report.is_large();
        let pools = parallel::map(root.named("pool"), large, |(name, node)| (name, Self::read(&node)));
        pools.into_iter().collect()
    }

    fn read(node: &Node<'_>) -> Self {
        let mut draft = Self { place: node.place.clone(), ..Self::default() };
        let Some(mut section) = node.section() else { return draft };
        draft.shard = section.optional("shard").and_then(|node| node.reference());
        let encapsulation = section.optional("encapsulation");
        let backends = section.optional("backends");
        let pools = section.optional("pools");
        let checks = section.optional("checks");
        draft.has_checks = checks.is_some();
        draft.checks = read_checks(checks);
        draft.fallback = section.optional("fallback").and_then(|node| read_fallback(&node));
        let slow_start = section.optional("slow_start");
        draft.slow_start = slow_start.and_then(|node| Some(node.at(node.duration(SECOND..=HOUR)?)));
        let max_down = section.optional("max_down");
        draft.max_down = max_down.and_then(|node| Some(node.at(node.percent(1..=100)?)));
        draft.kv = section.optional("kv").and_then(|node| KvDraft::read(&node));
        section.finish();
        if backends.is_none() && pools.is_none() {
            let message = format!("{} needs a \"backends\" or \"pools\" key", node.place.field.table());
            node.report.absent(&node.place, (message, BACKENDS_EXAMPLE));
        }
        if let Some(node) = encapsulation {
            if backends.is_none() {
                node.refuse((
                    "\"encapsulation\" needs \"backends\" in the same pool",
                    "set it in the pools that list the backends",
                ));
            }
            draft.encapsulation = node.reference();
        }
        for node in backends.and_then(|node| node.items(BACKENDS)).unwrap_or_default() {
            draft.backends.extend(read_backend(&node));
        }
        for node in pools.and_then(|node| node.items(POOLS)).unwrap_or_default() {
            draft.pools.extend(read_reference(&node));
        }
        draft
    }
}

/// Reads the names of checks, without duplicates.
pub(super) fn read_checks(node: Option<Node<'_>>) -> Vec<At<Arc<str>>> {
    let nodes = node.and_then(|node| node.list(CHECKS)).unwrap_or_default();
    distinct(&nodes, Node::name, Node::again)
}

fn read_fallback(node: &Node<'_>) -> Option<At<Fallback>> {
    let mut section = node.section()?;
    let pool = section.required("pool", "the name of a pool").and_then(|node| node.reference());
    let below = section.or("below", 1, |node| node.number(1..=65_535));
    let hold = section.or("hold", DEFAULT_HOLD, |node| node.duration(Duration::ZERO..=HOUR));
    section.finish();
    let pool = pool?;
    Some(At { place: pool.place, value: Fallback { pool: pool.value, below, hold } })
}

fn read_backend(node: &Node<'_>) -> Option<BackendDraft> {
    let mut section = node.section()?;
    let name = section.required("name", "the name of the backend, unique in the cluster");
    let name = name.and_then(|node| node.reference());
    let address = section.required("address", super::address::UNICAST);
    let address = address.and_then(|node| Some(node.at(node.unicast("backend address")?)));
    let weight = read_weight(&mut section);
    let ring_name = section.optional("ring_name").and_then(|node| {
        node.parse(RING_NAME, |text| (1..=MAX_RING_NAME).contains(&text.len()).then(|| Arc::from(text)))
    });
    section.finish();
    Some(BackendDraft { name: name?, address: address?, weight, ring_name })
}

fn read_reference(node: &Node<'_>) -> Option<PoolReference> {
    let mut section = node.section()?;
    let pool = section.required("pool", "the name of a pool").and_then(|node| node.reference());
    let weight = read_weight(&mut section);
    section.finish();
    Some(PoolReference { pool: pool?, weight })
}

/// Reads a weight from 0 to 65,535. Default: 1.
fn read_weight(section: &mut Section<'_>) -> u32 {
    section.or("weight", 1, |node| node.number(0..=65_535))
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DEFAULT_HOLD: Duration = Duration::from_secs(30);
/// The maximum length of a ring name: a DNS name with a port.
const MAX_RING_NAME: usize = 260;
const RING_NAME: Expected =
    Expected::new("the name of the server in the configuration of the clients, 1 to 260 bytes")
        .example("\"198.18.1.1:11212\"");
const CHECKS: Expected = Expected::new("a list of check names").example("[\"web\"]");
const BACKENDS: Expected =
    Expected::new("a list of backends").example("[{ name = \"b1\", address = \"198.18.1.1\", weight = 1 }]");
const BACKENDS_EXAMPLE: &str = "for example backends = [{ name = \"b1\", address = \"198.18.1.1\" }]";
const POOLS: Expected = Expected::new("a list of pools").example("[{ pool = \"NAME\", weight = 1 }]");
