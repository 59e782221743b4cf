//! A fixed-size table of upstream requests that are waiting for an answer, for one packet thread.
//! An upstream request that waits for its answer is called an exchange.
//!
//! The table assigns a source port and a request id to each exchange, and finds the exchange to
//! which an answer belongs. Exchanges expire in the order of their deadlines. The caller provides
//! the time in nanoseconds, and parses answers with `Application::read_answer`.
//!
//! An id (port and request id) identifies at most one exchange. An id is not reused for
//! [`EXCHANGE_REST_NS`] after its exchange has ended, so a late answer matches no exchange. Each
//! slot has a fixed share of all ids and uses them one after another. After a slot has used its
//! last id, the slot is blocked until its ids may be reused. A new exchange uses the slot that
//! became free most recently. If all slots were used equally often, all slots would be blocked at
//! the same time.

use std::mem;
use std::ops::RangeInclusive;

use thiserror::Error;

/// The time in nanoseconds for which the id of an ended exchange is not reused.
pub const EXCHANGE_REST_NS: u64 = 2_000_000_000;

/// The identifier of an exchange, which is a port of the source port pool and a request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExchangeId {
    /// The source port of the upstream request.
    pub port: u16,
    /// The request id in the frame of the protocol.
    pub request: u16,
}

/// The reason why an exchange table cannot be created.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The range of source ports is empty.
    #[error("the range of source ports is empty")]
    NoPorts,
    /// The capacity is 0, or larger than the number of ids.
    #[error("capacity {capacity} is out of range, use 1 to {ids} (65536 for each source port, minus one)")]
    Capacity {
        /// The requested capacity.
        capacity: usize,
        /// The number of available ids, which is 65,536 for each port, minus one for
        /// [`Exchanges::spare_id`].
        ids: usize,
    },
}

/// A fixed-size table of exchanges. `T` is the type of the data that the caller stores with each
/// exchange.
#[derive(Debug)]
pub struct Exchanges<T> {
    /// Slots are appended on first use, so unused slots occupy no physical memory.
    slots: Vec<Slot<T>>,
    capacity: usize,
    /// The chain [`FREE`] of free slots and the chain [`RESTING`] of blocked slots, followed by one
    /// chain for each timeout.
    chains: Box<[Chain]>,
    first_port: u16,
    /// The number of ids. Ids are numbered from 0, and the first slot starts with the id `first`.
    ids: usize,
    first: usize,
    /// The number of ids per slot. A slot uses the ids `first + slot + turn * capacity`, modulo
    /// `ids`.
    turns: usize,
    live: usize,
    latest: u64,
}

/// The storage for one exchange. A slot is free, is in use by an exchange, or is blocked until its
/// ids may be reused.
#[derive(Debug)]
struct Slot<T> {
    entry: Option<T>,
    /// The position of the current or next id among the ids of this slot.
    turn: usize,
    /// The time at which the slot must be removed from its [`Chain`]. For a slot in use, `due` is
    /// the deadline of its exchange. For a blocked slot, `due` is the time at which the ids of the
    /// slot may be reused.
    due: u64,
    chain: usize,
    previous: usize,
    next: usize,
}

/// A linked list of slots, ordered by the time of insertion. Each slot must be removed `span`
/// nanoseconds after its insertion, so the list is also ordered by the due time of the slots.
#[derive(Debug)]
struct Chain {
    span: u64,
    first: usize,
    last: usize,
}

