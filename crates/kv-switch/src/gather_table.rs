//! Requests that several servers are asked for, under way: a table of fixed size for one packet thread. It has the exchanges of all
//! that this thread asks: those that are no part of such a request are the caller's own.
//!
//! In: a client's request, and which server has each of its keys; what comes to our own ports; the time. Out: what each server is
//! asked; then the reply's datagrams, or that there will be none.
//! Not here: addresses and frames (the caller keeps `T` of each request), which server has a key, who sent an answer.
//! Invariant: all memory is taken at the start. A request begins whole or not at all: with an exchange for each part, and room for an
//! answer to each key. What is over has neither.

use std::convert::Infallible;
use std::ops::{ControlFlow, RangeInclusive};

use crate::{
    Application, Arrival, Ask, Content, Effect, ExchangeError, ExchangeId, Exchanges, Gather, KeyHash,
    KeyRoom, Late, MAX_KEYS, NoAnswer, OwnId, Progress, Request, Stored,
};

/// What a table is made of.
#[derive(Clone, Debug)]
pub struct GatherConfig<'a> {
    /// Ports that requests of our own leave from, for this table alone.
    pub ports: RangeInclusive<u16>,
    /// Requests under way at once, at least one.
    pub requests: usize,
    /// Exchanges of the caller's own for which there is room besides.
    pub others: usize,
    /// Nanoseconds that a request may wait, named by their index.
    pub timeouts: &'a [u64],
    /// A secret that no other table has and no earlier one had, for what answers are known by, and for the first id.
    pub seed: [u64; 2],
}

/// The table. `T`: what the caller keeps of a client's request; `X`: what it keeps of an exchange of its own.
#[derive(Debug)]
pub struct GatherTable<T, X = Infallible> {
    exchanges: Exchanges<Sent<X>>,
    /// Those that were ever used: what is never used is never touched.
    entries: Vec<Option<Entry<T>>>,
    /// Numbers of those that are free.
    free: Vec<u32>,
    /// How many there may be.
    at_most: usize,
    /// [`REQUEST_BYTES`] for each entry.
    requests: Box<[u8]>,
    /// [`ANSWER_BYTES`] for each number that is free, or an entry's.
    answers: Box<[u8]>,
    free_answers: Vec<u32>,
    nonces: KeyHash,
    asked: u64,
}

/// A client's request, to begin.
#[derive(Debug)]
pub struct NewGather<'a, T> {
    /// It.
    pub request: Request<'a>,
    /// How long its servers may take: an index into [`GatherConfig::timeouts`].
    pub timeout: usize,
    /// What a key counts as whose server takes longer, or that no server has.
    pub late: Late,
    /// For the caller.
    pub context: T,
}

/// Who is asked for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The caller's number for the server.
    pub server: u32,
    /// Bytes of payload that one datagram to it may have.
    pub room: u16,
}

/// Why a request was not begun. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBegun {
    /// It is never asked by parts: too many keys, or too long, or of a protocol that does not.
    Unaskable,
    /// No server has one of its keys, and it fails by that.
    NoServer,
    /// As many are under way as there is room for.
    Full,
}

/// Why a datagram is no answer that anybody waits for. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// No exchange has its port and id: it came too late or twice, or was never asked for.
    Late,
    /// It is none.
    NoAnswer(NoAnswer),
    /// No key of its part that it names waits: it came twice, or names another part's.
    Unasked,
}

/// What an exchange is for.
#[derive(Debug)]
enum Sent<X> {
    Part(SentPart),
    Other(X),
}

/// A part under way.
#[derive(Clone, Copy, Debug)]
struct SentPart {
    entry: u32,
    part: u8,
    nonce: u64,
}

/// What an exchange under way is for.
#[derive(Debug)]
pub enum ExchangeFor<'a, X> {
    /// A part of the request of this number.
    Part(u32),
    /// The caller's own.
    Other(&'a X),
}

/// What has waited as long as it may.
#[derive(Debug)]
pub enum Expired<X> {
    /// A request of this number, and what has become of it.
    Gather(u32, Progress),
    /// The caller's own exchange, which has ended.
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

/// A request under way.
#[derive(Debug)]
struct Entry<T> {
    gather: Gather,
    ask: Ask,
    length: usize,
    late: Late,
    /// Whether a key counts as missing because nobody has said.
    is_incomplete: bool,
    parts: Parts,
    /// Numbers of answers' memory: as many as keys; those in use first.
    answers: [u32; MAX_KEYS],
    used: usize,
    context: T,
}

/// The datagrams that servers are asked by.
#[derive(Clone, Copy, Debug)]
struct Parts {
    parts: [Part; MAX_KEYS],
    count: usize,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    server: u32,
    /// Bytes that are left in its datagram.
    room: usize,
    /// `None`: it has all its answers, or none will come.
    exchange: Option<ExchangeId>,
}

impl Parts {
    const NONE: Self = Self { parts: [Part { server: 0, room: 0, exchange: None }; MAX_KEYS], count: 0 };

