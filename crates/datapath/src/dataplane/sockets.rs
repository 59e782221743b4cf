//! Which thread has which queues, and their sockets over one UMEM.
//!
//! In: interfaces, settings. Out: each thread's device and pool, all sockets in one mode.
//! Not here: programs and threads.
//! Invariant: queue `n` of every interface that has one is one thread's: the `n`th packet thread's, or, with software steering, the
//! `n`th I/O thread's. Packet threads are numbered from 0, I/O threads behind them.

use std::time::{Duration, Instant};

use forwarder::{InterfaceId, ThreadId};

use super::{IoMode, Settings};
use crate::error::StartError;
use crate::frame::Frame;
use crate::health::ThreadName;
use crate::interface::{Interface, MAX_INTERFACES, largest_packet};
use crate::sockets::SocketMode;
use crate::umem::Area;
use crate::xsk::{Place, Queue, XskDevice};

/// Which thread has which queues.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// By interface: queues with a socket, counted from 0.
    pub(super) queues: Vec<u16>,
    /// Packet threads without queues; 0: each has its own.
    steered: u16,
}

impl Layout {
    pub(super) fn of(interfaces: &[Interface], settings: &Settings) -> Result<Self, StartError> {
        if interfaces.is_empty() || interfaces.len() > MAX_INTERFACES {
            let said = format!("{} interfaces: 1 to {MAX_INTERFACES} are allowed", interfaces.len());
            return Err(StartError::Interface(said));
        }
        let queues = match settings.mode {
            IoMode::AfXdp => {
                interfaces.iter().map(|interface| queues(settings, interface)).collect::<Result<_, _>>()?
            }
            IoMode::AfPacket if settings.steer_over.is_some() => {
                let said = "the kernel spreads what packet sockets get: there is no software steering";
                return Err(StartError::Interface(said.to_owned()));
            }
            // The kernel spreads packets over threads itself, and each has a socket on each interface.
            IoMode::AfPacket => {
                let most = interfaces.iter().map(|interface| interface.queues).max().unwrap_or(1);
                let threads = settings.queues.unwrap_or(most).clamp(1, MOST_THREADS);
                vec![u16::try_from(threads).unwrap_or(1); interfaces.len()]
            }
        };
        Ok(Self { queues, steered: settings.steer_over.map_or(0, u16::from) })
    }

    /// All threads.
    pub(super) fn threads(&self) -> u16 {
        self.steered + self.queues.iter().copied().max().unwrap_or(0)
    }

    /// Packet threads: the first of all.
    pub(super) fn packet_threads(&self) -> u16 {
        if self.is_steered() { self.steered } else { self.threads() }
    }

    /// Whether I/O threads give packets to packet threads.
    pub(super) fn is_steered(&self) -> bool {
        self.steered > 0
    }

    /// A thread by what it does.
    pub(super) fn name(&self, thread: ThreadId) -> ThreadName {
        match thread.0.checked_sub(self.steered) {
            Some(queue) if self.is_steered() => ThreadName::Io(queue),
            _ => ThreadName::Packet(thread.0),
        }
    }

    /// The queues, as interface, queue and thread, in the order of their frames.
    pub(super) fn each(&self) -> impl Iterator<Item = (InterfaceId, u16, ThreadId)> {
        let interfaces = (0u8..).map(InterfaceId).zip(&self.queues);
        interfaces.flat_map(move |(interface, queues)| {
            (0..*queues).map(move |queue| (interface, queue, ThreadId(self.steered + queue)))
        })
    }

    /// By interface: whose queue thread `me` sends by.
    pub(super) fn senders(&self, me: ThreadId) -> Vec<ThreadId> {
        let (ThreadName::Packet(number) | ThreadName::Io(number)) = self.name(me);
        self.queues.iter().map(|queues| ThreadId(self.steered + number % (*queues).max(1))).collect()
    }

