//! Numbers for memberships that outlive reloads; one that is checked through VIPs has one for each family of each VIP.
//!
//! In: the memberships of a configuration. Out: the slots of a snapshot, each under the number that it had before.
//! A membership that goes drains: its flows go on for the drain time; then it is free and its flows are reselected, and once
//! the longest idle time-out has passed its number may be given to another. One that was down when it went is free at once.
//! Not here: whether a configured membership serves (`runtime_state`).
//! Invariant: no flow-table entry written for one membership is ever read as another's.

use std::collections::HashMap;
use std::time::Duration;

use forwarder::{Slot, SlotId, SlotState};

use crate::keys::SlotKey;

/// The slots of the generation in force.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    numbers: HashMap<SlotKey, SlotId>,
    slots: Vec<Slot>,
    /// Of the memberships that are no longer configured.
    gone: HashMap<SlotId, Gone>,
    /// Numbers that no flow can name any more.
    spare: Vec<SlotId>,
}

/// How far a membership that is no longer configured has come, and since when.
#[derive(Clone, Copy, Debug)]
enum Gone {
    Draining(Duration),
    Free(Duration),
}

impl Gone {
    /// Whether no flow can name it any more.
    fn is_over(self, now: Duration, ages: Ages) -> bool {
        matches!(self, Self::Free(since) if now.saturating_sub(since) >= ages.keep)
    }
}

/// How long the ways of a membership that went take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ages {
    /// From going to free.
    pub(crate) drain: Duration,
    /// From free to spare: the longest that an entry of the connection table lives.
    pub(crate) keep: Duration,
}

/// The slots of the next generation while it is put together.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    before: &'a Slots,
    /// By number; `None`: nobody has claimed it.
    claimed: Vec<Option<Slot>>,
    /// Memberships that had no number before.
    new: Vec<(SlotKey, SlotId)>,
    spare: Vec<SlotId>,
}

impl Slots {
    /// By number.
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// What each slot may be given: `configured` says it of memberships that are configured.
    pub(crate) fn states(&self, configured: impl Fn(&SlotKey) -> SlotState) -> Vec<SlotState> {
        let mut states = vec![SlotState::Free; self.slots.len()];
        for (key, id) in &self.numbers {
            let state = match self.gone.get(id) {
                Some(Gone::Draining(_)) => SlotState::Draining,
                Some(Gone::Free(_)) => SlotState::Free,
                None => configured(key),
            };
            if let Some(place) = states.get_mut(id.0 as usize) {
                *place = state;
            }
        }
        states
    }

    /// Those of other machines of the shard, whether they are configured still.
    pub(crate) fn peers(&self) -> impl Iterator<Item = SlotId> {
        self.numbers.iter().filter(|(key, _)| key.is_peer()).map(|(_, id)| *id)
    }

    /// Those of another process, whose slots themselves are compiled anew. What nobody claims is free; no number below `below` is given to
    /// others.
    pub(crate) fn numbered(known: &[(SlotKey, SlotId)], below: u32) -> Self {
        let places = known.iter().map(|(_, id)| id.0 + 1).max().unwrap_or(0).max(below);
        Self {
            numbers: known.iter().cloned().collect(),
            slots: vec![nobody(); places as usize],
            ..Self::default()
        }
    }

    /// The numbers of memberships that are configured.
    pub(crate) fn numbers(&self) -> Vec<(SlotKey, SlotId)> {
        let configured = self.numbers.iter().filter(|(_, id)| !self.gone.contains_key(id));
        configured.map(|(key, id)| (key.clone(), *id)).collect()
    }

    /// Whether some that went have flows still.
    pub(crate) fn has_draining(&self) -> bool {
        self.gone.values().any(|gone| matches!(gone, Gone::Draining(_)))
    }

    /// Begins the next generation.
    pub(crate) fn draft(&self) -> Draft<'_> {
        let claimed = vec![None; self.slots.len()];
        Draft { before: self, claimed, new: Vec::new(), spare: self.spare.clone() }
    }

    /// Moves the memberships that went on to where they are at `now`. Gives the numbers that turned free.
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

    /// Nothing can name it any more: its number may be another's.
    fn forget(&mut self, key: &SlotKey, id: SlotId) {
        self.numbers.remove(key);
        self.spare.push(id);
    }
}

