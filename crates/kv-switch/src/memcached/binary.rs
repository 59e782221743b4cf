//! Parses the binary commands, which begin with the byte 0x80.
//!
//! The header is 24 bytes long. The extras must have the length that servers require for the
//! opcode, and the body must end at the last byte of the datagram. The fields vbucket, data type
//! and opaque are not checked, because servers ignore or echo them.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use crate::{Ask, Datagram, Effect, Item, Plan, Refusal};

use super::{CACHEABLE, Verb, frame, item};

/// The first byte of a request.
pub(super) const REQUEST: u8 = 0x80;

pub(super) fn read(datagram: Datagram<'_>, max_keys: u16) -> Result<Ask, Refusal> {
    let payload = datagram.payload();
    let header = Header::at(payload, frame::LENGTH).ok_or(Refusal::ShortFrame)?;
    let end = frame::LENGTH + LENGTH + header.body;
    if end < datagram.length() && QUIET_READS.contains(&header.opcode) {
        return batch(datagram, max_keys);
    }
    let (verb, shape) = shape(header.opcode)?;
    match end.cmp(&datagram.length()) {
        Ordering::Less => return Err(Refusal::SeveralCommands),
        Ordering::Greater => return Err(Refusal::WrongLength),
        Ordering::Equal => {}
    }
    if matches!(verb, Verb::Noop | Verb::Version) {
        return if header.is_bare() { Ok(Ask::keyless(verb.number())) } else { Err(Refusal::WrongLength) };
    }
    let key = header.key(frame::LENGTH, shape)?;
    if key.bytes(payload).is_empty() {
        return Err(Refusal::FirstFragmentTooShort);
    }
    Ok(Ask::one(verb.number(), effect(verb, header.cas), key))
}

/// Parses a batch of GETQ and GETKQ commands that ends with a NOOP. The server answers the NOOP
/// last.
fn batch(datagram: Datagram<'_>, max_keys: u16) -> Result<Ask, Refusal> {
    if !datagram.is_whole() {
        return Err(Refusal::FirstFragmentTooShort);
    }
    let payload = datagram.payload();
    let (mut at, mut ask) = (frame::LENGTH, None::<Ask>);
    loop {
        let header = Header::at(payload, at).ok_or(Refusal::WrongLength)?;
        if header.opcode == NOOP && header.is_bare() && at + LENGTH == payload.len() {
            return ask.ok_or(Refusal::WrongLength);
        }
        if !QUIET_READS.contains(&header.opcode) {
            return Err(Refusal::SeveralCommands);
        }
        let key = header.key(at, Shape { extras: 0, value: false })?;
        at += LENGTH + header.body;
        let end = u16::try_from(at).map_err(|_| Refusal::WrongLength)?;
        let first = Ask { end, ..Ask::one(Verb::Get.number(), CACHEABLE, key) };
        let next = ask.map_or(first, |ask| Ask { plan: Plan::Join, keys: ask.keys + 1, end, ..ask });
        if next.keys > max_keys {
            return Err(Refusal::TooManyKeys);
        }
        ask = Some(next);
    }
}

pub(super) fn items(payload: &[u8], ask: &Ask, each: &mut dyn FnMut(Item) -> ControlFlow<()>) {
    let mut at = frame::LENGTH;
    while at < usize::from(ask.end) {
        let Some(header) = Header::at(payload, at) else { return };
        let Ok(key) = header.key(at, Shape { extras: 0, value: false }) else { return };
        if each(key).is_break() {
            return;
        }
        at += LENGTH + header.body;
    }
}

/// The fields of a request header that this crate uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) opcode: u8,
    key: usize,
    extras: usize,
    pub(super) body: usize,
    pub(super) opaque: [u8; 4],
    cas: bool,
}

