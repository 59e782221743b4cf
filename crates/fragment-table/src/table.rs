//! The fragment table, which records the decisions for first fragments and assigns hold slots to
//! later fragments. One thread owns a table, so there is no lock.
//!
//! A *known* datagram has a decision. A *waiting* datagram has no decision yet, because its first
//! fragment is missing. Each kind has a separate limit, and a datagram of one kind never displaces
//! a datagram of the other kind. If the limit of known datagrams is reached, the datagram that was
//! recorded first is evicted. This datagram is most likely complete, because the fragments of a
//! datagram arrive within milliseconds.
//!
//! Each waiting datagram has at least one held frame. A frame is refused if its datagram, its
//! source or the whole table has reached its limit of held frames. Waiting datagrams are never
//! evicted. A flood of later fragments cannot affect known datagrams.

use crate::buffer::{Buffer, Fate, HoldSlot, List};
use crate::config::{Config, ConfigError};
use crate::counters::Counters;
use crate::datagram::{Arrival, Datagram, Key, Millis, Seen};
use crate::insertion_order::InsertionOrder;
use crate::sources::Sources;
use crate::{Chains, filled};

/// The result of passing a first fragment to the table. The caller forwards the fragment unless the
/// result is a conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a conflicting first fragment must be dropped"]
pub enum First<D> {
    /// The first fragment of the datagram arrived, and its decision is recorded. The held
    /// fragments are queued for [`FragmentTable::release`].
    Recorded,
    /// The fragment is a duplicate of the first fragment, for which this decision is recorded.
    Duplicate(D),
    /// The fragment differs from the recorded first fragment of an incomplete datagram, and must be
    /// dropped. The recorded decision stays in force.
    ///
    /// If the recorded datagram is complete, a different first fragment is not a conflict but
    /// begins the next datagram with the same key. Keys repeat because IPv4 identifications are
    /// only 16 bits wide, so they are reused within the lifetime of a datagram.
    Conflict,
}

/// The result of passing a later fragment to the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the caller must keep the frame if the table holds the fragment"]
pub enum Later<D> {
    /// The decision that was recorded for the first fragment.
    Known(D),
    /// The first fragment has not arrived. The caller must keep the frame under the index of this
    /// hold slot until [`FragmentTable::release`] returns it.
    Hold(HoldSlot),
    /// The first fragment has not arrived and the frame cannot be held. The caller must drop the
    /// frame.
    Refused(Refusal),
}

/// The reason why a frame cannot be held. If several reasons apply, the variant that is declared
/// first is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The datagram already holds [`Config::per_datagram`] frames.
    DatagramFull,
    /// The source already has [`Config::per_source`] hold slots.
    SourceFull,
    /// All [`Config::buffered`] hold slots are taken.
    BufferFull,
}

/// A released hold slot, and what the caller must do with its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the frame in this hold slot must be forwarded or dropped"]
pub struct Release<D> {
    /// The released hold slot. The caller must take the frame out of this slot before the next call
    /// to [`FragmentTable::later`], which may assign the slot to another frame.
    pub slot: HoldSlot,
    /// The action that the caller must perform for the frame.
    pub fate: Fate<D>,
}

/// A fixed-size table of fragmented datagrams for one packet thread. `D` is the type of the
/// caller's decision.
///
/// Every `hash` parameter is a keyed 64-bit hash of the key (SipHash with a secret key). Identical
/// keys must have the same hash. The table compares complete keys, so it does not confuse datagrams
/// with the same hash.
#[derive(Debug)]
pub struct FragmentTable<D> {
    config: Config,
    lifetime: u64, // In milliseconds.
    chains: Chains,
    datagrams: Box<[Datagram<D>]>, // Known and waiting datagrams.
    // All datagrams, ordered by the arrival of their first packet. The datagrams expire in the same
    // order.
    seen: InsertionOrder,
    known: InsertionOrder, // Known datagrams, ordered by the arrival of their first fragment.
    buffer: Buffer<D>,
    sources: Sources,
    latest: u64, // The latest time that was passed to the table, in milliseconds.
    counters: Counters,
}

