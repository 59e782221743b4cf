//! The memcached protocol over UDP, with ASCII, binary and meta commands.
//!
//! [`Memcached`] parses a datagram into an [`Ask`] or refuses it. The submodules `parts`, `answers`
//! and `replies` split requests and combine the answers. `fetches` and `hits` fill the cache and
//! reply from it, `replicas` replicates writes, `expiry` limits times to live, and `quiet` detects
//! writes without a reply.
//!
//! A datagram is accepted only if memcached would also parse it as exactly one command with the
//! same keys, and the command ends at the last byte of the datagram. Some requests that memcached
//! tolerates are refused. Tests compare each case with the recorded behavior of memcached 1.6.18.
//!
//! References: memcached 1.6 `doc/protocol.txt`, `proto_text.c`, `proto_bin.c`, `proto_parser.c`.

mod answers;
mod ascii;
mod binary;
mod expiry;
mod fetches;
mod frame;
mod hits;
mod meta;
mod parts;
mod quiet;
mod replicas;
mod replies;
mod verb;
mod window;
mod words;

#[cfg(test)]
mod tests;

use std::ops::ControlFlow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use self::frame::Frame;
pub use self::verb::Verb;

use crate::{
    Answer, AnswerFrame, Application, Ask, Copied, Datagram, Effect, Encoding, Fetch, Fetched, Item, KeyRoom,
    NoAnswer, Outcome, OwnId, Plan, Prepared, Refusal, Replicated, Request, ShortLife, Shortened, Stored,
};

/// The maximum length of a key in bytes.
pub const MAX_KEY_BYTES: usize = 250;

/// The memcached protocol with ASCII, binary and meta commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memcached {
    max_keys: u16,
    refuses_versions: bool,
}

impl Memcached {
    /// Creates the protocol. Requests with more than `max_keys` keys are refused.
    #[must_use]
    pub const fn new(max_keys: u16) -> Self {
        Self { max_keys, refuses_versions: false }
    }

    /// Refuses meta commands with the flag `E`, which sets the version (CAS) of a value. A cache
    /// renews a value if its version is unchanged, so clients of a cache must not choose versions.
    #[must_use]
    pub const fn refusing_versions(self) -> Self {
        Self { refuses_versions: true, ..self }
    }
}

impl Application for Memcached {
    #[inline]
    fn read(&self, datagram: Datagram<'_>) -> Result<Ask, Refusal> {
        if frame::first_byte(datagram)? == binary::REQUEST {
            return binary::read(datagram, self.max_keys);
        }
        let ask = ascii::read(datagram, self.max_keys)?;
        if self.refuses_versions && meta::sets_version(datagram.payload(), &ask) {
            return Err(Refusal::BadFlag);
        }
        Ok(ask)
    }

    fn items(&self, payload: &[u8], ask: &Ask, each: &mut dyn FnMut(Item) -> ControlFlow<()>) {
        match ask.plan {
            Plan::Keyless => {}
            Plan::One => {
                let _ = each(ask.first);
            }
            Plan::Join if payload.get(frame::LENGTH) == Some(&binary::REQUEST) => {
                binary::items(payload, ask, each)
            }
            Plan::Join => ascii::items(payload, ask, each),
        }
    }

    #[inline]
    fn key<'a>(&self, payload: &'a [u8], item: &Item, room: &'a mut KeyRoom) -> &'a [u8] {
        let written = item.bytes(payload);
        match item.encoding {
            Encoding::Raw => written,
            Encoding::Base64 => decode(written, room).unwrap_or_default(),
        }
    }

    fn shorten_life(&self, request: &Request<'_>, life: ShortLife, out: &mut [u8]) -> Shortened {
        expiry::shorten(request, life, out)
    }

    fn write_part(
        &self,
        request: &Request<'_>,
        items: &mut dyn Iterator<Item = Item>,
        own: OwnId,
        out: &mut [u8],
    ) -> Option<usize> {
        parts::write(request, items, own, out)
    }

    fn answer_frame(&self, payload: &[u8]) -> Option<AnswerFrame> {
        let (Frame { id, sequence, total }, _) = frame::answer(payload)?;
        Some(AnswerFrame { request: id, number: sequence, total })
    }

