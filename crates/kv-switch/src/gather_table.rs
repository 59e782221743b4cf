//! Stores the requests in progress whose keys are on several servers. Each packet thread has one
//! such table, which has a fixed size.
//!
//! [`GatherTable`] stores the requests, their [`Gather`] states, their exchanges and the received
//! answers. The table writes the upstream requests, processes the answers, and writes the reply to
//! the client. The caller chooses the server of each key and checks the source of each answer. The
//! caller can also begin exchanges of its own in the table.
//!
//! All memory is reserved when the table is created. A request begins only if an exchange for each
//! part and answer memory for each key are available. A request that has ended holds no exchange
//! and no answer memory.

use std::convert::Infallible;
use std::ops::{ControlFlow, RangeInclusive};

use crate::gather_parts::{Parts, Target};
use crate::{
    Application, Arrival, Ask, Content, Effect, ExchangeError, ExchangeId, Exchanges, Gather, KeyHash,
    KeyRoom, Late, MAX_KEYS, NoAnswer, OwnId, Progress, Request, Shares, Stored,
};

/// The parameters of a [`GatherTable`].
#[derive(Clone, Debug)]
pub struct GatherConfig<'a> {
    /// The source ports of upstream requests. No other table may use these ports.
    pub ports: RangeInclusive<u16>,
    /// The maximum number of client requests in progress for one pool. All pools together may have
    /// one and a half times as many requests in progress.
    pub requests: usize,
    /// The maximum number of exchanges that the caller begins itself.
    pub others: usize,
    /// The timeouts of upstream requests in nanoseconds. A request refers to its timeout by index.
    pub timeouts: &'a [u64],
    /// A random secret for nonces and the first exchange id. Use a new secret for each table and
    /// after each restart.
    pub seed: [u64; 2],
}

/// A table of gathered requests in progress. `T` is the type of the caller's data for a client
/// request, and `X` is the type of the caller's data for other exchanges.
#[derive(Debug)]
pub struct GatherTable<T, X = Infallible> {
    exchanges: Exchanges<Sent<X>>,
    /// Entries are appended on first use, so unused entries occupy no physical memory.
    entries: Vec<Option<Entry<T>>>,
    /// The indices of free entries.
    free: Vec<u32>,
    /// How many requests and keys of each pool are in the table.
    requests_of: Shares,
    keys_of: Shares,
    /// One region of [`REQUEST_BYTES`] for each entry.
    requests: Box<[u8]>,
    /// One region of [`ANSWER_BYTES`] for each answer index.
    answers: Box<[u8]>,
    free_answers: Vec<u32>,
    nonces: KeyHash,
    asked: u64,
}

/// The arguments of [`GatherTable::begin`].
#[derive(Debug)]
pub struct NewGather<'a, T> {
    /// The client request.
    pub request: Request<'a>,
    /// The timeout of the upstream requests, as an index into [`GatherConfig::timeouts`].
    pub timeout: usize,
    /// Determines the result for a key that has no server or whose server does not answer in time.
    pub late: Late,
    /// The number that identifies the pool. The table limits how many entries each pool may use.
    pub pool: u32,
    /// The caller's data for the request.
    pub context: T,
}

/// The reason why a request could not begin. The table is then unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBegun {
    /// The request cannot be split, because it has too many keys, is too long, or is of a kind that
    /// the protocol cannot split.
    Unaskable,
    /// A key has no server, and [`NewGather::late`] is [`Late::Fails`].
    NoServer,
    /// The table has no room for another request.
    Full,
}

/// The reason why a datagram was not accepted as an answer. The table is then unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// No exchange has this port and id. The answer is late, a duplicate, or unsolicited.
    Late,
    /// The protocol does not accept the datagram as an answer.
    NoAnswer(NoAnswer),
    /// No key of the part is waiting for this answer. The answer is a duplicate, or its key belongs
    /// to a different part.
    Unasked,
}

#[derive(Debug)]
enum Sent<X> {
    Part(SentPart),
    Other(X),
}

#[derive(Clone, Copy, Debug)]
struct SentPart {
    entry: u32,
    part: u8,
    nonce: u64,
}

/// The request to which an exchange in progress belongs.
#[derive(Debug)]
pub enum ExchangeFor<'a, X> {
    /// The exchange is an upstream request of the gathered request with this index.
    Part(u32),
    /// The exchange was begun by [`GatherTable::begin_other`] with this data.
    Other(&'a X),
}

