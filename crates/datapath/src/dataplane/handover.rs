//! Handover: queues move from an old process to a new process while the programs stay attached.
//!
//! The old process calls [`DataPlane::hand`], then [`DataPlane::release`] for each group of
//! [`DataPlane::groups`]. [`DataPlane::take_back`] undoes the release. The new process calls
//! [`DataPlane::take_over`], fills [`DataPlane::previous_table`], calls [`DataPlane::take`] for
//! each group, and then [`DataPlane::keep`]. The binary implements the protocol between the
//! processes.
//!
//! After a queue is released, it has no socket until the new process binds a new socket. The first
//! bound queue moves last, because libxdp closes its socket only together with the UMEM. Threads
//! move to the new process one by one. With I/O threads, or if a thread sends on the queue of
//! another thread, all threads move together, so that two processes never use one connection table.

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

use super::previous::{Expected, Gathered};
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

/// A data plane that this process takes over from another process.
#[derive(Debug)]
pub struct TakenPlane<'a> {
    /// The properties of that data plane, as received from the other process.
    pub facts: &'a PlaneFacts,
    /// The descriptors of the programs and their maps, in the order of the programs in `facts`.
    pub descriptors: Vec<OwnedFd>,
}

/// The properties of a data plane that the new process needs for a takeover.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlaneFacts {
    /// The version of the memory layout of connection tables, [`FLOW_LAYOUT`].
    flow_layout: u32,
    /// The version of the BPF maps, [`MAPS_VERSION`].
    maps: u32,
    flows_per_thread: usize,
    queues: Vec<u16>,
    packet_threads: u16,
    /// The number of threads, including I/O threads. The value is 0 if the old process runs a
    /// version that does not send it. Both processes must then have the same number of threads.
    #[serde(default)]
    threads: u16,
    /// The maximum number of queues for each interface, which is the size of the socket map in its
    /// XDP program.
    #[serde(default)]
    most_queues: Vec<u32>,
    zero_copy: bool,
    max_vips: u32,
    no_socket: String,
    source_ports: RangeInclusive<u16>,
    /// The capacities, in flows, of the tables from earlier processes, in which all threads look up
    /// unknown flows. The flows of these tables are transferred before the first queue moves.
    #[serde(default)]
    previous: Vec<usize>,
    /// The CLOCK_MONOTONIC time at which the clock of the threads starts, in nanoseconds.
    origin_nanos: u64,
    programs: Vec<SteerFacts>,
}

impl PlaneFacts {
    /// Returns the settings that differ between the two processes and therefore prevent a takeover.
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
        differs("io.source_ports", ports(&self.source_ports), ports(&settings.source_ports));
        found
    }

    /// Returns `true` if the new data plane has the same number of threads and the same connection
    /// table size. Each new thread can then take over the table of one old thread.
    fn has_threads_of(&self, settings: &Settings, layout: &Layout) -> bool {
        self.queues == layout.queues
            && self.packet_threads == layout.packet_threads()
            && [0, layout.threads()].contains(&self.threads)
            && self.flows_per_thread == settings.flows_per_thread
    }

    fn may_have_other_threads(&self) -> Result<(), StartError> {
        let tables = self.previous.len() + usize::from(self.packet_threads);
        let fits = self.previous.is_empty() || tables <= MAX_PREVIOUS_TABLES;
        if fits { Ok(()) } else { Err(StartError::PreviousTables { tables, most: MAX_PREVIOUS_TABLES }) }
    }

    /// Returns the number of connection tables that the previous process received from earlier
    /// processes. The new process fills these tables through [`DataPlane::previous_table`].
    #[must_use]
    pub fn previous_tables(&self) -> usize {
        self.previous.len()
    }

    fn origin(&self) -> Option<Instant> {
        let ago = Duration::from_nanos(monotonic_nanos().checked_sub(self.origin_nanos)?);
        Instant::now().checked_sub(ago)
    }
}

/// The threads of a data plane, before their queues are bound.
pub(super) struct Prepared {
    area: Area,
    waiting: Vec<Option<Part<Frame>>>,
    running: Vec<Begun>,
    all_born: Receiver<()>,
}

struct Begun {
    thread: std::thread::JoinHandle<()>,
    number: u16,
    name: ThreadName,
    sockets: Vec<(InterfaceId, RawFd)>,
}

