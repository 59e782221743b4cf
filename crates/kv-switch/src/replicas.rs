//! Tracks the replicated writes in progress on one packet thread in a fixed-size table. Each write
//! is sent to all servers of its key.
//!
//! [`Writes`] writes the upstream request for each server, collects the outcomes, and decides which
//! reply the client receives. The exchanges are stored in the [`GatherTable`] of the thread. The
//! caller chooses the servers and checks the source of each answer.
//!
//! A write begins only if an exchange for each server is available. The client receives a success
//! reply only after the required number of servers have reported success. A write is removed when
//! every server has answered or timed out and no reply has to be sent.

use crate::{
    Application, Ask, ExchangeId, GatherTable, KeyHash, NotTaken, Outcome, OwnId, Request, Shares, ShortLife,
    Target,
};

/// The maximum number of servers per key.
pub const MAX_REPLICAS: usize = 4;

/// The number of servers that must carry out a write before the client receives a success reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// All servers of the key must carry out the write.
    All,
    /// More than half of the servers must carry out the write.
    Majority,
    /// One server must carry out the write.
    First,
}

impl Ack {
    const fn of(self, servers: usize) -> usize {
        match self {
            Self::All => servers,
            Self::Majority => servers / 2 + 1,
            Self::First => 1,
        }
    }
}

/// Identifies the upstream request of a write to one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyId {
    /// The index of the write.
    pub write: u32,
    /// The index of the server in [`NewWrite::replicas`].
    pub part: u8,
}

/// A server to which a write is sent.
#[derive(Clone, Copy, Debug)]
pub struct Replica {
    /// The server, and the maximum payload of a datagram to it.
    pub target: Target,
    /// The maximum time to live of the stored value. The limit is set if the server replaces an
    /// unavailable server.
    pub life: Option<ShortLife>,
}

/// The arguments of [`Writes::begin`].
#[derive(Debug)]
pub struct NewWrite<'a, T> {
    /// The client request.
    pub request: Request<'a>,
    /// The servers to which the write is sent, in order of preference.
    pub replicas: &'a [Replica],
    /// The number of servers that must carry out the write before the client receives a success
    /// reply.
    pub ack: Ack,
    /// The timeout for each server, as an index into
    /// [`GatherConfig::timeouts`](crate::GatherConfig::timeouts).
    pub timeout: usize,
    /// The number that identifies the pool. The table limits how many entries each pool may use.
    pub pool: u32,
    /// The caller's data for the write.
    pub context: T,
}

/// The table in which exchanges begin and end, and the current time.
#[derive(Debug)]
pub struct Requester<'a, G, X> {
    /// The table with the exchanges of the packet thread.
    pub table: &'a mut GatherTable<G, X>,
    /// The current time in nanoseconds.
    pub now: u64,
}

/// The reason why a write could not begin. The tables are then unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotWritten {
    /// The result of the request depends on stored data, or the protocol does not support
    /// replicated writes.
    Unsupported,
    /// The key has no server.
    NoServer,
    /// The request does not fit into one datagram to a server.
    TooLong,
    /// The table has no room for another write.
    Full,
}

/// The state of a write after an answer or a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// No reply has to be sent now.
    Waiting,
    /// The outcome is decided. The caller sends the reply if the client expects one, and then calls
    /// [`Writes::answered`].
    Decided(Outcome),
    /// The client never receives a reply, because too few servers answered.
    Lost,
}

/// The effect of an answer or a timeout on a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The state of the write.
    pub written: Written,
    /// `true` if this answer is the first one that differs from the earlier answers to the write. A
    /// timeout differs from every answer.
    pub differs: bool,
}

/// A table of replicated writes in progress. `T` is the type of the caller's data for a write.
#[derive(Debug)]
pub struct Writes<T> {
    /// Entries are appended on first use, so unused entries occupy no physical memory.
    entries: Vec<Option<Entry<T>>>,
    /// The indices of free entries.
    free: Vec<u32>,
    writes_of: Shares,
    /// One region of [`REQUEST_BYTES`] for each entry.
    requests: Box<[u8]>,
    nonces: KeyHash,
    asked: u64,
}

#[derive(Debug)]
struct Entry<T> {
    ask: Ask,
    length: usize,
    parts: [Part; MAX_REPLICAS],
    acks: Acks,
    wants_answer: bool,
    pool: u32,
    context: T,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    server: u32,
    life: Option<ShortLife>,
    nonce: u64,
    /// The exchange with the server, or `None` if no further answer is expected.
    exchange: Option<ExchangeId>,
}

