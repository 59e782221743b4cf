//! Handles the fetches (upstream requests) of the cache and the answers to them.
//!
//! The cache decides when to fetch a key, and the module `shard` stores the cached values. A value
//! is stored only under the fetched key, and only if the epoch of the key has not changed since the
//! fetch was sent.

use super::shard::{Block, Copy as CopyOf, MOST_BLOCK, Name, State};
use super::{Cache, Epoch, Lease, Read};
use crate::{Application, Fetch, FetchedContent, KeyHash, KeyRoom, MAX_KEY_BYTES, NoAnswer, OwnId};

/// A datagram from a server that may answer a fetch.
#[derive(Clone, Copy, Debug)]
pub struct FetchAnswer<'a> {
    /// The index of the fetch.
    pub number: u32,
    /// The request id of the fetch.
    pub request: u16,
    /// The payload of the datagram.
    pub payload: &'a [u8],
}

/// The effect that the answer to a fetch had on the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// The value was stored in the cache.
    Kept,
    /// The lease of the cached value was renewed.
    Renewed,
    /// The server has a different version, so a fetch of the value was requested.
    Changed,
    /// The answer was discarded because the key was written during the fetch.
    Stale,
    /// The answer contains no value that can be stored. The value is missing, is too long, is about
    /// to expire, must be refilled by a client, or arrived after the end of the lease.
    Useless,
}

#[derive(Clone, Debug)]
pub(super) struct Fill<T> {
    key: [u8; MAX_KEY_BYTES],
    key_len: u8,
    hash: u64,
    server: u32,
    lease: Lease,
    fills_per_server: u16,
    generation: u64,
    asked: T,
    /// The version of the cached value whose lease is to be renewed, or `None` if the value itself
    /// is to be fetched.
    known: Option<u64>,
    /// `true` if the server should mark the key as recently used.
    touches: bool,
    /// The time when a fetch last marked the key as recently used on the server.
    touched: u64,
    nonce: u64,
    epoch: Epoch,
    sent: u64,
}

impl<T: Copy + PartialEq> Fill<T> {
    /// Creates a fetch for a read. The function also marks the cached value of the key, so that the
    /// key is not fetched twice at the same time.
    pub(super) fn of(now: u64, read: &Read<'_, T>, epoch: Epoch, copy: Option<&mut CopyOf<T>>) -> Self {
        let mut key = [0; MAX_KEY_BYTES];
        if let Some(room) = key.get_mut(..read.key.len()) {
            room.copy_from_slice(read.key);
        }
        let touched = copy.as_ref().map_or(0, |copy| copy.state.touched);
        let touches = copy.is_none() || now.saturating_sub(touched) >= super::SECOND;
        let known = copy.and_then(|copy| {
            copy.is_asked_for = true;
            copy.state.reads = 0;
            let State { cas, lease, generation, epoch: known, .. } = copy.state;
            let is_same = (known, generation) == (epoch, read.generation);
            // Servers without version support report version 0.
            (is_same && !touches && cas != 0 && lease.trusts_versions()).then_some(cas)
        });
        Self {
            key,
            key_len: u8::try_from(read.key.len()).unwrap_or(0),
            hash: read.hash,
            server: read.server,
            lease: read.lease,
            fills_per_server: read.fills_per_server,
            generation: read.generation,
            asked: read.asked,
            known,
            touches,
            touched,
            nonce: 0,
            epoch,
            sent: 0,
        }
    }

    fn key(&self) -> &[u8] {
        self.key.get(..usize::from(self.key_len)).unwrap_or_default()
    }

    fn name(&self) -> Name<'_, T> {
        Name { hash: self.hash, server: self.server, asked: self.asked, key: self.key() }
    }

    fn fetch(&self) -> Fetch<'_> {
        Fetch { key: self.key(), known: self.known, touches: self.touches }
    }

    fn read(&self) -> Read<'_, T> {
        Read {
            hash: self.hash,
            server: self.server,
            key: self.key(),
            lease: self.lease,
            fills_per_server: self.fills_per_server,
            generation: self.generation,
            asked: self.asked,
        }
    }
}

#[derive(Debug)]
pub(super) struct Fills<T> {
    fills: Box<[Option<Fill<T>>]>,
    free: Vec<u32>,
    wanted: Vec<u32>,
    nonces: KeyHash,
    made: u64,
}