impl Header {
    pub(super) fn at(payload: &[u8], at: usize) -> Option<Self> {
        let (header, _) = payload.get(at..)?.split_first_chunk::<LENGTH>()?;
        let &[magic, opcode, key @ .., _, _, _, _] = header.first_chunk::<8>()?;
        let (words, _) = header.as_chunks::<4>();
        let &[_, _, body, opaque, cas, more] = words else { return None };
        let extras = usize::from(*header.get(4)?);
        let body = usize::try_from(u32::from_be_bytes(body)).ok()?;
        let key = usize::from(u16::from_be_bytes(key));
        let cas = cas != [0; 4] || more != [0; 4];
        (magic == REQUEST).then_some(Self { opcode, key, extras, body, opaque, cas })
    }

    /// Returns the key of the command at offset `at`, if the lengths in the header match `shape`.
    fn key(&self, at: usize, shape: Shape) -> Result<Item, Refusal> {
        let value = self.body.checked_sub(self.extras + self.key).ok_or(Refusal::WrongLength)?;
        if self.extras != shape.extras || (value > 0 && !shape.value) {
            return Err(Refusal::WrongLength);
        }
        item(at + LENGTH + self.extras, self.key)
    }

    /// Returns the key if the command is GETQ or GETKQ.
    pub(super) fn quiet_read(&self, at: usize) -> Option<Item> {
        let key = self.key(at, Shape { extras: 0, value: false });
        key.ok().filter(|_| QUIET_READS.contains(&self.opcode))
    }

    /// Returns `true` if the command has no extras, no key and no value.
    const fn is_bare(&self) -> bool {
        self.body == 0 && self.extras == 0 && self.key == 0
    }
}

/// The form that servers require for a command with a given opcode: the length of the extras, and
/// whether a value is present.
#[derive(Clone, Copy, Debug)]
struct Shape {
    extras: usize,
    value: bool,
}

fn shape(opcode: u8) -> Result<(Verb, Shape), Refusal> {
    let key = Shape { extras: 0, value: false };
    let stored = Shape { extras: 8, value: true };
    let counted = Shape { extras: 20, value: false };
    let touched = Shape { extras: 4, value: false };
    let joined = Shape { extras: 0, value: true };
    Ok(match opcode {
        0x00 | 0x09 | 0x0c | 0x0d => (Verb::Get, key),
        0x01 | 0x11 => (Verb::Set, stored),
        0x02 | 0x12 => (Verb::Add, stored),
        0x03 | 0x13 => (Verb::Replace, stored),
        0x04 | 0x14 => (Verb::Delete, key),
        0x05 | 0x15 => (Verb::Incr, counted),
        0x06 | 0x16 => (Verb::Decr, counted),
        0x0e | 0x19 => (Verb::Append, joined),
        0x0f | 0x1a => (Verb::Prepend, joined),
        0x1c => (Verb::Touch, touched),
        0x1d | 0x1e | 0x23 | 0x24 => (Verb::Gat, touched),
        NOOP => (Verb::Noop, key),
        0x0b => (Verb::Version, key),
        // The opcodes of QUIT, FLUSH, STAT, QUITQ, FLUSHQ, VERBOSITY and SASL.
        0x07 | 0x08 | 0x10 | 0x17 | 0x18 | 0x1b | 0x20..=0x22 => return Err(Refusal::Administrative),
        _ => return Err(Refusal::UnknownVerb),
    })
}

/// Returns the effect of a verb. `cas` is `true` if the request contains an expected version.
const fn effect(verb: Verb, cas: bool) -> Effect {
    match verb {
        Verb::Get => CACHEABLE,
        Verb::Set | Verb::Delete if cas => Effect::Conditional,
        Verb::Set | Verb::Delete | Verb::Touch | Verb::Gat => Effect::Write,
        _ => Effect::Conditional,
    }
}

/// The length of a header in bytes.
pub(super) const LENGTH: usize = 24;
/// The first byte of a response.
pub(super) const RESPONSE: u8 = 0x81;
pub(super) const GET: u8 = 0x00;
pub(super) const GETQ: u8 = 0x09;
pub(super) const NOOP: u8 = 0x0a;
pub(super) const GETK: u8 = 0x0c;
pub(super) const GETKQ: u8 = 0x0d;
const QUIET_READS: [u8; 2] = [GETQ, GETKQ];
