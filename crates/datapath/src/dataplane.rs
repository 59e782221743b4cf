//! The data plane of a machine: programs, memory, sockets, threads; started and stopped as one.
//!
//! In: a [`Live`] snapshot and settings that hold until the next start. Out: counters, request ports, the filter's handle.
//! Not here: what the snapshot says; when the filter changes (the binary wires it, so that neither plane knows the other).
//! Thread `n` has the sockets of queue `n` of every interface that has one; what leaves by another interface goes to a
//! thread that has a queue there. With software steering these are I/O threads, behind packet threads that have no queue.
//! Another process may take the queues over while the programs stay (`handover`); `threads` starts them.
//! Invariant: when it is dropped, the interfaces are as they were found, unless they are another process's by then.

mod former;
mod handover;
mod sockets;
mod threads;

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forwarder::{
    Counter, FragmentConfig, IcmpRates, Live, NoSocket, Notice, Notices, Now, OwnPorts, OwnRequests,
    PipelineConfig, RequestPort, ThreadCounters, ThreadId, Timeouts,
};

use crate::af_packet::{Room, open_all};
use crate::error::{StartError, words};
use crate::hash_lanes::lane_hashers;
use crate::health::{Health, Monitor};
use crate::interface::{
    Hardware, Interface, LONGEST_PACKET, Privileges, Severity, largest_packet, privilege_findings,
};
use crate::large_pages::advise_large_pages;
use crate::placement::{Processors, allowed, near_all, near_to, order};
use crate::sockets::{SocketCounters, SocketMode};
use crate::steer::{Filter, Steer, SteerOptions, Steers};
use crate::stopping::Rounds;
use crate::thread::{Idle, LeaveOrder};
use crate::wake::Waker;

pub use self::handover::{PlaneFacts, TakenPlane};

use self::former::{Expected, Gathered, Shared};
use self::handover::Prepared;
use self::sockets::{Layout, bind_all, in_several_frames};

/// By which sockets frames are moved.
// `config` has a type of its own for the file's word: neither crate depends on the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// AF_XDP sockets, to which an XDP program redirects.
    AfXdp,
    /// Packet sockets behind the kernel's packet buffers, and an ingress program that takes the same packets from the kernel.
    AfPacket,
}

/// Settings of a data plane. A change needs a restart.
#[derive(Clone, Debug)]
pub struct Settings {
    /// By which sockets.
    pub mode: IoMode,
    /// Queues of each interface with a socket, from queue 0 on. `None`: all that it has. With packet sockets: how many
    /// threads there are; `None`: as many as the interface with most queues has.
    pub queues: Option<u32>,
    /// Software steering: an I/O thread for each queue, which gives packets by their flows to so many packet threads. `None`: each
    /// queue has a packet thread of its own. Not with packet sockets.
    pub steer_over: Option<NonZeroU16>,
    /// UMEM frames of each queue: a power of two. A thread's pool is that of its queues. With packet sockets: the frames of a
    /// thread, and the packets that can wait in each of its sockets.
    pub frames_per_queue: u32,
    /// Bytes of a UMEM frame: 2,048, or 4,096 for packets of up to [`crate::interface::largest_packet`] bytes. With packet
    /// sockets frames are larger by themselves where the MTU asks for it.
    pub frame_size: u32,
    /// Packets in a batch at most.
    pub batch: usize,
    /// Flows in each thread's connection table.
    pub flows_per_thread: usize,
    /// When flows are forgotten.
    pub timeouts: Timeouts,
    /// What a thread does while nothing arrives.
    pub idle: Idle,
    /// Packets that a driver receives at a time in its thread's own system calls; `None`: in interrupts. Not with packet sockets.
    pub busy_poll: Option<NonZeroU16>,
    /// VIP addresses that the filter can hold.
    pub max_vips: u32,
    /// Slots and services that are counted singly.
    pub max_slots: usize,
    /// Packets for a VIP on a queue without a socket.
    pub no_socket: NoSocket,
    /// How much ICMP each thread handles.
    pub icmp: IcmpRates,
    /// Sources whose rates each thread knows at once, 16 bytes each.
    pub limit_sources: usize,
    /// Each thread's table of fragmented datagrams.
    pub fragments: FragmentConfig,
    /// UDP ports that packet threads ask backends of keyed pools from, in equal shares; with fewer ports than threads none asks.
    pub own_ports: RangeInclusive<u16>,
}

