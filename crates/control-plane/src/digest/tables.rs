//! Computes the digest of the tables in a snapshot. For each service, the digest covers the table
//! and the backends that are not in service.
//!
//! Services and backends are identified by name, backends with weight 0 are omitted, and all table
//! entries are included. Machines with identical digests therefore have the same tables in memory.
//! Connection tables are not included, because each machine has its own.
//!
//! Invariant: slot IDs, service IDs, generation numbers and ranks do not affect the digest, because
//! they differ between machines.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use forwarder::{
    HashPolicy, Placement, PoolTable, Remote, Rings, Service, SlotState, Snapshot, THIS_MACHINE,
};
use kv_switch::Ring;
use maglev_hash::Table;
use packet::Family;
use sha2::{Digest, Sha256};

use super::{TABLE_ALGORITHM, add};
use config::Config;

type Sum = [u8; 32];

/// Cached digests of the last snapshot and its tables.
#[derive(Debug, Default)]
pub(super) struct Tables {
    last: Option<(Weak<Snapshot>, Sum)>,
    /// The digest of each table, by the memory address of the table. While the weak reference
    /// exists, the address is not used for another table.
    contents: HashMap<usize, (Weak<Table>, Sum)>,
}

impl Tables {
    pub(super) fn digest(&mut self, config: &Config, snapshot: &Arc<Snapshot>) -> Sum {
        if let Some((of, digest)) = &self.last
            && of.as_ptr() == Arc::as_ptr(snapshot)
        {
            return *digest;
        }
        self.contents.retain(|_, (table, _)| table.strong_count() > 0);
        let digest = self.compute(config, snapshot);
        self.last = Some((Arc::downgrade(snapshot), digest));
        digest
    }

    fn compute(&mut self, config: &Config, snapshot: &Snapshot) -> Sum {
        let mut pools = HashMap::new();
        let mut of_pool = |pool: &Arc<PoolTable>| {
            *pools.entry(Arc::as_ptr(pool)).or_insert_with(|| self.pool(snapshot, pool))
        };
        let services = snapshot.services().iter();
        let mut lines: Vec<Sum> =
            services.map(|service| of_service(snapshot, service, &mut of_pool)).collect();
        lines.sort_unstable();
        let peers = snapshot.peers().map(&mut of_pool).unwrap_or_default();
        let mut sum = Sha256::new_with_prefix(b"sluicegate live tables, version 2\0");
        sum.update(TABLE_ALGORITHM.to_be_bytes());
        sum.update(config.cluster().hash_key.fingerprint());
        sum.update(peers);
        add(&mut sum, lines.iter().map(Sum::as_slice));
        sum.finalize().into()
    }

    /// Returns one digest of the pool's table and of the backends that are skipped because they are
    /// not in service. The pool name is not included.
    fn pool(&mut self, snapshot: &Snapshot, pool: &PoolTable) -> Sum {
        let mut sum = Sha256::new_with_prefix(b"pool\0");
        let Some(table) = &pool.table else { return sum.finalize().into() };
        sum.update(self.content(table));
        let ranked = table.backends().zip(&pool.slots);
        let serves = |slot| slot == THIS_MACHINE || snapshot.state(slot) == SlotState::Serving;
        let out = ranked.filter(|(backend, slot)| backend.weight > 0 && !serves(**slot));
        add(&mut sum, out.map(|(backend, _)| backend.name));
        sum.finalize().into()
    }

    fn content(&mut self, table: &Arc<Table>) -> Sum {
        let known = self.contents.entry(Arc::as_ptr(table).addr());
        known.or_insert_with(|| (Arc::downgrade(table), of_table(table))).1
    }
}

