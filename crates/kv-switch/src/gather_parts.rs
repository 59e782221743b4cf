//! Splits a request for keys on several servers into upstream requests.
//!
//! [`Parts`] adds each key to a datagram for the server that stores the key, and begins a new
//! datagram if the key does not fit. The module `gather_table` sends the datagrams.

use crate::{ExchangeId, MAX_KEYS};

/// The server that stores a key, and the maximum payload of a datagram to that server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The caller's identifier for the server.
    pub server: u32,
    /// The maximum payload of one datagram to the server, in bytes.
    pub room: u16,
}

/// The upstream requests of one client request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    pub(crate) parts: [Part; MAX_KEYS],
    pub(crate) count: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) server: u32,
    /// The number of unused payload bytes in the datagram.
    room: usize,
    /// The exchange of this part, or `None` if no further answer is expected.
    pub(crate) exchange: Option<ExchangeId>,
}

impl Parts {
    pub(crate) const NONE: Self =
        Self { parts: [Part { server: 0, room: 0, exchange: None }; MAX_KEYS], count: 0 };

    /// Returns the index of the part for a key of `key` bytes, and adds a part if necessary.
    /// Returns `None` if no part has room.
    pub(crate) fn place(&mut self, target: Target, key: usize) -> Option<u8> {
        let needed = key + COMMAND_BYTES;
        let fits = |part: &Part| part.server == target.server && part.room >= needed;
        let known = self.each().iter().position(fits);
        let number = known.unwrap_or(self.count);
        let part = self.parts.get_mut(number)?;
        if known.is_none() {
            let room = usize::from(target.room).checked_sub(FRAME_BYTES + needed)?;
            *part = Part { server: target.server, room, exchange: None };
            self.count += 1;
        } else {
            part.room -= needed;
        }
        u8::try_from(number).ok()
    }

    pub(crate) fn each(&self) -> &[Part] {
        self.parts.get(..self.count).unwrap_or_default()
    }
}

/// The maximum number of bytes in the command for one key, not counting the key itself.
const COMMAND_BYTES: usize = 48;
const FRAME_BYTES: usize = 8;
