//! Which slots of an AF_XDP ring are ours: the two indices that we share with the kernel.
//!
//! In: the shared words. Out: places in the ring, each ours from the load that shows it until the store that gives it away.
//! Not here: the memory of slots (`ring`), waking the kernel.
//! Invariant: a thread that sees an index move sees what was written into the slots before. A loom model goes through every
//! interleaving with a kernel of its own.
//! Indices count on and wrap at 2^32; a ring's size is a power of two, so that their low bits are a place.
//! Source: Linux Documentation/networking/af_xdp.rst; `net/xdp/xsk_queue.h`, the comment above `struct xsk_queue`.

use crate::sync::{AtomicU32, Ordering};

/// Our half of a ring that the kernel fills.
#[derive(Debug)]
pub(crate) struct ConsumerIndex {
    mask: u32,
    /// The next slot to take.
    next: u32,
    /// The kernel's index when we last looked: the end of the slots that are ours.
    end: u32,
}

impl ConsumerIndex {
    /// Of a ring with `size` slots, a power of two, whose slots before `consumer` have been taken.
    pub(crate) fn new(size: u32, consumer: &AtomicU32) -> Self {
        let next = consumer.load(Ordering::Relaxed);
        Self { mask: mask(size), next, end: next }
    }

    /// How many slots there are to take: those known of, and a look at the kernel's index where that is none.
    #[inline]
    pub(crate) fn available(&mut self, producer: &AtomicU32) -> u32 {
        if self.next == self.end {
            // Acquire: pairs with the kernel's release in `xskq_prod_submit`, after it has written the slots.
            self.end = producer.load(Ordering::Acquire);
        }
        self.end.wrapping_sub(self.next)
    }

    /// The next slot's place, below the size; only as often as there are slots.
    #[inline]
    pub(crate) fn advance(&mut self) -> u32 {
        debug_assert_ne!(self.next, self.end, "there is a slot to take");
        let place = self.next & self.mask;
        self.next = self.next.wrapping_add(1);
        place
    }

    /// Gives the slots taken back to the kernel.
    #[inline]
    pub(crate) fn release(&self, consumer: &AtomicU32) {
        // Release: the kernel, which acquires in `xskq_prod_nb_free`, writes into slots that we have read.
        consumer.store(self.next, Ordering::Release);
    }
}

/// Our half of a ring that the kernel empties.
#[derive(Debug)]
pub(crate) struct ProducerIndex {
    mask: u32,
    /// The next slot to fill.
    next: u32,
    /// The kernel's index when we last looked and the size: the end of the slots that are ours.
    end: u32,
}

impl ProducerIndex {
    /// Of a ring with `size` slots, a power of two, whose slots before `producer` have been filled.
    pub(crate) fn new(size: u32, producer: &AtomicU32, consumer: &AtomicU32) -> Self {
        let next = producer.load(Ordering::Relaxed);
        let mut index = Self { mask: mask(size), next, end: next };
        index.look(consumer);
        index
    }

    /// How many slots may be filled: those known of, and a look at the kernel's index where they are fewer than `wanted`.
    #[inline]
    pub(crate) fn free(&mut self, wanted: u32, consumer: &AtomicU32) -> u32 {
        let known = self.end.wrapping_sub(self.next);
        if known >= wanted { known } else { self.look(consumer) }
    }

    /// The same by a look.
    #[inline]
    pub(crate) fn look(&mut self, consumer: &AtomicU32) -> u32 {
        // Acquire: pairs with the kernel's release in `__xskq_cons_release`, after it has read the slots.
        self.end = consumer.load(Ordering::Acquire).wrapping_add(self.mask).wrapping_add(1);
        self.end.wrapping_sub(self.next)
    }

    /// The next slot's place, below the size; only as often as there are slots.
    #[inline]
    pub(crate) fn advance(&mut self) -> u32 {
        debug_assert_ne!(self.next, self.end, "there is a slot to fill");
        let place = self.next & self.mask;
        self.next = self.next.wrapping_add(1);
        place
    }

    /// Gives the slots filled to the kernel.
    #[inline]
    pub(crate) fn submit(&self, producer: &AtomicU32) {
        // Release: the kernel, which acquires in `__xskq_cons_peek`, reads what was written into them.
        producer.store(self.next, Ordering::Release);
    }
}

fn mask(size: u32) -> u32 {
    assert!(size.is_power_of_two(), "a ring of {size} slots");
    size - 1
}

#[cfg(all(test, loom))]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::*;

    /// A ring of two slots, whose indices wrap within the model. What is done with a slot is relaxed: an index alone orders it. The
    /// consumer leaves 0 in a slot, and the producer that fills it must see that.
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

        /// The slot of an index.
        fn slot(&self, index: u32) -> &AtomicU64 {
            &self.slots[(index % 2) as usize]
        }
    }

    fn put(slot: &AtomicU64, value: u64) {
        assert_eq!(slot.load(Ordering::Relaxed), 0, "what lay in the slot has been taken");
        slot.store(value, Ordering::Relaxed);
    }

    fn take(slot: &AtomicU64) -> u64 {
        let value = slot.load(Ordering::Relaxed);
        slot.store(0, Ordering::Relaxed);
        value
    }

    /// So that the third slot is behind the wrap.
    const FIRST: u32 = u32::MAX - 1;
    const VALUES: [u64; 3] = [11, 12, 13];

    /// A kernel that fills the ring, as `xsk_queue.h` says, by nothing of the code above.
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

    /// A kernel that empties it.
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
    fn what_the_kernel_fills_is_taken_once_and_in_order() {
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
                taken.extend((0..count).map(|_| take(&ring.slots[index.advance() as usize])));
                index.release(&ring.consumer);
            }
            assert_eq!(taken, VALUES);
            kernel.join().unwrap();
        });
    }

    #[test]
    fn what_is_given_to_the_kernel_is_whole() {
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
                for value in now {
                    put(&ring.slots[index.advance() as usize], *value);
                }
                index.submit(&ring.producer);
                left = later;
            }
            assert_eq!(kernel.join().unwrap(), VALUES);
        });
    }
}
