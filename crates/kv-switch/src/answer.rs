//! Types for servers' answers to upstream requests.
//!
//! The methods of [`Application`](crate::Application) that parse an answer return these types, or a
//! [`NoAnswer`] if the datagram does not answer the request. The offsets in a [`Value`] refer to
//! the answer from which the value was parsed. Applied to a different payload, the offsets select
//! unrelated bytes or an empty slice.

use thiserror::Error;

/// The identifiers that an upstream request contains. The answer to the request must contain the
/// same identifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnId {
    /// The request id in the frame of the protocol. The id is the same number as
    /// [`crate::ExchangeId::request`].
    pub request: u16,
    /// An unpredictable number, computed as a keyed hash of a counter. If the nonce field of a
    /// protocol has fewer than 64 bits, the field contains the low bits of this number.
    pub nonce: u64,
}

/// The answer of a server for one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The key as the server stores it, not base64-encoded.
    pub key: &'a [u8],
    /// The value of the key on the server, or the reason why the answer contains no value.
    pub content: Content,
}

/// The value of a key on a server, or the reason why the answer contains no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The server stores a value for the key, and the datagram contains the whole value.
    Value(Value),
    /// The server stores no value for the key.
    Missing,
    /// The server stores a value for the key that does not fit into one datagram. Such values are
    /// not accepted, because all datagrams after the first are identified only by a 16-bit request
    /// id, which an attacker could guess.
    TooLong,
}

/// A value that a server returned. The bytes of the value stay in the payload of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// The offset of the value in the payload, in bytes.
    pub start: u16,
    /// The length of the value, in bytes.
    pub len: u16,
    /// The client flags that are stored with the value.
    pub flags: u32,
    /// The version (CAS) of the value, or 0 if the version was not requested.
    pub cas: u64,
}

impl Value {
    /// Returns the value with its bytes from `answer`. The bytes are empty if `answer` is too short
    /// for the offsets.
    #[must_use]
    pub fn within<'a>(&self, answer: &'a [u8]) -> Stored<'a> {
        let start = usize::from(self.start);
        let bytes = answer.get(start..start + usize::from(self.len)).unwrap_or_default();
        Stored { flags: self.flags, cas: self.cas, bytes }
    }
}

/// A value with its flags and version, to be written into a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored<'a> {
    /// The client flags that are stored with the value.
    pub flags: u32,
    /// The version (CAS) of the value.
    pub cas: u64,
    /// The bytes of the value.
    pub bytes: &'a [u8],
}

/// An upstream request with which the cache obtains a value or the version of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fetch<'a> {
    /// The key as the server stores it, not base64-encoded.
    pub key: &'a [u8],
    /// The version of the cached value, if the server has to send only the current version of the
    /// key. If `None`, the server has to send the value.
    pub known: Option<u64>,
    /// `true` if the server should mark the key as recently used, which protects it from eviction.
    pub touches: bool,
}

impl<'a> Fetch<'a> {
    /// Creates a request from its fields.
    #[must_use]
    pub const fn new(key: &'a [u8], known: Option<u64>, touches: bool) -> Self {
        Self { key, known, touches }
    }
}

/// A server's answer to a [`Fetch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched<'a> {
    /// The key as the server stores it, not base64-encoded.
    pub key: &'a [u8],
    /// The value or the version that the server returned.
    pub content: FetchedContent,
}

/// The value or the version that a server returned for a [`Fetch`]. A time to live (`ttl`) is in
/// seconds, and `None` means that the value does not expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchedContent {
    /// The server stores a value for the key, and the answer contains the whole value.
    Value {
        /// The value that the server returned.
        value: Value,
        /// The remaining time to live.
        ttl: Option<u32>,
        /// `true` if the server reported that it stores the key in base64 form.
        is_base64: bool,
    },
    /// The server stores a value with this version. The fetch requested only the version of the
    /// value.
    Version {
        /// The version that the server returned.
        cas: u64,
        /// The remaining time to live.
        ttl: Option<u32>,
    },
    /// The server returned no value that may be cached: the key has no value, the value continues
    /// in further datagrams, or the value is stale and a client must store it again.
    Nothing,
}

/// A cached value, from which [`crate::Application::write_hit`] writes the reply to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied<'a> {
    /// The key as the server stores it, not base64-encoded.
    pub key: &'a [u8],
    /// The cached value.
    pub stored: Stored<'a>,
    /// The time to live in seconds that the server reported, or `None` if the value does not
    /// expire.
    pub ttl: Option<u32>,
    /// `true` if the server reported that it stores the key in base64 form.
    pub is_base64: bool,
    /// The reply that [`crate::Application::prepare_hit`] wrote, or an empty slice if no reply was
    /// prepared.
    pub prepared: &'a [u8],
    /// The result of [`crate::CacheConfig::sum`] for the prepared reply.
    pub sum: u16,
}

impl<'a> Copied<'a> {
    /// Creates a cached value that does not expire and has no prepared reply.
    #[must_use]
    pub const fn new(key: &'a [u8], stored: Stored<'a>) -> Self {
        Self { key, stored, ttl: None, is_base64: false, prepared: &[], sum: 0 }
    }
}

/// The result of a write on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server carried out the request.
    Done,
    /// The server carried out the request, but the key did not exist.
    NotFound,
    /// The server refused the request with this status code of the protocol.
    Refused(u16),
}

/// The reason why a datagram is not accepted as the answer to an upstream request.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoAnswer {
    /// The protocol does not support this kind of upstream request.
    #[error("this kind of upstream request is not supported")]
    NeverAsked,
    /// The datagram ends within its header, or its length fields do not match its length.
    #[error("the answer is malformed")]
    Malformed,
    /// The answer carries the id of a different request.
    #[error("the answer carries the id of a different request")]
    OtherRequest,
    /// The datagram contains a different nonce or no nonce. In the text protocol, error messages
    /// from a server contain no nonce.
    #[error("the answer does not carry the nonce of the request")]
    OtherNonce,
    /// The answer is about a key that was not requested.
    #[error("the answer is for a different key")]
    OtherKey,
    /// The datagram is not the first one of an answer, and therefore contains no nonce.
    #[error("the datagram continues an answer and carries no nonce")]
    Continuation,
}