impl<T: Copy + PartialEq> Fills<T> {
    pub(super) fn new(nonces: KeyHash) -> Self {
        let numbers = || (0..MOST_FILLS).rev();
        Self {
            fills: numbers().map(|_| None).collect(),
            free: numbers().collect(),
            wanted: Vec::with_capacity(numbers().len()),
            nonces,
            made: 0,
        }
    }

    /// Returns `true` if the fetch table has room for the key of this read. Each key can have one
    /// fetch per server address, and the number of fetches per server is limited.
    ///
    /// # Cost
    /// Scans all fetches in progress.
    pub(super) fn has_room(&self, read: &Read<'_, T>) -> bool {
        let all = || self.fills.iter().flatten().filter(|fill| fill.server == read.server);
        !self.free.is_empty()
            && all().count() < usize::from(read.fills_per_server)
            && !all().any(|fill| (fill.hash, fill.asked) == (read.hash, read.asked) && fill.key() == read.key)
    }

    pub(super) fn want(&mut self, mut fill: Fill<T>) {
        self.made = self.made.wrapping_add(1);
        fill.nonce = self.nonces.hash(&self.made.to_le_bytes());
        let Some(number) = self.free.pop() else { return };
        if let Some(place) = self.fills.get_mut(number as usize) {
            *place = Some(fill);
        }
        self.wanted.push(number);
    }

    fn get(&self, number: u32) -> Option<&Fill<T>> {
        self.fills.get(number as usize)?.as_ref()
    }

    fn end(&mut self, number: u32) -> Option<Fill<T>> {
        let fill = self.fills.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(fill)
    }
}

impl<T: Copy + PartialEq> Cache<T> {
    /// Returns `true` if a fetch is waiting to be sent ([`Self::ask`]).
    #[inline]
    #[must_use]
    pub fn has_wanted(&self) -> bool {
        !self.fills.wanted.is_empty()
    }

    /// Returns the index of the next fetch to send. Call this method until it returns `None`.
    pub fn ask(&mut self, now: u64) -> Option<u32> {
        while let Some(number) = self.fills.wanted.pop() {
            let Some(fill) = self.fills.fills.get_mut(number as usize).and_then(Option::as_mut) else {
                continue;
            };
            fill.epoch = self.epochs.of(fill.hash, fill.server);
            fill.sent = now;
            if fill.epoch.is_settled(now) {
                return Some(number);
            }
            self.give_up(number); // the key was written after this fetch was requested
        }
        None
    }

    /// Returns the caller's identifier for the server to which a fetch is sent.
    #[must_use]
    pub fn server(&self, number: u32) -> Option<u32> {
        self.fills.get(number).map(|fill| fill.server)
    }

    /// Returns the address to which a fetch is sent.
    #[must_use]
    pub fn asked(&self, number: u32) -> Option<&T> {
        self.fills.get(number).map(|fill| &fill.asked)
    }

    /// Writes the payload of a fetch to `out` and returns its length in bytes. `request` is the
    /// request id in the frame.
    pub fn write_fetch(
        &self,
        application: &dyn Application,
        number: u32,
        request: u16,
        out: &mut [u8],
    ) -> Option<usize> {
        let fill = self.fills.get(number)?;
        application.write_fetch(&fill.fetch(), OwnId { request, nonce: fill.nonce }, out)
    }

    /// Applies the answer of a server to a fetch and ends the fetch.
    ///
    /// # Errors
    /// Returns a [`NoAnswer`] if the datagram does not answer the fetch. The fetch then stays in
    /// progress.
    pub fn answer(
        &mut self,
        now: u64,
        application: &dyn Application,
        answer: &FetchAnswer<'_>,
    ) -> Result<Filled, NoAnswer> {
        let &FetchAnswer { number, request, payload } = answer;
        let fill = self.fills.get(number).ok_or(NoAnswer::NeverAsked)?;
        let (own, mut room) = (OwnId { request, nonce: fill.nonce }, KeyRoom::default());
        let fetched = application.read_fetched(&fill.fetch(), own, payload, &mut room)?;
        if fetched.key != fill.key() {
            return Err(NoAnswer::OtherKey);
        }
        let fill = self.end(number).ok_or(NoAnswer::NeverAsked)?;
        Ok(self.fill(now, &fill, application, fetched.content, payload))
    }