impl<D: Copy> FragmentTable<D> {
    /// Builds a table. Allocates all memory ([`Config::memory_bytes`]) and writes to it.
    ///
    /// # Errors
    /// Returns [`ConfigError`] if a value is out of range or the allocation fails.
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

    /// Records the decision for a first fragment. If a decision is already recorded for the
    /// datagram, returns the recorded decision.
    ///
    /// `digest` is a 64-bit hash of the bytes that must be identical in a duplicate. A fragment
    /// with the same digest is treated as a duplicate. The table always has room, because it evicts
    /// a known datagram if necessary.
    ///
    /// # Cost
    /// Constant, plus one step per held frame of the datagram (at most [`Config::per_datagram`]).
    pub fn first(&mut self, fragment: &Arrival<'_>, digest: u64, decision: D, now: Millis) -> First<D> {
        let Arrival { key, hash, extent } = *fragment;
        let now = self.advance(now);
        let mut at = self.live(key, hash, now);
        if let Some((place, seen)) = at.and_then(|at| Some((at, self.datagram(at).first?))) {
            if seen.digest == digest || !self.datagram(place).arrived.is_whole() {
                return self.again(seen, digest);
            }
            self.counters.replaced += 1;
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

    /// Returns the decision for a later fragment, or assigns a hold slot to it.
    ///
    /// `source` is a keyed 64-bit hash that identifies the sender. For IPv4, hash the whole source
    /// address. For IPv6, hash only its first 64 bits, because one host can use all addresses of a
    /// /64 prefix.
    ///
    /// # Cost
    /// Constant. If the datagram has expired, the same as for [`FragmentTable::first`].
    pub fn later(&mut self, fragment: &Arrival<'_>, source: u64, now: Millis) -> Later<D> {
        let Arrival { key, hash, extent } = *fragment;
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

    /// Expires at most `budget` datagrams whose lifetime has passed, and returns the number of
    /// expired datagrams. The held frames of expired datagrams are queued for
    /// [`FragmentTable::release`].
    ///
    /// Lookups never return expired datagrams, so this call affects only how long frames are held.
    ///
    /// # Cost
    /// Constant for each datagram, plus one step per held frame.
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

    /// Removes the oldest frame from the release queue and frees its hold slot.
    ///
    /// Call this function between batches, because a batch may contain a frame whose hold slot is
    /// already queued for release. [`FragmentTable::queued`] returns the number of queued frames.
    pub fn release(&mut self) -> Option<Release<D>> {
        let (slot, source, fate) = self.buffer.pop()?;
        self.sources.leave(source);
        match fate {
            Fate::Forward(_) => self.counters.released += 1,
            Fate::Expired => self.counters.expired_frames += 1,
        }
        Some(Release { slot, fate })
    }

    /// Returns the number of datagrams with a decision. The number includes expired datagrams that
    /// are not removed yet, and is at most [`Config::datagrams`].
    #[must_use]
    pub fn known(&self) -> usize {
        self.known.len
    }

    /// Returns the number of datagrams that wait for their first fragment. The number includes
    /// expired datagrams that are not removed yet, and is at most [`FragmentTable::held`].
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.seen.len - self.known.len
    }

    /// Returns the number of hold slots in use, including [`FragmentTable::queued`]. The number is
    /// at most [`Config::buffered`].
    #[must_use]
    pub fn held(&self) -> usize {
        self.buffer.taken
    }

    /// Returns the number of frames in the release queue.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.buffer.queue.len
    }

    /// Returns the configuration of the table.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the counters since the table was built.
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

    /// Returns the index of the datagram with this key. If the datagram has expired, it is removed.
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

    /// Takes an unused index for a new datagram. An unused index is always available, because known
    /// and waiting datagrams have separate limits.
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

    /// Evicts the known datagram that was recorded first.
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
