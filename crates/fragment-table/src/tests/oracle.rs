//! A simple model of the documented rules, with which the table must agree after every step.

use core::time::Duration;
use std::collections::{BTreeSet, HashMap, VecDeque};

use proptest::prelude::*;

use super::{FIRST, hash, key};
use crate::{Arrival, Config, Extent, Fate, First, FragmentTable, Later, Millis, Refusal};

/// A datagram in the model. `first` contains the digest, the decision and the number of datagrams
/// that were recorded earlier.
#[derive(Debug)]
struct Datagram {
    number: u8,
    seen_at: u64,
    first: Option<(u64, u32, u64)>,
    slots: Vec<u32>,
    pieces: Vec<Extent>,
}

impl Datagram {
    fn is_whole(&self) -> bool {
        let ends = self.pieces.iter().filter(|piece| !piece.more);
        let Some(end) = ends.map(|piece| u64::from(piece.offset) + u64::from(piece.bytes)).next_back() else {
            return false;
        };
        self.pieces.iter().map(|piece| u64::from(piece.bytes)).sum::<u64>() >= end
    }
}

struct Oracle {
    config: Config,
    now: u64,
    datagrams: Vec<Datagram>, // The datagrams are ordered by arrival.
    queue: VecDeque<(u32, Option<u32>)>,
    owners: HashMap<u32, u8>, // The sources of the slots in use.
    sums: HashMap<&'static str, u64>,
}

impl Oracle {
    fn new(config: Config) -> Self {
        let (datagrams, queue) = (Vec::new(), VecDeque::new());
        Self { config, now: 0, datagrams, queue, owners: HashMap::new(), sums: HashMap::new() }
    }

    fn count(&mut self, what: &'static str) {
        *self.sums.entry(what).or_default() += 1;
    }

    fn is_over(&self, index: usize) -> bool {
        u128::from(self.now - self.datagrams[index].seen_at) >= self.config.lifetime.as_millis()
    }

    /// Advances the clock, and removes the datagram if it has expired.
    fn look_at(&mut self, number: u8, now: u64) -> Option<usize> {
        self.now = self.now.max(now);
        let index = self.datagrams.iter().position(|datagram| datagram.number == number)?;
        if self.is_over(index) {
            self.end(index);
            return None;
        }
        Some(index)
    }

    fn end(&mut self, index: usize) {
        let over = self.is_over(index);
        let gone = self.datagrams.remove(index);
        self.count(match (over, gone.first) {
            (true, Some(_)) => "expired known",
            (true, None) => "expired waiting",
            (false, _) => "evicted",
        });
        self.queue.extend(gone.slots.into_iter().map(|slot| (slot, None)));
    }

    fn first(&mut self, number: u8, digest: u64, extent: Extent, decision: u32, now: u64) -> First<u32> {
        let at = self.look_at(number, now);
        if let Some((known, decided, _)) = at.and_then(|at| self.datagrams[at].first) {
            let same = known == digest;
            if same || !self.datagrams[at.unwrap()].is_whole() {
                self.count(if same { "duplicates" } else { "conflicts" });
                return if same { First::Duplicate(decided) } else { First::Conflict };
            }
            self.datagrams.remove(at.unwrap());
            self.count("replaced");
        }
        let known: Vec<(u64, usize)> = self
            .datagrams
            .iter()
            .enumerate()
            .filter_map(|(index, datagram)| Some((datagram.first?.2, index)))
            .collect();
        if known.len() >= self.config.datagrams {
            self.end(known.into_iter().min().unwrap().1);
        }
        let order = self.sums.get("recorded").copied().unwrap_or(0);
        let index = self.datagram(number);
        self.datagrams[index].first = Some((digest, decision, order));
        self.datagrams[index].pieces.push(extent);
        for slot in core::mem::take(&mut self.datagrams[index].slots) {
            self.queue.push_back((slot, Some(decision)));
        }
        self.count("recorded");
        First::Recorded
    }

    fn datagram(&mut self, number: u8) -> usize {
        self.datagrams.iter().position(|datagram| datagram.number == number).unwrap_or_else(|| {
            let fresh =
                Datagram { number, seen_at: self.now, first: None, slots: Vec::new(), pieces: Vec::new() };
            self.datagrams.push(fresh);
            self.datagrams.len() - 1
        })
    }

