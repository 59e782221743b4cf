//! Frame pools for packet threads that use packet sockets. One memory area is divided into frames
//! of equal size. No two values of [`PacketFrame`] have the same index, so each value has exclusive
//! access to the bytes of its frame.

use std::io;
use std::sync::Arc;

use forwarder::ThreadId;

use crate::mapping::Mapping;

/// An owned frame, identified by its index in the memory area. The type is neither `Clone` nor
/// `Copy`.
#[must_use = "a frame must be returned to a device or a pool, or its memory is lost"]
#[derive(Debug)]
pub(crate) struct PacketFrame(usize);

/// The memory for the frames of all threads.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    memory: Arc<Mapping>,
    /// The size of a frame, in bytes.
    size: usize,
    /// The number of frames in each thread's pool.
    each: usize,
}

impl Frames {
    /// Allocates a frame pool for each of `threads` threads. Each pool contains `each` frames of
    /// `size` bytes. Returns the memory and the pools.
    pub(super) fn new(threads: u16, each: usize, size: usize) -> io::Result<(Self, Vec<Vec<PacketFrame>>)> {
        let bytes = usize::from(threads).checked_mul(each).and_then(|frames| frames.checked_mul(size));
        let memory = Arc::new(Mapping::anonymous(bytes.ok_or(io::ErrorKind::OutOfMemory)?)?);
        let pool = |thread: usize| (thread * each..(thread + 1) * each).map(PacketFrame).collect();
        Ok((Self { memory, size, each }, (0..usize::from(threads)).map(pool).collect()))
    }

    /// Returns the bytes of a frame.
    #[inline]
    pub(super) fn bytes<'a>(&'a self, frame: &'a mut PacketFrame) -> &'a mut [u8] {
        let end = (frame.0 + 1) * self.size;
        assert!(end <= self.memory.len(), "frame outside of its memory area");
        // SAFETY: the first byte of the frame is inside the mapping, because the assertion above
        // checked its end.
        let first = unsafe { self.memory.base().add(end - self.size) };
        // SAFETY: the `size` bytes are inside the mapping. The bytes are initialized, because the
        // kernel zeroed the memory. No two frames have the same index, so only `frame` gives access
        // to these bytes, and `frame` stays borrowed as long as the returned slice exists.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), self.size) }
    }

    /// Returns the thread that owns the pool of this frame.
    #[inline]
    pub(super) fn home(&self, frame: &PacketFrame) -> ThreadId {
        ThreadId(u16::try_from(frame.0 / self.each).unwrap_or(u16::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_separate_bytes_and_a_home_thread() {
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
    #[should_panic(expected = "frame outside of its memory area")]
    fn frames_bytes_behind_the_last_frame_panics() {
        Frames::new(1, 4, 2_048).unwrap().0.bytes(&mut PacketFrame(4));
    }
}
