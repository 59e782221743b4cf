//! Attempts under way.
//!
//! In: futures. Out: the numbers of those that can go on, as their sockets say.
//! No task and no timer for each: one list of what is ready, one wake of the loop however long it is.
//! Not here: when an attempt is made and when it is over (`runner`).
//! Invariant: taking an attempt out drops it, and with it all that it opened.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::{Failure, lock};

pub(super) type Attempt = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// Attempts by slot; a slot is given to the next attempt when it is free.
pub(super) struct Flights {
    slots: Vec<Slot>,
    free: Vec<u32>,
    ready: Arc<Ready>,
    /// Emptied and swapped with the list of `ready`, so that neither allocates.
    taken: Vec<u32>,
}

struct Slot {
    /// Whose attempt it is.
    owner: u32,
    attempt: Option<Attempt>,
    signal: Arc<Signal>,
    waker: Waker,
}

/// The list of slots whose attempts can go on, and the loop that is to be woken for it.
#[derive(Debug, Default)]
pub(super) struct Ready {
    list: Mutex<Vec<u32>>,
    loop_waker: Mutex<Option<Waker>>,
}

impl Ready {
    /// The loop goes to sleep and is to be woken by `waker`.
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
        // Pairs with the Release in `Flights::take_ready`: what made it ready happens before the next poll.
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
        Self { slots: Vec::new(), free: Vec::new(), ready, taken: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Starts an attempt, as far as it goes without waiting: the slot that it has, or its result.
    pub(super) fn start(&mut self, owner: u32, attempt: Attempt) -> Result<u32, Result<(), Failure>> {
        let slot = self.free.pop().unwrap_or_else(|| self.grow());
        let entry = &mut self.slots[slot as usize];
        (entry.owner, entry.attempt) = (owner, Some(attempt));
        match self.poll(slot) {
            Poll::Ready((_, result)) => Err(result),
            Poll::Pending => Ok(slot),
        }
    }

    /// Goes on with the attempt in `slot`: whose it was and its result, when it has ended.
    pub(super) fn poll(&mut self, slot: u32) -> Poll<(u32, Result<(), Failure>)> {
        let entry = &mut self.slots[slot as usize];
        // An empty slot was woken for an attempt that is no longer there.
        let Some(attempt) = &mut entry.attempt else { return Poll::Pending };
        let Poll::Ready(result) = attempt.as_mut().poll(&mut Context::from_waker(&entry.waker)) else {
            return Poll::Pending;
        };
        let owner = entry.owner;
        self.end(slot);
        Poll::Ready((owner, result))
    }

    pub(super) fn end(&mut self, slot: u32) {
        if self.slots[slot as usize].attempt.take().is_some() {
            self.free.push(slot);
        }
    }

    /// The slots that were woken since the last call. Give the list back with [`Flights::give_back`].
    pub(super) fn take_ready(&mut self) -> Vec<u32> {
        let mut taken = std::mem::take(&mut self.taken);
        std::mem::swap(&mut taken, &mut *lock(&self.ready.list));
        for slot in &taken {
            self.slots[*slot as usize].signal.listed.store(false, Ordering::Release);
        }
        taken
    }

    /// Lets the list's memory serve again.
    pub(super) fn give_back(&mut self, mut taken: Vec<u32>) {
        taken.clear();
        self.taken = taken;
    }

    fn grow(&mut self) -> u32 {
        let slot = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        let signal =
            Arc::new(Signal { slot, listed: AtomicBool::new(false), ready: Arc::clone(&self.ready) });
        let waker = Waker::from(Arc::clone(&signal));
        self.slots.push(Slot { owner: 0, attempt: None, signal, waker });
        slot
    }
}