/// A running data plane. Dropping it stops redirecting, lets the threads send what they have, ends them, and takes the programs
/// off.
#[derive(Debug)]
pub struct DataPlane {
    /// What the interfaces were at start.
    pub interfaces: Vec<Interface>,
    /// The filter.
    pub steers: Steers,
    /// The mode of all sockets.
    pub socket_mode: SocketMode,
    /// Bytes of the largest IP packet that is carried.
    pub largest_packet: u32,
    threads: Threads,
    /// Each thread's counters: those of packet threads, then those of I/O threads.
    pub counters: Vec<Arc<ThreadCounters>>,
    /// Each thread's sockets, as one.
    pub sockets: Vec<Arc<SocketCounters>>,
    monitor: Monitor,
    layout: Layout,
    settings: Settings,
    live: Live,
    handover: Handover,
    /// By interface: packets that came on a queue without a socket before all queues had theirs.
    unserved: Vec<u64>,
    /// Where the packet threads' clock begins: they count nanoseconds from here.
    pub origin: Instant,
}

/// The threads of a data plane, and the ends that it has of what it shares with them.
#[derive(Debug)]
struct Threads {
    running: Vec<JoinHandle<()>>,
    requests: Vec<RequestPort>,
    notices: Vec<Notices>,
    wakers: Arc<[Waker]>,
    /// Where threads run, in their order, and round again when there are more.
    processors: Vec<u32>,
    rounds: Arc<Rounds>,
    /// Of each round: it ends when all threads are through it.
    through: Vec<Receiver<()>>,
}

impl Threads {
    /// None yet.
    fn new(wakers: Arc<[Waker]>, processors: Vec<u32>) -> Self {
        let (running, requests, notices, through) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { running, requests, notices, wakers, processors, rounds: Arc::new(Rounds::new()), through }
    }
}

/// What of a data plane is on its way to another process, or has come from one.
#[derive(Debug)]
struct Handover {
    /// Whose interfaces and programs are.
    holder: Holder,
    /// By thread.
    leaving: BTreeMap<u16, LeaveOrder>,
    /// What waits for its queues, while they are another process's.
    prepared: Option<Prepared>,
    /// Whose queue was bound first: its socket lives as long as the UMEM.
    first_bound: Option<ThreadId>,
    /// By interface: queues that the program's map has room for.
    most_queues: Vec<u32>,
    /// Tables of a process with other threads, while they come.
    gathered: Option<Gathered>,
    /// Tables that it asked itself, while they come.
    expected: Vec<Expected>,
    /// Both, while threads ask for their flows.
    former: Option<Shared>,
}

/// Who takes programs off, and empties the filter, when a data plane is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// This one.
    Me,
    /// Another process, as long as it has not left.
    Another,
}

impl DataPlane {
    /// Attaches the program to each interface, opens the sockets and starts the threads. No packet is taken from the kernel
    /// before [`DataPlane::steers`] is given the first VIP. Interfaces are numbered as they stand here.
    ///
    /// # Errors
    /// [`StartError`], in words; the interfaces are then as they were found.
    pub fn start(interfaces: Vec<Interface>, settings: &Settings, live: &Live) -> Result<Self, StartError> {
        let layout = Layout::of(&interfaces, settings)?;
        match settings.mode {
            IoMode::AfXdp => Self::start_xdp(interfaces, &layout, settings, live),
            IoMode::AfPacket => Self::start_packet(interfaces, &layout, settings, live),
        }
    }

