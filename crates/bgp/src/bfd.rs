//! Bidirectional Forwarding Detection beside BGP: a lost peer is seen within milliseconds.
//!
//! In: the peers to watch. Out: each change of a session's state, to a function of the program, on the thread of BFD.
//! Not here: what a lost peer means ([`crate::Speaker::bfd_down`] ends its BGP session), echo, demand of our own,
//! authentication, multihop.
//! Invariant: a thread of its own and nothing but BFD on it, since a busy runtime would report peers down that are not.
//! Source: RFC 5880, asynchronous mode; RFC 5881, single hop.

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

/// The UDP ports of BFD; others are for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfdPorts {
    /// The port that we receive on.
    pub own: u16,
    /// The port that peers receive on.
    pub peer: u16,
}

impl Default for BfdPorts {
    fn default() -> Self {
        Self { own: packet::PORT, peer: packet::PORT }
    }
}

/// A peer to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BfdConfig {
    /// What the operator calls it; unique.
    pub name: String,
    /// Its address, on a link of ours.
    pub peer: IpAddr,
    /// The interface of a link-local address, by its index; else 0.
    pub scope: u32,
    /// The address that it knows us by; `None`: what the kernel chooses.
    pub local: Option<IpAddr>,
    /// Between two packets in either direction, at best: 10 ms to 10 s.
    pub interval: Duration,
    /// So many packets lost in a row mean that the peer is down.
    pub multiplier: u8,
}

impl BfdConfig {
    /// A session of 100 ms, three times.
    #[must_use]
    pub fn new(name: &str, peer: IpAddr) -> Self {
        let interval = Duration::from_millis(100);
        Self { name: name.into(), peer, scope: 0, local: None, interval, multiplier: 3 }
    }

    /// Whether a session under `self` can go on under `next`: between the same ends.
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
            return wrong("interval: 10 ms to 10 s are allowed");
        }
        if self.multiplier == 0 {
            return wrong("multiplier: 1 to 255 are allowed");
        }
        if self.local.is_some_and(|local| local.is_ipv4() != self.peer.is_ipv4()) {
            return wrong("local: must be of the peer's family");
        }
        Ok(())
    }

    fn refused(&self, what: &str) -> BfdError {
        BfdError::Config { name: self.name.clone(), what: what.into() }
    }
}

/// A session's state has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BfdChange {
    /// The session's name.
    pub name: String,
    /// What it was.
    pub from: SessionState,
    /// What it is.
    pub to: SessionState,
    /// Why.
    pub diagnostic: Diagnostic,
}

impl BfdChange {
    /// The peer was there, and is lost: the moment to end what relies on it.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        self.from == SessionState::Up
    }
}

/// A session, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BfdStatus {
    /// Its peer.
    pub peer: IpAddr,
    /// Its state.
    pub state: SessionState,
    /// Since when.
    pub since: SystemTime,
    /// Why it is not up, or was not.
    pub diagnostic: Diagnostic,
    /// How often it was lost.
    pub losses: u64,
}

/// Packets, over all sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BfdCounters {
    /// Sent.
    pub sent: u64,
    /// The kernel refused to send.
    pub send_failed: u64,
    /// Received, good and bad.
    pub received: u64,
    /// Of those: came over a router, as the hop limit says.
    pub far: u64,
    /// Of those: not BFD, or with a field that must not be so.
    pub malformed: u64,
    /// Of those: for no session of ours.
    pub stray: u64,
}

/// [`BfdCounters`] as they are counted. One writer; read at any time.
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

/// What the thread and the handle both see.
#[derive(Debug, Default)]
struct Shared {
    status: Mutex<BTreeMap<String, BfdStatus>>,
    counters: Tally,
    /// Another process may take the sessions back: no message says that they end.
    is_provisional: AtomicBool,
}

impl Shared {
    fn status(&self) -> MutexGuard<'_, BTreeMap<String, BfdStatus>> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The handle of the BFD thread. Dropping it announces AdminDown to every peer, and ends the thread; unless [`Bfd::let_go`] was called,
/// or [`Bfd::take_over`] without [`Bfd::keep`].
#[derive(Debug)]
pub struct Bfd {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    wake: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Bfd {
    /// Starts the thread, in the network namespace of the calling one. `on_change` is called on it and must not wait.
    ///
    /// # Errors
    /// The system has no thread or descriptor left.
    pub fn start(ports: BfdPorts, on_change: impl FnMut(BfdChange) + Send + 'static) -> io::Result<Self> {
        Self::run(ports, on_change, |_| Ok(()))
    }

    /// Goes on with sessions that another process had, or this one before it let them go: the same discriminators and source
    /// ports, each in the state that it was in. Each is heard of at once; how long its peer may be silent counts anew.
    ///
    /// Until [`Bfd::keep`] nobody hears of an end, so that the one who let them go may take them back.
    ///
    /// # Errors
    /// As [`Bfd::start`]; and [`io::ErrorKind::InvalidInput`] where a socket is not its session's.
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

    /// Lets go of all sessions, for another process or for [`Bfd::take_over`] in this one: nothing is heard or said from the time
    /// when it returns, and no message tells peers of an end. `None`: they were let go of before.
    #[must_use]
    pub fn let_go(&self) -> Option<HandedBfd> {
        let (answer, answered) = channel();
        self.command(Command::LetGo(answer));
        let handed = answered.recv().ok()?;
        self.shared.status().clear();
        Some(handed)
    }

    /// The sessions that were taken over are this one's from now on.
    pub fn keep(&self) {
        self.shared.is_provisional.store(false, Ordering::Relaxed);
    }

    /// Of which session the peer is the first to miss us, and for how long nothing may be said beyond the usual wait between two
    /// packets until it does; `None`: no session is up.
    #[must_use]
    pub fn least_spare(&self) -> Option<(String, Duration)> {
        let (answer, answered) = channel();
        self.command(Command::Spare(answer));
        answered.recv().ok()?
    }

    /// Watches a peer.
    ///
    /// # Errors
    /// A field out of range, a name or a peer that another session has, or a socket that can't be had.
    pub fn add(&self, config: BfdConfig) -> Result<(), BfdError> {
        self.ask(config, Command::Add)
    }

    /// Other times for the session of that name, which goes on: the peer is asked to confirm them (RFC 5880 §6.8.3).
    ///
    /// # Errors
    /// A field out of range, no session of that name, or one of another peer or from another address.
    pub fn change(&self, config: BfdConfig) -> Result<(), BfdError> {
        self.ask(config, Command::Change)
    }

    /// Watches a peer no more, and announces AdminDown to it. A name that no session has is nothing to do.
    pub fn remove(&self, name: &str) {
        self.command(Command::Remove(name.into()));
    }

    /// All sessions, by their names.
    #[must_use]
    pub fn status(&self) -> BTreeMap<String, BfdStatus> {
        self.shared.status().clone()
    }

    /// Packets, over all sessions.
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
        // Both fail only when the thread has ended, and then there is nobody to wake.
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

/// Why a session is not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BfdError {
    /// A field is out of range, or another session has it.
    #[error("BFD session {name}: {what}")]
    Config {
        /// The session's name.
        name: String,
        /// What is wrong, and what is allowed.
        what: String,
    },
    /// A socket can't be had.
    #[error("BFD session {name}: no socket: {error}")]
    Socket {
        /// The session's name.
        name: String,
        /// Why.
        error: io::Error,
    },
    /// What another process hands over is not as it must be.
    #[error("BFD sessions of another process: {0}")]
    Handed(&'static str),
    /// The thread has ended.
    #[error("the BFD thread has ended")]
    Gone,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed); // read for display alone
}

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(10);