/// An exchange that has timed out.
#[derive(Debug)]
pub enum Expired<X> {
    /// An upstream request has timed out. The index identifies its client request.
    Gather(u32, Progress),
    /// An exchange that [`GatherTable::begin_other`] began has timed out and has ended.
    Other(X),
}

impl<X> Sent<X> {
    const fn part(&self) -> Option<SentPart> {
        match self {
            Self::Part(part) => Some(*part),
            Self::Other(_) => None,
        }
    }
}

#[derive(Debug)]
struct Entry<T> {
    gather: Gather,
    ask: Ask,
    length: usize,
    late: Late,
    pool: u32,
    /// `true` if a key is treated as missing because its server did not answer.
    is_incomplete: bool,
    parts: Parts,
    /// The indices of the answer memory reserved for the keys. The first `used` indices refer to
    /// memory that contains answers.
    answers: [u32; MAX_KEYS],
    used: usize,
    context: T,
}

/// The keys of a request, assigned to parts.
struct Assigned {
    gather: Gather,
    parts: Parts,
    /// `true` if a key has no server.
    lacks: bool,
}

impl Assigned {
    fn new<T>(
        application: &dyn Application,
        new: &NewGather<'_, T>,
        target: &mut dyn FnMut(&[u8]) -> Option<Target>,
    ) -> Result<Self, NotBegun> {
        if usize::from(new.request.ask.keys) > MAX_KEYS || new.request.payload.len() > REQUEST_BYTES {
            return Err(NotBegun::Unaskable);
        }
        let (mut parts, mut lacks) = (Parts::NONE, false);
        let gather = Gather::new(application, &new.request, &mut |_, key| match target(key) {
            Some(target) => parts.place(target, key.len()),
            None => {
                lacks = true;
                (new.late == Late::IsMissing).then_some(NOBODY)
            }
        });
        let unasked = if lacks && new.late == Late::Fails { NotBegun::NoServer } else { NotBegun::Unaskable };
        gather.map(|gather| Self { gather, parts, lacks }).ok_or(unasked)
    }
}

impl<T, X> GatherTable<T, X> {
    /// Creates an empty table.
    ///
    /// # Errors
    /// Returns an [`ExchangeError`] if the number of ports is 0 or too small for the requests.
    /// # Cost
    /// Reserves 33 KB for each request. The kernel provides physical memory on first use.
    pub fn new(config: &GatherConfig<'_>) -> Result<Self, ExchangeError> {
        let ids = config.ports.len() << 16;
        let requests_of = Shares::new(config.requests);
        let keys_of = Shares::new(config.requests * KEYS_A_REQUEST);
        let (count, keys, [first, second]) = (requests_of.total(), keys_of.total(), config.seed);
        let nonces = KeyHash::sip(first, second);
        // Each part has at least one key, so one exchange per key is sufficient.
        let capacity = (keys + config.others).min(ids.saturating_sub(1));
        let numbers = |count: usize| (0..u32::try_from(count).unwrap_or(u32::MAX)).rev().collect();
        Ok(Self {
            exchanges: Exchanges::new(config.ports.clone(), capacity, config.timeouts)?
                .starting_at(nonces.hash(b"the first exchange")),
            entries: Vec::with_capacity(count),
            free: Vec::with_capacity(count),
            requests_of,
            keys_of,
            requests: vec![0; count * REQUEST_BYTES].into_boxed_slice(),
            answers: vec![0; keys * ANSWER_BYTES].into_boxed_slice(),
            free_answers: numbers(keys),
            nonces,
            asked: 0,
        })
    }

    /// Begins a request and returns its index. `target` returns the server of each key. The parts
    /// of the request have indices from 0.
    ///
    /// # Errors
    /// Returns a [`NotBegun`] if the request cannot be split, a required server is missing, or the
    /// table is full.
    pub fn begin(
        &mut self,
        now: u64,
        application: &dyn Application,
        new: NewGather<'_, T>,
        target: &mut dyn FnMut(&[u8]) -> Option<Target>,
    ) -> Result<u32, NotBegun> {
        let number = self.vacant().ok_or(NotBegun::Full)?;
        let Assigned { mut gather, mut parts, lacks } = Assigned::new(application, &new, target)?;
        gather.expire(NOBODY, Late::IsMissing);
        let NewGather { request, timeout, late, pool, context } = new;
        let keys = usize::from(request.ask.keys);
        let left = self.free_answers.len().checked_sub(keys).ok_or(NotBegun::Full)?;
        self.take_share(pool, keys)?;
        self.begin_exchanges(now, timeout, number, &mut parts)
            .inspect_err(|_| self.give_share(pool, keys))?;
        let mut answers = [0; MAX_KEYS];
        answers.iter_mut().zip(self.free_answers.drain(left..).rev()).for_each(|(to, from)| *to = from);
        if self.free.pop().is_none() {
            self.entries.push(None); // does not allocate, because the capacity is reserved
        }
        let (ask, length) = (*request.ask, request.payload.len());
        if let Some(copy) = self.requests.get_mut(request_place(number, length)) {
            copy.copy_from_slice(request.payload);
        }
        let entry =
            Entry { gather, ask, length, late, pool, is_incomplete: lacks, parts, answers, used: 0, context };
        if let Some(place) = self.entries.get_mut(number as usize) {
            *place = Some(entry);
        }
        Ok(number)
    }

