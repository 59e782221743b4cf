//! The data plane sets up and tears down BPF programs, packet memory, sockets and threads as one
//! unit.
//!
//! Thread `n` owns the sockets of queue `n` on all interfaces that have a queue with this number.
//! If a thread has no queue on the outgoing interface of a packet, the thread passes the packet to
//! a thread with a queue on that interface. With software steering, I/O threads own the queues, and
//! packet threads have no queues.
//!
//! Another process can take over the queues while the programs stay attached (module `handover`).
//! The `sluicegate` binary updates the filter of VIPs. As a result, data plane and control plane do
//! not depend on each other.
//!
//! Invariant: dropping the data plane detaches the programs, unless another process has taken over
//! the interfaces.

mod handover;
mod previous;
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
    Counter, FragmentConfig, IcmpRates, Live, NoSocket, Notice, Notices, Now, PipelineConfig, RequestPort,
    SourcePorts, ThreadCounters, ThreadId, Timeouts, UpstreamRequests,
};

use crate::af_packet::{Room, open_all};
use crate::error::{StartError, words};
use crate::hash_lanes::lane_hashers;
use crate::health::{Health, Monitor, Pause};
use crate::interface::{
    Hardware, Interface, LONGEST_PACKET, Privileges, Severity, largest_packet, privilege_findings,
};
use crate::large_pages::advise_large_pages;
use crate::placement::{Processors, allowed, near_all, near_to, order};
use crate::sockets::{SocketCounters, SocketMode};
use crate::steer::{Filter, Steer, SteerOptions, Steers};
use crate::stopping::Rounds;
use crate::thread::{Idle, LeaveCommand};
use crate::wake::Waker;

pub use self::handover::{PlaneFacts, TakenPlane};

use self::handover::Prepared;
use self::previous::{Expected, Gathered, Shared};
use self::sockets::{Layout, bind_all, in_several_frames};

/// The type of the sockets that receive and send packets.
// The crate `config` defines a separate type for the configured value, because neither crate
// depends on the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// AF_XDP sockets, to which an XDP program redirects packets.
    AfXdp,
    /// Packet sockets, which receive copies of packets from the kernel. An ingress program drops
    /// the original packets before the network stack handles them.
    AfPacket,
}

/// The settings of a data plane. Changing a setting requires a restart.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The type of sockets.
    pub mode: IoMode,
    /// The number of queues to use on each interface, starting at queue 0. Each used queue is bound
    /// to a socket. `None` means all queues. With packet sockets this is the number of packet
    /// threads, and `None` means the largest number of queues among the interfaces.
    pub queues: Option<u32>,
    /// The number of packet threads, for software steering. With software steering, each queue has
    /// an I/O thread, which distributes packets to the packet threads by flow. With `None`, each
    /// queue has its own packet thread. Packet sockets do not support software steering.
    pub steer_over: Option<NonZeroU16>,
    /// The number of UMEM frames for each queue, a power of two. The frame pool of a thread
    /// contains the frames of its queues. With packet sockets, this value is the number of frames
    /// per thread and the capacity of each receive ring.
    pub frames_per_queue: u32,
    /// The size of a UMEM frame in bytes: 2,048, or 4,096 for packets of up to
    /// [`crate::interface::largest_packet`] bytes. With packet sockets, the frame size is increased
    /// to fit the MTU.
    pub frame_size: u32,
    /// The largest number of packets in a batch.
    pub batch: usize,
    /// The capacity of the connection table of each thread, in flows.
    pub flows_per_thread: usize,
    /// The idle timeouts of flows.
    pub timeouts: Timeouts,
    /// The behavior of an idle thread, which polls its rings or sleeps.
    pub idle: Idle,
    /// The busy-poll budget: the maximum number of packets that the driver receives during one
    /// system call of the thread. With `None`, the driver runs in interrupt context. Packet sockets
    /// do not support busy polling.
    pub busy_poll: Option<NonZeroU16>,
    /// The maximum number of VIP addresses in the filter of the steering program.
    pub max_vips: u32,
    /// The maximum number of backends with separate counters. The same limit applies to services.
    pub max_slots: usize,
    /// The handling of VIP packets that arrive on a queue without a socket.
    pub no_socket: NoSocket,
    /// The ICMP rate limits of each thread.
    pub icmp: IcmpRates,
    /// The number of source addresses that each thread tracks for rate limits. Each address needs
    /// 16 bytes of memory.
    pub limit_sources: usize,
    /// The settings of the fragment table of each thread.
    pub fragments: FragmentConfig,
    /// The range of UDP source ports for upstream requests to backends of keyed pools. The ports
    /// are divided equally among the packet threads. If there are fewer ports than threads, the
    /// threads send no upstream requests.
    pub source_ports: RangeInclusive<u16>,
}

