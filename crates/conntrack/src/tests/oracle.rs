//! A simple model of the documented rules, with which a table that is never full must agree.

use proptest::prelude::*;

use super::{WRAP, all, assert_adds_up, hash, id, target, tick};
use crate::{Config, Filter, FlowTable, Hit, Inserted, Signal, State, Timeouts};

/// One flow of the model. `last` is in ticks that never wrap.
#[derive(Clone, Debug, PartialEq)]
struct Flow {
    key: u64,
    slot: u32,
    vip: u32,
    state: State,
    fresh: bool,
    last: u64,
    /// The ticks in which data arrived since the flow was opened.
    proof: Vec<u64>,
}

#[derive(Debug, Default)]
struct Oracle {
    flows: Vec<Flow>,
    hits: u64,
    misses: u64,
    inserts: u64,
    refreshes: u64,
}

impl Oracle {
    fn forget_the_dead(&mut self, now: u64) {
        self.flows.retain(|flow| {
            let seconds = match (flow.fresh, flow.state) {
                (true, State::Closing) => 3,
                (true, _) | (false, State::New) => 8,
                (false, State::Closing) => 3,
                (false, State::Udp | State::Midstream | State::Reopened) => 30,
                (false, State::Opened) => 15,
                (false, State::Established) => 120,
            };
            now <= flow.last + seconds * 4
        });
    }

    fn flow(&mut self, key: u64) -> Option<&mut Flow> {
        self.flows.iter_mut().find(|flow| flow.key == key)
    }

    fn lookup(&mut self, key: u64, signal: Signal, now: u64) -> Option<Hit> {
        let Some(flow) = self.flow(key) else {
            self.misses += 1;
            return None;
        };
        let before = flow.clone();
        if now > flow.last {
            flow.fresh = false;
        }
        flow.last = now;
        if flow.state != State::Udp {
            if signal == Signal::FinOrRst {
                flow.state = State::Closing;
            } else if signal == Signal::Syn {
                if matches!(flow.state, State::Closing | State::Reopened) {
                    flow.state = State::New;
                    flow.fresh = true;
                }
            } else if flow.state == State::New && !flow.fresh {
                flow.state = State::Opened;
                flow.proof = vec![now];
            } else if now > before.last {
                match before.state {
                    State::Closing => flow.state = State::Reopened,
                    State::Midstream if before.fresh => {}
                    State::Midstream | State::Reopened => {
                        flow.state = State::Opened;
                        flow.proof = vec![now];
                    }
                    State::Opened => {
                        flow.proof.push(now);
                        if flow.proof.len() == 8 {
                            flow.state = State::Established;
                        }
                    }
                    State::New | State::Established | State::Udp => {}
                }
            }
        }
        let renewed = matches!(before.state, State::Closing | State::Reopened) && flow.state == State::New;
        let (hit, changed) = (Hit { slot: flow.slot, vip: flow.vip, renewed }, *flow != before);
        self.hits += 1;
        self.refreshes += u64::from(changed);
        Some(hit)
    }

    fn insert(&mut self, key: u64, slot: u32, vip: u32, signal: Signal, now: u64) {
        let state = match signal {
            Signal::Datagram => State::Udp,
            Signal::FinOrRst => State::Closing,
            Signal::Data => State::Midstream,
            Signal::Syn => State::New,
        };
        let known = self.flows.len();
        self.flows.retain(|flow| flow.key != key);
        if self.flows.len() < known {
            self.refreshes += 1;
        } else {
            self.inserts += 1;
        }
        self.flows.push(Flow { key, slot, vip, state, fresh: true, last: now, proof: Vec::new() });
    }

    fn listed(&self, now: u64) -> Vec<(u64, u32, u32, u8, bool, u128)> {
        let row = |f: &Flow| {
            let tag = if f.key << 16 == 0 { 1 } else { f.key << 16 >> 16 };
            (tag, f.slot, f.vip, f.state as u8, f.fresh, u128::from(now - f.last) * 250)
        };
        let mut rows: Vec<_> = self.flows.iter().map(row).collect();
        rows.sort_unstable();
        rows
    }
}

#[derive(Clone, Debug)]
enum Op {
    Lookup(usize, Signal),
    /// Sends data of the given flow in the given number of ticks.
    Talk(usize, u64),
    Insert(usize, u32, u32, Signal),
    Reassign(usize, u32),
    Forget(usize),
    Advance(u64),
    PurgeVip(u32),
    PurgeSlot(u32),
    Sweep,
}