    fn start_xdp(
        interfaces: Vec<Interface>,
        layout: &Layout,
        settings: &Settings,
        live: &Live,
    ) -> Result<Self, StartError> {
        let largest_packet = largest(&interfaces, settings);
        let steers = Steers::new(attach_all(&interfaces, settings, layout)?);
        let near = near(&interfaces);
        let (bound, socket_mode) = near_to(&near, || bind_all(&interfaces, settings, layout))?;
        let kind = Kind { socket_mode, largest_packet };
        let mut plane = Self::new(interfaces, steers, Plan { layout, settings, live }, kind)?;
        plane.start_threads(bound)?;
        Ok(plane)
    }

    fn start_packet(
        interfaces: Vec<Interface>,
        layout: &Layout,
        settings: &Settings,
        live: &Live,
    ) -> Result<Self, StartError> {
        let room = Room::new(&interfaces, settings.frame_size, settings.frames_per_queue);
        let attach = |interface: &Interface| Steer::attach_ingress(&interface.name, settings.max_vips);
        let programs = interfaces.iter().map(attach).collect::<Result<_, _>>();
        let steers = Steers::new(programs.map_err(|e| StartError::Steer(words(&e)))?);
        let near = near(&interfaces);
        let opened = near_to(&near, || open_all(&interfaces, &steers, layout.threads(), room))?;
        let kind = Kind { socket_mode: SocketMode::Packet, largest_packet: room.largest_packet() };
        let mut plane = Self::new(interfaces, steers, Plan { layout, settings, live }, kind)?;
        plane.start_threads(opened)?;
        Ok(plane)
    }

    /// Before its threads.
    fn new(
        interfaces: Vec<Interface>,
        steers: Steers,
        plan: Plan<'_>,
        kind: Kind,
    ) -> Result<Self, StartError> {
        let (Plan { layout, settings, live }, Kind { socket_mode, largest_packet }) = (plan, kind);
        let wakers: Arc<[Waker]> =
            (0..layout.threads()).map(|_| Waker::new()).collect::<Result<Vec<_>, _>>()?.into();
        let mut monitor = Monitor::new(Arc::clone(&wakers));
        for ((steer, interface), queues) in steers.each().iter().zip(&interfaces).zip(&layout.queues) {
            monitor.add_program(steer.program(), steer.mode(), u32::from(*queues) < interface.queues);
        }
        let most_queues = interfaces
            .iter()
            .zip(&layout.queues)
            .map(|(interface, queues)| most_queues(interface, *queues))
            .collect();
        Ok(Self {
            monitor,
            threads: Threads::new(wakers, order(&allowed(), &near(&interfaces))),
            interfaces,
            steers,
            socket_mode,
            largest_packet,
            counters: Vec::new(),
            sockets: Vec::new(),
            layout: layout.clone(),
            settings: settings.clone(),
            live: live.clone(),
            handover: Handover {
                holder: Holder::Me,
                leaving: BTreeMap::new(),
                prepared: None,
                first_bound: layout.each().next().map(|(.., thread)| thread),
                most_queues,
                gathered: None,
                expected: Vec::new(),
                former: None,
            },
            unserved: Vec::new(),
            origin: Instant::now(),
        })
    }