/// A running data plane. Dropping the value stops the redirection of packets to the threads. The
/// threads then send their remaining packets and stop, and the programs are detached.
#[derive(Debug)]
pub struct DataPlane {
    /// The properties of the interfaces, which were read before the data plane was started.
    pub interfaces: Vec<Interface>,
    /// The XDP or ingress program of each interface, with its filter.
    pub steers: Steers,
    /// The mode of all sockets.
    pub socket_mode: SocketMode,
    /// The largest IP packet that can be forwarded, in bytes.
    pub largest_packet: u32,
    threads: Threads,
    /// The counters of each thread. The packet threads come first, followed by the I/O threads.
    pub counters: Vec<Arc<ThreadCounters>>,
    /// The socket counters of each thread, summed over its sockets.
    pub sockets: Vec<Arc<SocketCounters>>,
    monitor: Monitor,
    layout: Layout,
    settings: Settings,
    live: Live,
    handover: Handover,
    /// For each interface, the number of packets that arrived on a queue without a socket before
    /// all sockets were bound.
    unserved: Vec<u64>,
    /// The instant at which the clock of the packet threads, which counts nanoseconds, was 0.
    pub origin: Instant,
}

/// The threads of a data plane, and the rings through which the data plane communicates with them.
#[derive(Debug)]
struct Threads {
    running: Vec<JoinHandle<()>>,
    requests: Vec<RequestPort>,
    notices: Vec<Notices>,
    wakers: Arc<[Waker]>,
    /// The processors for the threads, in thread order. If there are more threads than processors,
    /// processors are reused from the start of the list.
    processors: Vec<u32>,
    rounds: Arc<Rounds>,
    /// One channel for each shutdown round. A channel closes when all threads have finished its
    /// round.
    through: Vec<Receiver<()>>,
}

impl Threads {
    fn new(wakers: Arc<[Waker]>, processors: Vec<u32>) -> Self {
        let (running, requests, notices, through) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { running, requests, notices, wakers, processors, rounds: Arc::new(Rounds::new()), through }
    }
}

#[derive(Debug)]
struct Handover {
    /// The process that currently owns the interfaces and the BPF programs.
    holder: Holder,
    /// The commands that stop individual threads, keyed by thread number.
    leaving: BTreeMap<u16, LeaveCommand>,
    /// During a takeover, the threads that are ready to run but whose queues still belong to the
    /// other process.
    prepared: Option<Prepared>,
    /// The thread that owns the first bound queue. The socket of this queue is closed together with
    /// the UMEM, not earlier.
    first_bound: Option<ThreadId>,
    /// The maximum number of queues for each interface, which is the size of the socket map in its
    /// XDP program.
    most_queues: Vec<u32>,
    /// The connection tables that are being transferred from a previous process with a different
    /// number of threads, or `None` if there is no such transfer.
    gathered: Option<Gathered>,
    /// The connection tables that the previous process received from earlier processes and is now
    /// passing on to this process.
    expected: Vec<Expected>,
    /// The connection tables of all previous processes, as long as threads look up flows in them.
    previous: Option<Shared>,
}

/// The process that owns the programs. This process empties the filter and detaches the programs
/// when its data plane is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// This process owns the programs.
    Me,
    /// A different process owns the programs. During a handover, the old process stays the owner
    /// until it has exited.
    Another,
}

impl DataPlane {
    /// Attaches the program to each interface, opens the sockets and starts the threads. All
    /// packets go to the kernel until the first VIP is added to the filter in
    /// [`DataPlane::steers`]. Interfaces are numbered in the order in which they are given.
    ///
    /// # Errors
    /// Returns a [`StartError`]. After an error, all programs that were already attached are
    /// detached again.
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

