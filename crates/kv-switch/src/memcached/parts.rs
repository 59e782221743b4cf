//! What one server is asked for some of a request's keys.
//!
//! In: a request that reads several keys, some of these, an id. Out: a datagram of commands, one for each key, all with the nonce.
//! Not here: which server has a key, which keys are asked together.
//! Why not the client's own commands: each key has an answer of its own here, found or not, that carries key and nonce. `VALUE` and
//! `END` carry no nonce; a quiet read that misses says nothing but by the NOOP behind it, which may overtake a hit on its way, and
//! then the reply would say miss where there was a hit. So text asks by `mg KEY k f v O<nonce>`, binary by GETK. Servers without
//! meta commands, or whose miss is a bare `EN`, have no gather in text: it ends by its timeout.
//! A limit: `mg` takes the right to refill an item that `md I` made stale, which `get` does not.
//! Source: memcached 1.6 `doc/protocol.txt`; 1.6.18 was asked, 32 commands a datagram.

use std::fmt::Write;

use crate::{Item, OwnId, Plan, Request};

use super::frame::{self, Frame};
use super::window::Window;
use super::words::Words;
use super::{Verb, binary};

/// A request that can be asked by parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    /// `get`, `gets`, `gat`, `gats`.
    Text {
        /// The reply has versions.
        has_cas: bool,
        /// The time to live that the keys get.
        seconds: Option<&'a [u8]>,
    },
    /// GETQ and GETKQ behind each other, and a NOOP.
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
    window.put(&[0; 8]); // no version
    window.put(key);
    Some(())
}

/// Binary commands have room for half of the nonce.
pub(super) fn opaque(own: OwnId) -> [u8; 4] {
    let [_, _, _, _, low @ ..] = own.nonce.to_be_bytes();
    low
}
