//! Parses servers' answers to the upstream requests that the module `parts` writes.
//!
//! The caller checks the source address and the destination port. An accepted answer contains the
//! request id, the nonce (64 bits in text, 32 bits in binary), a key, and only fields that were
//! requested.
//!
//! References: memcached 1.6 `doc/protocol.txt`, `proto_text.c` (`process_mget_command`),
//! `proto_bin.c`.

use memchr::memchr;

use crate::{Answer, Content, KeyRoom, MAX_KEY_BYTES, NoAnswer, OwnId, Request, Value};

use super::frame::{self, Frame};
use super::parts::{Kind, opaque};
use super::{binary, decode, words};

pub(super) fn read<'a>(
    request: &Request<'_>,
    own: OwnId,
    payload: &'a [u8],
    room: &'a mut KeyRoom,
) -> Result<Answer<'a>, NoAnswer> {
    let kind = Kind::of(request).ok_or(NoAnswer::NeverAsked)?;
    let datagram = Datagram::first(own, payload)?;
    match kind {
        Kind::Text { has_cas, .. } => datagram.text(own, has_cas, room),
        Kind::Batch => datagram.binary(own),
    }
}

/// The first datagram of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram<'a> {
    pub(super) payload: &'a [u8],
    pub(super) goes_on: bool,
}

/// The parsed first line of an answer to `mg`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    pub(super) flags: Flags<'a>,
    pub(super) status: Status,
}

/// The status at the start of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// `VA` with the start and the length of the value. The field is `None` if the value continues
    /// in a later datagram.
    Value(Option<(u16, u16)>),
    /// `HD`.
    Header,
    /// `EN`.
    Missing,
}

impl<'a> Datagram<'a> {
    /// Returns the payload if it is the first datagram of an answer to the upstream request with
    /// the identifiers `own`.
    pub(super) fn first(own: OwnId, payload: &'a [u8]) -> Result<Self, NoAnswer> {
        let (frame, _) = frame::answer(payload).ok_or(NoAnswer::Malformed)?;
        match frame {
            Frame { id, .. } if id != own.request => Err(NoAnswer::OtherRequest),
            Frame { sequence: 0, total: 1.., .. } => Ok(Self { payload, goes_on: frame.total > 1 }),
            // Servers send a frame with a total of 0 after a quiet read that misses, but upstream
            // requests are not quiet.
            Frame { total: 0, .. } => Err(NoAnswer::OtherNonce),
            _ => Err(NoAnswer::Continuation),
        }
    }

    /// Parses `VA BYTES FLAG*` with the value and CR LF, `HD FLAG*`, or `EN FLAG*`.
    pub(super) fn line(self, own: OwnId) -> Result<Line<'a>, NoAnswer> {
        let text = self.payload.get(frame::LENGTH..).unwrap_or_default();
        let stop = memchr(b'\n', text).ok_or(NoAnswer::OtherNonce)?;
        let line = text.get(..stop).and_then(|line| line.strip_suffix(b"\r")).ok_or(NoAnswer::Malformed)?;
        let mut words = line.split(|&byte| byte == b' ');
        let (status, bytes) = match words.next() {
            Some(b"VA") => (Status::Value(None), Some(number(words.next().unwrap_or_default())?)),
            Some(b"HD") => (Status::Header, None),
            Some(b"EN") => (Status::Missing, None),
            _ => return Err(NoAnswer::OtherNonce),
        };
        let flags = Flags::read(words, own)?;
        let start = frame::LENGTH + stop + 1;
        let Some(bytes) = bytes else {
            let is_all = self.payload.len() == start && !self.goes_on;
            return is_all.then_some(Line { flags, status }).ok_or(NoAnswer::Malformed);
        };
        let value = self.value(start, bytes, 2)?;
        if !self.goes_on && !self.payload.ends_with(b"\r\n") {
            return Err(NoAnswer::Malformed);
        }
        Ok(Line { flags, status: Status::Value(value) })
    }

    /// Parses the answer to an upstream request in the text protocol.
    fn text(self, own: OwnId, has_cas: bool, room: &'a mut KeyRoom) -> Result<Answer<'a>, NoAnswer> {
        let Line { flags, status } = self.line(own)?;
        let key = flags.key(room)?;
        let Status::Value(value) = status else {
            let is_missing = status == Status::Missing && flags.ttl.is_none();
            return is_missing
                .then_some(Answer { key, content: Content::Missing })
                .ok_or(NoAnswer::Malformed);
        };
        let is_asked = flags.cas.is_some() == has_cas && flags.ttl.is_none();
        let stored = flags.stored.filter(|_| is_asked).ok_or(NoAnswer::Malformed)?;
        let content = value.map_or(Content::TooLong, |(start, len)| {
            Content::Value(Value { start, len, flags: stored, cas: flags.cas.unwrap_or_default() })
        });
        Ok(Answer { key, content })
    }

    /// Parses the answer to a GETK command.
    fn binary(self, own: OwnId) -> Result<Answer<'a>, NoAnswer> {
        let behind = self.payload.get(frame::LENGTH..).unwrap_or_default();
        let (header, body) = behind.split_first_chunk::<{ binary::LENGTH }>().ok_or(NoAnswer::Malformed)?;
        let &[magic, opcode, k0, k1, extras, _, s0, s1, b0, b1, b2, b3, o0, o1, o2, o3, ref cas @ ..] =
            header;
        if (magic, opcode, [o0, o1, o2, o3]) != (binary::RESPONSE, binary::GETK, opaque(own)) {
            return Err(NoAnswer::OtherNonce);
        }
        let (extras, key) = (usize::from(extras), usize::from(u16::from_be_bytes([k0, k1])));
        let total = u64::from(u32::from_be_bytes([b0, b1, b2, b3]));
        let bytes = total.checked_sub((extras + key) as u64).ok_or(NoAnswer::Malformed)?;
        let start = frame::LENGTH + binary::LENGTH + extras + key;
        let key = body.get(extras..extras + key).filter(|key| (1..=MAX_KEY_BYTES).contains(&key.len()));
        let key = key.ok_or(NoAnswer::Malformed)?;
        let content = match (u16::from_be_bytes([s0, s1]), body.first_chunk::<4>(), extras) {
            (0, Some(flags), 4) => self.value(start, bytes, 0)?.map_or(Content::TooLong, |(start, len)| {
                let (flags, cas) = (u32::from_be_bytes(*flags), u64::from_be_bytes(*cas));
                Content::Value(Value { start, len, flags, cas })
            }),
            (NOT_FOUND, _, 0) if bytes == 0 && self.payload.len() == start && !self.goes_on => {
                Content::Missing
            }
            _ => return Err(NoAnswer::Malformed),
        };
        Ok(Answer { key, content })
    }

    /// Returns the start and the length of a value that is `bytes` bytes long and is followed by
    /// `tail` bytes. Returns `None` if the value continues in a later datagram.
    fn value(&self, start: usize, bytes: u64, tail: u64) -> Result<Option<(u16, u16)>, NoAnswer> {
        let left = self.payload.len().checked_sub(start).ok_or(NoAnswer::Malformed)? as u64;
        match bytes.saturating_add(tail) {
            all if all == left && !self.goes_on => {}
            all if all > left && self.goes_on => return Ok(None),
            _ => return Err(NoAnswer::Malformed),
        }
        let (start, bytes) = (u16::try_from(start), u16::try_from(bytes));
        start.and_then(|start| Ok(Some((start, bytes?)))).map_err(|_| NoAnswer::Malformed)
    }
}

