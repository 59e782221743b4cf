//! Whether the forwarder does its work.
//!
//! In: each thread's count of turns, its socket, the program's counts, the interface. Out: [`Health`], in words and as
//! an enum. Not here: what follows from it (the binary passes it to readiness, announcers and the service manager).
//! Invariant: nothing is asked of a packet thread: it counts its turns as ever, and all looking is done from outside.
//! Seen within a second when looked at four times a second: a thread that sleeps makes ten turns a second, so one that
//! made none for half a second hangs, or is starved of its processor; it is at fault only if packets wait for it, in its sockets or its
//! mailboxes.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forwarder::InterfaceId;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};

use crate::attach::AttachMode;
use crate::ingress;
use crate::interface::{self, Interface, InterfaceError};
use crate::sockets::SocketCounters;
use crate::wake::Waker;

/// Whether packets for VIPs are carried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// All threads, sockets and the program are at work.
    #[default]
    Healthy,
    /// What is wrong, at least one thing.
    Unhealthy(Vec<Problem>),
}

/// A thread of the data plane, by what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadName {
    /// The packet thread of this number, which is that of its queues where it has some.
    Packet(u16),
    /// The I/O thread of the queues of this number.
    Io(u16),
}

impl fmt::Display for ThreadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packet(number) => write!(f, "packet thread {number}"),
            Self::Io(queue) => write!(f, "I/O thread {queue}"),
        }
    }
}

/// One thing that keeps packets from being carried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Packets wait in its ring or its mailbox, and this thread makes no turn.
    #[error("{0} makes no progress though packets wait")]
    ThreadStuck(ThreadName),
    /// This thread has ended, though nobody stopped it.
    #[error("{0} has ended")]
    ThreadEnded(ThreadName),
    /// The kernel took the socket from its queue. It does not come back: a restart binds new ones.
    #[error("queue {queue} of {interface} has lost its socket")]
    SocketLost {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u16,
    },
    /// Packets for VIPs arrived where no socket is, though each queue had one at the start: a socket was taken out of the
    /// program's map, or the interface got more queues. A restart binds all.
    #[error("packets for VIPs arrive on a queue without a socket")]
    QueueWithoutSocket,
    /// No XDP program is on this interface.
    #[error("no XDP program is on {0}")]
    ProgramMissing(String),
    /// The ingress program is not on this interface.
    #[error("the ingress program is not on {0}: the kernel sees packets for VIPs")]
    IngressMissing(String),
    /// Another XDP program is on the interface.
    #[error("another XDP program, id {program}, is on {interface}")]
    ProgramReplaced {
        /// The interface.
        interface: String,
        /// The kernel's id of that program.
        program: u32,
    },
    /// The interface is gone, or another one has its name.
    #[error("interface {0} is gone")]
    InterfaceGone(String),
}

impl Health {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        *self == Self::Healthy
    }

    fn of(problems: Vec<Problem>) -> Self {
        if problems.is_empty() { Self::Healthy } else { Self::Unhealthy(problems) }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Healthy => f.write_str("healthy"),
            Self::Unhealthy(problems) => {
                let words: Vec<String> = problems.iter().map(ToString::to_string).collect();
                f.write_str(&words.join("; "))
            }
        }
    }
}

/// What is known of one thread's turns.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    turns: u64,
    since: Instant,
}

impl Progress {
    /// Nothing is known before `now`.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self { turns: 0, since: now }
    }

    /// Whether the thread hangs: no turn for half a second, and packets wait. `waiting` is asked in the first case
    /// only.
    pub fn is_stuck(&mut self, now: Instant, turns: u64, waiting: impl FnOnce() -> bool) -> bool {
        if turns != self.turns {
            *self = Self { turns, since: now };
            return false;
        }
        now.duration_since(self.since) >= STUCK_AFTER && waiting()
    }
}

#[derive(Debug)]
pub(crate) struct Monitor {
    threads: Vec<Thread>,
    programs: Vec<Program>,
    wakers: Arc<[Waker]>,
}

#[derive(Debug)]
struct Thread {
    name: ThreadName,
    progress: Progress,
    sockets: Vec<Socket>,
}

