//! Requests from the control plane to a packet thread. The packet thread handles these requests
//! between batches, in steps of bounded size. One single-producer ring carries requests, and a
//! second ring carries replies. The requester allocates the memory for the reply, so that the
//! packet thread need not allocate any. A long list takes several requests. Each request continues
//! at the cursor in the previous reply.

use std::time::Duration;

use conntrack::{Entry, Filter, FlowCursor, Step, Tick};
use kv_switch::HotKeys;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::capture::Tap;
use crate::flows::Flows;
use crate::{Decision, Explanation, Flow, Generation, ServiceId, SlotId, Snapshot, ThreadId, ValueCache};

/// A filter that selects flows by service or by slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowFilter {
    /// All flows.
    All,
    /// The flows of one service.
    Service(ServiceId),
    /// The flows of one slot.
    Slot(SlotId),
}

/// A flow in the connection table. The addresses of the flow are not available, because the table
/// stores only hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEntry {
    /// The slot of the backend that the flow is assigned to.
    pub slot: SlotId,
    /// The service that the flow belongs to.
    pub service: ServiceId,
    /// The flow's entry in the connection table.
    pub entry: Entry,
}

/// The slot and the service of a tracked flow, and whether the flow is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Whose {
    /// The slot of the backend that the flow is assigned to.
    pub slot: SlotId,
    /// The service that the flow belongs to.
    pub service: ServiceId,
    /// `true` if a packet of the flow arrived within [`ACTIVE`].
    pub is_active: bool,
}

/// A flow counts as active if this thread received a packet of the flow within this time. Flows
/// that ended without a FIN, or that continue on another machine, stay in the connection table for
/// their whole idle timeout. The time covers the usual keep-alive intervals of 15 s to 60 s.
pub const ACTIVE: Duration = Duration::from_secs(60);

/// A request from the control plane to a packet thread.
#[derive(Debug)]
pub enum Request {
    /// List flows, starting at the cursor `from`. Entries are written to `buffer` up to its
    /// capacity.
    List {
        /// Selects the flows to list.
        filter: FlowFilter,
        /// The cursor from the previous reply, or the default value to start at the beginning.
        from: FlowCursor,
        /// The memory for the reply. The previous content of this memory is cleared.
        buffer: Vec<FlowEntry>,
    },
    /// List only the slot, the service and the activity of each flow, starting at the cursor
    /// `from`. Entries are written to `buffer` up to its capacity.
    Count {
        /// The cursor from the previous reply, or the default value to start at the beginning.
        from: FlowCursor,
        /// The memory for the reply. The previous content of this memory is cleared.
        buffer: Vec<Whose>,
    },
    /// Remove flows from the connection table, starting at the cursor `from`.
    Purge {
        /// Selects the flows to remove.
        filter: FlowFilter,
        /// The cursor from the previous reply, or the default value to start at the beginning.
        from: FlowCursor,
    },
    /// Report the backend to which this thread would send the next packet of this flow.
    Where(Flow),
    /// Replace the capture tap with this tap. `None` stops the capture.
    Capture(Option<Box<Tap>>),
    /// Replace the counter of hot keys with this counter. `None` stops counting.
    HotKeys(Option<Box<HotKeys>>),
    /// Replace the cache of hot values with this cache. If `None`, the cache is disabled.
    Cache(Option<Box<ValueCache>>),
}

/// A reply from a packet thread to the control plane.
#[derive(Debug)]
pub enum Reply {
    /// The reply to [`Request::List`].
    Flows {
        /// The buffer from the request, filled with the flows that match.
        buffer: Vec<FlowEntry>,
        /// The cursor for the next request, or `None` if the list is complete.
        next: Option<FlowCursor>,
    },
    /// The reply to [`Request::Count`].
    Counted {
        /// The buffer from the request, with one entry per flow.
        buffer: Vec<Whose>,
        /// The cursor for the next request, or `None` if the list is complete.
        next: Option<FlowCursor>,
    },
    /// The reply to [`Request::Purge`].
    Purged {
        /// The number of removed flows.
        count: usize,
        /// The cursor for the next request, or `None` if the whole table has been searched.
        next: Option<FlowCursor>,
    },
    /// The reply to [`Request::Where`].
    Where(WhereAnswer),
    /// The tap that was replaced. The requester must free this tap.
    Capture(Option<Box<Tap>>),
    /// The counter of hot keys that was replaced, with its counts.
    HotKeys(Option<Box<HotKeys>>),
    /// The cache that was replaced. The requester must free this cache.
    Cache(Option<Box<ValueCache>>),
}

/// The backend to which one packet thread would send a flow's next packet, and how this backend was
/// found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WhereAnswer {
    /// The packet thread that sent this reply.
    pub thread: ThreadId,
    /// The generation of the snapshot under which the result was computed.
    pub generation: Generation,
    /// The entry of the flow in the connection table, or `None` if the flow is not tracked.
    pub tracked: Option<FlowEntry>,
    /// The decision for an untracked flow under this snapshot.
    pub decision: Decision,
    /// The predicted outcome for the next packet of the flow.
    pub explanation: Explanation,
}

/// The control plane's side of the request and reply rings.
#[derive(Debug)]
pub struct RequestPort {
    requests: Producer<Request>,
    replies: Consumer<Reply>,
}

/// The packet thread's side of the request and reply rings.
#[derive(Debug)]
pub struct RequestServer {
    requests: Consumer<Request>,
    replies: Producer<Reply>,
}

/// Creates a request ring and a reply ring between one requester and one packet thread. Each ring
/// has room for `capacity` entries.
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
    /// Queues a request for the packet thread. Replies arrive in the same order as the requests.
    pub fn ask(&mut self, request: Request) -> Result<(), Request> {
        self.requests.push(request).map_err(|rtrb::PushError::Full(request)| request)
    }

    /// Returns the next reply, or `None` if no reply has arrived.
    pub fn answer(&mut self) -> Option<Reply> {
        self.replies.pop().ok()
    }
}

/// The packet-thread state that requests can read and modify.
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
    /// Returns `true` if a request is waiting and there is room for its reply.
    pub(crate) fn is_asked(&self) -> bool {
        !self.requests.is_empty() && !self.replies.is_full()
    }

    /// Handles at most one request. A count visits at most [`BUCKETS_A_COUNT`] buckets of the
    /// connection table, and any other request visits at most [`BUCKETS_A_STEP`] buckets.
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
        // The ring has room, because `is_full` was checked above and this thread is the only
        // producer.
        let _ = self.replies.push(reply);
    }
}

fn list(context: &Context<'_>, filter: FlowFilter, from: FlowCursor, mut buffer: Vec<FlowEntry>) -> Reply {
    buffer.clear();
    // Only whole buckets are listed, because a cursor always points to the start of a bucket.
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
        let is_active = entry.idle <= ACTIVE;
        buffer.push(Whose { slot: SlotId(entry.slot), service: ServiceId(entry.vip), is_active });
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
/// Reading 256 cache lines takes a few microseconds, which is short enough to do between two
/// batches.
const BUCKETS_A_STEP: usize = 256;
/// A count writes only eight bytes per flow, so it can visit more buckets per request. With this
/// limit, counting the flows in a table of 16 million flows takes less than a second.
const BUCKETS_A_COUNT: usize = 1_024;
