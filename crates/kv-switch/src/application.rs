//! The trait [`Application`], which is implemented for each key-value protocol, and the types of
//! parsed requests.
//!
//! The forwarder uses this trait to parse a request into an [`Ask`]. The `Ask` contains the offsets
//! of the keys instead of their bytes. The offsets refer to the payload from which the `Ask` was
//! parsed. Applied to a different payload, the offsets select unrelated bytes or an empty slice,
//! but never cause a panic.

use std::fmt;
use std::ops::ControlFlow;

use crate::{Answer, Copied, Fetch, Fetched, NoAnswer, Outcome, OwnId, Refusal, Stored};

/// A request-response protocol in which requests contain keys.
///
/// The forwarder uses a protocol only through this trait. An implementation may hold settings, but
/// no state that changes with requests. The methods of an implementation must not allocate memory
/// or read a clock.
///
/// The three required methods are sufficient to route requests by key. The other methods write and
/// parse upstream requests, for example if the keys of a request are on several servers. The
/// default implementations of these other methods report that the operation is not supported.
pub trait Application: fmt::Debug + Send + Sync {
    /// Parses one request.
    ///
    /// # Errors
    /// Returns a [`Refusal`] if a server could parse the datagram differently than this method, or
    /// if the datagram contains several commands or an administrative command.
    fn read(&self, datagram: Datagram<'_>) -> Result<Ask, Refusal>;

    /// Calls `each` with every key of the request in order, including duplicates, until `each`
    /// returns `Break`. `payload` must be the payload from which `ask` was parsed.
    fn items(&self, payload: &[u8], ask: &Ask, each: &mut dyn FnMut(Item) -> ControlFlow<()>);

    /// Returns the key as the server stores it. The result borrows from `payload`, or from `room`
    /// if the key had to be decoded from base64.
    fn key<'a>(&self, payload: &'a [u8], item: &Item, room: &'a mut KeyRoom) -> &'a [u8];

    /// Copies `request` to `out`, and reduces each time to live in the request to at most `life`.
    /// Returns [`Shortened::Unchanged`] if no time to live exceeds `life`. The [`Ask`] of the
    /// original request is also valid for the payload in `out`, except for the field `end` and the
    /// offsets of keys that follow a time to live.
    fn shorten_life(&self, _request: &Request<'_>, _life: ShortLife, _out: &mut [u8]) -> Shortened {
        Shortened::Unchanged
    }

    /// Writes the upstream request for `items` to `out`, as the payload of one datagram. `items`
    /// are the keys of `request` that belong to one server. The server answers each key in a
    /// separate datagram. Returns the length in bytes.
    ///
    /// Returns `None` if the protocol cannot split such a request, if `items` is empty, or if `out`
    /// is too short. If `out` is too short, the caller can retry with fewer keys.
    fn write_part(
        &self,
        _request: &Request<'_>,
        _items: &mut dyn Iterator<Item = Item>,
        _own: OwnId,
        _out: &mut [u8],
    ) -> Option<usize> {
        None
    }

    /// Returns the position of a datagram within the answer of a server, or `None` if the datagram
    /// has no valid frame. The datagrams must begin with the 16-bit request id in network byte
    /// order. A protocol without this id must always return `None`, and its requests cannot be
    /// proxied.
    fn answer_frame(&self, _payload: &[u8]) -> Option<AnswerFrame> {
        None
    }

    /// Returns the request id of a datagram that arrived at a port of the source port pool. The
    /// caller uses this id to find the exchange.
    fn answer_id(&self, payload: &[u8]) -> Option<u16> {
        self.answer_frame(payload).map(|frame| frame.request)
    }

    /// Parses the answer of a server to an upstream request that [`Self::write_part`] wrote with
    /// the identifiers `own`. The caller must check the source address and the destination port.
    /// The key in the result borrows from `payload`, or from `room` if it had to be decoded.
    ///
    /// # Errors
    /// Returns a [`NoAnswer`] if the datagram does not answer the upstream request. The exchange
    /// then stays in progress.
    fn read_answer<'a>(
        &self,
        _request: &Request<'_>,
        _own: OwnId,
        _payload: &'a [u8],
        _room: &'a mut KeyRoom,
    ) -> Result<Answer<'a>, NoAnswer> {
        Err(NoAnswer::NeverAsked)
    }

    /// Returns the number of datagrams in the reply to `request`. `found` returns the stored value
    /// of a key, given the index of the key in the request. Returns `None` if the protocol cannot
    /// split the request, or if the reply would be too long for the protocol.
    fn reply_datagrams<'a>(
        &self,
        _request: &Request<'_>,
        _found: &dyn Fn(u16) -> Option<Stored<'a>>,
    ) -> Option<u16> {
        None
    }

    /// Writes one datagram of the reply to `out` and returns its length in bytes. `number` is the
    /// index of the datagram, starting at 0. Returns `None` if the reply has no such datagram, or
    /// if `out` is too short.
    fn write_reply<'a>(
        &self,
        _request: &Request<'_>,
        _found: &dyn Fn(u16) -> Option<Stored<'a>>,
        _number: u16,
        _out: &mut [u8],
    ) -> Option<usize> {
        None
    }

    /// Writes the upstream request for a cache fetch to `out`, as the payload of one datagram.
    /// Returns the length in bytes, or `None` if the key cannot be cached or `out` is too short.
    fn write_fetch(&self, _fetch: &Fetch<'_>, _own: OwnId, _out: &mut [u8]) -> Option<usize> {
        None
    }

    /// Parses the answer of a server to `fetch`. The arguments are the same as for
    /// [`Self::read_answer`], and the caller must make the same checks.
    ///
    /// # Errors
    /// Returns a [`NoAnswer`] if the datagram does not answer `fetch`.
    fn read_fetched<'a>(
        &self,
        _fetch: &Fetch<'_>,
        _own: OwnId,
        _payload: &'a [u8],
        _room: &'a mut KeyRoom,
    ) -> Result<Fetched<'a>, NoAnswer> {
        Err(NoAnswer::NeverAsked)
    }

    /// Builds the reply to `request` from a cached value, and writes it to `out`. The reply has the
    /// same bytes as the reply that the server would send. The request must read one key and be
    /// cacheable, and the reply must fit into one datagram. Returns the length in bytes, or `None`
    /// if only the server can answer the request or `out` is too short.
    fn write_hit(&self, _request: &Request<'_>, _copied: &Copied<'_>, _out: &mut [u8]) -> Option<usize> {
        None
    }

    /// Writes the most common reply for a value to `out`, without the first bytes of the reply. The
    /// first bytes differ between requests and are written by [`Self::write_front`]. The cache
    /// stores this reply with the value and sends it unchanged. Returns `None` if the protocol has
    /// no such reply, or if `out` is too short.
    fn prepare_hit(&self, _key: &[u8], _stored: &Stored<'_>, _out: &mut [u8]) -> Option<Prepared> {
        None
    }

    /// Writes the bytes that precede a prepared reply to `out`. The conditions of
    /// [`Self::write_hit`] apply to `request`. Returns the length in bytes, or `None` if the
    /// prepared reply is not correct for this request.
    fn write_front(&self, _request: &Request<'_>, _out: &mut [u8]) -> Option<usize> {
        None
    }

    /// Returns `true` if the server may send a reply to the write `request`. Returns `false` if the
    /// server never replies to such a write.
    fn is_acknowledged(&self, _request: &Request<'_>) -> bool {
        true
    }

    /// Returns `false` if the server sends no reply to `request`, whether the request succeeds or
    /// fails. Replies to exceptional errors, such as a lack of memory, are ignored.
    fn has_answer(&self, _request: &Request<'_>) -> bool {
        true
    }

    /// Returns the properties of `request` if the request has the same result on every server that
    /// stores the key. Returns `None` if the result depends on stored data, because such a request
    /// could make the replicas differ even more.
    fn replicated(&self, _request: &Request<'_>) -> Option<Replicated> {
        None
    }

    /// Writes an upstream request to `out` that carries out `request` on one replica, with the time
    /// to live limited to `life`. The upstream request is at most 40 bytes longer than the client's
    /// request. Returns the length in bytes, or `None` if the request is not
    /// [replicated](Self::replicated) or `out` is too short.
    fn write_replica(
        &self,
        _request: &Request<'_>,
        _life: Option<ShortLife>,
        _own: OwnId,
        _out: &mut [u8],
    ) -> Option<usize> {
        None
    }

    /// Parses the answer of a server to a [replicated](Self::replicated) request. The caller must
    /// make the same checks as for [`Self::read_answer`].
    ///
    /// # Errors
    /// Returns a [`NoAnswer`] if the datagram does not answer the request.
    fn read_outcome(
        &self,
        _request: &Request<'_>,
        _own: OwnId,
        _payload: &[u8],
    ) -> Result<Outcome, NoAnswer> {
        Err(NoAnswer::NeverAsked)
    }

    /// Writes the reply to a [replicated](Self::replicated) request to `out`, as one datagram for
    /// the client. Returns the length in bytes, or `None` if the request is not replicated or `out`
    /// is too short.
    fn write_outcome(&self, _request: &Request<'_>, _outcome: Outcome, _out: &mut [u8]) -> Option<usize> {
        None
    }

    /// Writes the error message of the protocol for an unsupported request to `out`, as one
    /// datagram. Returns the length in bytes. Returns `None` if the protocol has no such error, if
    /// the client expects no reply, or if `out` is too short.
    fn write_unsupported(&self, _request: &Request<'_>, _out: &mut [u8]) -> Option<usize> {
        None
    }
}