    fn take_share(&mut self, pool: u32, keys: usize) -> Result<(), NotBegun> {
        if !self.requests_of.take(pool, 1) {
            return Err(NotBegun::Full);
        }
        if !self.keys_of.take(pool, keys) {
            self.requests_of.give(pool, 1);
            return Err(NotBegun::Full);
        }
        Ok(())
    }

    fn give_share(&mut self, pool: u32, keys: usize) {
        self.requests_of.give(pool, 1);
        self.keys_of.give(pool, keys);
    }

    /// Begins an exchange for each part. If one of the exchanges cannot begin, the function ends
    /// the other exchanges.
    fn begin_exchanges(
        &mut self,
        now: u64,
        timeout: usize,
        entry: u32,
        parts: &mut Parts,
    ) -> Result<(), NotBegun> {
        let all = parts.parts.get_mut(..parts.count).unwrap_or_default();
        for (part, state) in (0..).zip(all.iter_mut()) {
            self.asked = self.asked.wrapping_add(1);
            let nonce = self.nonces.hash(&self.asked.to_le_bytes());
            match self.exchanges.begin(now, timeout, Sent::Part(SentPart { entry, part, nonce })) {
                Ok(id) => state.exchange = Some(id),
                Err(_) => {
                    let begun = all.iter().filter_map(|state| state.exchange);
                    for id in begun {
                        self.exchanges.end(now, id);
                    }
                    return Err(NotBegun::Full);
                }
            }
        }
        Ok(())
    }

    /// Returns the number of upstream requests of a client request.
    #[must_use]
    pub fn parts(&self, number: u32) -> u8 {
        self.entry(number).and_then(|entry| u8::try_from(entry.parts.count).ok()).unwrap_or_default()
    }

    /// Returns the server to which an upstream request is sent.
    #[must_use]
    pub fn server(&self, number: u32, part: u8) -> Option<u32> {
        Some(self.entry(number)?.parts.each().get(usize::from(part))?.server)
    }

    /// Writes the payload of an upstream request to `out`. Returns the source port and the length
    /// in bytes.
    pub fn write_part(
        &self,
        application: &dyn Application,
        number: u32,
        part: u8,
        out: &mut [u8],
    ) -> Option<(u16, usize)> {
        let entry = self.entry(number)?;
        let id = entry.parts.each().get(usize::from(part))?.exchange?;
        let own = OwnId { request: id.request, nonce: self.exchanges.find(id)?.part()?.nonce };
        let request = Request { payload: self.payload(number, entry), ask: &entry.ask };
        let length = application.write_part(&request, &mut entry.gather.part(part), own, out)?;
        Some((id.port, length))
    }

