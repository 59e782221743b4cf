//! Health checks of the data plane itself: threads, sockets, programs and interfaces. The binary
//! uses the result for the readiness check, for route announcements and for the status reported to
//! the service manager.
//!
//! The checks run outside the packet threads and compare the number of loop iterations of each
//! thread. A sleeping thread runs its loop ten times per second. If a thread has not run its loop
//! for 0.4 s, it is stuck or gets no processor time (`stall`). A stuck thread is a problem
//! only if packets are waiting in its sockets or mailboxes. A stall starts with the last iteration
//! of the thread. The checks exclude the time in which the whole process did not run (`pauses`). If
//! the checks run four times a second, all other problems are found within one second.

mod pauses;
mod stall;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forwarder::{InterfaceId, Now};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};

use crate::attach::AttachMode;
use crate::ingress;
use crate::interface::{self, Interface, InterfaceError};
use crate::sockets::SocketCounters;
use crate::wake::Waker;

pub use pauses::Pause;
use pauses::Pauses;
use stall::Scheduling;
pub use stall::StallReason;

/// The health of the data plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// All threads, sockets and programs work.
    #[default]
    Healthy,
    /// At least one problem was found.
    Unhealthy(Vec<Problem>),
}

/// The name of a data plane thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadName {
    /// The packet thread with this number. If the thread has queues, they have the same number.
    Packet(u16),
    /// The I/O thread of the queues with this number.
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

/// A problem that prevents the forwarding of packets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Packets are waiting in a ring or mailbox of this thread, but the thread is not running its
    /// loop.
    #[error("{0} is stuck with packets waiting ({1})")]
    ThreadStuck(ThreadName, StallReason),
    /// This thread has stopped without a stop command.
    #[error("{0} has ended")]
    ThreadEnded(ThreadName),
    /// The kernel detached the socket from its queue. Only a restart binds a new socket.
    #[error("queue {queue} of {interface} has lost its socket")]
    SocketLost {
        /// The name of the interface.
        interface: String,
        /// The number of the queue.
        queue: u16,
    },
    /// Packets for VIPs arrived on a queue without a socket, although each queue had a socket at
    /// startup. Either a socket was removed from the map of the program, or queues were added to
    /// the interface. A restart binds all queues.
    #[error("packets for VIPs arrive on a queue without a socket")]
    QueueWithoutSocket,
    /// The interface has no XDP program.
    #[error("no XDP program is attached to {0}")]
    ProgramMissing(String),
    /// The ingress program is not attached to this interface.
    #[error("the ingress program is not attached to {0}, so the kernel receives packets for VIPs")]
    IngressMissing(String),
    /// Another XDP program is attached to the interface.
    #[error("another XDP program (id {program}) is attached to {interface}")]
    ProgramReplaced {
        /// The name of the interface.
        interface: String,
        /// The ID of that program in the kernel.
        program: u32,
    },
    /// The interface was removed, or a different interface now has its name.
    #[error("interface {0} is gone")]
    InterfaceGone(String),
}

impl Problem {
    /// Returns `true` if the problem persists until someone intervenes. A stuck thread, in
    /// contrast, may continue on its own at any time.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        !matches!(self, Self::ThreadStuck(..))
    }
}

impl Health {
    /// Returns `true` if no problem was found.
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

/// Measures the progress of a packet thread by its iterations.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    iterations: u64,
    /// The time of the last iteration.
    since: Instant,
    /// The time of the last check.
    checked: Instant,
    /// The time of the last check that found no waiting packets. Packets that arrive later do not
    /// turn the time before into a stall.
    idle: Instant,
    is_stuck: bool,
}

