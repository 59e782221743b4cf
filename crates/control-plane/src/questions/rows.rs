//! Tracked flows and decisions of packet threads, as rows of the admin API.
//!
//! In: numbers, and the snapshot and index that name them. Out: rows.

use admin::view::{self, FlowRow, WhereRow};
use forwarder::{Decision, FlowEntry, FlowState, Snapshot, WhereAnswer};

use crate::compile::Index;
use crate::rows::{explained, where_backend};

pub(super) fn flow_row(thread: u16, found: &FlowEntry, snapshot: &Snapshot, index: &Index) -> FlowRow {
    let service = snapshot.services().iter().find(|service| service.id == found.service);
    let slot = snapshot.slots().get(found.slot.0 as usize);
    let membership = index.of_slot(found.slot);
    FlowRow {
        thread: thread.into(),
        tag: format!("{:012x}", found.entry.tag),
        service: service.map(|service| service.name.to_string()),
        backend: slot.map(|slot| slot.backend.to_string()),
        pool: membership.map(|membership| membership.key.pool.to_string()),
        state: match found.entry.state {
            FlowState::New => view::FlowState::New,
            FlowState::Established => view::FlowState::Established,
            FlowState::Closing => view::FlowState::Closing,
            FlowState::Udp => view::FlowState::Udp,
        },
        on_probation: found.entry.on_probation,
        idle_seconds: found.entry.idle.as_secs_f64(),
    }
}

pub(super) fn where_row(answer: &WhereAnswer, snapshot: &Snapshot, index: &Index) -> WhereRow {
    let chosen = match answer.decision {
        Decision::Chosen { selection, .. } | Decision::Remote { selection, .. } => {
            snapshot.slots().get(selection.slot.0 as usize)
        }
        _ => None,
    };
    WhereRow {
        thread: answer.thread.0.into(),
        generation: answer.generation.0,
        tracked: answer.tracked.map(|entry| flow_row(answer.thread.0, &entry, snapshot, index)),
        chosen: chosen.map(where_backend),
        explained: explained(&answer.explanation, snapshot),
    }
}
