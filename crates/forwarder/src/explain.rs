//! What becomes of a packet, and which step decides it: one account for the tracer and for `where`.
//!
//! Not here: words (`control-plane`).

use crate::{Decision, DropReason, Flow, KeyPlace, Service, ServiceId, SlotId, SlotState, Snapshot};

/// The step that finds a packet's backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The connection table knows the flow.
    FlowTable,
    /// The Maglev table chose.
    Maglev {
        /// The entry that named the backend.
        entry: u32,
        /// How many entries before named a backend that does not serve.
        rehashed: u8,
        /// The connection table knows the flow, but its backend is gone, down, or no longer the service's.
        reselected: bool,
    },
    /// A ring of keys chose.
    Ring {
        /// The point that named the backend.
        point: u32,
        /// The key's own backend does not serve.
        rehashed: bool,
    },
    /// No backend here serves: another cluster was chosen.
    Remote,
    /// The first piece of the datagram went there.
    FragmentTable,
    /// Another machine of the cluster gathers the pieces of this datagram, and they are sent to it.
    Redirect,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It goes to the backend.
    Forward,
    /// Its sender is answered.
    Reply,
    /// It is dropped.
    Drop(DropReason),
}

/// What becomes of a packet, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The service that it came for, when there is one.
    pub service: Option<ServiceId>,
    /// Its hash under the service's policy, once it was asked for.
    pub hash: Option<u64>,
    /// Of a request that another pool of its service has by its key: the place among [`Keyed::pools`](crate::Keyed::pools).
    pub route: Option<u32>,
    /// What found the backend, if it came to that.
    pub step: Option<Step>,
    /// The backend that was found, or the machine that a piece is redirected to, though the packet may still be dropped on the
    /// way out.
    pub slot: Option<SlotId>,
    /// What becomes of it.
    pub outcome: Outcome,
}

impl Snapshot {
    /// What would become of a packet of `flow`, which the connection table has on `tracked`; not of one that begins a new
    /// connection with an old 5-tuple, and not of a piece. Limits on new flows, time to live and size are not foretold.
    #[must_use]
    pub fn explain(&self, flow: &Flow, tracked: Option<SlotId>) -> Explanation {
        let decision = self.decide(flow);
        let (index, hash, selection, outcome) = match decision {
            Decision::NoVip => (None, None, None, Outcome::Drop(DropReason::NoVip)),
            Decision::Icmp { echo: true } => (None, None, None, Outcome::Reply),
            Decision::Icmp { echo: false } => (None, None, None, Outcome::Drop(DropReason::Icmp)),
            Decision::Refused { service, reason } => (Some(service), None, None, Outcome::Drop(reason)),
            Decision::NoBackend { service, hash } => {
                (Some(service), Some(hash), None, Outcome::Drop(DropReason::NoBackend))
            }
            Decision::Chosen { service, hash, selection } | Decision::Remote { service, hash, selection } => {
                (Some(service), Some(hash), Some(selection), Outcome::Forward)
            }
        };
        let service = index.and_then(|index| self.services.get(index));
        let kept = service.zip(tracked).filter(|_| hash.is_some());
        let kept = kept.filter(|(service, slot)| self.keeps(service, *slot, false)).map(|(_, slot)| slot);
        let chosen = selection.map(|chosen| match decision {
            Decision::Remote { .. } => Step::Remote,
            _ => {
                Step::Maglev { entry: chosen.entry, rehashed: chosen.rehashed, reselected: tracked.is_some() }
            }
        });
        Explanation {
            service: service.map(|service| service.id),
            hash,
            route: None,
            step: kept.map(|_| Step::FlowTable).or(chosen),
            slot: kept.or(selection.map(|selection| selection.slot)),
            outcome: if kept.is_some() { Outcome::Forward } else { outcome },
        }
    }

    /// What would become of a request for `key` from `flow`'s source; of a service that has no keys, as [`Self::explain`] of the flow.
    #[must_use]
    pub fn explain_key(&self, flow: &Flow, key: &[u8]) -> Explanation {
        let (decision, explained) = (self.decide(flow), self.explain(flow, None));
        let service = decision.service().and_then(|index| self.services.get(index));
        let keyed = service.and_then(|service| Some((service, service.keyed.as_deref()?)));
        let Some((service, keyed)) = keyed.filter(|_| !matches!(decision, Decision::Refused { .. })) else {
            return explained;
        };
        let KeyPlace { hash, route } = keyed.rules.place(key);
        let found = Explanation { hash: Some(hash), route, step: None, slot: None, ..explained };
        if let Some(reason) = keyed.rules.refusal(flow) {
            return Explanation { outcome: Outcome::Drop(reason), ..found };
        }
        let by = self.hasher.hash(service.policy, flow);
        match self.select_read(service, keyed, KeyPlace { hash, route }, by) {
            None => Explanation { outcome: Outcome::Drop(DropReason::NoBackend), ..found },
            Some(chosen) => {
                let step = Some(keyed.step(&chosen));
                Explanation { step, slot: Some(chosen.slot), outcome: Outcome::Forward, ..found }
            }
        }
    }

    /// Whether a flow of `service` that the connection table has on `slot` goes on there; `renewed`: its packet begins another
    /// connection.
    #[inline]
    pub(crate) fn keeps(&self, service: &Service, slot: SlotId, renewed: bool) -> bool {
        // Most services bar nothing: one length to look at.
        let excluded_slots =
            !service.excluded_slots.is_empty() && service.excluded_slots.binary_search(&slot).is_ok();
        let keeps = match self.state(slot) {
            // A redirected flow remains redirected while it lives; a new connection asks anew whether it can be served here.
            SlotState::Serving => !renewed || !self.is_redirect(slot),
            // Its flows go on; a new connection with an old 5-tuple is none of them.
            SlotState::Draining => !renewed,
            SlotState::Down | SlotState::Free => false,
        };
        keeps && !excluded_slots
    }
}
