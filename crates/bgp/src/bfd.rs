//! Implements Bidirectional Forwarding Detection (BFD), which detects a lost router within a
//! fraction of a second.
//!
//! The module runs a BFD session with each configured peer. When the state of a session changes,
//! the BFD thread calls a callback of the program. When a peer is lost, the program calls
//! [`crate::Speaker::bfd_down`] to end the BGP session. Echo mode, authentication and multihop are
//! not supported, and this side never requests demand mode.
//!
//! BFD has a dedicated thread, because on a busy async runtime packets could be sent or processed
//! too late, and healthy peers would appear to be down.
//!
//! See RFC 5880 (asynchronous mode) and RFC 5881 (single hop).

mod bytes;
pub(crate) mod handed;
pub(crate) mod packet;
mod schedule;
pub(crate) mod session;
mod socket;
mod thread;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use nix::fcntl::OFlag;
use nix::unistd::pipe2;

pub use handed::HandedBfd;
pub use packet::{Diagnostic, SessionState};

use thread::{Answer, Command, Worker};

/// The UDP ports for BFD packets. Both ports are 3784 by default, and tests use other ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdPorts {
    /// The local port, on which this side receives packets.
    pub own: u16,
    /// The port on which peers receive packets.
    pub peer: u16,
}

impl Default for BfdPorts {
    fn default() -> Self {
        Self { own: packet::PORT, peer: packet::PORT }
    }
}

/// The configuration of a BFD session with one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BfdConfig {
    /// The unique name of the session, chosen by the operator.
    pub name: String,
    /// The address of the peer, on a directly connected link.
    pub peer: IpAddr,
    /// The index of the interface if `peer` is a link-local address, or 0 for other addresses.
    pub scope: u32,
    /// The source address of packets to the peer. The peer must be configured with this address.
    /// With `None`, the kernel chooses the address.
    pub local: Option<IpAddr>,
    /// The minimum interval between two packets in either direction, from 10 ms to 10 s.
    pub interval: Duration,
    /// The number of consecutive lost packets after which the peer considers this side down.
    pub multiplier: u8,
}

impl BfdConfig {
    /// Creates a configuration with an interval of 100 ms and a multiplier of 3.
    #[must_use]
    pub fn new(name: &str, peer: IpAddr) -> Self {
        let interval = Duration::from_millis(100);
        Self { name: name.into(), peer, scope: 0, local: None, interval, multiplier: 3 }
    }

    /// Returns `true` if a session can continue when its configuration changes from `self` to
    /// `next`. Only the interval and the multiplier may differ.
    #[must_use]
    pub fn keeps_session(&self, next: &Self) -> bool {
        Self { interval: next.interval, multiplier: next.multiplier, ..self.clone() } == *next
    }

    fn interval_us(&self) -> u32 {
        u32::try_from(self.interval.as_micros()).unwrap_or(u32::MAX)
    }

    fn check(&self) -> Result<(), BfdError> {
        let wrong = |what| Err(self.refused(what));
        if !(SHORTEST..=LONGEST).contains(&self.interval) {
            return wrong("interval must be 10 ms to 10 s");
        }
        if self.multiplier == 0 {
            return wrong("multiplier must be 1 to 255");
        }
        if self.local.is_some_and(|local| local.is_ipv4() != self.peer.is_ipv4()) {
            return wrong("local must have the same address family as the peer");
        }
        Ok(())
    }

    fn refused(&self, what: &str) -> BfdError {
        BfdError::Config { name: self.name.clone(), what: what.into() }
    }
}

/// A change of a session's state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BfdChange {
    /// The name of the session.
    pub name: String,
    /// The session state before the change.
    pub from: SessionState,
    /// The session state after the change.
    pub to: SessionState,
    /// The reason for the change.
    pub diagnostic: Diagnostic,
}

impl BfdChange {
    /// Returns `true` if the session was up before the change. The peer is then lost, and the
    /// caller should end everything that depends on it, such as the BGP session.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        self.from == SessionState::Up
    }
}