impl Progress {
    /// Starts the measurement at `now`.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self { iterations: 0, since: now, checked: now, idle: now, is_stuck: false }
    }

    /// Returns `true` if the thread has made no iteration for 0.4 s although packets are waiting.
    /// The last iteration started `ago` before `now`. The function `waiting` is called only if the
    /// thread has made no iteration for 0.4 s.
    pub fn is_stuck(
        &mut self,
        now: Instant,
        iterations: u64,
        ago: Duration,
        waiting: impl FnOnce() -> bool,
    ) -> bool {
        let checked = std::mem::replace(&mut self.checked, now);
        if iterations != self.iterations {
            // `ago` may include a pause, but `now` does not. The new iteration has ended after the
            // previous check in any case.
            let since = now.checked_sub(ago).unwrap_or(now).max(checked);
            (self.iterations, self.since) = (iterations, since);
        }
        let is_quiet = now.saturating_duration_since(self.since) >= STUCK_AFTER;
        self.is_stuck = is_quiet && waiting();
        if is_quiet && !self.is_stuck {
            self.idle = now;
        }
        self.is_stuck
    }

    /// Returns the start of the current stall, or `None` if the thread is not stuck.
    #[must_use]
    pub fn stuck_since(&self) -> Option<Instant> {
        self.is_stuck.then(|| self.since.max(self.idle))
    }

    /// Returns the time of the next check that can find that the thread is stuck, or `None` if the
    /// thread has already made no iteration for 0.4 s.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        Some(self.since + STUCK_AFTER).filter(|at| *at > self.checked)
    }

    /// Starts the measurement again at `now`, after a time in which the thread was not checked.
    fn restart(&mut self, now: Instant) {
        *self = Self { iterations: self.iterations, ..Self::new(now) };
    }
}

#[derive(Debug)]
pub(crate) struct Monitor {
    threads: Vec<Thread>,
    programs: Vec<Program>,
    wakers: Arc<[Waker]>,
    pauses: Pauses,
    /// The time since which stuck threads have been the only problem, on the clock of `pauses`.
    stalled: Option<Instant>,
}

#[derive(Debug)]
struct Thread {
    name: ThreadName,
    progress: Progress,
    sockets: Vec<Socket>,
    /// The time of the first check after the last iteration, and the scheduling data that the
    /// kernel reported at that time.
    quiet: Option<(Instant, Option<Scheduling>)>,
    /// The reason for the current stall. The reason stays the same until the stall ends, so that
    /// each stall is logged once.
    reason: Option<StallReason>,
}

#[derive(Debug)]
struct Socket {
    /// A duplicate of the socket descriptor. The duplicate stays valid after the thread has ended.
    fd: OwnedFd,
    interface: InterfaceId,
    lost: bool,
}

/// The program on one interface.
#[derive(Debug)]
struct Program {
    /// The ID of the program in the kernel.
    id: u32,
    mode: AttachMode,
    /// `true` if some queues intentionally have no socket. Packets that arrive on such a queue are
    /// then not a problem.
    some_without_socket: bool,
    without_socket: bool,
}

impl Monitor {
    /// Creates a monitor. `wakers` contains the wakers of the threads, in thread order.
    pub(crate) fn new(wakers: Arc<[Waker]>) -> std::io::Result<Self> {
        let pauses = Pauses::start()?;
        Ok(Self { threads: Vec::new(), programs: Vec::new(), wakers, pauses, stalled: None })
    }

    /// Returns for how long stuck threads have been the only problem. Returns `None` if there is no
    /// problem, or if there are other problems.
    pub(crate) fn stalled(&self) -> Option<Duration> {
        Some(self.pauses.running(Instant::now()).saturating_duration_since(self.stalled?))
    }

    /// Returns the time until a thread becomes stuck, or until the current stall has lasted for
    /// `max_stall`. Returns `None` if neither can happen before the next iteration of a thread.
    pub(crate) fn due_in(&self, max_stall: Duration) -> Option<Duration> {
        let now = self.pauses.running(Instant::now());
        let threads = self.threads.iter().map(|thread| &thread.progress);
        next_due(threads, self.stalled, max_stall, now).map(|at| at.saturating_duration_since(now))
    }

