//! The state of one request whose keys are on several servers.
//!
//! [`Gather`] assigns each key to a part, which is one upstream request to one server. [`Gather`]
//! also records where the answer for each key is stored. The caller manages the exchanges and the
//! received frames, and assigns a number to each frame. At most one answer is accepted for each
//! key. The answer must contain the key and must belong to the part that requested the key. After
//! the request is complete or has failed, the state does not change.

use std::ops::ControlFlow;

use crate::{Answer, Application, Content, Item, KeyRoom, Request, Value};

/// The maximum number of keys in one gathered request.
pub const MAX_KEYS: usize = 32;

/// The state of one request whose keys are on several servers.
#[derive(Clone, Debug)]
pub struct Gather {
    slots: [Slot; MAX_KEYS],
    keys: usize,
    /// The number of keys that have no answer yet. The number is 0 after the request is complete or
    /// has failed.
    waiting: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    item: Item,
    part: u8,
    /// `true` if this part already contains the same key. The upstream request contains the key
    /// only once.
    is_repeated: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Missing,
    Found(Place),
}

/// The position of a value in a received answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The number that the caller assigned to the frame with the answer.
    pub frame: u32,
    /// The position of the value in the payload of the frame.
    pub value: Value,
}

/// An answer to one of the upstream requests.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The index of the part that was answered.
    pub part: u8,
    /// The number that the caller assigned to the frame with the answer.
    pub frame: u32,
    /// The parsed answer.
    pub answer: Answer<'a>,
}

/// Determines the result for a key whose server does not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// The whole request fails.
    Fails,
    /// The key is treated as missing.
    IsMissing,
}

/// The state of a request after an answer or a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The request has not changed. Either no key of the part was waiting, or the request was
    /// already complete or had failed.
    Unchanged,
    /// Other keys are still waiting for an answer.
    Waiting,
    /// All keys have an answer, and the reply can be written.
    Complete,
    /// The request has failed and has no reply.
    Failed,
}

impl Gather {
    /// Creates the state of a request. `part` is called with the index and the bytes of each key,
    /// and returns the index of the part to which the key belongs. Returns `None` if `part` returns
    /// `None`, or if the request has no keys or more than [`MAX_KEYS`].
    ///
    /// # Cost
    /// Compares each pair of keys in a part, which is 496 comparisons for a part with 32 keys.
    pub fn new(
        application: &dyn Application,
        request: &Request<'_>,
        part: &mut dyn FnMut(usize, &[u8]) -> Option<u8>,
    ) -> Option<Self> {
        let mut gather = Self { slots: [Slot::EMPTY; MAX_KEYS], keys: 0, waiting: 0 };
        let mut room = KeyRoom::default();
        application.items(request.payload, request.ask, &mut |item| {
            let key = application.key(request.payload, &item, &mut room);
            let added = part(gather.keys, key).and_then(|part| gather.add(application, request, item, part));
            if added.is_some() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let is_whole = gather.keys > 0 && gather.keys == usize::from(request.ask.keys);
        is_whole.then_some(gather)
    }

    fn add(
        &mut self,
        application: &dyn Application,
        request: &Request<'_>,
        item: Item,
        part: u8,
    ) -> Option<()> {
        let (mut room, mut other) = (KeyRoom::default(), KeyRoom::default());
        let key = application.key(request.payload, &item, &mut room);
        let is_repeated =
            self.of(part).any(|slot| application.key(request.payload, &slot.item, &mut other) == key);
        *self.slots.get_mut(self.keys)? = Slot { item, part, is_repeated, state: State::Waiting };
        self.keys += 1;
        self.waiting += 1;
        Some(())
    }

    /// Returns the keys of a part, without duplicates.
    pub fn part(&self, part: u8) -> impl Iterator<Item = Item> {
        self.of(part).filter(|slot| !slot.is_repeated).map(|slot| slot.item)
    }

    /// Returns `true` if a key of the part has no answer yet. The exchange of the part must then
    /// stay open.
    #[must_use]
    pub fn waits_for(&self, part: u8) -> bool {
        self.waiting > 0 && self.of(part).any(|slot| slot.state == State::Waiting)
    }

    /// Returns `true` if the request is complete or has failed. Further answers are then ignored.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.waiting == 0
    }

    /// Applies an answer. The caller must keep the frame until the reply is written, if the answer
    /// contains a value and the result is not [`Progress::Unchanged`].
    pub fn answer(
        &mut self,
        application: &dyn Application,
        request: &Request<'_>,
        arrival: &Arrival<'_>,
    ) -> Progress {
        let state = match arrival.answer.content {
            Content::Value(value) => State::Found(Place { frame: arrival.frame, value }),
            Content::Missing => State::Missing,
            Content::TooLong => State::Waiting,
        };
        let mut room = KeyRoom::default();
        let key = arrival.answer.key;
        self.settle(arrival.part, state, |item| application.key(request.payload, item, &mut room) == key)
    }

    /// Applies a timeout to all keys of a part that have no answer yet.
    pub fn expire(&mut self, part: u8, late: Late) -> Progress {
        let state = match late {
            Late::Fails => State::Waiting,
            Late::IsMissing => State::Missing,
        };
        self.settle(part, state, |_| true)
    }

    /// Sets the state of all waiting keys in a part for which `is_meant` returns `true`. The state
    /// [`State::Waiting`] means that the whole request fails.
    fn settle(&mut self, part: u8, state: State, mut is_meant: impl FnMut(&Item) -> bool) -> Progress {
        if self.waiting == 0 {
            return Progress::Unchanged;
        }
        let mut settled = 0;
        for slot in self.slots.iter_mut().take(self.keys) {
            if slot.part == part && slot.state == State::Waiting && is_meant(&slot.item) {
                slot.state = state;
                settled += 1;
            }
        }
        match (settled, state) {
            (0, _) => return Progress::Unchanged,
            (_, State::Waiting) => {
                self.waiting = 0;
                return Progress::Failed;
            }
            _ => self.waiting -= settled,
        }
        if self.waiting == 0 { Progress::Complete } else { Progress::Waiting }
    }

    /// Returns the position of a key's value, given the index of the key in the request. Returns
    /// `None` if the key is missing or has no answer yet.
    #[must_use]
    pub fn place(&self, key: u16) -> Option<Place> {
        match self.slots.get(usize::from(key))?.state {
            State::Found(place) => Some(place),
            State::Waiting | State::Missing => None,
        }
    }

    /// Returns the numbers of the frames that contain values, without duplicates.
    pub fn frames(&self) -> impl Iterator<Item = u32> {
        let slots = self.slots.iter().take(self.keys).filter(|slot| !slot.is_repeated);
        slots.filter_map(|slot| match slot.state {
            State::Found(place) => Some(place.frame),
            State::Waiting | State::Missing => None,
        })
    }

    fn of(&self, part: u8) -> impl Iterator<Item = &Slot> {
        self.slots.iter().take(self.keys).filter(move |slot| slot.part == part)
    }
}

impl Slot {
    const EMPTY: Self = Self { item: Item::EMPTY, part: 0, is_repeated: false, state: State::Waiting };
}

#[cfg(test)]
mod tests;
