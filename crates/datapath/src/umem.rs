//! The UMEM: one area of packet memory for the whole data plane, divided into chunks. A [`Frame`]
//! is the only handle to its chunk. The descriptor of a chunk exists only once, in a `Frame` or in
//! a ring.
//!
//! See Linux Documentation/networking/af_xdp.rst and the documentation of xsk-rs 0.11.

use std::num::NonZeroU32;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use forwarder::{MAX_ENCAP_OVERHEAD, ThreadId};
use xsk_rs::config::{FrameSize, QueueSize, UmemConfig};
use xsk_rs::{FrameDesc, Umem};

use crate::core_dump::keep_out_of_cores;
use crate::error::StartError;
use crate::frame::{Descriptor, Frame};
use crate::slots::{Slot, Slots};

/// The mapped packet memory. The sockets of all threads share this memory.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    pub(crate) umem: Umem,
    base: NonNull<u8>,
    bounds: Bounds,
    homes: Homes,
    /// Memory for packets that need several chunks. `None` if no interface receives such packets.
    slots: Option<Slots>,
}

/// The sizes of the area and its chunks.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// The size of the area in bytes, which is a multiple of the chunk size.
    len: usize,
    /// The chunk size in bytes, minus 1.
    mask: usize,
}

impl Bounds {
    /// Returns the number of bytes from an address to the end of its chunk.
    #[inline]
    fn room(self, address: usize) -> usize {
        (address | self.mask) + 1 - address
    }

    /// Returns the number of bytes from the start of a chunk to an address in the chunk.
    #[inline]
    fn before(self, address: usize) -> usize {
        address & self.mask
    }

    /// Returns the number of bytes from an address to the end of its chunk.
    ///
    /// # Panics
    /// Panics if the address is outside the area. Otherwise the process would access memory that
    /// does not belong to the frame.
    #[inline]
    fn room_inside(self, address: usize) -> usize {
        // The area consists of complete chunks, so it is sufficient to check the start address.
        // Checking the end address instead would require an addition, which could overflow.
        assert!(address < self.len, "descriptor outside of the packet memory");
        self.room(address)
    }
}

/// Maps the address of a frame to the thread that owns the frame.
#[derive(Clone, Debug)]
struct Homes {
    /// The base-2 logarithm of the memory for one queue's frames, in bytes.
    queue_shift: u32,
    /// The thread of each queue, in the order in which the frames of the queues are stored in the
    /// UMEM.
    threads: Arc<[ThreadId]>,
}

impl Homes {
    #[inline]
    fn of(&self, address: usize) -> ThreadId {
        self.threads.get(address >> self.queue_shift).copied().unwrap_or(ThreadId(0))
    }
}

// SAFETY: `base` points into the mapping that `umem` keeps alive. The memory is accessed only
// through a `Frame`, which one thread owns at a time.
unsafe impl Send for Area {}

/// The default size of a UMEM chunk in bytes.
pub const CHUNK: u32 = 2048;
/// The maximum size of a UMEM chunk in bytes. The kernel accepts powers of two from 2,048 to the
/// page size.
pub const LARGEST_CHUNK: u32 = 4096;
/// The number of entries in each ring of a queue, except the receive ring.
pub(crate) const RING: u32 = 2048;
/// The number of bytes that the kernel leaves free at the start of each chunk.
pub const XDP_HEADROOM: u32 = 256;
/// The number of bytes in front of a received packet that the pipeline may use.
pub(crate) const HEAD_ROOM: usize = MAX_ENCAP_OVERHEAD;
const _: () = assert!(HEAD_ROOM <= XDP_HEADROOM as usize);

