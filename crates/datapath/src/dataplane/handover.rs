//! Queues that go from one process to another while the programs stay.
//!
//! In: a running data plane, or what another process tells of its own. Out: connection tables, sockets in place of the other's.
//! The one that leaves: [`DataPlane::hand`], then [`DataPlane::release`] for each of [`DataPlane::groups`]; what was released can be
//! had back ([`DataPlane::take_back`]). The one that comes: [`DataPlane::take_over`], which sets up all that needs no queue; tables that
//! are no thread's ([`DataPlane::former_table`]); [`DataPlane::take`] for each group; at the end [`DataPlane::keep`].
//! Not here: how the two speak, and what a slot's number means (the binary).
//! Invariant: a queue is without a socket from its release to its taking alone, and as long as the kernel keeps the old one.
//!
//! The first socket of a UMEM lives as long as that (libxdp), so its queue goes last: threads go one by one, that of the queue that
//! was bound first behind all others. Where a thread sends by another one's queues, or I/O threads serve packet threads, all go at once:
//! two processes never work on one connection table.

use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use engine::{Pool, mesh};
use forwarder::{FLOW_LAYOUT, FlowConfig, FlowTable, InterfaceId, Live, Pipeline, ThreadId};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::former::{Expected, Gathered};
use super::sockets::{Layout, bind_queue};
use super::threads::{Forwarder, Part, Signals};
use super::{DataPlane, Holder, Kind, MAILBOX, Plan, Settings, in_several_frames, largest};
use crate::error::{StartError, words};
use crate::frame::Frame;
use crate::health::ThreadName;
use crate::interface::Interface;
use crate::sockets::{SocketCounters, SocketMode, Sockets};
use crate::steer::{MAPS_VERSION, Steer, SteerFacts, Steers};
use crate::stopping::Rounds;
use crate::umem::Area;
use crate::wake::Waker;
use crate::xsk::{Place, XskDevice};

/// What a data plane that comes in another's place has from it.
#[derive(Debug)]
pub struct TakenPlane<'a> {
    /// What the other one tells of itself.
    pub facts: &'a PlaneFacts,
    /// Its programs and their maps, in the order in which the facts name them.
    pub descriptors: Vec<OwnedFd>,
}

/// What a data plane tells of itself to the one that is to come in its place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlaneFacts {
    /// Of connection tables in memory: [`FLOW_LAYOUT`].
    flow_layout: u32,
    /// Of the programs' maps: [`MAPS_VERSION`].
    maps: u32,
    flows_per_thread: usize,
    queues: Vec<u16>,
    packet_threads: u16,
    /// I/O threads too; 0: a version from before they could be others.
    #[serde(default)]
    threads: u16,
    /// By interface: queues that the program's map has room for.
    #[serde(default)]
    most_queues: Vec<u32>,
    zero_copy: bool,
    max_vips: u32,
    no_socket: String,
    own_ports: RangeInclusive<u16>,
    /// Places of each table that no thread of it has, and that all of them ask; their flows come before the first queue.
    #[serde(default)]
    former: Vec<usize>,
    /// On CLOCK_MONOTONIC: where the threads' clock begins.
    origin_nanos: u64,
    programs: Vec<SteerFacts>,
}

impl PlaneFacts {
    /// Why a data plane with these settings can't come in this one's place, one sentence each; none: it can.
    fn obstacles(&self, interfaces: &[Interface], settings: &Settings, layout: &Layout) -> Vec<String> {
        let mut found = Vec::new();
        let mut differs = |what: &str, theirs: String, ours: String| {
            if theirs != ours {
                found.push(format!("{what}: {theirs} -> {ours}"));
            }
        };
        differs("layout of connection tables", self.flow_layout.to_string(), FLOW_LAYOUT.to_string());
        differs("maps of the XDP program", self.maps.to_string(), MAPS_VERSION.to_string());
        let names = |names: Vec<&str>| names.join(", ");
        let theirs = self.programs.iter().map(|program| &*program.interface).collect();
        differs(
            "interfaces",
            names(theirs),
            names(interfaces.iter().map(|interface| &*interface.name).collect()),
        );
        let has_room =
            self.most_queues.iter().zip(&layout.queues).all(|(most, queues)| *most >= (*queues).into());
        if self.threads == 0 || !has_room {
            differs("queues", format!("{:?}", self.queues), format!("{:?}", layout.queues));
        }
        if self.threads == 0 {
            differs("packet threads", self.packet_threads.to_string(), layout.packet_threads().to_string());
            let flows = settings.flows_per_thread;
            differs("io.flows_per_thread", self.flows_per_thread.to_string(), flows.to_string());
        }
        differs("io.max_vips", self.max_vips.to_string(), settings.max_vips.to_string());
        differs("io.no_socket", self.no_socket.clone(), format!("{:?}", settings.no_socket));
        let ports = |of: &RangeInclusive<u16>| format!("{}-{}", of.start(), of.end());
        differs("io.own_ports", ports(&self.own_ports), ports(&settings.own_ports));
        found
    }

