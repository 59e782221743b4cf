//! `[pool.NAME]`: backends with weights, and pools inside pools.
//!
//! In: the sections. Out: drafts with the places of their parts, and the [`Pool`] that they become.
//! Not here: what nested pools add up to (`flatten`), what a check is (`check`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use config_text::{At, Node, Place, Root, Section, distinct, parallel};
use serde::{Serialize, Serializer};

use super::address::AddressNode;
use super::canonical;
use super::check::Check;
use super::encapsulation::Encapsulation;
use super::kv::{Kv, KvDraft};

/// A host that serves. It is its name, which is unique in the cluster and is its Maglev key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backend {
    /// The name.
    pub name: Arc<str>,
    /// The address to which packets travel.
    pub address: IpAddr,
}

/// A backend within a flattened pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    /// The backend.
    #[serde(flatten)]
    pub backend: Arc<Backend>,
    /// The pool that lists it; the first by name when several do.
    #[serde(rename = "listed_by")]
    pub leaf: Arc<str>,
    /// How packets travel to it: that of the pool that lists it.
    #[serde(serialize_with = "encapsulation_name")]
    pub encapsulation: Arc<Encapsulation>,
    /// Its name among the servers of a ring. `Some` exactly where the pool's keys are on one, and there each once.
    pub ring_name: Option<Arc<str>>,
    /// Weights multiplied along each path to the backend and added over the paths. 0: no new flows.
    pub weight: u32,
    /// All of these must pass: those of its leaf pool and of every pool that contains that one, each once, in the
    /// order of their names; at most 64. Empty: never checked. The same for a leaf and backend wherever they stand.
    #[serde(serialize_with = "check_names")]
    pub checks: Arc<[Arc<Check>]>,
}

fn encapsulation_name<S: Serializer>(encapsulation: &Encapsulation, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&encapsulation.name)
}

/// In the order of their names: those of a remote come in the order of the file.
fn check_names<S: Serializer>(checks: &[Arc<Check>], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(checks.iter().map(|check| &*check.name).collect::<BTreeSet<_>>())
}

/// A pool with all pools inside it flattened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// The name.
    pub name: Arc<str>,
    pub(super) shard: Option<Arc<str>>,
    /// Its backends, each once, in the order of their names; at least one.
    #[serde(rename = "backends")]
    pub members: Vec<Member>,
    /// What serves instead while too few of its backends are up.
    pub fallback: Option<Fallback>,
    /// Over how long a backend that came up takes its share: 1 s to 1 h. `None`: at once, the default.
    #[serde(serialize_with = "canonical::some_span")]
    pub slow_start: Option<Duration>,
    /// Of its backends, the percentage that their checks may take down: 1 to 99. `None`: all of them, the default.
    #[serde(serialize_with = "canonical::some_percent")]
    pub max_down: Option<u8>,
    /// How its UDP services choose a backend by the key of each request. Default: they do not.
    pub kv: Option<Arc<Kv>>,
}

/// What serves instead of a pool while too few of its backends are up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fallback {
    /// The name of the pool that takes over: [`Config::pool`](super::Config::pool) has it. Following these names never
    /// comes back to a pool.
    pub pool: Arc<str>,
    /// It takes over while fewer backends than this are up: 1 to 65,535. Default 1.
    pub below: u32,
    /// How long enough backends must be up before the pool serves again: 0 s to 1 h. Default 30 s.
    #[serde(serialize_with = "canonical::span")]
    pub hold: Duration,
}

impl Pool {
    /// The shard whose VIPs may use it; `None`: any VIP may.
    pub fn shard(&self) -> Option<&str> {
        self.shard.as_deref()
    }

    /// The same without one of its backends.
    pub fn without(&self, backend: &str) -> Self {
        let mut other = self.clone();
        other.members.retain(|member| *member.backend.name != *backend);
        other
    }

    /// The pools that may serve in its place, or have some of its keys.
    pub fn others(&self) -> impl Iterator<Item = &Arc<str>> {
        let fallback = self.fallback.iter().map(|fallback| &fallback.pool);
        fallback.chain(self.kv.iter().flat_map(|kv| &kv.pools))
    }

