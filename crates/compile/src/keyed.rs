//! Builds the key rules of services whose pool has a `kv` section.
//!
//! Each service with such a pool gets a [`Keyed`] value. Packet threads use it to parse requests
//! and to choose a backend by the key in the request. Rules are reused until the configuration of
//! the pool changes. The crate `kv-switch` contains the request parsers, and the crate `forwarder`
//! chooses the backend for each packet.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use config::{
    Config, Failover, HashKey, Kv, KvAck, KvGather, KvHash, KvKeys, KvMissing, KvPath, KvProtocol,
    KvReplicas, Pool,
};
use forwarder::{
    CacheRules, GATHER_TIMEOUTS_MS, GatherRules, KeyFailover, KeyPath, KeyRules, Keyed, Placement, PrefixSet,
    ReplicaRules,
};
use kv_switch::{
    Ack, Application, Epochs, Header, KeyHash, Late, Lease, Memcached, Offset, RouteError, Routes,
};

use crate::CompileError;
use crate::index::Index;
use crate::keys::PoolView;
use crate::rings::Rings;
use crate::runtime_state::RuntimeState;
use crate::tables::{TableKey, Tables};
use crate::views::Views;

/// The key rules of one generation, indexed by pool name.
#[derive(Debug, Default)]
pub(crate) struct AllRules {
    made: HashMap<Arc<str>, Made>,
    /// The write epochs that invalidate cached values. The caches of all pools share these epochs.
    /// The epochs are created together with the first cache and are never replaced. Packet threads
    /// that still use an old snapshot therefore use the same epochs as the new snapshot.
    epochs: Option<Arc<Epochs>>,
}

/// Key rules, and the configuration from which they were built.
#[derive(Debug)]
struct Made {
    kv: Arc<Kv>,
    hash_key: HashKey,
    rules: Arc<KeyRules>,
}

impl AllRules {
    /// Returns the key rules of the next generation.
    pub(crate) fn after(&self, config: &Config) -> Result<Self, CompileError> {
        let hash_key = config.cluster().hash_key;
        let has_cache =
            config.pools().iter().any(|pool| pool.kv.as_ref().is_some_and(|kv| kv.cache.is_some()));
        let epochs = self.epochs.clone().or_else(|| has_cache.then(Arc::default));
        let made = |(pool, kv): (&Arc<Pool>, &Arc<Kv>)| {
            let known = self.made.get(&pool.name).filter(|made| made.kv == *kv && made.hash_key == hash_key);
            let rules = match known {
                Some(made) => Arc::clone(&made.rules),
                None => Arc::new(rules(pool, kv, &hash_key, epochs.as_ref())?),
            };
            Ok((Arc::clone(&pool.name), Made { kv: Arc::clone(kv), hash_key, rules }))
        };
        let keyed = config.pools().iter().filter_map(|pool| Some((pool, pool.kv.as_ref()?)));
        let made = keyed.map(made).collect::<Result<_, CompileError>>()?;
        Ok(Self { made, epochs })
    }

    /// Returns the key placement and the key rules for a service that uses the pool of `view`.
    /// Returns `None` if the pool has no `kv` section.
    pub(crate) fn of(
        &self,
        inputs: &Inputs<'_>,
        view: &PoolView,
        rings: &mut Rings,
    ) -> Result<Option<Arc<Keyed>>, CompileError> {
        let Inputs { views, index, .. } = *inputs;
        let Some(Made { kv, rules, .. }) = self.made.get(&view.pool) else { return Ok(None) };
        let views: Vec<PoolView> = kv.pools.iter().map(|name| views.beside(view, name)).collect();
        // `config` ensures that all these pools exist. If a missing pool were skipped, all later
        // pools would have wrong indexes.
        let pools = views.iter().map(|view| index.pool(view).map(Arc::clone)).collect::<Option<_>>();
        let Some(pools) = pools else { return Ok(None) };
        let of = |view| placement(inputs, kv, view, rings);
        let placements = [view].into_iter().chain(&views).map(of).collect::<Result<_, _>>()?;
        Ok(Some(Arc::new(Keyed { rules: Arc::clone(rules), pools, placements })))
    }
}

/// The inputs to [`AllRules::of`] that are the same for all services.
pub(crate) struct Inputs<'a> {
    pub(crate) views: &'a Views<'a>,
    pub(crate) index: &'a Index,
    pub(crate) tables: &'a Tables,
    pub(crate) runtime_state: &'a RuntimeState,
}

/// Returns how the keys of a pool are assigned to its backends.
fn placement(
    inputs: &Inputs<'_>,
    kv: &Kv,
    view: &PoolView,
    rings: &mut Rings,
) -> Result<Placement, CompileError> {
    let (config, runtime_state) = (inputs.views.config, inputs.runtime_state);
    let Some(pool) = config.pool(&view.pool) else { return Ok(Placement::Maglev { all: None }) };
    if kv.hash != KvHash::Maglev {
        return rings.of(config, view, pool, runtime_state).map(Placement::Ring);
    }
    let key = TableKey::of_first_choice(config, view, pool, runtime_state);
    let all = knows_owners(kv).then(|| inputs.tables.of(&key)).flatten();
    Ok(Placement::Maglev { all })
}

/// Returns `true` if the forwarder must know the owner of a key even while the owner is not
/// serving. The owner must be known if other backends never serve the key, or serve it only for a
/// limited time.
fn knows_owners(kv: &Kv) -> bool {
    kv.failover != Failover::Next || kv.failover_ttl.is_some() || kv.replicas.is_some()
}