    /// Returns the request to which the exchange with this id belongs.
    #[must_use]
    pub fn find(&self, id: ExchangeId) -> Option<ExchangeFor<'_, X>> {
        self.exchanges.find(id).map(|sent| match sent {
            Sent::Part(part) => ExchangeFor::Part(part.entry),
            Sent::Other(other) => ExchangeFor::Other(other),
        })
    }

    /// Returns the id for requests without an answer ([`Exchanges::spare_id`]).
    #[must_use]
    pub fn spare_id(&self) -> ExchangeId {
        self.exchanges.spare_id()
    }

    /// Returns the index of the part whose exchange has this id.
    #[must_use]
    pub fn part_of(&self, id: ExchangeId) -> Option<u8> {
        Some(self.exchanges.find(id)?.part()?.part)
    }

    /// Begins an exchange for the caller. `timeout` is the index of the timeout for this exchange.
    ///
    /// # Errors
    /// Returns `other` if no slot is free or the timeout does not exist.
    pub fn begin_other(&mut self, now: u64, timeout: usize, other: X) -> Result<ExchangeId, X> {
        self.exchanges.begin(now, timeout, Sent::Other(other)).map_err(|sent| match sent {
            Sent::Other(other) => other,
            Sent::Part(_) => unreachable!("begin returns the entry that was passed to it"),
        })
    }

    /// Returns a mutable reference to the data of an exchange that [`Self::begin_other`] began.
    pub fn other_mut(&mut self, id: ExchangeId) -> Option<&mut X> {
        match self.exchanges.find_mut(id)? {
            Sent::Other(other) => Some(other),
            Sent::Part(_) => None,
        }
    }

    /// Ends an exchange that [`Self::begin_other`] began. For later answers to this exchange,
    /// [`Self::answer`] returns [`NotTaken::Late`].
    pub fn end_other(&mut self, now: u64, id: ExchangeId) -> Option<X> {
        self.other_mut(id)?;
        match self.exchanges.end(now, id)? {
            Sent::Other(other) => Some(other),
            Sent::Part(_) => None,
        }
    }

    /// Returns the data that the caller stored with a request.
    #[must_use]
    pub fn context(&self, number: u32) -> Option<&T> {
        self.entry(number).map(|entry| &entry.context)
    }

    /// Applies a datagram from a server. Returns the index of the request and its progress.
    pub fn answer(
        &mut self,
        now: u64,
        application: &dyn Application,
        id: ExchangeId,
        payload: &[u8],
    ) -> Result<(u32, Progress), NotTaken> {
        let sent = self.exchanges.find(id).and_then(Sent::part).ok_or(NotTaken::Late)?;
        let SentPart { entry: number, part, nonce } = sent;
        let entry = self.entries.get_mut(number as usize).and_then(Option::as_mut).ok_or(NotTaken::Late)?;
        let asked = self.requests.get(request_place(number, entry.length)).unwrap_or_default();
        let request = Request { payload: asked, ask: &entry.ask };
        let (own, mut room) = (OwnId { request: id.request, nonce }, KeyRoom::default());
        let mut answer =
            application.read_answer(&request, own, payload, &mut room).map_err(NotTaken::NoAnswer)?;
        let has_value = matches!(answer.content, Content::Value(_)) && payload.len() <= ANSWER_BYTES;
        if !has_value && answer.content != Content::Missing {
            answer.content = Content::TooLong;
        }
        let frame = entry.answers.get(entry.used).copied().unwrap_or_default();
        let progress = entry.gather.answer(application, &request, &Arrival { part, frame, answer });
        if progress == Progress::Unchanged {
            return Err(NotTaken::Unasked);
        }
        if has_value && let Some(copy) = self.answers.get_mut(answer_place(frame, payload.len())) {
            copy.copy_from_slice(payload);
            entry.used += 1;
        }
        if !entry.gather.waits_for(part) {
            self.exchanges.end(now, id);
            entry.has_ended(part);
        }
        Ok((number, progress))
    }

    /// Ends the exchange with the earliest deadline if that deadline has passed. Call this method
    /// until it returns `None`.
    pub fn expire(&mut self, now: u64) -> Option<Expired<X>> {
        match self.exchanges.expire(now)?.1 {
            Sent::Other(other) => Some(Expired::Other(other)),
            Sent::Part(SentPart { entry: number, part, .. }) => {
                let entry = self.entries.get_mut(number as usize)?.as_mut()?;
                entry.has_ended(part);
                Some(Expired::Gather(number, entry.give_up(part)))
            }
        }
    }

    /// Treats an unreachable server like a server that has timed out. Returns the progress of the
    /// request.
    pub fn give_up(&mut self, now: u64, number: u32, part: u8) -> Progress {
        let entry = self.entries.get_mut(number as usize).and_then(Option::as_mut);
        let Some(entry) = entry else { return Progress::Unchanged };
        if let Some(id) = entry.has_ended(part) {
            self.exchanges.end(now, id);
        }
        entry.give_up(part)
    }

    /// Returns `true` if each key has an answer or is treated as missing.
    #[must_use]
    pub fn is_complete(&self, number: u32) -> bool {
        self.entry(number).is_some_and(|entry| entry.gather.is_over())
    }

    /// Returns `true` if a key is treated as missing because its server did not answer.
    #[must_use]
    pub fn is_incomplete(&self, number: u32) -> bool {
        self.entry(number).is_some_and(|entry| entry.is_incomplete)
    }

    /// Calls `each` with every key that the request may write, as the server stores it. For
    /// requests that only read, the method does not call `each`.
    pub fn written_keys(&self, application: &dyn Application, number: u32, each: &mut dyn FnMut(&[u8])) {
        let Some(entry) = self.entry(number) else { return };
        if !matches!(entry.ask.effect, Effect::Write | Effect::Conditional) {
            return;
        }
        let payload = self.payload(number, entry);
        application.items(payload, &entry.ask, &mut |item| {
            each(application.key(payload, &item, &mut KeyRoom::default()));
            ControlFlow::Continue(())
        });
    }

    /// Returns the number of datagrams in the reply, from [`Application::reply_datagrams`].
    pub fn reply_datagrams(&self, application: &dyn Application, number: u32) -> Option<u16> {
        let entry = self.entry(number)?;
        let request = Request { payload: self.payload(number, entry), ask: &entry.ask };
        application.reply_datagrams(&request, &|key| self.found(entry, key))
    }

    /// Writes one datagram of the reply with [`Application::write_reply`].
    pub fn write_reply(
        &self,
        application: &dyn Application,
        number: u32,
        datagram: u16,
        out: &mut [u8],
    ) -> Option<usize> {
        let entry = self.entry(number)?;
        let request = Request { payload: self.payload(number, entry), ask: &entry.ask };
        application.write_reply(&request, &|key| self.found(entry, key), datagram, out)
    }

    /// Removes a request. For later answers, [`Self::answer`] returns [`NotTaken::Late`].
    pub fn end(&mut self, now: u64, number: u32) {
        let Some(entry) = self.entries.get_mut(number as usize).and_then(Option::take) else { return };
        for id in entry.parts.each().iter().filter_map(|part| part.exchange) {
            self.exchanges.end(now, id);
        }
        // The most recently used answer memory is reused first, because this memory is still in the
        // CPU cache.
        let answers = entry.answers.get(..usize::from(entry.ask.keys)).unwrap_or_default();
        self.free_answers.extend(answers.iter().rev());
        self.free.push(number);
        self.give_share(entry.pool, entry.ask.keys.into());
    }

    /// Returns the earliest deadline of all exchanges.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        self.exchanges.next_due()
    }

    /// Returns the number of requests in progress.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns `true` if no request is in progress.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `true` if neither a request nor another exchange is in progress.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_empty() && self.exchanges.is_empty()
    }

    /// Returns the index for the next request, or `None` if the table is full.
    fn vacant(&self) -> Option<u32> {
        let has_fresh = self.entries.len() < self.requests_of.total();
        let fresh = || u32::try_from(self.entries.len()).ok().filter(|_| has_fresh);
        self.free.last().copied().or_else(fresh)
    }

    fn entry(&self, number: u32) -> Option<&Entry<T>> {
        self.entries.get(number as usize)?.as_ref()
    }

    fn payload(&self, number: u32, entry: &Entry<T>) -> &[u8] {
        self.requests.get(request_place(number, entry.length)).unwrap_or_default()
    }

    fn found(&self, entry: &Entry<T>, key: u16) -> Option<Stored<'_>> {
        let place = entry.gather.place(key)?;
        Some(
            place.value.within(self.answers.get(answer_place(place.frame, ANSWER_BYTES)).unwrap_or_default()),
        )
    }
}

impl<T> Entry<T> {
    /// Takes the exchange id out of a part whose exchange has ended.
    fn has_ended(&mut self, part: u8) -> Option<ExchangeId> {
        self.parts.parts.get_mut(usize::from(part))?.exchange.take()
    }

    fn give_up(&mut self, part: u8) -> Progress {
        self.is_incomplete = true;
        self.gather.expire(part, self.late)
    }
}

fn request_place(number: u32, length: usize) -> std::ops::Range<usize> {
    let start = number as usize * REQUEST_BYTES;
    start..start + length
}

fn answer_place(number: u32, length: usize) -> std::ops::Range<usize> {
    let start = number as usize * ANSWER_BYTES;
    start..start + length
}

/// The maximum length of a client request in bytes. A request of 32 binary reads with 250-byte keys
/// and a NOOP is 8,800 bytes long.
const REQUEST_BYTES: usize = 9_216;
/// The maximum payload length of an answer, in bytes.
const ANSWER_BYTES: usize = 1_408;
/// The average number of keys per request for which answer memory and exchanges are reserved. If
/// requests have more keys on average, fewer requests fit into the table.
const KEYS_A_REQUEST: usize = 8;
/// The part index of keys that have no server.
const NOBODY: u8 = u8::MAX;