    /// How many threads have sockets: as many as the interface with most queues has of them.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.sockets.iter().filter(|socket| !socket.links.is_empty()).count()
    }

    /// How many packet threads there are.
    #[must_use]
    pub fn packet_threads(&self) -> usize {
        self.threads.requests.len()
    }

    /// The request port of a packet thread; call [`DataPlane::wake`] after asking.
    pub fn requests(&mut self, thread: ThreadId) -> Option<&mut RequestPort> {
        self.threads.requests.get_mut(usize::from(thread.0))
    }

    /// The threads' notices since the last call.
    pub fn notices(&mut self) -> impl Iterator<Item = Notice> {
        self.threads.notices.iter_mut().flatten()
    }

    /// The time by the packet threads' clock.
    #[must_use]
    pub fn now(&self) -> Now {
        Now::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Wakes a thread for its request.
    pub fn wake(&self, thread: ThreadId) {
        if let Some(waker) = self.threads.wakers.get(usize::from(thread.0)) {
            waker.wake();
        }
    }

    /// Whether packets are carried. What goes wrong is seen within a second when this is asked four times a second. A lost
    /// socket remains lost, a program that came back does not.
    ///
    /// # Cost
    /// One netlink request and one look at a map for each interface, a getsockopt for each queue; nothing on the packet
    /// threads.
    pub fn health(&mut self) -> Health {
        self.free_former();
        let before = self.unserved.iter().copied().chain(std::iter::repeat(0));
        let no_socket: Vec<u64> =
            self.without_socket().zip(before).map(|(now, before)| now.saturating_sub(before)).collect();
        self.monitor.look(&self.interfaces, &self.threads.running, &self.sockets, &no_socket)
    }

    /// By interface: packets that came on a queue without a socket.
    fn without_socket(&self) -> impl Iterator<Item = u64> {
        self.steers.each().iter().map(|steer| steer.counts().unwrap_or_default().no_socket)
    }
}

/// What a data plane is to be.
#[derive(Clone, Copy)]
struct Plan<'a> {
    layout: &'a Layout,
    settings: &'a Settings,
    live: &'a Live,
}

/// What came of opening its sockets.
#[derive(Clone, Copy)]
struct Kind {
    socket_mode: SocketMode,
    largest_packet: u32,
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        // What waits for its queues holds the ends of the rounds.
        self.handover.prepared = None;
        if self.handover.holder == Holder::Me {
            if let Err(error) = self.steers.set_filter(&Filter::default()) {
                tracing::warn!(%error, "emptying the filter");
            }
            // What was redirected before the filter was empty reaches the threads in this time.
            std::thread::sleep(LAST_PACKETS);
        }
        for (round, through) in (1..).zip(&self.threads.through) {
            self.threads.rounds.begin(round);
            self.threads.wakers.iter().for_each(Waker::ring);
            // Nobody sends: it ends when the last thread is through.
            let _ = through.recv();
        }
        for thread in self.threads.running.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a packet thread panicked");
            }
        }
        let sum = |of: fn(&ThreadCounters) -> &Counter| self.counters.iter().map(|all| of(all).read()).sum();
        let (put, taken): (u64, u64) = (sum(|all| &all.to_threads), sum(|all| &all.from_threads));
        if put != taken && self.handover.holder == Holder::Me {
            tracing::warn!(packets = put.saturating_sub(taken), "packets were left between threads");
        }
    }
}

/// Bytes of the largest IP packet that frames of this size carry, or several of them.
fn largest(interfaces: &[Interface], settings: &Settings) -> u32 {
    if !in_several_frames(interfaces, settings.frame_size) {
        return largest_packet(settings.frame_size);
    }
    tracing::info!("packets that no frame holds are taken in several, and copied: the MTU asks for it");
    LONGEST_PACKET
}

/// The processors that packets of these interfaces are best handled on; none where the machine does not say.
fn near(interfaces: &[Interface]) -> Processors {
    near_all(interfaces.iter().map(|interface| Hardware::read(interface).near))
}

/// Queues that may have a socket as long as the program stays: a process that takes over may have more.
fn most_queues(interface: &Interface, queues: u16) -> u32 {
    interface.queues.max(interface.max_queues).max(queues.into())
}

fn attach_all(
    interfaces: &[Interface],
    settings: &Settings,
    layout: &Layout,
) -> Result<Vec<Steer>, StartError> {
    let mut programs = Vec::with_capacity(interfaces.len());
    for (interface, queues) in interfaces.iter().zip(&layout.queues) {
        let options = SteerOptions {
            max_vips: settings.max_vips,
            no_socket: settings.no_socket,
            max_queues: most_queues(interface, *queues),
        };
        let steer = Steer::attach(&interface.name, &options).map_err(|e| StartError::Steer(words(&e)))?;
        programs.push(steer);
    }
    Ok(programs)
}

