//! Tests of rings against a simulated kernel. The simulated kernel uses the memory of a ring, but
//! none of the code under test.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// The memory of a ring, laid out as in the kernel.
pub(crate) struct Shared<T> {
    pub(crate) words: Box<[AtomicU32; 3]>,
    slots: Box<[T]>,
}

impl<T: Copy + Default> Shared<T> {
    /// Creates an empty ring with both indices at `first`.
    pub(crate) fn new(size: u32, first: u32) -> Self {
        let words = Box::new([first, first, 0].map(AtomicU32::new));
        Self { words, slots: vec![T::default(); size as usize].into() }
    }

    pub(crate) fn memory(&mut self) -> Memory<T> {
        let [producer, consumer, flags] = self.words.each_ref().map(NonNull::from_ref);
        let size = u32::try_from(self.slots.len()).unwrap();
        let slots = NonNull::new(self.slots.as_mut_ptr()).unwrap();
        // SAFETY: the words and slots live as long as the test. The test accesses the slots only
        // through this pointer.
        unsafe { Memory::new([producer, consumer, flags], slots, size) }
    }
}

/// A simulated kernel. The simulated kernel counts its indices in 64 bits, starting at `first`, so
/// that they never wrap.
pub(crate) struct Kernel<T> {
    memory: Memory<T>,
    first: u64,
    produced: u64,
    consumed: u64,
}

impl<T: Copy> Kernel<T> {
    pub(crate) fn new(memory: Memory<T>, first: u32) -> Self {
        Self { memory, first: first.into(), produced: 0, consumed: 0 }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the ring stores the low 32 bits")]
    fn word(&self, count: u64) -> u32 {
        (self.first + count) as u32
    }

    fn slot(&self, count: u64) -> NonNull<T> {
        let place = (self.first + count) % u64::from(self.memory.size);
        // SAFETY: `place` is a slot number inside the ring.
        unsafe { self.memory.slots.add(usize::try_from(place).unwrap()) }
    }

    /// Returns the number of free slots in a ring that the code under test empties.
    pub(crate) fn room(&self) -> u32 {
        let taken = self.memory.consumer().load(Ordering::Acquire);
        self.memory.size - self.word(self.produced).wrapping_sub(taken)
    }

    /// Writes a value into a ring that the code under test empties. Returns `false` if the ring is
    /// full.
    pub(crate) fn put(&mut self, value: T) -> bool {
        if self.room() == 0 {
            return false;
        }
        // SAFETY: the ring is not full, so the slot belongs to the kernel.
        unsafe { self.slot(self.produced).write(value) };
        self.produced += 1;
        self.memory.producer().store(self.word(self.produced), Ordering::Release);
        true
    }

    /// Reads a value from a ring that the code under test fills.
    pub(crate) fn take(&mut self) -> Option<T> {
        if self.memory.producer().load(Ordering::Acquire) == self.word(self.consumed) {
            return None;
        }
        // SAFETY: submitted slots belong to the kernel.
        let value = unsafe { self.slot(self.consumed).read() };
        self.consumed += 1;
        self.memory.consumer().store(self.word(self.consumed), Ordering::Release);
        Some(value)
    }

    /// Writes up to `most` values into a ring that the code under test empties.
    fn fill(&mut self, most: usize, values: &mut impl Iterator<Item = T>, waiting: &mut VecDeque<T>) {
        for value in values.take(most) {
            if !self.put(value) {
                return;
            }
            waiting.push_back(value);
        }
    }

    /// Reads up to `most` values from a ring that the code under test fills.
    fn empty(&mut self, most: usize) -> Vec<T> {
        std::iter::from_fn(|| self.take()).take(most).collect()
    }
}

/// Generates a ring size, the first index, and the work of both sides in each step. The indices
/// wrap in most cases.
fn iterations() -> impl Strategy<Value = (u32, u32, Vec<(usize, usize, bool)>)> {
    let first = prop_oneof![(0..40_u32).prop_map(|before| u32::MAX - before), any::<u32>()];
    let iterations = prop::collection::vec((0..20_usize, 0..20_usize, any::<bool>()), 1..60);
    (0..5_u32, first, iterations).prop_map(|(shift, first, iterations)| (1 << shift, first, iterations))
}

proptest! {
    #[test]
    fn consumer_takes_entries_once_and_in_order((size, first, iterations) in iterations()) {
        let mut shared = Shared::new(size, first);
        let mut kernel = Kernel::new(shared.memory(), first);
        let mut ring = Consumer::new(shared.memory());
        let (mut values, mut waiting) = (1.., VecDeque::new());
        for (filled, most, _) in iterations {
            kernel.fill(filled, &mut values, &mut waiting);
            let mut taken = vec![0];
            let there = waiting.len();
            let count = ring.take(most, &mut taken, |value| value);
            prop_assert_eq!(taken.remove(0), 0, "earlier entries must stay");
            prop_assert_eq!(count, taken.len());
            prop_assert!(count <= most && (count > 0 || most == 0 || there == 0));
            prop_assert_eq!(taken, waiting.drain(..count).collect::<Vec<_>>());
        }
        while ring.take(3, &mut Vec::new(), |value| assert_eq!(Some(value), waiting.pop_front())) > 0 {}
        prop_assert!(waiting.is_empty());
    }

    #[test]
    fn producer_shows_entries_in_order_after_submit((size, first, iterations) in iterations()) {
        let mut shared = Shared::new(size, first);
        let mut kernel = Kernel::new(shared.memory(), first);
        let mut ring = Producer::new(shared.memory());
        let (mut values, mut put, mut submitted) = (1.., VecDeque::new(), VecDeque::new());
        for (wanted, emptied, submits) in iterations {
            let used = put.len() + submitted.len();
            let free = ring.free(wanted);
            prop_assert!(free + used <= size as usize, "{free} free, {used} used of {size}");
            prop_assert!(free >= wanted || free + used == size as usize, "too few slots were reported");
            // Offer more entries than fit, and check that the rest is not taken.
            let offered: Vec<u64> = values.by_ref().take(wanted).collect();
            let mut left = offered.iter().copied();
            let count = ring.put(left.by_ref());
            prop_assert_eq!(count, wanted.min(ring.free_now() + count));
            prop_assert!(count >= wanted.min(free));
            prop_assert_eq!(left.len(), wanted - count, "an entry was taken and not written");
            put.extend(&offered[..count]);
            if submits {
                ring.submit();
                submitted.append(&mut put);
            }
            for value in kernel.empty(emptied) {
                prop_assert_eq!(Some(value), submitted.pop_front(), "the kernel saw an entry before submit");
            }
            prop_assert_eq!(ring.free_now(), size as usize - put.len() - submitted.len());
        }
    }
}

#[test]
fn producer_needs_wakeup_follows_the_flag() {
    let mut shared = Shared::<u64>::new(4, 0);
    let ring = Producer::new(shared.memory());
    for (flags, needs) in [(0, false), (1, true), (2, false), (3, true)] {
        shared.words[2].store(flags, Ordering::Relaxed);
        assert_eq!(ring.needs_wakeup(), needs);
    }
}
