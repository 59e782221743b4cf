//! One frame and the room around it, borrowed for the time of a batch.
//!
//! A descriptor's start can't be moved, so head room lies inside the buffer: `[0, start)` is writable room,
//! `[start, end)` the frame, `[end, len)` room behind. What is sent always starts at 0.

use crate::TunnelSourceKind;

/// A packet thread of this machine, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadId(pub u16);

/// An interface of this machine, counted from 0 in the order of the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct InterfaceId(pub u8);

/// Why a packet crosses to another thread, for the pipeline there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandoffReason {
    /// It was steered here by its hash: process it as if it had come off the wire.
    Steered {
        /// Who had sent it in a tunnel, if it came in one.
        decapsulated_from: Option<TunnelSourceKind>,
    },
    /// A piece of a datagram whose pieces this thread gathers.
    Fragment {
        /// Who had sent it in a tunnel, if it came in one. A peer's is not redirected again.
        decapsulated_from: Option<TunnelSourceKind>,
    },
    /// An ICMP error whose flow none of the threads asked so far knows.
    IcmpError {
        /// How many threads were asked.
        asked: u16,
        /// Who had sent it in a tunnel, if it came in one. Another cluster's is not sent on.
        decapsulated_from: Option<TunnelSourceKind>,
    },
    /// This thread has the port of our own that it is for.
    Answer,
}

impl HandoffReason {
    /// Who had sent the packet in a tunnel.
    #[inline]
    pub(crate) fn decapsulated_from(self) -> Option<TunnelSourceKind> {
        match self {
            Self::Steered { decapsulated_from }
            | Self::Fragment { decapsulated_from }
            | Self::IcmpError { decapsulated_from, .. } => decapsulated_from,
            Self::Answer => None,
        }
    }
}

/// Where a packet came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Received by this thread.
    Wire,
    /// Handed over by another thread, which decided that this one must process it, and why.
    Thread(ThreadId, HandoffReason),
}

/// A frame with writable room in front.
#[derive(Debug)]
pub struct Packet<'a> {
    buf: &'a mut [u8],
    start: usize,
    end: usize,
    origin: Origin,
    interface: InterfaceId,
}

impl<'a> Packet<'a> {
    /// A frame of the first interface that lies in `buf[start..end]`. Bounds beyond `buf` are cut to it.
    #[must_use]
    #[inline]
    pub fn new(buf: &'a mut [u8], start: usize, end: usize, origin: Origin) -> Self {
        let end = end.min(buf.len());
        let start = start.min(end);
        Self { buf, start, end, origin, interface: InterfaceId(0) }
    }

    /// The same frame of another interface.
    #[must_use]
    #[inline]
    pub fn on(self, interface: InterfaceId) -> Self {
        Self { interface, ..self }
    }

    /// The received frame, or after a [`crate::Verdict::Tx`] the one to send.
    #[must_use]
    #[inline]
    pub fn frame(&self) -> &[u8] {
        // `new` and `set_bounds` keep start <= end <= len; `get` spares the panic path.
        self.buf.get(self.start..self.end).unwrap_or_default()
    }

    /// Bytes of the frame.
    #[must_use]
    #[inline(always)]
    pub fn frame_len(&self) -> usize {
        self.end - self.start
    }

    /// The frame, writable.
    #[inline]
    pub fn frame_mut(&mut self) -> &mut [u8] {
        self.buf.get_mut(self.start..self.end).unwrap_or_default()
    }

    /// Everything writable, head room included.
    #[inline]
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        self.buf
    }

    /// Where the frame starts: the bytes of head room.
    #[must_use]
    #[inline]
    pub fn start(&self) -> usize {
        self.start
    }

    /// Where the frame ends.
    #[must_use]
    #[inline]
    pub fn end(&self) -> usize {
        self.end
    }

    /// How many bytes can be written from the start of the head room.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.buf.len()
    }

    /// Who gave it to this thread.
    #[must_use]
    #[inline]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The interface that it came by, or after a [`crate::Verdict::Tx`] the one to send it by.
    #[must_use]
    #[inline]
    pub fn interface(&self) -> InterfaceId {
        self.interface
    }

    /// Declares by which interface it is to leave.
    #[inline]
    pub fn set_interface(&mut self, interface: InterfaceId) {
        self.interface = interface;
    }

    /// Declares `[start, end)` the frame; cut to the buffer.
    #[inline]
    pub fn set_bounds(&mut self, start: usize, end: usize) {
        self.end = end.min(self.buf.len());
        self.start = start.min(self.end);
    }

    /// Moves the frame to the front of the buffer, as a driver needs it for sending.
    pub fn move_to_front(&mut self) {
        if self.start > 0 {
            self.buf.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_beyond_the_buffer_are_cut() {
        let mut bytes = [7u8; 4];
        let mut packet = Packet::new(&mut bytes, 9, 12, Origin::Wire);
        assert_eq!((packet.start(), packet.end(), packet.frame().len()), (4, 4, 0));
        packet.set_bounds(2, 1);
        assert_eq!(packet.frame().len(), 0);
    }

    #[test]
    fn a_frame_moves_to_the_front_unchanged() {
        let mut bytes = [0, 0, 1, 2, 3];
        let mut packet = Packet::new(&mut bytes, 2, 5, Origin::Wire);
        packet.move_to_front();
        assert_eq!((packet.frame(), packet.start()), (&[1, 2, 3][..], 0));
    }
}
