//! Requests that every server of a key is to carry out, under way: a table of fixed size for one packet thread. Its exchanges are in
//! the [`GatherTable`] that has all of the thread's.
//!
//! In: a client's request and the servers of its key; what they answer; whose time is over. Out: what each is asked; once, the
//! client's reply, or that it has none.
//! Not here: addresses and frames (the caller keeps `T` of each request), which servers have a key, who sent an answer.
//! Invariants: a request begins whole or not at all, with an exchange for each server. The reply says that it is done only once as many
//! servers as wanted have said so. It is over when each server has answered or had its time, and then nothing is left of it.

use crate::{
    Application, Ask, ExchangeId, GatherTable, KeyHash, NotTaken, Outcome, OwnId, Request, ShortLife, Target,
};

/// Servers of one key, at most.
pub const MAX_REPLICAS: usize = 4;

/// How many servers have to carry a write out before its client has the reply that it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// All that were asked.
    All,
    /// More than half of them.
    Majority,
    /// One.
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

/// What is asked of one server: the number of the request here, and of the server among its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyId {
    /// The request.
    pub write: u32,
    /// The server.
    pub part: u8,
}

/// A server that a request is for.
#[derive(Clone, Copy, Debug)]
pub struct Replica {
    /// It.
    pub target: Target,
    /// It stands in for another: what it stores lives no longer than that.
    pub life: Option<ShortLife>,
}

/// A client's request, to begin.
#[derive(Debug)]
pub struct NewWrite<'a, T> {
    /// It.
    pub request: Request<'a>,
    /// The servers that it is for, the most important first.
    pub replicas: &'a [Replica],
    /// How many of them have to carry it out.
    pub ack: Ack,
    /// How long each may take: an index into [`GatherConfig::timeouts`](crate::GatherConfig::timeouts).
    pub timeout: usize,
    /// For the caller.
    pub context: T,
}

/// Where exchanges begin and end, and when.
#[derive(Debug)]
pub struct Asker<'a, G, X> {
    /// The thread's exchanges.
    pub table: &'a mut GatherTable<G, X>,
    /// Nanoseconds.
    pub now: u64,
}

/// Why a request was not begun. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotWritten {
    /// What it does depends on what is stored, or it is of a protocol that knows no such requests.
    Unsupported,
    /// Nobody has its key.
    NoServer,
    /// One datagram to a server does not hold it.
    TooLong,
    /// As many are under way as there is room for.
    Full,
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// No reply is due to its client now.
    Waiting,
    /// Its client has this reply now, unless it waits for none; the caller calls [`Writes::answered`] when it is sent.
    Decided(Outcome),
    /// Its client never has a reply.
    Lost,
}

/// What an answer was, or that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// What has become of the request by it.
    pub written: Written,
    /// It is the first that says another thing than one before; silence says another than any answer.
    pub differs: bool,
}

/// The table.
#[derive(Debug)]
pub struct Writes<T> {
    /// Those that were ever used: what is never used is never touched.
    entries: Vec<Option<Entry<T>>>,
    /// Numbers of those that are free.
    free: Vec<u32>,
    at_most: usize,
    /// [`REQUEST_BYTES`] for each entry.
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
    context: T,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    server: u32,
    life: Option<ShortLife>,
    nonce: u64,
    /// `None`: it has its answer, or none will come.
    exchange: Option<ExchangeId>,
}

/// What servers have said, and what follows.
#[derive(Clone, Copy, Debug)]
struct Acks {
    said: [Said; MAX_REPLICAS],
    count: usize,
    wanted: usize,
    is_removal: bool,
    /// What was refused first.
    refusal: Option<Outcome>,
    differs: bool,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    This(Outcome),
    /// And never will.
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// This reply is due to the client.
    Due(Outcome),
    /// No reply is due any more.
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

    /// Its client's reply, once that is known.
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

    /// Of those that carried it out: a key that a server did not have could be missed there, unless it is gone from all now.
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
    /// An empty table of so many requests. `seed`: a secret that no other table has and no earlier one had.
    ///
    /// # Cost
    /// Takes all memory that it will ever have: 2 KB a request, of which the system gives most only when it is first used.
    #[must_use]
    pub fn new(requests: usize, [first, second]: [u64; 2]) -> Self {
        Self {
            entries: Vec::with_capacity(requests),
            free: Vec::with_capacity(requests),
            at_most: requests,
            requests: vec![0; requests * REQUEST_BYTES].into_boxed_slice(),
            nonces: KeyHash::sip(first, second),
            asked: 0,
        }
    }

    /// Begins a request, and gives its number. `exchange` makes what the table of exchanges keeps of each server's.
    ///
    /// # Errors
    /// [`NotWritten`].
    pub fn begin<G, X>(
        &mut self,
        asker: &mut Asker<'_, G, X>,
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
        let write = self.vacant().ok_or(NotWritten::Full)?;
        let parts = self.begin_exchanges(asker, &new, &|part| exchange(CopyId { write, part }))?;
        if self.free.pop().is_none() {
            self.entries.push(None); // within its capacity
        }
        if let Some(copy) = self.requests.get_mut(request_place(write, length)) {
            copy.copy_from_slice(request.payload);
        }
        let count = replicas.len().min(MAX_REPLICAS);
        let acks = Acks::new(count, ack.of(count), replicated.is_removal);
        let (ask, context) = (*request.ask, new.context);
        let entry = Entry { ask, length, parts, acks, wants_answer: replicated.wants_answer, context };
        if let Some(place) = self.entries.get_mut(write as usize) {
            *place = Some(entry);
        }
        Ok(write)
    }