/// A reply that is written in advance, at the time when a value is stored in the cache. The fields
/// describe the position of the key and the value in the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The length of the reply in bytes.
    pub length: usize,
    /// The offset of the key.
    pub key: usize,
    /// The offset of the value.
    pub value: usize,
}

/// The properties of a write that is sent to all servers of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicated {
    /// `true` if the client expects a reply.
    pub wants_answer: bool,
    /// `true` if the request deletes the key. The client then receives a success reply if at least
    /// one server had the key.
    pub is_removal: bool,
}

/// The maximum time to live of a stored value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortLife {
    /// The time to live in seconds.
    pub seconds: u32,
    /// The current time in seconds since 1970.
    pub now: u32,
}

impl ShortLife {
    /// Returns the reduced time to live, or `None` if `time` does not exceed the limit. `time` has
    /// the format of memcached: 0 means no expiry, values up to 30 days are relative, and larger
    /// values are seconds since 1970.
    pub(crate) fn shorter(self, time: u64) -> Option<u32> {
        let left = match time {
            0 => u64::MAX,
            1..=LONGEST_SPAN => time,
            _ => time.saturating_sub(self.now.into()),
        };
        (left > self.seconds.into()).then_some(self.seconds)
    }
}

/// The result of [`Application::shorten_life`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortened {
    /// No time to live in the request exceeds the limit.
    Unchanged,
    /// The request was rewritten. The field contains the new length of the request in bytes.
    To(usize),
    /// The output buffer is too small for the rewritten request.
    NoRoom,
}