    /// The threads of equal parts of the UMEM, and the frames of a part. A packet thread without queues has an eighth of a
    /// queue's frames, which is what a queue's thread keeps free for pieces of packets that are cut.
    pub(super) fn homes(&self, frames_per_queue: u32) -> (Vec<ThreadId>, u32) {
        let parts = if self.is_steered() { 8 } else { 1 };
        let queues = self.each().flat_map(|(_, _, thread)| std::iter::repeat_n(thread, parts as usize));
        let homes = queues.chain((0..self.steered).map(ThreadId)).collect();
        (homes, frames_per_queue / parts)
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

/// Whether an interface carries packets that one frame does not hold.
pub(super) fn in_several_frames(interfaces: &[Interface], frame_size: u32) -> bool {
    interfaces.iter().any(|interface| interface.mtu_bytes > largest_packet(frame_size))
}

/// By thread: its sockets, and its frames.
pub(super) type Bound = Vec<(XskDevice, Vec<Frame>)>;

/// All queues in one mode: a queue that refuses zero-copy puts all into copy mode, and the log names it.
pub(super) fn bind_all(
    interfaces: &[Interface],
    settings: &Settings,
    layout: &Layout,
) -> Result<(Bound, SocketMode), StartError> {
    let refused = |interface: &str, queue: u32| {
        tracing::warn!(interface, queue, "this queue refuses zero-copy: all queues run in copy mode");
    };
    let first = |bound: &Bound| {
        let queue = bound.iter().find_map(|(device, _)| device.queues().first());
        queue.map_or(Ok(SocketMode::Copy), Queue::mode)
    };
    match bind_queues(interfaces, settings, layout, false) {
        Err(StartError::NoZeroCopy { interface, queue }) => {
            refused(&interface, queue);
            let bound = bind_queues(interfaces, settings, layout, true)?;
            let mode = first(&bound)?;
            Ok((bound, mode))
        }
        // The first queue's refusal is no error: the kernel takes copy mode by itself.
        bound => {
            let bound = bound?;
            let mode = first(&bound)?;
            if mode == SocketMode::Copy {
                refused(interfaces.first().map_or("", |interface| &interface.name), 0);
            }
            Ok((bound, mode))
        }
    }
}

fn bind_queues(
    interfaces: &[Interface],
    settings: &Settings,
    layout: &Layout,
    force_copy: bool,
) -> Result<Bound, StartError> {
    let multi_buffer = in_several_frames(interfaces, settings.frame_size);
    let (homes, frames) = layout.homes(settings.frames_per_queue);
    let (area, pools) = Area::new(homes, frames, settings.frame_size, multi_buffer)?;
    let mut queues: Vec<Vec<Queue>> = pools.iter().map(|_| Vec::new()).collect();
    for (interface, queue, thread) in layout.each() {
        let name = interfaces.get(usize::from(interface.0)).map_or("", |interface| &interface.name);
        let place = Place { interface, name, queue: queue.into() };
        let bound = bind_queue(&area, place, settings, force_copy)?;
        if let Some(of_thread) = queues.get_mut(usize::from(thread.0)) {
            of_thread.push(bound);
        }
    }
    let share = settings.frames_per_queue as usize;
    let device = |((me, queues), frames): ((u16, Vec<Queue>), Vec<Frame>)| {
        let me = ThreadId(me);
        (XskDevice::new(area.clone(), queues, me, &layout.senders(me), share), frames)
    };
    Ok((0u16..).zip(queues).zip(pools).map(device).collect())
}

/// Binds a queue that may have had another socket until now.
pub(super) fn bind_queue(
    area: &Area,
    place: Place<'_>,
    settings: &Settings,
    force_copy: bool,
) -> Result<Queue, StartError> {
    let mut bound = bind_patiently(area, place, force_copy)?;
    if let Some(budget) = settings.busy_poll
        && let Err(error) = bound.prefer_busy_poll(place.name, budget)
    {
        let (interface, queue) = (place.name, place.queue);
        tracing::warn!(interface, queue, %error, "no busy polling: its driver receives in interrupts");
    }
    Ok(bound)
}

/// A queue whose last socket has just been closed says EBUSY for some 40 ms.
fn bind_patiently(area: &Area, place: Place<'_>, force_copy: bool) -> Result<Queue, StartError> {
    let deadline = Instant::now() + BUSY_AT_MOST;
    loop {
        match Queue::bind(area, place, force_copy) {
            Err(StartError::Busy { .. }) if Instant::now() < deadline => std::thread::sleep(BUSY_STEP),
            other => return other,
        }
    }
}

/// As `io.queues` allows at most; the kernel lets as many sockets share an interface.
const MOST_THREADS: u32 = 256;
const BUSY_AT_MOST: Duration = Duration::from_secs(2);
/// The queue is deaf meanwhile.
const BUSY_STEP: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_a_way_out_of_each_interface_by_its_own_queue_where_it_has_one() {
        for queues in [vec![1], vec![4], vec![1, 3], vec![4, 2, 1], vec![2, 2], vec![16, 5]] {
            let layout = Layout { queues: queues.clone(), steered: 0 };
            let all: Vec<_> =
                layout.each().map(|(interface, n, thread)| (interface.0, n, thread.0)).collect();
            let expected: Vec<_> = (0u8..)
                .zip(&queues)
                .flat_map(|(interface, count)| (0..*count).map(move |n| (interface, n, n)))
                .collect();
            assert_eq!((all, layout.threads()), (expected, *queues.iter().max().unwrap()));
            for me in 0..layout.threads() {
                for (sender, count) in layout.senders(ThreadId(me)).iter().zip(&queues) {
                    assert!(sender.0 < *count, "{queues:?}: thread {me} sends by a queue that is not there");
                    assert!(me >= *count || sender.0 == me, "{queues:?}: thread {me} has a queue of its own");
                }
            }
        }
    }

    #[test]
    fn with_software_steering_the_threads_behind_the_packet_threads_have_all_queues_and_send_for_all() {
        for (steered, queues) in
            [(1, vec![1]), (2, vec![1]), (3, vec![4]), (5, vec![1, 3]), (2, vec![4, 2, 1])]
        {
            let most = *queues.iter().max().unwrap();
            let layout = Layout { queues: queues.clone(), steered };
            assert_eq!((layout.packet_threads(), layout.threads()), (steered, steered + most));
            let is_io = |thread: ThreadId| thread.0 >= steered && thread.0 < steered + most;
            assert!(layout.each().all(|(_, queue, thread)| thread.0 == steered + queue && is_io(thread)));
            for me in 0..layout.threads() {
                let name = if me < steered { ThreadName::Packet(me) } else { ThreadName::Io(me - steered) };
                assert_eq!(layout.name(ThreadId(me)), name);
                for (sender, count) in layout.senders(ThreadId(me)).iter().zip(&queues) {
                    let queue = sender.0.checked_sub(steered).unwrap();
                    assert!(queue < *count, "{queues:?}: thread {me} sends by a queue that is not there");
                    assert!(me < steered || me - steered >= *count || sender.0 == me, "its own is there");
                }
            }
            let (homes, frames) = layout.homes(4_096);
            let of = |me: u16| homes.iter().filter(|home| home.0 == me).count() * frames as usize;
            assert!((0..steered).all(|me| of(me) == 512));
            let own = |queue: u16| queues.iter().filter(|count| queue < **count).count();
            assert!((0..most).all(|queue| of(steered + queue) == 4_096 * own(queue)), "{homes:?}");
        }
    }
}