pub(crate) fn pipeline_config(settings: &Settings, thread: ThreadId, threads: u16) -> PipelineConfig {
    PipelineConfig {
        thread,
        threads,
        flows: settings.flows_per_thread,
        timeouts: settings.timeouts,
        max_batch: settings.batch,
        icmp: settings.icmp,
        limit_sources: settings.limit_sources,
        fragments: settings.fragments,
        own_requests: OwnPorts::new(&settings.own_ports, threads).map(own_requests),
        held_of_a_pool: held_of_a_pool(settings.frames_per_queue, threads),
        hashers: lane_hashers(),
        is_steered: settings.steer_over.is_some(),
        advise: advise_large_pages,
    }
}

/// Of a thread. Nobody can tell beforehand what answers are known by.
fn own_requests(ports: OwnPorts) -> OwnRequests {
    let secret = RandomState::new(); // of the system's randomness, as hash maps have it
    let seed = [secret.hash_one(0_u8), secret.hash_one(1_u8)];
    OwnRequests { ports, requests: GATHERED, passing: PASSING, fetches: FETCHES, writes: WRITES, seed }
}

/// All threads together never hold more than a quarter of a pool, which needs its frames to receive.
fn held_of_a_pool(frames: u32, threads: u16) -> usize {
    (frames as usize / 4 / usize::from(threads.max(1))).max(1)
}

/// Facts about an interface that a data plane is to start on in a mode, with UMEM frames of `frame_size` bytes. Refuses what cannot work
/// there, or without the process's capabilities, and warns of what should not be.
///
/// # Errors
/// [`StartError::Interface`], with everything that is in the way at once.
pub fn inspect(name: &str, mode: IoMode, frame_size: u32) -> Result<Interface, StartError> {
    let interface = Interface::read(name)
        .map_err(|error| StartError::Interface(words(&error)))?
        .with_program_name()
        .with_multi_buffer();
    let mut findings = match mode {
        IoMode::AfXdp => interface.findings(frame_size),
        IoMode::AfPacket => interface.packet_findings(),
    };
    findings.extend(privilege_findings(Privileges::read()?));
    let mut refusals = Vec::new();
    for finding in findings {
        match finding.severity {
            Severity::Warn => tracing::warn!(interface = name, "{finding}"),
            // For `doctor`: a start is not the time for it.
            Severity::Advice => {}
            Severity::Error => refusals.push(finding.to_string()),
        }
    }
    if refusals.is_empty() { Ok(interface) } else { Err(StartError::Interface(refusals.join("\n"))) }
}

/// Facts about an interface that another process's data plane is on, whose place is to be taken: that one has looked at the rest.
///
/// # Errors
/// [`StartError::Interface`]: it is not there.
pub fn inspect_taken(name: &str) -> Result<Interface, StartError> {
    let found = Interface::read(name).map_err(|error| StartError::Interface(words(&error)))?;
    Ok(found.with_multi_buffer())
}

/// Requests that a thread gathers at once: 50,000 a second if all wait 20 ms in vain, and many more where backends answer.
const GATHERED: usize = 1_024;
/// Requests that wait at once for an answer that passes through: 40,000 a second if all wait 200 ms in vain.
const PASSING: usize = 8_192;
/// Values that a thread's cache asks for at once: it has 128 under way at most, and ids of others rest meanwhile.
const FETCHES: usize = 1_024;
/// Writes that a thread has carried out by all backends of their keys at once: 50,000 a second if all wait 20 ms in vain.
const WRITES: usize = 1_024;
/// Frames in each mailbox.
const MAILBOX: usize = 1024;
const REQUESTS: usize = 16;
pub(crate) const NOTICES: usize = 256;
const LAST_PACKETS: Duration = Duration::from_millis(20);