fn of_service(
    snapshot: &Snapshot,
    service: &Service,
    mut of_pool: impl FnMut(&Arc<PoolTable>) -> Sum,
) -> Sum {
    let policy: &[u8] = match service.policy {
        HashPolicy::FiveTuple => b"5-tuple",
        HashPolicy::Addresses => b"addresses",
        HashPolicy::Source => b"source",
        HashPolicy::Key => b"key",
    };
    let mut sum = Sha256::new_with_prefix(b"service\0");
    let family: &[u8] = match service.family {
        None => b"",
        Some(Family::V4) => b"IPv4",
        Some(Family::V6) => b"IPv6",
    };
    add(&mut sum, [service.name.as_bytes(), family, policy, &of_pool(&service.pool)]);
    for Remote { ours, pool } in service.remotes.iter().flat_map(|remotes| remotes.iter()) {
        let mut ours: Vec<String> = ours.iter().map(ToString::to_string).collect();
        ours.sort_unstable();
        add(&mut sum, [ours.join(",").as_bytes(), &of_pool(pool)]);
    }
    for pool in service.keyed.iter().flat_map(|keyed| &keyed.pools) {
        add(&mut sum, [b"keys".as_slice(), &of_pool(pool)]);
    }
    add_places_of_keys(&mut sum, snapshot, service);
    sum.finalize().into()
}

/// Adds the name of the key hash function, and the digests of each pool's assignment of keys to
/// backends.
fn add_places_of_keys(sum: &mut Sha256, snapshot: &Snapshot, service: &Service) {
    let Some(keyed) = service.keyed.as_deref() else { return };
    add(sum, [keyed.rules.hash.name().as_bytes()]);
    let pools = [&service.pool].into_iter().chain(&keyed.pools);
    for (pool, placement) in pools.zip(&keyed.placements) {
        let [first, second] = of_placement(snapshot, pool, placement);
        add(sum, [first.as_slice(), &second]);
    }
}

/// Returns two digests. The first digest covers the assignment of keys when all backends are in
/// service. The second digest covers the current assignment of a ring, and is zero for a pool
/// without a ring.
fn of_placement(snapshot: &Snapshot, pool: &PoolTable, placement: &Placement) -> [Sum; 2] {
    let ring = |ring: &Option<Arc<Ring>>| ring.as_deref().map(|ring| of_ring(snapshot, pool, ring));
    match placement {
        Placement::Maglev { all } => [all.as_deref().map(of_table).unwrap_or_default(), Sum::default()],
        Placement::Ring(Rings { all, live }) => [all, live].map(|one| ring(one).unwrap_or_default()),
    }
}

/// Returns the digest of all ring points, each with the name of its backend.
fn of_ring(snapshot: &Snapshot, pool: &PoolTable, ring: &Ring) -> Sum {
    let mut sum = Sha256::new_with_prefix(b"ring\0");
    for (point, server) in ring.iter() {
        let slot = pool.slots.get(usize::from(server));
        let backend =
            slot.and_then(|slot| snapshot.slots().get(slot.0 as usize)).map(|slot| slot.backend.as_bytes());
        sum.update(point.to_be_bytes());
        add(&mut sum, backend);
    }
    sum.finalize().into()
}

/// Returns the digest of a table. Backends with weight 0 are omitted, because they have no table
/// entries and receive no packets.
fn of_table(table: &Table) -> Sum {
    let mut sum = Sha256::new_with_prefix(b"table\0");
    sum.update(table.size().to_be_bytes());
    let (mut places, mut next) = (Vec::new(), 0_u32);
    for backend in table.backends() {
        places.push(next);
        if backend.weight > 0 {
            next += 1;
            add(&mut sum, [backend.name]);
            sum.update(backend.weight.to_be_bytes());
        }
    }
    sum.update(next.to_be_bytes());
    let mut bytes = Vec::with_capacity(CHUNK);
    for rank in table.iter() {
        let place = places.get(rank.index_by_name()).copied().unwrap_or(u32::MAX);
        bytes.extend(place.to_be_bytes());
        if bytes.len() >= CHUNK {
            sum.update(&bytes);
            bytes.clear();
        }
    }
    sum.update(&bytes);
    sum.finalize().into()
}

const CHUNK: usize = 4_096;
