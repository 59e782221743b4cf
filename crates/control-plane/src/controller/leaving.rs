//! Keeps checking backends that a reload removed, until their drains end.
//!
//! A removed pool member keeps its flows for the drain time. If a check fails in the meantime, the
//! state of its slot becomes `Down`, and its flows move to other backends. [`Plan`] therefore
//! contains the targets of these pool members, although the configuration does not.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use compile::{Compiler, Index, SlotKey, Views};
use config::{Config, Machine};
use forwarder::{SlotId, SlotState};

use super::Controller;
use super::plan::Plan;

impl Plan {
    /// Replaces the removed pool members to check by those in `draining` that had checks in the
    /// plan `before`. Targets with a VIP address that no longer exists are left out, because the
    /// backend may have given up the address too.
    pub(super) fn follow_leaving<'a>(
        &mut self,
        before: &Self,
        draining: impl Iterator<Item = (&'a SlotKey, SlotId)>,
        config: &Config,
        machine: &Machine,
    ) {
        self.forget_leaving(|_| false);
        let draining: Vec<_> = draining.filter(|(key, _)| !before.targets_of(key).is_empty()).collect();
        if draining.is_empty() {
            return;
        }
        let views = Views::new(config, machine);
        for (key, slot) in draining {
            if !self.targets_of(key).is_empty() {
                continue; // The configuration has the pool member again.
            }
            let vips: Vec<IpAddr> = key.vip.iter().flat_map(|at| views.addresses(at)).collect();
            let exists = |vip: IpAddr| vips.contains(&vip);
            let targets = before.targets_of(key).iter();
            let targets = targets.filter(|one| one.through.as_ref().is_none_or(|via| exists(via.vip)));
            self.enter(key.clone(), targets.cloned().collect());
            self.leaving.insert(key.clone(), slot);
        }
    }

    /// Removes the removed pool members for which `drains` returns `false`. Returns them.
    pub(super) fn forget_leaving(&mut self, drains: impl Fn(&SlotKey) -> bool) -> HashSet<SlotKey> {
        let over: HashSet<SlotKey> = self.leaving.keys().filter(|key| !drains(key)).cloned().collect();
        if !over.is_empty() {
            self.leaving.retain(|key, _| !over.contains(key));
            self.by_membership.retain(|key, _| !over.contains(key));
            self.by_target.retain(|_, keys| {
                keys.retain(|key| !over.contains(key));
                !keys.is_empty()
            });
        }
        over
    }

    /// Returns the slot of a pool member that is configured or drains after its removal.
    pub(super) fn slot_of(&self, key: &SlotKey, index: &Index) -> Option<SlotId> {
        index.membership(key).map(|found| found.slot).or_else(|| self.leaving.get(key).copied())
    }
}

impl Controller {
    /// Returns the pool members that a reload removed and that are checked until their drains end,
    /// with their slots.
    pub fn leaving(&self) -> impl Iterator<Item = (&SlotKey, SlotId)> {
        self.plan.leaving.iter().map(|(key, slot)| (key, *slot))
    }

    /// Returns the names of the removed backends that may still have flows. A backend that is down
    /// has none, because its flows move to other backends.
    pub fn removed_with_flows(&self) -> BTreeSet<&str> {
        let draining = self.compiler.iter().flat_map(Compiler::draining);
        let alive = draining.filter(|(key, _)| self.runtime_state.state(key) != SlotState::Down);
        alive.map(|(key, _)| &*key.backend).collect()
    }

    /// Returns the slot of a pool member, and its state.
    pub(super) fn slot_state(&self, key: &SlotKey) -> Option<(SlotId, SlotState)> {
        let (slot, state) = (self.plan.slot_of(key, &self.index)?, self.runtime_state.state(key));
        let is_gone = self.plan.leaving.contains_key(key) && state != SlotState::Down;
        Some((slot, if is_gone { SlotState::Draining } else { state }))
    }

    /// Ends the checks of the removed pool members whose drains have ended.
    pub(super) fn end_leaving(&mut self) {
        let Some(compiler) = self.compiler.as_ref().filter(|_| !self.plan.leaving.is_empty()) else { return };
        let draining: HashSet<&SlotKey> = compiler.draining().map(|(key, _)| key).collect();
        let over = Arc::make_mut(&mut self.plan).forget_leaving(|key| draining.contains(key));
        self.runtime_state.health.retain(|key, _| !over.contains(key));
        self.results.retain(|target, _| !self.plan.memberships_of(target).is_empty());
        self.advice.retain(|target, _| !self.plan.memberships_of(target).is_empty());
    }
}