impl Prepared {
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
    /// Returns the properties and the descriptors that another process needs to take over from this
    /// data plane.
    ///
    /// # Errors
    /// The call fails for packet sockets, or if the process has too many open descriptors.
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
            source_ports: self.settings.source_ports.clone(),
            previous: self.previous().iter().flat_map(|(previous, _)| previous.capacities()).collect(),
            origin_nanos: monotonic_nanos().saturating_sub(since),
            programs,
        };
        Ok((facts, descriptors))
    }

    /// Returns the groups of threads that move together. The groups move in the returned order.
    #[must_use]
    pub fn groups(&self) -> Vec<Vec<ThreadId>> {
        let others = |thread: &ThreadId| Some(*thread) != self.handover.first_bound;
        let all =
            (0..self.layout.threads()).rev().map(ThreadId).filter(others).chain(self.handover.first_bound);
        let one_by_one = !self.layout.is_steered()
            && self.layout.queues.iter().all(|queues| *queues == self.layout.threads());
        if one_by_one { all.map(|thread| vec![thread]).collect() } else { vec![all.collect()] }
    }

    /// Stops the threads of a group and returns their connection tables. Their queues then have no
    /// socket, and can be bound again once the kernel has closed the old sockets.
    ///
    /// # Cost
    /// The threads first send the packets in their rings, which takes some milliseconds.
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

    fn shut(&mut self, thread: ThreadId) {
        let of_thread = self.layout.each().filter(|(.., of)| *of == thread);
        for (interface, queue, _) in of_thread.collect::<Vec<_>>() {
            let cleared = self.steers.on(interface).map(|steer| steer.clear_socket(queue.into()));
            if let Some(Err(error)) = cleared {
                tracing::debug!(%error, "socket of a released queue not removed from the XDP program");
            }
        }
    }

    /// Records that another process owns the interfaces now. After this call, dropping this data
    /// plane no longer changes the interfaces.
    pub fn give(&mut self) {
        self.handover.holder = Holder::Another;
    }

    /// Makes this process the owner of the interfaces, after the other process has exited.
    pub fn keep(&mut self) {
        self.handover.holder = Holder::Me;
    }

    /// Prepares a data plane that takes over from another process. This call sets up everything
    /// except the queues, which [`DataPlane::take`] binds.
    ///
    /// # Errors
    /// [`StartError::Handover`] if a changed setting requires a restart. The other errors are the
    /// same as for [`DataPlane::start`].
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
        plane.handover.expected = facts.previous.iter().copied().map(Expected::with_capacity).collect();
        let clock = || StartError::Handover("the clock of the old process starts in the future".to_owned());
        plane.origin = facts.origin().ok_or_else(clock)?;
        plane.prepare()?;
        Ok(plane)
    }

    /// Takes back the queues that another process did not take. All threads start again with the
    /// given connection tables.
    ///
    /// # Errors
    /// The errors are the same as for [`DataPlane::start`]. After an error this data plane forwards
    /// no packets.
    pub fn take_back(&mut self, mut tables: Vec<(ThreadId, FlowTable)>) -> Result<(), StartError> {
        let left: Vec<ThreadId> = self.handover.leaving.keys().rev().copied().map(ThreadId).collect();
        tables.extend(self.release(&left));
        for thread in self.threads.running.drain(..) {
            if thread.join().is_err() {
                tracing::error!("packet thread panicked");
            }
        }
        self.monitor.forget_threads();
        self.threads.rounds = Arc::new(Rounds::new());
        (self.threads.requests, self.threads.notices, self.handover.holder) =
            (Vec::new(), Vec::new(), Holder::Me);
        self.prepare()?;
        self.use_previous_tables();
        for (thread, table) in tables {
            if let Some(flows) = self.flows_of(thread) {
                *flows = table;
            }
        }
        self.groups().iter().try_for_each(|group| self.take(group))
    }

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

    /// Returns the connection table that receives the flows from a thread of the other process.
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

    /// Returns `true` if some threads are still waiting for their queues.
    #[must_use]
    pub fn waits_for_queues(&self) -> bool {
        self.handover.prepared.is_some()
    }

    /// Binds the queues of a released group and starts its threads. If the other process has a
    /// different number of threads, the queues are bound only after the last group was released. In
    /// this case, a packet can arrive on a thread whose table does not contain the flow.
    ///
    /// # Errors
    /// The errors are the same as for [`DataPlane::start`]. In addition, [`StartError::Busy`] is
    /// returned if the kernel keeps an old socket open for two seconds.
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

    /// Ends the takeover once all threads run. The monitor then watches the threads.
    fn complete(&mut self, prepared: Prepared) -> Result<(), StartError> {
        let Prepared { mut running, all_born, waiting, .. } = prepared;
        drop(waiting);
        running.sort_by_key(|begun| begun.number);
        for Begun { thread, name, sockets, .. } in running {
            // SAFETY: the thread keeps these sockets open until it leaves on a command of this
            // data plane.
            let borrowed = |(interface, fd)| (interface, unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) });
            self.monitor.add_thread(name, sockets.into_iter().map(borrowed))?;
            self.threads.running.push(thread);
        }
        // Returns when the last thread has started and dropped its sender.
        let _ = all_born.recv();
        self.unserved = self.without_socket().collect();
        self.threads.wakers.iter().for_each(Waker::ring);
        Ok(())
    }

    fn note_sockets(&mut self, thread: ThreadId) {
        if self.sockets.len() > usize::from(thread.0) {
            return;
        }
        let own = self.layout.each().filter(|(.., of)| *of == thread).map(|(interface, ..)| interface);
        let counters = Arc::new(SocketCounters::on(own));
        self.sockets.push(counters);
    }
}

