//! Sends requests to all packet threads. A request can list, count or purge flows, explain a flow,
//! capture packets, count keys or replace caches.
//!
//! A request is sent to one thread after the other, and the client receives the result at the end.
//! A connection table is processed in bounded steps. The control loop sends each step as a message
//! to the thread, which processes it between two batches. The control loop itself runs steps for a
//! limited time. The control loop and the packet threads therefore do not block each other.

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::time::{Duration, Instant};

use admin::FlowQuery;
use forwarder::{
    Flow, FlowCursor, FlowEntry, FlowFilter, Reply, Request, Service, ServiceId, SlotId, Snapshot, Tap,
    ThreadId, ValueCache, WhereAnswer, Whose,
};
use kv_switch::HotKeys;

use crate::flow_counts::FlowCounts;
use crate::refused::Refused;
use compile::Index;

/// The packet threads, as seen from the control loop.
pub trait Threads {
    /// Returns the number of packet threads.
    fn count(&self) -> usize;
    /// Sends a request to a packet thread and wakes the thread.
    ///
    /// # Errors
    /// Returns the request if the thread's request ring is full.
    fn ask(&mut self, thread: ThreadId, request: Request) -> Result<(), Request>;
    /// Returns the next reply from a thread, or `None` if no reply has arrived. Replies arrive in
    /// the order of the requests.
    fn answer(&mut self, thread: ThreadId) -> Option<Reply>;
}

/// A request that is sent to all packet threads, and its progress.
#[derive(Debug)]
struct Walk {
    goal: Goal,
    /// The flow filters. Each connection table is processed once per filter. The list has a single
    /// filter if the request does not read connection tables.
    filters: Vec<FlowFilter>,
    thread: u16,
    /// The index of the current filter.
    filter: usize,
    from: FlowCursor,
    /// `true` if a step was sent to the current thread and its reply has not arrived.
    asked: bool,
}

/// One key counter for each packet thread.
pub type Counters = VecDeque<Box<HotKeys>>;

/// One value cache for each packet thread.
pub type Caches = VecDeque<Box<ValueCache>>;

/// One capture tap for each packet thread.
pub type Taps = VecDeque<Box<Tap>>;

/// A client that waits for a result of type `T`.
pub trait Client<T>: Debug {
    /// Returns `true` if the client has disconnected.
    fn has_gone(&self) -> bool;
    /// Sends the result to the client. `snapshot` and `index` are used to convert slot and service
    /// IDs to names.
    fn answer(self: Box<Self>, found: T, snapshot: &Snapshot, index: &Index);
}

/// The flows that match a request.
#[derive(Debug, Default)]
pub struct Flows {
    /// The flows, each with the number of the packet thread that tracks it.
    pub flows: Vec<(u16, FlowEntry)>,
    /// `true` if more flows match than the limit allows.
    pub more: bool,
}

#[derive(Debug)]
enum Goal {
    List {
        limit: usize,
        found: Flows,
        client: Box<dyn Client<Flows>>,
    },
    Count {
        found: FlowCounts,
        client: Box<dyn Client<FlowCounts>>,
    },
    Purge {
        count: u64,
        client: Box<dyn Client<u64>>,
    },
    Where {
        flow: Flow,
        found: Vec<WhereAnswer>,
        client: Box<dyn Client<Vec<WhereAnswer>>>,
    },
    /// Replaces the key counter of each thread, and returns the previous counters. An empty list
    /// removes the counters.
    HotKeys {
        next: Counters,
        found: Counters,
        client: Box<dyn Client<Counters>>,
    },
    /// Replaces the cache of each thread, and frees the previous caches. An empty list removes the
    /// caches.
    Cache {
        caches: Caches,
    },
    /// Replaces the tap of each thread, and frees the previous taps. An empty list removes the
    /// taps.
    Tap {
        taps: Taps,
        client: Option<Box<dyn Client<()>>>,
    },
}

/// The flows to which a request applies.
#[derive(Debug)]
pub enum Filters {
    /// All flows.
    All,
    /// The flows of these services.
    Services(HashSet<ServiceId>),
    /// The flows of these slots.
    Slots(HashSet<SlotId>),
}

