//! Defines [`Packet`]: a frame and its buffer, borrowed for the duration of a batch. The buffer
//! consists of headroom in `[0, start)`, the frame in `[start, end)`, and tail room in `[end,
//! len)`. Headroom that a frame does not need is cut off the buffer, so that the headers are
//! written to the front of the rest. A device sends the bytes [`Packet::bounds`] of the uncut
//! buffer.

use std::ops::Range;

use crate::TunnelSourceKind;

/// The index of a packet thread on this machine, starting at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadId(pub u16);

/// The index of an interface on this machine, in configuration order, starting at 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct InterfaceId(pub u8);

/// The reason why a packet is handed over to another packet thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandoffReason {
    /// Software steering selected the receiving thread by hash. That thread processes the packet as
    /// if it came from the wire.
    Steered {
        /// The kind of tunnel source that sent the packet, or `None` if the packet did not arrive
        /// in a tunnel.
        decapsulated_from: Option<TunnelSourceKind>,
    },
    /// The packet is a fragment, and the receiving thread collects the fragments of its datagram.
    Fragment {
        /// The kind of tunnel source that sent the packet, or `None` if the packet did not arrive
        /// in a tunnel. Fragments from a peer are never redirected to another machine.
        decapsulated_from: Option<TunnelSourceKind>,
    },
    /// The packet is an ICMP error. The quoted flow was not found in the connection tables searched
    /// so far.
    IcmpError {
        /// The number of threads whose connection tables were already searched.
        asked: u16,
        /// The kind of tunnel source that sent the packet, or `None` if the packet did not arrive
        /// in a tunnel. Packets from another cluster are not forwarded to another cluster again.
        decapsulated_from: Option<TunnelSourceKind>,
    },
    /// The packet is a reply to an upstream request from the receiving thread.
    Answer,
}

impl HandoffReason {
    /// Returns the kind of tunnel source that sent the packet, or `None` if the packet did not
    /// arrive in a tunnel.
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

/// The origin of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This thread received the packet from the wire.
    Wire,
    /// Another thread handed the packet over. The fields contain the index of that thread and the
    /// reason.
    Thread(ThreadId, HandoffReason),
}

/// A frame in a buffer with writable headroom.
#[derive(Debug)]
pub struct Packet<'a> {
    buf: &'a mut [u8],
    /// The number of bytes that were cut off the front of the buffer.
    cut: usize,
    start: usize,
    end: usize,
    origin: Origin,
    interface: InterfaceId,
}

impl<'a> Packet<'a> {
    /// Creates a packet from `buf[start..end]`, received on the first interface. Bounds beyond the
    /// end of `buf` are reduced to its length.
    #[must_use]
    #[inline]
    pub fn new(buf: &'a mut [u8], start: usize, end: usize, origin: Origin) -> Self {
        let end = end.min(buf.len());
        let start = start.min(end);
        Self { buf, cut: 0, start, end, origin, interface: InterfaceId(0) }
    }

    /// Assigns the packet to the given interface.
    #[must_use]
    #[inline]
    pub fn on(self, interface: InterfaceId) -> Self {
        Self { interface, ..self }
    }

    /// Returns the received frame. After the verdict [`crate::Verdict::Tx`], this method returns
    /// the frame to send.
    #[must_use]
    #[inline]
    pub fn frame(&self) -> &[u8] {
        // `new` and `set_bounds` guarantee `start <= end <= len`. The method `get` is used because
        // indexing would add code for a panic.
        self.buf.get(self.start..self.end).unwrap_or_default()
    }

    /// Returns the first byte of the frame, and the last byte that the headers of most packets
    /// reach. All cache lines of the headers contain one of the bytes. Returns `None` if the buffer
    /// is too short.
    #[inline(always)]
    pub(crate) fn header_ends(&self) -> Option<[&u8; 2]> {
        let [first, .., last] = self.buf.get(self.start..)?.first_chunk::<HEADERS>()?;
        Some([first, last])
    }

