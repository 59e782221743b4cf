//! What servers are asked by us, and what they answer.
//!
//! In: what a protocol reads of a server's answer. Out: words for it, and for why a datagram is none.
//! Not here: bytes of a protocol, sockets, who waits for what (`exchange`, `gather`).
//! Invariant: offsets of a [`Value`] lie in the answer that it was read from; with another payload they name other bytes or none.

use thiserror::Error;

/// What a request of our own carries, so that its answer is known by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnId {
    /// The request id: [`crate::ExchangeId::request`].
    pub request: u16,
    /// What nobody else can know: a keyed hash of a counter. A protocol with less room carries its lower bits.
    pub nonce: u64,
}

/// What a server says of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The key, as stored.
    pub key: &'a [u8],
    /// What the server has under it.
    pub content: Content,
}

/// What a server has under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A value, whole in this datagram.
    Value(Value),
    /// Nothing.
    Missing,
    /// A value that goes on in further datagrams. Those carry nothing but a request id of 16 bits and cannot be distinguished
    /// from forged ones, so that they are not waited for.
    TooLong,
}

/// A value, and where it lies in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Offset of its first byte.
    pub start: u16,
    /// Its bytes.
    pub len: u16,
    /// Flags that clients store with it.
    pub flags: u32,
    /// Its version; 0 where it was not asked for.
    pub cas: u64,
}

impl Value {
    /// With its bytes; empty where `answer` is not the payload that it was read from.
    #[must_use]
    pub fn within<'a>(&self, answer: &'a [u8]) -> Stored<'a> {
        let start = usize::from(self.start);
        let bytes = answer.get(start..start + usize::from(self.len)).unwrap_or_default();
        Stored { flags: self.flags, cas: self.cas, bytes }
    }
}

/// What a reply says of a key that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored<'a> {
    /// Flags that clients store with a value.
    pub flags: u32,
    /// The value's version.
    pub cas: u64,
    /// The value.
    pub bytes: &'a [u8],
}

/// What a server is asked for a key that is to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fetch<'a> {
    /// The key, as stored.
    pub key: &'a [u8],
    /// The version of the copy that there is: the version alone is asked for. `None`: the value.
    pub known: Option<u64>,
    /// The server is to count the key as used, so that it keeps it.
    pub touches: bool,
}

impl<'a> Fetch<'a> {
    /// With these fields.
    #[must_use]
    pub const fn new(key: &'a [u8], known: Option<u64>, touches: bool) -> Self {
        Self { key, known, touches }
    }
}

/// What a server says to a [`Fetch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched<'a> {
    /// The key, as stored.
    pub key: &'a [u8],
    /// What the server has under it.
    pub content: FetchedContent,
}

/// What a server has under a key that is to be copied. Times to live are in seconds; `None`: for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchedContent {
    /// A value, whole in the answer.
    Value {
        /// It.
        value: Value,
        /// How long it lives.
        ttl: Option<u32>,
        /// It was stored by a name in base64, and the answer has that name.
        is_base64: bool,
    },
    /// A value of that version, which was asked for alone.
    Version {
        /// The version.
        cas: u64,
        /// How long it lives.
        ttl: Option<u32>,
    },
    /// Nothing that may be copied: no value, one that goes on in further datagrams, or one that the server has a client make anew.
    Nothing,
}

/// A copy, as [`crate::Application::write_hit`] tells it to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied<'a> {
    /// The key, as stored.
    pub key: &'a [u8],
    /// The value.
    pub stored: Stored<'a>,
    /// Seconds that it lived when its server was asked; `None`: for ever.
    pub ttl: Option<u32>,
    /// It was stored by a name in base64, and the answer has that name.
    pub is_base64: bool,
    /// The reply that was [prepared](crate::Application::prepare_hit); empty: none was.
    pub prepared: &'a [u8],
    /// What [`crate::CacheConfig::sum`] says of that.
    pub sum: u16,
}

impl<'a> Copied<'a> {
    /// Of a value that lives for ever.
    #[must_use]
    pub const fn new(key: &'a [u8], stored: Stored<'a>) -> Self {
        Self { key, stored, ttl: None, is_base64: false, prepared: &[], sum: 0 }
    }
}

/// What a server says of a request that changes what is stored, whatever that was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was carried out.
    Done,
    /// It was, and there was nothing under the key.
    NotFound,
    /// It was not, for a reason that the protocol has a number for.
    Refused(u16),
}

/// Why a datagram is no answer to a request of ours.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoAnswer {
    /// The protocol, or this kind of request, is never asked by us.
    #[error("requests of this kind are not asked by the balancer")]
    NeverAsked,
    /// It ends within its own header, or its lengths do not give that of the datagram.
    #[error("the answer is malformed")]
    Malformed,
    /// Another request's id.
    #[error("the answer has another request's id")]
    OtherRequest,
    /// Another request's nonce, or none: an error that a server reports has none.
    #[error("the answer does not carry the request's nonce")]
    OtherNonce,
    /// About a key that was not asked for.
    #[error("the answer is for another key")]
    OtherKey,
    /// The second datagram of an answer, or a later one.
    #[error("the datagram continues an answer, and carries nothing that shows whose")]
    Continuation,
}