    /// Creates the data plane without its threads.
    fn new(
        interfaces: Vec<Interface>,
        steers: Steers,
        plan: Plan<'_>,
        kind: Kind,
    ) -> Result<Self, StartError> {
        let (Plan { layout, settings, live }, Kind { socket_mode, largest_packet }) = (plan, kind);
        let wakers: Arc<[Waker]> =
            (0..layout.threads()).map(|_| Waker::new()).collect::<Result<Vec<_>, _>>()?.into();
        let mut monitor = Monitor::new(Arc::clone(&wakers))?;
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
                previous: None,
            },
            unserved: Vec::new(),
            origin: Instant::now(),
        })
    }

    /// Returns the number of threads that have sockets, which is the largest number of queues on
    /// any interface.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.sockets.iter().filter(|socket| !socket.links.is_empty()).count()
    }

    /// Returns the number of packet threads.
    #[must_use]
    pub fn packet_threads(&self) -> usize {
        self.threads.requests.len()
    }

    /// Returns the handle that sends requests to a packet thread. Call [`DataPlane::wake`] after
    /// sending a request.
    pub fn requests(&mut self, thread: ThreadId) -> Option<&mut RequestPort> {
        self.threads.requests.get_mut(usize::from(thread.0))
    }

    /// Returns the notices that all threads sent since the last call.
    pub fn notices(&mut self) -> impl Iterator<Item = Notice> {
        self.threads.notices.iter_mut().flatten()
    }

    /// Returns the current time on the clock of the packet threads.
    #[must_use]
    pub fn now(&self) -> Now {
        Now::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Wakes a thread, so that it reads its requests.
    pub fn wake(&self, thread: ThreadId) {
        if let Some(waker) = self.threads.wakers.get(usize::from(thread.0)) {
            waker.wake();
        }
    }

    /// Checks whether packets are being forwarded. Call this method four times a second to detect a
    /// problem within one second. A lost socket remains a problem until a restart. A missing
    /// program remains a problem until it is attached again.
    ///
    /// # Cost
    /// One netlink request and one map lookup for each interface, and one `getsockopt` for each
    /// queue. The call causes no work in the packet threads.
    pub fn health(&mut self) -> Health {
        self.free_previous();
        let before = self.unserved.iter().copied().chain(std::iter::repeat(0));
        let no_socket: Vec<u64> =
            self.without_socket().zip(before).map(|(now, before)| now.saturating_sub(before)).collect();
        let clock = self.now();
        self.monitor.look(&self.interfaces, &self.threads.running, &self.sockets, &no_socket, clock)
    }

    /// Returns the time until the next check that can find a stuck thread, or that can find a stall
    /// that has lasted for `max_stall`. Call [`DataPlane::health`] at that time, in addition to the
    /// regular calls.
    #[must_use]
    pub fn due_in(&self, max_stall: Duration) -> Option<Duration> {
        self.monitor.due_in(max_stall)
    }

    /// Returns for how long stuck threads have been the only problem. Returns `None` if the last
    /// call of [`DataPlane::health`] found no problem, or found a permanent problem.
    #[must_use]
    pub fn stalled(&self) -> Option<Duration> {
        self.monitor.stalled()
    }

    /// Restarts the time that [`DataPlane::stalled`] returns, after a time in which threads could
    /// not be checked.
    pub fn restart_stall(&mut self) {
        self.monitor.restart_stall();
    }

    /// Returns how long the process did not run, unless this pause was already reported.
    pub fn pause(&mut self) -> Option<Pause> {
        self.monitor.pause()
    }

    /// Returns, for each interface, the number of packets that arrived on a queue without a socket.
    fn without_socket(&self) -> impl Iterator<Item = u64> {
        self.steers.each().iter().map(|steer| steer.counts().unwrap_or_default().no_socket)
    }
}

/// The inputs of [`DataPlane::new`].
#[derive(Clone, Copy)]
struct Plan<'a> {
    layout: &'a Layout,
    settings: &'a Settings,
    live: &'a Live,
}

/// The properties of a data plane that become known when the sockets are open.
#[derive(Clone, Copy)]
struct Kind {
    socket_mode: SocketMode,
    largest_packet: u32,
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        // The code below waits until all senders of its channels are dropped. The prepared threads
        // hold such senders, so these threads must be dropped first.
        self.handover.prepared = None;
        if self.handover.holder == Holder::Me {
            if let Err(error) = self.steers.set_filter(&Filter::default()) {
                // log: At exit, the kernel refused to empty the filter. Packets for VIPs are lost
                // until the program is detached, which happens immediately afterwards.
                tracing::warn!(%error, "filter not emptied");
            }
            // Packets that were redirected just before the filter was emptied reach the threads
            // during this wait.
            std::thread::sleep(LAST_PACKETS);
        }
        for (round, through) in (1..).zip(&self.threads.through) {
            self.threads.rounds.begin(round);
            self.threads.wakers.iter().for_each(Waker::ring);
            // No thread sends a message, so `recv` returns when the last sender is dropped, at the
            // end of the round.
            let _ = through.recv();
        }
        for thread in self.threads.running.drain(..) {
            if thread.join().is_err() {
                // log: A packet thread stopped because of a bug. Report the bug together with the
                // log lines before this one.
                tracing::error!("packet thread panicked");
            }
        }
        let sum = |of: fn(&ThreadCounters) -> &Counter| self.counters.iter().map(|all| of(all).read()).sum();
        let (put, taken): (u64, u64) = (sum(|all| &all.to_threads), sum(|all| &all.from_threads));
        if put != taken && self.handover.holder == Holder::Me {
            // log: At exit, packets that one thread had passed to another were lost. The field
            // `packets` contains the number of lost packets.
            tracing::warn!(packets = put.saturating_sub(taken), "packets lost between threads");
        }
    }
}

