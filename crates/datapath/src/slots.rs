//! Memory for packets that are longer than a frame. Each chunk of the UMEM has a slot. A slot
//! stores the contiguous bytes of a long packet and the descriptors of the packet's other chunks.
//! The module `long` fills and empties slots.
//!
//! Invariant: a slot is accessed only through the frame of its chunk.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::core_dump::keep_out_of_cores;
use crate::frame::{Descriptor, Frame};

/// The slots of all chunks. The kernel allocates a page of this memory when the page is first
/// written.
#[derive(Clone, Debug)]
pub(crate) struct Slots(Arc<Memory>);

#[derive(Debug)]
struct Memory {
    first: NonNull<u8>,
    /// The number of slots.
    count: usize,
}

// SAFETY: a slot is accessed only through the `Frame` of its chunk. Each chunk has only one
// `Frame`, and a frame is owned by one thread at a time.
unsafe impl Send for Memory {}
// SAFETY: threads share only the address of the memory. A slot is accessed only through the `Frame`
// of its chunk, and each chunk has only one `Frame`.
unsafe impl Sync for Memory {}

/// Memory for a packet that is longer than the chunk to which the slot belongs.
#[repr(C)]
pub(crate) struct Slot {
    /// The number of used entries in `chunks`.
    count: usize,
    chunks: [MaybeUninit<Descriptor>; MOST_MORE],
    bytes: [u8; SLOT - size_of::<usize>() - MOST_MORE * size_of::<Descriptor>()],
}

impl Slots {
    pub(crate) fn new(chunks: usize) -> Self {
        // The kernel allocates the pages of a zeroed vector only when they are first written.
        let words = vec![0u64; chunks * WORDS].into_boxed_slice();
        // SAFETY: the pointer of a box is never null.
        let first = unsafe { NonNull::new_unchecked(Box::into_raw(words).cast::<u8>()) };
        keep_out_of_cores(first, chunks * SLOT);
        Self(Arc::new(Memory { first, count: chunks }))
    }

    /// Returns the slot of chunk number `chunk`. The slot can be used as long as the frame of the
    /// chunk is borrowed.
    pub(crate) fn of<'a>(&self, _: &'a mut Frame, chunk: usize) -> &'a mut Slot {
        // The check compares chunk numbers, because a byte offset could overflow.
        assert!(chunk < self.0.count, "chunk number out of range");
        // SAFETY: `chunk` is below the number of slots, and the slots are consecutive in memory.
        let slot = unsafe { self.0.first.add(chunk * SLOT) }.cast::<Slot>();
        // SAFETY: the slot is aligned to words, and all zeros are a valid slot. The chunk has only
        // one frame, which stays borrowed as long as the reference to the slot exists. The UMEM
        // area that contains the frame keeps the memory alive.
        unsafe { &mut *slot.as_ptr() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let words = std::ptr::slice_from_raw_parts_mut(self.first.as_ptr().cast::<u64>(), self.count * WORDS);
        // SAFETY: the pointer and the length come from the box that `new` converted, and this value
        // is its only owner.
        drop(unsafe { Box::from_raw(words) });
    }
}

impl Slot {
    /// Returns the bytes of the packet.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[..ROOM]
    }

    /// Removes the chunks of the previous packet from the slot.
    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count == MOST_MORE
    }

    /// Adds a chunk to the slot. If the slot is full, returns the chunk as an error.
    pub(crate) fn add(&mut self, chunk: Frame) -> Result<(), Frame> {
        match self.chunks.get_mut(self.count) {
            Some(place) => {
                place.write(chunk.0);
                self.count += 1;
                Ok(())
            }
            None => Err(chunk),
        }
    }

    pub(crate) fn descriptors(&self) -> impl Iterator<Item = Descriptor> {
        // SAFETY: `add` has written all entries below `count`.
        self.chunks.iter().take(self.count).map(|one| unsafe { one.assume_init() })
    }

    /// Removes and returns the chunk that was added last.
    pub(crate) fn take(&mut self) -> Option<Frame> {
        self.count = self.count.checked_sub(1)?;
        // SAFETY: `add` has written all entries below `count`, and this entry is read only once
        // because `count` was decremented.
        self.chunks.get(self.count).map(|last| Frame(unsafe { last.assume_init() }))
    }
}

/// The maximum number of chunks in a long frame, not counting the first chunk. The kernel has the
/// same limit for the fragments of a packet.
pub(crate) const MOST_MORE: usize = 16;
/// The size of a slot in bytes.
const SLOT: usize = 16_384;
const WORDS: usize = SLOT / size_of::<u64>();
/// The space in a slot for a packet with its link header and headroom, in bytes.
pub(crate) const ROOM: usize = 15_864;
const _: () = assert!(size_of::<Slot>() == SLOT && align_of::<Slot>() <= align_of::<u64>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_an_entry_for_each_chunk() {
        let (slots, mut frame) = (Slots::new(3), Frame(Descriptor::default()));
        for chunk in 0..3 {
            slots.of(&mut frame, chunk).clear();
        }
    }

    #[test]
    fn slots_are_left_out_of_core_dumps() {
        let (slots, mut frame) = (Slots::new(64), Frame(Descriptor::default()));
        let slot: *mut Slot = slots.of(&mut frame, 32);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut holds = false;
        let flags = maps.lines().find_map(|line| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            if let Some((from, to)) = range {
                let [from, to] = [from, to].map(|end| usize::from_str_radix(end, 16).unwrap());
                holds = (from..to).contains(&slot.addr());
            }
            line.strip_prefix("VmFlags:").filter(|_| holds)
        });
        // In proc_pid_smaps(5), "dd" means "do not include area into core dump".
        assert!(flags.unwrap().split_whitespace().any(|flag| flag == "dd"), "{flags:?}");
    }

    /// Uses a chunk number whose byte offset would overflow to 0.
    #[test]
    #[should_panic(expected = "chunk number out of range")]
    fn slots_of_a_number_that_overflows_panics() {
        let wraps = usize::MAX / SLOT + 1;
        Slots::new(3).of(&mut Frame(Descriptor::default()), wraps - 1);
    }

    #[test]
    #[should_panic(expected = "chunk number out of range")]
    fn slots_of_a_number_behind_the_last_panics() {
        Slots::new(3).of(&mut Frame(Descriptor::default()), 3);
    }
}