    /// Whether a data plane has the same threads, with tables of the same size: what each has goes to its like.
    fn has_threads_of(&self, settings: &Settings, layout: &Layout) -> bool {
        self.queues == layout.queues
            && self.packet_threads == layout.packet_threads()
            && [0, layout.threads()].contains(&self.threads)
            && self.flows_per_thread == settings.flows_per_thread
    }

    /// That the tables that would be asked with other threads are not too many.
    fn may_have_other_threads(&self) -> Result<(), StartError> {
        let tables = self.former.len() + usize::from(self.packet_threads);
        let fits = self.former.is_empty() || tables <= MOST_FORMER;
        if fits { Ok(()) } else { Err(StartError::Former { tables, most: MOST_FORMER }) }
    }

    /// How many tables it asks that are no thread's; for their flows see [`DataPlane::former_table`].
    #[must_use]
    pub fn former_tables(&self) -> usize {
        self.former.len()
    }

    fn origin(&self) -> Option<Instant> {
        let ago = Duration::from_nanos(monotonic_nanos().checked_sub(self.origin_nanos)?);
        Instant::now().checked_sub(ago)
    }
}

/// All that threads need but their queues.
pub(super) struct Prepared {
    area: Area,
    /// By thread; `None`: it runs.
    waiting: Vec<Option<Part<Frame>>>,
    running: Vec<Begun>,
    all_born: Receiver<()>,
}

/// A thread that runs already.
struct Begun {
    thread: std::thread::JoinHandle<()>,
    number: u16,
    name: ThreadName,
    sockets: Vec<(InterfaceId, RawFd)>,
}