    /// Ends a fetch that was not answered or could not be sent.
    pub fn give_up(&mut self, number: u32) {
        self.end(number);
    }

    fn end(&mut self, number: u32) -> Option<Fill<T>> {
        let fill = self.fills.end(number)?;
        let copy = self.shard.find(&fill.name()).and_then(|number| self.shard.copy_mut(number));
        if let Some(copy) = copy {
            copy.is_asked_for = false;
        }
        Some(fill)
    }

    fn fill(
        &mut self,
        now: u64,
        fill: &Fill<T>,
        application: &dyn Application,
        content: FetchedContent,
        payload: &[u8],
    ) -> Filled {
        let version = match content {
            FetchedContent::Value { value, .. } => Some(value.cas),
            FetchedContent::Version { cas, .. } => Some(cas),
            FetchedContent::Nothing => None,
        };
        let known = self.shard.find(&fill.name());
        let state = known.and_then(|number| self.shard.copy(number)).map(|copy| copy.state);
        let kept = state.map(|state| state.cas);
        let is_unwritten = state.is_some_and(|state| fill.epoch.is_unwritten_since(&state.epoch));
        if version < kept && version.is_some() && is_unwritten {
            // Versions only increase, so a lower version of a key that no client has written means
            // that the server was restarted. All values on this server may have changed.
            self.epochs.server_changed(now, fill.server);
        }
        if self.epochs.of(fill.hash, fill.server) != fill.epoch {
            self.counts.stale_avoided += 1;
            return Filled::Stale;
        }
        match content {
            FetchedContent::Value { value, ttl, is_base64 } => {
                let stored = value.within(payload);
                let state = State { flags: stored.flags, cas: stored.cas, is_base64, ..fill.state(ttl) };
                let mut room = [0; MOST_BLOCK];
                let block = Block::of(fill.key(), &stored, application, self.sum, &mut room);
                self.keep(now, fill, block, state)
            }
            FetchedContent::Version { cas, ttl } if version == kept && fill.known == Some(cas) => {
                self.extend(now, fill, ttl)
            }
            FetchedContent::Version { .. } => {
                known.into_iter().for_each(|number| self.shard.remove(number));
                self.want(now, &fill.read(), true);
                Filled::Changed
            }
            FetchedContent::Nothing => self.forget(now, fill),
        }
    }

    fn keep(&mut self, now: u64, fill: &Fill<T>, block: Option<Block<'_>>, state: State) -> Filled {
        let block = block.filter(|_| state.until > now);
        match block.and_then(|block| self.shard.keep(now, &fill.name(), &block, state)) {
            None => self.forget(now, fill),
            Some(_) => {
                self.counts.fills += 1;
                Filled::Kept
            }
        }
    }

    fn extend(&mut self, now: u64, fill: &Fill<T>, ttl: Option<u32>) -> Filled {
        let next = fill.state(ttl);
        let copy = self.shard.find(&fill.name()).and_then(|number| self.shard.copy_mut(number));
        let Some(copy) = copy.filter(|_| next.until > now) else { return self.forget(now, fill) };
        let State { flags, cas, is_base64, touched, .. } = copy.state;
        copy.state = State { flags, cas, is_base64, touched, reads: copy.state.reads, ..next };
        self.counts.renewals += 1;
        Filled::Renewed
    }

    fn forget(&mut self, now: u64, fill: &Fill<T>) -> Filled {
        if let Some(number) = self.shard.find(&fill.name()) {
            self.shard.remove(number);
        }
        self.useless.add(now, &fill.name(), fill.epoch);
        Filled::Useless
    }
}

impl<T: Copy + PartialEq> Fill<T> {
    /// Returns the metadata of a cached value that results from this fetch.
    fn state(&self, ttl: Option<u32>) -> State {
        let until = self.lease.until(self.sent, ttl).unwrap_or(0);
        State {
            flags: 0,
            cas: 0,
            ttl,
            is_base64: false,
            lease: self.lease,
            epoch: self.epoch,
            generation: self.generation,
            until,
            touched: if self.touches { self.sent } else { self.touched },
            reads: 0,
        }
    }
}

/// The maximum number of fetches in progress.
const MOST_FILLS: u32 = 128;
