//! Memory that lies whole pages long in the address space: a socket's rings, and frames.
//!
//! In: a socket, or a size. Out: [`Mapping`], unmapped when it is dropped, in no core dump.
//! Not here: who uses which of its bytes when.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::core_dump::keep_out_of_cores;

/// Mapped memory.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it is an address and a length; who may use the bytes is its users' to say.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory, of which the kernel backs what has been written to.
    ///
    /// # Errors
    /// What mmap says.
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        Self::new(unsafe { mmap_anonymous(null_mut(), len, access, MapFlags::PRIVATE) }, len)
    }

    /// The rings of a packet socket: all of them, one behind the other.
    ///
    /// # Errors
    /// What mmap says.
    pub(super) fn of_socket(socket: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        Self::new(unsafe { mmap(null_mut(), len, access, MapFlags::SHARED, socket, 0) }, len)
    }

    fn new(mapped: rustix::io::Result<*mut libc::c_void>, len: usize) -> io::Result<Self> {
        let base = NonNull::new(mapped?.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        keep_out_of_cores(base, len);
        Ok(Self { base, len })
    }

    /// Its first byte.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Its length in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing points into it that does not hold the value.
        if let Err(error) = unsafe { munmap(self.base.as_ptr().cast(), self.len) } {
            tracing::warn!(%error, "packet memory is not unmapped");
        }
    }
}
