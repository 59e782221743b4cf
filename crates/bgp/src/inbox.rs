//! Bytes from a peer, cut into messages.
//!
//! Invariant: what is kept is less than one frame and what came with its last byte; a header that promises more than any
//! message has is refused before its body is waited for.

use crate::codec::{self, Dialect, Malformed};
use crate::message::Message;

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    start: usize,
}

impl Inbox {
    /// Call [`Self::next`] until it has no more before the next push.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message.
    ///
    /// # Errors
    /// What is there is none. The stream has no sense after that.
    pub(crate) fn next(&mut self, dialect: Dialect) -> Result<Option<Message>, Malformed> {
        let rest = self.bytes.get(self.start..).unwrap_or_default();
        let Some(len) = codec::frame_bytes(rest)? else { return Ok(None) };
        let Some(frame) = rest.get(..len) else { return Ok(None) };
        let message = codec::decode(frame, dialect)?;
        self.start += len;
        Ok(Some(message))
    }
}
