//! Responses of the admin API about tracked flows and packet decisions. Slot and service IDs are
//! converted to names.

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

/// A client that requested the packet decisions of all threads, with its incomplete response.
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
    /// Requests from each packet thread an explanation of how it would handle a packet from
    /// `source` to `destination`.
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

/// Returns how each thread would handle a request with `key`. The decision is the same for all
/// threads, because it does not depend on their connection tables.
///
/// # Errors
/// Returns a [`Refusal`] if the source and the destination in `view` have different IP versions.
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
    Refused::Conflict("source and destination must have the same IP version".to_owned()).into()
}

/// A capture stream, and the client that receives it when all taps are active.
#[derive(Debug)]
pub struct CaptureBegun {
    /// The stream of pcapng blocks.
    pub stream: CaptureStream,
    /// The channel on which the client receives the stream.
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
