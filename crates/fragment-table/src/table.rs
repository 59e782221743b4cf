//! The table: first and later fragments in, decisions and hold slots out; one owner, no lock.
//!
//! Not here: chains, orders, the buffer, counts by source (a file each).
//! Two populations that cannot crowd each other out, each with room of its own. Known datagrams (their first
//! fragment came): when there are as many as allowed, the one recorded first gives way, because pieces of a datagram
//! come within milliseconds of each other, so that the oldest is the likeliest to be complete; under a flood of
//! first fragments a datagram still has the time in which the flood goes round the table. Waiting datagrams: each
//! holds a frame, so the buffer bounds them, and none gives way before its time, or a flood of later fragments
//! would drop the frames of others; they are refused, per datagram, per source and in all. A flood of later
//! fragments thus costs nobody whose first fragment comes first.
//! Source: Eisenbud et al., *Maglev*, NSDI 2016, §4.3.

use crate::buffer::{Buffer, Fate, HoldSlot, List};
use crate::config::{Config, ConfigError};
use crate::counters::Counters;
use crate::datagram::{Datagram, Fragment, Key, Millis, Seen};
use crate::insertion_order::InsertionOrder;
use crate::sources::Sources;
use crate::{Chains, filled};

/// What became of a first fragment. It is forwarded, unless it is a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a conflict is dropped"]
pub enum First<D> {
    /// It was the first of its datagram, and its decision is recorded. Pieces that waited are queued for
    /// [`FragmentTable::release`].
    Recorded,
    /// It is like the first of its datagram: this was decided for that one.
    Duplicate(D),
    /// Its datagram had another first fragment, whose decision stands, and is not whole: drop it, by name. Of a whole one
    /// no fragment is to come, so that another first fragment is that of the next datagram of this name: identifications
    /// of IPv4 have 16 bits, and come again within the lifetime.
    Conflict,
}

/// What becomes of a later fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a frame is held only if the caller does so"]
pub enum Later<D> {
    /// This was decided for the first fragment.
    Known(D),
    /// The first fragment has not come: keep the frame under this number until [`FragmentTable::release`] gives it
    /// back.
    Hold(HoldSlot),
    /// The first fragment has not come, and the frame cannot be held: drop it, by name.
    Refused(Refusal),
}

/// Why a frame cannot be held. Of two reasons, the first in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its datagram holds [`Config::per_datagram`] frames.
    DatagramFull,
    /// Its source has [`Config::per_source`] hold slots.
    SourceFull,
    /// All [`Config::buffered`] hold slots are taken.
    BufferFull,
}

/// A hold slot that is free again, and what to do with its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the frame under this number waits for its verdict"]
pub struct Release<D> {
    /// The number; the next later fragment may be given it, so empty its place at once.
    pub slot: HoldSlot,
    /// What to do.
    pub fate: Fate<D>,
}

/// A table of fragmented datagrams of fixed size for one packet thread. `D` is what the caller decides.
///
/// `hash` is a keyed 64-bit hash of the key (SipHash with a secret key), always the same one for a key. Keys are
/// compared whole, so datagrams are never mixed up, even when their hashes are equal.
#[derive(Debug)]
pub struct FragmentTable<D> {
    config: Config,
    lifetime: u64, // milliseconds
    chains: Chains,
    datagrams: Box<[Datagram<D>]>, // known and waiting ones
    seen: InsertionOrder,          // all of them, as their first piece came: the order in which they expire
    known: InsertionOrder,         // as their first fragments came
    buffer: Buffer<D>,
    sources: Sources,
    latest: u64, // milliseconds: the time never goes back
    counters: Counters,
}