/// Returns the maximum size of an IP packet that the data plane can receive, in one frame or in
/// several frames.
fn largest(interfaces: &[Interface], settings: &Settings) -> u32 {
    if !in_several_frames(interfaces, settings.frame_size) {
        return largest_packet(settings.frame_size);
    }
    // log: The MTU is larger than a frame, so long packets are received in several frames and then
    // copied. A larger `io.frame_size` or a smaller MTU avoids the copies.
    tracing::info!("long packets use several frames");
    LONGEST_PACKET
}

/// Returns the processors on the same memory node as the devices of these interfaces. The set is
/// empty if the machine does not report where the devices are connected.
fn near(interfaces: &[Interface]) -> Processors {
    near_all(interfaces.iter().map(|interface| Hardware::read(interface).near))
}

/// Returns the number of queues for which the socket map needs entries. A process that takes over
/// the program later may use more queues than this process.
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
        upstream_requests: SourcePorts::new(&settings.source_ports, threads).map(upstream_requests),
        held_of_a_pool: held_of_a_pool(settings.frames_per_queue, threads),
        hashers: lane_hashers(),
        is_steered: settings.steer_over.is_some(),
        advise: advise_large_pages,
    }
}

/// Returns the settings for the upstream requests of a thread. The random seed makes the request
/// IDs unpredictable.
fn upstream_requests(ports: SourcePorts) -> UpstreamRequests {
    // the standard library seeds `RandomState` from system randomness
    let secret = RandomState::new();
    let seed = [secret.hash_one(0_u8), secret.hash_one(1_u8)];
    UpstreamRequests { ports, requests: GATHERED, passing: PASSING, fetches: FETCHES, writes: WRITES, seed }
}

/// Returns how many frames a thread may hold from each frame pool. All threads together hold at
/// most a quarter of a pool, so that free frames for received packets remain.
fn held_of_a_pool(frames: u32, threads: u16) -> usize {
    (frames as usize / 4 / usize::from(threads.max(1))).max(1)
}

/// Reads the properties of an interface on which a data plane will start with the given mode and
/// frame size. Logs a warning for each problem that does not prevent the data plane from starting.
///
/// # Errors
/// [`StartError::Interface`] if the interface or the capabilities of the process do not allow a
/// start. The error message lists all problems.
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
            // log: A setting of the interface reduces performance, or may cause packet loss later.
            // The message contains the command that fixes the setting, and `sluicegate doctor`
            // explains the reason.
            Severity::Warn => tracing::warn!(interface = name, "{finding}"),
            // Only `sluicegate doctor` prints advice.
            Severity::Advice => {}
            Severity::Error => refusals.push(finding.to_string()),
        }
    }
    if refusals.is_empty() { Ok(interface) } else { Err(StartError::Interface(refusals.join("\n"))) }
}

/// Reads the properties of an interface during a takeover from another process. That process has
/// already checked the interface, so this function does not check it again.
///
/// # Errors
/// [`StartError::Interface`] if the interface does not exist.
pub fn inspect_taken(name: &str) -> Result<Interface, StartError> {
    let found = Interface::read(name).map_err(|error| StartError::Interface(words(&error)))?;
    Ok(found.with_multi_buffer())
}

/// The maximum number of pending requests that need replies from several backends, for each service
/// on each thread. Even if every request times out after 20 ms, the limit allows 50,000 requests a
/// second. If the backends reply in time, many more requests are possible.
const GATHERED: usize = 1_024;
/// The maximum number of pending proxied requests for each service on each thread. Even if every
/// request times out after 200 ms, the limit allows 40,000 requests a second. Requests without a
/// reply are not pending.
const PASSING: usize = 8_192;
/// The maximum number of fetches that a thread tracks while it fetches values for its cache. At
/// most 128 fetches are in flight at a time. The table is larger because the ID of a completed
/// fetch is not reused immediately.
const FETCHES: usize = 1_024;
/// The maximum number of pending client writes to replicated keys, for each service on each thread.
/// Even if every write times out after 20 ms, the limit allows 50,000 writes a second.
const WRITES: usize = 1_024;
/// The capacity, in frames, of each mailbox between two threads.
const MAILBOX: usize = 1024;
const REQUESTS: usize = 16;
pub(crate) const NOTICES: usize = 256;
const LAST_PACKETS: Duration = Duration::from_millis(20);