impl Filters {
    /// Converts the VIP or backend name in a query to service or slot IDs.
    ///
    /// # Errors
    /// Returns [`Refused::NotFound`] if the VIP or backend does not exist.
    pub fn of(query: &FlowQuery, snapshot: &Snapshot) -> Result<Self, Refused> {
        let absent = |what: &str, name: &str| Refused::NotFound(format!("no {what} \"{name}\""));
        match query {
            FlowQuery::All => Ok(Self::All),
            FlowQuery::Vip(name) => {
                let ids = Self::of_vip(name, snapshot);
                if ids.is_empty() { Err(absent("VIP", name)) } else { Ok(Self::Services(ids)) }
            }
            FlowQuery::Backend(name) => {
                let slots = Self::of_backend(name, snapshot);
                if slots.is_empty() { Err(absent("backend", name)) } else { Ok(Self::Slots(slots)) }
            }
        }
    }

    fn of_vip(name: &str, snapshot: &Snapshot) -> HashSet<ServiceId> {
        // A service name begins with the name of its VIP, such as `www tcp 80`.
        let of_vip =
            |service: &&Service| service.name.strip_prefix(name).is_some_and(|rest| rest.starts_with(' '));
        snapshot.services().iter().filter(of_vip).map(|service| service.id).collect()
    }

    fn of_backend(name: &str, snapshot: &Snapshot) -> HashSet<SlotId> {
        let slots = (0..).zip(snapshot.slots());
        slots.filter(|(_, slot)| *slot.backend == *name).map(|(number, _)| SlotId(number)).collect()
    }

    /// Returns the filters. Each filter needs one pass through the connection table.
    fn walks(self) -> Vec<FlowFilter> {
        match self {
            Self::All => vec![FlowFilter::All],
            Self::Services(ids) => ids.into_iter().map(FlowFilter::Service).collect(),
            Self::Slots(ids) => ids.into_iter().map(FlowFilter::Slot).collect(),
        }
    }
}

/// The queue of requests to the packet threads, which runs one request at a time.
#[derive(Debug, Default)]
pub struct Questions {
    waiting: VecDeque<Walk>,
    buffer: Vec<FlowEntry>,
    counted: Vec<Whose>,
}

impl Questions {
    /// Returns `true` if no request is running or waiting.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Lists the selected flows, at most `limit`.
    pub fn list(&mut self, filters: Filters, limit: usize, client: Box<dyn Client<Flows>>) {
        self.enter(Goal::List { limit, found: Flows::default(), client }, filters.walks());
    }

    /// Counts all flows by slot and service.
    pub fn count(&mut self, client: Box<dyn Client<FlowCounts>>) {
        self.enter(Goal::Count { found: FlowCounts::default(), client }, vec![FlowFilter::All]);
    }

    /// Removes the selected flows from the connection tables. The client receives the number of
    /// removed flows.
    pub fn purge(&mut self, filters: Filters, client: Box<dyn Client<u64>>) {
        self.enter(Goal::Purge { count: 0, client }, filters.walks());
    }

    /// Requests from each thread an explanation of how it would handle a packet of `flow`.
    pub fn decide(&mut self, flow: Flow, client: Box<dyn Client<Vec<WhereAnswer>>>) {
        self.enter(Goal::Where { flow, found: Vec::new(), client }, vec![FlowFilter::All]);
    }

    /// Sets the capture taps of all threads. If `taps` is empty, existing taps are removed.
    pub fn tap(&mut self, taps: Taps, client: Option<Box<dyn Client<()>>>) {
        self.enter(Goal::Tap { taps, client }, vec![FlowFilter::All]);
    }

    /// Sets the value caches of all threads. If `caches` is empty, existing caches are removed.
    pub fn cache(&mut self, caches: Caches) {
        self.enter(Goal::Cache { caches }, vec![FlowFilter::All]);
    }

    /// Sets the key counters of all threads. If `next` is empty, existing counters are removed. The
    /// client receives the previous counters.
    pub fn count_keys(&mut self, next: Counters, client: Box<dyn Client<Counters>>) {
        self.enter(Goal::HotKeys { next, found: Counters::new(), client }, vec![FlowFilter::All]);
    }