    /// The pool's own keys, as of a pool without backends.
    pub fn without_members(&self) -> Self {
        let Self { name, shard, members: _, fallback, slow_start, max_down, kv } = self;
        let (name, shard, fallback, kv) = (Arc::clone(name), shard.clone(), fallback.clone(), kv.clone());
        Self { name, shard, members: Vec::new(), fallback, slow_start: *slow_start, max_down: *max_down, kv }
    }
}

/// A pool as written.
#[derive(Default)]
pub(super) struct PoolDraft {
    pub(super) place: Place,
    pub(super) shard: Option<At<Arc<str>>>,
    /// `None`: the built-in `gre`.
    pub(super) encapsulation: Option<At<Arc<str>>>,
    pub(super) backends: Vec<BackendDraft>,
    pub(super) pools: Vec<PoolReference>,
    pub(super) checks: Vec<At<Arc<str>>>,
    pub(super) fallback: Option<At<Fallback>>,
    pub(super) slow_start: Option<At<Duration>>,
    pub(super) max_down: Option<At<u8>>,
    pub(super) kv: Option<KvDraft>,
}

/// A backend as written.
pub(super) struct BackendDraft {
    pub(super) name: At<Arc<str>>,
    pub(super) address: At<IpAddr>,
    pub(super) weight: u32,
    /// The name by which clients' files have it. `None`: its address, with the port.
    pub(super) ring_name: Option<Arc<str>>,
}

/// A pool inside a pool.
pub(super) struct PoolReference {
    pub(super) pool: At<Arc<str>>,
    pub(super) weight: u32,
}

impl PoolDraft {
    /// The shard's name.
    pub(super) fn shard(&self) -> Option<&Arc<str>> {
        self.shard.as_ref().map(|shard| &shard.value)
    }

    /// The name of the pool that takes over, and where it stands.
    pub(super) fn fallback_pool(&self) -> Option<At<Arc<str>>> {
        let fallback = self.fallback.as_ref()?;
        Some(At { value: Arc::clone(&fallback.value.pool), place: fallback.place.clone() })
    }

    /// The pools to which its keys may go besides.
    pub(super) fn kv_pools(&self) -> impl Iterator<Item = &At<Arc<str>>> {
        self.kv.iter().flat_map(|kv| &kv.pools)
    }

    /// All pools of the file by name; one with errors keeps its name, so that references to it hold.
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
        draft.checks = read_checks(section.optional("checks"));
        draft.fallback = section.optional("fallback").and_then(|node| read_fallback(&node));
        let slow_start = section.optional("slow_start");
        draft.slow_start = slow_start.and_then(|node| Some(node.at(node.duration(SECOND..=HOUR)?)));
        let max_down = section.optional("max_down");
        draft.max_down = max_down.and_then(|node| Some(node.at(node.percent(1..=100)?)));
        draft.kv = section.optional("kv").and_then(|node| KvDraft::read(&node));
        section.finish();
        if backends.is_none() && pools.is_none() {
            node.report.absent(&node.place, "neither backends nor pools", "at least one backend or pool");
        }
        if let Some(node) = encapsulation {
            if backends.is_none() {
                node.refuse("nothing here: it is for a pool with backends of its own");
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

/// The names of checks, each once.
pub(super) fn read_checks(node: Option<Node<'_>>) -> Vec<At<Arc<str>>> {
    let nodes = node.and_then(|node| node.list(CHECKS)).unwrap_or_default();
    distinct(&nodes, |node| node.name(), |node| node.refuse("each check once in a pool"))
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
    let name = section.required("name", "the backend's name, unique in the cluster");
    let name = name.and_then(|node| node.reference());
    let address = section.required("address", super::address::UNICAST);
    let address = address.and_then(|node| Some(node.at(node.unicast()?)));
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

/// 0 to 65,535, default 1.
fn read_weight(section: &mut Section<'_>) -> u32 {
    section.or("weight", 1, |node| node.number(0..=65_535))
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DEFAULT_HOLD: Duration = Duration::from_secs(30);
/// As long as a DNS name and a port.
const MAX_RING_NAME: usize = 260;
const RING_NAME: &str =
    "the server's name in the clients' file, 1 to 260 bytes, such as \"198.18.1.1:11212\"";
const CHECKS: &str = "a list of names of checks";
const BACKENDS: &str = "a list of { name = \"b1\", address = \"198.18.1.1\", weight = 1 }";
const POOLS: &str = "a list of { pool = \"NAME\", weight = 1 }";