    fn read_answer<'a>(
        &self,
        request: &Request<'_>,
        own: OwnId,
        payload: &'a [u8],
        room: &'a mut KeyRoom,
    ) -> Result<Answer<'a>, NoAnswer> {
        answers::read(request, own, payload, room)
    }

    fn reply_datagrams<'a>(
        &self,
        request: &Request<'_>,
        found: &dyn Fn(u16) -> Option<Stored<'a>>,
    ) -> Option<u16> {
        replies::datagrams(request, found)
    }

    fn write_reply<'a>(
        &self,
        request: &Request<'_>,
        found: &dyn Fn(u16) -> Option<Stored<'a>>,
        number: u16,
        out: &mut [u8],
    ) -> Option<usize> {
        replies::write(request, found, number, out)
    }

    fn write_fetch(&self, fetch: &Fetch<'_>, own: OwnId, out: &mut [u8]) -> Option<usize> {
        fetches::write(fetch, own, out)
    }

    fn read_fetched<'a>(
        &self,
        fetch: &Fetch<'_>,
        own: OwnId,
        payload: &'a [u8],
        room: &'a mut KeyRoom,
    ) -> Result<Fetched<'a>, NoAnswer> {
        fetches::read(fetch, own, payload, room)
    }

    #[inline]
    fn write_hit(&self, request: &Request<'_>, copied: &Copied<'_>, out: &mut [u8]) -> Option<usize> {
        hits::write(request, copied, out)
    }

    fn prepare_hit(&self, key: &[u8], stored: &Stored<'_>, out: &mut [u8]) -> Option<Prepared> {
        hits::prepare(key, stored, out)
    }

    #[inline]
    fn write_front(&self, request: &Request<'_>, out: &mut [u8]) -> Option<usize> {
        hits::write_front(request, out)
    }

    fn is_acknowledged(&self, request: &Request<'_>) -> bool {
        quiet::is_acknowledged(request)
    }

    fn has_answer(&self, request: &Request<'_>) -> bool {
        quiet::has_answer(request)
    }

    fn replicated(&self, request: &Request<'_>) -> Option<Replicated> {
        replicas::replicated(request)
    }

    fn write_replica(
        &self,
        request: &Request<'_>,
        life: Option<ShortLife>,
        own: OwnId,
        out: &mut [u8],
    ) -> Option<usize> {
        replicas::write(request, life, own, out)
    }

    fn read_outcome(&self, request: &Request<'_>, own: OwnId, payload: &[u8]) -> Result<Outcome, NoAnswer> {
        replicas::read(request, own, payload)
    }

    fn write_outcome(&self, request: &Request<'_>, outcome: Outcome, out: &mut [u8]) -> Option<usize> {
        replicas::write_outcome(request, outcome, out)
    }

    fn write_unsupported(&self, request: &Request<'_>, out: &mut [u8]) -> Option<usize> {
        replicas::write_unsupported(request, out)
    }
}

/// Decodes a base64 key, which must be in canonical form. Memcached skips invalid characters and
/// ignores surplus bits, so without this rule the same key could be written in several ways.
fn decode<'a>(written: &[u8], room: &'a mut KeyRoom) -> Result<&'a [u8], Refusal> {
    let bytes = room.bytes();
    let len = STANDARD.decode_slice(written, bytes).map_err(|_| Refusal::BadBase64)?;
    bytes.get(..len).ok_or(Refusal::BadBase64)
}

/// Returns the raw key with this offset and length, if memcached accepts a key of this length.
#[inline]
fn item(start: usize, len: usize) -> Result<Item, Refusal> {
    match len {
        0 => Err(Refusal::KeyEmpty),
        1..=MAX_KEY_BYTES => Item::raw(start, len).ok_or(Refusal::WrongLength),
        _ => Err(Refusal::KeyTooLong),
    }
}

/// The effect of a read that may be answered from the cache.
const CACHEABLE: Effect = Effect::Read { cacheable: true };
const UNCACHED: Effect = Effect::Read { cacheable: false };
