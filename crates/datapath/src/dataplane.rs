//! The data plane of a machine: programs, memory, sockets, threads; started and stopped as one.
//!
//! In: a [`Live`] snapshot and settings that hold until the next start. Out: counters, request ports, the filter's handle.
//! Not here: what the snapshot says; when the filter changes (the binary wires it, so that neither plane knows the other).
//! Thread `n` has the sockets of queue `n` of every interface that has one; what leaves by another interface goes to a
//! thread that has a queue there.
//! Invariant: when it is dropped, the interfaces are as they were found.

mod sockets;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forwarder::{
    FragmentConfig, IcmpRates, Live, NoSocket, Notice, Notices, Now, Pipeline, PipelineConfig, RequestPort,
    ThreadCounters, ThreadId, Timeouts, notice_ring, request_ring,
};

use crate::af_packet::{Room, open_all};
use crate::engine::{Engine, Pool};
use crate::error::{StartError, words};
use crate::hash_lanes::lane_hashers;
use crate::health::{Health, Monitor};
use crate::interface::{Interface, LONGEST_PACKET, Privileges, Severity, largest_packet, privilege_findings};
use crate::mailbox::mesh;
use crate::sockets::{SocketCounters, SocketMode, Sockets};
use crate::steer::{Filter, Steer, SteerOptions, Steers};
use crate::thread::{Idle, PacketThread};
use crate::wake::Waker;

use self::sockets::{Layout, bind_all, in_several_frames};

