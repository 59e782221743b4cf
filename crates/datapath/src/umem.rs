//! The UMEM: one area of packet memory for the whole machine, cut into frames.
//!
//! In: a number of threads and frames. Out: [`Frame`]s, each the only handle on its chunk.
//! Not here: rings (`xsk`), what a packet means.
//! Invariant: a chunk's descriptor exists once: in a `Frame`, or in a ring.
//! Source: Linux Documentation/networking/af_xdp.rst; xsk-rs 0.11.

use std::num::NonZeroU32;
use std::ptr::NonNull;

use forwarder::ThreadId;
use xsk_rs::config::{FrameSize, QueueSize, UmemConfig};
use xsk_rs::{FrameDesc, Umem};

use crate::error::StartError;

/// One UMEM chunk, owned. Neither `Clone` nor `Copy`: two owners of one chunk is the bug it removes.
#[must_use = "a frame goes to a ring or to a pool; dropping it loses the chunk"]
#[derive(Debug)]
pub struct Frame(pub(crate) FrameDesc);

/// The mapped memory, shared by the sockets of all threads.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    pub(crate) umem: Umem,
    base: NonNull<u8>,
    len: usize,
    /// log2 of the frames of one thread's pool.
    pool_shift: u32,
}

// SAFETY: `base` points into the mapping that `umem` keeps alive, and is only used through a `Frame`, which one thread
// owns at a time.
unsafe impl Send for Area {}

/// Bytes of a chunk.
pub const CHUNK: usize = 1 << CHUNK_SHIFT;
const CHUNK_SHIFT: u32 = 11;
/// Entries of the rings of each queue.
pub(crate) const RING: u32 = 2048;
/// What the kernel leaves free at the front of each chunk.
pub const XDP_HEADROOM: usize = 256;

impl Area {
    /// Maps memory for `threads` pools of `frames` each, a power of two, and hands out the pools.
    pub(crate) fn new(threads: u16, frames: u32) -> Result<(Self, Vec<Vec<Frame>>), StartError> {
        debug_assert!(frames.is_power_of_two());
        let ring = QueueSize::new(RING).map_err(|error| StartError::Umem(error.to_string()))?;
        let size = u32::try_from(CHUNK).ok().and_then(|size| FrameSize::new(size).ok());
        let size = size.ok_or_else(|| StartError::Umem(format!("no chunks of {CHUNK} bytes")))?;
        let mut builder = UmemConfig::builder();
        builder.frame_size(size).fill_queue_size(ring).comp_queue_size(ring);
        let config = builder.build().map_err(|error| StartError::Umem(error.to_string()))?;
        let count = frames.checked_mul(u32::from(threads)).and_then(NonZeroU32::new);
        let count = count.ok_or_else(|| StartError::Umem(format!("{threads} times {frames} frames")))?;
        let (umem, descriptors) =
            Umem::new(config, count, false).map_err(|error| refusal(&error, count.get() as usize))?;
        let mut pools: Vec<Vec<Frame>> = Vec::with_capacity(usize::from(threads));
        for (place, descriptor) in descriptors.into_iter().enumerate() {
            if place % frames as usize == 0 {
                pools.push(Vec::with_capacity(frames as usize));
            }
            if let Some(pool) = pools.last_mut() {
                pool.push(Frame(descriptor));
            }
        }
        let first = pools.first_mut().and_then(|pool| pool.first_mut());
        let first = first.ok_or_else(|| StartError::Umem("no frames".into()))?;
        let base = base_of(&umem, first);
        let len = count.get() as usize * CHUNK;
        Ok((Self { umem, base, len, pool_shift: frames.trailing_zeros() }, pools))
    }

    /// The bytes of a frame, from its descriptor's start to the end of its chunk.
    #[inline]
    pub(crate) fn bytes<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let start = frame.0.addr();
        let len = CHUNK - (start & (CHUNK - 1));
        debug_assert!(start + len <= self.len, "a descriptor lies in its area");
        // SAFETY: `start` is a descriptor's address, which lies in the mapping of `len` bytes that starts at `base`.
        let pointer = unsafe { self.base.add(start) };
        // SAFETY: the slice ends with its chunk; the chunk's only `Frame` is borrowed for as long as the slice lives, so
        // neither the kernel nor another thread has it.
        unsafe { std::slice::from_raw_parts_mut(pointer.as_ptr(), len) }
    }

    /// Sets how many bytes a frame's descriptor announces.
    #[inline]
    pub(crate) fn set_len(&self, frame: &mut Frame, len: usize) {
        // SAFETY: the frame belongs to this UMEM, and is ours alone while it is borrowed mutably.
        let mut data = unsafe { self.umem.data_mut(&mut frame.0) };
        data.cursor().set_pos(len);
    }

    /// The thread to whose pool a frame belongs.
    #[inline]
    pub(crate) fn home(&self, frame: &Frame) -> ThreadId {
        let thread = frame.0.addr() >> (CHUNK_SHIFT + self.pool_shift);
        ThreadId(u16::try_from(thread).unwrap_or(u16::MAX))
    }
}

/// Why the memory was refused. ENOBUFS is the limit of locked memory, which nobody would guess.
fn refusal(error: &xsk_rs::umem::UmemCreateError, frames: usize) -> StartError {
    let cause = std::error::Error::source(error);
    let errno = cause.and_then(|cause| cause.downcast_ref::<std::io::Error>()).and_then(|e| e.raw_os_error());
    StartError::Umem(match (errno, cause) {
        (Some(libc::ENOBUFS), _) => format!(
            "{} KiB are above the limit of locked memory; to mend it: give the process CAP_IPC_LOCK, or \
             LimitMEMLOCK=infinity (ulimit -l unlimited)",
            frames * CHUNK / 1024
        ),
        (_, Some(cause)) => format!("{error}: {cause}"),
        _ => error.to_string(),
    })
}

/// Where the mapping starts: the first frame's bytes, less its address.
fn base_of(umem: &Umem, first: &mut Frame) -> NonNull<u8> {
    let address = first.0.addr();
    // SAFETY: the frame belongs to `umem`, and nobody else has it yet.
    let mut data = unsafe { umem.data_mut(&mut first.0) };
    let pointer = NonNull::from(data.contents_mut()).cast::<u8>();
    // SAFETY: the frame's bytes start `address` bytes behind the start of the same mapping.
    unsafe { pointer.sub(address) }
}
