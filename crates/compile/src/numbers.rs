//! The numbers of slots and services, for a process that comes in another's place and reads its connection tables.
//!
//! In: a compiler. Out: its numbers, and a compiler that goes on with them.
//! Invariant: a number that the first compiler has given out means the same to the second, or nothing.

use std::collections::BTreeMap;

use forwarder::{ServiceId, SlotId};

use crate::Compiler;
use crate::keys::SlotKey;
use crate::slots::Slots;

/// What numbers mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Configured memberships.
    pub slots: Vec<(SlotKey, SlotId)>,
    /// All numbers of slots that were ever given out are below this.
    pub slots_below: u32,
    /// Services by their names.
    pub services: BTreeMap<String, ServiceId>,
}

impl Compiler {
    /// A compiler that gives these numbers to those who had them, and no number below [`Numbers::slots_below`] to anyone else.
    #[must_use]
    pub fn numbered(numbers: &Numbers) -> Self {
        let services = numbers.services.iter().map(|(name, id)| (name.clone(), *id)).collect();
        Self { slots: Slots::numbered(&numbers.slots, numbers.slots_below), services, ..Self::default() }
    }

    /// The numbers of now.
    #[must_use]
    pub fn numbers(&self) -> Numbers {
        let services = self.services.iter().map(|(name, id)| (name.clone(), *id)).collect();
        let slots_below = u32::try_from(self.slots.slots().len()).unwrap_or(u32::MAX);
        Numbers { slots: self.slots.numbers(), slots_below, services }
    }

    /// Whether memberships that went by a reload still have flows.
    #[must_use]
    pub fn has_draining(&self) -> bool {
        self.slots.has_draining()
    }
}