impl Prepared {
    /// Of packet threads that wait.
    pub(super) fn pipelines(&mut self) -> impl Iterator<Item = &mut Pipeline> {
        self.waiting.iter_mut().flatten().filter_map(|part| match &mut part.forward {
            Forwarder::Pipeline(pipeline) => Some(&mut **pipeline),
            Forwarder::Steering(_) => None,
        })
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl DataPlane {
    /// What another process needs to come in this one's place, and descriptors for it.
    ///
    /// # Errors
    /// Its sockets are packet sockets, or the process has no descriptor left.
    pub fn hand(&self) -> std::io::Result<(PlaneFacts, Vec<OwnedFd>)> {
        let (mut programs, mut descriptors) = (Vec::new(), Vec::new());
        for (steer, interface) in self.steers.each().iter().zip(&self.interfaces) {
            let (facts, own) = steer.hand(&interface.name)?;
            programs.push(facts);
            descriptors.extend(own);
        }
        let since = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let facts = PlaneFacts {
            flow_layout: FLOW_LAYOUT,
            maps: MAPS_VERSION,
            flows_per_thread: self.settings.flows_per_thread,
            queues: self.layout.queues.clone(),
            packet_threads: self.layout.packet_threads(),
            threads: self.layout.threads(),
            most_queues: self.handover.most_queues.clone(),
            zero_copy: self.socket_mode == SocketMode::ZeroCopy,
            max_vips: self.settings.max_vips,
            no_socket: format!("{:?}", self.settings.no_socket),
            own_ports: self.settings.own_ports.clone(),
            former: self.former().iter().flat_map(|(former, _)| former.capacities()).collect(),
            origin_nanos: monotonic_nanos().saturating_sub(since),
            programs,
        };
        Ok((facts, descriptors))
    }

    /// Threads that go together, in the order in which they go.
    #[must_use]
    pub fn groups(&self) -> Vec<Vec<ThreadId>> {
        let others = |thread: &ThreadId| Some(*thread) != self.handover.first_bound;
        let all =
            (0..self.layout.threads()).rev().map(ThreadId).filter(others).chain(self.handover.first_bound);
        let one_by_one = !self.layout.is_steered()
            && self.layout.queues.iter().all(|queues| *queues == self.layout.threads());
        if one_by_one { all.map(|thread| vec![thread]).collect() } else { vec![all.collect()] }
    }

    /// Sends away the threads of a group, and gives their connection tables: their queues have no socket from now on, and can be bound
    /// once the kernel has let go of the old ones.
    ///
    /// # Cost
    /// What is in the threads' rings is still sent; some milliseconds.
    pub fn release(&mut self, group: &[ThreadId]) -> Vec<(ThreadId, FlowTable)> {
        for thread in group {
            self.shut(*thread);
            self.monitor.forget_sockets(usize::from(thread.0));
            if let Some(order) = self.handover.leaving.get(&thread.0) {
                order.give();
            }
            if let Some(waker) = self.threads.wakers.get(usize::from(thread.0)) {
                waker.ring();
            }
        }
        let flows = |thread: &ThreadId| Some((*thread, self.handover.leaving.remove(&thread.0)?.flows()?));
        group.iter().filter_map(flows).collect()
    }

    /// No more packets are redirected to a thread's sockets.
    fn shut(&mut self, thread: ThreadId) {
        let of_thread = self.layout.each().filter(|(.., of)| *of == thread);
        for (interface, queue, _) in of_thread.collect::<Vec<_>>() {
            let cleared = self.steers.on(interface).map(|steer| steer.clear_socket(queue.into()));
            if let Some(Err(error)) = cleared {
                tracing::debug!(%error, "a queue that is given up");
            }
        }
    }

    /// From now on another process has the interfaces: dropping this leaves them as they are.
    pub fn give(&mut self) {
        self.handover.holder = Holder::Another;
    }

    /// From now on this process has the interfaces, and the other one has left.
    pub fn keep(&mut self) {
        self.handover.holder = Holder::Me;
    }

    /// Comes in the place of another process's data plane: all is set up but for the queues, which [`DataPlane::take`] takes.
    ///
    /// # Errors
    /// [`StartError::Handover`] says what only a restart brings; others are as for a start.
    pub fn take_over(
        interfaces: Vec<Interface>,
        settings: &Settings,
        live: &Live,
        taken: TakenPlane<'_>,
    ) -> Result<Self, StartError> {
        let TakenPlane { facts, descriptors } = taken;
        let layout = Layout::of(&interfaces, settings)?;
        let obstacles = facts.obstacles(&interfaces, settings, &layout);
        if !obstacles.is_empty() {
            return Err(StartError::Handover(obstacles.join("; ")));
        }
        let mut descriptors = descriptors.into_iter();
        let programs = facts.programs.iter().map(|program| Steer::taken(program, &mut descriptors));
        let programs = programs.collect::<Result<_, _>>().map_err(|e| StartError::Steer(words(&e)))?;
        let socket_mode = if facts.zero_copy { SocketMode::ZeroCopy } else { SocketMode::Copy };
        let kind = Kind { socket_mode, largest_packet: largest(&interfaces, settings) };
        let plan = Plan { layout: &layout, settings, live };
        let mut plane = Self::new(interfaces, Steers::new(programs), plan, kind)?;
        plane.handover.holder = Holder::Another;
        plane.handover.most_queues.clone_from(&facts.most_queues);
        if !facts.has_threads_of(settings, &layout) {
            facts.may_have_other_threads()?;
            let config = FlowConfig { capacity: facts.flows_per_thread, timeouts: settings.timeouts };
            plane.handover.gathered = Some(Gathered::new(facts.threads, config));
        }
        plane.handover.expected = facts.former.iter().copied().map(Expected::with_capacity).collect();
        plane.origin = facts.origin().ok_or_else(|| StartError::Handover("the clock".to_owned()))?;
        plane.prepare()?;
        Ok(plane)
    }

    /// What another process was given, and does not take, is this one's again: all threads begin anew, with the tables that they had.
    ///
    /// # Errors
    /// As for a start: then nothing carries packets.
    pub fn take_back(&mut self, mut tables: Vec<(ThreadId, FlowTable)>) -> Result<(), StartError> {
        let left: Vec<ThreadId> = self.handover.leaving.keys().rev().copied().map(ThreadId).collect();
        tables.extend(self.release(&left));
        for thread in self.threads.running.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a packet thread panicked");
            }
        }
        self.monitor.forget_threads();
        self.threads.rounds = Arc::new(Rounds::new());
        (self.threads.requests, self.threads.notices, self.handover.holder) =
            (Vec::new(), Vec::new(), Holder::Me);
        self.prepare()?;
        self.ask_former();
        for (thread, table) in tables {
            if let Some(flows) = self.flows_of(thread) {
                *flows = table;
            }
        }
        self.groups().iter().try_for_each(|group| self.take(group))
    }

