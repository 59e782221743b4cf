//! Packets longer than a frame: gathered into memory of their own as they come, and spread over frames again as they leave.
//!
//! In: descriptors that belong together. Out: one [`Frame`] whose bytes lie in one piece, as the pipeline needs them.
//! Not here: packets in one frame, which never come this way; what a packet means.
//! Invariant: a long frame owns its chunk, the slot of that chunk, and the chunks whose descriptors the slot holds.
//! Source: Linux Documentation/networking/af_xdp.rst, "Multi-Buffer Support".

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use arrayvec::ArrayVec;
use xsk_rs::FrameDesc;

use crate::umem::{Area, Frame};

/// The memory: a slot for each chunk, of which the kernel only backs what has been written to.
#[derive(Clone, Debug)]
pub(crate) struct Slots(Arc<Memory>);

#[derive(Debug)]
struct Memory {
    first: NonNull<u8>,
    words: usize,
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
    chunks: [MaybeUninit<FrameDesc>; MOST_MORE],
    bytes: [u8; ROOM],
}

/// A long packet that has not come whole.
#[derive(Debug)]
pub(crate) struct Partial {
    frame: Frame,
    len: usize,
    is_too_long: bool,
}

/// The descriptors that a long frame leaves in.
pub(crate) type Pieces = ArrayVec<FrameDesc, MOST_PIECES>;

impl Slots {
    /// Memory for `chunks` chunks.
    pub(crate) fn new(chunks: usize) -> Self {
        // By way of zeroed words, so that pages are only backed once they are used.
        let words = vec![0u64; chunks * (SLOT / size_of::<u64>())].into_boxed_slice();
        let count = words.len();
        // SAFETY: a box's pointer is never null.
        let first = unsafe { NonNull::new_unchecked(Box::into_raw(words).cast::<u8>()) };
        Self(Arc::new(Memory { first, words: count }))
    }

    /// The slot of chunk number `chunk`, for as long as its frame is borrowed.
    pub(crate) fn of<'a>(&self, _: &'a mut Frame, chunk: usize) -> &'a mut Slot {
        debug_assert!((chunk + 1) * SLOT <= self.0.words * size_of::<u64>(), "a slot for each chunk");
        // SAFETY: there is a slot for each chunk of the area, and chunks are numbered from 0.
        let slot = unsafe { self.0.first.add(chunk * SLOT) }.cast::<Slot>();
        // SAFETY: it is aligned as words are, zeroes are a valid slot, and the chunk's only frame is borrowed for as long
        // as the slot is; the memory outlives it, since the frame's area holds it.
        unsafe { &mut *slot.as_ptr() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let words = std::ptr::slice_from_raw_parts_mut(self.first.as_ptr().cast::<u64>(), self.words);
        // SAFETY: that is the box of `new`, which nobody else has.
        drop(unsafe { Box::from_raw(words) });
    }
}

impl Slot {
    /// Where the packet lies.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn add(&mut self, chunk: Frame) -> Result<(), Frame> {
        match self.chunks.get_mut(self.count) {
            Some(place) => {
                place.write(chunk.0);
                self.count += 1;
                Ok(())
            }
            None => Err(chunk),
        }
    }

    fn descriptors(&self) -> impl Iterator<Item = FrameDesc> {
        // SAFETY: those below `count` have been written by `add`.
        self.chunks.iter().take(self.count).map(|one| unsafe { one.assume_init() })
    }

    fn take(&mut self) -> Option<Frame> {
        self.count = self.count.checked_sub(1)?;
        // SAFETY: those below `count` have been written by `add`, and this one is read once.
        self.chunks.get(self.count).map(|last| Frame(unsafe { last.assume_init() }))
    }
}

impl Area {
    /// Takes one more frame of a long packet, `len` bytes of it: the packet once it is whole, with its length. What is longer than
    /// a slot is given up: its frames go to `returned`, and `lost` counts it.
    #[cold]
    pub(crate) fn gather(
        &self,
        partial: &mut Option<Partial>,
        mut piece: Frame,
        len: usize,
        returned: &mut Vec<Frame>,
        lost: &mut u64,
    ) -> Option<(Frame, usize)> {
        let is_last = !piece.is_long();
        piece.0.set_options(0);
        let whole = match partial.take() {
            Some(mut whole) => {
                self.join(&mut whole, piece, len, returned);
                whole
            }
            None => self.begin(piece, len),
        };
        if !is_last {
            *partial = Some(whole);
            return None;
        }
        if whole.is_too_long {
            *lost += 1;
            let frame = self.shorten(whole.frame, returned);
            returned.push(frame);
            return None;
        }
        Some((whole.frame, whole.len))
    }

    fn begin(&self, piece: Frame, len: usize) -> Partial {
        let mut frame = self.lengthen(piece);
        if let Some((chunk, slot)) = self.both(&mut frame) {
            copy(chunk.get(..len), slot.bytes.get_mut(..len));
        }
        Partial { frame, len, is_too_long: len > ROOM }
    }

