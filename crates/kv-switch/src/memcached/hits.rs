//! Writes replies from cached values, exactly as memcached would write them.
//!
//! The server answers all requests that this module cannot answer, such as misses, requests for
//! several keys, `gets`, and commands that touch or create values. The caller decides whether a
//! cached value may be served. A reply has the same bytes as the reply of memcached, and fits into
//! one datagram.
//!
//! References: memcached 1.6 `doc/protocol.txt`, `proto_text.c`, `proto_bin.c`. The behavior was
//! checked with memcached 1.6.18 (`tests/servers.rs`).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::{Copied, MAX_KEY_BYTES, Plan, Prepared, Request, Stored};

use super::frame::{self, Frame};
use super::words::Words;
use super::{Verb, binary};

pub(super) fn write(request: &Request<'_>, copied: &Copied<'_>, out: &mut [u8]) -> Option<usize> {
    let (asked, command) = frame::answer(request.payload)?;
    if request.ask.plan != Plan::One {
        return None;
    }
    let mut reply = Reply::new(out, LONGEST)?;
    reply.put(&front(asked));
    if command.first() == Some(&binary::REQUEST) {
        binary_get(request, copied, &mut reply)?;
    } else if request.ask.verb == Verb::Get.number() {
        get(copied.key, &copied.stored, &mut reply);
    } else if request.ask.verb == Verb::MetaGet.number() {
        meta(request, copied, &mut reply)?;
    } else {
        return None;
    }
    reply.is_whole.then_some(reply.at)
}

/// Writes the reply to `get`, without the frame.
pub(super) fn prepare(key: &[u8], stored: &Stored<'_>, out: &mut [u8]) -> Option<Prepared> {
    let mut reply = Reply::new(out, LONGEST - frame::LENGTH)?;
    let value = get(key, stored, &mut reply);
    reply.is_whole.then_some(Prepared { length: reply.at, key: VALUE.len(), value })
}

/// Writes the frame for a prepared reply to `get`.
#[inline]
pub(super) fn write_front(request: &Request<'_>, out: &mut [u8]) -> Option<usize> {
    let (asked, command) = frame::answer(request.payload)?;
    let is_get = request.ask.verb == Verb::Get.number() && command.first() != Some(&binary::REQUEST);
    if !is_get || request.ask.plan != Plan::One {
        return None;
    }
    *out.first_chunk_mut()? = front(asked);
    Some(frame::LENGTH)
}

#[inline]
fn front(asked: Frame) -> [u8; frame::LENGTH] {
    Frame { id: asked.id, sequence: 0, total: 1 }.bytes()
}

/// Writes `VALUE KEY FLAGS BYTES`, the value and `END`. Returns the offset of the value.
fn get(key: &[u8], stored: &Stored<'_>, reply: &mut Reply<'_>) -> usize {
    reply.put(VALUE);
    reply.put(key);
    reply.put(b" ");
    reply.number(stored.flags.into());
    reply.put(b" ");
    reply.number(stored.bytes.len() as u64);
    reply.put(b"\r\n");
    let value = reply.at;
    reply.put(stored.bytes);
    reply.put(b"\r\nEND\r\n");
    value
}

/// Writes the reply to a binary read command. Replies to GETK and GETKQ contain the key, and
/// replies to GET and GETQ do not.
fn binary_get(request: &Request<'_>, copied: &Copied<'_>, reply: &mut Reply<'_>) -> Option<()> {
    let header = binary::Header::at(request.payload, frame::LENGTH)?;
    let key = match header.opcode {
        binary::GET | binary::GETQ => &[],
        binary::GETK | binary::GETKQ => copied.key,
        _ => return None,
    };
    let [high, low] = u16::try_from(key.len()).ok()?.to_be_bytes();
    let body = u32::try_from(FLAGS + key.len() + copied.stored.bytes.len()).ok()?;
    reply.put(&[binary::RESPONSE, header.opcode, high, low, 4, 0, 0, 0]);
    reply.put(&body.to_be_bytes());
    reply.put(&header.opaque);
    reply.put(&copied.stored.cas.to_be_bytes());
    reply.put(&copied.stored.flags.to_be_bytes());
    reply.put(key);
    reply.put(copied.stored.bytes);
    Some(())
}