    /// All that needs no queue, touched and ready.
    fn prepare(&mut self) -> Result<(), StartError> {
        let multi_buffer = in_several_frames(&self.interfaces, self.settings.frame_size);
        let (homes, frames) = self.layout.homes(self.settings.frames_per_queue);
        let (area, pools) = Area::new(homes, frames, self.settings.frame_size, multi_buffer)?;
        let in_all = pools.iter().map(Vec::len).sum();
        let (signals, all_born) = self.signals();
        let mut waiting = Vec::with_capacity(pools.len());
        for (frames, mailboxes) in pools.into_iter().zip(mesh(self.layout.threads(), MAILBOX)) {
            let (thread, pool) = (mailboxes.me(), Pool { frames, in_all });
            let (name, (forward, counters)) = (self.layout.name(thread), self.forwarder(thread)?);
            self.note_sockets(thread);
            waiting.push(Some(Part { name, forward, counters, mailboxes, pool, signals: signals.clone() }));
        }
        drop::<Signals>(signals);
        self.handover.first_bound = None;
        self.handover.prepared = Some(Prepared { area, waiting, running: Vec::new(), all_born });
        Ok(())
    }

    /// Where the connection table of the other process's thread goes.
    pub fn flows_of(&mut self, thread: ThreadId) -> Option<&mut FlowTable> {
        if let Some(gathered) = &mut self.handover.gathered {
            return gathered.table(thread);
        }
        let part = self.handover.prepared.as_mut()?.waiting.get_mut(usize::from(thread.0))?.as_mut()?;
        match &mut part.forward {
            Forwarder::Pipeline(pipeline) => Some(pipeline.flows_mut()),
            Forwarder::Steering(_) => None,
        }
    }

    /// Whether threads wait for queues still.
    #[must_use]
    pub fn waits_for_queues(&self) -> bool {
        self.handover.prepared.is_some()
    }

    /// Binds the queues of a group that was released, and starts its threads. Where the other process has other threads, that is when
    /// the last group was: any of its tables may have a flow that comes to any thread then.
    ///
    /// # Errors
    /// As for a start; [`StartError::Busy`] when the kernel keeps an old socket for two seconds.
    pub fn take(&mut self, group: &[ThreadId]) -> Result<(), StartError> {
        let mut group = group.to_vec();
        if let Some(gathered) = &mut self.handover.gathered {
            if !gathered.has_all_after(group.len()) {
                return Ok(());
            }
            if let Some(gathered) = self.handover.gathered.take() {
                self.share_gathered(gathered);
            }
            group = (0..self.layout.threads()).map(ThreadId).collect();
        }
        for thread in &group {
            let begun = self.begin_waiting(*thread)?;
            if let (Some(prepared), Some(begun)) = (&mut self.handover.prepared, begun) {
                prepared.running.push(begun);
            }
        }
        let is_whole = |prepared: &mut Prepared| prepared.waiting.iter().all(Option::is_none);
        match self.handover.prepared.take_if(is_whole) {
            Some(prepared) => self.complete(prepared),
            None => Ok(()),
        }
    }

