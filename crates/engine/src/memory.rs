//! Queues in memory: the same engine and pipeline without a kernel, for tests, benches and `replay`.
//!
//! In: frames that the owner injects. Out: frames that the owner takes from the transmit ring. Rings are as bounded as the
//! kernel's: injecting needs a frame in the fill ring, sending needs room.

use std::collections::VecDeque;

use forwarder::{InterfaceId, ThreadId};

use crate::device::{Device, InKernel, Received, TxOwner};

/// A frame of heap memory, owned.
#[derive(Debug)]
pub struct MemoryFrame {
    home: ThreadId,
    bytes: Box<[u8]>,
}

impl MemoryFrame {
    /// A frame of `thread`'s pool with room for `bytes`.
    #[must_use]
    pub fn new(home: ThreadId, bytes: usize) -> Self {
        Self { home, bytes: vec![0; bytes].into_boxed_slice() }
    }
}

/// A queue of each interface, or of some of them, over one set of rings.
#[derive(Debug)]
pub struct MemoryDevice {
    ring: usize,
    /// By interface: who sends out of it.
    tx_owners: Box<[TxOwner]>,
    fill: VecDeque<MemoryFrame>,
    received: VecDeque<Received<MemoryFrame>>,
    transmit: VecDeque<(MemoryFrame, usize, InterfaceId)>,
    completion: VecDeque<MemoryFrame>,
}

impl MemoryDevice {
    /// A queue of the one interface, whose rings have `ring` entries each.
    #[must_use]
    pub fn new(ring: usize) -> Self {
        Self::with_tx_owners(ring, [TxOwner::Own])
    }

    /// The device of a thread that sends out of several interfaces, in their order, by these threads' rings.
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

    /// Receives `frame` by the first interface with `head_room` bytes opened in front. `false`: no frame in the fill ring, a
    /// full receive ring, or too long a frame; the packet is lost, as with a NIC.
    pub fn inject(&mut self, frame: &[u8], head_room: usize) -> bool {
        self.inject_by(InterfaceId(0), frame, head_room)
    }

    /// The same by another interface.
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

    /// Takes up to `limit` frames off the transmit ring, in order; their memory goes to the completion ring.
    pub fn transmitted(&mut self, limit: usize, mut each: impl FnMut(&[u8])) {
        self.transmitted_by(limit, |_, frame| each(frame));
    }

    /// The same, with the interface that each leaves by.
    pub fn transmitted_by(&mut self, limit: usize, mut each: impl FnMut(InterfaceId, &[u8])) {
        for _ in 0..limit {
            let Some((frame, len, interface)) = self.transmit.pop_front() else { return };
            each(interface, frame.bytes.get(..len).unwrap_or_default());
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
    fn send(&mut self, frame: MemoryFrame, len: usize, interface: InterfaceId) -> Result<(), MemoryFrame> {
        let is_own = self.tx_owner(interface) == TxOwner::Own;
        if !is_own || self.transmit.len() + self.completion.len() >= self.ring {
            return Err(frame);
        }
        self.transmit.push_back((frame, len, interface));
        Ok(())
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