/// The outcomes reported by the servers, and the resulting reply to the client.
#[derive(Clone, Copy, Debug)]
struct Acks {
    said: [Said; MAX_REPLICAS],
    count: usize,
    wanted: usize,
    is_removal: bool,
    /// The first refusal of a server.
    refusal: Option<Outcome>,
    differs: bool,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    This(Outcome),
    /// The server has timed out or is unreachable.
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// This reply must be sent to the client.
    Due(Outcome),
    /// The reply was sent, or no reply will be sent.
    Closed,
}

impl Acks {
    const fn new(count: usize, wanted: usize, is_removal: bool) -> Self {
        let said = [Said::Nothing; MAX_REPLICAS];
        Self { said, count, wanted, is_removal, refusal: None, differs: false, end: End::Open }
    }

    fn take(&mut self, part: u8, said: Said) -> Answered {
        if let Some(place) = self.said.get_mut(usize::from(part)) {
            *place = said;
        }
        if let Said::This(outcome @ Outcome::Refused(_)) = said {
            self.refusal.get_or_insert(outcome);
        }
        let heard = || self.each().filter(|said| *said != Said::Nothing);
        let differs = !self.differs && heard().any(|said| said != heard().next().unwrap_or(said));
        self.differs |= differs;
        Answered { written: self.conclude(), differs }
    }

    /// Decides the reply to the client as soon as enough outcomes are known.
    fn conclude(&mut self) -> Written {
        if self.end != End::Open {
            return Written::Waiting;
        }
        let waiting = self.each().filter(|said| *said == Said::Nothing).count();
        let carried_out = self.outcomes().filter(|outcome| !matches!(outcome, Outcome::Refused(_))).count();
        let reply = if carried_out >= self.wanted {
            Some(self.honest())
        } else if carried_out + waiting >= self.wanted {
            return Written::Waiting;
        } else {
            self.refusal
        };
        self.end = reply.map_or(End::Closed, End::Due);
        reply.map_or(Written::Lost, Written::Decided)
    }

    /// Combines the outcomes of the servers that carried out the write. A deletion reports that the
    /// key was missing if no server had the key. Other writes report a missing key if at least one
    /// server did not have the key.
    fn honest(&self) -> Outcome {
        let has = |wanted| self.outcomes().any(|outcome| outcome == wanted);
        let is_missing = if self.is_removal { !has(Outcome::Done) } else { has(Outcome::NotFound) };
        if is_missing { Outcome::NotFound } else { Outcome::Done }
    }

    fn each(&self) -> impl Iterator<Item = Said> {
        self.said.iter().take(self.count).copied()
    }

    fn outcomes(&self) -> impl Iterator<Item = Outcome> {
        self.each().filter_map(|said| match said {
            Said::This(outcome) => Some(outcome),
            Said::Nothing | Said::Never => None,
        })
    }
}

impl<T> Writes<T> {
    /// Creates an empty table in which one pool can have at most `requests` writes in progress. All
    /// pools together can have one and a half times as many writes in progress. The second argument
    /// is a random secret for nonces. Use a new secret for each table and after each restart.
    ///
    /// # Cost
    /// Reserves 2 KB for each write. The kernel provides physical memory on first use.
    #[must_use]
    pub fn new(requests: usize, [first, second]: [u64; 2]) -> Self {
        let writes_of = Shares::new(requests);
        let requests = writes_of.total();
        Self {
            entries: Vec::with_capacity(requests),
            free: Vec::with_capacity(requests),
            writes_of,
            requests: vec![0; requests * REQUEST_BYTES].into_boxed_slice(),
            nonces: KeyHash::sip(first, second),
            asked: 0,
        }
    }