/// Writes `VA BYTES FLAG*` and the value, or `HD FLAG*`. The flags have the same order as in the
/// request.
fn meta(request: &Request<'_>, copied: &Copied<'_>, reply: &mut Reply<'_>) -> Option<()> {
    let behind = usize::from(request.ask.first.start) + usize::from(request.ask.first.len);
    let end = request.payload.len().checked_sub(2)?;
    let flags = Words::between(request.payload, behind, end);
    let has_value = flags.into_iter().any(|word| word.text == b"v");
    if has_value {
        reply.put(b"VA ");
        reply.number(copied.stored.bytes.len() as u64);
    } else {
        reply.put(b"HD");
    }
    for word in Words::between(request.payload, behind, end) {
        flag(word.text, copied, reply)?;
    }
    reply.put(b"\r\n");
    if has_value {
        reply.put(copied.stored.bytes);
        reply.put(b"\r\n");
    }
    Some(())
}

fn flag(word: &[u8], copied: &Copied<'_>, reply: &mut Reply<'_>) -> Option<()> {
    match word {
        b"v" | b"q" | b"b" => {}
        b"k" if copied.is_base64 => {
            let mut room = [0; MAX_KEY_BYTES.div_ceil(3) * 4];
            let len = STANDARD.encode_slice(copied.key, &mut room).ok()?;
            reply.put(b" k");
            reply.put(room.get(..len)?);
            reply.put(b" b");
        }
        b"k" => {
            reply.put(b" k");
            reply.put(copied.key);
        }
        b"f" => reply.field(b" f", copied.stored.flags.into()),
        b"s" => reply.field(b" s", copied.stored.bytes.len() as u64),
        b"c" => reply.field(b" c", copied.stored.cas),
        b"t" => match copied.ttl {
            Some(seconds) => reply.field(b" t", seconds.into()),
            None => reply.put(b" t-1"),
        },
        [b'O', ..] => {
            reply.put(b" ");
            reply.put(word);
        }
        _ => return None, // the cache does not store the data that this flag requests
    }
    Some(())
}

/// A reply that is being written.
struct Reply<'a> {
    out: &'a mut [u8],
    at: usize,
    is_whole: bool,
}

impl<'a> Reply<'a> {
    /// Creates an empty reply of at most `longest` bytes.
    #[inline]
    fn new(out: &'a mut [u8], longest: usize) -> Option<Self> {
        let length = out.len().min(longest);
        Some(Self { out: out.get_mut(..length)?, at: 0, is_whole: true })
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        match self.out.get_mut(self.at..self.at + bytes.len()) {
            Some(room) => room.copy_from_slice(bytes),
            None => self.is_whole = false,
        }
        self.at += bytes.len();
    }

    fn field(&mut self, letter: &[u8], number: u64) {
        self.put(letter);
        self.number(number);
    }

    /// Writes a decimal number. Formatting with `fmt` would take longer than writing the rest of
    /// the reply.
    #[inline]
    fn number(&mut self, mut number: u64) {
        let (mut digits, mut from) = ([b'0'; MOST_DIGITS], MOST_DIGITS);
        loop {
            from -= 1;
            if let Some(digit) = digits.get_mut(from) {
                *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
            }
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.put(digits.get(from..).unwrap_or_default());
    }
}

const VALUE: &[u8] = b"VALUE ";
/// The maximum number of decimal digits of a `u64`.
const MOST_DIGITS: usize = 20;
/// The length of the client flags in bytes.
const FLAGS: usize = 4;
/// The maximum length of a reply in one datagram. Servers split longer replies.
const LONGEST: usize = frame::LENGTH + 1_392;