    fn enter(&mut self, goal: Goal, filters: Vec<FlowFilter>) {
        let from = FlowCursor::default();
        self.waiting.push_back(Walk { goal, filters, thread: 0, filter: 0, from, asked: false });
    }

    /// Runs the first requests in the queue for at most 2 ms.
    pub fn step(&mut self, threads: &mut impl Threads, snapshot: &Snapshot, index: &Index) {
        let until = Instant::now() + STEP;
        while let Some(walk) = self.waiting.front_mut() {
            if walk.is_pointless() || usize::from(walk.thread) >= threads.count() {
                if let Some(walk) = self.waiting.pop_front() {
                    walk.goal.end(snapshot, index);
                }
                continue;
            }
            if !walk.asked {
                walk.ask(threads, &mut self.buffer, &mut self.counted);
            }
            match threads.answer(ThreadId(walk.thread)) {
                Some(reply) => walk.take(reply, &mut self.buffer, &mut self.counted),
                None if Instant::now() > until => return,
                None => std::thread::yield_now(),
            }
        }
    }
}

impl Walk {
    /// Returns `true` if the request can end before all threads were visited, because enough flows
    /// were found or the client has disconnected.
    fn is_pointless(&self) -> bool {
        self.filters.is_empty()
            || match &self.goal {
                Goal::List { limit, found, client } => found.flows.len() > *limit || client.has_gone(),
                Goal::Count { client, .. } => client.has_gone(),
                Goal::Purge { client, .. } => client.has_gone(),
                Goal::Where { client, .. } => client.has_gone(),
                // These requests continue after the client has disconnected, because taps, counters
                // and caches must be replaced on every thread. If such a request were canceled, the
                // memory of a tap would not be freed.
                Goal::Tap { .. } | Goal::HotKeys { .. } | Goal::Cache { .. } => false,
            }
    }

    fn ask(&mut self, threads: &mut impl Threads, buffer: &mut Vec<FlowEntry>, counted: &mut Vec<Whose>) {
        let filter = self.filters.get(self.filter).copied().unwrap_or(FlowFilter::All);
        let request = match &mut self.goal {
            Goal::List { .. } => {
                let mut buffer = std::mem::take(buffer);
                buffer.reserve(FLOWS_A_STEP);
                Request::List { filter, from: self.from, buffer }
            }
            Goal::Count { .. } => {
                let mut buffer = std::mem::take(counted);
                buffer.reserve(FLOWS_A_COUNT);
                Request::Count { from: self.from, buffer }
            }
            Goal::Purge { .. } => Request::Purge { filter, from: self.from },
            Goal::Where { flow, .. } => Request::Where(*flow),
            Goal::Tap { taps, .. } => Request::Capture(taps.pop_front()),
            Goal::HotKeys { next, .. } => Request::HotKeys(next.pop_front()),
            Goal::Cache { caches } => Request::Cache(caches.pop_front()),
        };
        let refused = threads.ask(ThreadId(self.thread), request);
        self.asked = refused.is_ok();
        match (&mut self.goal, refused) {
            (Goal::Tap { taps, .. }, Err(Request::Capture(Some(tap)))) => taps.push_front(tap),
            (Goal::HotKeys { next, .. }, Err(Request::HotKeys(Some(counter)))) => next.push_front(counter),
            (Goal::Cache { caches }, Err(Request::Cache(Some(cache)))) => caches.push_front(cache),
            _ => {}
        }
    }