    /// Restarts the time that [`Monitor::stalled`] returns, and the time since the last iteration
    /// of each thread. A stall continues, because the last problem stays the same until the next
    /// check.
    pub(crate) fn restart_stall(&mut self) {
        let now = self.pauses.running(Instant::now());
        self.stalled = self.stalled.map(|_| now);
        self.threads.iter_mut().for_each(|thread| thread.progress.restart(now));
    }

    /// Returns how long the process did not run, unless this pause was already reported.
    pub(crate) fn pause(&mut self) -> Option<Pause> {
        self.pauses.report(Instant::now())
    }

    /// Adds the program of an interface. Programs must be added in interface order.
    pub(crate) fn add_program(&mut self, id: u32, mode: AttachMode, some_without_socket: bool) {
        self.programs.push(Program { id, mode, some_without_socket, without_socket: false });
    }

    /// Adds a thread with its sockets and their interfaces. Threads must be added in thread order.
    pub(crate) fn add_thread<'a>(
        &mut self,
        name: ThreadName,
        sockets: impl Iterator<Item = (InterfaceId, BorrowedFd<'a>)>,
    ) -> std::io::Result<()> {
        let own = |(interface, fd): (InterfaceId, BorrowedFd<'_>)| {
            Ok(Socket { fd: fd.try_clone_to_owned()?, interface, lost: false })
        };
        let sockets = sockets.map(own).collect::<std::io::Result<_>>()?;
        let progress = Progress::new(self.pauses.running(Instant::now()));
        self.threads.push(Thread { name, progress, sockets, quiet: None, reason: None });
        Ok(())
    }

    /// Closes the duplicated socket descriptors of a thread. The kernel keeps the sockets open
    /// until their duplicates are closed.
    pub(crate) fn forget_sockets(&mut self, thread: usize) {
        if let Some(thread) = self.threads.get_mut(thread) {
            thread.sockets.clear();
        }
    }

    /// Removes all threads from the monitor, so that new threads can be added.
    pub(crate) fn forget_threads(&mut self) {
        self.threads.clear();
    }

    /// Checks threads, sockets, programs and interfaces. `no_socket` contains, for each interface,
    /// the number of packets that arrived on queues without a socket. `clock` is the current time
    /// on the clock of the packet threads.
    pub(crate) fn look(
        &mut self,
        interfaces: &[Interface],
        threads: &[JoinHandle<()>],
        counters: &[Arc<SocketCounters>],
        no_socket: &[u64],
        clock: Now,
    ) -> Health {
        let now = self.pauses.running(Instant::now());
        let mut problems = Vec::new();
        // While the link is down, a packet socket reports the same error as a lost socket. The
        // packet socket works again once the link is up.
        let lasting = self.programs.iter().any(|program| program.mode == AttachMode::Ingress);
        let all = self.threads.iter_mut().zip(self.wakers.iter()).zip(threads).zip(counters);
        for (((thread, waker), handle), counters) in all {
            let lost = thread.lost_socket(interfaces).filter(|_| !lasting);
            let ended = handle.is_finished().then_some(Problem::ThreadEnded(thread.name));
            problems.extend(ended.or(lost).or_else(|| thread.stuck(now, clock, counters, waker)));
        }
        for (program, no_socket) in self.programs.iter_mut().zip(no_socket) {
            // A queue that has lost its socket gets no new socket before a restart. The monitor
            // therefore keeps reporting the problem, even if no further packets arrive on this
            // queue.
            program.without_socket |= !program.some_without_socket && *no_socket > 0;
        }
        let without = self.programs.iter().any(|program| program.without_socket);
        problems.extend(without.then_some(Problem::QueueWithoutSocket));
        problems.extend(interfaces.iter().zip(&self.programs).filter_map(|(ours, one)| one.problem(ours)));
        let stalled = !problems.is_empty() && !problems.iter().any(Problem::is_certain);
        self.observe_stall(stalled, now);
        Health::of(problems)
    }

    fn observe_stall(&mut self, stalled: bool, now: Instant) {
        let since = self.threads.iter().filter_map(|thread| thread.progress.stuck_since()).min();
        self.stalled = stalled.then(|| self.stalled.or(since).unwrap_or(now));
    }
}

