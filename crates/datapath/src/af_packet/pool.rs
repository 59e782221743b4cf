//! The frames of packet threads that have packet sockets: one area of memory, cut into frames of one size.
//!
//! In: how many threads, frames and bytes. Out: [`PacketFrame`]s, each the only handle on its bytes.
//! Not here: rings; frames are copied out of one and into the other.
//! Invariant: a frame's number exists once.

use std::io;
use std::sync::Arc;

use forwarder::ThreadId;

use super::mapping::Mapping;

/// One frame, owned: its number. Neither `Clone` nor `Copy`.
#[must_use = "a frame goes to a device or to a pool; dropping it loses its bytes"]
#[derive(Debug)]
pub(crate) struct PacketFrame(usize);

/// The memory of all frames.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    memory: Arc<Mapping>,
    /// Bytes of a frame.
    size: usize,
    /// Frames of a thread.
    each: usize,
}

impl Frames {
    /// Memory for `threads` pools of `each` frames of `size` bytes, and the pools.
    ///
    /// # Errors
    /// What mmap says.
    pub(super) fn new(threads: u16, each: usize, size: usize) -> io::Result<(Self, Vec<Vec<PacketFrame>>)> {
        let bytes = usize::from(threads).checked_mul(each).and_then(|frames| frames.checked_mul(size));
        let memory = Arc::new(Mapping::anonymous(bytes.ok_or(io::ErrorKind::OutOfMemory)?)?);
        let pool = |thread: usize| (thread * each..(thread + 1) * each).map(PacketFrame).collect();
        Ok((Self { memory, size, each }, (0..usize::from(threads)).map(pool).collect()))
    }

    /// The bytes of a frame.
    #[inline]
    pub(super) fn bytes<'a>(&'a self, frame: &'a mut PacketFrame) -> &'a mut [u8] {
        let end = (frame.0 + 1) * self.size;
        assert!(end <= self.memory.len(), "a frame lies in its area");
        // SAFETY: the frame's first byte lies in the mapping.
        let first = unsafe { self.memory.base().add(end - self.size) };
        // SAFETY: `size` bytes from there lie in the mapping, are written at least by the kernel's zeroes, and belong to this
        // frame, the only one of its number, which is borrowed for as long as they are.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), self.size) }
    }

    /// The thread to whose pool a frame belongs.
    #[inline]
    pub(super) fn home(&self, frame: &PacketFrame) -> ThreadId {
        ThreadId(u16::try_from(frame.0 / self.each).unwrap_or(u16::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_has_bytes_of_its_own_and_goes_home_to_its_thread() {
        let (frames, mut pools) = Frames::new(3, 5, 2_048).unwrap();
        for (thread, pool) in (0..).zip(&mut pools) {
            for (number, frame) in (0..).zip(pool) {
                assert_eq!(frames.home(frame), ThreadId(thread));
                frames.bytes(frame).fill(u8::try_from(thread).unwrap() << 4 | number);
            }
        }
        for (thread, pool) in (0..).zip(&mut pools) {
            for (number, frame) in (0..).zip(pool) {
                let bytes = frames.bytes(frame);
                assert!(bytes.len() == 2_048 && bytes.iter().all(|byte| *byte == thread << 4 | number));
            }
        }
    }

    #[test]
    #[should_panic(expected = "a frame lies in its area")]
    fn a_frame_behind_the_last_has_no_bytes() {
        Frames::new(1, 4, 2_048).unwrap().0.bytes(&mut PacketFrame(4));
    }
}