/// The longest relative time to live of memcached, which is 30 days in seconds.
const LONGEST_SPAN: u64 = 2_592_000;

/// The position of a datagram within an answer that may consist of several datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerFrame {
    /// The id of the request.
    pub request: u16,
    /// The index of the datagram within the answer, starting at 0.
    pub number: u16,
    /// The number of datagrams in the answer. The value 0 means that the server sends no answer.
    pub total: u16,
}

/// The payload of a UDP datagram. If the datagram is fragmented, only the start of the payload may
/// be available.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    payload: &'a [u8],
    length: usize,
}

impl<'a> Datagram<'a> {
    /// Creates a datagram whose whole payload is available.
    #[inline]
    #[must_use]
    pub const fn whole(payload: &'a [u8]) -> Self {
        Self { payload, length: payload.len() }
    }

    /// Creates a datagram of which only the first IP fragment is available. `length` is the length
    /// of the whole UDP payload according to the UDP header. Bytes of `payload` after `length` are
    /// padding and are removed.
    #[inline]
    #[must_use]
    pub fn first_piece(payload: &'a [u8], length: u16) -> Self {
        let length = usize::from(length);
        Self { payload: payload.get(..length).unwrap_or(payload), length }
    }

    /// Returns the available bytes of the payload.
    #[inline]
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns the length of the whole payload in bytes, including later fragments.
    #[inline]
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// Returns `true` if the whole payload is available.
    #[inline]
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.payload.len() == self.length
    }
}

