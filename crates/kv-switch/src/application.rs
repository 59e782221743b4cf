//! What the forwarder asks of a protocol, and what a protocol says of a request.
//!
//! In: the payload of one datagram, or of its first fragment ([`Datagram`]). Out: an [`Ask`]: offsets and no bytes.
//! Not here: any protocol, who may ask, which server has a key.
//! Invariant: offsets of an [`Ask`] lie in the payload that it was read from; with another payload they name other bytes or
//! none, and never panic.

use std::fmt;
use std::ops::ControlFlow;

use crate::{Answer, Copied, Fetch, Fetched, NoAnswer, Outcome, OwnId, Refusal, Stored};

/// A protocol whose requests name keys. The forwarder knows none of its verbs and none of its bytes.
///
/// An implementation holds settings at most: no state that requests change, no clock, no allocation.
/// The first three methods route requests by key. Those behind [`Self::key`] ask servers themselves, for a request whose keys are
/// on several of them; they refuse unless a protocol says otherwise, so that one of three methods is whole.
pub trait Application: fmt::Debug + Send + Sync {
    /// Reads one request.
    ///
    /// # Errors
    /// [`Refusal`]: a server could misread the datagram, or it is more than one command, or no client's business.
    fn read(&self, datagram: Datagram<'_>) -> Result<Ask, Refusal>;

    /// Calls `each` with every key of the request in order, those that stand in it twice too, until `each` breaks.
    /// `payload` is what `ask` was read from.
    fn items(&self, payload: &[u8], ask: &Ask, each: &mut dyn FnMut(Item) -> ControlFlow<()>);

    /// The key as the server stores it. It lies in `payload`, or in `room` where it had to be decoded.
    fn key<'a>(&self, payload: &'a [u8], item: &Item, room: &'a mut KeyRoom) -> &'a [u8];

    /// Writes `request` to `out` with times to live that are no longer than `life`, if it stores something for longer. Its ask stays
    /// true for what is written but for `end`, and keys behind a time have other places.
    fn shorten_life(&self, _request: &Request<'_>, _life: ShortLife, _out: &mut [u8]) -> Shortened {
        Shortened::Unchanged
    }

    /// Writes to `out` what one server is asked for `items`, which are keys of `request`: a payload of one datagram, to which each
    /// of these keys has an answer of its own. Returns its length; `None`: such a request is never asked by parts, `items` has none,
    /// or `out` is too short (ask for fewer keys at once).
    fn write_part(
        &self,
        _request: &Request<'_>,
        _items: &mut dyn Iterator<Item = Item>,
        _own: OwnId,
        _out: &mut [u8],
    ) -> Option<usize> {
        None
    }

    /// What a datagram to one of our own ports says of the answer that it is of. `None`: nothing, or requests of this protocol have no
    /// id in their first two bytes, in network order, that each datagram of an answer has there too: then it passes one way alone.
    fn answer_frame(&self, _payload: &[u8]) -> Option<AnswerFrame> {
        None
    }

    /// The id in a datagram to one of our own ports, to find the exchange by that it may answer.
    fn answer_id(&self, payload: &[u8]) -> Option<u16> {
        self.answer_frame(payload).map(|frame| frame.request)
    }

    /// Reads a server's answer to a part of `request` that was written with `own`. Whether it came from that server's address to
    /// the right port is the caller's to see. The key lies in `payload`, or in `room` where it had to be decoded.
    ///
    /// # Errors
    /// [`NoAnswer`]: it is not one, whichever host sent it. The exchange waits on.
    fn read_answer<'a>(
        &self,
        _request: &Request<'_>,
        _own: OwnId,
        _payload: &'a [u8],
        _room: &'a mut KeyRoom,
    ) -> Result<Answer<'a>, NoAnswer> {
        Err(NoAnswer::NeverAsked)
    }

    /// How many datagrams the reply to `request` has. `found`: what there is under its keys, by their numbers in the order of the
    /// request. `None`: as [`Self::write_part`], or the reply is too long for the protocol.
    fn reply_datagrams<'a>(
        &self,
        _request: &Request<'_>,
        _found: &dyn Fn(u16) -> Option<Stored<'a>>,
    ) -> Option<u16> {
        None
    }

    /// Writes to `out` the reply's datagram of that number, counted from 0, and returns its length. `None`: there is no such
    /// datagram, or `out` is too short.
    fn write_reply<'a>(
        &self,
        _request: &Request<'_>,
        _found: &dyn Fn(u16) -> Option<Stored<'a>>,
        _number: u16,
        _out: &mut [u8],
    ) -> Option<usize> {
        None
    }

    /// Writes to `out` the question for a key that is to be copied: a payload of one datagram. Returns its length; `None`: this key
    /// is never copied, or `out` is too short.
    fn write_fetch(&self, _fetch: &Fetch<'_>, _own: OwnId, _out: &mut [u8]) -> Option<usize> {
        None
    }

    /// Reads a server's answer to `fetch`, as [`Self::read_answer`] does to a part.
    ///
    /// # Errors
    /// [`NoAnswer`].
    fn read_fetched<'a>(
        &self,
        _fetch: &Fetch<'_>,
        _own: OwnId,
        _payload: &'a [u8],
        _room: &'a mut KeyRoom,
    ) -> Result<Fetched<'a>, NoAnswer> {
        Err(NoAnswer::NeverAsked)
    }

    /// Writes to `out` what a server that has this value under its key would answer to `request`, which reads one key and is
    /// cacheable: one datagram. Returns its length; `None`: the server has to answer, or `out` is too short.
    fn write_hit(&self, _request: &Request<'_>, _copied: &Copied<'_>, _out: &mut [u8]) -> Option<usize> {
        None
    }

    /// Writes to `out` the commonest reply that a server which has this value under its key gives to a read of it, without what is each
    /// request's own ([`Self::write_front`]): it is written once a copy, and sent as it is. `None`: there is none, or `out` is too short.
    fn prepare_hit(&self, _key: &[u8], _stored: &Stored<'_>, _out: &mut [u8]) -> Option<Prepared> {
        None
    }

    /// Writes to `out` what stands in front of a prepared reply to `request`, which is as [`Self::write_hit`] has it. Returns its
    /// length; `None`: this request's reply is another.
    fn write_front(&self, _request: &Request<'_>, _out: &mut [u8]) -> Option<usize> {
        None
    }

    /// Whether the client of `request`, which stores something, may have a reply that says so. `false`: surely not.
    fn is_acknowledged(&self, _request: &Request<'_>) -> bool {
        true
    }

    /// What `request`, which stores something, is to several servers that are all to have it. `None`: what it does depends on what a
    /// server has, so that they would come to differ.
    fn replicated(&self, _request: &Request<'_>) -> Option<Replicated> {
        None
    }

    /// Writes to `out` what one of several servers is asked, that all carry out `request`; what it stores lives no longer than `life`.
    /// Returns its length, at most 40 more than the request's; `None`: it is none that is [replicated](Self::replicated), or `out`
    /// is too short.
    fn write_replica(
        &self,
        _request: &Request<'_>,
        _life: Option<ShortLife>,
        _own: OwnId,
        _out: &mut [u8],
    ) -> Option<usize> {
        None
    }

    /// Reads a server's answer to that, as [`Self::read_answer`] does to a part.
    ///
    /// # Errors
    /// [`NoAnswer`].
    fn read_outcome(
        &self,
        _request: &Request<'_>,
        _own: OwnId,
        _payload: &[u8],
    ) -> Result<Outcome, NoAnswer> {
        Err(NoAnswer::NeverAsked)
    }

    /// Writes the reply to the client of a [replicated](Self::replicated) request to `out`: one datagram. Returns its length; `None`:
    /// it is none, or `out` is too short.
    fn write_outcome(&self, _request: &Request<'_>, _outcome: Outcome, _out: &mut [u8]) -> Option<usize> {
        None
    }

    /// Writes to `out` the protocol's error for a request that is not served: one datagram. Returns its length; `None`: the protocol
    /// has none, the client waits for no answer, or `out` is too short.
    fn write_unsupported(&self, _request: &Request<'_>, _out: &mut [u8]) -> Option<usize> {
        None
    }
}

