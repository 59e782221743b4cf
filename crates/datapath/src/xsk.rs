//! Implements [`Device`] for the AF_XDP sockets of a thread. The thread has at most one queue of
//! each interface, with one socket. Only this module transfers frames between the kernel and the
//! process.
//!
//! Invariant: The fields `receiving` and `sending` count the frames that the kernel currently
//! holds. The kernel returns each of these frames exactly once.

mod receive;
mod socket;
#[cfg(test)]
mod tests;

use std::num::NonZeroU16;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use arrayvec::ArrayVec;
use engine::{Device, InKernel, Received, TxOwner};
use forwarder::{InterfaceId, ThreadId};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use xsk_rs::Socket;
use xsk_rs::config::Interface;
use xsk_rs::socket::XdpStatistics;

use self::socket::{Handles, socket_config};
use crate::busy_poll::{self, run_driver};
use crate::error::StartError;
use crate::frame::{Descriptor, Frame};
use crate::interface::MAX_INTERFACES;
use crate::long::{Gathering, MAX_SEGMENTS};
use crate::ring::mapping::Rings;
use crate::ring::{Consumer, Producer};
use crate::sockets::{SocketCounters, SocketMode, Sockets};
use crate::umem::{Area, RING};
use crate::wait::Trigger;

/// A queue with its socket and its four rings.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) interface: InterfaceId,
    rx: Consumer<Descriptor>,
    tx: Producer<Descriptor>,
    fill: Producer<u64>,
    completion: Consumer<u64>,
    /// Keeps the socket and its ring mappings alive.
    socket: Handles,
    /// The number of descriptors that were put into the transmit ring but are not yet visible to
    /// the kernel.
    queued: usize,
    receiving: usize,
    sending: usize,
    wakeup: Wakeup,
    received: u64,
    sent: u64,
    gathering: Gathering,
    busy_poll: BusyPoll,
}

/// The context in which the driver of a queue runs: interrupts, or system calls that the thread
/// makes.
#[derive(Debug)]
enum BusyPoll {
    /// The driver runs in interrupt context.
    Off,
    /// The driver will run in the thread's system calls once the kernel knows the driver queue of
    /// the socket. Until then, the driver runs in interrupt context. The value is the name of the
    /// interface.
    Wanted(Box<str>),
    On,
}

/// The way in which a queue makes the kernel send frames.
#[derive(Debug)]
enum Wakeup {
    /// The system call itself sends frames, at most 32 in copy mode. The call is repeated until the
    /// kernel has taken all frames.
    Repeated,
    /// The system call makes the driver run soon, and the driver takes all frames. The value is
    /// `true` if the driver has been called since the last frame was submitted.
    Once(bool),
}

/// The AF_XDP sockets of one thread.
#[derive(Debug)]
pub struct XskDevice {
    area: Area,
    queues: Box<[Queue]>,
    /// The path by which the thread sends frames on each interface.
    tx_paths: Box<[TxPath]>,
    /// The maximum number of frames that a queue uses for receiving, counting frames in the fill
    /// ring and received packets.
    share: usize,
    /// Free frames for long packets. Sending a long packet may take more frames than receiving it.
    spare: Vec<Frame>,
    most_spare: usize,
    /// Free chunks that belonged to a long packet. These chunks are returned to the pool by the
    /// next call to `reap`.
    returned: Vec<Frame>,
    /// The index of the queue that the next call to `receive` reads first. The index rotates so
    /// that every queue is served.
    first: usize,
}

/// The path by which a thread sends frames on an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TxPath {
    /// The thread sends on one of its own queues. The value is the index of the queue.
    Own(usize),
    /// The thread passes the frames to another thread, which sends them.
    Of(ThreadId),
}

/// The queue to which a socket is bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) interface: InterfaceId,
    pub(crate) name: &'a str,
    pub(crate) queue: u32,
}

impl Place<'_> {
    fn refused(self, why: &str) -> StartError {
        StartError::Bind { interface: self.name.to_owned(), queue: self.queue, why: why.to_owned() }
    }

    fn refusal(self, error: &impl std::error::Error, force_copy: bool, has_slots: bool) -> StartError {
        let cause = error.source();
        let errno = cause.and_then(|cause| cause.downcast_ref::<std::io::Error>()?.raw_os_error());
        let (interface, queue) = (self.name.to_owned(), self.queue);
        match errno {
            Some(libc::EBUSY) => StartError::Busy { interface, queue },
            Some(libc::EOPNOTSUPP | libc::EINVAL) if !force_copy => {
                StartError::NoZeroCopy { interface, queue }
            }
            Some(libc::EOPNOTSUPP | libc::EINVAL) if has_slots => self.refused(NO_MULTI_BUFFER),
            _ => self.refused(&cause.map_or_else(|| error.to_string(), ToString::to_string)),
        }
    }
}