/// The maximum number of tables from earlier processes. Each table uses memory until its last flow
/// has expired. Until the index is built, lookups of unknown flows search all of them.
const MAX_PREVIOUS_TABLES: usize = 128;

fn monotonic_nanos() -> u64 {
    // The call can fail only for clocks that do not exist.
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
            idle: Idle { spin: Duration::ZERO, wake_up_price: Duration::ZERO, sleep: true },
            busy_poll: None,
            max_vips: 10,
            max_slots: 10,
            no_socket: NoSocket::Pass,
            icmp: IcmpRates { replies: 1, replies_per_source: 1, errors: 1, errors_per_source: 1 },
            limit_sources: 0,
            fragments: FragmentConfig::default(),
            source_ports: 1..=8,
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
            source_ports: 1..=8,
            previous: Vec::new(),
            origin_nanos: monotonic_nanos() - 5_000_000_000,
            programs: Vec::new(),
        }
    }

    fn obstacles(facts: &PlaneFacts, settings: &Settings) -> Vec<String> {
        let interfaces = [interface(2)];
        let mut found = facts.obstacles(&interfaces, settings, &Layout::of(&interfaces, settings).unwrap());
        // The facts in this test contain no program, so the interfaces always differ.
        found.retain(|why| !why.starts_with("interfaces: "));
        found
    }

    #[test]
    fn handover_with_other_threads_needs_few_former_tables() {
        let may = |tables: usize| {
            PlaneFacts { previous: vec![1_000; tables], ..facts() }
                .may_have_other_threads()
                .map_err(|e| e.to_string())
        };
        assert_eq!([0, 1, 126].map(may), [Ok(()), Ok(()), Ok(())]);
        let refused = may(127).unwrap_err();
        assert!(refused.contains("129 connection tables") && refused.contains("at most 128"), "{refused}");
        let one_thread_a_table = PlaneFacts { packet_threads: 200, ..facts() };
        assert!(one_thread_a_table.may_have_other_threads().is_ok(), "no previous table exists yet");
    }

    #[test]
    fn facts_without_former_tables_are_accepted() {
        let mut said = serde_json::to_value(facts()).unwrap();
        said.as_object_mut().unwrap().remove("previous").unwrap();
        assert_eq!(serde_json::from_value::<PlaneFacts>(said).unwrap().previous_tables(), 0);
    }

    #[test]
    fn obstacles_name_each_setting_that_needs_a_restart() {
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
            (Settings { source_ports: 2..=8, ..settings() }, "io.source_ports: 1-8 -> 2-8"),
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
        assert_eq!(obstacles(&small, &settings()), ["queues: [1] -> [2]"], "the map is too small");
        let named = facts().obstacles(&[ours], &settings(), &Layout::of(&[theirs], &settings()).unwrap());
        assert_eq!(named, ["interfaces:  -> eth0"]);
    }

    #[test]
    fn origin_continues_the_clock_of_the_other_process() {
        let since = facts().origin().unwrap().elapsed();
        assert!(since >= Duration::from_secs(5) && since < Duration::from_secs(60), "{since:?}");
    }
}
