//! The UMEM: one area of packet memory for the whole machine, cut into frames.
//!
//! In: queues, with their threads, and frames. Out: [`Frame`]s, each the only handle on its chunk.
//! Not here: rings (`xsk`), what a packet means.
//! Invariant: a chunk's descriptor exists once: in a `Frame`, or in a ring.
//! Source: Linux Documentation/networking/af_xdp.rst; xsk-rs 0.11.

use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::sync::Arc;

use forwarder::ThreadId;
use xsk_rs::config::{FrameSize, QueueSize, UmemConfig};
use xsk_rs::{FrameDesc, Umem};

use crate::core_dump::keep_out_of_cores;
use crate::error::StartError;
use crate::frame::{Descriptor, Frame};
use crate::slots::{Slot, Slots};

/// The mapped memory, shared by the sockets of all threads.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    pub(crate) umem: Umem,
    base: NonNull<u8>,
    bounds: Bounds,
    homes: Homes,
    /// Where packets are taken that lie in several chunks.
    slots: Option<Slots>,
}

/// Which addresses lie in an area, and how its chunks divide them.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Bytes of the area, a multiple of a chunk's.
    len: usize,
    /// log2 of the bytes of a chunk.
    chunk_shift: u32,
}

impl Bounds {
    /// Bytes from an address to the end of its chunk.
    #[inline]
    fn room(self, address: usize) -> usize {
        let chunk = 1 << self.chunk_shift;
        chunk - (address & (chunk - 1))
    }

    /// The same of an address in the area. Elsewhere the process ends: it would read and write memory of others.
    #[inline]
    fn room_inside(self, address: usize) -> usize {
        // Its chunk is whole, so no sum is needed, which might wrap.
        assert!(address < self.len, "a descriptor lies in its area");
        self.room(address)
    }
}

/// Whose pool a frame belongs to, by its place.
#[derive(Clone, Debug)]
struct Homes {
    /// log2 of the bytes of one queue's frames.
    queue_shift: u32,
    /// The thread of each queue, in the order of their frames.
    threads: Arc<[ThreadId]>,
}

impl Homes {
    #[inline]
    fn of(&self, address: usize) -> ThreadId {
        self.threads.get(address >> self.queue_shift).copied().unwrap_or(ThreadId(0))
    }
}

// SAFETY: `base` points into the mapping that `umem` keeps alive, and is only used through a `Frame`, which one thread
// owns at a time.
unsafe impl Send for Area {}

/// Bytes of a chunk, unless the settings say otherwise.
pub const CHUNK: u32 = 2048;
/// Bytes of the largest chunk: the kernel takes powers of two from 2,048 to a page.
pub const LARGEST_CHUNK: u32 = 4096;
/// Entries of the rings of each queue.
pub(crate) const RING: u32 = 2048;
/// What the kernel leaves free at the front of each chunk.
pub const XDP_HEADROOM: u32 = 256;