impl Queue {
    /// Binds a socket to a queue. If `force_copy` is `true`, the socket uses copy mode, and
    /// zero-copy is not tried.
    pub(crate) fn bind(area: &Area, place: Place<'_>, force_copy: bool) -> Result<Self, StartError> {
        let refused = |why: &str| place.refused(why);
        let rx_slots = area.frames_per_queue().max(RING);
        let config = socket_config(rx_slots, force_copy, area.has_slots()).map_err(|why| refused(&why))?;
        let device: Interface =
            place.name.parse().map_err(|_| refused("the interface name has a zero byte"))?;
        // SAFETY: `Socket::new` requires that libxdp loads no program if queues share a UMEM, and
        // the configuration inhibits loading.
        let bound = unsafe { Socket::new(config, &area.umem, &device, place.queue) };
        let (tx, rx, rings) = bound.map_err(|error| place.refusal(&error, force_copy, area.has_slots()))?;
        let (fill, completion) =
            rings.ok_or_else(|| refused("this process already has a socket on the queue"))?;
        let socket = Handles { fd: rx.fd().as_raw_fd(), kept: Some((rx, tx, fill, completion)) };
        // A child process must not inherit the descriptor. Otherwise the queue would stay in use
        // until the child ends.
        //
        // SAFETY: the descriptor stays open as long as `socket` lives, which is longer than this
        // statement.
        let fd = unsafe { BorrowedFd::borrow_raw(socket.fd) };
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(|error| refused(&error.to_string()))?;
        // SAFETY: the configurations of the socket and of the UMEM give the receive ring `rx_slots`
        // slots, and each other ring `RING` slots. The rings stay mapped as long as `socket` lives,
        // and `socket` is stored together with them. The handles in `socket` do not access the
        // rings.
        let rings = unsafe { Rings::of(socket.fd, rx_slots, RING) };
        let rings =
            rings.map_err(|error| refused(&format!("the rings of the socket were not found ({error})")))?;
        let mut queue = Self::new(place.interface, rings, socket);
        if matches!(queue.mode(), Ok(SocketMode::ZeroCopy)) {
            queue.wakeup = Wakeup::Once(false);
        }
        Ok(queue)
    }

    fn new(interface: InterfaceId, rings: Rings, socket: Handles) -> Self {
        Self {
            interface,
            rx: Consumer::new(rings.rx),
            tx: Producer::new(rings.tx),
            fill: Producer::new(rings.fill),
            completion: Consumer::new(rings.completion),
            socket,
            queued: 0,
            receiving: 0,
            sending: 0,
            wakeup: Wakeup::Repeated,
            received: 0,
            sent: 0,
            gathering: Gathering::default(),
            busy_poll: BusyPoll::Off,
        }
    }

    /// Enables busy polling: system calls of the thread run the driver, with at most `budget`
    /// packets in each call. `interface` is the name of the interface for log lines.
    pub(crate) fn prefer_busy_poll(&mut self, interface: &str, budget: NonZeroU16) -> std::io::Result<()> {
        // SAFETY: the descriptor stays open as long as `socket` lives, which is longer than this
        // borrow.
        let socket = unsafe { BorrowedFd::borrow_raw(self.fd()) };
        busy_poll::prefer(socket, budget)?;
        self.busy_poll = BusyPoll::Wanted(interface.into());
        // The driver runs only in system calls, and each call sends a limited number of frames.
        self.wakeup = Wakeup::Repeated;
        Ok(())
    }

