//! Assigns a slot number to each pool member, and keeps the numbers across reloads.
//!
//! A membership is one backend in one leaf pool. If it is checked through VIPs, it has one slot for
//! each address family of each VIP. When a membership is removed, its slot drains. After the drain
//! time, the slot is free, and packets of its remaining flows are sent to other backends. After the
//! longest idle timeout of the connection table, the number can be reused. If the backend was down
//! when it was removed, its slot is free immediately. If the backend goes down while its slot
//! drains, the flows of the slot move immediately.
//!
//! Invariant: a connection table entry that was written for one pool member is never used for a
//! different pool member.

use std::collections::HashMap;
use std::time::Duration;

use forwarder::{Slot, SlotId, SlotState};

use crate::keys::SlotKey;

/// The slots of the current generation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    numbers: HashMap<SlotKey, SlotId>,
    slots: Vec<Slot>,
    /// The slots of pool members that are no longer configured.
    gone: HashMap<SlotId, Gone>,
    /// The slot numbers that can be reused, because no flow can refer to them.
    spare: Vec<SlotId>,
}

/// The phase of a removed pool member's slot, and the time at which the phase began.
#[derive(Clone, Copy, Debug)]
enum Gone {
    Draining(Duration),
    Free(Duration),
}

impl Gone {
    /// Returns `true` if no flow can refer to the slot any longer.
    fn is_over(self, now: Duration, ages: Ages) -> bool {
        matches!(self, Self::Free(since) if now.saturating_sub(since) >= ages.keep)
    }
}

/// The durations of the two phases after a pool member is removed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ages {
    /// The time from the removal until the slot is free.
    pub(crate) drain: Duration,
    /// The time that a slot must be free before its number can be reused: the longest lifetime of a
    /// connection table entry.
    pub(crate) keep: Duration,
}

/// The slots of the next generation while their numbers are being assigned.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    before: &'a Slots,
    /// The slots by number. An entry is `None` until a pool member claims the number.
    claimed: Vec<Option<Slot>>,
    /// The pool members that did not have a slot number before.
    new: Vec<(SlotKey, SlotId)>,
    spare: Vec<SlotId>,
}

impl Slots {
    /// Returns all slots, indexed by slot number.
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns the state of each slot. `state` returns the state of a membership that is configured
    /// or drains after its removal.
    pub(crate) fn states(&self, state: impl Fn(&SlotKey) -> SlotState) -> Vec<SlotState> {
        let mut states = vec![SlotState::Free; self.slots.len()];
        for (key, id) in &self.numbers {
            let of_slot = match self.gone.get(id) {
                Some(Gone::Draining(_)) if state(key) == SlotState::Down => SlotState::Down,
                Some(Gone::Draining(_)) => SlotState::Draining,
                Some(Gone::Free(_)) => SlotState::Free,
                None => state(key),
            };
            if let Some(place) = states.get_mut(id.0 as usize) {
                *place = of_slot;
            }
        }
        states
    }

    /// Returns the slots of the removed memberships that are still draining.
    pub(crate) fn draining(&self) -> impl Iterator<Item = (&SlotKey, SlotId)> {
        let drains = |id: &SlotId| matches!(self.gone.get(id), Some(Gone::Draining(_)));
        let numbers = self.numbers.iter().filter(|_| !self.gone.is_empty());
        numbers.filter(move |(_, id)| drains(id)).map(|(key, id)| (key, *id))
    }

    /// Returns the slots of peers, including removed peers that still have a slot.
    pub(crate) fn peers(&self) -> impl Iterator<Item = SlotId> {
        self.numbers.iter().filter(|(key, _)| key.is_peer()).map(|(_, id)| *id)
    }

    /// Creates slots with the slot numbers of the previous process. Each slot contains a
    /// placeholder until this process compiles its configuration. If no pool member claims a slot,
    /// the slot becomes free. New pool members get numbers starting at `below`.
    pub(crate) fn numbered(known: &[(SlotKey, SlotId)], below: u32) -> Self {
        let places = known.iter().map(|(_, id)| id.0 + 1).max().unwrap_or(0).max(below);
        Self {
            numbers: known.iter().cloned().collect(),
            slots: vec![nobody(); places as usize],
            ..Self::default()
        }
    }

    /// Returns the slot number of each configured pool member.
    pub(crate) fn numbers(&self) -> Vec<(SlotKey, SlotId)> {
        let configured = self.numbers.iter().filter(|(_, id)| !self.gone.contains_key(id));
        configured.map(|(key, id)| (key.clone(), *id)).collect()
    }

