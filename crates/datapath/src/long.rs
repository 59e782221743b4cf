//! Packets longer than a frame: gathered into memory of their own as they come, and spread over frames again as they leave.
//!
//! In: descriptors that belong together. Out: one [`Frame`] whose bytes lie in one piece, as the pipeline needs them.
//! Not here: packets in one frame, which never come this way; what a packet means.
//! Invariant: a long frame owns its chunk, the slot of that chunk, and the chunks whose descriptors the slot holds.
//! Source: Linux Documentation/networking/af_xdp.rst, "Multi-Buffer Support".

use crate::frame::{Descriptor, Frame};
use crate::slots::{MOST_MORE, ROOM};
use crate::umem::Area;
use arrayvec::ArrayVec;

/// Long packets as they come to a queue.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    /// The one that has not come whole.
    partial: Option<Partial>,
    /// Packets that were longer than any interface should carry.
    pub(crate) too_long: u64,
}

impl Gathering {
    /// Whether the next frame belongs to a packet that has begun.
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.partial.is_some()
    }
}

#[derive(Debug)]
struct Partial {
    frame: Frame,
    len: usize,
    is_too_long: bool,
}

/// The descriptors that a long frame leaves in.
pub(crate) type Pieces = ArrayVec<Descriptor, MOST_PIECES>;

impl Area {
    /// Takes one more frame of a long packet, `len` bytes of it: the packet once it is whole, with its length. What is longer than
    /// a slot is given up: its frames go to `returned`, and `too_long` counts it.
    #[cold]
    pub(crate) fn gather(
        &self,
        gathering: &mut Gathering,
        mut piece: Frame,
        len: usize,
        returned: &mut Vec<Frame>,
    ) -> Option<(Frame, usize)> {
        let is_last = !piece.is_long();
        piece.0.set_followed(false);
        let whole = match gathering.partial.take() {
            Some(mut whole) => {
                self.join(&mut whole, piece, len, returned);
                whole
            }
            None => self.begin(piece, len),
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
        Some((whole.frame, whole.len))
    }

    fn begin(&self, piece: Frame, len: usize) -> Partial {
        let mut frame = self.lengthen(piece);
        if let Some((chunk, slot)) = self.both(&mut frame) {
            copy(chunk.get(..len), slot.bytes().get_mut(..len));
        }
        Partial { frame, len, is_too_long: len > ROOM }
    }

    fn join(&self, whole: &mut Partial, mut piece: Frame, len: usize, returned: &mut Vec<Frame>) {
        let end = whole.len + len;
        if let Some(slot) = self.slot(&mut whole.frame) {
            copy(self.chunk(&mut piece).get(..len), slot.bytes().get_mut(whole.len..end));
            let left = slot.add(piece).err();
            whole.is_too_long |= end > ROOM || left.is_some();
            returned.extend(left);
        }
        whole.len = end;
    }

    /// Makes a frame long: its bytes are then those of its slot. It is left as it is where there are no slots.
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

    /// Makes a frame one chunk again; the others of its chunks go to `returned`.
    #[cold]
    pub(crate) fn shorten(&self, mut frame: Frame, returned: &mut impl Extend<Frame>) -> Frame {
        if let Some(slot) = self.slot(&mut frame) {
            returned.extend(std::iter::from_fn(|| slot.take()));
        }
        frame.0.set_followed(false);
        frame
    }

    /// Gives a long frame as many chunks as `len` bytes take; an error when there are too few, with those that it has then.
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
            copy(slot.bytes().get(..at), chunk.get_mut(..at));
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
                copy(slot.bytes().get(at..end), self.chunk(&mut chunk).get_mut(..end - at));
            }
            pieces.push(self.piece(&mut chunk, end - at, end < len));
            at = end;
        }
        Ok(pieces)
    }

    /// The descriptor of a chunk that holds `len` bytes of a packet, the last ones or not.
    fn piece(&self, chunk: &mut Frame, len: usize, is_followed: bool) -> Descriptor {
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

/// Frames of a packet.
pub(crate) const MOST_PIECES: usize = MOST_MORE + 1;

#[cfg(test)]
mod tests;
