//! The [`Device`] trait, through which the engine receives and sends frames. AF_XDP rings and
//! in-memory queues implement this trait. Frames are move-only and return to a device only through
//! the methods of [`Device`], so the engine can account for every frame.

use std::ops::Range;

use forwarder::{InterfaceId, ThreadId};

/// A received frame.
#[derive(Debug)]
pub struct Received<F> {
    /// The frame that contains the packet.
    pub frame: F,
    /// The interface that received the packet. After the verdict, this field contains the interface
    /// on which the packet will be sent.
    pub interface: InterfaceId,
    /// The start offset of the packet in [`Device::bytes`]. This offset is also the size of the
    /// headroom.
    pub start: usize,
    /// The end offset of the packet.
    pub end: usize,
}

/// The number of frames that the kernel owns. For a memory device, these are the frames in its
/// rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InKernel {
    /// Frames in the fill ring or in the driver, and received frames that the engine has not taken
    /// yet.
    pub receiving: usize,
    /// Frames in the transmit ring, on the wire, or in the completion ring.
    pub sending: usize,
}

/// The owner of the transmit ring that a packet thread uses to send on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxOwner {
    /// This thread, which has a queue on the interface.
    Own,
    /// A different thread.
    Other(ThreadId),
    /// No thread, because the interface does not exist.
    Nobody,
}

/// The rings of one packet thread. The thread may have queues on all interfaces or only on some of
/// them.
pub trait Device {
    /// A frame. The owner has exclusive access, because the type is neither `Clone` nor `Copy`.
    type Frame: Send + std::fmt::Debug;

    /// Takes up to `limit` received frames and appends them to `batch`.
    fn receive(&mut self, batch: &mut Vec<Received<Self::Frame>>, limit: usize);

    /// Returns the buffer of a frame, from the first writable byte to the last.
    fn bytes<'a>(&'a self, frame: &'a mut Self::Frame) -> &'a mut [u8];

    /// Returns the thread whose transmit ring sends this thread's frames on an interface.
    fn tx_owner(&self, interface: InterfaceId) -> TxOwner;

    /// Converts a free frame into a frame whose buffer can hold the longest packet of any
    /// interface.
    #[inline]
    fn lengthen(&self, frame: Self::Frame) -> Self::Frame {
        frame
    }

    /// Queues the bytes `bounds` of the frame's buffer for sending on an interface.
    ///
    /// # Errors
    /// Returns the frame if the ring is full, or if this thread has no transmit ring on the
    /// interface.
    fn send(
        &mut self,
        frame: Self::Frame,
        bounds: Range<usize>,
        interface: InterfaceId,
    ) -> Result<(), Self::Frame>;

    /// Queues frames for sending on an interface, each with the bounds of the packet in its buffer.
    /// Takes as many frames as it queues, from the front, and returns their number. The caller
    /// sends all others with [`Self::send`]. By default, the method takes no frames.
    #[inline]
    fn send_all(
        &mut self,
        _interface: InterfaceId,
        _frames: &mut impl ExactSizeIterator<Item = (Self::Frame, Range<usize>)>,
    ) -> usize {
        0
    }

    /// Notifies the kernel that frames are queued.
    fn flush(&mut self);

    /// Returns `true` if the kernel has not yet taken all queued frames from the ring. In this
    /// case, another call to [`Self::flush`] is needed.
    fn is_unsent(&mut self) -> bool;

    /// Appends frames whose transmission is complete to `free`.
    fn reap(&mut self, free: &mut Vec<Self::Frame>);

    /// Moves frames from the end of `free` to the fill ring, until the ring is full or `free` is
    /// empty.
    fn refill(&mut self, free: &mut Vec<Self::Frame>);

    /// Returns the packet thread that owns the pool of the frame.
    fn home(&self, frame: &Self::Frame) -> ThreadId;

    /// Returns the number of frames that the kernel owns.
    fn in_kernel(&self) -> InKernel;
}
