//! Writes the upstream requests with which the cache fetches a key, and parses their answers.
//!
//! A fetch is an `mg` command. The command requests the time to live and the version, and
//! optionally the value and its flags. The server echoes the key and the nonce. An accepted answer
//! contains the request id, the 64-bit nonce and a key, and consists of one datagram. After `md I`
//! has made an item stale, the first `mg` request for it receives the right to refill the item. A
//! fetch can be the request that receives this right. The cache does not store stale values.
//!
//! References: memcached 1.6 `doc/protocol.txt`, `proto_text.c` (`process_mget_command`). The
//! behavior was checked with memcached 1.6.18.

use std::fmt::Write;

use crate::{Fetch, Fetched, FetchedContent, KeyRoom, MAX_KEY_BYTES, NoAnswer, OwnId, Value};

use super::answers::{Datagram, Flags, Line, Status};
use super::frame::Frame;
use super::window::Window;

pub(super) fn write(fetch: &Fetch<'_>, own: OwnId, out: &mut [u8]) -> Option<usize> {
    // A raw key in the text protocol cannot contain these bytes. The fetch cannot use base64
    // instead, because the server finds a base64 key only if the client stored it in base64.
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