    fn join(&self, whole: &mut Partial, mut piece: Frame, len: usize, returned: &mut Vec<Frame>) {
        let end = whole.len + len;
        if let Some(slot) = self.slot(&mut whole.frame) {
            copy(self.chunk(&mut piece).get(..len), slot.bytes.get_mut(whole.len..end));
            let left = slot.add(piece).err();
            whole.is_too_long |= end > ROOM || left.is_some();
            returned.extend(left);
        }
        whole.len = end;
    }

    /// Makes a frame long: its bytes are then those of its slot. It stays as it is where there are no slots.
    #[inline]
    pub(crate) fn lengthen(&self, mut frame: Frame) -> Frame {
        if self.has_slots()
            && !frame.is_long()
            && let Some(slot) = self.slot(&mut frame)
        {
            slot.count = 0;
            frame.0.set_options(MORE);
        }
        frame
    }

    /// Makes a frame one chunk again; the others of its chunks go to `returned`.
    #[cold]
    pub(crate) fn shorten(&self, mut frame: Frame, returned: &mut impl Extend<Frame>) -> Frame {
        if let Some(slot) = self.slot(&mut frame) {
            returned.extend(std::iter::from_fn(|| slot.take()));
        }
        frame.0.set_options(0);
        frame
    }

    /// Gives a long frame as many chunks as `len` bytes take; an error when there are too few, with those that it has then.
    fn widen(&self, mut frame: Frame, len: usize, spare: &mut Vec<Frame>) -> Result<Frame, Frame> {
        let mut room = self.room(&frame);
        let Some(slot) = self.slot(&mut frame) else { return Err(frame) };
        room += slot.descriptors().map(|one| self.room(&Frame(one))).sum::<usize>();
        while room < len
            && slot.count < MOST_MORE
            && let Some(chunk) = spare.pop()
        {
            room += self.room(&chunk);
            spare.extend(slot.add(chunk).err());
        }
        if room < len { Err(frame) } else { Ok(frame) }
    }

    /// Spreads the first `len` bytes of a long frame over its chunks, and over `spare` ones when they do not suffice; what is
    /// left of its own goes to `returned`.
    ///
    /// # Errors
    /// The frame comes back when there are too few.
    #[cold]
    pub(crate) fn spread(
        &self,
        frame: Frame,
        len: usize,
        spare: &mut Vec<Frame>,
        returned: &mut Vec<Frame>,
    ) -> Result<Pieces, Frame> {
        let frame = self.widen(frame, len, spare)?;
        let mut more = ArrayVec::<Frame, MOST_MORE>::new();
        let mut head = self.shorten(frame, &mut more);
        let mut at = self.room(&head).min(len);
        if let Some((chunk, slot)) = self.both(&mut head) {
            copy(slot.bytes.get(..at), chunk.get_mut(..at));
        }
        let mut pieces = Pieces::new();
        pieces.push(self.piece(&mut head, at, at < len));
        for mut chunk in more {
            let end = (at + self.room(&chunk)).min(len);
            if at == end {
                returned.push(chunk);
                continue;
            }
            if let Some(slot) = self.slot(&mut head) {
                copy(slot.bytes.get(at..end), self.chunk(&mut chunk).get_mut(..end - at));
            }
            pieces.push(self.piece(&mut chunk, end - at, end < len));
            at = end;
        }
        Ok(pieces)
    }

    /// The descriptor of a chunk that holds `len` bytes of a packet, the last ones or not.
    fn piece(&self, chunk: &mut Frame, len: usize, is_followed: bool) -> FrameDesc {
        self.set_len(chunk, len);
        let mut descriptor = chunk.0;
        descriptor.set_options(if is_followed { MORE } else { 0 });
        descriptor
    }
}

fn copy(from: Option<&[u8]>, to: Option<&mut [u8]>) {
    if let (Some(from), Some(to)) = (from, to) {
        to.copy_from_slice(from);
    }
}

/// `XDP_PKT_CONTD`: another descriptor of the same packet follows. On a [`Frame`]: it is long.
const MORE: u32 = 1;
/// Chunks of a long frame besides its first: the kernel sends no more fragments in a packet.
const MOST_MORE: usize = 16;
/// Frames of a packet.
pub(crate) const MOST_PIECES: usize = MOST_MORE + 1;
/// Bytes of a slot.
const SLOT: usize = 16_384;
/// Bytes of the longest packet, with its link header and head room.
pub(crate) const ROOM: usize = SLOT - size_of::<usize>() - MOST_MORE * size_of::<FrameDesc>();
const _: () = assert!(size_of::<Slot>() == SLOT && align_of::<Slot>() <= align_of::<u64>());

#[cfg(test)]
mod tests;
