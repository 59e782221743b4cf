//! Builds the Maglev tables of pools.
//!
//! Pools whose tables would be identical share one table, and unchanged tables are kept from one
//! generation to the next. New tables are built on all processors in parallel. The crate
//! `maglev-hash` implements the table algorithm.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use maglev_hash::{BuildError, Options, Seed, Table};

use crate::CompileError;
use crate::index::own_weight;
use crate::keys::{PoolView, SlotKey};
use crate::runtime_state::RuntimeState;
use config::{Cluster, Config, Member, Pool};

/// The name of a pool, and everything that its table depends on: member names, weights, table size
/// and hash key.
#[derive(Clone, Debug)]
pub(crate) struct TableKey {
    pool: Arc<str>,
    content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Content {
    size: u32,
    key: [u8; 16],
    backends: Vec<(Arc<str>, u32)>,
}

/// The Maglev tables of one generation.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    by_content: HashMap<Content, Option<Arc<Table>>>,
    pools: Vec<Content>,
}

impl TableKey {
    /// Returns the key of a pool's current table. The current table is built with the current
    /// weights of the members in `view`.
    pub(crate) fn of(config: &Config, view: &PoolView, pool: &Pool, runtime_state: &RuntimeState) -> Self {
        let weighed = |member: &Member| {
            let key = view.key(member);
            let weight = runtime_state.weight(&key, member.weight, own_weight(config, pool, member));
            (key, weight)
        };
        let weights: Vec<(SlotKey, u32)> = pool.members.iter().map(weighed).collect();
        let weights = weights.iter().map(|(key, weight)| (key, *weight));
        let names = pool.members.iter().map(|member| Arc::clone(&member.backend.name));
        let backends = names.zip(runtime_state.ramped(weights)).collect();
        let cluster = config.cluster();
        let content = Content { size: cluster.table_size, key: *cluster.hash_key.bytes(), backends };
        Self { pool: Arc::clone(&pool.name), content }
    }
}

impl TableKey {
    /// Returns the key of the table that the pool would have if all its members were serving.
    pub(crate) fn of_first_choice(
        config: &Config,
        view: &PoolView,
        pool: &Pool,
        runtime_state: &RuntimeState,
    ) -> Self {
        let weighed = |member: &Member| {
            let own = own_weight(config, pool, member);
            let weight = runtime_state.weight_of_all(&view.key(member), member.weight, own);
            (Arc::clone(&member.backend.name), weight)
        };
        let backends = pool.members.iter().map(weighed).collect();
        let cluster = config.cluster();
        let content = Content { size: cluster.table_size, key: *cluster.hash_key.bytes(), backends };
        Self { pool: Arc::clone(&pool.name), content }
    }

    /// Returns the key that identifies the Maglev table in which all members have their configured
    /// weights. A table with configured weights is the same on every machine.
    pub(crate) fn of_all(config: &Config, pool: &Pool) -> Self {
        let members = pool.members.iter();
        let backends = members.map(|member| (Arc::clone(&member.backend.name), member.weight)).collect();
        let cluster = config.cluster();
        let content = Content { size: cluster.table_size, key: *cluster.hash_key.bytes(), backends };
        Self { pool: Arc::clone(&pool.name), content }
    }
}

impl Tables {
    /// Returns the tables for `keys`. Tables in `self` are reused, and all others are built.
    pub(crate) fn build(&self, keys: Vec<TableKey>, cluster: &Cluster) -> Result<Self, CompileError> {
        let mut next = Self::default();
        let mut missing: HashMap<&Content, &TableKey> = HashMap::new();
        for key in &keys {
            match self.by_content.get(&key.content) {
                Some(table) => {
                    next.by_content.insert(key.content.clone(), table.clone());
                }
                None => {
                    missing.insert(&key.content, key);
                }
            }
        }
        let missing: Vec<&TableKey> = missing.into_values().collect();
        for (key, table) in missing.iter().zip(build_all(&missing, cluster)) {
            let table = table.map_err(|cause| CompileError::Table { pool: key.pool.to_string(), cause })?;
            next.by_content.insert(key.content.clone(), table);
        }
        next.pools = keys.into_iter().map(|key| key.content).collect();
        Ok(next)
    }

    /// Returns the table for `key`, or `None` if all weights are 0.
    pub(crate) fn of(&self, key: &TableKey) -> Option<Arc<Table>> {
        self.by_content.get(&key.content).cloned().flatten()
    }

    /// Returns the table and the weights of each pool, in the same order as the keys passed to
    /// `build`. The table is `None` if all weights are 0.
    pub(crate) fn of_pools(&self) -> impl Iterator<Item = (Option<Arc<Table>>, Vec<u32>)> {
        self.pools.iter().map(|content| {
            let table = self.by_content.get(content).cloned().flatten();
            (table, content.backends.iter().map(|(_, weight)| *weight).collect())
        })
    }
}

type Built = Result<Option<Arc<Table>>, BuildError>;

/// Builds the tables for all keys. Each thread takes the next key from the list when it has
/// finished a table.
fn build_all(keys: &[&TableKey], cluster: &Cluster) -> Vec<Built> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(keys.len());
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(keys.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // `Relaxed` is sufficient for this counter, because a mutex protects the results.
                while let Some((number, key)) = numbered(keys, next.fetch_add(1, Ordering::Relaxed)) {
                    let built = build(&key.content, cluster);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((number, built));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, built)| built).collect()
}

fn numbered<'a>(keys: &[&'a TableKey], number: usize) -> Option<(usize, &'a TableKey)> {
    keys.get(number).map(|key| (number, *key))
}

fn build(content: &Content, cluster: &Cluster) -> Built {
    let mut options = Options::new(Seed::new(*cluster.hash_key.bytes()));
    options.size = content.size;
    // The configuration check has already warned if the table is too small for even shares.
    options.allow_coarse = true;
    let backends: Vec<maglev_hash::Backend<'_>> = content
        .backends
        .iter()
        .map(|(name, weight)| maglev_hash::Backend { name: name.as_bytes(), weight: *weight })
        .collect();
    match maglev_hash::build(&backends, &options) {
        Ok(table) => Ok(Some(Arc::new(table))),
        Err(BuildError::NoBackends) => Ok(None),
        Err(cause) => Err(cause),
    }
}