impl Area {
    /// Maps memory for queues of `frames` chunks of `chunk` bytes each, powers of two, and hands out the pools: each
    /// thread's is that of its queues. `homes` names the thread of each queue; threads are counted from 0 without a gap.
    pub(crate) fn new(
        homes: Vec<ThreadId>,
        frames: u32,
        chunk: u32,
        multi_buffer: bool,
    ) -> Result<(Self, Vec<Vec<Frame>>), StartError> {
        if !frames.is_power_of_two() || !chunk.is_power_of_two() {
            return Err(StartError::Umem(format!("{frames} frames of {chunk} bytes: not powers of two")));
        }
        let ring = QueueSize::new(RING).map_err(|error| StartError::Umem(error.to_string()))?;
        let size =
            FrameSize::new(chunk).map_err(|_| StartError::Umem(format!("no chunks of {chunk} bytes")))?;
        let mut builder = UmemConfig::builder();
        builder.frame_size(size).fill_queue_size(ring).comp_queue_size(ring);
        let config = builder.build().map_err(|error| StartError::Umem(error.to_string()))?;
        let queues = u32::try_from(homes.len()).unwrap_or(u32::MAX);
        let count = frames.checked_mul(queues).and_then(NonZeroU32::new);
        let count = count.ok_or_else(|| StartError::Umem(format!("{queues} times {frames} frames")))?;
        let len = count.get() as usize * chunk as usize;
        let (umem, mut descriptors) =
            Umem::new(config, count, false).map_err(|error| refusal(&error, len / 1024))?;
        let first = descriptors.first_mut().ok_or_else(|| StartError::Umem("no frames".into()))?;
        let base = base_of(&umem, first);
        let pools = pools(descriptors.chunks(frames as usize), &homes);
        keep_out_of_cores(base, len);
        let chunk_shift = chunk.trailing_zeros();
        let queue_shift = chunk_shift + frames.trailing_zeros();
        let homes = Homes { queue_shift, threads: homes.into() };
        let slots = multi_buffer.then(|| Slots::new(count.get() as usize));
        let area = Self { umem, base, bounds: Bounds { len, chunk_shift }, homes, slots };
        Ok((area, pools))
    }

    /// The bytes of a frame: from its descriptor's start to the end of its chunk, or those of a long packet.
    #[inline]
    pub(crate) fn bytes<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        if frame.is_long() { self.long_bytes(frame) } else { self.chunk(frame) }
    }

    #[cold]
    fn long_bytes<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        self.slot(frame).map(Slot::bytes).unwrap_or_default()
    }

    /// The bytes of a frame's chunk, from its descriptor's start on.
    #[inline]
    pub(crate) fn chunk<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let (pointer, len) = self.place(frame);
        // SAFETY: the slice ends with its chunk; the chunk's only `Frame` is borrowed for as long as the slice lives, so
        // neither the kernel nor another thread has it.
        unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), len) }
    }

    /// The slot of a frame's chunk, where there are slots.
    pub(crate) fn slot<'a>(&'a self, frame: &'a mut Frame) -> Option<&'a mut Slot> {
        let chunk = frame.0.addr() >> self.bounds.chunk_shift;
        self.slots.as_ref().map(|slots| slots.of(frame, chunk))
    }

    /// Both at once.
    pub(crate) fn both<'a>(&'a self, frame: &'a mut Frame) -> Option<(&'a mut [u8], &'a mut Slot)> {
        let (pointer, len) = self.place(frame);
        let slot = self.slot(frame)?;
        // SAFETY: as in `chunk`; slots are other memory.
        Some((unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), len) }, slot))
    }

    /// Bytes from a descriptor's start to the end of its chunk.
    #[inline]
    pub(crate) fn room(&self, frame: &Frame) -> usize {
        self.bounds.room(frame.0.addr())
    }

    #[inline]
    fn place(&self, frame: &Frame) -> (NonNull<u8>, usize) {
        let start = frame.0.addr();
        let len = self.bounds.room_inside(start);
        // SAFETY: `start` lies in the mapping that starts at `base`: `room_inside` checked it.
        (unsafe { self.base.add(start) }, len)
    }

    /// Whether packets may lie in several chunks.
    #[inline]
    pub(crate) fn has_slots(&self) -> bool {
        self.slots.is_some()
    }

    /// Sets how many bytes a frame's descriptor announces: no more than lie in its chunk.
    #[inline]
    pub(crate) fn set_len(&self, frame: &mut Frame, len: usize) {
        let room = self.bounds.room_inside(frame.0.addr());
        frame.0.set_len(u32::try_from(len.min(room)).unwrap_or(u32::MAX));
    }

    /// The thread to whose pool a frame belongs.
    #[inline]
    pub(crate) fn home(&self, frame: &Frame) -> ThreadId {
        self.homes.of(frame.0.addr())
    }
}