    /// Begins a write and returns its index. `exchange` creates the data that the [`GatherTable`]
    /// stores with the exchange of each server.
    ///
    /// # Errors
    /// Returns a [`NotWritten`] if the request cannot be replicated or does not fit into a
    /// datagram, if the key has no server, or if the table is full.
    pub fn begin<G, X>(
        &mut self,
        requester: &mut Requester<'_, G, X>,
        application: &dyn Application,
        new: NewWrite<'_, T>,
        exchange: impl Fn(CopyId) -> X,
    ) -> Result<u32, NotWritten> {
        let NewWrite { request, replicas, ack, .. } = new;
        let replicated = application.replicated(&request).ok_or(NotWritten::Unsupported)?;
        let length = request.payload.len();
        let room = replicas.iter().map(|replica| usize::from(replica.target.room)).min();
        let room = room.ok_or(NotWritten::NoServer)?;
        if length > REQUEST_BYTES || length + MOST_ADDED > room {
            return Err(NotWritten::TooLong);
        }
        let write = self.vacant().filter(|_| self.writes_of.take(new.pool, 1)).ok_or(NotWritten::Full)?;
        let parts = self
            .begin_exchanges(requester, &new, &|part| exchange(CopyId { write, part }))
            .inspect_err(|_| self.writes_of.give(new.pool, 1))?;
        if self.free.pop().is_none() {
            self.entries.push(None); // does not allocate, because the capacity is reserved
        }
        if let Some(copy) = self.requests.get_mut(request_place(write, length)) {
            copy.copy_from_slice(request.payload);
        }
        let count = replicas.len().min(MAX_REPLICAS);
        let acks = Acks::new(count, ack.of(count), replicated.is_removal);
        let (ask, pool, context) = (*request.ask, new.pool, new.context);
        let wants_answer = replicated.wants_answer;
        let entry = Entry { ask, length, parts, acks, wants_answer, pool, context };
        if let Some(place) = self.entries.get_mut(write as usize) {
            *place = Some(entry);
        }
        Ok(write)
    }

    /// Begins an exchange for each server. If one of the exchanges cannot begin, the function ends
    /// the other exchanges.
    fn begin_exchanges<G, X>(
        &mut self,
        requester: &mut Requester<'_, G, X>,
        new: &NewWrite<'_, T>,
        exchange: &dyn Fn(u8) -> X,
    ) -> Result<[Part; MAX_REPLICAS], NotWritten> {
        let mut parts = [Part::NONE; MAX_REPLICAS];
        for ((number, part), replica) in (0..).zip(parts.iter_mut()).zip(new.replicas) {
            self.asked = self.asked.wrapping_add(1);
            let nonce = self.nonces.hash(&self.asked.to_le_bytes());
            let Ok(id) = requester.table.begin_other(requester.now, new.timeout, exchange(number)) else {
                for id in parts.iter().filter_map(|part| part.exchange) {
                    requester.table.end_other(requester.now, id);
                }
                return Err(NotWritten::Full);
            };
            let Replica { target, life } = *replica;
            *part = Part { server: target.server, life, nonce, exchange: Some(id) };
        }
        Ok(parts)
    }