/// By which sockets frames are moved.
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
    threads: Vec<JoinHandle<()>>,
    /// Each thread's counters.
    pub counters: Vec<Arc<ThreadCounters>>,
    /// Each thread's sockets, as one.
    pub sockets: Vec<Arc<SocketCounters>>,
    requests: Vec<RequestPort>,
    notices: Vec<Notices>,
    wakers: Arc<[Waker]>,
    stop: Arc<AtomicBool>,
    monitor: Monitor,
    /// Where the packet threads' clock begins: they count nanoseconds from here.
    pub origin: Instant,
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
        let largest_packet = if in_several_frames(&interfaces, settings.frame_size) {
            tracing::info!(
                "packets that no frame holds are taken in several, and copied: the MTU asks for it"
            );
            LONGEST_PACKET
        } else {
            largest_packet(settings.frame_size)
        };
        let steers = Steers::new(attach_all(&interfaces, settings, layout)?);
        let (bound, socket_mode) = bind_all(&interfaces, settings, layout)?;
        let mut plane = Self::new(interfaces, steers, layout, socket_mode, largest_packet)?;
        plane.start_threads(settings, live, bound)?;
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
        let opened = open_all(&interfaces, &steers, layout.threads(), room)?;
        let mut plane = Self::new(interfaces, steers, layout, SocketMode::Packet, room.largest_packet())?;
        plane.start_threads(settings, live, opened)?;
        Ok(plane)
    }

    /// Before its threads.
    fn new(
        interfaces: Vec<Interface>,
        steers: Steers,
        layout: &Layout,
        socket_mode: SocketMode,
        largest_packet: u32,
    ) -> Result<Self, StartError> {
        let mut monitor = Monitor::default();
        for ((steer, interface), queues) in steers.each().iter().zip(&interfaces).zip(&layout.queues) {
            monitor.add_program(steer.program(), steer.mode(), u32::from(*queues) < interface.queues);
        }
        let wakers = (0..layout.threads()).map(|_| Waker::new()).collect::<Result<Vec<_>, _>>()?.into();
        Ok(Self {
            monitor,
            interfaces,
            steers,
            socket_mode,
            largest_packet,
            threads: Vec::new(),
            counters: Vec::new(),
            sockets: Vec::new(),
            requests: Vec::new(),
            notices: Vec::new(),
            wakers,
            stop: Arc::new(AtomicBool::new(false)),
            origin: Instant::now(),
        })
    }

    /// The request port of a thread; call [`DataPlane::wake`] after asking.
    pub fn requests(&mut self, thread: ThreadId) -> Option<&mut RequestPort> {
        self.requests.get_mut(usize::from(thread.0))
    }

    /// The threads' notices since the last call.
    pub fn notices(&mut self) -> impl Iterator<Item = Notice> {
        self.notices.iter_mut().flatten()
    }

    /// The time by the packet threads' clock.
    #[must_use]
    pub fn now(&self) -> Now {
        Now::from_nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Wakes a thread for its request.
    pub fn wake(&self, thread: ThreadId) {
        if let Some(waker) = self.wakers.get(usize::from(thread.0)) {
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
        let no_socket: Vec<u64> =
            self.steers.each().iter().map(|steer| steer.counts().unwrap_or_default().no_socket).collect();
        self.monitor.look(&self.interfaces, &self.threads, &self.sockets, &no_socket)
    }

    fn start_threads<D>(
        &mut self,
        settings: &Settings,
        live: &Live,
        bound: Vec<(D, Vec<D::Frame>)>,
    ) -> Result<(), StartError>
    where
        D: Sockets + Send + 'static,
    {
        let in_all = bound.iter().map(|(_, frames)| frames.len()).sum();
        let threads = u16::try_from(bound.len()).unwrap_or(u16::MAX);
        let (born, all_born) = channel();
        for ((device, frames), mailboxes) in bound.into_iter().zip(mesh(threads, MAILBOX)) {
            let number = self.threads.len();
            self.add_sockets(number, &device)?;
            let counters = Arc::new(ThreadCounters::new(settings.max_slots, settings.max_slots));
            let socket = Arc::new(SocketCounters::on(device.sockets().map(|(interface, _)| interface)));
            let config = pipeline_config(settings, mailboxes.me(), threads);
            let pipeline = self.pipeline(config, live, Arc::clone(&counters))?;
            let pool = Pool { frames, in_all };
            let thread = PacketThread {
                engine: Engine::new(device, pipeline, mailboxes, pool, Arc::clone(&counters)),
                counters: Arc::clone(&counters),
                socket: Arc::clone(&socket),
                wakers: Arc::clone(&self.wakers),
                number,
                idle: settings.idle,
                stop: Arc::clone(&self.stop),
                origin: self.origin,
                born: Some(born.clone()),
            };
            let builder = std::thread::Builder::new().name(format!("packet-{number}"));
            self.threads.push(builder.spawn(move || thread.run())?);
            self.counters.push(counters);
            self.sockets.push(socket);
        }
        drop(born);
        // Nobody sends: it ends when the last thread is at work.
        let _ = all_born.recv();
        Ok(())
    }

    /// Watches the sockets of a thread, and lets XDP programs redirect to them once the filter has a VIP.
    fn add_sockets(&mut self, number: usize, device: &impl Sockets) -> Result<(), StartError> {
        // SAFETY: the device is open, and the borrows end with this function.
        let borrowed = |(interface, fd)| (interface, unsafe { BorrowedFd::borrow_raw(fd) });
        self.monitor.add_thread(device.sockets().map(borrowed))?;
        if self.socket_mode == SocketMode::Packet {
            return Ok(()); // their filter lets them have packets
        }
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        for (interface, fd) in device.sockets() {
            if let Some(steer) = self.steers.on(interface) {
                steer.set_socket(number, &fd).map_err(|e| StartError::Steer(words(&e)))?;
            }
        }
        Ok(())
    }

    /// A thread's pipeline, with the other ends of its rings kept.
    fn pipeline(
        &mut self,
        config: PipelineConfig,
        live: &Live,
        counters: Arc<ThreadCounters>,
    ) -> Result<Pipeline, StartError> {
        let (port, server) = request_ring(REQUESTS);
        let (sink, notices) = notice_ring(NOTICES);
        let pipeline = Pipeline::new(config, live, counters, Some(server));
        let pipeline = pipeline.map_err(|error| StartError::Tables(error.to_string()))?;
        self.requests.push(port);
        self.notices.push(notices);
        Ok(pipeline.with_notices(sink))
    }
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        if let Err(error) = self.steers.set_filter(&Filter::default()) {
            tracing::warn!(%error, "emptying the filter");
        }
        // What was redirected before the filter was empty reaches the threads in this time.
        std::thread::sleep(LAST_PACKETS);
        self.stop.store(true, Ordering::Relaxed);
        self.wakers.iter().for_each(Waker::ring);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a packet thread panicked");
            }
        }
    }
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
            max_queues: (*queues).into(),
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
        held_of_a_pool: held_of_a_pool(settings.frames_per_queue, threads),
        hashers: lane_hashers(),
    }
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

/// Frames in each mailbox.
const MAILBOX: usize = 1024;
const REQUESTS: usize = 16;
pub(crate) const NOTICES: usize = 256;
const LAST_PACKETS: Duration = Duration::from_millis(20);
