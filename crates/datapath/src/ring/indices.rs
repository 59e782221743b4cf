//! The producer and consumer indices of an AF_XDP ring, which determine the owner of each slot. By
//! loading the kernel's index, this process learns which slots it owns now. By storing its own
//! index, this process passes slots to the kernel.
//!
//! Indices increase and wrap at 2^32. The size of a ring is a power of two, so the low bits of an
//! index are a slot number.
//!
//! Invariant: a thread that sees a new index also sees the data in the slots before that index. A
//! loom model checks all interleavings with a simulated kernel.
//!
//! See Linux Documentation/networking/af_xdp.rst, and in `net/xdp/xsk_queue.h` the comment above
//! `struct xsk_queue`.

use crate::sync::{AtomicU32, Ordering};

/// The consumer side of a ring that the kernel fills.
#[derive(Debug)]
pub(crate) struct ConsumerIndex {
    mask: u32,
    /// The index of the next slot to read.
    next: u32,
    /// The producer index of the kernel, as last read. Slots before this index can be read.
    end: u32,
}

impl ConsumerIndex {
    /// Creates the index for a ring of `size` slots, a power of two. The slots before `consumer`
    /// have already been read.
    pub(crate) fn new(size: u32, consumer: &AtomicU32) -> Self {
        let next = consumer.load(Ordering::Relaxed);
        Self { mask: mask(size), next, end: next }
    }

    /// Returns the number of slots that can be read. The kernel's index is read only if no slot is
    /// known to be available.
    #[inline]
    pub(crate) fn available(&mut self, producer: &AtomicU32) -> u32 {
        if self.next == self.end {
            // Acquire: pairs with the release in `xskq_prod_submit` of the kernel. The kernel
            // writes the slots before that release.
            self.end = producer.load(Ordering::Acquire);
        }
        self.end.wrapping_sub(self.next)
    }

    /// Returns the slots that can be read.
    #[inline]
    pub(crate) fn places(&self) -> Places {
        Places { first: self.next, end: self.end, mask: self.mask }
    }

    /// Passes the next `count` slots to the kernel after they were read. The kernel can then reuse
    /// these slots.
    #[inline]
    pub(crate) fn release(&mut self, count: u32, consumer: &AtomicU32) {
        debug_assert!(count <= self.end.wrapping_sub(self.next), "too many slots released");
        self.next = self.next.wrapping_add(count);
        // Release: pairs with the acquire in `xskq_prod_nb_free` of the kernel. The kernel
        // therefore overwrites a slot only after the slot was read.
        consumer.store(self.next, Ordering::Release);
    }
}

/// The producer side of a ring that the kernel empties.
#[derive(Debug)]
pub(crate) struct ProducerIndex {
    mask: u32,
    /// The index of the next slot to fill.
    next: u32,
    /// The consumer index of the kernel, as last read, plus the ring size. Slots before this index
    /// are free.
    end: u32,
}

impl ProducerIndex {
    /// Creates the index for a ring of `size` slots, a power of two. The slots before `producer`
    /// have already been filled.
    pub(crate) fn new(size: u32, producer: &AtomicU32, consumer: &AtomicU32) -> Self {
        let next = producer.load(Ordering::Relaxed);
        let mut index = Self { mask: mask(size), next, end: next };
        index.look(consumer);
        index
    }

    /// Returns the number of free slots. The kernel's index is read only if fewer than `wanted`
    /// slots are already known to be free.
    #[inline]
    pub(crate) fn free(&mut self, wanted: u32, consumer: &AtomicU32) -> u32 {
        let known = self.end.wrapping_sub(self.next);
        if known >= wanted { known } else { self.look(consumer) }
    }

    /// Reads the kernel's index and returns the current number of free slots.
    #[inline]
    pub(crate) fn look(&mut self, consumer: &AtomicU32) -> u32 {
        // Acquire: pairs with the release in `__xskq_cons_release` of the kernel. The kernel reads
        // the slots before that release.
        self.end = consumer.load(Ordering::Acquire).wrapping_add(self.mask).wrapping_add(1);
        self.end.wrapping_sub(self.next)
    }

    /// Returns the free slots.
    #[inline]
    pub(crate) fn places(&self) -> Places {
        Places { first: self.next, end: self.end, mask: self.mask }
    }

    /// Records that the next `count` slots are filled.
    #[inline]
    pub(crate) fn advance(&mut self, count: u32) {
        debug_assert!(count <= self.end.wrapping_sub(self.next), "too many slots filled");
        self.next = self.next.wrapping_add(count);
    }

    /// Passes the filled slots to the kernel.
    #[inline]
    pub(crate) fn submit(&self, producer: &AtomicU32) {
        // Release: pairs with the acquire in `__xskq_cons_peek` of the kernel. The kernel therefore
        // sees the data that was written into the slots.
        producer.store(self.next, Ordering::Release);
    }
}

