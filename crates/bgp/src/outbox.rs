//! Buffers output that the connection to a peer has not yet accepted.
//!
//! Routes are added only while the buffer holds less than 16 KiB, so that a peer that reads no data
//! uses little memory.

use std::time::Instant;

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    start: usize,
    /// The start offset of each queued message whose first byte has not been written yet.
    boundaries: std::collections::VecDeque<usize>,
    /// The time since which the connection has accepted no data, or `None` if the buffer is empty.
    pub(crate) stuck_since: Option<Instant>,
}

impl Outbox {
    /// Returns `true` if the buffer has room for another UPDATE.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes().len() < ENOUGH_BYTES
    }

    pub(crate) fn push(&mut self, message: &[u8], now: Instant) {
        if self.bytes().is_empty() {
            self.clear();
            self.stuck_since = Some(now);
        }
        self.boundaries.push_back(self.bytes.len());
        self.bytes.extend_from_slice(message);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    pub(crate) fn written(&mut self, count: usize, now: Instant) {
        self.start += count;
        while self.boundaries.front().is_some_and(|&at| at < self.start) {
            self.boundaries.pop_front();
        }
        if self.bytes().is_empty() {
            self.clear();
        } else {
            self.stuck_since = Some(now);
            self.forget_written();
        }
    }

    /// Removes all messages except a partly written message, to make room for a NOTIFICATION.
    pub(crate) fn drop_unstarted(&mut self) {
        if let Some(&at) = self.boundaries.front() {
            self.bytes.truncate(at);
            self.boundaries.clear();
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self { bytes: std::mem::take(&mut self.bytes), ..Self::default() };
        self.bytes.clear();
    }

    fn forget_written(&mut self) {
        if self.start >= ENOUGH_BYTES {
            self.bytes.drain(..self.start);
            self.boundaries.iter_mut().for_each(|at| *at -= self.start);
            self.start = 0;
        }
    }
}

const ENOUGH_BYTES: usize = 16 << 10;
