//! From `kv` of a pool to what packet threads read requests by.
//!
//! In: pools with `kv`, and the tables of all pools in reach. Out: a [`Keyed`] for each service that chooses by key. Rules are kept
//! from one generation to the next while the file says the same.
//! Not here: reading requests (`kv-switch`), choosing (`forwarder`).

use std::collections::HashMap;
use std::sync::Arc;

use config::{Config, Failover, Kv, KvKeys, KvProtocol, Pool};
use forwarder::{KeyFailover, KeyRules, Keyed, PrefixSet};
use kv_switch::{Application, Header, Memcached, Offset, Routes};

use super::Index;
use super::views::Views;
use crate::keys::PoolView;

/// The rules of one generation, by pool.
#[derive(Debug, Default)]
pub(super) struct AllRules(HashMap<Arc<str>, (Arc<Kv>, Arc<KeyRules>)>);

impl AllRules {
    /// Those of the next generation.
    pub(super) fn after(&self, config: &Config) -> Self {
        let rules = |(pool, kv): (&Arc<Pool>, &Arc<Kv>)| {
            let known = self.0.get(&pool.name).filter(|(before, _)| before == kv);
            let rules = known.map_or_else(|| Arc::new(rules(kv)), |(_, rules)| Arc::clone(rules));
            (Arc::clone(&pool.name), (Arc::clone(kv), rules))
        };
        let keyed = config.pools().iter().filter_map(|pool| Some((pool, pool.kv.as_ref()?)));
        Self(keyed.map(rules).collect())
    }

    /// What a service of this pool reads requests by; `None`: the pool has no keys.
    pub(super) fn of(&self, views: &Views<'_>, view: &PoolView, index: &Index) -> Option<Arc<Keyed>> {
        let (kv, rules) = self.0.get(&view.pool)?;
        let pool = |name: &Arc<str>| index.pool(&views.beside(view, name)).map(Arc::clone);
        // A pool without a table in reach would shift the places of those behind it; the configuration was checked for it.
        let pools = kv.pools.iter().map(pool).collect::<Option<_>>()?;
        Some(Arc::new(Keyed { rules: Arc::clone(rules), pools }))
    }
}

fn rules(kv: &Kv) -> KeyRules {
    let place =
        |name: &Arc<str>| u32::try_from(kv.pools.partition_point(|other| other < name)).unwrap_or(u32::MAX);
    let (mut exact, mut prefixes) = (Vec::new(), Vec::new());
    for route in &kv.routes {
        match &route.keys {
            KvKeys::Key(text) => exact.push((text.as_bytes(), place(&route.pool))),
            KvKeys::Prefix(text) => prefixes.push((text.as_bytes(), place(&route.pool))),
        }
    }
    KeyRules {
        application: application(kv),
        clients: PrefixSet::new(kv.clients.iter().map(|prefix| (prefix.address(), prefix.length()))),
        // The file has each once, and none empty.
        routes: Routes::build(&exact, &prefixes).unwrap_or_default(),
        failover: match &kv.failover {
            Failover::Next => KeyFailover::Next,
            Failover::Nowhere => KeyFailover::Nowhere,
            Failover::Pool(name) => KeyFailover::Pool(place(name)),
        },
    }
}

fn application(kv: &Kv) -> Box<dyn Application> {
    match kv.protocol {
        KvProtocol::Memcached => Box::new(Memcached::new(kv.max_keys.into())),
        KvProtocol::Header { id } => Box::new(Header::new(id)),
        KvProtocol::Offset { start, length } => Box::new(Offset::new(start, length.into())),
    }
}