    fn take(&mut self, reply: Reply, spare: &mut Vec<FlowEntry>, counted: &mut Vec<Whose>) {
        self.asked = false;
        let next = match (&mut self.goal, reply) {
            (Goal::List { found, .. }, Reply::Flows { buffer, next }) => {
                found.flows.extend(buffer.iter().map(|entry| (self.thread, *entry)));
                *spare = buffer;
                next
            }
            (Goal::Count { found, .. }, Reply::Counted { buffer, next }) => {
                buffer.iter().for_each(|whose| found.add(*whose));
                *counted = buffer;
                next
            }
            (Goal::Purge { count, .. }, Reply::Purged { count: more, next }) => {
                *count += more as u64;
                next
            }
            (Goal::Where { found, .. }, Reply::Where(answer)) => {
                found.push(answer);
                None
            }
            (Goal::HotKeys { found, .. }, Reply::HotKeys(counter)) => {
                found.extend(counter);
                None
            }
            (Goal::Tap { .. }, Reply::Capture(_)) | (Goal::Cache { .. }, Reply::Cache(_)) => None,
            // Replies arrive in the order of the requests, so each reply belongs to the oldest
            // request without a reply.
            _ => None,
        };
        match next {
            Some(cursor) => self.from = cursor,
            None => self.turn(),
        }
    }

    /// Continues with the next filter, or with the next thread after the last filter.
    fn turn(&mut self) {
        self.from = FlowCursor::default();
        self.filter += 1;
        if self.filter >= self.filters.len() {
            (self.filter, self.thread) = (0, self.thread + 1);
        }
    }
}

impl Goal {
    fn end(self, snapshot: &Snapshot, index: &Index) {
        match self {
            Self::List { limit, mut found, client } => {
                found.more = found.flows.len() > limit;
                found.flows.truncate(limit);
                client.answer(found, snapshot, index);
            }
            Self::Count { found, client } => client.answer(found, snapshot, index),
            Self::Purge { count, client } => client.answer(count, snapshot, index),
            Self::Where { found, client, .. } => client.answer(found, snapshot, index),
            Self::HotKeys { found, client, .. } => client.answer(found, snapshot, index),
            Self::Tap { client: Some(client), .. } => client.answer((), snapshot, index),
            Self::Tap { client: None, .. } | Self::Cache { .. } => {}
        }
    }
}

