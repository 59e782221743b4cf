//! Services that choose a backend by the key of each request, not by the flow.
//!
//! In: what the control plane says of a keyed pool. Out: who may ask, and by which rules a request is read and its key placed.
//! Not here: bytes of a protocol (`kv-switch`), packets (`pipeline/keyed`), the choice under a snapshot (`key_choice`).
//! Source: AppSwitch §3; SmartSwitch §3.

use std::sync::Arc;

use kv_switch::{Ack, Application, Epochs, KeyHash, Late, Lease, Refusal, Ring, Routes};
use maglev_hash::Table;

use crate::{DropReason, Flow, HashKey, PoolTable, PrefixSet};

/// How requests of a keyed pool are read, and which of its pools has which keys.
#[derive(Debug)]
pub struct KeyRules {
    /// Reads requests.
    pub application: Box<dyn Application>,
    /// Who may send them.
    pub clients: PrefixSet,
    /// Hashes keys.
    pub hash: KeyHash,
    /// From keys to places in [`Keyed::pools`].
    pub routes: Routes,
    /// Where keys of a backend that does not serve go.
    pub failover: KeyFailover,
    /// Seconds that what is stored away from its key's own backend may live; `None`: as long as its client says.
    pub failover_ttl: Option<u32>,
    /// Which way requests and answers take.
    pub path: KeyPath,
    /// How requests are gathered whose keys are of several backends; `None`: they are refused.
    pub gather: Option<GatherRules>,
    /// How reads of hot keys are answered from copies; `None`: none is.
    pub cache: Option<CacheRules>,
    /// How many backends have each key; `None`: one. Only beside [`KeyFailover::Next`] and [`KeyPath::Direct`].
    pub replicas: Option<ReplicaRules>,
}

/// How many backends have each key, and what its writes wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaRules {
    /// How many: 2 to [`MAX_REPLICAS`](kv_switch::MAX_REPLICAS).
    pub count: u8,
    /// How many of them have to carry a write out before its client has the reply that it is done.
    pub ack: Ack,
    /// Place in [`GATHER_TIMEOUTS_MS`] of the time that they have.
    pub timeout: usize,
}

/// How reads of hot keys are answered from copies.
#[derive(Clone, Debug)]
pub struct CacheRules {
    /// Bytes of copies, in all threads together.
    pub memory: usize,
    /// How long a copy is taken for true.
    pub lease: Lease,
    /// Values that each thread may be asking one backend for.
    pub fills_per_server: u16,
    /// Bytes a second that copies may send to one source. What is asked for beyond is forwarded.
    pub source_bytes: u64,
    /// Writes that have a reply pass this machine both ways, and no copy is older than a write whose reply has passed. Not
    /// beside [`KeyRules::replicas`], whose writes are answered here.
    pub strict: bool,
    /// Hashes keys for the cache. Shared by all pools, as epochs are: a key of several pools is written in all.
    pub hash: KeyHash,
    /// Whether [`KeyRules::hash`] is the same.
    pub is_own_hash: bool,
    /// Shared by all threads and all pools.
    pub epochs: Arc<Epochs>,
}

impl CacheRules {
    /// What is the same under another configuration as long as keys have the same hashes for the cache.
    #[inline]
    pub(crate) fn fingerprint(&self) -> u64 {
        self.hash.hash(&[])
    }

    /// A key's hash for the cache; `own`: its pool's.
    #[inline]
    pub(crate) fn hash_of(&self, key: &[u8], own: u64) -> u64 {
        if self.is_own_hash { own } else { self.hash.hash(key) }
    }
}

/// Which way requests and answers take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPath {
    /// Backends have the VIP, and answer clients themselves (MemSwitch).
    Direct,
    /// Backends are asked at their own address, and answer this machine, which sends the answer on (AppSwitch's rewrite).
    Through {
        /// Place in [`GATHER_TIMEOUTS_MS`] of the time that they have.
        timeout: usize,
    },
}

/// Milliseconds that a pool may give its backends; each is a line of its own in the table of what waits.
pub const GATHER_TIMEOUTS_MS: [u16; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000];

/// How requests are gathered whose keys are of several backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherRules {
    /// Place in [`GATHER_TIMEOUTS_MS`] of the time that backends have.
    pub timeout: usize,
    /// What a key counts as whose backend takes longer.
    pub late: Late,
}

/// Where keys of a backend that does not serve go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFailover {
    /// To the next choice of their pool.
    Next,
    /// Nowhere.
    Nowhere,
    /// To the pool at this place in [`Keyed::pools`].
    Pool(u32),
}