    /// Starts to assign the slots of the next generation.
    pub(crate) fn draft(&self) -> Draft<'_> {
        let claimed = vec![None; self.slots.len()];
        Draft { before: self, claimed, new: Vec::new(), spare: self.spare.clone() }
    }

    /// Frees the slots of removed pool members when their drain time has passed. Returns the
    /// numbers of the freed slots.
    pub(crate) fn advance(&mut self, now: Duration, ages: Ages) -> Vec<SlotId> {
        let mut freed = Vec::new();
        for (id, gone) in &mut self.gone {
            let Gone::Draining(since) = *gone else { continue };
            if now.saturating_sub(since) >= ages.drain {
                *gone = Gone::Free(now);
                freed.push(*id);
            }
        }
        freed
    }

    /// Makes a slot number reusable. The caller must ensure that no flow can refer to the number.
    fn forget(&mut self, key: &SlotKey, id: SlotId) {
        self.numbers.remove(key);
        self.spare.push(id);
    }
}

impl Draft<'_> {
    /// Stores `slot` under the slot number of the pool member. A pool member keeps its previous
    /// number, and a new pool member gets a new number. This method must be called only once per
    /// pool member. Returns `None` if all numbers are in use.
    pub(crate) fn claim(&mut self, key: &SlotKey, slot: Slot) -> Option<SlotId> {
        let id = match self.before.numbers.get(key) {
            Some(known) => *known,
            None => {
                let id = self.spare.pop().or_else(|| u32::try_from(self.claimed.len()).ok().map(SlotId))?;
                self.new.push((key.clone(), id));
                id
            }
        };
        let place = id.0 as usize;
        self.claimed.resize(self.claimed.len().max(place + 1), None);
        self.claimed[place] = Some(slot);
        Some(id)
    }

    /// Completes the next generation. `now` is the current time, and `was` returns the current
    /// state of a slot whose pool member was removed.
    pub(crate) fn finish(self, now: Duration, ages: Ages, was: impl Fn(SlotId) -> SlotState) -> Slots {
        let Self { before, claimed, new, spare } = self;
        // Most pool members keep their numbers, so cloning the map is cheaper than hashing all keys
        // again.
        let (numbers, gone) = (before.numbers.clone(), HashMap::new());
        let mut next = Slots { numbers, slots: Vec::with_capacity(claimed.len()), gone, spare };
        next.numbers.extend(new);
        let is_claimed = |id: &SlotId| matches!(claimed.get(id.0 as usize), Some(Some(_)));
        for (key, id) in before.numbers.iter().filter(|(_, id)| !is_claimed(id)) {
            let gone = before.gone.get(id).copied().unwrap_or_else(|| match was(*id) {
                SlotState::Serving | SlotState::Draining => Gone::Draining(now),
                SlotState::Down | SlotState::Free => Gone::Free(now),
            });
            if gone.is_over(now, ages) {
                next.forget(key, *id);
            } else {
                next.gone.insert(*id, gone);
            }
        }
        // A slot that was not claimed is copied from the previous generation.
        let places = claimed.into_iter().enumerate();
        next.slots
            .extend(places.filter_map(|(place, slot)| slot.or_else(|| before.slots.get(place).cloned())));
        next.advance(now, ages);
        next
    }
}

