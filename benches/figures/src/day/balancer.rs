//! The balancer of a simulated day: the product's table and connection table, asked as a packet thread asks them.
//!
//! In: a flow's hash, what its packet says, the tick. Out: an endpoint.
//! Not here: packets, headers, other VIPs.

use conntrack::{Config, FlowTable, Inserted, Signal, Target, Tick};
use maglev_hash::{Backend, Table};

use crate::maglev::{names, seed, table};

/// Tables over endpoints of equal weight.
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
        Self { names, slots, serving, table, flows: FlowTable::new(&config).expect("memory") }
    }

    /// Where a packet goes: to its connection's endpoint if that serves, else where the table says.
    pub(super) fn packet(&mut self, hash: u64, signal: Signal, now: Tick) -> u32 {
        if let Some(hit) = self.flows.lookup(hash, signal, now) {
            if self.serves(hit.slot) {
                return hit.slot;
            }
            let slot = self.by_table(hash);
            self.flows.reassign(hash, slot, now);
            return slot;
        }
        let slot = self.by_table(hash);
        // Untracked, it goes by hashing alone, as in a packet thread.
        let (Inserted::Tracked | Inserted::Untracked) =
            self.flows.insert_new(hash, Target { slot, vip: 0 }, signal, now);
        slot
    }

    /// Where the table alone sends a flow.
    pub(super) fn by_table(&self, hash: u64) -> u32 {
        self.table.lookup(hash)
    }

    pub(super) fn serves(&self, endpoint: u32) -> bool {
        self.serving[endpoint as usize]
    }

    /// An endpoint fails, or comes back: the table is built anew.
    pub(super) fn set_serving(&mut self, endpoint: u32, serves: bool) {
        self.serving[endpoint as usize] = serves;
        self.table = build(&self.names, &self.serving, self.slots);
    }

    /// Takes out what has expired while places are getting few.
    pub(super) fn sweep(&mut self, now: Tick) {
        if self.flows.is_filling() {
            self.flows.sweep(SWEEP_BUCKETS, now);
        }
    }
}

/// Those that do not serve keep their rank, with weight 0.
fn build(names: &[Vec<u8>], serving: &[bool], slots: u32) -> Table {
    let backends: Vec<Backend<'_>> =
        names.iter().zip(serving).map(|(name, &serves)| Backend { name, weight: serves.into() }).collect();
    table(&backends, slots, seed(0))
}

/// Buckets a tick, as many as a packet thread looks through in a quarter of a second.
const SWEEP_BUCKETS: usize = 4_096;
