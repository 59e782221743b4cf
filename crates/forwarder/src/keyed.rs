//! Keyed services, which select a backend by request key instead of by flow. This module contains
//! the rules for allowed clients, for parsing requests and for assigning keys to backends. Protocol
//! parsing is in `kv-switch`, packet handling is in `pipeline/keyed`, and the selection of backends
//! is in `key_choice`.
//!
//! See the papers AppSwitch (§3) and SmartSwitch (§3).

use std::sync::Arc;

use kv_switch::{Ack, Application, Epochs, KeyHash, Late, Lease, Refusal, Ring, Routes};
use maglev_hash::Table;

use crate::{DropReason, Flow, HashKey, PoolTable, PrefixSet};

/// The rules of a keyed pool for parsing requests and assigning keys to backends.
#[derive(Debug)]
pub struct KeyRules {
    /// The parser for the application protocol, such as memcached.
    pub application: Box<dyn Application>,
    /// The source addresses that are allowed to send requests.
    pub clients: PrefixSet,
    /// The hash function for keys.
    pub hash: KeyHash,
    /// The routes, which map key prefixes to indexes in [`Keyed::pools`].
    pub routes: Routes,
    /// The action for requests whose key is assigned to a backend that is not serving.
    pub failover: KeyFailover,
    /// The maximum time to live, in seconds, for values that clients store on failover backends.
    /// `None` keeps the time to live that the client requested.
    pub failover_ttl: Option<u32>,
    /// The path that requests and replies take.
    pub path: KeyPath,
    /// The rules for requests with several keys that are assigned to different backends. If `None`,
    /// such requests are refused.
    pub gather: Option<GatherRules>,
    /// The rules for answering reads of hot keys from the cache, or `None` if the cache is
    /// disabled.
    pub cache: Option<CacheRules>,
    /// The replication rules, or `None` if each key is stored on one backend. Replication requires
    /// [`KeyFailover::Next`] and [`KeyPath::Direct`].
    pub replicas: Option<ReplicaRules>,
}

/// The number of backends that store each key, and the number of backends that must acknowledge a
/// write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaRules {
    /// The number of replicas, from 2 to [`MAX_REPLICAS`](kv_switch::MAX_REPLICAS).
    pub count: u8,
    /// The number of replicas that must acknowledge a write before the client receives a success
    /// reply.
    pub ack: Ack,
    /// The timeout for writes, as an index into [`GATHER_TIMEOUTS_MS`].
    pub timeout: usize,
}

/// The rules for answering reads of hot keys from cached values.
#[derive(Clone, Debug)]
pub struct CacheRules {
    /// The memory for cached values, in bytes, summed over all packet threads.
    pub memory: usize,
    /// The maximum age of a cached value.
    pub lease: Lease,
    /// The number of values that one packet thread may fetch from one backend at a time.
    pub fills_per_server: u16,
    /// The maximum rate of replies from the cache to one source address, in bytes per second.
    /// Requests that exceed the rate are forwarded to the backend.
    pub source_bytes: u64,
    /// `true` if a cached value must never be older than an acknowledged write. Backends then send
    /// their replies to writes through this machine. This mode cannot be combined with
    /// [`KeyRules::replicas`], because this machine itself acknowledges writes to replicated keys.
    pub strict: bool,
    /// The hash function for keys in the cache. All pools share this function and the write times
    /// in `epochs`. A write to a key must invalidate this key's cached values from all pools, so
    /// the hash must be the same for all pools.
    pub hash: KeyHash,
    /// `true` if [`KeyRules::hash`] is the same function as [`CacheRules::hash`].
    pub is_own_hash: bool,
    /// The times of recent writes, shared by all threads and pools.
    pub epochs: Arc<Epochs>,
}

impl CacheRules {
    /// Returns a fingerprint of the cache's hash function. Two configurations with the same
    /// fingerprint use the same hash function.
    #[inline]
    pub(crate) fn fingerprint(&self) -> u64 {
        self.hash.hash(&[])
    }

    /// Returns the hash of a key for the cache. `own` is the hash by which the pool assigns the key
    /// to a backend.
    #[inline]
    pub(crate) fn hash_of(&self, key: &[u8], own: u64) -> u64 {
        if self.is_own_hash { own } else { self.hash.hash(key) }
    }
}

/// The path that requests and replies take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPath {
    /// Backends have the VIP address and send replies directly to clients, as described in the
    /// MemSwitch paper.
    Direct,
    /// Requests are sent to the backend's own address. The backend replies to this machine, which
    /// forwards the reply to the client. The AppSwitch paper calls this method rewriting.
    Through {
        /// The timeout for replies, as an index into [`GATHER_TIMEOUTS_MS`].
        timeout: usize,
    },
}

/// The reply timeouts that a pool can use, in milliseconds. The table of pending requests has a
/// separate queue for each timeout.
pub const GATHER_TIMEOUTS_MS: [u16; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000];