    /// Returns the maximum number of writes in progress, for all pools together.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.writes_of.total()
    }

    /// Returns the number of servers to which a write is sent.
    #[must_use]
    pub fn parts(&self, write: u32) -> u8 {
        self.entry(write).and_then(|entry| u8::try_from(entry.acks.count).ok()).unwrap_or_default()
    }

    /// Returns the server to which an upstream request is sent.
    #[must_use]
    pub fn server(&self, copy: CopyId) -> Option<u32> {
        Some(self.part(copy)?.1.server)
    }

    /// Returns the data that the caller stored with a write.
    #[must_use]
    pub fn context(&self, write: u32) -> Option<&T> {
        self.entry(write).map(|entry| &entry.context)
    }

    /// Returns `true` if the client expects a reply.
    #[must_use]
    pub fn wants_answer(&self, write: u32) -> bool {
        self.entry(write).is_some_and(|entry| entry.wants_answer)
    }

    /// Returns the outcome for the reply that must be sent to the client. Returns `None` after
    /// [`Self::answered`] was called.
    #[must_use]
    pub fn outcome(&self, write: u32) -> Option<Outcome> {
        match self.entry(write)?.acks.end {
            End::Due(outcome) => Some(outcome),
            End::Open | End::Closed => None,
        }
    }

    /// Writes the upstream request for one server to `out`. Returns the source port and the length
    /// in bytes.
    pub fn write_copy(
        &self,
        application: &dyn Application,
        copy: CopyId,
        out: &mut [u8],
    ) -> Option<(u16, usize)> {
        let (entry, part) = self.part(copy)?;
        let id = part.exchange?;
        let own = OwnId { request: id.request, nonce: part.nonce };
        let request = Request { payload: self.payload(copy.write, entry), ask: &entry.ask };
        let length = application.write_replica(&request, part.life, own, out)?;
        Some((id.port, length))
    }

    /// Writes the reply to the client to `out` and returns its length in bytes.
    pub fn write_outcome(&self, application: &dyn Application, write: u32, out: &mut [u8]) -> Option<usize> {
        let entry = self.entry(write)?;
        let request = Request { payload: self.payload(write, entry), ask: &entry.ask };
        application.write_outcome(&request, self.outcome(write)?, out)
    }

    /// Applies the answer of a server and ends its exchange.
    ///
    /// # Errors
    /// Returns a [`NotTaken`] if the datagram is not an expected answer. The write is then
    /// unchanged.
    pub fn answer<G, X>(
        &mut self,
        requester: &mut Requester<'_, G, X>,
        application: &dyn Application,
        copy: CopyId,
        payload: &[u8],
    ) -> Result<Answered, NotTaken> {
        let (entry, part) = self.part(copy).ok_or(NotTaken::Late)?;
        let id = part.exchange.ok_or(NotTaken::Late)?;
        let own = OwnId { request: id.request, nonce: part.nonce };
        let request = Request { payload: self.payload(copy.write, entry), ask: &entry.ask };
        let outcome = application.read_outcome(&request, own, payload).map_err(NotTaken::NoAnswer)?;
        requester.table.end_other(requester.now, id);
        Ok(self.take(copy, Said::This(outcome)))
    }

    /// Records that a server did not respond within the timeout.
    pub fn expire(&mut self, copy: CopyId) -> Answered {
        self.take(copy, Said::Never)
    }

    /// Treats an unreachable server like a server that has timed out. Returns the new state of the
    /// write.
    pub fn give_up<G, X>(&mut self, requester: &mut Requester<'_, G, X>, copy: CopyId) -> Answered {
        if let Some(id) = self.part(copy).and_then(|(_, part)| part.exchange) {
            requester.table.end_other(requester.now, id);
        }
        self.expire(copy)
    }

    /// Records that the reply to the client was sent or cannot be sent.
    pub fn answered(&mut self, write: u32) {
        if let Some(entry) = self.entries.get_mut(write as usize).and_then(Option::as_mut) {
            entry.acks.end = End::Closed;
        }
        self.forget_if_over(write);
    }

    /// Returns the number of writes in progress.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns `true` if no write is in progress.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn take(&mut self, copy: CopyId, said: Said) -> Answered {
        let nothing = Answered { written: Written::Waiting, differs: false };
        let entry = self.entries.get_mut(copy.write as usize).and_then(Option::as_mut);
        let Some(entry) = entry else { return nothing };
        let part = entry.parts.get_mut(usize::from(copy.part));
        if part.and_then(|part| part.exchange.take()).is_none() {
            return nothing;
        }
        let answered = entry.acks.take(copy.part, said);
        self.forget_if_over(copy.write);
        answered
    }

    /// Removes a write if every server has answered or timed out and no reply has to be sent.
    fn forget_if_over(&mut self, write: u32) {
        let Some(place) = self.entries.get_mut(write as usize) else { return };
        let is_over = place.as_ref().is_some_and(|entry| {
            entry.acks.end == End::Closed && entry.parts.iter().all(|part| part.exchange.is_none())
        });
        if let Some(entry) = place.take_if(|_| is_over) {
            self.free.push(write);
            self.writes_of.give(entry.pool, 1);
        }
    }

    /// Returns the index for the next write, or `None` if the table is full.
    fn vacant(&self) -> Option<u32> {
        let has_fresh = self.entries.len() < self.writes_of.total();
        let fresh = || u32::try_from(self.entries.len()).ok().filter(|_| has_fresh);
        self.free.last().copied().or_else(fresh)
    }

    fn entry(&self, write: u32) -> Option<&Entry<T>> {
        self.entries.get(write as usize)?.as_ref()
    }

    fn part(&self, copy: CopyId) -> Option<(&Entry<T>, &Part)> {
        let entry = self.entry(copy.write)?;
        Some((entry, entry.parts.get(usize::from(copy.part)).filter(|_| copy.part < self.parts(copy.write))?))
    }

    fn payload(&self, write: u32, entry: &Entry<T>) -> &[u8] {
        self.requests.get(request_place(write, entry.length)).unwrap_or_default()
    }
}

impl Part {
    const NONE: Self = Self { server: 0, life: None, nonce: 0, exchange: None };
}

fn request_place(write: u32, length: usize) -> std::ops::Range<usize> {
    let start = write as usize * REQUEST_BYTES;
    start..start + length
}

/// The maximum length of an upstream request, which is the payload of one Ethernet frame plus the
/// bytes that this machine adds.
const REQUEST_BYTES: usize = 1_536;
/// The maximum number of bytes by which an upstream request can be longer than the client's
/// request. The additional bytes are needed for flag letters, a time to live and the nonce.
const MOST_ADDED: usize = 40;

#[cfg(test)]
mod tests;