    /// Starts the driver calls of busy polling once the kernel knows the driver queue of the
    /// socket, which is after the first packet.
    fn find_driver(&mut self) {
        let BusyPoll::Wanted(interface) = &self.busy_poll else { return };
        if self.received == 0 {
            return;
        }
        // SAFETY: the descriptor stays open as long as `socket` lives, which is longer than this
        // borrow.
        let socket = unsafe { BorrowedFd::borrow_raw(self.fd()) };
        if busy_poll::knows_driver(socket) {
            self.busy_poll = BusyPoll::On;
            return;
        }
        // log: The driver, for example veth, does not tell the kernel which of its queues (NAPI ID)
        // received a packet. Packets are therefore received in interrupts. Remove `io.busy_poll` if
        // this interface needs no busy polling.
        tracing::warn!(
            interface = %interface,
            "busy polling unavailable, driver queue unknown"
        );
        self.busy_poll = BusyPoll::Off;
    }

    /// Returns the mode that the kernel selected for the socket.
    pub(crate) fn mode(&self) -> std::io::Result<SocketMode> {
        let mut options = 0u32;
        let mut len = libc::socklen_t::try_from(size_of::<u32>()).unwrap_or(4);
        // SAFETY: `options` has the size of `struct xdp_options`, and `len` states this size.
        // `options` outlives the call.
        let result = unsafe {
            libc::getsockopt(
                self.fd(),
                libc::SOL_XDP,
                libc::XDP_OPTIONS,
                (&raw mut options).cast::<libc::c_void>(),
                &raw mut len,
            )
        };
        if result != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let zero_copy = options & libc::XDP_OPTIONS_ZEROCOPY != 0;
        Ok(if zero_copy { SocketMode::ZeroCopy } else { SocketMode::Copy })
    }

    /// Returns the descriptor of the socket. The descriptor is used as the XSKMAP entry and for
    /// `poll`.
    #[must_use]
    pub(crate) fn fd(&self) -> RawFd {
        self.socket.fd
    }

    /// Puts the descriptors of one frame into the transmit ring, which must have enough free slots.
    /// From then on, the frame belongs to the kernel.
    #[inline]
    fn queue(&mut self, segments: impl ExactSizeIterator<Item = Descriptor>) {
        let wanted = segments.len();
        let count = self.tx.put(segments);
        debug_assert_eq!(count, wanted, "the caller must check for free slots");
        self.queued += count;
        self.sent += 1;
    }

    /// Makes the queued descriptors visible to the kernel.
    fn submit(&mut self) {
        if self.queued > 0 {
            self.tx.submit();
            self.sending += std::mem::take(&mut self.queued);
            self.wake_again();
        }
    }

    /// Makes the next call to `flush` wake the kernel, even if the kernel was already woken for all
    /// frames.
    fn wake_again(&mut self) {
        if let Wakeup::Once(done) = &mut self.wakeup {
            *done = false;
        }
    }

    /// Returns `true` if the transmit ring has frames, and the kernel will take them only after a
    /// system call.
    fn must_wake(&mut self) -> bool {
        let is_woken = matches!(self.wakeup, Wakeup::Once(true));
        self.sending > 0 && !is_woken && self.tx.needs_wakeup() && self.has_unsent()
    }

    /// Returns `true` if the kernel has not yet taken all frames from the transmit ring.
    fn has_unsent(&mut self) -> bool {
        self.tx.free_now() < RING as usize
    }

    /// Wakes the kernel if frames wait in the transmit ring. In copy mode, repeats the system call
    /// as long as the kernel makes progress.
    fn flush(&mut self) {
        self.submit();
        let mut free_before = RING as usize;
        while self.must_wake() {
            let free = self.tx.free_now();
            if free == free_before {
                return;
            }
            free_before = free;
            match self.socket.wake_to_send() {
                Ok(is_accepted) => {
                    if let Wakeup::Once(done) = &mut self.wakeup {
                        *done = is_accepted;
                        return;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "transmit wakeup failed");
                    return;
                }
            }
        }
    }

    fn reap(&mut self, free: &mut Vec<Frame>) {
        // Each address belongs to this UMEM and becomes the only `Frame` of its chunk.
        self.sending -= self.completion.take(RING as usize, free, |addr| Frame(Descriptor::at(addr)));
    }

    /// Passes up to `most` free frames to the kernel for receiving.
    fn refill(&mut self, area: &Area, most: usize, free: &mut Vec<Frame>, returned: &mut Vec<Frame>) {
        let wanted = free.len().min(most);
        let count = wanted.min(self.fill.free(wanted));
        if count == 0 {
            return;
        }
        let from = free.len() - count;
        if area.has_slots() {
            for frame in free.iter_mut().skip(from).filter(|frame| frame.is_long()) {
                area.shorten_in_place(frame, returned);
            }
        }
        self.receiving += self.fill.put(free.drain(from..).map(|frame| frame.0.offset()));
        self.fill.submit();
        self.wake_receiver();
    }

