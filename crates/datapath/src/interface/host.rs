//! What the kernel says of the machine by system calls alone.
//!
//! In: nothing. Out: answers, or `None` where the process may not ask. Not here: what `/proc` and `/sys` say.
//! Source: adjtimex(2); Linux `net/xdp/xsk.c`.

use std::os::fd::{FromRawFd, OwnedFd};

use nix::errno::Errno;

/// Whether something keeps the system's clock in step; `None`: the kernel did not answer.
#[must_use]
pub fn clock_is_synchronised() -> Option<bool> {
    // SAFETY: `timex` is a structure of integers, for which zeroes are valid; `modes` 0 only reads.
    let mut clock: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `clock` is a whole `timex` that outlives the call.
    let state = unsafe { libc::adjtimex(&raw mut clock) };
    (state >= 0).then_some(clock.status & libc::STA_UNSYNC == 0)
}

/// Whether the kernel was built with AF_XDP; `None`: the process may not open such a socket.
#[must_use]
pub fn knows_af_xdp() -> Option<bool> {
    // SAFETY: no pointer is passed.
    let socket = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket >= 0 {
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
        drop(unsafe { OwnedFd::from_raw_fd(socket) });
        return Some(true);
    }
    (Errno::last() == Errno::EAFNOSUPPORT).then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_and_the_family_can_be_asked_for() {
        assert!(clock_is_synchronised().is_some());
        assert_ne!(knows_af_xdp(), Some(false), "the product's own kernel");
    }
}