impl Area {
    /// Maps the memory for all queues. Each queue has `frames` chunks of `chunk` bytes; both must
    /// be powers of two. `homes` lists the thread of each queue. Threads are numbered from 0
    /// without gaps. Returns the area, and for each thread a frame pool with the frames of its
    /// queues.
    pub(crate) fn new(
        homes: Vec<ThreadId>,
        frames: u32,
        chunk: u32,
        multi_buffer: bool,
    ) -> Result<(Self, Vec<Vec<Frame>>), StartError> {
        if !frames.is_power_of_two() || !chunk.is_power_of_two() {
            return Err(StartError::Umem(format!(
                "the number of frames ({frames}) and the frame size ({chunk} bytes) must be powers of two"
            )));
        }
        let ring = QueueSize::new(RING).map_err(|error| StartError::Umem(error.to_string()))?;
        let size = FrameSize::new(chunk)
            .map_err(|_| StartError::Umem(format!("{chunk} bytes is not a valid chunk size")))?;
        let mut builder = UmemConfig::builder();
        builder.frame_size(size).fill_queue_size(ring).comp_queue_size(ring);
        let config = builder.build().map_err(|error| StartError::Umem(error.to_string()))?;
        let queues = u32::try_from(homes.len()).unwrap_or(u32::MAX);
        let count = frames.checked_mul(queues).and_then(NonZeroU32::new);
        let count = count
            .ok_or_else(|| StartError::Umem(format!("{frames} frames for {queues} queues are too many")))?;
        let len = count.get() as usize * chunk as usize;
        let (umem, mut descriptors) =
            Umem::new(config, count, false).map_err(|error| refusal(&error, len / 1024))?;
        let first =
            descriptors.first_mut().ok_or_else(|| StartError::Umem("the area has no frames".into()))?;
        let base = base_of(&umem, first);
        let pools = pools(descriptors.chunks(frames as usize), &homes);
        keep_out_of_cores(base, len);
        let chunk_shift = chunk.trailing_zeros();
        let queue_shift = chunk_shift + frames.trailing_zeros();
        let homes = Homes { queue_shift, threads: homes.into() };
        let slots = multi_buffer.then(|| Slots::new(count.get() as usize));
        let area = Self { umem, base, bounds: Bounds { len, mask: chunk as usize - 1 }, homes, slots };
        Ok((area, pools))
    }

    /// Returns the number of chunks of each queue.
    pub(crate) fn frames_per_queue(&self) -> u32 {
        1 << (self.homes.queue_shift - self.bounds.mask.count_ones())
    }

    /// Returns the bytes of a frame. For a long packet, the result is the bytes in the slot of the
    /// packet. Otherwise the result extends from the start of the descriptor to the end of the
    /// chunk.
    #[inline]
    pub(crate) fn bytes<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        if frame.is_long() { self.long_bytes(frame) } else { self.chunk(frame) }
    }

    #[cold]
    fn long_bytes<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        self.slot(frame).map(Slot::bytes).unwrap_or_default()
    }

    /// Returns the bytes in the frame's chunk, from the start of the descriptor to the end of the
    /// chunk.
    #[inline]
    pub(crate) fn chunk<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let (pointer, len) = self.place(frame);
        // SAFETY: the slice ends at the end of the chunk. The chunk has only one `Frame`, which is
        // borrowed as long as the slice lives, so neither the kernel nor another thread accesses
        // the chunk.
        unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), len) }
    }

    /// Adds the headroom that the kernel leaves free in each chunk to the front of a received
    /// frame. Returns the size of the headroom.
    #[inline]
    pub(crate) fn open_head_room(&self, frame: &mut Frame) -> usize {
        let head_room = HEAD_ROOM.min(self.bounds.before(frame.0.addr()));
        frame.0.move_back(head_room);
        head_room
    }

    /// Returns the slot of the frame's chunk. Returns `None` if the area has no slots.
    pub(crate) fn slot<'a>(&'a self, frame: &'a mut Frame) -> Option<&'a mut Slot> {
        let chunk = frame.0.addr() >> self.bounds.mask.count_ones();
        self.slots.as_ref().map(|slots| slots.of(frame, chunk))
    }

    /// Returns both the bytes of the frame's chunk and its slot.
    pub(crate) fn both<'a>(&'a self, frame: &'a mut Frame) -> Option<(&'a mut [u8], &'a mut Slot)> {
        let (pointer, len) = self.place(frame);
        let slot = self.slot(frame)?;
        // SAFETY: the slice ends at the end of the chunk. The chunk has only one `Frame`, which is
        // borrowed as long as the slice lives. Slots use separate memory.
        Some((unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), len) }, slot))
    }

    /// Returns the number of bytes from the start of the descriptor to the end of the chunk.
    #[inline]
    pub(crate) fn room(&self, frame: &Frame) -> usize {
        self.bounds.room(frame.0.addr())
    }

    #[inline]
    fn place(&self, frame: &Frame) -> (NonNull<u8>, usize) {
        let start = frame.0.addr();
        let len = self.bounds.room_inside(start);
        // SAFETY: `room_inside` checked that `start` is inside the mapping, which begins at `base`.
        (unsafe { self.base.add(start) }, len)
    }

    /// Returns `true` if the area has slots, which packets in several chunks need.
    #[inline]
    pub(crate) fn has_slots(&self) -> bool {
        self.slots.is_some()
    }

    /// Sets the packet length in the descriptor of a frame. The length is limited to the end of the
    /// chunk.
    #[inline]
    pub(crate) fn set_len(&self, frame: &mut Frame, len: usize) {
        let room = self.room(frame);
        frame.0.set_len(u32::try_from(len.min(room)).unwrap_or(u32::MAX));
    }

    /// Returns the descriptor of the bytes `bounds` of a frame, which must not exceed its chunk.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a chunk has at most 4,096 bytes")]
    pub(crate) fn part(&self, frame: &Frame, bounds: Range<usize>) -> Descriptor {
        debug_assert!(bounds.end <= self.room(frame), "bounds outside of the chunk");
        let mut descriptor = Descriptor::at(frame.0.offset() + bounds.start as u64);
        descriptor.set_len((bounds.end - bounds.start) as u32);
        descriptor
    }

    /// Returns the thread to whose pool the frame belongs.
    #[inline]
    pub(crate) fn home(&self, frame: &Frame) -> ThreadId {
        self.homes.of(frame.0.addr())
    }
}

