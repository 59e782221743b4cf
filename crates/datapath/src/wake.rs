//! Waking a packet thread that sleeps while its mailboxes or its request ring fill.
//!
//! Which thread sees the other's write is `sleeper`'s; here is the bell, an eventfd that the thread polls beside its socket.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::sleeper::Sleeper;
use crate::sync::{AtomicBool, Ordering};

/// A thread's bell.
#[derive(Debug)]
pub struct Waker {
    pub(crate) sleeper: Sleeper,
    bell: EventFd,
    /// Whether a thread has left frames since this one's turn began. For who looks from outside, and so without order.
    mail: AtomicBool,
}

impl Waker {
    /// # Errors
    /// What eventfd says.
    pub fn new() -> std::io::Result<Self> {
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Self { sleeper: Sleeper::new(), bell, mail: AtomicBool::new(false) })
    }

    /// Wakes the thread if it sleeps. A system call in that case only.
    pub fn wake(&self) {
        if self.sleeper.must_wake() {
            self.ring();
        }
    }

    /// Frames were left in its mailbox: wakes the thread if it sleeps.
    pub(crate) fn wake_for_mail(&self) {
        self.mail.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// A turn begins, which takes what was left.
    pub(crate) fn turn_begins(&self) {
        // Mostly there is none, and then the line is not taken from those who leave some.
        if self.mail.load(Ordering::Relaxed) {
            self.mail.store(false, Ordering::Relaxed);
        }
    }

    /// Whether frames wait in its mailbox: true for certain only of a thread that makes no turn.
    pub(crate) fn has_mail(&self) -> bool {
        self.mail.load(Ordering::Relaxed)
    }

    /// Wakes it whether or not it says that it sleeps.
    pub fn ring(&self) {
        // It fails only when the counter is at its top, and then the bell rings already.
        let _ = self.bell.write(1);
    }

    /// Empties the bell after a sleep.
    pub(crate) fn silence(&self) {
        let _ = self.bell.read();
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
