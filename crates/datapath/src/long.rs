//! Handles packets that are longer than a frame. A received packet is copied from several frames
//! into one slot, so that the pipeline sees contiguous bytes. When the packet is sent, its bytes
//! are copied back into several frames. Packets that fit into one frame do not use this module.
//!
//! Invariant: a long frame owns its chunk and the slot of that chunk. The frame also owns all
//! chunks whose descriptors are in the slot.
//!
//! See Linux Documentation/networking/af_xdp.rst, section "Multi-Buffer Support".

use std::ops::Range;

use crate::frame::{Descriptor, Frame};
use crate::slots::{MOST_MORE, ROOM};
use crate::umem::Area;
use arrayvec::ArrayVec;

/// The receive state of a queue for long packets.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    /// The packet that is being received, whose last frame has not arrived yet.
    partial: Option<Partial>,
    /// The number of packets that were dropped because they were longer than a slot.
    pub(crate) too_long: u64,
}

impl Gathering {
    /// Returns `true` if the next frame continues a packet.
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.partial.is_some()
    }
}

#[derive(Debug)]
struct Partial {
    frame: Frame,
    /// The size of the headroom in front of the packet.
    start: usize,
    end: usize,
    is_too_long: bool,
}

/// The descriptors of a long packet that is being sent.
pub(crate) type Segments = ArrayVec<Descriptor, MAX_SEGMENTS>;

impl Area {
    /// Appends the bytes `bounds` of one frame to a long packet. Returns the packet and its bounds
    /// once the packet is complete. A packet that is longer than a slot is dropped and counted in
    /// `too_long`, and its frames are added to `returned`.
    #[cold]
    pub(crate) fn gather(
        &self,
        gathering: &mut Gathering,
        mut segment: Frame,
        bounds: Range<usize>,
        returned: &mut Vec<Frame>,
    ) -> Option<(Frame, Range<usize>)> {
        let is_last = !segment.is_long();
        segment.0.set_followed(false);
        let whole = match gathering.partial.take() {
            Some(mut whole) => {
                self.join(&mut whole, segment, bounds.len(), returned);
                whole
            }
            None => self.begin(segment, bounds),
        };
        if !is_last {
            gathering.partial = Some(whole);
            return None;
        }
        if whole.is_too_long {
            gathering.too_long += 1;
            let frame = self.shorten(whole.frame, returned);
            returned.push(frame);
            return None;
        }
        Some((whole.frame, whole.start..whole.end))
    }

    fn begin(&self, segment: Frame, bounds: Range<usize>) -> Partial {
        let mut frame = self.lengthen(segment);
        if let Some((chunk, slot)) = self.both(&mut frame) {
            copy(chunk.get(bounds.clone()), slot.bytes().get_mut(bounds.clone()));
        }
        let Range { start, end } = bounds;
        Partial { frame, start, end, is_too_long: end > ROOM }
    }

    fn join(&self, whole: &mut Partial, mut segment: Frame, len: usize, returned: &mut Vec<Frame>) {
        let end = whole.end + len;
        if let Some(slot) = self.slot(&mut whole.frame) {
            copy(self.chunk(&mut segment).get(..len), slot.bytes().get_mut(whole.end..end));
            let left = slot.add(segment).err();
            whole.is_too_long |= end > ROOM || left.is_some();
            returned.extend(left);
        }
        whole.end = end;
    }

    /// Marks a frame as long. The packet bytes of a long frame are stored in its slot. If the UMEM
    /// has no slots, the frame is returned unchanged.
    #[inline]
    pub(crate) fn lengthen(&self, mut frame: Frame) -> Frame {
        if self.has_slots()
            && !frame.is_long()
            && let Some(slot) = self.slot(&mut frame)
        {
            slot.clear();
            frame.0.set_followed(true);
        }
        frame
    }

    /// Converts a long frame back to a frame with a single chunk. Its other chunks are added to
    /// `returned`.
    #[cold]
    pub(crate) fn shorten(&self, mut frame: Frame, returned: &mut impl Extend<Frame>) -> Frame {
        self.shorten_in_place(&mut frame, returned);
        frame
    }

    /// Does the same as [`Self::shorten`].
    #[cold]
    pub(crate) fn shorten_in_place(&self, frame: &mut Frame, returned: &mut impl Extend<Frame>) {
        if let Some(slot) = self.slot(frame) {
            returned.extend(std::iter::from_fn(|| slot.take()));
        }
        frame.0.set_followed(false);
    }

    /// Adds chunks from `spare` to a long frame until the frame has room for `len` bytes.
    ///
    /// # Errors
    /// If `spare` has too few chunks, returns the frame with the chunks that were added so far.
    fn widen(&self, mut frame: Frame, len: usize, spare: &mut Vec<Frame>) -> Result<Frame, Frame> {
        let mut room = self.room(&frame);
        let Some(slot) = self.slot(&mut frame) else { return Err(frame) };
        room += slot.descriptors().map(|one| self.room(&Frame(one))).sum::<usize>();
        while room < len
            && !slot.is_full()
            && let Some(chunk) = spare.pop()
        {
            room += self.room(&chunk);
            spare.extend(slot.add(chunk).err());
        }
        if room < len { Err(frame) } else { Ok(frame) }
    }

    /// Copies the bytes `bounds` of a long frame into its chunks. If the frame has too few
    /// chunks, chunks from `spare` are added. Chunks that are not needed are added to `returned`.
    ///
    /// # Errors
    /// Returns the frame if `spare` has too few chunks.
    #[cold]
    pub(crate) fn spread(
        &self,
        frame: Frame,
        bounds: Range<usize>,
        spare: &mut Vec<Frame>,
        returned: &mut Vec<Frame>,
    ) -> Result<Segments, Frame> {
        let frame = self.widen(frame, bounds.len(), spare)?;
        let Range { start, end } = bounds;
        let mut more = ArrayVec::<Frame, MOST_MORE>::new();
        let mut head = self.shorten(frame, &mut more);
        let mut at = (start + self.room(&head)).min(end);
        if let Some((chunk, slot)) = self.both(&mut head) {
            copy(slot.bytes().get(start..at), chunk.get_mut(..at - start));
        }
        let mut segments = Segments::new();
        segments.push(self.segment(&mut head, at - start, at < end));
        for mut chunk in more {
            let next = (at + self.room(&chunk)).min(end);
            if at == next {
                returned.push(chunk);
                continue;
            }
            if let Some(slot) = self.slot(&mut head) {
                copy(slot.bytes().get(at..next), self.chunk(&mut chunk).get_mut(..next - at));
            }
            segments.push(self.segment(&mut chunk, next - at, next < end));
            at = next;
        }
        Ok(segments)
    }

    /// Returns the descriptor of a chunk that holds `len` bytes of a packet. `is_followed` is
    /// `false` for the last chunk of the packet.
    fn segment(&self, chunk: &mut Frame, len: usize, is_followed: bool) -> Descriptor {
        self.set_len(chunk, len);
        let mut descriptor = chunk.0;
        descriptor.set_followed(is_followed);
        descriptor
    }
}

fn copy(from: Option<&[u8]>, to: Option<&mut [u8]>) {
    if let (Some(from), Some(to)) = (from, to) {
        to.copy_from_slice(from);
    }
}

/// The maximum number of frames for one packet.
pub(crate) const MAX_SEGMENTS: usize = MOST_MORE + 1;

#[cfg(test)]
mod tests;