#[derive(Debug)]
struct Socket {
    /// A second descriptor of the thread's socket, so that it can be looked at whatever became of the thread.
    fd: OwnedFd,
    interface: InterfaceId,
    lost: bool,
}

/// The program on one interface.
#[derive(Debug)]
struct Program {
    /// The kernel's id of it.
    id: u32,
    mode: AttachMode,
    /// Packets on a queue without a socket are no surprise: the settings leave queues without one.
    some_without_socket: bool,
    without_socket: bool,
}

impl Monitor {
    /// Of threads that have these bells, in their order.
    pub(crate) fn new(wakers: Arc<[Waker]>) -> Self {
        Self { threads: Vec::new(), programs: Vec::new(), wakers }
    }

    /// The program of the next interface.
    pub(crate) fn add_program(&mut self, id: u32, mode: AttachMode, some_without_socket: bool) {
        self.programs.push(Program { id, mode, some_without_socket, without_socket: false });
    }

    /// The next thread, by its sockets and the interface of each.
    pub(crate) fn add_thread<'a>(
        &mut self,
        name: ThreadName,
        sockets: impl Iterator<Item = (InterfaceId, BorrowedFd<'a>)>,
    ) -> std::io::Result<()> {
        let own = |(interface, fd): (InterfaceId, BorrowedFd<'_>)| {
            Ok(Socket { fd: fd.try_clone_to_owned()?, interface, lost: false })
        };
        let sockets = sockets.map(own).collect::<std::io::Result<_>>()?;
        self.threads.push(Thread { name, progress: Progress::new(Instant::now()), sockets });
        Ok(())
    }

    /// Looks at a thread's sockets no more: a second descriptor would keep them from their end.
    pub(crate) fn forget_sockets(&mut self, thread: usize) {
        if let Some(thread) = self.threads.get_mut(thread) {
            thread.sockets.clear();
        }
    }

    /// All threads are to be others.
    pub(crate) fn forget_threads(&mut self) {
        self.threads.clear();
    }

    /// `no_socket` has, for each interface, the packets that came on a queue without a socket.
    pub(crate) fn look(
        &mut self,
        interfaces: &[Interface],
        threads: &[JoinHandle<()>],
        counters: &[Arc<SocketCounters>],
        no_socket: &[u64],
    ) -> Health {
        let now = Instant::now();
        let mut problems = Vec::new();
        // A packet socket outlives its link's being down, and says so by the same error.
        let lasting = self.programs.iter().any(|program| program.mode == AttachMode::Ingress);
        let all = self.threads.iter_mut().zip(self.wakers.iter()).zip(threads).zip(counters);
        for (((thread, waker), handle), counters) in all {
            let lost = thread.lost_socket(interfaces).filter(|_| !lasting);
            let ended = handle.is_finished().then_some(Problem::ThreadEnded(thread.name));
            problems.extend(ended.or(lost).or_else(|| thread.stuck(now, counters, waker)));
        }
        for (program, no_socket) in self.programs.iter_mut().zip(no_socket) {
            // What was lost does not come back by itself, and the first packet may be the last that shows it.
            program.without_socket |= !program.some_without_socket && *no_socket > 0;
        }
        let without = self.programs.iter().any(|program| program.without_socket);
        problems.extend(without.then_some(Problem::QueueWithoutSocket));
        problems.extend(interfaces.iter().zip(&self.programs).filter_map(|(ours, one)| one.problem(ours)));
        Health::of(problems)
    }
}

impl Thread {
    fn stuck(&mut self, now: Instant, counters: &SocketCounters, waker: &Waker) -> Option<Problem> {
        let turns = counters.turns.read();
        let waiting = || waker.has_mail() || self.sockets.iter().any(|socket| has_packets(socket.fd.as_fd()));
        let stuck = self.progress.is_stuck(now, turns, waiting);
        stuck.then_some(Problem::ThreadStuck(self.name))
    }