    /// Returns `Err` if the table must assign a slot, because the model does not predict which
    /// slot.
    fn later(&mut self, number: u8, source: u8, extent: Extent, now: u64) -> Result<Later<u32>, ()> {
        let at = self.look_at(number, now);
        if let Some((_, decision, _)) = at.and_then(|at| self.datagrams[at].first) {
            self.count("known");
            self.datagrams[at.unwrap()].pieces.push(extent);
            return Ok(Later::Known(decision));
        }
        let here = at.map_or(0, |at| self.datagrams[at].slots.len());
        let there = self.owners.values().filter(|&&owner| owner == source).count();
        let (name, refusal) = match self.config {
            c if here == c.per_datagram => ("refused datagram", Refusal::DatagramFull),
            c if there == c.per_source => ("refused source", Refusal::SourceFull),
            c if self.owners.len() == c.buffered => ("refused buffer", Refusal::BufferFull),
            _ => return Err(()),
        };
        self.count(name);
        Ok(Later::Refused(refusal))
    }

    fn hold(&mut self, number: u8, source: u8, extent: Extent, slot: u32) {
        let index = self.datagram(number);
        self.datagrams[index].slots.push(slot);
        self.datagrams[index].pieces.push(extent);
        self.owners.insert(slot, source);
        self.count("held");
    }

    fn expire(&mut self, now: u64, budget: usize) -> usize {
        self.now = self.now.max(now);
        let over: Vec<u8> = (0..self.datagrams.len())
            .filter(|&index| self.is_over(index))
            .map(|index| self.datagrams[index].number)
            .take(budget)
            .collect();
        for number in &over {
            self.end(self.datagrams.iter().position(|datagram| datagram.number == *number).unwrap());
        }
        over.len()
    }

    fn release(&mut self) -> Option<(u32, Option<u32>)> {
        let (slot, decision) = self.queue.pop_front()?;
        self.owners.remove(&slot);
        self.count(if decision.is_some() { "released" } else { "expired frames" });
        Some((slot, decision))
    }

    /// Returns the slots that the datagrams and the queue hold.
    fn places(&self) -> (Vec<u32>, Vec<u32>) {
        let kept = self.datagrams.iter().flat_map(|datagram| datagram.slots.iter().copied());
        let mut places: Vec<u32> = kept.chain(self.queue.iter().map(|&(slot, _)| slot)).collect();
        let mut taken: Vec<u32> = self.owners.keys().copied().collect();
        places.sort_unstable();
        taken.sort_unstable();
        (places, taken)
    }

    fn sum(&self, what: &str) -> u64 {
        self.sums.get(what).copied().unwrap_or(0)
    }
}

#[derive(Clone, Debug)]
enum Op {
    First(u8, u64),
    Later(u8, Extent),
    Expire(usize),
    Release(usize),
    Forward(u64),
    Back(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (0..DATAGRAMS, 0..2u64).prop_map(|(number, digest)| Op::First(number, digest)),
        10 => (0..DATAGRAMS, extent()).prop_map(|(number, extent)| Op::Later(number, extent)),
        1 => (0..4usize).prop_map(Op::Expire),
        4 => (1..4usize).prop_map(Op::Release),
        4 => (0..40u64).prop_map(Op::Forward),
        1 => (95..105u64).prop_map(Op::Forward),
        1 => (1..300u64).prop_map(Op::Back),
    ]
}

/// The extents are small, so that many random sequences complete a datagram.
fn extent() -> impl Strategy<Value = Extent> {
    (1..4u16, 0..3u16, any::<bool>()).prop_map(|(place, eights, more)| Extent {
        offset: place * 8,
        bytes: eights * 8,
        more,
    })
}

fn configs() -> impl Strategy<Value = Config> {
    let lifetime = Duration::from_millis(100);
    (1..5usize, 1..8usize).prop_flat_map(move |(datagrams, buffered)| {
        (1..=buffered, 1..=buffered).prop_map(move |(per_datagram, per_source)| Config {
            datagrams,
            buffered,
            per_datagram,
            per_source,
            lifetime,
        })
    })
}

/// A table with its model.
struct Pair {
    table: FragmentTable<u32>,
    oracle: Oracle,
    colliding: bool, // All datagrams share three hashes.
    clock: u64,
    decision: u32,
}