    fn begin_waiting(&mut self, thread: ThreadId) -> Result<Option<Begun>, StartError> {
        let force_copy = self.socket_mode != SocketMode::ZeroCopy;
        let Some(prepared) = &mut self.handover.prepared else { return Ok(None) };
        let part = prepared.waiting.get_mut(usize::from(thread.0)).and_then(Option::take);
        let Some(part) = part else { return Ok(None) };
        let mut queues = Vec::new();
        for (interface, queue, _) in self.layout.each().filter(|(.., of)| *of == thread) {
            let name = self.interfaces.get(usize::from(interface.0)).map_or("", |found| &found.name);
            let place = Place { interface, name, queue: queue.into() };
            queues.push(bind_queue(&prepared.area, place, &self.settings, force_copy)?);
        }
        if !queues.is_empty() {
            self.handover.first_bound.get_or_insert(thread);
        }
        let (senders, share) = (self.layout.senders(thread), self.settings.frames_per_queue as usize);
        let device = XskDevice::new(prepared.area.clone(), queues, thread, &senders, share);
        let (name, number, sockets) = (part.name, thread.0, device.sockets().collect());
        self.let_in(name, &device)?;
        let thread = self.begin(part, device)?;
        Ok(Some(Begun { thread, number, name, sockets }))
    }

    /// All run: they are watched from now on.
    fn complete(&mut self, prepared: Prepared) -> Result<(), StartError> {
        let Prepared { mut running, all_born, waiting, .. } = prepared;
        drop(waiting);
        running.sort_by_key(|begun| begun.number);
        for Begun { thread, name, sockets, .. } in running {
            // SAFETY: the thread has these sockets until it leaves, which this plane alone has it do.
            let borrowed = |(interface, fd)| (interface, unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) });
            self.monitor.add_thread(name, sockets.into_iter().map(borrowed))?;
            self.threads.running.push(thread);
        }
        // Nobody sends: it ends when the last thread is at work.
        let _ = all_born.recv();
        self.unserved = self.without_socket().collect();
        self.threads.wakers.iter().for_each(Waker::ring);
        Ok(())
    }

    /// The counters of a thread's sockets, which stand before the sockets do.
    fn note_sockets(&mut self, thread: ThreadId) {
        if self.sockets.len() > usize::from(thread.0) {
            return;
        }
        let own = self.layout.each().filter(|(.., of)| *of == thread).map(|(interface, ..)| interface);
        let counters = Arc::new(SocketCounters::on(own));
        self.sockets.push(counters);
    }
}

/// Tables that are asked on a miss, two cache lines each: of more than one process.
const MOST_FORMER: usize = 128;