    /// The number of the part that asks `target` for a key of that length: an earlier one, or one more. `None`: one datagram does not
    /// hold the key.
    fn place(&mut self, target: Target, key: usize) -> Option<u8> {
        let needed = key + COMMAND_BYTES;
        let fits = |part: &Part| part.server == target.server && part.room >= needed;
        let known = self.each().iter().position(fits);
        let number = known.unwrap_or(self.count);
        let part = self.parts.get_mut(number)?;
        if known.is_none() {
            let room = usize::from(target.room).checked_sub(FRAME_BYTES + needed)?;
            *part = Part { server: target.server, room, exchange: None };
            self.count += 1;
        } else {
            part.room -= needed;
        }
        u8::try_from(number).ok()
    }

    fn each(&self) -> &[Part] {
        self.parts.get(..self.count).unwrap_or_default()
    }
}

/// A request's keys, each with the part that asks for it.
struct Assigned {
    gather: Gather,
    parts: Parts,
    /// No server has one of them.
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
    /// An empty table.
    ///
    /// # Errors
    /// [`ExchangeError`]: no ports, or too few for so many requests.
    /// # Cost
    /// Takes all memory that it will ever have: 22 KB a request, of which the system gives most only when it is first used.
    pub fn new(config: &GatherConfig<'_>) -> Result<Self, ExchangeError> {
        let ids = config.ports.len() << 16;
        let (count, [first, second]) = (config.requests, config.seed);
        let nonces = KeyHash::sip(first, second);
        let capacity = (count * PARTS_A_REQUEST + config.others).min(ids);
        let numbers = |count: usize| (0..u32::try_from(count).unwrap_or(u32::MAX)).rev().collect();
        Ok(Self {
            exchanges: Exchanges::new(config.ports.clone(), capacity, config.timeouts)?
                .starting_at(nonces.hash(b"the first exchange")),
            entries: Vec::with_capacity(count),
            free: Vec::with_capacity(count),
            at_most: count,
            requests: vec![0; count * REQUEST_BYTES].into_boxed_slice(),
            answers: vec![0; count * ANSWERS_A_REQUEST * ANSWER_BYTES].into_boxed_slice(),
            free_answers: numbers(count * ANSWERS_A_REQUEST),
            nonces,
            asked: 0,
        })
    }

    /// Begins a request, of which `target` says who is asked for each key, and gives its number. Its parts are counted from 0.
    ///
    /// # Errors
    /// [`NotBegun`].
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
        let NewGather { request, timeout, late, context } = new;
        let keys = usize::from(request.ask.keys);
        let left = self.free_answers.len().checked_sub(keys).ok_or(NotBegun::Full)?;
        self.begin_exchanges(now, timeout, number, &mut parts)?;
        let mut answers = [0; MAX_KEYS];
        answers.iter_mut().zip(self.free_answers.drain(left..).rev()).for_each(|(to, from)| *to = from);
        if self.free.pop().is_none() {
            self.entries.push(None); // within its capacity
        }
        let (ask, length) = (*request.ask, request.payload.len());
        if let Some(copy) = self.requests.get_mut(request_place(number, length)) {
            copy.copy_from_slice(request.payload);
        }
        let entry =
            Entry { gather, ask, length, late, is_incomplete: lacks, parts, answers, used: 0, context };
        if let Some(place) = self.entries.get_mut(number as usize) {
            *place = Some(entry);
        }
        Ok(number)
    }

    /// One for each part, or none at all.
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

    /// How many datagrams servers are asked by.
    #[must_use]
    pub fn parts(&self, number: u32) -> u8 {
        self.entry(number).and_then(|entry| u8::try_from(entry.parts.count).ok()).unwrap_or_default()
    }

    /// The server that a part is for.
    #[must_use]
    pub fn server(&self, number: u32, part: u8) -> Option<u32> {
        Some(self.entry(number)?.parts.each().get(usize::from(part))?.server)
    }

    /// Writes a part's payload to `out`; the port that it leaves from, and its length.
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