impl Pair {
    fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let now = Millis(self.clock);
        match *op {
            Op::First(number, digest) => {
                let (key, hash) = self.name(number);
                self.decision += 1;
                let found =
                    self.table.first(&Arrival { key: &key, hash, extent: FIRST }, digest, self.decision, now);
                prop_assert_eq!(found, self.oracle.first(number, digest, FIRST, self.decision, now.0));
            }
            Op::Later(number, extent) => self.later(number, extent, now)?,
            Op::Expire(budget) => {
                prop_assert_eq!(self.table.expire(now, budget), self.oracle.expire(now.0, budget));
            }
            Op::Release(times) => (0..times).try_for_each(|_| self.release().map(|_| ()))?,
            Op::Forward(millis) => self.clock += millis,
            Op::Back(millis) => self.clock = self.clock.saturating_sub(millis),
        }
        Ok(())
    }

    /// Returns a key from one of three sources.
    fn name(&self, number: u8) -> (crate::Key, u64) {
        let hash = hash(u64::from(if self.colliding { number % 3 } else { number }));
        (key(number % 3, u32::from(number)), hash)
    }

    fn later(&mut self, number: u8, extent: Extent, now: Millis) -> Result<(), TestCaseError> {
        let (key, named) = self.name(number);
        let source = number % 3;
        let found = self.table.later(
            &Arrival { key: &key, hash: named, extent },
            hash(1_000 + u64::from(source)),
            now,
        );
        match (found, self.oracle.later(number, source, extent, now.0)) {
            (Later::Hold(slot), Err(())) => {
                prop_assert!((slot.0 as usize) < self.oracle.config.buffered);
                prop_assert!(!self.oracle.owners.contains_key(&slot.0), "{slot:?} is in use");
                self.oracle.hold(number, source, extent, slot.0);
            }
            (found, expected) => prop_assert_eq!(Ok(found), expected),
        }
        Ok(())
    }

    fn release(&mut self) -> Result<Option<u32>, TestCaseError> {
        let found = self.table.release().map(|release| match release.fate {
            Fate::Forward(decision) => (release.slot.0, Some(decision)),
            Fate::Expired => (release.slot.0, None),
        });
        prop_assert_eq!(found, self.oracle.release());
        Ok(found.map(|(slot, _)| slot))
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let (oracle, table, c) = (&self.oracle, &self.table, self.table.counters());
        let (places, taken) = oracle.places();
        prop_assert_eq!(places, taken);
        let known = oracle.datagrams.iter().filter(|datagram| datagram.first.is_some()).count();
        prop_assert_eq!((table.known(), table.waiting()), (known, oracle.datagrams.len() - known));
        prop_assert_eq!((table.held(), table.queued()), (oracle.owners.len(), oracle.queue.len()));
        prop_assert!(known <= oracle.config.datagrams && table.held() <= oracle.config.buffered);
        for datagram in &oracle.datagrams {
            prop_assert!(datagram.slots.len() <= oracle.config.per_datagram);
            prop_assert_eq!(datagram.first.is_some(), datagram.slots.is_empty());
        }
        let counted = [
            (c.recorded, "recorded"),
            (c.duplicates, "duplicates"),
            (c.conflicts, "conflicts"),
            (c.known, "known"),
            (c.held, "held"),
            (c.released, "released"),
            (c.refused_datagram, "refused datagram"),
            (c.refused_source, "refused source"),
            (c.refused_buffer, "refused buffer"),
            (c.expired_known, "expired known"),
            (c.expired_waiting, "expired waiting"),
            (c.expired_frames, "expired frames"),
            (c.evicted, "evicted"),
            (c.replaced, "replaced"),
        ];
        for (found, name) in counted {
            prop_assert_eq!(found, oracle.sum(name), "{}", name);
        }
        super::assert_adds_up(table);
        Ok(())
    }

    /// Expires all datagrams, and then checks that every index and every hold slot can be used
    /// again.
    fn drain(&mut self) -> Result<(), TestCaseError> {
        self.clock = self.oracle.now + 1_000;
        self.apply(&Op::Expire(usize::MAX))?;
        while self.release()?.is_some() {}
        self.check()?;
        prop_assert_eq!((self.table.known(), self.table.waiting(), self.table.held()), (0, 0, 0));
        let mut slots = BTreeSet::new();
        for number in 0..self.oracle.config.buffered as u64 {
            let id = u32::try_from(1_000 + number).unwrap();
            let found = self.table.later(
                &Arrival { key: &key(7, id), hash: hash(number), extent: FIRST },
                hash(2_000 + number),
                Millis(self.clock),
            );
            prop_assert!(matches!(found, Later::Hold(slot) if slots.insert(slot.0)), "{:?}", found);
        }
        for number in 0..self.oracle.config.datagrams {
            let id = u32::try_from(2_000 + number).unwrap();
            let found = self.table.first(
                &Arrival { key: &key(8, id), hash: hash(u64::from(id)), extent: FIRST },
                1,
                1,
                Millis(self.clock),
            );
            prop_assert_eq!(found, First::Recorded);
        }
        prop_assert_eq!(self.table.counters().evicted, self.oracle.sum("evicted"));
        Ok(())
    }
}

proptest! {
    #[test]
    fn a_table_agrees_with_a_list(
        config in configs(),
        colliding: bool,
        ops in proptest::collection::vec(op(), 1..250),
    ) {
        let table = FragmentTable::new(&config).unwrap();
        let mut pair = Pair { table, oracle: Oracle::new(config), colliding, clock: 500, decision: 0 };
        for op in &ops {
            pair.apply(op)?;
            pair.check()?;
        }
        pair.drain()?;
    }
}

const DATAGRAMS: u8 = 12;
