//! A device with in-memory queues. Tests, benchmarks and `sluicegate replay` use this device to run
//! the engine and the pipeline without a kernel. Like kernel rings, the rings have a fixed
//! capacity: injecting a frame requires a free frame in the fill ring, and sending requires room in
//! the transmit ring.

use std::collections::VecDeque;
use std::ops::Range;

use forwarder::{InterfaceId, ThreadId};

use crate::device::{Device, InKernel, Received, TxOwner};

/// A frame in heap memory.
#[derive(Debug)]
pub struct MemoryFrame {
    home: ThreadId,
    bytes: Box<[u8]>,
}

impl MemoryFrame {
    /// Creates a frame with a buffer of `bytes` bytes. The frame belongs to the pool of thread
    /// `home`.
    #[must_use]
    pub fn new(home: ThreadId, bytes: usize) -> Self {
        Self { home, bytes: vec![0; bytes].into_boxed_slice() }
    }
}

/// An in-memory device with one set of rings, which all its interfaces share.
#[derive(Debug)]
pub struct MemoryDevice {
    ring: usize,
    /// The owner of the transmit ring, indexed by interface.
    tx_owners: Box<[TxOwner]>,
    fill: VecDeque<MemoryFrame>,
    received: VecDeque<Received<MemoryFrame>>,
    transmit: VecDeque<(MemoryFrame, Range<usize>, InterfaceId)>,
    completion: VecDeque<MemoryFrame>,
}

impl MemoryDevice {
    /// Creates a device with one interface. Each ring has `ring` entries.
    #[must_use]
    pub fn new(ring: usize) -> Self {
        Self::with_tx_owners(ring, [TxOwner::Own])
    }

    /// Creates a device with several interfaces. `tx_owners` contains the owner of the transmit
    /// ring of each interface.
    #[must_use]
    pub fn with_tx_owners(ring: usize, tx_owners: impl Into<Box<[TxOwner]>>) -> Self {
        Self {
            ring,
            tx_owners: tx_owners.into(),
            fill: VecDeque::with_capacity(ring),
            received: VecDeque::with_capacity(ring),
            transmit: VecDeque::with_capacity(ring),
            completion: VecDeque::with_capacity(ring),
        }
    }

    /// Simulates the reception of `frame` on the first interface, with `head_room` free bytes in
    /// front of the frame. Like a NIC, the device drops the frame and returns `false` if the fill
    /// ring is empty, the receive ring is full, or the frame is too long.
    pub fn inject(&mut self, frame: &[u8], head_room: usize) -> bool {
        self.inject_by(InterfaceId(0), frame, head_room)
    }

    /// Simulates the reception of `frame` on the given interface. See [`Self::inject`].
    pub fn inject_by(&mut self, interface: InterfaceId, frame: &[u8], head_room: usize) -> bool {
        if self.received.len() >= self.ring {
            return false;
        }
        let Some(mut memory) = self.fill.pop_front() else { return false };
        let end = head_room + frame.len();
        let Some(place) = memory.bytes.get_mut(head_room..end) else {
            self.fill.push_front(memory);
            return false;
        };
        place.copy_from_slice(frame);
        self.received.push_back(Received { frame: memory, interface, start: head_room, end });
        true
    }

    /// Takes up to `limit` frames from the transmit ring in order, passes their bytes to `each`,
    /// and moves the frames to the completion ring.
    pub fn transmitted(&mut self, limit: usize, mut each: impl FnMut(&[u8])) {
        self.transmitted_by(limit, |_, frame| each(frame));
    }

    /// Does the same as [`Self::transmitted`], and also passes the outgoing interface to `each`.
    pub fn transmitted_by(&mut self, limit: usize, mut each: impl FnMut(InterfaceId, &[u8])) {
        for _ in 0..limit {
            let Some((frame, bounds, interface)) = self.transmit.pop_front() else { return };
            each(interface, frame.bytes.get(bounds).unwrap_or_default());
            self.completion.push_back(frame);
        }
    }
}

impl Device for MemoryDevice {
    type Frame = MemoryFrame;

    fn receive(&mut self, batch: &mut Vec<Received<MemoryFrame>>, limit: usize) {
        let count = limit.min(self.received.len());
        batch.extend(self.received.drain(..count));
    }

    #[inline]
    fn bytes<'a>(&'a self, frame: &'a mut MemoryFrame) -> &'a mut [u8] {
        &mut frame.bytes
    }

    fn tx_owner(&self, interface: InterfaceId) -> TxOwner {
        self.tx_owners.get(usize::from(interface.0)).copied().unwrap_or(TxOwner::Nobody)
    }

    #[inline]
    fn send(
        &mut self,
        frame: MemoryFrame,
        bounds: Range<usize>,
        interface: InterfaceId,
    ) -> Result<(), MemoryFrame> {
        let is_own = self.tx_owner(interface) == TxOwner::Own;
        if !is_own || self.transmit.len() + self.completion.len() >= self.ring {
            return Err(frame);
        }
        self.transmit.push_back((frame, bounds, interface));
        Ok(())
    }

    #[inline]
    fn send_all(
        &mut self,
        interface: InterfaceId,
        frames: &mut impl ExactSizeIterator<Item = (MemoryFrame, Range<usize>)>,
    ) -> usize {
        if self.tx_owner(interface) != TxOwner::Own {
            return 0;
        }
        let before = self.transmit.len();
        let room = self.ring - (before + self.completion.len()).min(self.ring);
        self.transmit.extend(frames.take(room).map(|(frame, bounds)| (frame, bounds, interface)));
        self.transmit.len() - before
    }

    fn flush(&mut self) {}

    fn is_unsent(&mut self) -> bool {
        false
    }

    fn reap(&mut self, free: &mut Vec<MemoryFrame>) {
        free.extend(self.completion.drain(..));
    }

    fn refill(&mut self, free: &mut Vec<MemoryFrame>) {
        while self.fill.len() < self.ring
            && let Some(frame) = free.pop()
        {
            self.fill.push_back(frame);
        }
    }

    fn home(&self, frame: &MemoryFrame) -> ThreadId {
        frame.home
    }

    fn in_kernel(&self) -> InKernel {
        InKernel {
            receiving: self.fill.len() + self.received.len(),
            sending: self.transmit.len() + self.completion.len(),
        }
    }
}
