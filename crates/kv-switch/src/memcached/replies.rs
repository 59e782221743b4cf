//! Writes the reply to a request that was split between several servers.
//!
//! The reply has the same content as the reply of a single server that stores all keys, and is
//! split into datagrams. Values have the same order as the keys in the request, and missing keys
//! are left out. The reply ends with `END` or the answer to the NOOP.
//!
//! References: memcached 1.6 `doc/protocol.txt`, `proto_text.c`, `proto_bin.c`, and `memcached.c`
//! for the limit of 1392 bytes after the frame.

use std::fmt::Write;
use std::ops::ControlFlow;

use crate::{Request, Stored};

use super::frame::{self, Frame};
use super::parts::Kind;
use super::window::Window;
use super::{ascii, binary};

/// A function that returns the stored value of a key, given the index of the key in the request.
type Found<'f, 'a> = &'f dyn Fn(u16) -> Option<Stored<'a>>;

pub(super) fn datagrams(request: &Request<'_>, found: Found<'_, '_>) -> Option<u16> {
    let mut counted = Window::new(&mut [], 0);
    all(request, found, &mut counted)?;
    u16::try_from(counted.total().div_ceil(BODY)).ok()
}

pub(super) fn write(
    request: &Request<'_>,
    found: Found<'_, '_>,
    number: u16,
    out: &mut [u8],
) -> Option<usize> {
    let total = datagrams(request, found).filter(|&total| number < total)?;
    let (asked, _) = frame::answer(request.payload)?;
    let (frame, body) = out.split_first_chunk_mut::<{ frame::LENGTH }>()?;
    *frame = Frame { id: asked.id, sequence: number, total }.bytes();
    let from = usize::from(number) * BODY;
    let short = body.len() < BODY;
    let room = if short { body } else { body.get_mut(..BODY)? };
    let length = room.len();
    let mut window = Window::new(room, from);
    all(request, found, &mut window)?;
    let wanted = window.total().saturating_sub(from).min(BODY);
    (wanted <= length).then_some(frame::LENGTH + wanted)
}

/// Writes the whole reply.
fn all(request: &Request<'_>, found: Found<'_, '_>, window: &mut Window<'_>) -> Option<()> {
    match Kind::of(request)? {
        Kind::Text { has_cas, .. } => text(request, found, has_cas, window),
        Kind::Batch => batch(request, found, window),
    }
}

fn text(request: &Request<'_>, found: Found<'_, '_>, has_cas: bool, window: &mut Window<'_>) -> Option<()> {
    let mut number = 0;
    let mut is_written = Ok(());
    ascii::items(request.payload, request.ask, &mut |item| {
        if let Some(stored) = found(number) {
            is_written = value(window, item.bytes(request.payload), &stored, has_cas);
        }
        number += 1;
        if is_written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    window.put(b"END\r\n");
    is_written.ok()
}

/// Writes `VALUE KEY FLAGS BYTES [CAS]` and the value.
fn value(window: &mut Window<'_>, key: &[u8], stored: &Stored<'_>, has_cas: bool) -> std::fmt::Result {
    window.put(b"VALUE ");
    window.put(key);
    write!(window, " {} {}", stored.flags, stored.bytes.len())?;
    if has_cas {
        write!(window, " {}", stored.cas)?;
    }
    window.put(b"\r\n");
    window.put(stored.bytes);
    window.put(b"\r\n");
    Ok(())
}

fn batch(request: &Request<'_>, found: Found<'_, '_>, window: &mut Window<'_>) -> Option<()> {
    let (mut at, mut number) = (frame::LENGTH, 0);
    loop {
        let header = binary::Header::at(request.payload, at)?;
        if header.opcode == binary::NOOP {
            Response { opcode: binary::NOOP, opaque: header.opaque, key: &[], stored: None }.write(window)?;
            return Some(());
        }
        let key = header.quiet_read(at)?.bytes(request.payload);
        if let Some(stored) = found(number) {
            let key = if header.opcode == binary::GETKQ { key } else { &[] };
            Response { opcode: header.opcode, opaque: header.opaque, key, stored: Some(stored) }
                .write(window)?;
        }
        number = number.checked_add(1)?;
        at += binary::LENGTH + header.body;
    }
}

/// The response to one binary command.
struct Response<'a> {
    opcode: u8,
    opaque: [u8; 4],
    key: &'a [u8],
    stored: Option<Stored<'a>>,
}

impl Response<'_> {
    fn write(&self, window: &mut Window<'_>) -> Option<()> {
        let flags = self.stored.map(|stored| stored.flags.to_be_bytes());
        let extras: &[u8] = flags.as_ref().map_or(&[], |flags| flags);
        let value = self.stored.map_or(&[][..], |stored| stored.bytes);
        let [high, low] = u16::try_from(self.key.len()).ok()?.to_be_bytes();
        let count = u8::try_from(extras.len()).ok()?;
        let body = u32::try_from(extras.len() + self.key.len() + value.len()).ok()?;
        window.put(&[binary::RESPONSE, self.opcode, high, low, count, 0, 0, 0]);
        window.put(&body.to_be_bytes());
        window.put(&self.opaque);
        window.put(&self.stored.map_or(0, |stored| stored.cas).to_be_bytes());
        window.put(extras);
        window.put(self.key);
        window.put(value);
        Some(())
    }
}

/// The maximum number of bytes after the frame of a datagram. Some clients cannot receive longer
/// datagrams.
const BODY: usize = 1_392;