/// Returns placeholder content for a slot number that the previous process allocated.
fn nobody() -> Slot {
    Slot {
        backend: "".into(),
        address: std::net::Ipv4Addr::UNSPECIFIED.into(),
        forwarding: forwarder::Forwarding::L2,
        next_hop: None,
        spread: None,
        mtu: 0,
        too_big: forwarder::TooBig::Drop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(name: u8) -> SlotKey {
        SlotKey {
            pool: "web".into(),
            backend: format!("b{name}").into(),
            address: [192, 0, 2, name].into(),
            vip: None,
        }
    }

    fn slot(name: u8) -> Slot {
        Slot {
            backend: format!("b{name}").into(),
            address: [192, 0, 2, name].into(),
            forwarding: forwarder::Forwarding::L2,
            next_hop: None,
            spread: None,
            mtu: 1500,
            too_big: forwarder::TooBig::Drop,
        }
    }

    fn reload(slots: &Slots, names: &[u8], now: u64) -> (Slots, Vec<SlotId>) {
        let mut draft = slots.draft();
        let ids = names.iter().map(|name| draft.claim(&key(*name), slot(*name)).unwrap()).collect();
        (draft.finish(Duration::from_secs(now), AGES, |_| SlotState::Serving), ids)
    }

    const AGES: Ages = Ages { drain: Duration::from_secs(50), keep: Duration::from_secs(100) };

    #[test]
    fn numbered_keeps_numbers_of_previous_process() {
        let (slots, first) = reload(&Slots::default(), &[1, 2, 3], 0);
        let (slots, _) = reload(&slots, &[1, 3], 10);
        assert!(slots.draining().next().is_some());
        let heir = Slots::numbered(&slots.numbers(), 3);
        assert!(heir.draining().next().is_none());
        let (heir, again) = reload(&heir, &[3, 4, 1], 0);
        assert_eq!(
            again,
            [first[2], SlotId(3), first[0]],
            "the slot number 2 belonged to another pool member"
        );
        assert_eq!(heir.slots().len(), 4);
        let states = heir.states(|_| SlotState::Serving);
        let expected = [SlotState::Serving, SlotState::Free, SlotState::Serving, SlotState::Serving];
        assert_eq!(states, expected);
        assert!(heir.slots()[0].backend.starts_with("b1") && heir.slots()[2].backend.starts_with("b3"));
        // No pool member has the number 2, but flows may still refer to it.
        let heir = Slots::numbered(&[(key(1), SlotId(0))], 3);
        assert_eq!(reload(&heir, &[5, 1], 0).1, [SlotId(3), SlotId(0)]);
    }

    #[test]
    fn removed_membership_drains_then_is_freed_then_reused() {
        let (slots, first) = reload(&Slots::default(), &[1, 2], 0);
        let state = |slots: &Slots, id: SlotId| slots.states(|_| SlotState::Serving)[id.0 as usize];
        let (slots, _) = reload(&slots, &[2], 10);
        assert_eq!(state(&slots, first[0]), SlotState::Draining);
        assert_eq!(slots.draining().collect::<Vec<_>>(), [(&key(1), first[0])]);
        assert_eq!(slots.states(|_| SlotState::Down)[first[0].0 as usize], SlotState::Down);
        let (mut slots, third) = reload(&slots, &[2, 3], 59);
        assert_eq!((state(&slots, first[0]), third), (SlotState::Draining, vec![first[1], SlotId(2)]));
        assert_eq!(slots.advance(Duration::from_secs(59), AGES), []);
        assert_eq!(slots.advance(Duration::from_secs(500), AGES), [first[0]]);
        assert_eq!(state(&slots, first[0]), SlotState::Free);
        assert_eq!(slots.advance(Duration::from_secs(501), AGES), []);
        let (slots, fourth) = reload(&slots, &[2, 3, 4], 599);
        assert_eq!(fourth[2], SlotId(3), "flows may still refer to the freed slot");
        let (slots, _) = reload(&slots, &[2, 3, 4], 600);
        let (slots, fifth) = reload(&slots, &[2, 3, 4, 5], 601);
        assert_eq!((fifth[3], state(&slots, first[0])), (first[0], SlotState::Serving));
    }

    #[test]
    fn returning_membership_gets_its_number_back() {
        let (slots, first) = reload(&Slots::default(), &[1, 2], 0);
        let (slots, _) = reload(&slots, &[2], 10);
        let (slots, again) = reload(&slots, &[2, 1], 150);
        assert_eq!(again, [first[1], first[0]]);
        assert_eq!(slots.states(|_| SlotState::Serving)[first[0].0 as usize], SlotState::Serving);
    }

    #[test]
    fn removed_membership_that_was_down_does_not_drain() {
        let (slots, first) = reload(&Slots::default(), &[1, 2], 0);
        let mut draft = slots.draft();
        draft.claim(&key(2), slot(2)).unwrap();
        let next = draft.finish(Duration::from_secs(10), AGES, |_| SlotState::Down);
        let states = next.states(|_| SlotState::Serving);
        assert_eq!(
            first.iter().map(|id| states[id.0 as usize]).collect::<Vec<_>>(),
            [SlotState::Free, SlotState::Serving]
        );
    }

    proptest! {
        /// A slot number gets a new owner only when all flows of the previous owner have ended. The
        /// reload that adds the new owner must be at least the drain time plus the longest idle
        /// timeout after the reload that removed the previous owner.
        #[test]
        fn number_is_reused_only_after_its_flows_end(
            reloads in prop::collection::vec((prop::collection::btree_set(0u8..6, 0..5), 0u64..90), 1..40)
        ) {
            let mut slots = Slots::default();
            let mut last: HashMap<SlotId, (u8, u64)> = HashMap::new();
            let mut now = 0;
            for (names, pause) in reloads {
                now += pause;
                let names: Vec<u8> = names.into_iter().collect();
                let (next, ids) = reload(&slots, &names, now);
                let mut seen = std::collections::HashSet::new();
                for (name, id) in names.iter().zip(&ids) {
                    prop_assert!(seen.insert(*id), "two pool members have the same slot number");
                    if let Some((owner, since)) = last.insert(*id, (*name, now)) {
                        prop_assert!(owner == *name || now - since >= 150, "{owner} then {name} after {}", now - since);
                    }
                    prop_assert_eq!(next.slots()[id.0 as usize].address, slot(*name).address);
                }
                slots = next;
            }
        }
    }
}