    /// Wakes the kernel if it has stopped receiving because it found the fill ring empty.
    fn wake_receiver(&mut self) {
        if self.receiving > 0
            && self.fill.needs_wakeup()
            && let Err(error) = self.socket.wake_to_receive()
        {
            tracing::debug!(%error, "receive wakeup failed");
        }
    }
}

impl XskDevice {
    /// Creates the device of thread `me`. Each of `queues` belongs to a different interface.
    /// For each interface, `tx_owners` names the thread that sends the frames of thread `me`.
    /// `share` is the number of UMEM frames for each queue.
    pub(crate) fn new(
        area: Area,
        queues: Vec<Queue>,
        me: ThreadId,
        tx_owners: &[ThreadId],
        share: usize,
    ) -> Self {
        let own =
            |interface: usize| queues.iter().position(|queue| usize::from(queue.interface.0) == interface);
        let path = |(interface, sender): (usize, &ThreadId)| match own(interface) {
            Some(place) if *sender == me => TxPath::Own(place),
            _ => TxPath::Of(*sender),
        };
        let tx_paths = tx_owners.iter().enumerate().map(path).collect();
        // Some frames are always kept free for fragments and long packets.
        let most_spare = (share / 16).min(SPARE);
        let share = share - share / 8;
        let (spare, returned) = (Vec::with_capacity(most_spare), Vec::new());
        Self { area, queues: queues.into(), tx_paths, share, spare, most_spare, returned, first: 0 }
    }

    /// Returns the queues with their sockets.
    pub(crate) fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// Moves free frames to `spare`, from which long packets take additional frames.
    fn keep_spare(&mut self, free: &mut Vec<Frame>) {
        while self.spare.len() < self.most_spare
            && let Some(frame) = free.pop()
        {
            let frame = if frame.is_long() { self.area.shorten(frame, &mut self.returned) } else { frame };
            self.spare.push(frame);
        }
    }
}

impl Device for XskDevice {
    type Frame = Frame;

    fn receive(&mut self, batch: &mut Vec<Received<Frame>>, limit: usize) {
        let Self { area, queues, first, returned, .. } = self;
        let end = batch.len() + limit;
        let (before, behind) = queues.split_at_mut(*first);
        for queue in behind.iter_mut().chain(before) {
            let room = end.saturating_sub(batch.len());
            queue.receive(area, room, batch, returned);
        }
        *first = if *first + 1 < queues.len() { *first + 1 } else { 0 };
    }

    #[inline]
    fn bytes<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        self.area.bytes(frame)
    }

    #[inline]
    fn lengthen(&self, frame: Frame) -> Frame {
        self.area.lengthen(frame)
    }

    fn tx_owner(&self, interface: InterfaceId) -> TxOwner {
        match self.tx_paths.get(usize::from(interface.0)) {
            Some(TxPath::Own(_)) => TxOwner::Own,
            Some(TxPath::Of(thread)) => TxOwner::Other(*thread),
            None => TxOwner::Nobody,
        }
    }

    #[inline]
    fn send(&mut self, frame: Frame, bounds: Range<usize>, interface: InterfaceId) -> Result<(), Frame> {
        let Some(TxPath::Own(place)) = self.tx_paths.get(usize::from(interface.0)) else { return Err(frame) };
        let Some(queue) = self.queues.get_mut(*place) else { return Err(frame) };
        let most = if frame.is_long() { MAX_SEGMENTS } else { 1 };
        if queue.tx.free(most) < most {
            return Err(frame);
        }
        if frame.is_long() {
            let segments = self.area.spread(frame, bounds, &mut self.spare, &mut self.returned)?;
            queue.queue(segments.into_iter());
            return Ok(());
        }
        queue.queue(std::iter::once(self.area.part(&frame, bounds)));
        Ok(())
    }

    #[inline]
    fn send_all(
        &mut self,
        interface: InterfaceId,
        frames: &mut impl ExactSizeIterator<Item = (Frame, Range<usize>)>,
    ) -> usize {
        let Some(TxPath::Own(place)) = self.tx_paths.get(usize::from(interface.0)) else { return 0 };
        let Some(queue) = self.queues.get_mut(*place) else { return 0 };
        // A long packet needs several slots of the ring.
        if self.area.has_slots() {
            return 0;
        }
        let area = &self.area;
        let count = queue.tx.put(frames.map(|(frame, bounds)| area.part(&frame, bounds)));
        queue.queued += count;
        queue.sent += count as u64;
        count
    }

    fn flush(&mut self) {
        self.queues.iter_mut().for_each(Queue::flush);
    }

    fn is_unsent(&mut self) -> bool {
        self.queues.iter_mut().any(Queue::must_wake)
    }

    fn reap(&mut self, free: &mut Vec<Frame>) {
        free.append(&mut self.returned);
        for queue in &mut self.queues {
            queue.reap(free);
        }
    }

    fn refill(&mut self, free: &mut Vec<Frame>) {
        if self.area.has_slots() {
            self.keep_spare(free);
        }
        for queue in &mut self.queues {
            let most = self.share.saturating_sub(queue.receiving);
            queue.refill(&self.area, most, free, &mut self.returned);
        }
    }

    #[inline]
    fn home(&self, frame: &Frame) -> ThreadId {
        self.area.home(frame)
    }

    fn in_kernel(&self) -> InKernel {
        let beside = self.spare.len() + self.returned.len();
        let receiving = beside + self.queues.iter().map(|queue| queue.receiving).sum::<usize>();
        let sending = self.queues.iter().map(|queue| queue.sending + queue.queued).sum();
        InKernel { receiving, sending }
    }
}