impl<T> Exchanges<T> {
    /// Creates a table with `capacity` slots that uses the source ports `ports`. Blocked slots,
    /// whose ids may not be reused yet, count toward the capacity. `timeouts` are in nanoseconds,
    /// and an exchange refers to its timeout by index.
    ///
    /// # Errors
    /// Returns an [`ExchangeError`] if `ports` is empty or `capacity` is out of range.
    /// # Cost
    /// Reserves memory for all slots, each of which takes 48 bytes plus the size of `T`. The kernel
    /// provides physical memory when a slot is used for the first time. The table supports at most
    /// `ids / EXCHANGE_REST_NS` exchanges per second, which is half a million with 16 ports. At
    /// half of that rate, half of the slots are blocked.
    pub fn new(ports: RangeInclusive<u16>, capacity: usize, timeouts: &[u64]) -> Result<Self, ExchangeError> {
        let first_port = *ports.start();
        match ports.len() * IDS_OF_A_PORT {
            0 => Err(ExchangeError::NoPorts),
            ids if capacity == 0 || capacity >= ids => {
                Err(ExchangeError::Capacity { capacity, ids: ids - 1 })
            }
            ids => Ok(Self::with_ids(first_port, ids - 1, capacity, timeouts)),
        }
    }

    /// Returns an id that no exchange ever uses, for requests that need no answer. If a server
    /// answers such a request anyway, the answer matches no exchange.
    #[must_use]
    pub fn spare_id(&self) -> ExchangeId {
        self.port_and_request(self.ids)
    }

    pub(crate) fn with_ids(first_port: u16, ids: usize, capacity: usize, timeouts: &[u64]) -> Self {
        let spans = [0, EXCHANGE_REST_NS].into_iter().chain(timeouts.iter().copied());
        Self {
            slots: Vec::with_capacity(capacity),
            capacity,
            chains: spans.map(|span| Chain { span, first: NONE, last: NONE }).collect(),
            first_port,
            ids,
            first: 0,
            turns: ids / capacity,
            live: 0,
            latest: 0,
        }
    }

    /// Sets the first id of a table that has no exchanges yet. Use a different `random` number in
    /// each process. Late answers to requests of the previous process then rarely match an exchange
    /// of this process.
    #[must_use]
    pub fn starting_at(self, random: u64) -> Self {
        let ids = self.ids as u64;
        Self { first: usize::try_from(random % ids).unwrap_or_default(), ..self }
    }

    /// Begins an exchange. `timeout` is the index of the timeout for this exchange.
    ///
    /// # Errors
    /// Returns `entry` if no slot is free or the timeout does not exist. The table is
    /// then unchanged.
    pub fn begin(&mut self, now: u64, timeout: usize, entry: T) -> Result<ExchangeId, T> {
        let now = self.clock(now);
        let Some(number) = self.unused(now).filter(|_| TIMEOUTS + timeout < self.chains.len()) else {
            return Err(entry);
        };
        self.unlink(number);
        self.append(TIMEOUTS + timeout, number, now);
        let Some(slot) = self.slots.get_mut(number) else { return Err(entry) };
        slot.entry = Some(entry);
        self.live += 1;
        Ok(self.id(number))
    }

    /// Returns the data that the caller stored with an exchange in progress.
    #[must_use]
    pub fn find(&self, id: ExchangeId) -> Option<&T> {
        self.slots.get(self.number(id)?)?.entry.as_ref()
    }

    /// Returns a mutable reference to the data of an exchange in progress.
    pub fn find_mut(&mut self, id: ExchangeId) -> Option<&mut T> {
        let number = self.number(id)?;
        self.slots.get_mut(number)?.entry.as_mut()
    }

    /// Ends an exchange in progress and returns its data.
    pub fn end(&mut self, now: u64, id: ExchangeId) -> Option<T> {
        let number = self.number(id)?;
        let now = self.clock(now);
        self.finish(now, number)
    }

    /// Ends the exchange with the earliest deadline if that deadline has passed. Call this method
    /// until it returns `None`.
    pub fn expire(&mut self, now: u64) -> Option<(ExchangeId, T)> {
        let now = self.clock(now);
        let (due, number) = self.earliest()?;
        if due > now {
            return None;
        }
        let id = self.id(number);
        Some((id, self.finish(now, number)?))
    }

