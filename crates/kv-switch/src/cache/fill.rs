//! Fetches: a server is asked for a key, and what it answers becomes a copy, or does not.
//!
//! In: keys that are wanted; answers. Out: what to ask, and [`Filled`].
//! Not here: when a key is wanted (`cache`), where copies lie (`shard`).
//! Invariant: what is kept was asked for while the key's epoch was what it is now, and is of the key that was asked for.

use super::shard::{Block, Copy as CopyOf, MOST_BLOCK, Name, State};
use super::{Cache, Epoch, Lease, Read};
use crate::{Application, Fetch, FetchedContent, KeyHash, KeyRoom, MAX_KEY_BYTES, NoAnswer, OwnId};

/// What a server has sent to a fetch.
#[derive(Clone, Copy, Debug)]
pub struct FetchAnswer<'a> {
    /// The fetch's number.
    pub number: u32,
    /// The id that it was asked under.
    pub request: u16,
    /// The datagram's.
    pub payload: &'a [u8],
}

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// There is a new copy.
    Kept,
    /// The copy that there is may be served on.
    Renewed,
    /// The value is another than the copy's: it is fetched next.
    Changed,
    /// A write came by meanwhile.
    Stale,
    /// Nothing that may be kept: no value, one that is too long or about to expire, or that another client is to make anew; or the
    /// answer came when its lease was over.
    Useless,
}

/// A fetch, wanted or under way.
#[derive(Clone, Debug)]
pub(super) struct Fill<T> {
    key: [u8; MAX_KEY_BYTES],
    key_len: u8,
    hash: u64,
    server: u32,
    lease: Lease,
    fills_per_server: u16,
    generation: u64,
    context: T,
    /// The version of the copy that is renewed; `None`: a value is fetched.
    known: Option<u64>,
    /// The server is to count the key as used.
    touches: bool,
    /// When it last did.
    touched: u64,
    nonce: u64,
    epoch: Epoch,
    sent: u64,
}

impl<T: Copy> Fill<T> {
    /// For a read; `copy`: what there is of its key. That it is asked for is noted there.
    pub(super) fn of(now: u64, read: &Read<'_, T>, epoch: Epoch, copy: Option<&mut CopyOf>) -> Self {
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
            // Version 0 is that of a server that counts none.
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
            context: read.context,
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

    fn name(&self) -> Name<'_> {
        Name { hash: self.hash, server: self.server, key: self.key() }
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
            context: self.context,
        }
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Fills<T> {
    fills: Box<[Option<Fill<T>>]>,
    free: Vec<u32>,
    wanted: Vec<u32>,
    nonces: KeyHash,
    made: u64,
}

impl<T: Copy> Fills<T> {
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

    /// Whether a key can be asked for: none is under way for it, and not too many for its server.
    ///
    /// # Cost
    /// A look at each fetch.
    pub(super) fn has_room(&self, read: &Read<'_, T>) -> bool {
        let all = || self.fills.iter().flatten().filter(|fill| fill.server == read.server);
        !self.free.is_empty()
            && all().count() < usize::from(read.fills_per_server)
            && !all().any(|fill| fill.hash == read.hash && fill.key() == read.key)
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

impl<T: Copy> Cache<T> {
    /// Whether [`Self::ask`] has something.
    #[inline]
    #[must_use]
    pub fn has_wanted(&self) -> bool {
        !self.fills.wanted.is_empty()
    }

    /// The number of a fetch that is to leave now: to be called until there is none.
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
            self.give_up(number); // a write came by since
        }
        None
    }

    /// The server that a fetch is for.
    #[must_use]
    pub fn server(&self, number: u32) -> Option<u32> {
        self.fills.get(number).map(|fill| fill.server)
    }

    /// What the caller keeps of it.
    #[must_use]
    pub fn context(&self, number: u32) -> Option<&T> {
        self.fills.get(number).map(|fill| &fill.context)
    }

    /// Writes a fetch's payload to `out`, under the id that its answer comes with; its length.
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

    /// Takes what a server has sent to a fetch, which is over then.
    ///
    /// # Errors
    /// [`NoAnswer`]: it is none, and the fetch waits on.
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

    /// A fetch is over: there was no answer, or it could not be asked for.
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
        let kept = known.and_then(|number| self.shard.copy(number)).map(|copy| copy.state.cas);
        if version < kept && version.is_some() {
            // It has begun anew: whatever else there is of it is gone too.
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
        self.useless.add(now, fill.hash, fill.epoch);
        Filled::Useless
    }
}

impl<T: Copy> Fill<T> {
    /// Of a copy that comes of it.
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
            renewed_at: self.lease.renewed_at(self.sent, until),
            touched: if self.touches { self.sent } else { self.touched },
            reads: 0,
        }
    }
}

/// Fetches under way at once.
const MOST_FILLS: u32 = 128;
