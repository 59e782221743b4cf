//! Memory mappings for the rings of packet sockets, for frames and for BPF maps. Dropping a
//! [`Mapping`] unmaps the memory. The pages are excluded from core dumps.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::core_dump::keep_out_of_cores;

/// A memory mapping that this value owns.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Mapping` consists of an address and a length. The users of a `Mapping` ensure that no
// two threads access the same byte at the same time.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference, a `Mapping` only returns its address and its length.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed anonymous memory. The kernel allocates a page at the first write to that page.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address of the new mapping, so the mapping overlaps no
        // other memory.
        Self::new(unsafe { mmap_anonymous(null_mut(), len, access, MapFlags::PRIVATE) }, len)
    }

    /// Maps the rings of a packet socket, or the values of a BPF map. The kernel maps the receive
    /// ring and the transmit ring as one consecutive area.
    pub(crate) fn of_descriptor(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address of the new mapping, so the mapping overlaps no
        // other memory.
        Self::new(unsafe { mmap(null_mut(), len, access, MapFlags::SHARED, fd, 0) }, len)
    }

    fn new(mapped: rustix::io::Result<*mut libc::c_void>, len: usize) -> io::Result<Self> {
        let base = NonNull::new(mapped?.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        keep_out_of_cores(base, len);
        Ok(Self { base, len })
    }

    /// Returns a pointer to the first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping. Every value with a pointer into the mapping also
        // holds the `Mapping`.
        if let Err(error) = unsafe { munmap(self.base.as_ptr().cast(), self.len) } {
            // log: At exit, the kernel refused to unmap packet memory. No action is needed: the
            // kernel frees the memory when the process ends.
            tracing::warn!(%error, "packet memory not unmapped");
        }
    }
}
