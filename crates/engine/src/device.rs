//! What the engine asks of a source and sink of frames: AF_XDP, or memory.
//!
//! Frames are move-only. A device takes a frame back only through the calls below, so that the engine can count each.

use forwarder::{InterfaceId, ThreadId};

/// A frame that came in.
#[derive(Debug)]
pub struct Received<F> {
    /// The frame.
    pub frame: F,
    /// The interface that it came by, and later the one that it leaves by.
    pub interface: InterfaceId,
    /// Where the packet starts in [`Device::bytes`]: the opened head room.
    pub start: usize,
    /// Where it ends.
    pub end: usize,
}

/// How many frames the kernel (or what stands for it) has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InKernel {
    /// In the fill ring, in the driver, or received and not taken yet.
    pub receiving: usize,
    /// In the transmit ring, on the wire, or in the completion ring.
    pub sending: usize,
}

/// By whose rings a thread's frames leave by an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxOwner {
    /// By its own: it has a queue there.
    Own,
    /// By another thread's.
    Other(ThreadId),
    /// There is no such interface.
    Nobody,
}

/// One thread's rings: those of a queue of each interface, or of some of them.
pub trait Device {
    /// One frame, owned: neither `Clone` nor `Copy`.
    type Frame: Send + std::fmt::Debug;

    /// Takes up to `limit` received frames and appends them to `batch`.
    fn receive(&mut self, batch: &mut Vec<Received<Self::Frame>>, limit: usize);

    /// The bytes of a frame, from the first writable one to the end of its room.
    fn bytes<'a>(&'a self, frame: &'a mut Self::Frame) -> &'a mut [u8];

    /// By whose rings this thread's frames leave by an interface.
    fn tx_owner(&self, interface: InterfaceId) -> TxOwner;

    /// Makes a free frame one that takes a packet of any length that interfaces carry.
    #[inline]
    fn lengthen(&self, frame: Self::Frame) -> Self::Frame {
        frame
    }

    /// Queues `frame[..len]` for sending out of an interface.
    ///
    /// # Errors
    /// The frame comes back when the ring is full even after completions were reaped, or when this thread has none there.
    fn send(&mut self, frame: Self::Frame, len: usize, interface: InterfaceId) -> Result<(), Self::Frame>;

    /// Makes the kernel see what was queued.
    fn flush(&mut self);

    /// Whether the kernel left some of what was queued in the ring: it has to be asked again.
    fn is_unsent(&mut self) -> bool;

    /// Appends the frames that were sent to `free`.
    fn reap(&mut self, free: &mut Vec<Self::Frame>);

    /// Gives frames from the end of `free` to the receive side, as many as it takes.
    fn refill(&mut self, free: &mut Vec<Self::Frame>);

    /// The thread to whose pool the frame belongs.
    fn home(&self, frame: &Self::Frame) -> ThreadId;

    /// How many frames are out of our hands.
    fn in_kernel(&self) -> InKernel;
}
