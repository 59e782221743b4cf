//! Questions from the control plane to one packet thread, answered between batches in bounded steps.
//!
//! Two rings of one producer and one consumer each. The requester brings the memory for the answer, so that the thread
//! allocates nothing; a long answer comes in pieces, each asked for with the cursor of the last.

use conntrack::{Entry, Filter, FlowCursor, Step, Tick};
use kv_switch::HotKeys;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::capture::Tap;
use crate::flows::Flows;
use crate::{Decision, Explanation, Flow, Generation, ServiceId, SlotId, Snapshot, ThreadId, ValueCache};

/// Which flows are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowFilter {
    /// All.
    All,
    /// Those of one service.
    Service(ServiceId),
    /// Those of one backend's slot.
    Slot(SlotId),
}

/// One tracked flow. The table stores hashes, so the addresses are not known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEntry {
    /// Where it goes.
    pub slot: SlotId,
    /// What it came for.
    pub service: ServiceId,
    /// What the connection table knows of it.
    pub entry: Entry,
}

/// Whose a tracked flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Whose {
    /// Where it goes.
    pub slot: SlotId,
    /// What it came for.
    pub service: ServiceId,
}

/// A question.
#[derive(Debug)]
pub enum Request {
    /// List flows from `from` on into `buffer`, up to its capacity.
    List {
        /// Which.
        filter: FlowFilter,
        /// Where the last answer says, or the default.
        from: FlowCursor,
        /// Memory for the answer; cleared first.
        buffer: Vec<FlowEntry>,
    },
    /// Say of each flow from `from` on whose it is, up to the capacity of `buffer`.
    Count {
        /// As for `List`.
        from: FlowCursor,
        /// Memory for the answer; cleared first.
        buffer: Vec<Whose>,
    },
    /// Forget flows from `from` on.
    Purge {
        /// Which.
        filter: FlowFilter,
        /// As for `List`.
        from: FlowCursor,
    },
    /// Where would a packet of this flow go now?
    Where(Flow),
    /// Put this tap in the place of the one that is there; `None`: capture nothing.
    Capture(Option<Box<Tap>>),
    /// Count keys of requests by this; `None`: count none.
    HotKeys(Option<Box<HotKeys>>),
    /// Answer reads from this; `None`: from no copies.
    Cache(Option<Box<ValueCache>>),
}

/// An answer.
#[derive(Debug)]
pub enum Reply {
    /// Flows found, and where to go on; `None`: that was all.
    Flows {
        /// The buffer of the request.
        buffer: Vec<FlowEntry>,
        /// Where to go on.
        next: Option<FlowCursor>,
    },
    /// One entry a flow, and where to go on; `None`: that was all.
    Counted {
        /// The buffer of the request.
        buffer: Vec<Whose>,
        /// Where to go on.
        next: Option<FlowCursor>,
    },
    /// How many were forgotten, and where to go on.
    Purged {
        /// How many.
        count: usize,
        /// Where to go on.
        next: Option<FlowCursor>,
    },
    /// The thread's own view.
    Where(WhereAnswer),
    /// The tap that was there, for the requester to free.
    Capture(Option<Box<Tap>>),
    /// The counter that was there, with what it has counted.
    HotKeys(Option<Box<HotKeys>>),
    /// The cache that was there, for the requester to free.
    Cache(Option<Box<ValueCache>>),
}

/// What a thread says of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WhereAnswer {
    /// Who says it.
    pub thread: ThreadId,
    /// Under which generation.
    pub generation: Generation,
    /// What the connection table says.
    pub tracked: Option<FlowEntry>,
    /// What the snapshot says of a flow that no table knows.
    pub decision: Decision,
    /// What becomes of a packet now.
    pub explanation: Explanation,
}

/// The control plane's end.
#[derive(Debug)]
pub struct RequestPort {
    requests: Producer<Request>,
    replies: Consumer<Reply>,
}

/// The packet thread's end.
#[derive(Debug)]
pub struct RequestServer {
    requests: Consumer<Request>,
    replies: Producer<Reply>,
}

/// Two rings of `capacity` entries between one requester and one packet thread.
#[must_use]
pub fn request_ring(capacity: usize) -> (RequestPort, RequestServer) {
    let (request_in, request_out) = RingBuffer::new(capacity.max(1));
    let (reply_in, reply_out) = RingBuffer::new(capacity.max(1));
    (
        RequestPort { requests: request_in, replies: reply_out },
        RequestServer { requests: request_out, replies: reply_in },
    )
}

impl RequestPort {
    /// Asks. Answers come in the order of the questions.
    ///
    /// # Errors
    /// Gives the question back when the ring is full.
    pub fn ask(&mut self, request: Request) -> Result<(), Request> {
        self.requests.push(request).map_err(|rtrb::PushError::Full(request)| request)
    }