/// Returns the frame pool of each thread. `queues` contains the frames of each queue, and `homes`
/// lists the thread of each queue.
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

/// Returns the startup error for a memory mapping that the kernel refused. The kernel returns
/// ENOBUFS if the limit on locked memory is too low.
fn refusal(error: &xsk_rs::umem::UmemCreateError, kibibytes: usize) -> StartError {
    let cause = std::error::Error::source(error);
    let errno = cause.and_then(|cause| cause.downcast_ref::<std::io::Error>()).and_then(|e| e.raw_os_error());
    StartError::Umem(match (errno, cause) {
        (Some(libc::ENOBUFS), _) => format!(
            "{kibibytes} KiB exceed the limit of locked memory; give the process CAP_IPC_LOCK or LimitMEMLOCK=infinity \
             (ulimit -l unlimited)"
        ),
        (_, Some(cause)) => format!("{error}: {cause}"),
        _ => error.to_string(),
    })
}

/// Returns the start address of the mapping. The start address is computed from the address of the
/// first frame and its offset.
fn base_of(umem: &Umem, first: &mut FrameDesc) -> NonNull<u8> {
    let address = first.addr();
    // SAFETY: the frame belongs to `umem`, and no other code has a handle to the frame yet.
    let mut data = unsafe { umem.data_mut(first) };
    let pointer = NonNull::from(data.contents_mut()).cast::<u8>();
    // SAFETY: the bytes of the frame start `address` bytes after the start of the mapping.
    unsafe { pointer.sub(address) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "descriptor outside of the packet memory")]
    fn bounds_refuse_the_highest_address() {
        Bounds { len: 4 * 2_048, mask: 2_047 }.room_inside(usize::MAX);
    }

    // Promise: parser-safety
    #[test]
    fn bounds_room_ends_with_the_chunk() {
        for chunk in [2_048, 4_096] {
            let bounds = Bounds { len: 3 * chunk, mask: chunk - 1 };
            for address in 0..bounds.len {
                let room = bounds.room_inside(address);
                assert!(room > 0 && (address + room).is_multiple_of(chunk) && room <= chunk);
            }
            for address in [bounds.len, bounds.len + 1, usize::MAX / 2, usize::MAX - chunk] {
                assert!(std::panic::catch_unwind(|| bounds.room_inside(address)).is_err(), "{address:#x}");
            }
        }
    }

    #[test]
    fn area_refuses_sizes_that_are_not_powers_of_two() {
        for (frames, chunk) in [(3, 2_048), (0, 2_048), (64, 3_000), (64, 0)] {
            let refused = Area::new(vec![ThreadId(0)], frames, chunk, false);
            assert!(matches!(refused, Err(StartError::Umem(_))), "{frames} {chunk}");
        }
    }

    #[test]
    fn homes_of_depends_on_the_queue_of_a_frame() {
        // The area contains the frames of six queues: three queues of the first interface, two of
        // the second and one of the third.
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