/// A reply that was written once for many: how long it is, and at which offsets the key and the value stand in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Bytes of all of it.
    pub length: usize,
    /// Where the key begins.
    pub key: usize,
    /// Where the value does.
    pub value: usize,
}

/// What a request is to several servers that all carry it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicated {
    /// Its client waits for an answer.
    pub wants_answer: bool,
    /// It takes the key away: who had it has lost it, and one that had it is enough to say so.
    pub is_removal: bool,
}

/// How long what is stored may live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortLife {
    /// Seconds from now.
    pub seconds: u32,
    /// Now, in seconds since 1970.
    pub now: u32,
}

impl ShortLife {
    /// A shorter time in place of one as memcached writes it: 0 for ever, up to 30 days a span, above seconds since 1970. `None`: it is
    /// short enough.
    pub(crate) fn shorter(self, time: u64) -> Option<u32> {
        let left = match time {
            0 => u64::MAX,
            1..=LONGEST_SPAN => time,
            _ => time.saturating_sub(self.now.into()),
        };
        (left > self.seconds.into()).then_some(self.seconds)
    }
}

/// A request whose times to live are to be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortened {
    /// It stores nothing, or nothing for longer.
    Unchanged,
    /// It was written anew, with so many bytes.
    To(usize),
    /// There was no room for it.
    NoRoom,
}