    /// The next answer, if there is one.
    pub fn answer(&mut self) -> Option<Reply> {
        self.replies.pop().ok()
    }
}

/// What a question is answered from.
pub(crate) struct Context<'a> {
    pub(crate) thread: ThreadId,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) flows: &'a mut Flows,
    pub(crate) tap: &'a mut Option<Box<Tap>>,
    pub(crate) hot_keys: &'a mut Option<Box<HotKeys>>,
    pub(crate) cache: &'a mut Option<Box<ValueCache>>,
    pub(crate) now: Tick,
}

impl RequestServer {
    /// Whether a question waits that can be answered now.
    pub(crate) fn is_asked(&self) -> bool {
        !self.requests.is_empty() && !self.replies.is_full()
    }

    /// Answers one question at most, looking at no more than [`BUCKETS_A_STEP`] buckets; [`BUCKETS_A_COUNT`] for a count.
    pub(crate) fn serve(&mut self, context: &mut Context<'_>) {
        if self.replies.is_full() {
            return;
        }
        let Ok(request) = self.requests.pop() else { return };
        let reply = match request {
            Request::List { filter, from, buffer } => list(context, filter, from, buffer),
            Request::Count { from, buffer } => count(context, from, buffer),
            Request::Purge { filter, from } => {
                let step = Step { from, filter: inner(filter), buckets: BUCKETS_A_STEP };
                let (count, next) = context.flows.purge(&step);
                Reply::Purged { count, next }
            }
            Request::Where(flow) => Reply::Where(answer_where(context, &flow)),
            Request::Capture(tap) => Reply::Capture(std::mem::replace(context.tap, tap)),
            Request::HotKeys(next) => Reply::HotKeys(std::mem::replace(context.hot_keys, next)),
            Request::Cache(next) => Reply::Cache(std::mem::replace(context.cache, next)),
        };
        // There is room: it was looked for above, and nobody else produces.
        let _ = self.replies.push(reply);
    }
}

fn list(context: &Context<'_>, filter: FlowFilter, from: FlowCursor, mut buffer: Vec<FlowEntry>) -> Reply {
    buffer.clear();
    // Whole buckets only, so that a cursor between buckets says where to go on.
    let buckets = (buffer.capacity() / ENTRIES_A_BUCKET).min(BUCKETS_A_STEP);
    if buckets == 0 {
        return Reply::Flows { buffer, next: Some(from) };
    }
    let step = Step { from, filter: inner(filter), buckets };
    let next = context.flows.list(&step, context.now, |entry| buffer.push(flow_entry(entry)));
    Reply::Flows { buffer, next }
}

fn count(context: &Context<'_>, from: FlowCursor, mut buffer: Vec<Whose>) -> Reply {
    buffer.clear();
    let buckets = (buffer.capacity() / ENTRIES_A_BUCKET).min(BUCKETS_A_COUNT);
    if buckets == 0 {
        return Reply::Counted { buffer, next: Some(from) };
    }
    let step = Step { from, filter: Filter::All, buckets };
    let next = context.flows.list(&step, context.now, |entry| {
        buffer.push(Whose { slot: SlotId(entry.slot), service: ServiceId(entry.vip) });
    });
    Reply::Counted { buffer, next }
}

fn answer_where(context: &Context<'_>, flow: &Flow) -> WhereAnswer {
    let decision = context.snapshot.decide(flow);
    let service = decision.service().and_then(|index| context.snapshot.services().get(index));
    let key = service.map(|service| service.flow_key(&context.snapshot.hasher, flow));
    let tracked = key.and_then(|key| context.flows.peek(key, context.now)).map(flow_entry);
    let explanation = context.snapshot.explain(flow, tracked.map(|entry| entry.slot));
    let generation = context.snapshot.generation();
    WhereAnswer { thread: context.thread, generation, tracked, decision, explanation }
}

fn flow_entry(entry: Entry) -> FlowEntry {
    FlowEntry { slot: SlotId(entry.slot), service: ServiceId(entry.vip), entry }
}

fn inner(filter: FlowFilter) -> Filter {
    match filter {
        FlowFilter::All => Filter::All,
        FlowFilter::Service(id) => Filter::Vip(id.0),
        FlowFilter::Slot(id) => Filter::Slot(id.0),
    }
}

const ENTRIES_A_BUCKET: usize = 4;
/// 256 cache lines: a few microseconds between two batches.
const BUCKETS_A_STEP: usize = 256;
/// A count writes eight bytes a flow, and is to be over a table of 16 million flows within a second.
const BUCKETS_A_COUNT: usize = 1_024;
