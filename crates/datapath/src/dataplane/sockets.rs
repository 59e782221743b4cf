//! The assignment of queues to threads, and the sockets of the queues. All sockets share one UMEM
//! and have the same mode.
//!
//! Invariant: queue `n` of every interface belongs to packet thread `n` or, with software steering,
//! to I/O thread `n`. Packet threads have the lowest thread numbers, starting at 0. The I/O threads
//! follow.

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

/// The assignment of queues to threads.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// The number of queues with a socket on each interface, starting at queue 0.
    pub(super) queues: Vec<u16>,
    /// The number of packet threads if software steering is used, or 0 if each packet thread has
    /// its own queues.
    steered: u16,
}

impl Layout {
    pub(super) fn of(interfaces: &[Interface], settings: &Settings) -> Result<Self, StartError> {
        if interfaces.is_empty() || interfaces.len() > MAX_INTERFACES {
            let said = format!("{} interfaces configured; use 1 to {MAX_INTERFACES}", interfaces.len());
            return Err(StartError::Interface(said));
        }
        let queues = match settings.mode {
            IoMode::AfXdp => {
                interfaces.iter().map(|interface| queues(settings, interface)).collect::<Result<_, _>>()?
            }
            IoMode::AfPacket if settings.steer_over.is_some() => {
                let said =
                    "software steering does not work with packet sockets; the kernel spreads their packets";
                return Err(StartError::Interface(said.to_owned()));
            }
            // The kernel distributes packets to the threads, and each thread has a socket on each
            // interface.
            IoMode::AfPacket => {
                let most = interfaces.iter().map(|interface| interface.queues).max().unwrap_or(1);
                let threads = settings.queues.unwrap_or(most).clamp(1, MOST_THREADS);
                vec![u16::try_from(threads).unwrap_or(1); interfaces.len()]
            }
        };
        Ok(Self { queues, steered: settings.steer_over.map_or(0, u16::from) })
    }

    /// Returns the number of threads, including I/O threads.
    pub(super) fn threads(&self) -> u16 {
        self.steered + self.queues.iter().copied().max().unwrap_or(0)
    }

    /// Returns the number of packet threads, which have the lowest thread numbers.
    pub(super) fn packet_threads(&self) -> u16 {
        if self.is_steered() { self.steered } else { self.threads() }
    }

    /// Returns `true` if I/O threads distribute packets to packet threads.
    pub(super) fn is_steered(&self) -> bool {
        self.steered > 0
    }

    pub(super) fn name(&self, thread: ThreadId) -> ThreadName {
        match thread.0.checked_sub(self.steered) {
            Some(queue) if self.is_steered() => ThreadName::Io(queue),
            _ => ThreadName::Packet(thread.0),
        }
    }

    /// Returns all queues as tuples of interface, queue and thread. UMEM frames are assigned to the
    /// queues in the order of these tuples.
    pub(super) fn each(&self) -> impl Iterator<Item = (InterfaceId, u16, ThreadId)> {
        let interfaces = (0u8..).map(InterfaceId).zip(&self.queues);
        interfaces.flat_map(move |(interface, queues)| {
            (0..*queues).map(move |queue| (interface, queue, ThreadId(self.steered + queue)))
        })
    }

    /// Returns, for each interface, the thread whose queue sends the packets of thread `me`.
    pub(super) fn senders(&self, me: ThreadId) -> Vec<ThreadId> {
        let (ThreadName::Packet(number) | ThreadName::Io(number)) = self.name(me);
        self.queues.iter().map(|queues| ThreadId(self.steered + number % (*queues).max(1))).collect()
    }

    /// Divides the UMEM into equal parts. Returns the owner of each part, and the number of frames
    /// in a part. Without software steering, each queue gets one part. With software steering, each
    /// queue gets eight parts, and each packet thread, which has no queue, gets one part. A thread
    /// with a queue keeps an eighth of the queue's frames free for fragments.
    pub(super) fn homes(&self, frames_per_queue: u32) -> (Vec<ThreadId>, u32) {
        let parts = if self.is_steered() { 8 } else { 1 };
        let queues = self.each().flat_map(|(_, _, thread)| std::iter::repeat_n(thread, parts as usize));
        let homes = queues.chain((0..self.steered).map(ThreadId)).collect();
        (homes, frames_per_queue / parts)
    }
}

