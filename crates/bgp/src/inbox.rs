//! Splits the bytes from a peer into messages.
//!
//! The buffer contains at most one incomplete message and the most recently received bytes. A
//! message with an invalid length is rejected as soon as its header has arrived.

use crate::codec::{self, Dialect, Malformed};
use crate::message::Message;

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    start: usize,
}

impl Inbox {
    /// Appends received bytes. Call [`Self::next`] until it returns `None` before the next call of
    /// this method.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete message, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a valid message. Later bytes cannot be decoded either.
    pub(crate) fn next(&mut self, dialect: Dialect) -> Result<Option<Message>, Malformed> {
        let rest = self.bytes.get(self.start..).unwrap_or_default();
        let Some(len) = codec::frame_bytes(rest)? else { return Ok(None) };
        let Some(frame) = rest.get(..len) else { return Ok(None) };
        let message = codec::decode(frame, dialect)?;
        self.start += len;
        Ok(Some(message))
    }
}
