//! Questions to the packet threads: list flows, forget flows, where would this go.
//!
//! A table is walked in bounded steps, each a question in the thread's request ring, answered between two batches. The control
//! loop takes a few steps at a time, so that neither waits for the other.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use admin::CaptureStream;
use admin::command::Answer;
use admin::view::{FlowPage, FlowRow, Purged, Refusal, WhereRow, WhereView};
use control_plane::compile::Index;
use control_plane::{explained, where_backend};
use datapath::DataPlane;
use forwarder::{
    Cursor, Decision, Flow, FlowEntry, FlowFilter, FlowState, Reply, Request, ServiceId, SlotId, Snapshot,
    Tap, ThreadId, WhereAnswer,
};

/// One question to all threads, one after the other.
#[derive(Debug)]
struct Walk {
    goal: Goal,
    thread: u16,
    /// Which of the filters is being walked.
    filter: usize,
    from: Cursor,
    /// A question is out.
    asked: bool,
}

/// Taps that wait to be put in place, one a thread.
pub(super) type Taps = VecDeque<Box<Tap>>;

#[derive(Debug)]
enum Goal {
    List {
        filters: Filters,
        limit: usize,
        found: Vec<(u16, FlowEntry)>,
        answer: Answer<Result<FlowPage, Refusal>>,
    },
    Purge {
        filters: Filters,
        count: u64,
        answer: Answer<Result<Purged, Refusal>>,
    },
    Where {
        flow: Flow,
        view: WhereView,
        answer: Answer<Result<WhereView, Refusal>>,
    },
    /// Puts a tap into each thread, or none; those that were there are freed.
    Tap {
        taps: Taps,
        answer: Option<(Answer<Result<CaptureStream, Refusal>>, CaptureStream)>,
    },
}

/// Which flows are meant.
#[derive(Debug)]
pub(super) enum Filters {
    All,
    Services(HashSet<ServiceId>),
    Slots(HashSet<SlotId>),
}

impl Filters {
    /// What is asked of a thread, one walk each.
    fn questions(&self) -> Vec<FlowFilter> {
        match self {
            Self::All => vec![FlowFilter::All],
            Self::Services(ids) => ids.iter().map(|id| FlowFilter::Service(*id)).collect(),
            Self::Slots(ids) => ids.iter().map(|id| FlowFilter::Slot(*id)).collect(),
        }
    }
}

/// The questions that wait, in order.
#[derive(Debug, Default)]
pub(super) struct Walks {
    waiting: VecDeque<Walk>,
    buffer: Vec<FlowEntry>,
}

impl Walks {
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn list(&mut self, filters: Filters, limit: usize, answer: Answer<Result<FlowPage, Refusal>>) {
        self.enter(Goal::List { filters, limit, found: Vec::new(), answer });
    }

    pub(super) fn purge(&mut self, filters: Filters, answer: Answer<Result<Purged, Refusal>>) {
        self.enter(Goal::Purge { filters, count: 0, answer });
    }

    pub(super) fn locate(
        &mut self,
        (source, destination, protocol): (SocketAddr, SocketAddr, u8),
        flow: Flow,
        answer: Answer<Result<WhereView, Refusal>>,
    ) {
        let view = WhereView { source, destination, protocol, threads: Vec::new() };
        self.enter(Goal::Where { flow, view, answer });
    }

    /// Taps, one a thread or none at all; whoever waits for the stream has it when they are all in place.
    pub(super) fn tap(
        &mut self,
        taps: Taps,
        answer: Option<(Answer<Result<CaptureStream, Refusal>>, CaptureStream)>,
    ) {
        self.enter(Goal::Tap { taps, answer });
    }

    fn enter(&mut self, goal: Goal) {
        self.waiting.push_back(Walk { goal, thread: 0, filter: 0, from: Cursor::default(), asked: false });
    }

    /// Takes steps for a moment.
    pub(super) fn step(&mut self, plane: &mut DataPlane, snapshot: &Snapshot, index: &Index) {
        let until = Instant::now() + STEP;
        while let Some(walk) = self.waiting.front_mut() {
            if walk.goal.is_pointless() || usize::from(walk.thread) >= plane.counters().len() {
                if let Some(walk) = self.waiting.pop_front() {
                    walk.goal.end(snapshot, index);
                }
                continue;
            }
            if !walk.asked {
                walk.ask(plane, std::mem::take(&mut self.buffer));
            }
            let reply = plane.requests(ThreadId(walk.thread)).and_then(|port| port.answer());
            match reply {
                Some(reply) => walk.take(reply, snapshot, index, &mut self.buffer),
                None if Instant::now() > until => return,
                None => std::thread::yield_now(),
            }
        }
    }
}

