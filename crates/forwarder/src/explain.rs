//! Explains what happens to a packet. An explanation contains the outcome for the packet and the
//! step that determined this outcome. Packet tracing and the `where` command share this code, so
//! both report the same result. The crate `control-plane` formats explanations as text.

use crate::{
    Decision, DropReason, Flow, KeyPlace, Rejection, Service, ServiceId, SlotId, SlotState, Snapshot,
};

/// The step that found the backend of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The connection table had an entry for the flow.
    FlowTable,
    /// The Maglev table selected the backend.
    Maglev {
        /// The index of the Maglev table entry that contains the backend.
        entry: u32,
        /// The number of table entries that were skipped before this entry, because their backends
        /// are not serving.
        rehashed: u8,
        /// `true` if the flow previously had a different backend, which was removed, is down, or no
        /// longer belongs to the service.
        reselected: bool,
    },
    /// A consistent-hash ring selected the backend for a request key.
    Ring {
        /// The index of the ring point that belongs to the backend.
        point: u32,
        /// `true` if the selected backend replaces the backend that the key is assigned to, because
        /// that backend is not serving.
        rehashed: bool,
    },
    /// No local backend is serving. The packet is forwarded to another cluster.
    Remote,
    /// The fragment table had an entry. The first fragment of the datagram was sent to this
    /// backend.
    FragmentTable,
    /// The fragment was redirected to another machine of the cluster, which collects all fragments
    /// of this datagram.
    Redirect,
}

/// The outcome for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The packet is forwarded to the backend.
    Forward,
    /// This machine replies to the sender.
    Reply,
    /// The packet is rejected: no backend receives it, and its sender gets a reply within the rate
    /// limits. A rejected packet that gets no reply is dropped for the reason.
    Reject(DropReason, Rejection),
    /// The packet is dropped.
    Drop(DropReason),
}

/// The outcome for a packet and the values that determined the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The service that the packet was sent to, or `None` if no service matches.
    pub service: Option<ServiceId>,
    /// The flow hash under the service's hash policy, or `None` if the decision did not need a
    /// hash.
    pub hash: Option<u64>,
    /// The index in [`Keyed::pools`](crate::Keyed::pools) of the pool that the request key is
    /// routed to. `None` means that the service's own pool is used.
    pub route: Option<u32>,
    /// The step that selected the backend, or `None` if no backend was selected.
    pub step: Option<Step>,
    /// The selected backend, or the machine that receives a redirected fragment. A later step can
    /// still drop the packet.
    pub slot: Option<SlotId>,
    /// The outcome for the packet.
    pub outcome: Outcome,
}

impl Snapshot {
    /// Predicts the outcome for a packet of `flow`. `tracked` is the slot that the connection table
    /// stores for the flow, if any. The prediction is not valid for fragments, or for a new
    /// connection that reuses a 5-tuple. The prediction ignores limits on new flows and on replies,
    /// the TTL, the packet size and the TCP flags.
    #[must_use]
    pub fn explain(&self, flow: &Flow, tracked: Option<SlotId>) -> Explanation {
        let decision = self.decide(flow);
        let (index, hash, selection, outcome) = match decision {
            Decision::NoVip => (None, None, None, self.drop_or_reject(flow, DropReason::NoVip)),
            Decision::Icmp { echo: true } => (None, None, None, Outcome::Reply),
            Decision::Icmp { echo: false } => (None, None, None, Outcome::Drop(DropReason::Icmp)),
            Decision::Refused { service, reason } => (Some(service), None, None, Outcome::Drop(reason)),
            Decision::NoBackend { service, hash } => {
                (Some(service), Some(hash), None, self.drop_or_reject(flow, DropReason::NoBackend))
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

    /// Predicts the outcome for a request with memcached key `key`, sent from the source of `flow`.
    /// If the service does not select backends by key, the result is the same as for
    /// [`Self::explain`].
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
            None => Explanation { outcome: self.drop_or_reject(flow, DropReason::NoBackend), ..found },
            Some(chosen) => {
                let step = Some(keyed.step(&chosen));
                Explanation { step, slot: Some(chosen.slot), outcome: Outcome::Forward, ..found }
            }
        }
    }

    fn drop_or_reject(&self, flow: &Flow, reason: DropReason) -> Outcome {
        let rejection = self.rejection(flow, reason);
        rejection.map_or(Outcome::Drop(reason), |rejection| Outcome::Reject(reason, rejection))
    }

    /// Returns `true` if a flow with a connection table entry for `slot` stays on that slot.
    /// `renewed` is `true` if the packet starts a new connection with the 5-tuple of the tracked
    /// flow.
    #[inline]
    pub(crate) fn keeps(&self, service: &Service, slot: SlotId, renewed: bool) -> bool {
        // Most services exclude no slots, so the length check avoids the search.
        let excluded_slots =
            !service.excluded_slots.is_empty() && service.excluded_slots.binary_search(&slot).is_ok();
        let keeps = match self.state(slot) {
            // A flow that was redirected to another cluster continues to be sent to that cluster. A
            // new connection uses a local backend again if one is serving.
            SlotState::Serving => !renewed || !self.is_redirect(slot),
            // Existing flows stay on a draining slot. A new connection moves to another slot, even
            // if it reuses the 5-tuple of an old connection.
            SlotState::Draining => !renewed,
            SlotState::Down | SlotState::Free => false,
        };
        keeps && !excluded_slots
    }
}
