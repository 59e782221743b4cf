//! Creates and starts the threads of a data plane. Each ring connects a thread with the data plane,
//! which keeps the ring's other end.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use engine::{Engine, MAX_BATCH, Mailboxes, Pool, mesh};
use forwarder::{
    Forward, Pipeline, PipelineConfig, SoftwareSteering, SourcePorts, SteeringConfig, ThreadCounters,
    ThreadId, notice_ring, request_ring,
};

use super::{DataPlane, MAILBOX, NOTICES, REQUESTS, pipeline_config};
use crate::error::{StartError, words};
use crate::hash_lanes::lane_hashers;
use crate::health::ThreadName;
use crate::sockets::{SocketCounters, SocketMode, Sockets};
use crate::spin::AdaptiveSpin;
use crate::stopping::ROUNDS;
use crate::thread::{Leave, PacketThread};
use crate::wait::Events;

#[derive(Debug)]
pub(super) enum Forwarder {
    Pipeline(Box<Pipeline>),
    Steering(SoftwareSteering),
}

/// The resources that a thread needs before it can start, except its sockets.
#[derive(Debug)]
pub(super) struct Part<T> {
    pub(super) name: ThreadName,
    pub(super) forward: Forwarder,
    pub(super) counters: Arc<ThreadCounters>,
    pub(super) mailboxes: Mailboxes<T>,
    pub(super) pool: Pool<T>,
    pub(super) signals: Signals,
}

/// The resources that a thread needs before it can start, except its engine.
struct Birth {
    name: ThreadName,
    number: usize,
    signals: Signals,
    counters: Arc<ThreadCounters>,
    socket: Arc<SocketCounters>,
}

/// The channel senders with which a thread signals its progress. The thread drops a sender to
/// signal an event.
#[derive(Clone, Debug)]
pub(super) struct Signals {
    /// Dropped when the thread has started.
    born: Sender<()>,
    /// One sender for each round of the shutdown, dropped when the thread has finished the round.
    through: Vec<Sender<()>>,
}

impl DataPlane {
    /// Starts the threads. `bound` contains the device and the frames of each thread, in thread
    /// order.
    pub(super) fn start_threads<D>(&mut self, bound: Vec<(D, Vec<D::Frame>)>) -> Result<(), StartError>
    where
        D: Sockets + Send + 'static,
    {
        let in_all = bound.iter().map(|(_, frames)| frames.len()).sum();
        let (signals, all_born) = self.signals();
        for ((device, frames), mailboxes) in bound.into_iter().zip(mesh(self.layout.threads(), MAILBOX)) {
            let (forward, counters) = self.forwarder(mailboxes.me())?;
            let (name, pool) = (self.layout.name(mailboxes.me()), Pool { frames, in_all });
            let part = Part { name, forward, counters, mailboxes, pool, signals: signals.clone() };
            self.watch_sockets(part.name, &device)?;
            self.let_in(part.name, &device)?;
            let thread = self.begin(part, device)?;
            self.threads.running.push(thread);
        }
        drop(signals);
        // No thread sends a message, so `recv` returns when the last sender is dropped, after all
        // threads have started.
        let _ = all_born.recv();
        Ok(())
    }

    /// Creates the senders that all threads share. The returned receiver closes when all threads
    /// have started.
    pub(super) fn signals(&mut self) -> (Signals, Receiver<()>) {
        let (born, all_born) = channel();
        let (through, ends) = (0..ROUNDS).map(|_| channel()).unzip();
        self.threads.through = ends;
        (Signals { born, through }, all_born)
    }

    /// Creates the forwarder of a thread. If a previous thread had the same number, its counters
    /// are reused.
    pub(super) fn forwarder(
        &mut self,
        thread: ThreadId,
    ) -> Result<(Forwarder, Arc<ThreadCounters>), StartError> {
        let (threads, batch, most) =
            (self.layout.packet_threads(), self.settings.batch, self.settings.max_slots);
        if let ThreadName::Io(_) = self.layout.name(thread) {
            // An I/O thread does not forward to backends, so its counters need no backend slots.
            let counters = self.counters_of(thread, 0);
            let max_batch = (2 * batch).min(MAX_BATCH);
            let source_ports = SourcePorts::new(&self.settings.source_ports, threads);
            let config = SteeringConfig { threads, max_batch, hashers: lane_hashers(), source_ports };
            let steering = SoftwareSteering::new(config, &self.live, Arc::clone(&counters));
            return Ok((Forwarder::Steering(steering), counters));
        }
        let (config, counters) =
            (pipeline_config(&self.settings, thread, threads), self.counters_of(thread, most));
        let pipeline = self.pipeline(config, Arc::clone(&counters))?;
        Ok((Forwarder::Pipeline(Box::new(pipeline)), counters))
    }

