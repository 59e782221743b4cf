//! Properties of the machine that are read with system calls. Functions return `None` if the
//! process lacks the required permission.
//!
//! See adjtimex(2) and Linux `net/xdp/xsk.c`.

use std::os::fd::{FromRawFd, OwnedFd};

use nix::errno::Errno;

/// Returns `true` if the system clock is synchronized. Returns `None` if the kernel does not report
/// the state.
#[must_use]
pub fn clock_is_synchronised() -> Option<bool> {
    // SAFETY: `timex` is a structure of integers, so all zeros are valid. With `modes` 0, the call
    // below only reads the clock.
    let mut clock: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `clock` is a complete `timex` that outlives the call.
    let state = unsafe { libc::adjtimex(&raw mut clock) };
    (state >= 0).then_some(clock.status & libc::STA_UNSYNC == 0)
}

/// Returns `true` if the kernel was built with AF_XDP support. Returns `None` if the process may
/// not open an AF_XDP socket.
#[must_use]
pub fn knows_af_xdp() -> Option<bool> {
    // SAFETY: the call takes no pointer.
    let socket = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket >= 0 {
        // SAFETY: the kernel has just created this descriptor, so it has no other owner.
        drop(unsafe { OwnedFd::from_raw_fd(socket) });
        return Some(true);
    }
    (Errno::last() == Errno::EAFNOSUPPORT).then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_facts_are_readable() {
        assert!(clock_is_synchronised().is_some());
        assert_ne!(knows_af_xdp(), Some(false), "the test kernel lacks AF_XDP");
    }
}