impl Walk {
    fn ask(&mut self, plane: &mut DataPlane, mut buffer: Vec<FlowEntry>) {
        let request = match &mut self.goal {
            Goal::List { filters, .. } => {
                buffer.reserve(FLOWS_A_STEP);
                let filter = filters.questions().get(self.filter).copied().unwrap_or(FlowFilter::All);
                Request::List { filter, from: self.from, buffer }
            }
            Goal::Purge { filters, .. } => {
                let filter = filters.questions().get(self.filter).copied().unwrap_or(FlowFilter::All);
                Request::Purge { filter, from: self.from }
            }
            Goal::Where { flow, .. } => Request::Where(*flow),
            Goal::Tap { taps, .. } => Request::Capture(taps.pop_front()),
        };
        let thread = ThreadId(self.thread);
        if let Some(port) = plane.requests(thread) {
            let asked = port.ask(request);
            self.asked = asked.is_ok();
            if let (Goal::Tap { taps, .. }, Err(Request::Capture(Some(tap)))) = (&mut self.goal, asked) {
                taps.push_front(tap);
            }
        }
        plane.wake(thread);
    }

    fn take(&mut self, reply: Reply, snapshot: &Snapshot, index: &Index, spare: &mut Vec<FlowEntry>) {
        self.asked = false;
        let next = match (&mut self.goal, reply) {
            (Goal::List { found, .. }, Reply::Flows { buffer, next }) => {
                found.extend(buffer.iter().map(|entry| (self.thread, *entry)));
                *spare = buffer;
                next
            }
            (Goal::Purge { count, .. }, Reply::Purged { count: more, next }) => {
                *count += more as u64;
                next
            }
            (Goal::Where { view, .. }, Reply::Where(answer)) => {
                view.threads.push(where_row(&answer, snapshot, index));
                None
            }
            (Goal::Tap { .. }, Reply::Capture(_)) => None,
            // Answers come in the order of the questions: no other pair comes up.
            _ => None,
        };
        match next {
            Some(cursor) => self.from = cursor,
            None => self.turn(),
        }
    }

    /// The next filter, or the next thread.
    fn turn(&mut self) {
        self.from = Cursor::default();
        let filters = match &self.goal {
            Goal::List { filters, .. } | Goal::Purge { filters, .. } => filters.questions().len(),
            Goal::Where { .. } | Goal::Tap { .. } => 1,
        };
        self.filter += 1;
        if self.filter >= filters {
            (self.filter, self.thread) = (0, self.thread + 1);
        }
    }
}

impl Goal {
    /// Nothing more is wanted: enough was found, or the asker has gone.
    fn is_pointless(&self) -> bool {
        match self {
            Self::List { limit, found, answer, filters } => {
                found.len() > *limit || answer.is_closed() || filters.questions().is_empty()
            }
            Self::Purge { answer, filters, .. } => answer.is_closed() || filters.questions().is_empty(),
            Self::Where { answer, .. } => answer.is_closed(),
            // Each thread's turn comes: an asker who has gone closes the taps, and they are fetched after that.
            Self::Tap { .. } => false,
        }
    }

    fn end(self, snapshot: &Snapshot, index: &Index) {
        // An asker who has gone needs no answer.
        match self {
            Self::List { limit, mut found, answer, .. } => {
                let more = found.len() > limit;
                found.truncate(limit);
                let flows =
                    found.iter().map(|(thread, entry)| flow_row(*thread, entry, snapshot, index)).collect();
                let _ = answer.send(Ok(FlowPage { generation: snapshot.generation().0, flows, more }));
            }
            Self::Purge { count, answer, .. } => _ = answer.send(Ok(Purged { flows: count })),
            Self::Where { view, answer, .. } => _ = answer.send(Ok(view)),
            Self::Tap { answer, .. } => {
                if let Some((answer, stream)) = answer {
                    let _ = answer.send(Ok(stream));
                }
            }
        }
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
            FlowState::New => "new",
            FlowState::Established => "established",
            FlowState::Closing => "closing",
            FlowState::Udp => "udp",
        }
        .to_owned(),
        on_probation: found.entry.on_probation,
        idle_seconds: found.entry.idle.as_secs_f64(),
    }
}

fn where_row(said: &WhereAnswer, snapshot: &Snapshot, index: &Index) -> WhereRow {
    let chosen = match said.decision {
        Decision::Chosen { selection, .. } | Decision::Remote { selection, .. } => {
            snapshot.slots().get(selection.slot.0 as usize)
        }
        _ => None,
    };
    WhereRow {
        thread: said.thread.0.into(),
        generation: said.generation.0,
        tracked: said.tracked.map(|entry| flow_row(said.thread.0, &entry, snapshot, index)),
        chosen: chosen.map(where_backend),
        explained: explained(&said.explanation, snapshot),
    }
}

/// How long the control loop steps before it looks at other things.
const STEP: Duration = Duration::from_millis(2);
/// Entries of a thread's answer: 256 buckets of four.
const FLOWS_A_STEP: usize = 1_024;
