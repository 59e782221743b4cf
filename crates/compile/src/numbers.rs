//! Exports slot numbers and service numbers for a new process.
//!
//! During a handover, the new process reads the connection tables of the previous process, which
//! refer to slots and services by number. Both processes must therefore use the same numbers.
//! Invariant: if the previous process has allocated a number, the new process never uses this
//! number for anything else.

use std::collections::BTreeMap;

use forwarder::{ServiceId, SlotId};

use crate::Compiler;
use crate::keys::SlotKey;
use crate::slots::Slots;

/// The slot and service numbers of a compiler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The slot numbers of the configured pool members.
    pub slots: Vec<(SlotKey, SlotId)>,
    /// The exclusive upper bound of all slot numbers that were ever allocated, including the
    /// numbers of removed backends.
    pub slots_below: u32,
    /// The service numbers by service name.
    pub services: BTreeMap<String, ServiceId>,
}

impl Compiler {
    /// Creates a compiler that continues with these numbers. All numbers of new pool members are at
    /// least [`Numbers::slots_below`].
    #[must_use]
    pub fn numbered(numbers: &Numbers) -> Self {
        let services = numbers.services.iter().map(|(name, id)| (name.clone(), *id)).collect();
        Self { slots: Slots::numbered(&numbers.slots, numbers.slots_below), services, ..Self::default() }
    }

    /// Returns the current slot and service numbers.
    #[must_use]
    pub fn numbers(&self) -> Numbers {
        let services = self.services.iter().map(|(name, id)| (name.clone(), *id)).collect();
        let slots_below = u32::try_from(self.slots.slots().len()).unwrap_or(u32::MAX);
        Numbers { slots: self.slots.numbers(), slots_below, services }
    }

    /// Returns the slots of the pool members that a reload removed and that are still draining.
    pub fn draining(&self) -> impl Iterator<Item = (&SlotKey, SlotId)> {
        self.slots.draining()
    }
}