    /// One for each server, or none at all.
    fn begin_exchanges<G, X>(
        &mut self,
        asker: &mut Asker<'_, G, X>,
        new: &NewWrite<'_, T>,
        exchange: &dyn Fn(u8) -> X,
    ) -> Result<[Part; MAX_REPLICAS], NotWritten> {
        let mut parts = [Part::NONE; MAX_REPLICAS];
        for ((number, part), replica) in (0..).zip(parts.iter_mut()).zip(new.replicas) {
            self.asked = self.asked.wrapping_add(1);
            let nonce = self.nonces.hash(&self.asked.to_le_bytes());
            let Ok(id) = asker.table.begin_other(asker.now, new.timeout, exchange(number)) else {
                for id in parts.iter().filter_map(|part| part.exchange) {
                    asker.table.end_other(asker.now, id);
                }
                return Err(NotWritten::Full);
            };
            let Replica { target, life } = *replica;
            *part = Part { server: target.server, life, nonce, exchange: Some(id) };
        }
        Ok(parts)
    }

    /// How many servers a request is for.
    #[must_use]
    pub fn parts(&self, write: u32) -> u8 {
        self.entry(write).and_then(|entry| u8::try_from(entry.acks.count).ok()).unwrap_or_default()
    }

    /// The server of a part.
    #[must_use]
    pub fn server(&self, copy: CopyId) -> Option<u32> {
        Some(self.part(copy)?.1.server)
    }

    /// What the caller keeps of a request.
    #[must_use]
    pub fn context(&self, write: u32) -> Option<&T> {
        self.entry(write).map(|entry| &entry.context)
    }

    /// Whether its client waits for an answer.
    #[must_use]
    pub fn wants_answer(&self, write: u32) -> bool {
        self.entry(write).is_some_and(|entry| entry.wants_answer)
    }

    /// Its client's reply, until [`Self::answered`].
    #[must_use]
    pub fn outcome(&self, write: u32) -> Option<Outcome> {
        match self.entry(write)?.acks.end {
            End::Due(outcome) => Some(outcome),
            End::Open | End::Closed => None,
        }
    }

    /// Writes what a server is asked to `out`; the port that it leaves from, and its length.
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

    /// Writes its client's reply to `out`, and returns its length.
    pub fn write_outcome(&self, application: &dyn Application, write: u32, out: &mut [u8]) -> Option<usize> {
        let entry = self.entry(write)?;
        let request = Request { payload: self.payload(write, entry), ask: &entry.ask };
        application.write_outcome(&request, self.outcome(write)?, out)
    }

    /// Takes what a server has sent, which ends its exchange.
    ///
    /// # Errors
    /// [`NotTaken`]. Nothing has changed.
    pub fn answer<G, X>(
        &mut self,
        asker: &mut Asker<'_, G, X>,
        application: &dyn Application,
        copy: CopyId,
        payload: &[u8],
    ) -> Result<Answered, NotTaken> {
        let (entry, part) = self.part(copy).ok_or(NotTaken::Late)?;
        let id = part.exchange.ok_or(NotTaken::Late)?;
        let own = OwnId { request: id.request, nonce: part.nonce };
        let request = Request { payload: self.payload(copy.write, entry), ask: &entry.ask };
        let outcome = application.read_outcome(&request, own, payload).map_err(NotTaken::NoAnswer)?;
        asker.table.end_other(asker.now, id);
        Ok(self.take(copy, Said::This(outcome)))
    }

    /// The time of a server is over, and its exchange has ended.
    pub fn expire(&mut self, copy: CopyId) -> Answered {
        self.take(copy, Said::Never)
    }

    /// A server cannot be asked: what has become of the request, as if its time were over.
    pub fn give_up<G, X>(&mut self, asker: &mut Asker<'_, G, X>, copy: CopyId) -> Answered {
        if let Some(id) = self.part(copy).and_then(|(_, part)| part.exchange) {
            asker.table.end_other(asker.now, id);
        }
        self.expire(copy)
    }

    /// Its client's reply was sent, or cannot be.
    pub fn answered(&mut self, write: u32) {
        if let Some(entry) = self.entries.get_mut(write as usize).and_then(Option::as_mut) {
            entry.acks.end = End::Closed;
        }
        self.forget_if_over(write);
    }

    /// Number of requests under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether none is under way.
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

    /// No server is waited for, and no reply is left to be sent.
    fn forget_if_over(&mut self, write: u32) {
        let Some(place) = self.entries.get_mut(write as usize) else { return };
        let is_over = place.as_ref().is_some_and(|entry| {
            entry.acks.end == End::Closed && entry.parts.iter().all(|part| part.exchange.is_none())
        });
        if is_over {
            *place = None;
            self.free.push(write);
        }
    }

    /// The number that the next request has.
    fn vacant(&self) -> Option<u32> {
        let fresh = || u32::try_from(self.entries.len()).ok().filter(|_| self.entries.len() < self.at_most);
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

/// Of a client's longest request: what one Ethernet frame carries, and what is written around it.
const REQUEST_BYTES: usize = 1_536;
/// Bytes that a request for one server has more than the client's, at most: names of flags, a time and the nonce.
const MOST_ADDED: usize = 40;

#[cfg(test)]
mod tests;