/// Returns the time of the next check that can find a stuck thread, or that can find a stall that
/// has lasted for `max_stall`.
fn next_due<'a>(
    threads: impl Iterator<Item = &'a Progress>,
    stalled: Option<Instant>,
    max_stall: Duration,
    now: Instant,
) -> Option<Instant> {
    let lasts = stalled.and_then(|since| since.checked_add(max_stall)).filter(|at| *at > now);
    threads.filter_map(Progress::due).chain(lasts).min()
}

impl Thread {
    fn stuck(
        &mut self,
        now: Instant,
        clock: Now,
        counters: &SocketCounters,
        waker: &Waker,
    ) -> Option<Problem> {
        let iterations = counters.iterations.read();
        let advances = iterations != self.progress.iterations;
        let waiting = || waker.has_mail() || self.sockets.iter().any(|socket| has_packets(socket.fd.as_fd()));
        let ago = clock.nanos().saturating_sub(counters.last_iteration.read());
        let stuck = self.progress.is_stuck(now, iterations, Duration::from_nanos(ago), waiting);
        self.reason = self.reason.filter(|_| stuck);
        if advances {
            self.quiet = None;
        }
        if advances && !stuck {
            return None;
        }
        let read = || Scheduling::read(waker.thread());
        let (since, before) = *self.quiet.get_or_insert_with(|| (now, read()));
        // The first reading has nothing to compare with.
        let before = before.filter(|_| since < now);
        let reason =
            || Scheduling::reason(before.as_ref(), read().as_ref(), now.saturating_duration_since(since));
        stuck.then(|| Problem::ThreadStuck(self.name, *self.reason.get_or_insert_with(reason)))
    }

    fn lost_socket(&mut self, interfaces: &[Interface]) -> Option<Problem> {
        for socket in &mut self.sockets {
            // Reading the error of a socket also clears the error, so the monitor stores the
            // result.
            socket.lost |= getsockopt(&socket.fd, sockopt::SocketError).is_ok_and(|error| error != 0);
        }
        let lost = self.sockets.iter().find(|socket| socket.lost)?;
        let interface = interfaces.get(usize::from(lost.interface.0));
        let interface = interface.map(|found| found.name.clone()).unwrap_or_default();
        let (ThreadName::Packet(queue) | ThreadName::Io(queue)) = self.name;
        Some(Problem::SocketLost { interface, queue })
    }
}

/// Returns `true` if packets wait in the receive ring of a socket.
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
            // The request failed because the kernel was busy or had no free memory. Such a failure
            // does not mean that the program is missing.
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

/// A thread that makes no iteration for this long is considered stuck. A sleeping thread makes an
/// iteration every 100 ms, and a pause of the process that the clock does not notice is shorter
/// than [`pauses::LATE`].
const STUCK_AFTER: Duration = Duration::from_millis(400);
const _: () = assert!(100 + pauses::LATE.as_millis() < STUCK_AFTER.as_millis());

#[cfg(test)]
mod tests {
    use super::*;

    /// Each tuple contains the iteration count, a flag that is `true` if packets are waiting, and a
    /// flag that is `true` if the thread should be reported as stuck. Iterations run immediately
    /// before a check.
    type Look = (u64, bool, bool);

    const LOOK: Duration = Duration::from_millis(250);