    /// Returns the length of the frame in bytes.
    #[must_use]
    #[inline(always)]
    pub fn frame_len(&self) -> usize {
        self.end - self.start
    }

    /// Returns the frame for modification.
    #[inline]
    pub fn frame_mut(&mut self) -> &mut [u8] {
        self.buf.get_mut(self.start..self.end).unwrap_or_default()
    }

    /// Returns the whole buffer for modification, including the headroom.
    #[inline]
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        self.buf
    }

    /// Returns the start offset of the frame in the buffer. This offset is also the size of the
    /// headroom.
    #[must_use]
    #[inline]
    pub fn start(&self) -> usize {
        self.start
    }

    /// Returns the end offset of the frame in the buffer.
    #[must_use]
    #[inline]
    pub fn end(&self) -> usize {
        self.end
    }

    /// Returns the size of the buffer, including the headroom.
    #[must_use]
    #[inline]
    pub fn capacity(&self) -> usize {
        self.buf.len()
    }

    /// Returns the bounds of the frame in the buffer that was passed to [`Self::new`].
    #[must_use]
    #[inline]
    pub fn bounds(&self) -> Range<usize> {
        self.cut + self.start..self.cut + self.end
    }

    /// Cuts `cut` bytes off the front of the buffer. The frame then has less headroom. If `cut`
    /// exceeds the headroom, the frame loses its first bytes.
    #[inline(always)]
    pub(crate) fn cut_front(&mut self, cut: usize) {
        let cut = cut.min(self.end);
        self.buf = std::mem::take(&mut self.buf).get_mut(cut..).unwrap_or_default();
        self.cut += cut;
        self.start = self.start.saturating_sub(cut);
        self.end -= cut;
    }

    /// Returns the origin of the packet.
    #[must_use]
    #[inline]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the interface that received the packet. After the verdict [`crate::Verdict::Tx`],
    /// this method returns the interface on which the packet will be sent.
    #[must_use]
    #[inline]
    pub fn interface(&self) -> InterfaceId {
        self.interface
    }

    /// Sets the interface on which the packet will be sent.
    #[inline]
    pub fn set_interface(&mut self, interface: InterfaceId) {
        self.interface = interface;
    }

    /// Sets the bounds of the frame to `[start, end)`. Bounds beyond the end of the buffer are
    /// reduced to its length.
    #[inline]
    pub fn set_bounds(&mut self, start: usize, end: usize) {
        self.end = end.min(self.buf.len());
        self.start = start.min(self.end);
    }

    /// Moves the frame to the front of the buffer.
    pub fn move_to_front(&mut self) {
        if self.start > 0 {
            self.buf.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }
}

/// The length of an Ethernet, an IPv4 and a TCP header without options.
const HEADERS: usize = 14 + 20 + 20;

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
    fn cut_front_keeps_the_end_of_the_frame() {
        for (cut, bounds, frame) in
            [(0, 2..4, &[1, 2][..]), (1, 2..4, &[1, 2]), (2, 2..4, &[1, 2]), (3, 3..4, &[2]), (9, 4..4, &[])]
        {
            let mut bytes = [0, 0, 1, 2, 9];
            let mut packet = Packet::new(&mut bytes, 2, 4, Origin::Wire);
            packet.cut_front(cut);
            assert_eq!((packet.bounds(), packet.frame()), (bounds, frame));
            packet.cut_front(0);
            packet.set_bounds(0, 1);
            assert_eq!(packet.bounds(), cut.min(4)..cut.min(4) + 1, "bounds are relative to the cut buffer");
        }
    }

    #[test]
    fn a_frame_moves_to_the_front_unchanged() {
        let mut bytes = [0, 0, 1, 2, 3];
        let mut packet = Packet::new(&mut bytes, 2, 5, Origin::Wire);
        packet.move_to_front();
        assert_eq!((packet.frame(), packet.start()), (&[1, 2, 3][..], 0));
    }
}
