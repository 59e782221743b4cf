//! The data plane of one interface: program, memory, sockets, threads; started and stopped as one.
//!
//! In: a [`Live`] snapshot and settings that hold until the next start. Out: counters, request ports, the filter's handle.
//! Not here: what the snapshot says; when the filter changes (the binary wires it, so that neither plane knows the other).
//! Invariant: when it is dropped, the interface is as it was found.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forwarder::{
    FragmentConfig, IcmpRates, Live, Notice, Notices, Now, Pipeline, PipelineConfig, RequestPort,
    ThreadCounters, ThreadId, Timeouts, notice_ring, request_ring,
};

use crate::attach::AttachMode;
use crate::engine::Engine;
use crate::error::StartError;
use crate::health::{Health, Monitor};
use crate::interface::{Interface, Privileges, Severity, privilege_findings};
use crate::mailbox::mesh;
use crate::steer::{Filter, NoSocket, Steer, SteerOptions};
use crate::thread::{Idle, PacketThread, SocketCounters};
use crate::umem::{Area, CHUNK, Frame, XDP_HEADROOM};
use crate::wake::Waker;
use crate::xsk::{SocketMode, XskDevice};

/// Settings of a data plane. A change needs a restart.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Queues with a socket, from queue 0 on. `None`: all that the interface has.
    pub queues: Option<u32>,
    /// UMEM frames of each thread's pool: a power of two.
    pub frames_per_queue: u32,
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

/// A running data plane.
#[derive(Debug)]
pub struct DataPlane {
    interface: Interface,
    steer: Steer,
    mode: SocketMode,
    threads: Vec<JoinHandle<()>>,
    counters: Vec<Arc<ThreadCounters>>,
    sockets: Vec<Arc<SocketCounters>>,
    requests: Vec<RequestPort>,
    notices: Vec<Notices>,
    wakers: Arc<[Waker]>,
    stop: Arc<AtomicBool>,
    monitor: Monitor,
    /// Where the packet threads' clock begins.
    origin: Instant,
}

impl DataPlane {
    /// Attaches the program, binds a socket to each queue and starts the threads. No packet is
    /// redirected before [`DataPlane::steer`] is given the first VIP.
    ///
    /// # Errors
    /// [`StartError`], in words; the interface is then as it was found.
    pub fn start(interface: Interface, settings: &Settings, live: &Live) -> Result<Self, StartError> {
        let queues = queues(settings, &interface)?;
        let options = SteerOptions {
            max_vips: settings.max_vips,
            no_socket: settings.no_socket,
            max_queues: queues.into(),
        };
        let steer = Steer::attach(&interface.name, &options).map_err(|e| StartError::Steer(words(&e)))?;
        let (bound, mode) = bind_all(&interface.name, settings, queues)?;
        let wakers = (0..queues).map(|_| Waker::new()).collect::<Result<Vec<_>, _>>()?.into();
        let monitor = Monitor::new(steer.program(), u32::from(queues) < interface.queues);
        let mut plane = Self {
            monitor,
            interface,
            steer,
            mode,
            threads: Vec::new(),
            counters: Vec::new(),
            sockets: Vec::new(),
            requests: Vec::new(),
            notices: Vec::new(),
            wakers,
            stop: Arc::new(AtomicBool::new(false)),
            origin: Instant::now(),
        };
        plane.start_threads(settings, live, bound)?;
        Ok(plane)
    }

    /// What the interface was at start.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// The mode of all sockets.
    #[must_use]
    pub fn socket_mode(&self) -> SocketMode {
        self.mode
    }

    /// Where the XDP program runs.
    #[must_use]
    pub fn attach_mode(&self) -> AttachMode {
        self.steer.mode()
    }

    /// The filter.
    pub fn steer(&mut self) -> &mut Steer {
        &mut self.steer
    }

    /// Each thread's counters.
    #[must_use]
    pub fn counters(&self) -> &[Arc<ThreadCounters>] {
        &self.counters
    }