    /// What an answer to this port with this id would be for.
    #[must_use]
    pub fn find(&self, id: ExchangeId) -> Option<ExchangeFor<'_, X>> {
        self.exchanges.find(id).map(|sent| match sent {
            Sent::Part(part) => ExchangeFor::Part(part.entry),
            Sent::Other(other) => ExchangeFor::Other(other),
        })
    }

    /// The number of the part that is asked under this id.
    #[must_use]
    pub fn part_of(&self, id: ExchangeId) -> Option<u8> {
        Some(self.exchanges.find(id)?.part()?.part)
    }

    /// Begins an exchange of the caller's own, which ends by itself after the timeout of that index.
    ///
    /// # Errors
    /// `other` itself, as [`Exchanges::begin`].
    pub fn begin_other(&mut self, now: u64, timeout: usize, other: X) -> Result<ExchangeId, X> {
        self.exchanges.begin(now, timeout, Sent::Other(other)).map_err(|sent| match sent {
            Sent::Other(other) => other,
            Sent::Part(_) => unreachable!("what was given comes back"),
        })
    }

    /// What the caller keeps of an exchange of its own, to change.
    pub fn other_mut(&mut self, id: ExchangeId) -> Option<&mut X> {
        match self.exchanges.find_mut(id)? {
            Sent::Other(other) => Some(other),
            Sent::Part(_) => None,
        }
    }

    /// Ends an exchange of the caller's own. What still comes for it is late.
    pub fn end_other(&mut self, now: u64, id: ExchangeId) -> Option<X> {
        self.other_mut(id)?;
        match self.exchanges.end(now, id)? {
            Sent::Other(other) => Some(other),
            Sent::Part(_) => None,
        }
    }

    /// What the caller keeps of a request.
    #[must_use]
    pub fn context(&self, number: u32) -> Option<&T> {
        self.entry(number).map(|entry| &entry.context)
    }

    /// Takes what a server has sent; the request, and what has become of it.
    ///
    /// # Errors
    /// [`NotTaken`].
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

    /// What has waited the longest of all whose time is over: to be called until there is none.
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

    /// A part's server cannot be asked: what has become of the request, as if its time were over.
    pub fn give_up(&mut self, now: u64, number: u32, part: u8) -> Progress {
        let entry = self.entries.get_mut(number as usize).and_then(Option::as_mut);
        let Some(entry) = entry else { return Progress::Unchanged };
        if let Some(id) = entry.has_ended(part) {
            self.exchanges.end(now, id);
        }
        entry.give_up(part)
    }

    /// Whether all keys have an answer, or count as missing.
    #[must_use]
    pub fn is_complete(&self, number: u32) -> bool {
        self.entry(number).is_some_and(|entry| entry.gather.is_over())
    }

    /// Whether a key counts as missing because nobody has said.
    #[must_use]
    pub fn is_incomplete(&self, number: u32) -> bool {
        self.entry(number).is_some_and(|entry| entry.is_incomplete)
    }

    /// Calls `each` with every key of a request that may store something, as stored; of another with none.
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

    /// As [`Application::reply_datagrams`].
    pub fn reply_datagrams(&self, application: &dyn Application, number: u32) -> Option<u16> {
        let entry = self.entry(number)?;
        let request = Request { payload: self.payload(number, entry), ask: &entry.ask };
        application.reply_datagrams(&request, &|key| self.found(entry, key))
    }

    /// As [`Application::write_reply`].
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

    /// Forgets a request. What still comes for it is late.
    pub fn end(&mut self, now: u64, number: u32) {
        let Some(entry) = self.entries.get_mut(number as usize).and_then(Option::take) else { return };
        for id in entry.parts.each().iter().filter_map(|part| part.exchange) {
            self.exchanges.end(now, id);
        }
        // The last that were taken are the next, as the caches know them.
        let answers = entry.answers.get(..usize::from(entry.ask.keys)).unwrap_or_default();
        self.free_answers.extend(answers.iter().rev());
        self.free.push(number);
    }

    /// The earliest time at which [`Self::expire`] has something.
    #[must_use]
    pub fn next_due(&self) -> Option<u64> {
        self.exchanges.next_due()
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

    /// Whether none is under way, and no exchange of the caller's own either.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_empty() && self.exchanges.is_empty()
    }

    /// The number that the next request has.
    fn vacant(&self) -> Option<u32> {
        let fresh = || u32::try_from(self.entries.len()).ok().filter(|_| self.entries.len() < self.at_most);
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
    /// A part has no exchange any more; the one that it had.
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

/// Of a client's longest request: 32 binary reads of 250-byte keys and a NOOP have 8,800.
const REQUEST_BYTES: usize = 9_216;
/// Of a server's longest datagram.
const ANSWER_BYTES: usize = 1_408;
/// On average, as is room for exchanges: requests of more keys leave room for fewer requests.
const ANSWERS_A_REQUEST: usize = 8;
const PARTS_A_REQUEST: usize = 8;
/// What is written around a key, at most.
const COMMAND_BYTES: usize = 48;
const FRAME_BYTES: usize = 8;
/// The part of keys that no server has.
const NOBODY: u8 = u8::MAX;
