//! Wakes a sleeping packet thread when frames or requests arrive for it. The thread waits for an
//! eventfd together with its sockets (module `wait`). The module `sleeper` ensures that no wakeup
//! is missed.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::sleeper::Sleeper;
use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// The eventfd and the sleep state of a thread.
#[derive(Debug)]
pub struct Waker {
    pub(crate) sleeper: Sleeper,
    bell: EventFd,
    /// `true` if another thread has added frames to the mailbox since the start of the current
    /// iteration. Only the health monitor reads the flag, so no memory ordering is needed.
    mail: AtomicBool,
    /// The kernel's ID of the thread, or 0 before the thread has started.
    thread: AtomicU32,
}

impl Waker {
    /// Creates a waker.
    ///
    /// # Errors
    /// Returns the error of `eventfd`.
    pub fn new() -> std::io::Result<Self> {
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Self { sleeper: Sleeper::new(), bell, mail: AtomicBool::new(false), thread: AtomicU32::new(0) })
    }

    /// Records the calling thread as the owner of this waker.
    pub(crate) fn thread_begins(&self) {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        self.thread.store(own.unsigned_abs(), Ordering::Relaxed);
    }

    /// Returns the kernel's ID of the thread, or 0 if the thread has not started.
    pub(crate) fn thread(&self) -> u32 {
        self.thread.load(Ordering::Relaxed)
    }

    /// Wakes the thread if it sleeps. If the thread is awake, no system call is made.
    pub fn wake(&self) {
        if self.sleeper.must_wake() {
            self.ring();
        }
    }

    /// Wakes the thread if it sleeps. Call this method after adding frames to the mailbox of the
    /// thread.
    pub(crate) fn wake_for_mail(&self) {
        self.mail.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Clears the mail flag. The thread calls this method at the start of each iteration, before it
    /// reads its mailboxes.
    pub(crate) fn turn_begins(&self) {
        // The flag is usually clear. Reading the flag first keeps its cache line shared with the
        // threads that set the flag. A store would remove the line from the caches of these
        // threads.
        if self.mail.load(Ordering::Relaxed) {
            self.mail.store(false, Ordering::Relaxed);
        }
    }

    /// Returns `true` if frames wait in the mailbox. The result is reliable only while the thread
    /// is not running its loop.
    pub(crate) fn has_mail(&self) -> bool {
        self.mail.load(Ordering::Relaxed)
    }

    /// Signals the eventfd, even if the thread is awake.
    pub fn ring(&self) {
        // The write fails only if the counter has its maximum value. The eventfd is already
        // readable in that case.
        let _ = self.bell.write(1);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