    /// Each thread's socket.
    #[must_use]
    pub fn sockets(&self) -> &[Arc<SocketCounters>] {
        &self.sockets
    }

    /// Where the threads' clock began: they count nanoseconds from here.
    #[must_use]
    pub fn origin(&self) -> Instant {
        self.origin
    }

    /// The request port of a thread; call [`DataPlane::wake`] after asking.
    pub fn requests(&mut self, thread: ThreadId) -> Option<&mut RequestPort> {
        self.requests.get_mut(usize::from(thread.0))
    }

    /// What the threads have to tell, since it was last asked.
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
    /// socket stays lost, a program that came back does not.
    ///
    /// # Cost
    /// One netlink request, one look at a map, and a getsockopt for each queue; nothing on the packet threads.
    pub fn health(&mut self) -> Health {
        let no_socket = self.steer.no_socket().unwrap_or_default();
        self.monitor.look(&self.interface, &self.threads, &self.sockets, no_socket)
    }

    /// Stops redirecting, lets the threads send what they have, ends them, and takes the program off.
    pub fn stop(self) {
        drop(self);
    }

    fn start_threads(&mut self, settings: &Settings, live: &Live, bound: Bound) -> Result<(), StartError> {
        let count = bound.len();
        let frames_in_all = count * settings.frames_per_queue as usize;
        let threads = u16::try_from(count).unwrap_or(u16::MAX);
        let (born, all_born) = channel();
        for ((number, (device, frames)), mailboxes) in
            bound.into_iter().enumerate().zip(mesh(threads, MAILBOX))
        {
            let counters = Arc::new(ThreadCounters::new(settings.max_slots, settings.max_slots));
            let (port, server) = request_ring(REQUESTS);
            let config = PipelineConfig {
                thread: mailboxes.me(),
                threads,
                flows: settings.flows_per_thread,
                timeouts: settings.timeouts,
                max_batch: settings.batch,
                icmp: settings.icmp,
                limit_sources: settings.limit_sources,
                fragments: settings.fragments,
                held_of_a_pool: held_of_a_pool(settings.frames_per_queue, threads),
            };
            let pipeline = Pipeline::new(config, live, Arc::clone(&counters), Some(server));
            let (sink, notices) = notice_ring(NOTICES);
            let pipeline =
                pipeline.map_err(|error| StartError::Tables(error.to_string()))?.with_notices(sink);
            let socket = Arc::new(SocketCounters::default());
            let fd = device.fd();
            // SAFETY: the device is open, and the borrow ends with this statement.
            self.monitor.add(unsafe { BorrowedFd::borrow_raw(fd) })?;
            let thread = PacketThread {
                engine: Engine::new(
                    device,
                    pipeline,
                    mailboxes,
                    frames,
                    frames_in_all,
                    Arc::clone(&counters),
                ),
                counters: Arc::clone(&counters),
                socket: Arc::clone(&socket),
                wakers: Arc::clone(&self.wakers),
                number,
                idle: settings.idle,
                stop: Arc::clone(&self.stop),
                origin: self.origin,
                born: Some(born.clone()),
            };
            let handle =
                std::thread::Builder::new().name(format!("packet-{number}")).spawn(move || thread.run())?;
            self.threads.push(handle);
            self.counters.push(counters);
            self.sockets.push(socket);
            self.requests.push(port);
            self.notices.push(notices);
            let queue = u32::try_from(number).unwrap_or(u32::MAX);
            self.steer.set_socket(queue, &fd).map_err(|e| StartError::Steer(words(&e)))?;
        }
        drop(born);
        // Nobody sends: it ends when the last thread is at work.
        let _ = all_born.recv();
        Ok(())
    }
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        if let Err(error) = self.steer.set_filter(&Filter::default()) {
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

/// How many queues get a socket.
fn queues(settings: &Settings, interface: &Interface) -> Result<u16, StartError> {
    let there = interface.queues.max(1);
    let wanted = settings.queues.unwrap_or(there);
    if wanted > there {
        let said = format!("{}: {wanted} queues wanted, it has {there}", interface.name);
        return Err(StartError::Interface(said));
    }
    if wanted < there {
        tracing::warn!(
            interface = interface.name,
            without = there - wanted,
            "queues without a socket: packets for VIPs that arrive on them are passed or dropped, as io.no_socket says"
        );
    }
    Ok(u16::try_from(wanted).unwrap_or(u16::MAX))
}

/// All threads together never hold more than a quarter of a pool, which needs its frames to receive.
fn held_of_a_pool(frames: u32, threads: u16) -> usize {
    (frames as usize / 4 / usize::from(threads.max(1))).max(1)
}

type Bound = Vec<(XskDevice, Vec<Frame>)>;

/// Facts about the interface that a data plane is to start on. Refuses what cannot work there, or without the process's
/// capabilities, and warns of what should not be.
///
/// # Errors
/// [`StartError::Interface`], with everything that is in the way at once.
pub fn inspect(name: &str) -> Result<Interface, StartError> {
    let interface =
        Interface::read(name).map_err(|error| StartError::Interface(words(&error)))?.with_program_name();
    let mut findings = interface.findings(u32::try_from(CHUNK - XDP_HEADROOM).unwrap_or(u32::MAX));
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

/// All queues in one mode: a queue that refuses zero-copy puts all into copy mode, and the log names it.
fn bind_all(interface: &str, settings: &Settings, queues: u16) -> Result<(Bound, SocketMode), StartError> {
    let refused = |queue: u32| {
        tracing::warn!(interface, queue, "this queue refuses zero-copy: all queues run in copy mode");
    };
    let mode = |bound: &Bound| bound.first().map_or(Ok(SocketMode::Copy), |(device, _)| device.mode());
    match bind_queues(interface, settings, queues, false) {
        Err(StartError::NoZeroCopy { queue, .. }) => {
            refused(queue);
            let bound = bind_queues(interface, settings, queues, true)?;
            let mode = mode(&bound)?;
            Ok((bound, mode))
        }
        // The first queue's refusal is no error: the kernel takes copy mode by itself.
        bound => {
            let bound = bound?;
            let mode = mode(&bound)?;
            if mode == SocketMode::Copy {
                refused(0);
            }
            Ok((bound, mode))
        }
    }
}

fn bind_queues(
    interface: &str,
    settings: &Settings,
    queues: u16,
    force_copy: bool,
) -> Result<Bound, StartError> {
    let (area, pools) = Area::new(queues, settings.frames_per_queue)?;
    let mut bound = Vec::with_capacity(usize::from(queues));
    for (queue, frames) in (0u32..).zip(pools) {
        let device = bind_patiently(&area, interface, queue, force_copy)?;
        bound.push((device, frames));
    }
    Ok(bound)
}

/// A queue whose last socket has just been closed says EBUSY for some 40 ms.
fn bind_patiently(
    area: &Area,
    interface: &str,
    queue: u32,
    force_copy: bool,
) -> Result<XskDevice, StartError> {
    let deadline = Instant::now() + BUSY_AT_MOST;
    loop {
        match XskDevice::bind(area, interface, queue, force_copy) {
            Err(StartError::Busy { .. }) if Instant::now() < deadline => std::thread::sleep(BUSY_STEP),
            other => return other,
        }
    }
}

/// An error with its causes, on one line.
fn words(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !said.contains(&more) {
            said = format!("{said}: {more}");
        }
        cause = error.source();
    }
    said
}

/// Frames in each mailbox.
const MAILBOX: usize = 1024;
const REQUESTS: usize = 16;
const NOTICES: usize = 256;
const LAST_PACKETS: Duration = Duration::from_millis(20);
const BUSY_AT_MOST: Duration = Duration::from_secs(2);
const BUSY_STEP: Duration = Duration::from_millis(10);