/// The frames of each thread, from those of each queue and its thread.
fn pools<'a>(queues: impl Iterator<Item = &'a [FrameDesc]>, homes: &[ThreadId]) -> Vec<Vec<Frame>> {
    let mut pools: Vec<Vec<Frame>> = Vec::new();
    for (descriptors, home) in queues.zip(homes) {
        let place = usize::from(home.0);
        pools.resize_with(pools.len().max(place + 1), Vec::new);
        if let Some(pool) = pools.get_mut(place) {
            pool.extend(descriptors.iter().map(|descriptor| Frame(Descriptor::at(descriptor.addr() as u64))));
        }
    }
    pools
}

/// Why the memory was refused. ENOBUFS is the limit of locked memory, which nobody would guess.
fn refusal(error: &xsk_rs::umem::UmemCreateError, kibibytes: usize) -> StartError {
    let cause = std::error::Error::source(error);
    let errno = cause.and_then(|cause| cause.downcast_ref::<std::io::Error>()).and_then(|e| e.raw_os_error());
    StartError::Umem(match (errno, cause) {
        (Some(libc::ENOBUFS), _) => format!(
            "{kibibytes} KiB are above the limit of locked memory; to mend it: give the process CAP_IPC_LOCK, or \
             LimitMEMLOCK=infinity (ulimit -l unlimited)"
        ),
        (_, Some(cause)) => format!("{error}: {cause}"),
        _ => error.to_string(),
    })
}

/// Where the mapping starts: the first frame's bytes, less its address.
fn base_of(umem: &Umem, first: &mut FrameDesc) -> NonNull<u8> {
    let address = first.addr();
    // SAFETY: the frame belongs to `umem`, and nobody else has it yet.
    let mut data = unsafe { umem.data_mut(first) };
    let pointer = NonNull::from(data.contents_mut()).cast::<u8>();
    // SAFETY: the frame's bytes start `address` bytes behind the start of the same mapping.
    unsafe { pointer.sub(address) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a descriptor lies in its area")]
    fn the_highest_address_of_all_is_in_no_area() {
        Bounds { len: 4 * 2_048, chunk_shift: 11 }.room_inside(usize::MAX);
    }

    #[test]
    fn every_address_of_an_area_has_the_rest_of_its_chunk_and_no_other_has_any() {
        for chunk_shift in [11, 12] {
            let (chunk, bounds) = (1 << chunk_shift, Bounds { len: 3 << chunk_shift, chunk_shift });
            for address in 0..bounds.len {
                let room = bounds.room_inside(address);
                assert!(room > 0 && (address + room) % chunk == 0 && room <= chunk);
            }
            for address in [bounds.len, bounds.len + 1, usize::MAX / 2, usize::MAX - chunk] {
                assert!(std::panic::catch_unwind(|| bounds.room_inside(address)).is_err(), "{address:#x}");
            }
        }
    }

    #[test]
    fn an_area_of_other_than_powers_of_two_is_refused() {
        for (frames, chunk) in [(3, 2_048), (0, 2_048), (64, 3_000), (64, 0)] {
            let refused = Area::new(vec![ThreadId(0)], frames, chunk, false);
            assert!(matches!(refused, Err(StartError::Umem(_))), "{frames} {chunk}");
        }
    }

    #[test]
    fn a_frame_goes_home_to_the_thread_of_its_queue_wherever_in_its_chunk_it_starts() {
        // Three queues of one interface, two of another, one of a third.
        let threads = [0u16, 1, 2, 0, 1, 0];
        for (chunk, frames) in [(2_048, 512), (4_096, 4_096)] {
            let queue_shift = usize::trailing_zeros(chunk * frames);
            let homes = Homes { queue_shift, threads: threads.map(ThreadId).into() };
            let mut address = 0;
            for thread in threads {
                for _ in 0..frames {
                    for inside in [0, 193, 256, chunk - 1] {
                        assert_eq!(homes.of(address + inside), ThreadId(thread), "{address} + {inside}");
                    }
                    address += chunk;
                }
            }
        }
    }
}