/// Returns how many queues of an interface are bound to a socket.
fn queues(settings: &Settings, interface: &Interface) -> Result<u16, StartError> {
    let there = interface.queues.max(1);
    let wanted = settings.queues.unwrap_or(there);
    if wanted > there {
        let said = format!("interface {} has {there} queues, but io.queues is {wanted}", interface.name);
        return Err(StartError::Interface(said));
    }
    if wanted < there {
        // log: Some queues of the interface have no socket. VIP packets that arrive on these queues
        // are passed or dropped, depending on `io.no_socket`. Configure as many NIC queues as
        // `io.queues` (`ethtool -L`), or remove `io.queues`.
        tracing::warn!(interface = interface.name, queues = there - wanted, "queues have no socket");
    }
    Ok(u16::try_from(wanted).unwrap_or(u16::MAX))
}

/// Returns `true` if an interface can receive packets that are too long for one frame.
pub(super) fn in_several_frames(interfaces: &[Interface], frame_size: u32) -> bool {
    interfaces.iter().any(|interface| interface.mtu_bytes > largest_packet(frame_size))
}

/// The device of each thread, together with the frames that the thread owns.
pub(super) type Bound = Vec<(XskDevice, Vec<Frame>)>;

/// Binds all queues in the same mode. If a queue does not support zero-copy, all queues are bound
/// in copy mode, and a warning names that queue.
pub(super) fn bind_all(
    interfaces: &[Interface],
    settings: &Settings,
    layout: &Layout,
) -> Result<(Bound, SocketMode), StartError> {
    let refused = |interface: &str, queue: u32| {
        // log: The driver does not support zero-copy on this queue, or has too few free
        // descriptors. All queues run in copy mode, which is slower.
        tracing::warn!(interface, queue, "queue refuses zero-copy, all queues use copy mode");
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
        // If the driver does not support zero-copy, the first bind still succeeds, because the
        // kernel falls back to copy mode.
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

/// Binds a queue, even if another socket was using the queue until just before the call.
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
        // log: The kernel refused `io.busy_poll`, because Linux is older than 5.11 or CAP_NET_ADMIN
        // is missing. The driver uses interrupts instead.
        tracing::warn!(interface, queue, %error, "busy polling unavailable");
    }
    Ok(bound)
}

/// Binds a queue and retries on EBUSY. The kernel returns EBUSY for about 40 ms after the last
/// socket of the queue was closed.
fn bind_patiently(area: &Area, place: Place<'_>, force_copy: bool) -> Result<Queue, StartError> {
    let deadline = Instant::now() + BUSY_AT_MOST;
    loop {
        match Queue::bind(area, place, force_copy) {
            Err(StartError::Busy { .. }) if Instant::now() < deadline => std::thread::sleep(BUSY_STEP),
            other => return other,
        }
    }
}

/// The maximum number of packet threads. The same limit applies to `io.queues` and to fanout groups
/// in the kernel.
const MOST_THREADS: u32 = 256;
const BUSY_AT_MOST: Duration = Duration::from_secs(2);
/// The pause between two attempts to bind a queue that is still in use. The pause is short, because
/// the queue receives no packets in the meantime.
const BUSY_STEP: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_each_thread_sends_on_its_own_queue_if_it_has_one() {
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
                    assert!(
                        sender.0 < *count,
                        "thread {me} sends on a queue that does not exist (queues: {queues:?})"
                    );
                    assert!(
                        me >= *count || sender.0 == me,
                        "thread {me} does not send on its own queue (queues: {queues:?})"
                    );
                }
            }
        }
    }

    #[test]
    fn layout_with_steering_gives_all_queues_to_io_threads() {
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
                    assert!(
                        queue < *count,
                        "thread {me} sends on a queue that does not exist (queues: {queues:?})"
                    );
                    assert!(
                        me < steered || me - steered >= *count || sender.0 == me,
                        "thread {me} does not send on its own queue (queues: {queues:?})"
                    );
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