    #[test]
    fn progress_is_stuck_only_while_packets_wait() {
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
            for (n, &(iterations, waiting, stuck)) in (0..).zip(looks) {
                let is_stuck = progress.is_stuck(at(n), iterations, Duration::ZERO, || waiting);
                assert_eq!(is_stuck, stuck, "{name}, look {n}");
            }
        }
    }

    #[test]
    fn progress_without_a_first_iteration_is_stuck() {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        assert!(!progress.is_stuck(start + LOOK, 0, Duration::ZERO, || true));
        assert!(progress.is_stuck(start + 2 * LOOK, 0, Duration::ZERO, || true));
    }

    /// Runs regular checks and the checks that are due, from a check that found no problem on. Each
    /// check is late by `late`. The thread makes its last iteration `after` that check. Returns two
    /// durations since the last iteration: until the stall was found, and until the stall had
    /// lasted for `max_stall`.
    fn found(after: Duration, late: Duration, max_stall: Duration) -> (Duration, Duration) {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        let (last, mut now, mut stalled, mut found) = (start + after, start, None, None);
        loop {
            let due = next_due(std::iter::once(&progress), stalled, max_stall, now);
            now = due.map_or(now + LOOK, |due| due.min(now + LOOK)) + late;
            let iterations = u64::from(now >= last);
            progress.is_stuck(now, iterations, now.saturating_duration_since(last), || true);
            stalled = progress.stuck_since();
            if let Some(since) = stalled {
                assert_eq!(since, last, "a stall starts with the last iteration");
                let found = *found.get_or_insert(now - last);
                if now - since >= max_stall {
                    return (found, now - last);
                }
            }
        }
    }

    // Promise: forwarder-stall
    #[test]
    fn stall_decisions_do_not_wait_for_a_regular_check() {
        let late = Duration::from_millis(2);
        for after in (1..250).step_by(7).map(Duration::from_millis) {
            for max_stall in [3_000, 3_100, 600].map(Duration::from_millis) {
                let (stuck, withdrawn) = found(after, late, max_stall);
                assert!((STUCK_AFTER..=STUCK_AFTER + late).contains(&stuck), "{after:?}: {stuck:?}");
                assert!((max_stall..=max_stall + late).contains(&withdrawn), "{after:?}: {withdrawn:?}");
            }
        }
    }

    #[test]
    fn stall_starts_when_packets_wait_and_never_before_a_pause() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut progress = Progress::new(start);
        assert!(!progress.is_stuck(at(10_000), 0, Duration::ZERO, || false));
        assert!(progress.is_stuck(at(10_250), 0, Duration::ZERO, || true));
        assert_eq!(progress.stuck_since(), Some(at(10_000)), "nothing waited before");
        assert!(!progress.is_stuck(at(10_500), 1, Duration::ZERO, || true));
        assert_eq!((progress.stuck_since(), progress.due()), (None, Some(at(10_900))));
        // The thread made an iteration, and then the process stopped for 26 s. The clock did not
        // advance during this time.
        assert!(!progress.is_stuck(at(10_700), 2, Duration::from_secs(26), || true));
        assert_eq!(progress.due(), Some(at(10_900)));
    }

    #[test]
    fn stall_excludes_time_without_checks() {
        let mut monitor = Monitor::new(Arc::new([])).unwrap();
        let start = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
        monitor.observe_stall(true, start);
        // Pauses of a busy test machine do not count.
        assert!(monitor.stalled().unwrap() >= Duration::from_secs(30));
        let now = Instant::now();
        monitor.restart_stall();
        assert!(monitor.stalled().unwrap() <= now.elapsed());
        monitor.observe_stall(true, now);
        assert!(monitor.stalled().unwrap() <= now.elapsed());
        monitor.observe_stall(false, now);
        monitor.restart_stall();
        assert_eq!(monitor.stalled(), None);
    }

    #[test]
    fn health_displays_all_problems() {
        assert_eq!((Health::of(vec![]), Health::of(vec![]).to_string()), (Health::Healthy, "healthy".into()));
        let problems = [
            Problem::ThreadStuck(ThreadName::Packet(1), StallReason::Looping),
            Problem::ThreadEnded(ThreadName::Io(0)),
            Problem::ProgramMissing("eth0".into()),
        ];
        let health = Health::of(problems.into());
        assert!(!health.is_healthy());
        let words = "packet thread 1 is stuck with packets waiting (it runs in a loop without progress); I/O thread 0 has ended; no XDP program is attached to eth0";
        assert_eq!(health.to_string(), words);
    }
}
