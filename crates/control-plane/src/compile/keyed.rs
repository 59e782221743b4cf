//! From `kv` of a pool to what packet threads read requests by.
//!
//! In: pools with `kv`, and the tables of all pools in reach. Out: a [`Keyed`] for each service that chooses by key. Rules are kept
//! from one generation to the next while the file says the same.
//! Not here: reading requests (`kv-switch`), choosing (`forwarder`).

use std::collections::HashMap;
use std::sync::Arc;

use config::{Config, Failover, HashKey, Kv, KvKeys, KvProtocol, Pool};
use forwarder::{KeyFailover, KeyRules, Keyed, PrefixSet};
use kv_switch::{Application, Header, Memcached, Offset, Routes};

use super::views::Views;
use super::{CompileError, Index};
use crate::keys::PoolView;

/// The rules of one generation, by pool.
#[derive(Debug, Default)]
pub(super) struct AllRules(HashMap<Arc<str>, Made>);

/// Rules, and what they were made of.
#[derive(Debug)]
struct Made {
    kv: Arc<Kv>,
    hash_key: HashKey,
    rules: Arc<KeyRules>,
}

impl AllRules {
    /// Those of the next generation.
    pub(super) fn after(&self, config: &Config) -> Result<Self, CompileError> {
        let hash_key = config.cluster().hash_key;
        let made = |(pool, kv): (&Arc<Pool>, &Arc<Kv>)| {
            let known = self.0.get(&pool.name).filter(|made| made.kv == *kv && made.hash_key == hash_key);
            let rules = match known {
                Some(made) => Arc::clone(&made.rules),
                None => Arc::new(rules(pool, kv, &hash_key)?),
            };
            Ok((Arc::clone(&pool.name), Made { kv: Arc::clone(kv), hash_key, rules }))
        };
        let keyed = config.pools().iter().filter_map(|pool| Some((pool, pool.kv.as_ref()?)));
        keyed.map(made).collect::<Result<_, _>>().map(Self)
    }

    /// What a service of this pool reads requests by; `None`: the pool has no keys.
    pub(super) fn of(&self, views: &Views<'_>, view: &PoolView, index: &Index) -> Option<Arc<Keyed>> {
        let Made { kv, rules, .. } = self.0.get(&view.pool)?;
        let pool = |name: &Arc<str>| index.pool(&views.beside(view, name)).map(Arc::clone);
        // A pool without a table in reach would shift the places of those behind it; the configuration was checked for it.
        let pools = kv.pools.iter().map(pool).collect::<Option<_>>()?;
        Some(Arc::new(Keyed { rules: Arc::clone(rules), pools }))
    }
}

fn rules(pool: &Pool, kv: &Kv, hash_key: &HashKey) -> Result<KeyRules, CompileError> {
    let place =
        |name: &Arc<str>| u32::try_from(kv.pools.partition_point(|other| other < name)).unwrap_or(u32::MAX);
    let (mut exact, mut prefixes) = (Vec::new(), Vec::new());
    for route in &kv.routes {
        match &route.keys {
            KvKeys::Key(text) => exact.push((text.as_bytes(), place(&route.pool))),
            KvKeys::Prefix(text) => prefixes.push((text.as_bytes(), place(&route.pool))),
        }
    }
    let routes = Routes::build(&exact, &prefixes)
        .map_err(|cause| CompileError::Routes { pool: pool.name.to_string(), cause })?;
    Ok(KeyRules {
        application: application(kv),
        clients: PrefixSet::new(kv.clients.iter().map(|prefix| (prefix.address(), prefix.length()))),
        hash: KeyRules::maglev_hash(&forwarder::HashKey::new(*hash_key.bytes())),
        routes,
        failover: match &kv.failover {
            Failover::Next => KeyFailover::Next,
            Failover::Nowhere => KeyFailover::Nowhere,
            Failover::Pool(name) => KeyFailover::Pool(place(name)),
        },
    })
}

fn application(kv: &Kv) -> Box<dyn Application> {
    match kv.protocol {
        KvProtocol::Memcached => Box::new(Memcached::new(kv.max_keys.into())),
        KvProtocol::Header { id } => Box::new(Header::new(id)),
        KvProtocol::Offset { start, length } => Box::new(Offset::new(start, length.into())),
    }
}