/// The status of a session, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BfdStatus {
    /// The address of the peer.
    pub peer: IpAddr,
    /// The state of the session.
    pub state: SessionState,
    /// The time of the last state change.
    pub since: SystemTime,
    /// The reason for the last state change, or [`Diagnostic::None`] if there was no fault.
    pub diagnostic: Diagnostic,
    /// The number of times that the session left the state Up.
    pub losses: u64,
}

/// The packet counters, summed over all sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BfdCounters {
    /// The number of packets sent.
    pub sent: u64,
    /// The number of packets that the kernel refused to send.
    pub send_failed: u64,
    /// The number of packets received, including invalid packets.
    pub received: u64,
    /// The number of packets received with a hop limit below 255, which have crossed a router.
    pub far: u64,
    /// The number of received packets that are not valid BFD packets.
    pub malformed: u64,
    /// The number of received packets that belong to no session.
    pub stray: u64,
}

/// The atomic counters behind [`BfdCounters`], which only the BFD thread writes and any thread may
/// read.
#[derive(Debug, Default)]
struct Tally {
    sent: AtomicU64,
    send_failed: AtomicU64,
    received: AtomicU64,
    far: AtomicU64,
    malformed: AtomicU64,
    stray: AtomicU64,
}

impl Tally {
    fn read(&self) -> BfdCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        BfdCounters {
            sent: read(&self.sent),
            send_failed: read(&self.send_failed),
            received: read(&self.received),
            far: read(&self.far),
            malformed: read(&self.malformed),
            stray: read(&self.stray),
        }
    }
}

/// The state that the BFD thread and the [`Bfd`] handle share.
#[derive(Debug, Default)]
struct Shared {
    status: Mutex<BTreeMap<String, BfdStatus>>,
    counters: Tally,
    /// `true` while the previous owner may take the sessions back. In this state, the thread does
    /// not send AdminDown when it ends.
    is_provisional: AtomicBool,
}

impl Shared {
    fn status(&self) -> MutexGuard<'_, BTreeMap<String, BfdStatus>> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The handle of the BFD thread. Dropping the handle sends AdminDown to every peer and ends the
/// thread. AdminDown is not sent after [`Bfd::let_go`], nor between [`Bfd::take_over`] and
/// [`Bfd::keep`].
#[derive(Debug)]
pub struct Bfd {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    wake: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Bfd {
    /// Starts the BFD thread in the network namespace of the calling thread. The BFD thread calls
    /// `on_change` for each state change. `on_change` must not block.
    ///
    /// # Errors
    /// Returns an error if the system cannot create the thread or its file descriptors.
    pub fn start(ports: BfdPorts, on_change: impl FnMut(BfdChange) + Send + 'static) -> io::Result<Self> {
        Self::run(ports, on_change, |_| Ok(()))
    }

    /// Starts the BFD thread with the sessions in `handed`, which this process or another process
    /// has released with [`Bfd::let_go`]. Discriminators, source ports and states stay the same.
    /// The thread sends a packet to each peer immediately and restarts the detection time of each
    /// session.
    ///
    /// Until [`Bfd::keep`] is called, dropping the handle sends no AdminDown, so that the previous
    /// owner can take the sessions back.
    ///
    /// # Errors
    /// Returns the errors of [`Bfd::start`], and [`io::ErrorKind::InvalidInput`] if a socket does
    /// not belong to its session.
    pub fn take_over(
        ports: BfdPorts,
        handed: HandedBfd,
        on_change: impl FnMut(BfdChange) + Send + 'static,
    ) -> io::Result<Self> {
        Self::run(ports, on_change, |worker| worker.take(handed, Instant::now()))
    }

    fn run(
        ports: BfdPorts,
        on_change: impl FnMut(BfdChange) + Send + 'static,
        prepare: impl FnOnce(&mut Worker) -> io::Result<()>,
    ) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let (commands, todo) = channel();
        let (woken, wake) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let mut worker = Worker::new(ports, Arc::clone(&shared), todo, woken, Box::new(on_change));
        prepare(&mut worker)?;
        let thread = std::thread::Builder::new().name("bfd".into()).spawn(move || worker.run())?;
        Ok(Self { shared, commands, wake, thread: Some(thread) })
    }