impl Draft<'_> {
    /// The number of a membership, which is claimed once: the one it had, or a new one. `None`: no numbers are left.
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

    /// The next generation at `now`; `was` says what a membership that goes was given until now.
    pub(crate) fn finish(self, now: Duration, ages: Ages, was: impl Fn(SlotId) -> SlotState) -> Slots {
        let Self { before, claimed, new, spare } = self;
        // Most keep their numbers: nothing is hashed again for them.
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
        // A number that nobody has claimed was there before.
        let places = claimed.into_iter().enumerate();
        next.slots
            .extend(places.filter_map(|(place, slot)| slot.or_else(|| before.slots.get(place).cloned())));
        next.advance(now, ages);
        next
    }
}

/// In the place of a membership that another process knew.
fn nobody() -> Slot {
    Slot {
        backend: "".into(),
        address: std::net::Ipv4Addr::UNSPECIFIED.into(),
        forwarding: forwarder::Forwarding::L2,
        next_hop: None,
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
    fn another_process_goes_on_with_the_numbers_and_gives_none_of_them_away() {
        let (slots, first) = reload(&Slots::default(), &[1, 2, 3], 0);
        let (slots, _) = reload(&slots, &[1, 3], 10);
        assert!(slots.has_draining());
        let heir = Slots::numbered(&slots.numbers(), 3);
        assert!(!heir.has_draining());
        let (heir, again) = reload(&heir, &[3, 4, 1], 0);
        assert_eq!(again, [first[2], SlotId(3), first[0]], "2 was another's");
        assert_eq!(heir.slots().len(), 4);
        let states = heir.states(|_| SlotState::Serving);
        let expected = [SlotState::Serving, SlotState::Free, SlotState::Serving, SlotState::Serving];
        assert_eq!(states, expected);
        assert!(heir.slots()[0].backend.starts_with("b1") && heir.slots()[2].backend.starts_with("b3"));
        // Flows may still have the last number, though nobody does.
        let heir = Slots::numbered(&[(key(1), SlotId(0))], 3);
        assert_eq!(reload(&heir, &[5, 1], 0).1, [SlotId(3), SlotId(0)]);
    }

    #[test]
    fn a_membership_that_goes_drains_then_is_free_then_gives_its_number_away() {
        let (slots, first) = reload(&Slots::default(), &[1, 2], 0);
        let state = |slots: &Slots, id: SlotId| slots.states(|_| SlotState::Serving)[id.0 as usize];
        let (slots, _) = reload(&slots, &[2], 10);
        assert_eq!(state(&slots, first[0]), SlotState::Draining);
        let (mut slots, third) = reload(&slots, &[2, 3], 59);
        assert_eq!((state(&slots, first[0]), third), (SlotState::Draining, vec![first[1], SlotId(2)]));
        assert_eq!(slots.advance(Duration::from_secs(59), AGES), []);
        assert_eq!(slots.advance(Duration::from_secs(500), AGES), [first[0]]);
        assert_eq!(state(&slots, first[0]), SlotState::Free);
        assert_eq!(slots.advance(Duration::from_secs(501), AGES), []);
        let (slots, fourth) = reload(&slots, &[2, 3, 4], 599);
        assert_eq!(fourth[2], SlotId(3), "its flows may still be there");
        let (slots, _) = reload(&slots, &[2, 3, 4], 600);
        let (slots, fifth) = reload(&slots, &[2, 3, 4, 5], 601);
        assert_eq!((fifth[3], state(&slots, first[0])), (first[0], SlotState::Serving));
    }

    #[test]
    fn a_membership_that_returns_has_its_number_back() {
        let (slots, first) = reload(&Slots::default(), &[1, 2], 0);
        let (slots, _) = reload(&slots, &[2], 10);
        let (slots, again) = reload(&slots, &[2, 1], 150);
        assert_eq!(again, [first[1], first[0]]);
        assert_eq!(slots.states(|_| SlotState::Serving)[first[0].0 as usize], SlotState::Serving);
    }

    #[test]
    fn a_membership_that_was_down_does_not_drain() {
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
        /// Whenever a number serves two memberships, at least the drain time and the longest idle time-out lie
        /// between the reload that took it from the one and the reload that gave it to the other.
        #[test]
        fn a_number_changes_hands_only_after_its_flows_are_gone(
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
                    prop_assert!(seen.insert(*id), "one number, two memberships");
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