impl<D: Copy> FragmentTable<D> {
    /// Takes all the memory that the table will ever use, [`Config::memory_bytes`], and touches it.
    ///
    /// # Errors
    /// [`ConfigError`]: a value out of range, or not enough memory.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        config.check()?;
        Self::build(config).ok_or(ConfigError::Memory(config.memory_bytes::<D>()))
    }

    fn build(config: &Config) -> Option<Self> {
        let (places, slots) = (config.places(), config.buffered);
        Some(Self {
            config: *config,
            lifetime: u64::try_from(config.lifetime.as_millis()).ok()?,
            chains: Chains::new(places)?,
            datagrams: filled(places, Datagram::VACANT)?,
            seen: InsertionOrder::new(places)?,
            known: InsertionOrder::new(places)?,
            buffer: Buffer::new(slots)?,
            sources: Sources::new(slots)?,
            latest: 0,
            counters: Counters::default(),
        })
    }

    /// Records what was decided for a first fragment, or returns what was decided before.
    ///
    /// `digest` is a 64-bit hash of the fragment's bytes that matter: equal ones are taken for a duplicate. There is
    /// always room: a known datagram gives way if need be.
    ///
    /// # Cost
    /// Constant, and a step for each frame that waited ([`Config::per_datagram`] at most).
    pub fn first(&mut self, fragment: &Fragment<'_>, digest: u64, decision: D, now: Millis) -> First<D> {
        let Fragment { key, hash, extent } = *fragment;
        let now = self.advance(now);
        let mut at = self.live(key, hash, now);
        if let Some((place, seen)) = at.and_then(|at| Some((at, self.datagram(at).first?))) {
            if seen.digest == digest || !self.datagram(place).arrived.is_whole() {
                return self.again(seen, digest);
            }
            self.counters.succeeded += 1;
            self.remove(place);
            at = None;
        }
        if self.known.len == self.config.datagrams {
            self.make_room(now);
        }
        let at = at.unwrap_or_else(|| self.open(key, hash, now));
        let datagram = self.datagram(at);
        datagram.first = Some(Seen { digest, decision });
        datagram.arrived.add(extent);
        let held = core::mem::replace(&mut datagram.held, List::EMPTY);
        self.buffer.queue(held, Fate::Forward(decision));
        self.known.add(at);
        self.counters.recorded += 1;
        First::Recorded
    }

    /// Looks up the decision for a later fragment, or takes a hold slot for it.
    ///
    /// `source` is a keyed 64-bit hash of what counts as one source: an IPv4 address; of IPv6 better the first 64
    /// bits, since one host has all addresses behind them.
    ///
    /// # Cost
    /// Constant; as [`FragmentTable::first`] when the datagram is found expired.
    pub fn later(&mut self, fragment: &Fragment<'_>, source: u64, now: Millis) -> Later<D> {
        let Fragment { key, hash, extent } = *fragment;
        let now = self.advance(now);
        let at = self.live(key, hash, now);
        if let Some((at, seen)) = at.and_then(|at| Some((at, self.datagram(at).first?))) {
            self.counters.known += 1;
            self.datagram(at).arrived.add(extent);
            return Later::Known(seen.decision);
        }
        if let Some(refusal) = self.refusal(at, source) {
            return Later::Refused(self.refuse(refusal));
        }
        let at = at.unwrap_or_else(|| self.open(key, hash, now));
        let source = self.sources.enter(source);
        self.datagram(at).arrived.add(extent);
        self.counters.held += 1;
        Later::Hold(self.buffer.keep(&mut self.datagrams[at as usize].held, source))
    }

    /// Ends at most `budget` datagrams whose lifetime is over, and returns how many. Their held frames are queued for
    /// [`FragmentTable::release`].
    ///
    /// Nothing depends on it but how long held frames stay: a datagram past its lifetime is not found in any case.
    ///
    /// # Cost
    /// Constant for each, and a step for each frame held.
    pub fn expire(&mut self, now: Millis, budget: usize) -> usize {
        let now = self.advance(now);
        let mut ended = 0;
        while ended < budget
            && let Some(oldest) = self.seen.oldest()
            && self.datagram(oldest).deadline <= now
        {
            self.expire_one(oldest);
            ended += 1;
        }
        ended
    }

    /// Takes the frame that was queued first out of the queue. Its hold slot is free from here on, and not before.
    ///
    /// A batch that may hold frames must have been carried out before: a frame whose number was given out in it may be
    /// released already. Call it between batches, as often as there is time for; [`FragmentTable::queued`] bounds it.
    pub fn release(&mut self) -> Option<Release<D>> {
        let (slot, source, fate) = self.buffer.pop()?;
        self.sources.leave(source);
        match fate {
            Fate::Forward(_) => self.counters.released += 1,
            Fate::Expired => self.counters.expired_frames += 1,
        }
        Some(Release { slot, fate })
    }

    /// Datagrams whose decision is known, expired ones that nobody looked at among them; at most
    /// [`Config::datagrams`].
    #[must_use]
    pub fn known(&self) -> usize {
        self.known.len
    }

    /// Datagrams that wait for their first fragment, likewise; at most [`FragmentTable::held`].
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.seen.len - self.known.len
    }

    /// Hold slots taken, those of [`FragmentTable::queued`] among them; at most [`Config::buffered`].
    #[must_use]
    pub fn held(&self) -> usize {
        self.buffer.taken
    }

    /// Hold slots that [`FragmentTable::release`] would give back now.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.buffer.queue.len
    }

    /// What the table was built from.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Sums since construction.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn advance(&mut self, now: Millis) -> u64 {
        self.latest = self.latest.max(now.0);
        self.latest
    }

    fn datagram(&mut self, at: u32) -> &mut Datagram<D> {
        &mut self.datagrams[at as usize]
    }

    /// The place of a datagram; one that has expired ends here.
    fn live(&mut self, key: &Key, hash: u64, now: u64) -> Option<u32> {
        let at = self.chains.of(hash).find(|&at| {
            let datagram = &self.datagrams[at as usize];
            datagram.hash == hash && datagram.key == *key
        })?;
        if self.datagram(at).deadline > now {
            return Some(at);
        }
        self.expire_one(at);
        None
    }

    /// A place for a new datagram. There is one: `known` and `waiting` ones are bounded apart.
    fn open(&mut self, key: &Key, hash: u64, now: u64) -> u32 {
        let at = self.chains.take(hash);
        let deadline = now.saturating_add(self.lifetime);
        *self.datagram(at) = Datagram { key: *key, hash, deadline, ..Datagram::VACANT };
        self.seen.add(at);
        at
    }

    fn again(&mut self, seen: Seen<D>, digest: u64) -> First<D> {
        if seen.digest == digest {
            self.counters.duplicates += 1;
            First::Duplicate(seen.decision)
        } else {
            self.counters.conflicts += 1;
            First::Conflict
        }
    }

    fn refusal(&self, at: Option<u32>, source: u64) -> Option<Refusal> {
        if at.is_some_and(|at| self.datagrams[at as usize].held.len >= self.config.per_datagram) {
            Some(Refusal::DatagramFull)
        } else if self.sources.frames(source) as usize >= self.config.per_source {
            Some(Refusal::SourceFull)
        } else {
            self.buffer.is_full().then_some(Refusal::BufferFull)
        }
    }

    fn refuse(&mut self, refusal: Refusal) -> Refusal {
        let counter = match refusal {
            Refusal::DatagramFull => &mut self.counters.refused_datagram,
            Refusal::SourceFull => &mut self.counters.refused_source,
            Refusal::BufferFull => &mut self.counters.refused_buffer,
        };
        *counter += 1;
        refusal
    }

    /// The known datagram that was recorded first gives way.
    fn make_room(&mut self, now: u64) {
        let Some(oldest) = self.known.oldest() else { return };
        if self.datagram(oldest).deadline <= now {
            self.expire_one(oldest);
        } else {
            self.counters.evicted += 1;
            self.remove(oldest);
        }
    }

    fn expire_one(&mut self, at: u32) {
        match self.datagram(at).first {
            Some(_) => self.counters.expired_known += 1,
            None => self.counters.expired_waiting += 1,
        }
        self.remove(at);
    }

    fn remove(&mut self, at: u32) {
        let Datagram { hash, first, held, .. } = *self.datagram(at);
        self.chains.give_back(hash, at);
        self.seen.remove(at);
        if first.is_some() {
            self.known.remove(at);
        }
        self.buffer.queue(held, Fate::Expired);
    }
}