    /// Releases all sessions for [`Bfd::take_over`] in another process or in this process. The BFD
    /// thread ends without sending a packet, so the peers do not notice the release. Returns `None`
    /// if the sessions were already released.
    #[must_use]
    pub fn let_go(&self) -> Option<HandedBfd> {
        let (answer, answered) = channel();
        self.command(Command::LetGo(answer));
        let handed = answered.recv().ok()?;
        self.shared.status().clear();
        Some(handed)
    }

    /// Confirms a takeover. From then on, dropping the handle sends AdminDown to the peers.
    pub fn keep(&self) {
        self.shared.is_provisional.store(false, Ordering::Relaxed);
    }

    /// Returns the name of the session that tolerates the shortest pause, and the length of this
    /// pause. The pause is the time, beyond the usual interval, for which this side can stop
    /// sending before the peer considers it down. Returns `None` if no session is up.
    #[must_use]
    pub fn least_spare(&self) -> Option<(String, Duration)> {
        let (answer, answered) = channel();
        self.command(Command::Spare(answer));
        answered.recv().ok()?
    }

    /// Adds a session for a peer.
    ///
    /// # Errors
    /// Returns an error if a field is out of range, if another session has the same name or peer,
    /// or if the socket cannot be created.
    pub fn add(&self, config: BfdConfig) -> Result<(), BfdError> {
        self.ask(config, Command::Add)
    }

    /// Changes the interval and the multiplier of the session named in `config`. The session
    /// continues, and the peer must confirm the new interval with a Poll Sequence (RFC 5880
    /// §6.8.3).
    ///
    /// # Errors
    /// Returns an error if a field is out of range, if no session has this name, or if the peer or
    /// the local address would change.
    pub fn change(&self, config: BfdConfig) -> Result<(), BfdError> {
        self.ask(config, Command::Change)
    }

    /// Removes a session and signals AdminDown to its peer. An unknown name is ignored.
    pub fn remove(&self, name: &str) {
        self.command(Command::Remove(name.into()));
    }

    /// Returns the status of each session, keyed by session name.
    #[must_use]
    pub fn status(&self) -> BTreeMap<String, BfdStatus> {
        self.shared.status().clone()
    }

    /// Returns the packet counters, summed over all sessions.
    #[must_use]
    pub fn counters(&self) -> BfdCounters {
        self.shared.counters.read()
    }

    fn ask(&self, config: BfdConfig, command: fn(Box<BfdConfig>, Answer) -> Command) -> Result<(), BfdError> {
        config.check()?;
        let (answer, answered) = channel();
        self.command(command(Box::new(config), answer));
        answered.recv().unwrap_or(Err(BfdError::Gone))
    }

    fn command(&self, command: Command) {
        // A failed send means that the thread has ended. A failed write means that the thread has
        // ended, or that the pipe is full and the thread will wake anyway.
        drop(self.commands.send(command));
        _ = nix::unistd::write(&self.wake, &[0]);
    }
}

impl Drop for Bfd {
    fn drop(&mut self) {
        self.command(Command::End);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// The reason why a session cannot be added, changed or taken over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BfdError {
    /// A field is out of range, or another session has the same name or peer.
    #[error("BFD session {name}: {what}")]
    Config {
        /// The name of the session.
        name: String,
        /// The rule that the configuration violates.
        what: String,
    },
    /// A socket cannot be created.
    #[error("cannot create a socket for BFD session {name}: {error}")]
    Socket {
        /// The name of the session.
        name: String,
        /// The error that the kernel returned.
        error: io::Error,
    },
    /// The handover data from the other process is invalid.
    #[error("cannot take over BFD sessions: {0}")]
    Handed(&'static str),
    /// The BFD thread has ended.
    #[error("the BFD thread has ended")]
    Gone,
}

fn count(counter: &AtomicU64) {
    // Relaxed is sufficient, because the counters are only displayed.
    counter.fetch_add(1, Ordering::Relaxed);
}

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(10);
