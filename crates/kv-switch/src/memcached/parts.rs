//! Writes the upstream request to one server for some keys of a client request.
//!
//! The client's own commands are not forwarded. In the classic text protocol, the answers `VALUE`
//! and `END` contain no nonce. In the binary protocol, the server does not answer a quiet read that
//! misses, so only the answer to the NOOP confirms the miss. If that answer overtakes the answer to
//! a hit, the hit looks like a miss. Therefore, text requests become `mg KEY k f v O<nonce>`, and
//! binary requests become GETK. Each key then has its own answer with the key and the nonce, for a
//! hit and for a miss. Text requests time out on servers without meta commands, and on servers that
//! answer a miss with only `EN`.
//!
//! If `md I` has made an item stale, an `mg` command takes the right to refill the item. A `get`
//! command does not.
//!
//! Reference: memcached 1.6 `doc/protocol.txt`. The behavior was checked with memcached 1.6.18 and
//! 32 commands per datagram.

use std::fmt::Write;

use crate::{Item, OwnId, Plan, Request};

use super::frame::{self, Frame};
use super::window::Window;
use super::words::Words;
use super::{Verb, binary};

/// The forms of requests that can be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    /// A `get`, `gets`, `gat` or `gats` command.
    Text {
        /// `true` if the reply contains versions.
        has_cas: bool,
        /// The new time to live of the keys, for `gat` and `gats`.
        seconds: Option<&'a [u8]>,
    },
    /// A batch of GETQ and GETKQ commands that ends with a NOOP.
    Batch,
}

impl<'a> Kind<'a> {
    pub(super) fn of(request: &Request<'a>) -> Option<Self> {
        let (payload, ask) = (request.payload, request.ask);
        if payload.get(frame::LENGTH) == Some(&binary::REQUEST) {
            let last = binary::Header::at(payload, usize::from(ask.end))?;
            return (last.opcode == binary::NOOP && ask.plan != Plan::Keyless).then_some(Self::Batch);
        }
        let is = |verb: Verb| ask.verb == verb.number();
        let has_cas = is(Verb::Gets) || is(Verb::Gats);
        let seconds = if is(Verb::Gat) || is(Verb::Gats) {
            let mut words = Words::between(payload, frame::LENGTH, usize::from(ask.first.start));
            Some(words.nth(1)?.text)
        } else if is(Verb::Get) || is(Verb::Gets) {
            None
        } else {
            return None;
        };
        Some(Self::Text { has_cas, seconds })
    }
}

pub(super) fn write(
    request: &Request<'_>,
    items: &mut dyn Iterator<Item = Item>,
    own: OwnId,
    out: &mut [u8],
) -> Option<usize> {
    let kind = Kind::of(request)?;
    let mut window = Window::new(out, 0);
    window.put(&Frame { id: own.request, sequence: 0, total: 1 }.bytes());
    for item in items {
        let key = item.bytes(request.payload);
        if key.is_empty() {
            return None;
        }
        match kind {
            Kind::Text { has_cas, seconds } => {
                window.put(b"mg ");
                window.put(key);
                write!(window, " k f v O{:016x}", own.nonce).ok()?;
                window.put(if has_cas { b" c" } else { b"" });
                window.put(if seconds.is_some() { b" T" } else { b"" });
                window.put(seconds.unwrap_or_default());
                window.put(b"\r\n");
            }
            Kind::Batch => getk(&mut window, key, own)?,
        }
    }
    window.whole().filter(|&length| length > frame::LENGTH)
}

fn getk(window: &mut Window<'_>, key: &[u8], own: OwnId) -> Option<()> {
    let [high, low] = u16::try_from(key.len()).ok()?.to_be_bytes();
    window.put(&[binary::REQUEST, binary::GETK, high, low, 0, 0, 0, 0, 0, 0, high, low]);
    window.put(&opaque(own));
    window.put(&[0; 8]); // no expected version
    window.put(key);
    Some(())
}

/// Returns the opaque field of a binary command, which contains the lower half of the nonce.
pub(super) fn opaque(own: OwnId) -> [u8; 4] {
    let [_, _, _, _, low @ ..] = own.nonce.to_be_bytes();
    low
}