    fn lost_socket(&mut self, interfaces: &[Interface]) -> Option<Problem> {
        for socket in &mut self.sockets {
            // Reading the socket's error clears it.
            socket.lost |= getsockopt(&socket.fd, sockopt::SocketError).is_ok_and(|error| error != 0);
        }
        let lost = self.sockets.iter().find(|socket| socket.lost)?;
        let interface = interfaces.get(usize::from(lost.interface.0));
        let interface = interface.map(|found| found.name.clone()).unwrap_or_default();
        let (ThreadName::Packet(queue) | ThreadName::Io(queue)) = self.name;
        Some(Problem::SocketLost { interface, queue })
    }
}

/// Whether packets wait in a socket's receive ring.
fn has_packets(socket: BorrowedFd<'_>) -> bool {
    let mut wanted = [PollFd::new(socket, PollFlags::POLLIN)];
    poll(&mut wanted, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
        && wanted[0].revents().is_some_and(|events| events.contains(PollFlags::POLLIN))
}

impl Program {
    fn problem(&self, ours: &Interface) -> Option<Problem> {
        let interface = || ours.name.clone();
        let xdp = match interface::xdp_program(&ours.name) {
            Ok((index, _)) if index != ours.index => return Some(Problem::InterfaceGone(interface())),
            Ok((_, xdp)) => xdp,
            Err(InterfaceError::Absent(_)) => return Some(Problem::InterfaceGone(interface())),
            // The kernel had no time to answer, or no memory: no sign that the program is gone.
            Err(_) => return None,
        };
        match (self.mode, xdp) {
            (AttachMode::Ingress, _) => {
                let is_attached = ingress::is_attached(ours.index, self.id).unwrap_or(true);
                (!is_attached).then(|| Problem::IngressMissing(interface()))
            }
            (_, Some(found)) if found == self.id => None,
            (_, Some(found)) => Some(Problem::ProgramReplaced { interface: interface(), program: found }),
            (_, None) => Some(Problem::ProgramMissing(interface())),
        }
    }
}

/// A thread that sleeps turns every 100 ms.
const STUCK_AFTER: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    /// The turns, whether packets wait, and whether that is stuck.
    type Look = (u64, bool, bool);

    const LOOK: Duration = Duration::from_millis(250);

    #[test]
    fn only_a_thread_that_stands_still_while_packets_wait_is_stuck() {
        let start = Instant::now();
        let at = |looks: u32| start + LOOK * looks;
        let table: [(&str, &[Look]); 5] = [
            ("busy", &[(1, true, false), (2, true, false), (3, true, false), (4, true, false)]),
            ("asleep", &[(1, false, false), (1, false, false), (1, false, false), (1, false, false)]),
            ("stuck", &[(1, true, false), (1, true, false), (1, true, true), (1, true, true)]),
            ("stuck, and one packet later", &[(1, false, false), (1, false, false), (1, true, true)]),
            ("free again", &[(1, true, false), (1, true, false), (1, true, true), (2, true, false)]),
        ];
        for (name, looks) in table {
            let mut progress = Progress::new(start);
            for (n, &(turns, waiting, stuck)) in (0..).zip(looks) {
                assert_eq!(progress.is_stuck(at(n), turns, || waiting), stuck, "{name}, look {n}");
            }
        }
    }

    #[test]
    fn a_thread_that_never_turned_is_stuck_too() {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        assert!(!progress.is_stuck(start + LOOK, 0, || true));
        assert!(progress.is_stuck(start + 2 * LOOK, 0, || true));
    }

    #[test]
    fn health_says_everything_that_is_wrong() {
        assert_eq!((Health::of(vec![]), Health::of(vec![]).to_string()), (Health::Healthy, "healthy".into()));
        let problems = [
            Problem::ThreadStuck(ThreadName::Packet(1)),
            Problem::ThreadEnded(ThreadName::Io(0)),
            Problem::ProgramMissing("eth0".into()),
        ];
        let health = Health::of(problems.into());
        assert!(!health.is_healthy());
        let words = "packet thread 1 makes no progress though packets wait; I/O thread 0 has ended; no XDP program is on eth0";
        assert_eq!(health.to_string(), words);
    }
}
