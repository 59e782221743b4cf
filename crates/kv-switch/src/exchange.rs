//! Requests of our own that wait for an answer: a table of fixed size for one packet thread.
//!
//! In: what the caller keeps of a request, and the time in nanoseconds. Out: the id that the request is sent under and that finds it
//! again; requests whose time is over, in the order of their deadlines.
//! Not here: datagrams, sockets, the clock, what an answer has to say (`Application::read_answer`).
//! Invariant: an id names one exchange at a time, and none for [`EXCHANGE_REST_NS`] after that has ended: a late answer finds nobody.
//!
//! A slot has a share of all ids and uses them in turn. Behind the last of them it rests, by which time all of them have. The slot
//! that became free last is used next: were all used alike, all would come to rest together.

use std::mem;
use std::ops::RangeInclusive;

use thiserror::Error;

/// Nanoseconds between an exchange's end and the next one of its id.
pub const EXCHANGE_REST_NS: u64 = 2_000_000_000;

/// What an answer comes to: one of our own UDP ports, and the id that the protocol carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExchangeId {
    /// The port that the request leaves from.
    pub port: u16,
    /// The request id in its frame.
    pub request: u16,
}

/// Why there is no such table.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExchangeError {
    /// A range of ports without one.
    #[error("no port to send requests from")]
    NoPorts,
    /// No room, or more than there are ids.
    #[error("found a capacity of {capacity}, allowed 1 to {ids}, the number of ids")]
    Capacity {
        /// What was asked for.
        capacity: usize,
        /// 65,536 for each port.
        ids: usize,
    },
}

/// The table. `T`: what the caller keeps of a request.
#[derive(Debug)]
pub struct Exchanges<T> {
    /// Those that were ever used: what is never used is never touched.
    slots: Vec<Slot<T>>,
    capacity: usize,
    /// [`FREE`], [`RESTING`], then one for each timeout.
    chains: Box<[Chain]>,
    first_port: u16,
    /// How many there are, and which is the first one that is used.
    ids: usize,
    first: usize,
    /// Ids of a slot: `slot + turn * capacity` behind the first one, by which an id finds its slot.
    turns: usize,
    live: usize,
    latest: u64,
}

/// Room for one exchange: free, at rest, or under way.
#[derive(Debug)]
struct Slot<T> {
    entry: Option<T>,
    /// Which of its ids is used, or will be next.
    turn: usize,
    /// When it leaves its chain: the deadline, or the end of its rest.
    due: u64,
    chain: usize,
    previous: usize,
    next: usize,
}

/// Slots in the order in which they came, each due `span` after it did: so also in the order of their time.
#[derive(Debug)]
struct Chain {
    span: u64,
    first: usize,
    last: usize,
}

impl<T> Exchanges<T> {
    /// A table whose requests leave from `ports`, with room for `capacity` at once, slots at rest included. `timeouts`:
    /// nanoseconds that a request may wait, named by their index.
    ///
    /// # Errors
    /// [`ExchangeError`].
    /// # Cost
    /// Takes all memory that it will ever have, `T` and 48 bytes a slot, and touches what is used: the most at once. `ids / EXCHANGE_REST_NS` exchanges a second at most, half a million
    /// with 16 ports; at half of that rate half of the slots rest.
    pub fn new(ports: RangeInclusive<u16>, capacity: usize, timeouts: &[u64]) -> Result<Self, ExchangeError> {
        let first_port = *ports.start();
        match ports.len() * IDS_OF_A_PORT {
            0 => Err(ExchangeError::NoPorts),
            ids if capacity == 0 || capacity > ids => Err(ExchangeError::Capacity { capacity, ids }),
            ids => Ok(Self::with_ids(first_port, ids, capacity, timeouts)),
        }
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

    /// The same, for a table without exchanges yet, that begins with another id, by a number that another process does not have:
    /// what answers requests of the process before finds none of this one's, but for as few as were under way of all ids.
    #[must_use]
    pub fn starting_at(self, random: u64) -> Self {
        let ids = self.ids as u64;
        Self { first: usize::try_from(random % ids).unwrap_or_default(), ..self }
    }

    /// A new exchange, which ends by itself at `now` and the timeout of that index.
    ///
    /// # Errors
    /// `entry` itself: no slot is free, or there is no such timeout. Nothing has begun.
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

    /// What the caller keeps of an exchange under way.
    #[must_use]
    pub fn find(&self, id: ExchangeId) -> Option<&T> {
        self.slots.get(self.number(id)?)?.entry.as_ref()
    }

    /// The same, to change.
    pub fn find_mut(&mut self, id: ExchangeId) -> Option<&mut T> {
        let number = self.number(id)?;
        self.slots.get_mut(number)?.entry.as_mut()
    }

    /// Ends an exchange under way.
    pub fn end(&mut self, now: u64, id: ExchangeId) -> Option<T> {
        let number = self.number(id)?;
        let now = self.clock(now);
        self.finish(now, number)
    }

    /// Ends the exchange whose deadline is the earliest, if it has come: to be called until there is none.
    pub fn expire(&mut self, now: u64) -> Option<(ExchangeId, T)> {
        let now = self.clock(now);
        let (due, number) = self.earliest()?;
        if due > now {
            return None;
        }
        let id = self.id(number);
        Some((id, self.finish(now, number)?))
    }

    /// The earliest deadline.
    ///
    /// # Cost
    /// A look at each timeout.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        self.earliest().map(|(due, _)| due)
    }

    /// Number of exchanges under way.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.live
    }

    /// Whether none is under way.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Time that goes back is taken for the latest: chains are in the order of their time.
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
            self.slots.push(slot); // within its capacity
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
        let id = (self.first + number + turn * self.capacity) % self.ids;
        let low = |number: usize| u16::try_from(number % IDS_OF_A_PORT).unwrap_or_default();
        ExchangeId { port: self.first_port.wrapping_add(low(id / IDS_OF_A_PORT)), request: low(id) }
    }

    /// The slot of an id, while it is at that id's turn.
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

/// Ids in 16 bits.
const IDS_OF_A_PORT: usize = 1 << 16;
/// No slot.
const NONE: usize = usize::MAX;
/// Slots that can be used, the last one first.
const FREE: usize = 0;
/// Slots whose ids are used up.
const RESTING: usize = 1;
/// The first timeout's.
const TIMEOUTS: usize = 2;

#[cfg(test)]
mod tests;