/// Returns the names of the pools that need a second Maglev table. The second table assigns keys to
/// owners regardless of the current backend states.
pub(crate) fn of_first_choice(config: &Config) -> BTreeSet<&str> {
    let keyed = config.pools().iter().filter_map(|pool| Some((pool, pool.kv.as_ref()?)));
    let wanted = keyed.filter(|(_, kv)| kv.hash == KvHash::Maglev && knows_owners(kv));
    wanted.flat_map(|(pool, kv)| [&pool.name].into_iter().chain(&kv.pools)).map(|name| &**name).collect()
}

fn rules(
    pool: &Pool,
    kv: &Kv,
    hash_key: &HashKey,
    epochs: Option<&Arc<Epochs>>,
) -> Result<KeyRules, CompileError> {
    let sip = KeyRules::maglev_hash(&forwarder::HashKey::new(*hash_key.bytes()));
    let routes = routes(kv).map_err(|cause| CompileError::Routes { pool: pool.name.to_string(), cause })?;
    Ok(KeyRules {
        application: application(kv),
        clients: PrefixSet::new(kv.clients.iter().map(|prefix| (prefix.address(), prefix.length()))),
        hash: match kv.hash {
            KvHash::Maglev => sip,
            KvHash::Ketama => KeyHash::md5(),
            KvHash::Fnv1a64 => KeyHash::fnv1a_64(),
        },
        routes,
        failover: match &kv.failover {
            Failover::Next => KeyFailover::Next,
            Failover::Nowhere => KeyFailover::Nowhere,
            Failover::Pool(name) => KeyFailover::Pool(place(kv, name)),
        },
        failover_ttl: kv.failover_ttl.map(|ttl| u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX)),
        path: match kv.path {
            KvPath::Direct => KeyPath::Direct,
            KvPath::Proxied { answer_timeout } => KeyPath::Through { timeout: timeout(answer_timeout) },
        },
        gather: kv.gather.as_ref().map(gather),
        cache: epochs.and_then(|epochs| cache(kv, sip, epochs)),
        replicas: kv.replicas.zip(kv.gather).map(|(kept, gather)| replicas(&kept, gather.timeout)),
    })
}

/// Builds the table of key routes. A key route assigns a single key or a key prefix to a different
/// pool.
fn routes(kv: &Kv) -> Result<Routes, RouteError> {
    let (mut exact, mut prefixes) = (Vec::new(), Vec::new());
    for route in &kv.routes {
        match &route.keys {
            KvKeys::Key(text) => exact.push((text.as_bytes(), place(kv, &route.pool))),
            KvKeys::Prefix(text) => prefixes.push((text.as_bytes(), place(kv, &route.pool))),
        }
    }
    Routes::build(&exact, &prefixes)
}

/// Returns the index of the pool `name` in `kv.pools`, which is sorted by name.
fn place(kv: &Kv, name: &Arc<str>) -> u32 {
    u32::try_from(kv.pools.partition_point(|other| other < name)).unwrap_or(u32::MAX)
}

/// Returns the rules for caching hot keys. `sip` is the key hash function that the caches of all
/// pools share.
fn cache(kv: &Kv, sip: KeyHash, epochs: &Arc<Epochs>) -> Option<CacheRules> {
    let cache = kv.cache.as_ref()?;
    Some(CacheRules {
        memory: usize::try_from(cache.memory).unwrap_or(usize::MAX),
        lease: Lease::from_nanos(u64::try_from(cache.lease.as_nanos()).unwrap_or(u64::MAX)),
        fills_per_server: cache.fills_per_server,
        source_bytes: cache.source_bytes,
        strict: cache.strict,
        hash: sip,
        is_own_hash: kv.hash == KvHash::Maglev,
        epochs: Arc::clone(epochs),
    })
}

fn replicas(replicas: &KvReplicas, within: Duration) -> ReplicaRules {
    let ack = match replicas.ack {
        KvAck::All => Ack::All,
        KvAck::Majority => Ack::Majority,
        KvAck::First => Ack::First,
    };
    ReplicaRules { count: replicas.count, ack, timeout: timeout(within) }
}

fn gather(gather: &KvGather) -> GatherRules {
    let late = match gather.missing {
        KvMissing::Silent => Late::Fails,
        KvMissing::Miss => Late::IsMissing,
    };
    GatherRules { timeout: timeout(gather.timeout), late }
}

/// Returns the index of the first timeout in `GATHER_TIMEOUTS_MS` that is not shorter than
/// `wanted`, or the index of the last timeout if `wanted` is longer than all of them.
fn timeout(wanted: Duration) -> usize {
    let fits = |millis: &u16| u128::from(*millis) >= wanted.as_millis();
    GATHER_TIMEOUTS_MS.iter().position(fits).unwrap_or(GATHER_TIMEOUTS_MS.len() - 1)
}

fn application(kv: &Kv) -> Box<dyn Application> {
    match kv.protocol {
        KvProtocol::Memcached => {
            let memcached = Memcached::new(kv.max_keys.into());
            // The cache renews a value by its version, so clients must not choose versions.
            Box::new(if kv.cache.is_some() { memcached.refusing_versions() } else { memcached })
        }
        KvProtocol::Header { id } => Box::new(Header::new(id)),
        KvProtocol::Offset { start, length } => Box::new(Offset::new(start, length.into())),
    }
}