pub(super) fn signal() -> impl Strategy<Value = Signal> {
    prop_oneof![
        1 => Just(Signal::Syn),
        3 => Just(Signal::Data),
        1 => Just(Signal::FinOrRst),
        1 => Just(Signal::Datagram),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..KEYS;
    prop_oneof![
        8 => (key.clone(), signal()).prop_map(|(k, s)| Op::Lookup(k, s)),
        4 => (key.clone(), 0..9u32, 0..4u32, signal()).prop_map(|(k, slot, vip, s)| Op::Insert(k, slot, vip, s)),
        1 => (key.clone(), 0..9u32).prop_map(|(k, slot)| Op::Reassign(k, slot)),
        1 => (key.clone(), 5..10u64).prop_map(|(k, ticks)| Op::Talk(k, ticks)),
        1 => key.prop_map(Op::Forget),
        3 => (0..3u64).prop_map(Op::Advance),
        2 => prop_oneof![10..14u64, 30..34u64, 58..63u64, 118..123u64, 478..483u64].prop_map(Op::Advance),
        1 => (0..4u32).prop_map(Op::PurgeVip),
        1 => (0..9u32).prop_map(Op::PurgeSlot),
        1 => Just(Op::Sweep),
    ]
}

fn key(number: usize) -> u64 {
    if number == 0 { 0x1234 << 48 } else { hash(number as u64) } // The first key has a tag of 0.
}

fn purge(table: &mut FlowTable, filter: Filter) {
    let mut from = Some(crate::Cursor::START);
    while let Some(cursor) = from {
        from = table.purge(cursor, &filter, 100).1;
    }
}

fn apply(op: &Op, table: &mut FlowTable, oracle: &mut Oracle, now: &mut u64) -> Result<(), TestCaseError> {
    let at = tick(u32::try_from(*now % u64::from(WRAP)).unwrap());
    match *op {
        Op::Lookup(k, s) => prop_assert_eq!(table.lookup(key(k), s, at), oracle.lookup(key(k), s, *now)),
        Op::Talk(k, ticks) => {
            for _ in 0..ticks {
                oracle.forget_the_dead(*now);
                apply(&Op::Lookup(k, Signal::Data), table, oracle, now)?;
                *now += 1;
            }
        }
        Op::Insert(k, slot, vip, s) => {
            prop_assert_eq!(table.insert(key(k), target(slot, vip), s, at), Inserted::Tracked);
            oracle.insert(key(k), slot, vip, s, *now);
        }
        Op::Reassign(k, slot) => {
            let known = oracle.flow(key(k)).map(|flow| flow.slot = slot).is_some();
            oracle.refreshes += u64::from(known);
            prop_assert_eq!(table.reassign(key(k), id(slot), at), known);
        }
        Op::Forget(k) => {
            let known = oracle.flow(key(k)).is_some();
            oracle.flows.retain(|flow| flow.key != key(k));
            prop_assert_eq!(table.forget(key(k), at), known);
        }
        Op::Advance(ticks) => *now += ticks,
        Op::PurgeVip(vip) => {
            purge(table, Filter::Vip(vip));
            oracle.flows.retain(|flow| flow.vip != vip);
        }
        Op::PurgeSlot(slot) => {
            purge(table, Filter::Slot(slot));
            oracle.flows.retain(|flow| flow.slot != slot);
        }
        Op::Sweep => {
            table.sweep(usize::MAX, at);
            prop_assert_eq!(table.len(), oracle.flows.len());
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_table_with_room_agrees_with_a_list(
        start in prop_oneof![Just(0), (WRAP - 2_000)..WRAP],
        ops in proptest::collection::vec(op(), 1..300),
    ) {
        let secs = core::time::Duration::from_secs;
        let timeouts = Timeouts { new: secs(8), established: secs(120), closing: secs(3), udp: secs(30) };
        let mut table = FlowTable::new(&Config { capacity: 1_000, timeouts }).unwrap();
        let (mut oracle, mut now) = (Oracle::default(), u64::from(start));
        for op in &ops {
            oracle.forget_the_dead(now);
            apply(op, &mut table, &mut oracle, &mut now)?;
            oracle.forget_the_dead(now);
            let at = tick(u32::try_from(now % u64::from(WRAP)).unwrap());
            let mut listed: Vec<_> = all(&table, Filter::All, at, 37)
                .iter()
                .map(|e| (e.tag, e.slot, e.vip, e.state as u8, e.on_probation, e.idle.as_millis()))
                .collect();
            listed.sort_unstable();
            prop_assert_eq!(listed, oracle.listed(now), "after {:?}", op);
            for k in 0..KEYS {
                let peeked = table.peek(key(k), at).map(|entry| (entry.slot, entry.vip));
                prop_assert_eq!(peeked, oracle.flow(key(k)).map(|flow| (flow.slot, flow.vip)));
            }
            let c = table.counters();
            prop_assert_eq!((c.hit, c.miss, c.insert, c.refresh),
                (oracle.hits, oracle.misses, oracle.inserts, oracle.refreshes), "after {:?}", op);
            prop_assert_eq!((c.untracked, c.evicted_from_probation, c.moved), (0, 0, 0));
            assert_adds_up(&table);
        }
    }
}

const KEYS: usize = 24;