fn monotonic_nanos() -> u64 {
    // It fails for clocks that do not exist.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use forwarder::{FragmentConfig, IcmpRates, NoSocket, Timeouts};

    use super::*;
    use crate::IoMode;
    use crate::interface::Features;
    use crate::thread::Idle;

    fn interface(queues: u32) -> Interface {
        Interface {
            name: "eth0".to_owned(),
            index: 7,
            mac: [2, 0, 0, 0, 0, 1],
            mtu_bytes: 1_500,
            is_up: true,
            has_carrier: true,
            driver: "veth".to_owned(),
            queues,
            max_queues: queues,
            features: Features::default(),
            master: None,
            xdp_program: None,
            xdp_program_name: None,
            multi_buffer: None,
        }
    }

    fn settings() -> Settings {
        Settings {
            mode: IoMode::AfXdp,
            queues: None,
            steer_over: None,
            frames_per_queue: 2_048,
            frame_size: 2_048,
            batch: 64,
            flows_per_thread: 1_000,
            timeouts: Timeouts::default(),
            idle: Idle { spin: Duration::ZERO, sleep: true },
            busy_poll: None,
            max_vips: 10,
            max_slots: 10,
            no_socket: NoSocket::Pass,
            icmp: IcmpRates { replies: 1, replies_to_source: 1, errors: 1, errors_of_source: 1 },
            limit_sources: 0,
            fragments: FragmentConfig::default(),
            own_ports: 1..=8,
        }
    }

    fn facts() -> PlaneFacts {
        PlaneFacts {
            flow_layout: FLOW_LAYOUT,
            maps: MAPS_VERSION,
            flows_per_thread: 1_000,
            queues: vec![2],
            packet_threads: 2,
            threads: 2,
            most_queues: vec![2],
            zero_copy: false,
            max_vips: 10,
            no_socket: "Pass".to_owned(),
            own_ports: 1..=8,
            former: Vec::new(),
            origin_nanos: monotonic_nanos() - 5_000_000_000,
            programs: Vec::new(),
        }
    }

    fn obstacles(facts: &PlaneFacts, settings: &Settings) -> Vec<String> {
        let interfaces = [interface(2)];
        let mut found = facts.obstacles(&interfaces, settings, &Layout::of(&interfaces, settings).unwrap());
        // The facts name no program.
        found.retain(|why| !why.starts_with("interfaces: "));
        found
    }

    #[test]
    fn other_threads_wait_while_too_many_tables_are_asked() {
        let may = |tables: usize| {
            PlaneFacts { former: vec![1_000; tables], ..facts() }
                .may_have_other_threads()
                .map_err(|e| e.to_string())
        };
        assert_eq!([0, 1, 126].map(may), [Ok(()), Ok(()), Ok(())]);
        let refused = may(127).unwrap_err();
        assert!(refused.contains("129 connection tables") && refused.contains("128 at most"), "{refused}");
        let one_thread_a_table = PlaneFacts { packet_threads: 200, ..facts() };
        assert!(one_thread_a_table.may_have_other_threads().is_ok(), "as long as none is asked yet");
    }

    #[test]
    fn a_version_from_before_former_tables_went_over_has_none() {
        let mut said = serde_json::to_value(facts()).unwrap();
        said.as_object_mut().unwrap().remove("former").unwrap();
        assert_eq!(serde_json::from_value::<PlaneFacts>(said).unwrap().former_tables(), 0);
    }

    #[test]
    fn what_both_processes_do_not_have_alike_is_named_and_the_rest_may_be_other() {
        let other = Settings {
            batch: 32,
            frame_size: 4_096,
            idle: Idle { sleep: false, ..settings().idle },
            ..settings()
        };
        assert_eq!(obstacles(&facts(), &other), Vec::<String>::new());
        let older = PlaneFacts { flow_layout: FLOW_LAYOUT - 1, maps: MAPS_VERSION + 1, ..facts() };
        let expected = [
            format!("layout of connection tables: {} -> {FLOW_LAYOUT}", FLOW_LAYOUT - 1),
            format!("maps of the XDP program: {} -> {MAPS_VERSION}", MAPS_VERSION + 1),
        ];
        assert_eq!(obstacles(&older, &settings()), expected);
        for (settings, words) in [
            (Settings { max_vips: 9, ..settings() }, "io.max_vips: 10 -> 9"),
            (Settings { no_socket: NoSocket::Drop, ..settings() }, "io.no_socket: Pass -> Drop"),
            (Settings { own_ports: 2..=8, ..settings() }, "io.own_ports: 1-8 -> 2-8"),
        ] {
            let found = obstacles(&facts(), &settings);
            assert!(found.iter().any(|why| why == words), "{words}: {found:?}");
        }
        let [ours, theirs] = [interface(2), interface(2)];
        let before = PlaneFacts { threads: 0, ..facts() };
        for (settings, words) in [
            (Settings { queues: Some(1), ..settings() }, "queues: [2] -> [1]"),
            (Settings { steer_over: NonZeroU16::new(3), ..settings() }, "packet threads: 2 -> 3"),
            (Settings { flows_per_thread: 9, ..settings() }, "io.flows_per_thread: 1000 -> 9"),
        ] {
            assert_eq!(obstacles(&facts(), &settings), Vec::<String>::new());
            assert!(!facts().has_threads_of(&settings, &Layout::of(&[interface(2)], &settings).unwrap()));
            assert!(obstacles(&before, &settings).iter().any(|why| why == words), "{words}");
        }
        let small = PlaneFacts { queues: vec![1], most_queues: vec![1], ..facts() };
        assert_eq!(obstacles(&small, &settings()), ["queues: [1] -> [2]"], "the map has no room");
        let named = facts().obstacles(&[ours], &settings(), &Layout::of(&[theirs], &settings()).unwrap());
        assert_eq!(named, ["interfaces:  -> eth0"]);
    }

    #[test]
    fn the_clock_goes_on_where_the_other_process_began_it() {
        let since = facts().origin().unwrap().elapsed();
        assert!(since >= Duration::from_secs(5) && since < Duration::from_secs(60), "{since:?}");
    }
}