    fn counters_of(&mut self, thread: ThreadId, most: usize) -> Arc<ThreadCounters> {
        if let Some(known) = self.counters.get(usize::from(thread.0)) {
            return Arc::clone(known);
        }
        let counters = Arc::new(ThreadCounters::new(most, most));
        self.counters.push(Arc::clone(&counters));
        counters
    }

    /// Starts a thread with its sockets.
    pub(super) fn begin<D>(&mut self, part: Part<D::Frame>, device: D) -> Result<JoinHandle<()>, StartError>
    where
        D: Sockets + Send + 'static,
    {
        let Part { name, forward, counters, mailboxes, pool, signals } = part;
        let number = usize::from(mailboxes.me().0);
        let socket = if let Some(known) = self.sockets.get(number) {
            Arc::clone(known)
        } else {
            let links = device.sockets().map(|(interface, _)| interface);
            let socket = Arc::new(SocketCounters::on(links));
            self.sockets.push(Arc::clone(&socket));
            socket
        };
        let birth = Birth { name, number, signals, counters: Arc::clone(&counters), socket };
        match forward {
            Forwarder::Pipeline(pipeline) => {
                let engine = Engine::new(device, *pipeline, mailboxes, pool, counters);
                let engine = if self.layout.is_steered() { engine.with_mail_alone() } else { engine };
                self.spawn(birth, engine)
            }
            Forwarder::Steering(steering) => {
                let engine = Engine::new(device, steering, mailboxes, pool, counters);
                self.spawn(birth, engine.steering_to(self.layout.packet_threads()))
            }
        }
    }

    fn spawn<D, F>(&mut self, birth: Birth, engine: Engine<D, F>) -> Result<JoinHandle<()>, StartError>
    where
        D: Sockets + Send + 'static,
        F: Forward + Send + 'static,
    {
        let Birth { name, number, signals, counters, socket } = birth;
        let (leave, order) = Leave::new();
        let sockets = engine.device().sockets().map(|(_, socket)| (socket, D::TRIGGER));
        let Some(waker) = self.threads.wakers.get(number) else { unreachable!("each thread has a waker") };
        let events = Events::new(waker, sockets)?;
        let thread = PacketThread {
            engine,
            events,
            counters,
            socket,
            wakers: Arc::clone(&self.threads.wakers),
            number,
            processor: self.threads.processors.get(number % self.threads.processors.len().max(1)).copied(),
            sleeps: self.settings.idle.sleep,
            spin: AdaptiveSpin::new(self.settings.idle.spin, self.settings.idle.wake_up_price),
            rounds: Arc::clone(&self.threads.rounds),
            origin: self.origin,
            born: Some(signals.born),
            through: signals.through,
            leave,
            idle_since: None,
            busy_since: None,
            next_statistics: self.origin,
        };
        let name = match name {
            ThreadName::Packet(number) => format!("packet-{number}"),
            ThreadName::Io(queue) => format!("io-{queue}"),
        };
        let thread = std::thread::Builder::new().name(name).spawn(move || thread.run())?;
        self.handover.leaving.insert(u16::try_from(number).unwrap_or(u16::MAX), order);
        Ok(thread)
    }

    /// Adds the sockets of a thread to the monitor.
    fn watch_sockets(&mut self, name: ThreadName, device: &impl Sockets) -> Result<(), StartError> {
        // SAFETY: the device is open, and the borrows end when this function returns.
        let borrowed = |(interface, fd)| (interface, unsafe { BorrowedFd::borrow_raw(fd) });
        Ok(self.monitor.add_thread(name, device.sockets().map(borrowed))?)
    }

    /// Adds the sockets of a thread to the socket maps of the XDP programs. The programs then
    /// redirect packets to these sockets as soon as the filter contains a VIP.
    pub(super) fn let_in(&mut self, name: ThreadName, device: &impl Sockets) -> Result<(), StartError> {
        if self.socket_mode == SocketMode::Packet {
            return Ok(()); // packet sockets use their own filter
        }
        let (ThreadName::Packet(queue) | ThreadName::Io(queue)) = name;
        for (interface, fd) in device.sockets() {
            if let Some(steer) = self.steers.on(interface) {
                steer.set_socket(queue.into(), &fd).map_err(|e| StartError::Steer(words(&e)))?;
            }
        }
        Ok(())
    }

    /// Creates the packet pipeline of a thread. The pipeline gets one end of each ring, and the
    /// data plane keeps the opposite end.
    fn pipeline(
        &mut self,
        config: PipelineConfig,
        counters: Arc<ThreadCounters>,
    ) -> Result<Pipeline, StartError> {
        let (port, server) = request_ring(REQUESTS);
        let (sink, notices) = notice_ring(NOTICES);
        let pipeline = Pipeline::new(config, &self.live, counters, Some(server));
        let pipeline = pipeline.map_err(|error| StartError::Tables(error.to_string()))?;
        self.threads.requests.push(port);
        self.threads.notices.push(notices);
        Ok(pipeline.with_notices(sink))
    }
}