    /// Returns the earliest deadline of all exchanges.
    ///
    /// # Cost
    /// Reads the first slot of each timeout.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        self.earliest().map(|(due, _)| due)
    }

    /// Returns the number of exchanges in progress.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.live
    }

    /// Returns `true` if no exchange is in progress.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Returns `now`, or the latest time seen so far if `now` is earlier. Time must not go
    /// backward, because the chains are ordered by time.
    fn clock(&mut self, now: u64) -> u64 {
        self.latest = self.latest.max(now);
        self.latest
    }

    fn unused(&mut self, now: u64) -> Option<usize> {
        let [free, resting, ..] = &*self.chains else { return None };
        if free.last != NONE {
            return Some(free.last);
        }
        let resting = resting.first;
        if self.slots.len() < self.capacity {
            let number = self.slots.len();
            let slot = Slot { entry: None, turn: 0, due: 0, chain: FREE, previous: NONE, next: NONE };
            self.slots.push(slot); // does not allocate, because the capacity is reserved
            self.append(FREE, number, 0);
            return Some(number);
        }
        self.slots.get(resting).filter(|slot| slot.due <= now).map(|_| resting)
    }

    fn earliest(&self) -> Option<(u64, usize)> {
        let firsts = self.chains.iter().skip(TIMEOUTS).map(|chain| chain.first);
        firsts.filter_map(|first| Some((self.slots.get(first)?.due, first))).min()
    }

    fn finish(&mut self, now: u64, number: usize) -> Option<T> {
        let turns = self.turns;
        let slot = self.slots.get_mut(number)?;
        let entry = slot.entry.take()?;
        slot.turn += 1;
        let is_used_up = slot.turn == turns;
        if is_used_up {
            slot.turn = 0;
        }
        self.live -= 1;
        self.unlink(number);
        self.append(if is_used_up { RESTING } else { FREE }, number, now);
        Some(entry)
    }

    fn id(&self, number: usize) -> ExchangeId {
        let turn = self.slots.get(number).map_or(0, |slot| slot.turn);
        self.port_and_request((self.first + number + turn * self.capacity) % self.ids)
    }

    fn port_and_request(&self, id: usize) -> ExchangeId {
        let low = |number: usize| u16::try_from(number % IDS_OF_A_PORT).unwrap_or_default();
        ExchangeId { port: self.first_port.wrapping_add(low(id / IDS_OF_A_PORT)), request: low(id) }
    }

    /// Returns the slot that currently uses an id.
    fn number(&self, id: ExchangeId) -> Option<usize> {
        let port = usize::from(id.port.checked_sub(self.first_port)?);
        let id = port * IDS_OF_A_PORT + usize::from(id.request);
        let id = (id < self.ids).then(|| (id + self.ids - self.first) % self.ids)?;
        let number = id % self.capacity;
        (self.slots.get(number)?.turn == id / self.capacity).then_some(number)
    }

    fn append(&mut self, chain: usize, number: usize, now: u64) {
        let Some(line) = self.chains.get_mut(chain) else { return };
        let previous = mem::replace(&mut line.last, number);
        if previous == NONE {
            line.first = number;
        }
        let due = now.saturating_add(line.span);
        if let Some(before) = self.slots.get_mut(previous) {
            before.next = number;
        }
        if let Some(slot) = self.slots.get_mut(number) {
            (slot.chain, slot.due, slot.previous, slot.next) = (chain, due, previous, NONE);
        }
    }

    fn unlink(&mut self, number: usize) {
        let Some(&Slot { chain, previous, next, .. }) = self.slots.get(number) else { return };
        let Some(line) = self.chains.get_mut(chain) else { return };
        match self.slots.get_mut(previous) {
            Some(before) => before.next = next,
            None => line.first = next,
        }
        match self.slots.get_mut(next) {
            Some(behind) => behind.previous = previous,
            None => line.last = previous,
        }
    }
}

const IDS_OF_A_PORT: usize = 1 << 16;
/// The index that marks the end of a chain.
const NONE: usize = usize::MAX;
/// The chain of free slots. The slot that was added last is used first.
const FREE: usize = 0;
/// The chain of slots that have used all their ids.
const RESTING: usize = 1;
/// The index of the first chain of exchanges in progress. There is one such chain for each timeout.
const TIMEOUTS: usize = 2;

#[cfg(test)]
mod tests;
