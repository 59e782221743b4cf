//! Marks the file descriptors that this process has inherited, so that the programs that it starts
//! do not inherit them.
//!
//! See close_range(2) for CLOSE_RANGE_CLOEXEC.

use std::io;
use std::os::fd::RawFd;

use nix::errno::Errno;

/// Sets the close-on-exec flag of all open file descriptors from `first` on. The descriptors stay
/// open in this process.
///
/// # Errors
/// Returns the error of `close_range(2)`, for example if the kernel is older than Linux 5.11.
pub fn set_close_on_exec(first: RawFd) -> io::Result<()> {
    let flag = libc::CLOSE_RANGE_CLOEXEC.cast_signed();
    // SAFETY: the call only sets a flag of descriptors. It closes none of them, so the owner of
    // each descriptor can continue to use it.
    let result = unsafe { libc::close_range(first.cast_unsigned(), libc::c_uint::MAX, flag) };
    Ok(Errno::result(result).map(drop)?)
}
