//! What a server is asked for a key that is copied, and what it answers.
//!
//! In: a key, an id; a datagram from a server. Out: `mg` with value, flags, time to live, version and nonce, or with the last three
//! alone; what the answer says.
//! Not here: who sent it, to which port; whether the value is kept.
//! Invariant: as of `answers`: an answer has the request's id, its nonce of 64 bits and a key, and is one datagram.
//! A limit: an item that `md I` made stale gives the right to refill it to the first reader by `mg`, and that may be us. Such
//! values are not copied.
//! Source: memcached 1.6 `doc/protocol.txt`, `proto_text.c` (`process_mget_command`); 1.6.18 was asked.

use std::fmt::Write;

use crate::{Fetch, Fetched, FetchedContent, KeyRoom, MAX_KEY_BYTES, NoAnswer, OwnId, Value};

use super::answers::{Datagram, Flags, Line, Status};
use super::frame::Frame;
use super::window::Window;

pub(super) fn write(fetch: &Fetch<'_>, own: OwnId, out: &mut [u8]) -> Option<usize> {
    // In text. Keys with such bytes have other names in base64, by which clients would have to agree.
    let is_text = !fetch.key.iter().any(|byte| matches!(byte, b' ' | b'\r' | b'\n' | 0));
    if !is_text || fetch.key.is_empty() || fetch.key.len() > MAX_KEY_BYTES {
        return None;
    }
    let mut window = Window::new(out, 0);
    window.put(&Frame { id: own.request, sequence: 0, total: 1 }.bytes());
    window.put(b"mg ");
    window.put(fetch.key);
    window.put(if fetch.known.is_some() { b" k t c" } else { b" k v f t c" });
    window.put(if fetch.touches { b"" } else { b" u" });
    write!(window, " O{:016x}\r\n", own.nonce).ok()?;
    window.whole()
}

pub(super) fn read<'a>(
    fetch: &Fetch<'_>,
    own: OwnId,
    payload: &'a [u8],
    room: &'a mut KeyRoom,
) -> Result<Fetched<'a>, NoAnswer> {
    let Line { flags, status } = Datagram::first(own, payload)?.line(own)?;
    let content = match (status, fetch.known) {
        (Status::Missing, _) => FetchedContent::Nothing,
        (Status::Header, Some(_)) => version(&flags)?,
        (Status::Value(place), None) => value(&flags, place)?,
        _ => return Err(NoAnswer::Malformed),
    };
    Ok(Fetched { key: flags.key(room)?, content })
}

fn version(flags: &Flags<'_>) -> Result<FetchedContent, NoAnswer> {
    let Flags { cas: Some(cas), ttl: Some(ttl), stored: None, .. } = *flags else {
        return Err(NoAnswer::Malformed);
    };
    Ok(if flags.is_stale { FetchedContent::Nothing } else { FetchedContent::Version { cas, ttl } })
}

fn value(flags: &Flags<'_>, place: Option<(u16, u16)>) -> Result<FetchedContent, NoAnswer> {
    let Flags { cas: Some(cas), ttl: Some(ttl), stored: Some(stored), is_base64, .. } = *flags else {
        return Err(NoAnswer::Malformed);
    };
    Ok(match place {
        Some((start, len)) if !flags.is_stale => {
            FetchedContent::Value { value: Value { start, len, flags: stored, cas }, ttl, is_base64 }
        }
        _ => FetchedContent::Nothing,
    })
}