/// The flags in an answer to `mg`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags<'a> {
    key: Option<&'a [u8]>,
    pub(super) is_base64: bool,
    has_nonce: bool,
    pub(super) stored: Option<u32>,
    pub(super) cas: Option<u64>,
    /// The time to live in seconds. `Some(None)` means that the value does not expire.
    pub(super) ttl: Option<Option<u32>>,
    /// `true` if the value is stale and must be refilled by a client.
    pub(super) is_stale: bool,
}

impl<'a> Flags<'a> {
    pub(super) fn read(words: impl Iterator<Item = &'a [u8]>, own: OwnId) -> Result<Self, NoAnswer> {
        let mut read = Self::default();
        for word in words {
            match word {
                [b'k', key @ ..] if read.key.is_none() => read.key = Some(key),
                [b'O', nonce @ ..] if !read.has_nonce => {
                    read.has_nonce = hexadecimal(nonce) == Some(own.nonce);
                    if !read.has_nonce {
                        return Err(NoAnswer::OtherNonce);
                    }
                }
                [b'f', flags @ ..] if read.stored.is_none() => {
                    read.stored = Some(u32::try_from(number(flags)?).map_err(|_| NoAnswer::Malformed)?);
                }
                [b'c', cas @ ..] if read.cas.is_none() => read.cas = Some(number(cas)?),
                // memcached reports a base64 key even if this flag was not requested
                [b'b'] if !read.is_base64 => read.is_base64 = true,
                [b't', b'-', b'1'] if read.ttl.is_none() => read.ttl = Some(None),
                [b't', ttl @ ..] if read.ttl.is_none() => {
                    read.ttl = Some(Some(u32::try_from(number(ttl)?).map_err(|_| NoAnswer::Malformed)?));
                }
                // memcached sends the flags W (won), X (stale) and Z (already won) even if they
                // were not requested
                [b'W' | b'X' | b'Z'] => read.is_stale = true,
                _ => return Err(NoAnswer::Malformed),
            }
        }
        if read.has_nonce { Ok(read) } else { Err(NoAnswer::OtherNonce) }
    }

    pub(super) fn key(&self, room: &'a mut KeyRoom) -> Result<&'a [u8], NoAnswer> {
        let key =
            self.key.filter(|key| (1..=MAX_KEY_BYTES).contains(&key.len())).ok_or(NoAnswer::Malformed)?;
        if self.is_base64 { decode(key, room).map_err(|_| NoAnswer::Malformed) } else { Ok(key) }
    }
}

fn number(digits: &[u8]) -> Result<u64, NoAnswer> {
    words::unsigned(digits).map_err(|_| NoAnswer::Malformed)
}

/// Parses 16 lowercase hexadecimal digits, which is the format of nonces in upstream requests.
fn hexadecimal(digits: &[u8]) -> Option<u64> {
    let lower = digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let digits = str::from_utf8(digits).ok().filter(|digits| lower && digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

/// The binary status code for a missing key.
const NOT_FOUND: u16 = 1;