/// The rules for requests with several keys that are assigned to different backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherRules {
    /// The timeout for replies, as an index into [`GATHER_TIMEOUTS_MS`].
    pub timeout: usize,
    /// The content of the reply to the client for keys whose backend does not reply in time.
    pub late: Late,
}

/// The action for requests whose key is assigned to a backend that is not serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFailover {
    /// Requests for the key are sent to the next candidate backend of the same pool.
    Next,
    /// The request is dropped.
    Nowhere,
    /// Requests for the key are sent to the pool at this index in [`Keyed::pools`].
    Pool(u32),
}

/// The additional state of a service with [`HashPolicy::Key`](crate::HashPolicy::Key).
#[derive(Clone, Debug)]
pub struct Keyed {
    /// The rules, which all services of a pool share.
    pub rules: Arc<KeyRules>,
    /// The pools that routes and failover rules refer to.
    pub pools: Box<[Arc<PoolTable>]>,
    /// The key placement of each pool. The first entry belongs to the service's own pool, and the
    /// other entries belong to [`Keyed::pools`], in the same order.
    pub placements: Box<[Placement]>,
}

/// The structure that maps the keys of a pool to backends.
#[derive(Clone, Debug)]
pub enum Placement {
    /// Maglev hashing assigns the keys to backends.
    Maglev {
        /// The Maglev table of all backends with a weight above 0, including backends that are not
        /// serving. Backends have the same ranks as in the pool's own table, which contains only
        /// serving backends. `None` if all weights are 0, or if no rule needs to know the backend
        /// to which a key is assigned.
        all: Option<Arc<Table>>,
    },
    /// Consistent-hash rings assign the keys to backends.
    Ring(Rings),
}

/// The consistent-hash rings of a pool, compatible with client libraries. A server number on a ring
/// is the rank of a backend in the pool's table.
#[derive(Clone, Debug)]
pub struct Rings {
    /// The ring of all backends with a weight above 0, for clients that do not eject failed
    /// servers. The value is `None` if all weights are 0.
    pub all: Option<Arc<Ring>>,
    /// The ring of the backends that were serving when this generation was compiled, for clients
    /// that eject failed servers. If weights differ, the removal of a failed server also changes
    /// how many points the other servers have. If a backend fails later, its keys move to the next
    /// point on the ring and stay there until the next generation is compiled.
    pub live: Option<Arc<Ring>>,
}

/// The hash of a key, and the pool that the key is routed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPlace {
    /// The hash of the key.
    pub hash: u64,
    /// The index in [`Keyed::pools`] of the pool that the key is routed to. `None` means the
    /// service's own pool.
    pub route: Option<u32>,
}

impl KeyRules {
    /// Returns the cache rules if the cache is strict. A strict cache never returns a value that is
    /// older than an acknowledged write.
    #[inline]
    pub(crate) fn strict(&self) -> Option<&CacheRules> {
        self.cache.as_ref().filter(|cache| cache.strict)
    }

    /// Returns the hash function for keys that are assigned to backends by Maglev tables. The
    /// secret of this function is derived from the cluster's hash key, so clients cannot predict
    /// the backend of a key. Knowledge of flow hashes does not help clients to compute key hashes.
    #[must_use]
    pub fn maglev_hash(key: &HashKey) -> KeyHash {
        let [first, second] = sip_lanes::halves(&key.derive(b"kv"));
        KeyHash::sip(first, second)
    }

    /// Returns the drop reason if requests from this client must be refused, or `None` if they are
    /// allowed.
    #[inline]
    pub(crate) fn refusal(&self, flow: &Flow) -> Option<DropReason> {
        if !self.clients.contains_source(flow) {
            return Some(DropReason::KvClient);
        }
        // Legitimate clients do not send from the port of a well-known service. The reply to a
        // request with such a forged source port would reach that service.
        let is_client = flow.source_port >= FIRST_CLIENT_PORT && flow.source_port != MEMCACHED_PORT;
        (!is_client).then_some(DropReason::KvSourcePort)
    }
}

/// Converts the parser's reason for refusing a request into a drop reason.
pub(crate) fn refused(refusal: Refusal) -> DropReason {
    match refusal {
        Refusal::ShortFrame => DropReason::KvShortFrame,
        Refusal::TotalNotOne => DropReason::KvTotalNotOne,
        Refusal::SeveralCommands => DropReason::KvSeveralCommands,
        Refusal::UnknownVerb => DropReason::KvUnknownVerb,
        Refusal::Administrative => DropReason::KvAdministrative,
        Refusal::LineEnd => DropReason::KvLineEnd,
        Refusal::ZeroByte => DropReason::KvZeroByte,
        Refusal::FirstFragmentTooShort => DropReason::KvFirstFragmentTooShort,
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
        // The enum in `kv-switch` is non-exhaustive. A request that is refused for an unknown
        // reason cannot be forwarded either.
        _ => DropReason::KvUnknownVerb,
    }
}

/// The first port that is not a well-known service port (RFC 6335 §6).
const FIRST_CLIENT_PORT: u16 = 1_024;
const MEMCACHED_PORT: u16 = 11_211;
