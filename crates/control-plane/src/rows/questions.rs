//! Tracked flows and decisions of packet threads, as the admin API answers them.
//!
//! In: what threads answered in numbers, and the snapshot and index that name them. Out: answers.

use std::net::SocketAddr;

use admin::Answer;
use admin::CaptureStream;
use admin::view::{self, CaptureEnd, FlowPage, FlowRow, Purged, Refusal, WhereRow, WhereView};
use forwarder::{Decision, Flow, FlowEntry, FlowState, Snapshot, WhereAnswer};

use super::{explained, explained_by_key, where_backend};
use crate::capture::Captured;
use crate::questions::{Client, Flows, Questions};
use crate::refused::Refused;
use compile::Index;

impl Client<Flows> for Answer<Result<FlowPage, Refusal>> {
    fn has_gone(&self) -> bool {
        self.is_closed()
    }

    fn answer(self: Box<Self>, found: Flows, snapshot: &Snapshot, index: &Index) {
        let flows =
            found.flows.iter().map(|(thread, entry)| flow_row(*thread, entry, snapshot, index)).collect();
        let page = FlowPage { generation: snapshot.generation().0, flows, more: found.more };
        let _ = self.send(Ok(page));
    }
}

impl Client<u64> for Answer<Result<Purged, Refusal>> {
    fn has_gone(&self) -> bool {
        self.is_closed()
    }

    fn answer(self: Box<Self>, flows: u64, _: &Snapshot, _: &Index) {
        let _ = self.send(Ok(Purged { flows }));
    }
}

/// Who asked where a flow goes, with the question.
#[derive(Debug)]
struct Located {
    view: WhereView,
    answer: Answer<Result<WhereView, Refusal>>,
}

impl Client<Vec<WhereAnswer>> for Located {
    fn has_gone(&self) -> bool {
        self.answer.is_closed()
    }

    fn answer(self: Box<Self>, found: Vec<WhereAnswer>, snapshot: &Snapshot, index: &Index) {
        let threads = found.iter().map(|answer| where_row(answer, snapshot, index)).collect();
        let _ = self.answer.send(Ok(WhereView { threads, ..self.view }));
    }
}

impl Questions {
    /// What each thread would do with a packet from `source` to `destination`.
    pub fn locate(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        protocol: u8,
        answer: Answer<Result<WhereView, Refusal>>,
    ) {
        let Some(flow) = Flow::new(source, destination, protocol) else {
            let _ = answer.send(Err(other_families()));
            return;
        };
        let view = WhereView { source, destination, protocol, threads: Vec::new() };
        self.decide(flow, Box::new(Located { view, answer }));
    }
}

/// What each thread would do with a request for `key`. No connection table is asked, so they all say what the snapshot says.
///
/// # Errors
/// Source and destination of `view` are of different families.
pub fn locate_key(
    view: WhereView,
    key: &str,
    threads: usize,
    snapshot: &Snapshot,
) -> Result<WhereView, Refusal> {
    let flow = Flow::new(view.source, view.destination, view.protocol).ok_or_else(other_families)?;
    let explanation = snapshot.explain_key(&flow, key.as_bytes());
    let slot = explanation.slot.and_then(|slot| snapshot.slots().get(slot.0 as usize));
    let row = |thread| WhereRow {
        thread,
        generation: snapshot.generation().0,
        tracked: None,
        chosen: slot.map(where_backend),
        explained: explained_by_key(&flow, key, snapshot),
    };
    Ok(WhereView { threads: (0..threads).map(row).collect(), ..view })
}

fn other_families() -> Refusal {
    Refused::Conflict("source and destination are of different families".to_owned()).into()
}

/// A capture's stream, and the client who gets it once all taps are in place.
#[derive(Debug)]
pub struct CaptureBegun {
    /// The stream.
    pub stream: CaptureStream,
    /// The client.
    pub answer: Answer<Result<CaptureStream, Refusal>>,
}

impl From<Captured> for CaptureEnd {
    fn from(Captured { matched, captured, lost }: Captured) -> Self {
        Self { matched, captured, lost }
    }
}

impl Client<()> for CaptureBegun {
    fn has_gone(&self) -> bool {
        self.answer.is_closed()
    }

    fn answer(self: Box<Self>, _: (), _: &Snapshot, _: &Index) {
        let _ = self.answer.send(Ok(self.stream));
    }
}

fn flow_row(thread: u16, found: &FlowEntry, snapshot: &Snapshot, index: &Index) -> FlowRow {
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
            FlowState::Midstream => view::FlowState::Midstream,
            FlowState::Opened => view::FlowState::Opened,
            FlowState::Reopened => view::FlowState::Reopened,
        },
        on_probation: found.entry.on_probation,
        idle_seconds: found.entry.idle.as_secs_f64(),
    }
}

fn where_row(answer: &WhereAnswer, snapshot: &Snapshot, index: &Index) -> WhereRow {
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