impl Sockets for XskDevice {
    // An iteration that processes no packet has found all receive rings empty.
    const TRIGGER: Trigger = Trigger::Arrival;

    fn sockets(&self) -> impl Iterator<Item = (InterfaceId, RawFd)> {
        self.queues.iter().map(|queue| (queue.interface, queue.fd()))
    }

    fn run_drivers(&self) {
        let polling = self.queues.iter().filter(|queue| matches!(queue.busy_poll, BusyPoll::On));
        polling.for_each(|queue| run_driver(queue.fd()));
    }

    fn wake_again(&mut self) {
        self.queues.iter_mut().for_each(Queue::wake_again);
    }

    fn wake_receivers(&mut self) {
        self.queues.iter_mut().for_each(Queue::wake_receiver);
    }

    fn is_sending(&mut self) -> bool {
        // Frames that were sent are needed soon only if few others are left for receiving.
        let is_short = self.is_short_of_frames();
        self.queues.iter_mut().any(|queue| queue.sending > 0 && (is_short || queue.has_unsent()))
    }

    fn is_short_of_frames(&self) -> bool {
        let low = self.share.min(RING as usize) / 4;
        self.queues.iter().any(|queue| queue.receiving < low)
    }

    fn copy_statistics(&mut self, to: &SocketCounters) -> std::io::Result<()> {
        self.queues.iter_mut().for_each(Queue::find_driver);
        let each = self.queues.iter().map(|queue| queue.socket.statistics());
        let each = each.collect::<std::io::Result<ArrayVec<XdpStatistics, MAX_INTERFACES>>>()?;
        let sum = |count: fn(&XdpStatistics) -> u64| each.iter().map(count).sum::<u64>();
        let too_long = self.queues.iter().map(|queue| queue.gathering.too_long).sum::<u64>();
        to.rx_dropped.set(sum(XdpStatistics::rx_dropped) + too_long);
        to.rx_ring_full.set(sum(XdpStatistics::rx_ring_full));
        to.rx_fill_ring_empty.set(sum(XdpStatistics::rx_fill_ring_empty_descs));
        to.rx_invalid.set(sum(XdpStatistics::rx_invalid_descs));
        to.tx_invalid.set(sum(XdpStatistics::tx_invalid_descs));
        to.tx_ring_empty.set(sum(XdpStatistics::tx_ring_empty_descs));
        for ((queue, of), link) in self.queues.iter().zip(&each).zip(&to.links) {
            link.rx.set(queue.received);
            link.tx.set(queue.sent);
            link.lost.set(of.rx_dropped() + of.rx_ring_full() + queue.gathering.too_long);
        }
        Ok(())
    }
}

/// The maximum number of spare frames that a thread keeps. The number is sufficient for one batch.
const SPARE: usize = 128;

const NO_MULTI_BUFFER: &str = "io.frame_size is too small for the MTU, and packets in several buffers need Linux 6.6 or later; \
                               use a smaller MTU";
