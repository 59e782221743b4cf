//! Converts an [`Explanation`] of a forwarding decision to the form that `sluicegate where` and the
//! packet tracer show. In this form, names replace slot and service IDs.

use admin::view::{self, Explained, Hashed, RejectionReply, Verdict, WhereBackend};
use forwarder::{
    Explanation, Flow, Forwarding, HashPolicy, Outcome, Placement, PoolTable, Rejection, Service, Slot,
    Snapshot, Step,
};
use packet::Encapsulation;

/// Converts the slot and service IDs in an explanation to names. `snapshot` may be newer than the
/// snapshot of the explanation, because a slot or service ID has the same meaning in all snapshots.
#[must_use]
pub fn explained(explanation: &Explanation, snapshot: &Snapshot) -> Explained {
    let wanted = explanation.service;
    let service = wanted.and_then(|id| snapshot.services().iter().find(|service| service.id == id));
    let asked = match explanation.step {
        Some(Step::Maglev { entry, rehashed, reselected }) => Some((entry, rehashed > 0, reselected)),
        Some(Step::Ring { point, rehashed }) => Some((point, rehashed, false)),
        _ => None,
    };
    let pool = service.map(|service| pool_of(service, explanation.route));
    let slot = explanation.slot.and_then(|slot| snapshot.slots().get(slot.0 as usize));
    Explained {
        verdict: match explanation.outcome {
            Outcome::Forward => Verdict::Forward,
            Outcome::Reply => Verdict::Reply,
            Outcome::Reject(..) => Verdict::Reject,
            Outcome::Drop(reason) => Verdict::Drop(reason.name().to_owned()),
        },
        rejection: match explanation.outcome {
            Outcome::Reject(reason, rejection) => {
                Some(view::Rejection { reply: reply_shown(rejection), reason: reason.name().to_owned() })
            }
            _ => None,
        },
        step: explanation.step.map(step_shown),
        service: service.map(|service| service.name.to_string()),
        pool: pool.map(|pool| pool.name.to_string()),
        hashed: service.map(|service| hashed(service.policy)),
        hash: explanation.hash.map(|hash| format!("{hash:#018x}")),
        table_entry: asked.map(|(entry, ..)| entry.into()),
        table_size: service.and_then(|service| size_of_asked(service, explanation)),
        rehashed: asked.map(|(_, rehashed, _)| rehashed),
        reselected: asked.map(|(.., reselected)| reselected),
        backend: slot.map(where_backend),
        replicas: Vec::new(),
    }
}

/// Returns the explanation of a request for `key` in `flow`, with all backends that store the key.
#[must_use]
pub fn explained_by_key(flow: &Flow, key: &str, snapshot: &Snapshot) -> Explained {
    let slots = snapshot.replicas_of_key(flow, key.as_bytes());
    let replicas =
        slots.filter_map(|slot| snapshot.slots().get(slot.0 as usize)).map(where_backend).collect();
    Explained { replicas, ..explained(&snapshot.explain_key(flow, key.as_bytes()), snapshot) }
}

/// Returns the pool from which the backend was chosen. This is the pool of the key route `route`
/// or, without a route, the pool of the service.
fn pool_of(service: &Service, route: Option<u32>) -> &PoolTable {
    let routed = route.and_then(|route| service.keyed.as_ref()?.pools.get(route as usize));
    routed.unwrap_or(&service.pool)
}

/// Returns the number of entries in the Maglev table or the hash ring from which the backend was
/// chosen.
fn size_of_asked(service: &Service, explanation: &Explanation) -> Option<u64> {
    let place = explanation.route.map_or(0, |route| route as usize + 1);
    match service.keyed.as_deref().and_then(|keyed| keyed.placements.get(place)) {
        Some(Placement::Ring(rings)) => u64::try_from(rings.live.as_ref()?.len()).ok(),
        _ => Some(pool_of(service, explanation.route).table.as_ref()?.size().into()),
    }
}

/// Returns the name, address and encapsulation of the backend in a slot.
#[must_use]
pub fn where_backend(slot: &Slot) -> WhereBackend {
    let encapsulation = match &slot.forwarding {
        Forwarding::L2 => view::Encapsulation::L2,
        Forwarding::Tunnel { v4, .. } => match v4.encapsulation() {
            Encapsulation::L2 => view::Encapsulation::L2,
            Encapsulation::Gre => view::Encapsulation::Gre,
            Encapsulation::Ipip => view::Encapsulation::Ipip,
            Encapsulation::Gue { .. } => view::Encapsulation::Gue,
        },
    };
    WhereBackend { name: slot.backend.to_string(), address: slot.address, encapsulation }
}

fn step_shown(step: Step) -> view::Step {
    match step {
        Step::FlowTable => view::Step::FlowTable,
        Step::Maglev { .. } => view::Step::Maglev,
        Step::Ring { .. } => view::Step::Ring,
        Step::Remote => view::Step::Remote,
        Step::FragmentTable => view::Step::FragmentTable,
        Step::Redirect => view::Step::Redirect,
    }
}

fn reply_shown(rejection: Rejection) -> RejectionReply {
    match rejection {
        Rejection::Reset => RejectionReply::TcpReset,
        Rejection::Abort => RejectionReply::SctpAbort,
        Rejection::Port => RejectionReply::PortUnreachable,
        Rejection::Protocol => RejectionReply::ProtocolUnreachable,
        Rejection::Host => RejectionReply::HostUnreachable,
    }
}

fn hashed(policy: HashPolicy) -> Hashed {
    match policy {
        HashPolicy::FiveTuple => Hashed::FiveTuple,
        HashPolicy::Addresses => Hashed::Addresses,
        HashPolicy::Source => Hashed::Source,
        HashPolicy::Key => Hashed::Key,
    }
}
