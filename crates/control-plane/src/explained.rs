//! What becomes of a packet, in names: what `where` and the tracer show.
//!
//! In: a packet thread's [`Explanation`], in numbers, and the snapshot that names them. Out: [`Explained`], as JSON and as a
//! sentence.
//! Names of JSON fields are stable.

use forwarder::{Explanation, Forwarding, HashPolicy, Outcome, Slot, Snapshot, Step};
use packet::Encapsulation;
use serde::{Deserialize, Serialize};

use crate::admin::view::WhereBackend;

/// What becomes of a packet, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// `forward`; `reply` (its sender is answered); or why it is dropped, such as `no_vip`.
    pub verdict: String,
    /// What found the backend: `flow_table`, `maglev`, `fragment_table` or `remote` (no backend here serves: `backend` is another cluster); `redirect`: another machine of the cluster gathers the pieces
    /// of its datagram, and `backend` is that.
    pub step: Option<String>,
    /// The service that it matches.
    pub service: Option<String>,
    /// The pool that serves it.
    pub pool: Option<String>,
    /// `5-tuple`, `addresses` or `source`.
    pub hashed: Option<String>,
    /// Its hash, in hex.
    pub hash: Option<String>,
    /// The Maglev table's entry, when that was asked.
    pub table_entry: Option<u64>,
    /// Entries of that table.
    pub table_size: Option<u64>,
    /// The first entry's backend does not serve.
    pub rehashed: Option<bool>,
    /// The connection table knows the flow, but its backend is gone, down, or no longer the service's.
    pub reselected: Option<bool>,
    /// Where it goes.
    pub backend: Option<WhereBackend>,
}

impl Explained {
    /// Puts names to an explanation that was given under `snapshot`, or one not much older: numbers keep their meaning.
    #[must_use]
    pub fn new(explanation: &Explanation, snapshot: &Snapshot) -> Self {
        let wanted = explanation.service;
        let service = wanted.and_then(|id| snapshot.services().iter().find(|service| service.id == id));
        let maglev = match explanation.step {
            Some(Step::Maglev { entry, rehashed, reselected }) => Some((entry, rehashed > 0, reselected)),
            _ => None,
        };
        let slot = explanation.slot.and_then(|slot| snapshot.slots().get(slot.0 as usize));
        Self {
            verdict: match explanation.outcome {
                Outcome::Forward => "forward",
                Outcome::Reply => "reply",
                Outcome::Drop(reason) => reason.name(),
            }
            .to_owned(),
            step: explanation.step.map(|step| step_name(step).to_owned()),
            service: service.map(|service| service.name.to_string()),
            pool: service.map(|service| service.pool.name.to_string()),
            hashed: service.map(|service| policy_name(service.policy).to_owned()),
            hash: explanation.hash.map(|hash| format!("{hash:#018x}")),
            table_entry: maglev.map(|(entry, ..)| entry.into()),
            table_size: service
                .and_then(|service| service.pool.table.as_ref())
                .map(|table| table.size().into()),
            rehashed: maglev.map(|(_, rehashed, _)| rehashed),
            reselected: maglev.map(|(.., reselected)| reselected),
            backend: slot.map(WhereBackend::of),
        }
    }

    /// Whether a packet reaches somebody: a backend, or its sender with an answer.
    #[must_use]
    pub fn is_served(&self) -> bool {
        matches!(self.verdict.as_str(), "forward" | "reply")
    }

    /// The step and where it leads, in words.
    #[must_use]
    pub fn sentence(&self) -> String {
        let step = match (self.step.as_deref(), self.table_entry, self.table_size) {
            (Some("flow_table"), ..) => "flow table".to_owned(),
            (Some("fragment_table"), ..) => "fragment table".to_owned(),
            (Some("redirect"), ..) => "redirected".to_owned(),
            (Some("remote"), ..) => "no backend here serves".to_owned(),
            (Some(_), Some(entry), Some(size)) => {
                let again = if self.rehashed == Some(true) { ", hashed again" } else { "" };
                let anew = if self.reselected == Some(true) { ", its backend was gone" } else { "" };
                format!("Maglev entry {entry} of {size}{again}{anew}")
            }
            _ => String::new(),
        };
        let backend = self.backend.as_ref().map(|found| {
            let WhereBackend { name, address, encapsulation } = found;
            let what = match self.step.as_deref() {
                Some("redirect") => "machine",
                Some("remote") => "cluster",
                _ => "backend",
            };
            format!("{what} {name} at {address} by {encapsulation}")
        });
        let end = match self.verdict.as_str() {
            "forward" => String::new(),
            "reply" => "answered to its sender".to_owned(),
            reason => format!("dropped as {reason}"),
        };
        let parts = [step, backend.unwrap_or_default(), end];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" -> ")
    }
}

impl WhereBackend {
    /// The backend of a slot.
    #[must_use]
    pub fn of(slot: &Slot) -> Self {
        let encapsulation = match &slot.forwarding {
            Forwarding::L2 => "l2",
            Forwarding::Tunnel { v4, .. } => match v4.encapsulation() {
                Encapsulation::L2 => "l2",
                Encapsulation::Gre => "gre",
                Encapsulation::Ipip => "ipip",
                Encapsulation::Gue { .. } => "gue",
            },
        };
        Self {
            name: slot.backend.to_string(),
            address: slot.address,
            encapsulation: encapsulation.to_owned(),
        }
    }
}

fn step_name(step: Step) -> &'static str {
    match step {
        Step::FlowTable => "flow_table",
        Step::Maglev { .. } => "maglev",
        Step::Remote => "remote",
        Step::FragmentTable => "fragment_table",
        Step::Redirect => "redirect",
    }
}

fn policy_name(policy: HashPolicy) -> &'static str {
    match policy {
        HashPolicy::FiveTuple => "5-tuple",
        HashPolicy::Addresses => "addresses",
        HashPolicy::Source => "source",
    }
}