/// 30 days, in seconds.
const LONGEST_SPAN: u64 = 2_592_000;

/// A datagram's place in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerFrame {
    /// The id of the request.
    pub request: u16,
    /// Its number among the answer's datagrams, counted from 0.
    pub number: u16,
    /// How many these are; 0: the answer is that there is none.
    pub total: u16,
}

/// The payload of a UDP datagram, as far as it is at hand.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    payload: &'a [u8],
    length: usize,
}

impl<'a> Datagram<'a> {
    /// All of a datagram's payload.
    #[inline]
    #[must_use]
    pub const fn whole(payload: &'a [u8]) -> Self {
        Self { payload, length: payload.len() }
    }

    /// The payload in a datagram's first IP fragment, and how long the payload of the whole datagram is by its UDP header.
    /// Bytes beyond that length are padding and are cut.
    #[inline]
    #[must_use]
    pub fn first_piece(payload: &'a [u8], length: u16) -> Self {
        let length = usize::from(length);
        Self { payload: payload.get(..length).unwrap_or(payload), length }
    }

    /// What is at hand.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Bytes of the whole payload: those at hand and those of later fragments.
    #[inline]
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// Whether all of it is at hand.
    #[inline]
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.payload.len() == self.length
    }
}

/// One request: what becomes of it, and where its keys stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// How it is served when its keys are of several servers.
    pub plan: Plan,
    /// What it does to its keys.
    pub effect: Effect,
    /// Number of the verb, for counters: [`Verb::number`](crate::Verb::number). A protocol of other verbs has
    /// [`Verb::Request`](crate::Verb::Request).
    pub verb: u8,
    /// Number of keys. 0 for [`Plan::Keyless`] alone.
    pub keys: u16,
    /// Offset behind the last key, where [`Application::items`] ends.
    pub end: u16,
    /// The first key; empty where there is none.
    pub first: Item,
}

const _: () = assert!(size_of::<Ask>() <= 32); // a batch of them stands beside the packets' state

impl Ask {
    /// A request with one key.
    #[inline]
    #[must_use]
    pub const fn one(verb: u8, effect: Effect, key: Item) -> Self {
        let end = key.start.saturating_add(key.len);
        Self { plan: Plan::One, effect, verb, keys: 1, end, first: key }
    }

    /// A request without a key.
    #[inline]
    #[must_use]
    pub const fn keyless(verb: u8) -> Self {
        Self { plan: Plan::Keyless, effect: Effect::None, verb, keys: 0, end: 0, first: Item::EMPTY }
    }
}

/// A client's request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its datagram, whole.
    pub payload: &'a [u8],
    /// What was read of it.
    pub ask: &'a Ask,
}

/// How a request is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Plan {
    /// One key, one server.
    One,
    /// Several keys, one reply: whose keys are on several servers wants the replies joined.
    Join,
    /// No key: any server will do, so the flow decides.
    Keyless,
}

/// What a request does to its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// Reads.
    Read {
        /// The reply depends on key and value alone, so that a copy may give it.
        cacheable: bool,
    },
    /// Changes what is stored, whatever was there: the same at every replica.
    Write,
    /// Changes what is stored by what was there: replicas that differ would stay different.
    Conditional,
    /// Touches no key.
    None,
}

/// Where a key stands in a payload, and how it is written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Offset of its first byte.
    pub start: u16,
    /// Bytes as written.
    pub len: u16,
    /// How it is written.
    pub encoding: Encoding,
}

impl Item {
    /// No key.
    pub(crate) const EMPTY: Self = Self { start: 0, len: 0, encoding: Encoding::Raw };

    /// The key as written; empty where `payload` is shorter than the one that it was read from.
    #[inline]
    #[must_use]
    pub fn bytes<'a>(&self, payload: &'a [u8]) -> &'a [u8] {
        let start = usize::from(self.start);
        payload.get(start..start + usize::from(self.len)).unwrap_or_default()
    }

    /// The key at these offsets, if both fit: a UDP payload has fewer bytes than `u16` counts.
    #[inline]
    pub(crate) fn raw(start: usize, len: usize) -> Option<Self> {
        let (start, len) = (u16::try_from(start).ok()?, u16::try_from(len).ok()?);
        Some(Self { start, len, encoding: Encoding::Raw })
    }
}

/// How a key is written in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// As it is stored.
    Raw,
    /// In base64 (RFC 4648 §4, padded).
    Base64,
}

/// Room for a key that has to be decoded: one a thread.
#[derive(Clone, Debug)]
pub struct KeyRoom([u8; DECODED]);

/// What 250 letters of base64 decode to, in whole groups of three.
const DECODED: usize = 189;

impl KeyRoom {
    /// The room, to decode into.
    #[inline]
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Default for KeyRoom {
    fn default() -> Self {
        Self([0; DECODED])
    }
}
