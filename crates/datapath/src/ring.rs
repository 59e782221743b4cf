//! One ring of an AF_XDP socket: slots that we and the kernel hand each other, without a call into C.
//!
//! In: where libxdp has mapped the ring (`mapping`). Out: entries, by value: descriptors of 16 bytes, or addresses.
//! Not here: frames and sockets (`xsk`); which slots are whose (`indices`).
//! Invariant: a slot is read or written while its index says that it is ours, and no longer.
//! Source: Linux Documentation/networking/af_xdp.rst, "Usage"; include/uapi/linux/if_xdp.h.

pub(crate) mod indices;
pub(crate) mod mapping;
#[cfg(test)]
mod tests;

use std::ptr::NonNull;

use self::indices::{ConsumerIndex, ProducerIndex};
use crate::sync::{AtomicU32, Ordering};

/// The memory of a ring with entries of type `T`.
#[derive(Debug)]
pub(crate) struct Memory<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    slots: NonNull<T>,
    /// How many slots there are, a power of two.
    size: u32,
}

// SAFETY: the memory is shared with the kernel alone, and one half of a ring owns our side of it; threads take turns with that.
unsafe impl<T: Send> Send for Memory<T> {}

impl<T: Copy> Memory<T> {
    /// # Safety
    /// The words and `size` slots lie in memory that the kernel shares as a ring of such slots, aligned, zeroed at first, and mapped for
    /// as long as the value lives; nobody else in the process uses them. Any bytes are a `T`.
    pub(crate) unsafe fn new(
        [producer, consumer, flags]: [NonNull<AtomicU32>; 3],
        slots: NonNull<T>,
        size: u32,
    ) -> Self {
        Self { producer, consumer, flags, slots, size }
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: the word is mapped while `self` lives, by the contract of `new`; neither side accesses it but atomically.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as `producer`.
        unsafe { self.consumer.as_ref() }
    }

    #[inline]
    fn needs_wakeup(&self) -> bool {
        // SAFETY: as `producer`.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    #[inline]
    fn slot(&self, place: u32) -> NonNull<T> {
        debug_assert!(place < self.size, "there is such a slot");
        // SAFETY: an index masks its places by `size - 1`, and there are `size` slots.
        unsafe { self.slots.add(place as usize) }
    }
}

/// The half that takes what the kernel fills: of the receive and completion rings.
#[derive(Debug)]
pub(crate) struct Consumer<T> {
    memory: Memory<T>,
    index: ConsumerIndex,
}

impl<T: Copy> Consumer<T> {
    pub(crate) fn new(memory: Memory<T>) -> Self {
        let index = ConsumerIndex::new(memory.size, memory.consumer());
        Self { memory, index }
    }

    /// Takes at most so many entries, in their order, and then gives their slots back; how many they were.
    #[inline]
    pub(crate) fn take(&mut self, most: usize, mut each: impl FnMut(T)) -> usize {
        let Self { memory, index } = self;
        let count = (index.available(memory.producer()) as usize).min(most);
        for _ in 0..count {
            let slot = memory.slot(index.advance());
            // SAFETY: the slot is ours from `available` until `release`, so the kernel does not write it; any bytes are a `T`.
            each(unsafe { slot.read() });
        }
        if count > 0 {
            index.release(memory.consumer());
        }
        count
    }
}

/// The half that fills what the kernel takes: of the transmit and fill rings.
#[derive(Debug)]
pub(crate) struct Producer<T> {
    memory: Memory<T>,
    index: ProducerIndex,
}

impl<T: Copy> Producer<T> {
    pub(crate) fn new(memory: Memory<T>) -> Self {
        let index = ProducerIndex::new(memory.size, memory.producer(), memory.consumer());
        Self { memory, index }
    }

    /// How many entries fit, at least as far as `wanted` are concerned: a look at what the kernel has taken only where those known
    /// of are fewer.
    #[inline]
    pub(crate) fn free(&mut self, wanted: usize) -> usize {
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        self.index.free(wanted, self.memory.consumer()) as usize
    }

    /// How many fit by now, by a look.
    #[inline]
    pub(crate) fn free_now(&mut self) -> usize {
        self.index.look(self.memory.consumer()) as usize
    }

    /// Puts an entry into the next slot, which the kernel does not see yet.
    ///
    /// # Panics
    /// When none is free.
    #[inline]
    pub(crate) fn put(&mut self, entry: T) {
        assert!(self.free(1) > 0, "the caller has looked for room");
        let slot = self.memory.slot(self.index.advance());
        // SAFETY: the slot is ours from `free` until `submit`, so the kernel does not read it.
        unsafe { slot.write(entry) };
    }

    /// Gives all that was put to the kernel.
    #[inline]
    pub(crate) fn submit(&mut self) {
        self.index.submit(self.memory.producer());
    }

    /// Whether the kernel looks at the ring only when it is called.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.memory.needs_wakeup()
    }
}