/// The slots that this process owns. The type is a copy of the indices, so that a loop over the
/// slots keeps them in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    first: u32,
    end: u32,
    mask: u32,
}

impl Places {
    /// Returns the slot number of the slot that is `ahead` slots after the first slot.
    #[inline]
    pub(crate) fn at(self, ahead: u32) -> u32 {
        debug_assert!(ahead < self.end.wrapping_sub(self.first), "the kernel owns the slot");
        self.first.wrapping_add(ahead) & self.mask
    }
}

fn mask(size: u32) -> u32 {
    assert!(size.is_power_of_two(), "ring size {size} is not a power of two");
    size - 1
}

#[cfg(all(test, loom))]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::*;

    /// A ring of two slots. The indices wrap during the model run. Slots are accessed with relaxed
    /// ordering, so only the indices can order the accesses. The consumer stores 0 into a slot that
    /// it has read. The producer checks for this 0 before it fills the slot again.
    struct Shared {
        producer: AtomicU32,
        consumer: AtomicU32,
        slots: [AtomicU64; 2],
    }

    impl Shared {
        fn new() -> Arc<Self> {
            let (producer, consumer) = (AtomicU32::new(FIRST), AtomicU32::new(FIRST));
            Arc::new(Self { producer, consumer, slots: [AtomicU64::new(0), AtomicU64::new(0)] })
        }

        fn slot(&self, index: u32) -> &AtomicU64 {
            &self.slots[(index % 2) as usize]
        }
    }

    fn put(slot: &AtomicU64, value: u64) {
        assert_eq!(slot.load(Ordering::Relaxed), 0, "slot still has a value");
        slot.store(value, Ordering::Relaxed);
    }

    fn take(slot: &AtomicU64) -> u64 {
        let value = slot.load(Ordering::Relaxed);
        slot.store(0, Ordering::Relaxed);
        value
    }

    /// The first index. The indices wrap before the third slot.
    const FIRST: u32 = u32::MAX - 1;
    const VALUES: [u64; 3] = [11, 12, 13];

    /// Simulates a kernel that fills the ring as described in `xsk_queue.h`. The expected values
    /// are computed without the code under test.
    fn fill(ring: &Shared) {
        for (index, value) in (0..).zip(VALUES) {
            let index = FIRST.wrapping_add(index);
            while index.wrapping_sub(ring.consumer.load(Ordering::Acquire)) >= 2 {
                loom::thread::yield_now();
            }
            put(ring.slot(index), value);
            ring.producer.store(index.wrapping_add(1), Ordering::Release);
        }
    }

    /// Simulates a kernel that empties the ring.
    fn empty(ring: &Shared) -> Vec<u64> {
        let taken = (0..3).map(|index| {
            let index = FIRST.wrapping_add(index);
            while ring.producer.load(Ordering::Acquire) == index {
                loom::thread::yield_now();
            }
            let value = take(ring.slot(index));
            ring.consumer.store(index.wrapping_add(1), Ordering::Release);
            value
        });
        taken.collect()
    }

    #[test]
    fn consumer_takes_each_slot_once_and_in_order() {
        loom::model(|| {
            let ring = Shared::new();
            let kernel = Arc::clone(&ring);
            let kernel = loom::thread::spawn(move || fill(&kernel));
            let (mut index, mut taken) = (ConsumerIndex::new(2, &ring.consumer), Vec::new());
            while taken.len() < VALUES.len() {
                let count = index.available(&ring.producer);
                assert!(count <= 2);
                if count == 0 {
                    loom::thread::yield_now();
                    continue;
                }
                taken.extend((0..count).map(|ahead| take(&ring.slots[index.places().at(ahead) as usize])));
                index.release(count, &ring.consumer);
            }
            assert_eq!(taken, VALUES);
            kernel.join().unwrap();
        });
    }

    #[test]
    fn producer_passes_complete_slots_to_the_kernel() {
        loom::model(|| {
            let ring = Shared::new();
            let kernel = Arc::clone(&ring);
            let kernel = loom::thread::spawn(move || empty(&kernel));
            let mut index = ProducerIndex::new(2, &ring.producer, &ring.consumer);
            let mut left = &VALUES[..];
            while !left.is_empty() {
                let count = (index.free(1, &ring.consumer) as usize).min(left.len());
                if count == 0 {
                    loom::thread::yield_now();
                    continue;
                }
                let (now, later) = left.split_at(count);
                for (ahead, value) in (0..).zip(now) {
                    put(&ring.slots[index.places().at(ahead) as usize], *value);
                }
                index.advance(u32::try_from(count).unwrap());
                index.submit(&ring.producer);
                left = later;
            }
            assert_eq!(kernel.join().unwrap(), VALUES);
        });
    }
}
