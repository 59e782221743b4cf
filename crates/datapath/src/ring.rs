//! Implements one ring of an AF_XDP socket. A ring consists of slots in shared memory, which this
//! process and the kernel pass to each other. Each entry of a ring is either a descriptor of 16
//! bytes or an address. libxdp maps the ring, and the module `mapping` finds that mapping. The
//! module `indices` computes which side owns each slot.
//!
//! Invariant: this module accesses a slot only while the indices assign it to this process.
//!
//! See Linux Documentation/networking/af_xdp.rst, section "Usage", and include/uapi/linux/if_xdp.h.

pub(crate) mod indices;
pub(crate) mod mapping;
#[cfg(test)]
pub(crate) mod tests;

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
    /// The number of slots, which is a power of two.
    size: u32,
}

// SAFETY: the memory is shared only with the kernel. In this process, one `Consumer` or `Producer`
// owns the ring, and only one thread owns that value at a time.
unsafe impl<T: Send> Send for Memory<T> {}

impl<T: Copy> Memory<T> {
    /// Creates a ring in shared memory.
    ///
    /// # Safety
    /// The three words and the `size` slots must be memory that the kernel shares as a ring of such
    /// slots. The memory must be aligned, initially zeroed, and mapped as long as the value lives.
    /// No other code of the process may use the memory. Every bit pattern must be a valid `T`.
    pub(crate) unsafe fn new(
        [producer, consumer, flags]: [NonNull<AtomicU32>; 3],
        slots: NonNull<T>,
        size: u32,
    ) -> Self {
        Self { producer, consumer, flags, slots, size }
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: `new` requires that the word stays mapped while `self` lives. Both sides access
        // the word only atomically.
        unsafe { self.producer.as_ref() }
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: `new` requires that the word stays mapped while `self` lives. Both sides access
        // the word only atomically.
        unsafe { self.consumer.as_ref() }
    }

    #[inline]
    fn needs_wakeup(&self) -> bool {
        // SAFETY: `new` requires that the word stays mapped while `self` lives. Both sides access
        // the word only atomically.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    #[inline]
    fn slots(&self) -> Slots<T> {
        Slots { first: self.slots, size: self.size }
    }
}

/// The memory location of a ring's slots.
#[derive(Clone, Copy)]
struct Slots<T> {
    first: NonNull<T>,
    size: u32,
}

impl<T> Slots<T> {
    #[inline]
    fn at(self, place: u32) -> NonNull<T> {
        debug_assert!(place < self.size, "slot number out of range");
        // SAFETY: slot numbers are masked with `size - 1`, and the ring has `size` slots.
        unsafe { self.first.add(place as usize) }
    }
}

/// The consumer side of a receive or completion ring, which the kernel fills.
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

    /// Appends up to `most` entries to `to` in order, each converted by `each`, and returns their
    /// slots to the kernel. Returns the number of entries.
    #[inline]
    pub(crate) fn take<U>(
        &mut self,
        most: usize,
        to: &mut impl Extend<U>,
        mut each: impl FnMut(T) -> U,
    ) -> usize {
        let Self { memory, index } = self;
        let count = index.available(memory.producer()).min(u32::try_from(most).unwrap_or(u32::MAX));
        if count == 0 {
            return 0;
        }
        let (slots, places) = (memory.slots(), index.places());
        to.extend((0..count).map(move |ahead| {
            let slot = slots.at(places.at(ahead));
            // SAFETY: between `available` and `release` the slot belongs to this process, so the
            // kernel does not write to it. Every bit pattern is a valid `T`.
            each(unsafe { slot.read() })
        }));
        index.release(count, memory.consumer());
        count as usize
    }
}

/// The producer side of a transmit or fill ring, which the kernel empties.
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

    /// Returns the number of free slots. The kernel's index is read only if fewer than `wanted`
    /// slots are already known to be free.
    #[inline]
    pub(crate) fn free(&mut self, wanted: usize) -> usize {
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        self.index.free(wanted, self.memory.consumer()) as usize
    }

    /// Reads the kernel's index and returns the current number of free slots.
    #[inline]
    pub(crate) fn free_now(&mut self) -> usize {
        self.index.look(self.memory.consumer()) as usize
    }

    /// Writes entries into free slots in order, until no entry or no free slot is left. Returns the
    /// number of written entries. The kernel sees the entries after [`Producer::submit`].
    #[inline]
    pub(crate) fn put(&mut self, entries: impl ExactSizeIterator<Item = T>) -> usize {
        let free = self.free(entries.len());
        let (slots, places) = (self.memory.slots(), self.index.places());
        let mut count = 0;
        for entry in entries.take(free) {
            let slot = slots.at(places.at(count));
            // SAFETY: between `free` and `submit` the slot belongs to this process, so the kernel
            // does not read it.
            unsafe { slot.write(entry) };
            count += 1;
        }
        self.index.advance(count);
        count as usize
    }

    /// Makes all written entries visible to the kernel.
    #[inline]
    pub(crate) fn submit(&mut self) {
        self.index.submit(self.memory.producer());
    }

    /// Returns `true` if the kernel processes the ring only after a wakeup system call.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.memory.needs_wakeup()
    }
}
