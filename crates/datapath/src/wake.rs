//! Waking a packet thread that sleeps while its mailboxes or its request ring fill.
//!
//! The sleeper says that it will sleep, looks once more, and then sleeps; whoever leaves something looks whether the
//! thread sleeps afterwards. Either the sleeper sees the thing, or the other sees the sleeper.
//! Invariant: nothing that was left before a sleep is slept over.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::sync::{AtomicBool, Ordering, fence};

/// Whether a thread sleeps.
#[derive(Debug)]
pub(crate) struct Sleeper(AtomicBool);

impl Sleeper {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// The thread will sleep if it finds nothing when it looks after this call.
    pub(crate) fn about_to_sleep(&self) {
        self.0.store(true, Ordering::Relaxed);
        // Pairs with the fence of `must_wake`: store then load here, store then load there; not both loads are stale.
        fence(Ordering::SeqCst);
    }

    /// It is awake.
    pub(crate) fn awake(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// After leaving something: whether the thread has to be woken. True once per sleep.
    pub(crate) fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst); // pairs with the one of `about_to_sleep`
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

/// A thread's bell.
#[derive(Debug)]
pub struct Waker {
    sleeper: Sleeper,
    bell: EventFd,
}

impl Waker {
    /// # Errors
    /// What eventfd says.
    pub fn new() -> std::io::Result<Self> {
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Self { sleeper: Sleeper::new(), bell })
    }

    /// Wakes the thread if it sleeps. A system call in that case only.
    pub fn wake(&self) {
        if self.sleeper.must_wake() {
            self.ring();
        }
    }

    /// Wakes it whether or not it says that it sleeps.
    pub fn ring(&self) {
        // It fails only when the counter is at its top, and then the bell rings already.
        let _ = self.bell.write(1);
    }

    pub(crate) fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }

    /// Empties the bell after a sleep.
    pub(crate) fn silence(&self) {
        let _ = self.bell.read();
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Arc;

    /// In every interleaving: if the thread sleeps though something was left for it, it was told.
    #[test]
    fn nothing_is_slept_over() {
        loom::model(|| {
            let sleeper = Arc::new(Sleeper::new());
            let left = Arc::new(AtomicBool::new(false));
            let (their_sleeper, their_left) = (Arc::clone(&sleeper), Arc::clone(&left));
            let other = loom::thread::spawn(move || {
                their_left.store(true, Ordering::Release);
                their_sleeper.must_wake()
            });
            sleeper.about_to_sleep();
            let saw = left.load(Ordering::Acquire);
            let told = other.join().unwrap();
            assert!(saw || told, "asleep with mail, and nobody rang");
        });
    }
}
