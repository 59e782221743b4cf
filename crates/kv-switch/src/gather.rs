//! One request whose keys are on several servers: which key waits for which part of it, and where its answer lies.
//!
//! In: the request's keys, each with the number of the part that it is asked by; answers, by part; parts whose time is over. Out:
//! what to ask, whether all is there, and where.
//! Not here: exchanges, frames (the caller holds them under numbers of its own), what becomes of a request that failed.
//! Invariant: a key is filled once, by an answer of its own part with its own name; once all are, or one cannot be, nothing changes.

use std::ops::ControlFlow;

use crate::{Answer, Application, Content, Item, KeyRoom, Request, Value};

/// Keys of one request, at most.
pub const MAX_KEYS: usize = 32;

/// The state of one request.
#[derive(Clone, Debug)]
pub struct Gather {
    slots: [Slot; MAX_KEYS],
    keys: usize,
    /// Keys that have no answer; 0 once it is over.
    waiting: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    item: Item,
    part: u8,
    /// An earlier key of this part has the same name: it is asked for both.
    is_repeated: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Missing,
    Found(Place),
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The caller's number for the frame that the answer came in.
    pub frame: u32,
    /// Where in its payload.
    pub value: Value,
}

/// An answer to a part.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The number of the part.
    pub part: u8,
    /// The caller's number for the frame that it came in.
    pub frame: u32,
    /// What it says.
    pub answer: Answer<'a>,
}

/// What a key counts as that has no answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// The request fails whole.
    Fails,
    /// It is not there.
    IsMissing,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing: no key of that part waits for this, or all is over.
    Unchanged,
    /// Other keys wait.
    Waiting,
    /// All is there: the reply can be written. It is over.
    Complete,
    /// There will be no reply. It is over.
    Failed,
}

impl Gather {
    /// The keys of a request, each given to `part` (number and name), which returns the part that asks for it. `None`: `part` returns that,
    /// or these are none, or more than [`MAX_KEYS`].
    ///
    /// # Cost
    /// Two keys of one part are compared: 496 comparisons where 32 keys are in one.
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

    /// The keys that a part asks for, each once.
    pub fn part(&self, part: u8) -> impl Iterator<Item = Item> {
        self.of(part).filter(|slot| !slot.is_repeated).map(|slot| slot.item)
    }

    /// Whether keys of a part have no answer yet: its exchange goes on.
    #[must_use]
    pub fn waits_for(&self, part: u8) -> bool {
        self.waiting > 0 && self.of(part).any(|slot| slot.state == State::Waiting)
    }

    /// Whether it is over: no answer changes anything any more.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.waiting == 0
    }

    /// Takes an answer. Its frame is wanted until the reply is written if it has a value and this is not [`Progress::Unchanged`].
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

    /// The time of a part is over.
    pub fn expire(&mut self, part: u8, late: Late) -> Progress {
        let state = match late {
            Late::Fails => State::Waiting,
            Late::IsMissing => State::Missing,
        };
        self.settle(part, state, |_| true)
    }

    /// Gives the waiting keys of a part that `is_meant` a state; [`State::Waiting`]: one that they cannot leave.
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

    /// Where the value of a key lies, by its number in the request; `None`: it is not there, or not yet.
    #[must_use]
    pub fn place(&self, key: u16) -> Option<Place> {
        match self.slots.get(usize::from(key))?.state {
            State::Found(place) => Some(place),
            State::Waiting | State::Missing => None,
        }
    }

    /// The frames that hold values, each once.
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
