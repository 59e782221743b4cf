//! Simulates a load balancer with Sluicegate's Maglev table and connection table, which it uses in
//! the same way as a packet thread.
//!
//! The simulated balancer has one VIP and does not process packet headers: it takes the flow hash
//! and the TCP state signal of a packet, and returns an endpoint.

use conntrack::{Config, FlowTable, Id, Inserted, Signal, Target, Tick};
use maglev_hash::{Backend, Table};

use crate::maglev::{names, seed, table};

/// The Maglev table and the connection table. All endpoints have the same weight.
pub(super) struct Balancer {
    names: Vec<Vec<u8>>,
    slots: u32,
    serving: Vec<bool>,
    table: Table,
    flows: FlowTable,
}

impl Balancer {
    pub(super) fn new(endpoints: u32, slots: u32, flows: usize) -> Self {
        let (names, serving) = (names(endpoints as usize), vec![true; endpoints as usize]);
        let config = Config { capacity: flows, ..Config::default() };
        let table = build(&names, &serving, slots);
        Self { names, slots, serving, table, flows: FlowTable::new(&config).expect("not enough memory") }
    }

    /// Returns the endpoint that gets the packet. A known connection keeps its endpoint while the
    /// endpoint is up. Other packets go to the endpoint in the Maglev table.
    pub(super) fn packet(&mut self, hash: u64, signal: Signal, now: Tick) -> u32 {
        if let Some(hit) = self.flows.lookup(hash, signal, now) {
            if self.serves(hit.slot) {
                return hit.slot;
            }
            let slot = self.by_table(hash);
            self.flows.reassign(hash, Id::truncated(slot), now);
            return slot;
        }
        let slot = self.by_table(hash);
        // If the connection table has no free entry for the flow, the Maglev table chooses the
        // endpoint for each packet of the flow, as in a packet thread.
        let (Inserted::Tracked | Inserted::Untracked) = self.flows.insert_new(
            hash,
            Target { slot: Id::truncated(slot), vip: Id::default() },
            signal,
            now,
        );
        slot
    }

    /// Returns the endpoint to which the Maglev table maps this hash.
    pub(super) fn by_table(&self, hash: u64) -> u32 {
        u32::try_from(self.table.lookup_uniform(hash).index_by_name()).expect("few endpoints")
    }

    pub(super) fn serves(&self, endpoint: u32) -> bool {
        self.serving[endpoint as usize]
    }

    /// Marks an endpoint as failed or recovered, and rebuilds the Maglev table.
    pub(super) fn set_serving(&mut self, endpoint: u32, serves: bool) {
        self.serving[endpoint as usize] = serves;
        self.table = build(&self.names, &self.serving, self.slots);
    }

    /// Removes expired entries if the connection table is filling up.
    pub(super) fn sweep(&mut self, now: Tick) {
        if self.flows.is_filling() {
            self.flows.sweep(SWEEP_BUCKETS, now);
        }
    }
}

/// Builds a Maglev table. Failed endpoints keep their index but have weight 0.
fn build(names: &[Vec<u8>], serving: &[bool], slots: u32) -> Table {
    let backends: Vec<Backend<'_>> =
        names.iter().zip(serving).map(|(name, &serves)| Backend { name, weight: serves.into() }).collect();
    table(&backends, slots, seed(0))
}

/// The number of buckets that are swept per tick. A packet thread sweeps the same number of buckets
/// in a quarter of a second.
const SWEEP_BUCKETS: usize = 4_096;