/// What a service with [`HashPolicy::Key`](crate::HashPolicy::Key) has besides.
#[derive(Clone, Debug)]
pub struct Keyed {
    /// Shared by all services of a pool.
    pub rules: Arc<KeyRules>,
    /// The pools that routes and failover name.
    pub pools: Box<[Arc<PoolTable>]>,
    /// What says where the keys of each pool are: the service's own first, then [`Keyed::pools`].
    pub placements: Box<[Placement]>,
}

/// What says where a pool's keys are.
#[derive(Clone, Debug)]
pub enum Placement {
    /// The pool's table.
    Maglev {
        /// The table of all backends that have a weight, whatever their states, by the same ranks: the pool's own follows states.
        /// `None`: there is none, or nobody asks for a key's own backend while that does not serve.
        all: Option<Arc<Table>>,
    },
    /// Rings.
    Ring(Rings),
}

/// A pool's keys as clients with a ring place them. Servers are numbered by their rank in the pool's table.
#[derive(Clone, Debug)]
pub struct Rings {
    /// Of all backends that have a weight: where clients that eject none have a key. `None`: there is none.
    pub all: Option<Arc<Ring>>,
    /// Of those that serve, as of this generation's tables: where clients that eject the others have it. With weights another
    /// ring than the points that are left of `all`. Until tables follow a state, the point behind counts.
    pub live: Option<Arc<Ring>>,
}

/// Where a key is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPlace {
    /// The key's hash.
    pub hash: u64,
    /// The place in [`Keyed::pools`] of the pool that has it; `None`: the service's own.
    pub route: Option<u32>,
}

impl KeyRules {
    /// The rules of a cache that is never older than an acknowledged write.
    #[inline]
    pub(crate) fn strict(&self) -> Option<&CacheRules> {
        self.cache.as_ref().filter(|cache| cache.strict)
    }

    /// Hashes keys for Maglev's tables, under a key of its own: nobody outside aims at a backend, and flow hashes say nothing of
    /// keys.
    #[must_use]
    pub fn maglev_hash(key: &HashKey) -> KeyHash {
        let [first, second] = sip_lanes::halves(&key.derive(b"kv"));
        KeyHash::sip(first, second)
    }

    /// Whether requests of this client are read.
    #[inline]
    pub(crate) fn refusal(&self, flow: &Flow) -> Option<DropReason> {
        if !self.clients.contains_source(flow) {
            return Some(DropReason::KvClient);
        }
        // A server's port, or one that a forged source has for another service to answer to: no client sends from there.
        let is_client = flow.source_port >= FIRST_CLIENT_PORT && flow.source_port != MEMCACHED_PORT;
        (!is_client).then_some(DropReason::KvSourcePort)
    }
}

/// The name by which a request that is refused is dropped.
pub(crate) fn refused(refusal: Refusal) -> DropReason {
    match refusal {
        Refusal::ShortFrame => DropReason::KvShortFrame,
        Refusal::TotalNotOne => DropReason::KvTotalNotOne,
        Refusal::SeveralCommands => DropReason::KvSeveralCommands,
        Refusal::UnknownVerb => DropReason::KvUnknownVerb,
        Refusal::Administrative => DropReason::KvAdministrative,
        Refusal::LineEnd => DropReason::KvLineEnd,
        Refusal::ZeroByte => DropReason::KvZeroByte,
        Refusal::FirstPieceTooShort => DropReason::KvFirstPieceTooShort,
        Refusal::KeyEmpty => DropReason::KvKeyEmpty,
        Refusal::KeyTooLong => DropReason::KvKeyTooLong,
        Refusal::TooManyKeys => DropReason::KvTooManyKeys,
        Refusal::WrongArguments => DropReason::KvWrongArguments,
        Refusal::BadNumber => DropReason::KvBadNumber,
        Refusal::BadFlag => DropReason::KvBadFlag,
        Refusal::BadBase64 => DropReason::KvBadBase64,
        Refusal::WrongLength => DropReason::KvWrongLength,
        Refusal::WrongOffsets => DropReason::KvWrongOffsets,
        Refusal::OtherApplication => DropReason::KvOtherApplication,
        // Of a later kv-switch: nothing that could be forwarded.
        _ => DropReason::KvUnknownVerb,
    }
}

/// Ports below are of services (RFC 6335 §6).
const FIRST_CLIENT_PORT: u16 = 1_024;
const MEMCACHED_PORT: u16 = 11_211;
