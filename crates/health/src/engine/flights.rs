//! Holds and polls the running attempts.
//!
//! Attempts are futures without their own task or timer. When a socket is ready, the slot of its
//! attempt is added to a list. The first entry of the list wakes the main loop, which then polls
//! only the attempts in the list.
//!
//! Removing an attempt drops its future and all its resources.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::{Failure, Pass, lock};

pub(super) type Attempt = Pin<Box<dyn Future<Output = Result<Pass, Failure>> + Send>>;

/// The attempts, indexed by slot. Free slots are reused.
pub(super) struct Flights {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The number of file descriptors that the running attempts may use.
    descriptors: usize,
    ready: Arc<Ready>,
    /// An empty list that replaces the list in `ready` when the loop takes that list. Reusing this
    /// list avoids an allocation.
    taken: Vec<u32>,
}

struct Slot {
    /// The ID of the target that owns the attempt.
    owner: u32,
    /// The number of file descriptors that the attempt may use.
    descriptors: usize,
    attempt: Option<Attempt>,
    signal: Arc<Signal>,
    waker: Waker,
}

/// The slots whose attempts can continue, and the waker of the loop.
#[derive(Debug, Default)]
pub(super) struct Ready {
    list: Mutex<Vec<u32>>,
    loop_waker: Mutex<Option<Waker>>,
}

impl Ready {
    /// Sets the waker of the main loop, before the loop sleeps.
    pub(super) fn register(&self, waker: &Waker) {
        let mut registered = lock(&self.loop_waker);
        if !registered.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *registered = Some(waker.clone());
        }
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = &*lock(&self.loop_waker) {
            waker.wake_by_ref();
        }
    }
}

#[derive(Debug)]
struct Signal {
    slot: u32,
    listed: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // This swap pairs with the Release in `Flights::take_ready`, so that the writes before this
        // wake-up are visible to the next poll.
        if self.listed.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut list = lock(&self.ready.list);
        list.push(self.slot);
        let first = list.len() == 1;
        drop(list);
        if first {
            self.ready.wake();
        }
    }
}

impl Flights {
    pub(super) fn new(ready: Arc<Ready>) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), descriptors: 0, ready, taken: Vec::new() }
    }

    /// Returns the number of file descriptors that the running attempts may use.
    pub(super) fn descriptors(&self) -> usize {
        self.descriptors
    }

    /// Starts an attempt that uses up to `descriptors` file descriptors, and polls it once. Returns
    /// its slot, or its result if it has already ended.
    pub(super) fn start(
        &mut self,
        owner: u32,
        descriptors: usize,
        attempt: Attempt,
    ) -> Result<u32, Result<Pass, Failure>> {
        let slot = self.free.pop().unwrap_or_else(|| self.grow());
        self.descriptors += descriptors;
        let entry = &mut self.slots[slot as usize];
        (entry.owner, entry.descriptors, entry.attempt) = (owner, descriptors, Some(attempt));
        match self.poll(slot) {
            Poll::Ready((_, result)) => Err(result),
            Poll::Pending => Ok(slot),
        }
    }

    /// Polls the attempt in `slot`. If the attempt has ended, returns the ID of its target and its
    /// result.
    pub(super) fn poll(&mut self, slot: u32) -> Poll<(u32, Result<Pass, Failure>)> {
        let entry = &mut self.slots[slot as usize];
        // A late wake-up of an attempt that has ended can find an empty slot.
        let Some(attempt) = &mut entry.attempt else { return Poll::Pending };
        let Poll::Ready(result) = attempt.as_mut().poll(&mut Context::from_waker(&entry.waker)) else {
            return Poll::Pending;
        };
        let owner = entry.owner;
        self.end(slot);
        Poll::Ready((owner, result))
    }

    pub(super) fn end(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        if entry.attempt.take().is_some() {
            self.descriptors -= entry.descriptors;
            self.free.push(slot);
        }
    }

    /// Returns the slots that were woken since the last call. The caller must pass the list to
    /// [`Flights::give_back`] afterwards.
    pub(super) fn take_ready(&mut self) -> Vec<u32> {
        let mut taken = std::mem::take(&mut self.taken);
        std::mem::swap(&mut taken, &mut *lock(&self.ready.list));
        for slot in &taken {
            self.slots[*slot as usize].signal.listed.store(false, Ordering::Release);
        }
        taken
    }

    /// Takes back a list from [`Flights::take_ready`], so that its memory is reused.
    pub(super) fn give_back(&mut self, mut taken: Vec<u32>) {
        taken.clear();
        self.taken = taken;
    }

    fn grow(&mut self) -> u32 {
        let slot = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        let signal =
            Arc::new(Signal { slot, listed: AtomicBool::new(false), ready: Arc::clone(&self.ready) });
        let waker = Waker::from(Arc::clone(&signal));
        self.slots.push(Slot { owner: 0, descriptors: 0, attempt: None, signal, waker });
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_running_attempts_add_up() {
        let mut flights = Flights::new(Arc::default());
        let pending = || -> Attempt { Box::pin(std::future::pending()) };
        let first = flights.start(1, 1, pending()).unwrap();
        let second = flights.start(2, 8, pending()).unwrap();
        assert_eq!(flights.descriptors(), 9, "an attempt through eight next hops uses eight sockets");
        let ended: Attempt = Box::pin(std::future::ready(Ok(Pass::Answered)));
        assert_eq!(flights.start(3, 4, ended), Err(Ok(Pass::Answered)));
        assert_eq!(flights.descriptors(), 9);
        for (slot, left) in [(second, 1), (second, 1), (first, 0)] {
            flights.end(slot);
            assert_eq!(flights.descriptors(), left);
        }
    }
}
