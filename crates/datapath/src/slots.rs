//! Memory for packets longer than a frame: a slot for each chunk of the UMEM.
//!
//! In: the one [`Frame`] of a chunk. Out: its slot, with the packet's bytes in one piece, and the other chunks that it took.
//! Not here: what fills a slot and empties it (`long`).
//! Invariant: a slot is reached through the frame of its chunk alone.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::core_dump::keep_out_of_cores;
use crate::frame::{Descriptor, Frame};

/// A slot for each chunk, of which the kernel only backs what has been written to.
#[derive(Clone, Debug)]
pub(crate) struct Slots(Arc<Memory>);

#[derive(Debug)]
struct Memory {
    first: NonNull<u8>,
    /// How many slots there are.
    count: usize,
}

// SAFETY: a slot is only used through the one `Frame` of its chunk, which one thread owns at a time.
unsafe impl Send for Memory {}
// SAFETY: as above; what threads share is the address alone.
unsafe impl Sync for Memory {}

/// What belongs to a long frame besides its own chunk.
#[repr(C)]
pub(crate) struct Slot {
    /// How many of `chunks` are there.
    count: usize,
    chunks: [MaybeUninit<Descriptor>; MOST_MORE],
    bytes: [u8; SLOT - size_of::<usize>() - MOST_MORE * size_of::<Descriptor>()],
}

impl Slots {
    pub(crate) fn new(chunks: usize) -> Self {
        // By way of zeroed words, so that pages are only backed once they are used.
        let words = vec![0u64; chunks * WORDS].into_boxed_slice();
        // SAFETY: a box's pointer is never null.
        let first = unsafe { NonNull::new_unchecked(Box::into_raw(words).cast::<u8>()) };
        keep_out_of_cores(first, chunks * SLOT);
        Self(Arc::new(Memory { first, count: chunks }))
    }

    /// The slot of chunk number `chunk`, for as long as its frame is borrowed.
    pub(crate) fn of<'a>(&self, _: &'a mut Frame, chunk: usize) -> &'a mut Slot {
        // Compared by number: a product might wrap.
        assert!(chunk < self.0.count, "a slot for each chunk");
        // SAFETY: `chunk` is below the number of slots, which lie one behind the other.
        let slot = unsafe { self.0.first.add(chunk * SLOT) }.cast::<Slot>();
        // SAFETY: it is aligned as words are, zeroes are a valid slot, and the chunk's only frame is borrowed for as long
        // as the slot is; the memory outlives it, since the frame's area holds it.
        unsafe { &mut *slot.as_ptr() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let words = std::ptr::slice_from_raw_parts_mut(self.first.as_ptr().cast::<u64>(), self.count * WORDS);
        // SAFETY: that is the box of `new`, which nobody else has.
        drop(unsafe { Box::from_raw(words) });
    }
}

impl Slot {
    /// Where the packet lies.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[..ROOM]
    }

    /// Forgets the chunks that it held for another packet.
    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count == MOST_MORE
    }

    /// Holds one more chunk; gives it back when there is no room for it.
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
        // SAFETY: those below `count` have been written by `add`.
        self.chunks.iter().take(self.count).map(|one| unsafe { one.assume_init() })
    }

    /// The chunk that was added last.
    pub(crate) fn take(&mut self) -> Option<Frame> {
        self.count = self.count.checked_sub(1)?;
        // SAFETY: those below `count` have been written by `add`, and this one is read once.
        self.chunks.get(self.count).map(|last| Frame(unsafe { last.assume_init() }))
    }
}

/// Chunks of a long frame besides its first: the kernel sends no more fragments in a packet.
pub(crate) const MOST_MORE: usize = 16;
/// Bytes of a slot.
const SLOT: usize = 16_384;
const WORDS: usize = SLOT / size_of::<u64>();
/// Bytes of the longest packet, with its link header and head room: a promise, within what a slot holds.
pub(crate) const ROOM: usize = 15_864;
const _: () = assert!(size_of::<Slot>() == SLOT && align_of::<Slot>() <= align_of::<u64>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_slot_for_each_chunk() {
        let (slots, mut frame) = (Slots::new(3), Frame(Descriptor::default()));
        for chunk in 0..3 {
            slots.of(&mut frame, chunk).clear();
        }
    }

    #[test]
    fn what_lies_in_a_slot_is_in_no_core_dump() {
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
        // proc_pid_smaps(5): "dd" is "do not include area into core dump".
        assert!(flags.unwrap().split_whitespace().any(|flag| flag == "dd"), "{flags:?}");
    }

    /// Were the bytes in front of its slot's end counted, they would be 0.
    #[test]
    #[should_panic(expected = "a slot for each chunk")]
    fn a_chunk_whose_number_wraps_has_none() {
        let wraps = usize::MAX / SLOT + 1;
        Slots::new(3).of(&mut Frame(Descriptor::default()), wraps - 1);
    }

    #[test]
    #[should_panic(expected = "a slot for each chunk")]
    fn a_chunk_behind_the_last_has_none() {
        Slots::new(3).of(&mut Frame(Descriptor::default()), 3);
    }
}