/// The maximum duration of one call to [`Questions::step`].
const STEP: Duration = Duration::from_millis(2);
/// The maximum number of flows in one reply, which is 256 buckets with four entries each.
const FLOWS_A_STEP: usize = 1_024;
/// The maximum number of flows in one reply to a count request, which is 1,024 buckets with four
/// entries each.
const FLOWS_A_COUNT: usize = 4_096;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use admin::view::{Purged, Refusal};
    use tokio::sync::oneshot;

    use super::*;
    use crate::controller::Controller;

    fn started() -> (Controller, Snapshot) {
        let text = "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\ntable_size = 1009\n[machine.lb1]\n\
                    addresses = [\"192.0.2.1\"]\ninterfaces = [\"eth0\"]\n[pool.p]\nbackends = [\
                    { name = \"a\", address = \"198.18.0.1\" }]\n[vip.www]\naddresses = [\"203.0.113.1\"]\n\
                    services = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n";
        let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        let (config, _) = config::parse(text, Path::new("a.toml"), &secret).unwrap();
        Controller::start(Arc::new(config), "lb1", Arc::default(), Duration::ZERO).unwrap()
    }

    /// Three simulated threads. Each thread removes 5 flows in each of two steps. Thread 1 rejects
    /// its first requests, as if its request ring were full.
    #[derive(Default)]
    struct Three {
        asked: Vec<(u16, FlowFilter)>,
        busy: usize,
        reply: Option<Reply>,
    }

    impl Threads for Three {
        fn count(&self) -> usize {
            3
        }

        fn ask(&mut self, thread: ThreadId, request: Request) -> Result<(), Request> {
            if thread.0 == 1 && self.busy < 2 {
                self.busy += 1;
                return Err(request);
            }
            let Request::Purge { filter, .. } = request else { return Err(request) };
            self.asked.push((thread.0, filter));
            let first = self.asked.len() % 2 == 1;
            self.reply = Some(Reply::Purged { count: 5, next: first.then_some(FlowCursor::default()) });
            Ok(())
        }

        fn answer(&mut self, _: ThreadId) -> Option<Reply> {
            self.reply.take()
        }
    }

    #[test]
    fn every_thread_is_visited_until_its_table_is_complete() {
        let ((controller, snapshot), mut questions) = (started(), Questions::default());
        let (answer, mut answered) = oneshot::channel::<Result<Purged, Refusal>>();
        let filters = Filters::of(&FlowQuery::Vip("www".to_owned()), &snapshot).unwrap();
        questions.purge(filters, Box::new(answer));
        let mut threads = Three::default();
        while !questions.is_idle() {
            questions.step(&mut threads, &snapshot, controller.index());
        }
        assert_eq!(answered.try_recv().unwrap().unwrap().flows, 30);
        let places: Vec<u16> = threads.asked.iter().map(|(thread, _)| *thread).collect();
        assert_eq!(places, [0, 0, 1, 1, 2, 2]);
        assert!(threads.asked.iter().all(|(_, filter)| matches!(filter, FlowFilter::Service(_))));
    }

    /// Two simulated threads. Each thread has two steps, and each step returns two flows of slot 1
    /// and one flow of slot 2.
    #[derive(Default)]
    struct Two {
        asked: usize,
        reply: Option<Reply>,
    }

    impl Threads for Two {
        fn count(&self) -> usize {
            2
        }

        fn ask(&mut self, _: ThreadId, request: Request) -> Result<(), Request> {
            let Request::Count { mut buffer, .. } = request else { return Err(request) };
            assert!(buffer.capacity() >= FLOWS_A_COUNT, "the buffer must hold a step");
            self.asked += 1;
            let whose = |slot, service, is_active| Whose {
                slot: SlotId(slot),
                service: ServiceId(service),
                is_active,
            };
            buffer.clear();
            buffer.extend([whose(1, 0, true), whose(1, 5, false), whose(2, 0, false)]);
            self.reply =
                Some(Reply::Counted { buffer, next: (self.asked % 2 == 1).then_some(FlowCursor::default()) });
            Ok(())
        }

        fn answer(&mut self, _: ThreadId) -> Option<Reply> {
            self.reply.take()
        }
    }

    #[derive(Debug)]
    struct Seen(std::sync::mpsc::Sender<FlowCounts>);

    impl Client<FlowCounts> for Seen {
        fn has_gone(&self) -> bool {
            false
        }

        fn answer(self: Box<Self>, found: FlowCounts, _: &Snapshot, _: &Index) {
            self.0.send(found).unwrap();
        }
    }

    #[test]
    fn flows_are_summed_by_slot_and_service() {
        let ((controller, snapshot), mut questions) = (started(), Questions::default());
        let (sender, counts) = std::sync::mpsc::channel();
        questions.count(Box::new(Seen(sender)));
        let mut threads = Two::default();
        while !questions.is_idle() {
            questions.step(&mut threads, &snapshot, controller.index());
        }
        let counts = counts.recv().unwrap();
        let of = |slot| counts.of_slot(SlotId(slot)).map(|(id, count)| (id.0, count.all, count.active));
        let of = |slot| of(slot).collect::<Vec<_>>();
        assert_eq!([of(1), of(2), of(3)], [vec![(0, 4, 4), (5, 4, 0)], vec![(0, 4, 0)], vec![]]);
        let services = counts.by_service();
        assert_eq!([ServiceId(0), ServiceId(5)].map(|id| services[&id]), [8, 4]);
    }

    #[test]
    fn disconnected_client_causes_no_request() {
        let ((controller, snapshot), mut questions) = (started(), Questions::default());
        let (answer, _) = oneshot::channel::<Result<Purged, Refusal>>();
        questions.purge(Filters::All, Box::new(answer));
        let mut threads = Three::default();
        questions.step(&mut threads, &snapshot, controller.index());
        assert!(questions.is_idle() && threads.asked.is_empty());
    }

    #[test]
    fn unknown_name_is_rejected() {
        let (_, snapshot) = started();
        for (query, words) in [
            (FlowQuery::Vip("ww".to_owned()), "no VIP \"ww\""),
            (FlowQuery::Backend("b".to_owned()), "no backend \"b\""),
        ] {
            assert_eq!(Filters::of(&query, &snapshot).unwrap_err().to_string(), words);
        }
    }
}