/// A parsed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Determines how the request is served if its keys are on several servers.
    pub plan: Plan,
    /// The effect of the request on its keys.
    pub effect: Effect,
    /// The index of the verb (the command of the request) in tables of counters, as returned by
    /// [`Verb::number`](crate::Verb::number). Protocols other than memcached use
    /// [`Verb::Request`](crate::Verb::Request).
    pub verb: u8,
    /// The number of keys, which is 0 only for [`Plan::Keyless`].
    pub keys: u16,
    /// The offset of the first byte after the last key. [`Application::items`] stops at this
    /// offset.
    pub end: u16,
    /// The first key of the request, or an empty item if the request has no key.
    pub first: Item,
}

// An `Ask` must be small, because packet threads store one `Ask` for each packet of a batch.
const _: () = assert!(size_of::<Ask>() <= 32);

impl Ask {
    /// Creates a request with one key.
    #[inline]
    #[must_use]
    pub const fn one(verb: u8, effect: Effect, key: Item) -> Self {
        let end = key.start.saturating_add(key.len);
        Self { plan: Plan::One, effect, verb, keys: 1, end, first: key }
    }

    /// Creates a request without a key.
    #[inline]
    #[must_use]
    pub const fn keyless(verb: u8) -> Self {
        Self { plan: Plan::Keyless, effect: Effect::None, verb, keys: 0, end: 0, first: Item::EMPTY }
    }
}

/// A client request, which consists of the payload and its parsed form.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The complete payload of the datagram.
    pub payload: &'a [u8],
    /// The parsed form of the payload.
    pub ask: &'a Ask,
}

/// Determines how a request is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Plan {
    /// The request has one key, so one server answers it.
    One,
    /// The request has several keys and one reply. If the keys are on several servers, the answers
    /// must be combined into that reply.
    Join,
    /// The request has no key. Any server can answer such a request, so the server is chosen by the
    /// hash of the flow.
    Keyless,
}

/// The effect of a request on its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// The request reads values.
    Read {
        /// `true` if the reply depends only on the key and its value, so that the cache can answer
        /// the request.
        cacheable: bool,
    },
    /// The request changes stored data. The result does not depend on the old value and is the same
    /// on every replica.
    Write,
    /// The request changes stored data, and the result depends on the old value. If the replicas
    /// differ before such a request, they may still differ after it.
    Conditional,
    /// The request uses no key.
    None,
}

/// The position and the encoding of a key in a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The offset of the key, in bytes.
    pub start: u16,
    /// The length of the encoded key, in bytes.
    pub len: u16,
    /// The encoding of the key.
    pub encoding: Encoding,
}

impl Item {
    pub(crate) const EMPTY: Self = Self { start: 0, len: 0, encoding: Encoding::Raw };

    /// Returns the key in its encoded form, or an empty slice if `payload` is too short.
    #[inline]
    #[must_use]
    pub fn bytes<'a>(&self, payload: &'a [u8]) -> &'a [u8] {
        let start = usize::from(self.start);
        payload.get(start..start + usize::from(self.len)).unwrap_or_default()
    }

    /// Returns a key in raw encoding. Returns `None` if an offset exceeds `u16`, which cannot
    /// happen in a UDP payload.
    #[inline]
    pub(crate) fn raw(start: usize, len: usize) -> Option<Self> {
        let (start, len) = (u16::try_from(start).ok()?, u16::try_from(len).ok()?);
        Some(Self { start, len, encoding: Encoding::Raw })
    }
}

/// The encoding of a key in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// The bytes in the request are the key.
    Raw,
    /// The bytes in the request are the base64 form of the key (RFC 4648 §4, padded).
    Base64,
}

/// A buffer for a decoded key. Each packet thread needs its own buffer.
#[derive(Clone, Debug)]
pub struct KeyRoom([u8; DECODED]);

/// The maximum length of a key that is decoded from 250 base64 characters, rounded up to a multiple
/// of three bytes.
const DECODED: usize = 189;

impl KeyRoom {
    /// Returns the buffer for the decoded key.
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
