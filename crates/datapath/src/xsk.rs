//! One queue's AF_XDP socket: its four rings as a [`Device`].
//!
//! In: frames from the kernel. Out: frames to it. The only code that moves frames between us and the kernel.
//! Not here: loading XDP programs (`steer`), memory (`umem`), when to sleep (`thread`).
//! Invariant: `receiving` and `sending` count the frames that the kernel has; each comes back once.

use std::os::fd::{AsRawFd, RawFd};

use forwarder::ThreadId;
use xsk_rs::config::{BindFlags, Interface, LibxdpFlags, QueueSize, SocketConfig};
use xsk_rs::{CompQueue, FillQueue, FrameDesc, RxQueue, Socket, TxQueue};

use crate::device::{Device, InKernel, Received};
use crate::error::StartError;
use crate::steer::head_room_bytes;
use crate::umem::{Area, Frame, RING};

/// How packets get into the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketMode {
    /// The NIC writes into our memory.
    ZeroCopy,
    /// The kernel copies each packet.
    Copy,
}

impl SocketMode {
    /// The name in logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ZeroCopy => "zero-copy",
            Self::Copy => "copy",
        }
    }
}

/// One queue's rings.
#[derive(Debug)]
pub struct XskDevice {
    area: Area,
    rx: RxQueue,
    tx: TxQueue,
    fill: FillQueue,
    completion: CompQueue,
    scratch: Box<[FrameDesc]>,
    /// Queued by `send`, not in the ring yet.
    outgoing: Vec<FrameDesc>,
    receiving: usize,
    sending: usize,
}

impl XskDevice {
    /// Binds a socket to `queue`. `force_copy`: not even try zero-copy.
    pub(crate) fn bind(
        area: &Area,
        interface: &str,
        queue: u32,
        force_copy: bool,
    ) -> Result<Self, StartError> {
        let refused = |why: String| StartError::Bind { interface: interface.to_owned(), queue, why };
        let ring = QueueSize::new(RING).map_err(|error| refused(error.to_string()))?;
        let mut flags = BindFlags::XDP_USE_NEED_WAKEUP;
        if force_copy {
            flags |= BindFlags::XDP_COPY;
        }
        let mut config = SocketConfig::builder();
        config
            .rx_queue_size(ring)
            .tx_queue_size(ring)
            .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
            .bind_flags(flags);
        let name: Interface = interface.parse().map_err(|_| refused("the name holds a zero byte".into()))?;
        // SAFETY: program loading is inhibited, as the contract asks where a pair is shared.
        let bound = unsafe { Socket::new(config.build(), &area.umem, &name, queue) };
        let (tx, rx, rings) = bound.map_err(|error| {
            let cause = std::error::Error::source(&error);
            let errno =
                cause.and_then(|cause| cause.downcast_ref::<std::io::Error>()).and_then(|e| e.raw_os_error());
            match errno {
                Some(libc::EBUSY) => StartError::Busy { interface: interface.to_owned(), queue },
                Some(libc::EOPNOTSUPP | libc::EINVAL) if !force_copy => {
                    StartError::NoZeroCopy { interface: interface.to_owned(), queue }
                }
                _ => refused(cause.map_or_else(|| error.to_string(), ToString::to_string)),
            }
        })?;
        let (fill, completion) =
            rings.ok_or_else(|| refused("the queue has a socket of this UMEM already".into()))?;
        Ok(Self {
            area: area.clone(),
            rx,
            tx,
            fill,
            completion,
            scratch: vec![FrameDesc::default(); RING as usize].into_boxed_slice(),
            outgoing: Vec::with_capacity(RING as usize),
            receiving: 0,
            sending: 0,
        })
    }

    /// Which mode the kernel gave.
    pub(crate) fn mode(&self) -> std::io::Result<SocketMode> {
        let mut options = 0u32;
        let mut len = libc::socklen_t::try_from(size_of::<u32>()).unwrap_or(4);
        // SAFETY: `options` has the four bytes of struct xdp_options that `len` announces, and outlives the call.
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

    /// The socket's descriptor, for the XSKMAP and for poll.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.rx.fd().as_raw_fd()
    }

    /// What the kernel counted on this socket: frames that it could not give us, and why.
    ///
    /// # Errors
    /// What getsockopt says.
    pub fn statistics(&self) -> std::io::Result<xsk_rs::socket::XdpStatistics> {
        self.rx.fd().xdp_statistics()
    }

    /// Whether the fill ring is low though it should not be: received frames are not coming back fast enough.
    #[must_use]
    pub fn fill_is_low(&self) -> bool {
        self.receiving < RING as usize / 4
    }

    /// Puts what was queued into the ring. `send` keeps `outgoing` within the ring's room, so all of it fits.
    fn produce(&mut self) {
        if self.outgoing.is_empty() {
            return;
        }
        // SAFETY: each descriptor came from a `Frame` of this UMEM that `send` consumed, so nobody else has the chunk.
        let produced = unsafe { self.tx.produce(&self.outgoing) };
        debug_assert_eq!(produced, self.outgoing.len(), "send looked for room first");
        self.sending += produced;
        self.outgoing.clear();
    }
}

impl Device for XskDevice {
    type Frame = Frame;

    fn receive(&mut self, batch: &mut Vec<Received<Frame>>, limit: usize) {
        let limit = limit.min(self.scratch.len());
        // SAFETY: the descriptors taken are this UMEM's; each becomes the one `Frame` of its chunk below.
        let count = unsafe { self.rx.consume(&mut self.scratch[..limit]) };
        self.receiving -= count;
        for descriptor in &self.scratch[..count] {
            let len = descriptor.lengths().data();
            let mut frame = Frame(*descriptor);
            let mark = self.area.bytes(&mut frame).first().copied().unwrap_or(0);
            let start = usize::from(head_room_bytes(mark));
            batch.push(Received { frame, start, end: len });
        }
    }

    #[inline]
    fn bytes<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        self.area.bytes(frame)
    }

    #[inline]
    fn send(&mut self, mut frame: Frame, len: usize) -> Result<(), Frame> {
        let wanted = u32::try_from(self.outgoing.len() + 1).unwrap_or(u32::MAX);
        if self.tx.nb_free(wanted) < wanted {
            return Err(frame);
        }
        self.area.set_len(&mut frame, len);
        self.outgoing.push(frame.0);
        Ok(())
    }

    /// In copy mode a call sends at most 32 packets: the kernel is woken while that makes progress, never longer.
    fn flush(&mut self) {
        self.produce();
        let mut free_before = self.tx.nb_free_exact();
        while self.tx.needs_wakeup() {
            if let Err(error) = self.tx.wakeup() {
                tracing::debug!(%error, "waking the transmit side");
                return;
            }
            let free = self.tx.nb_free_exact();
            if free == RING || free == free_before {
                return;
            }
            free_before = free;
        }
    }

    fn is_unsent(&mut self) -> bool {
        self.sending > 0 && self.tx.needs_wakeup() && self.tx.nb_free_exact() < RING
    }

    fn reap(&mut self, free: &mut Vec<Frame>) {
        // SAFETY: the descriptors taken are this UMEM's; each becomes the one `Frame` of its chunk.
        let count = unsafe { self.completion.consume(&mut self.scratch) };
        self.sending -= count;
        free.extend(self.scratch[..count].iter().map(|descriptor| Frame(*descriptor)));
    }

    fn refill(&mut self, free: &mut Vec<Frame>) {
        let wanted = free.len().min(self.scratch.len());
        let room = self.fill.nb_free(u32::try_from(wanted).unwrap_or(RING)) as usize;
        let count = wanted.min(room);
        if count == 0 {
            return;
        }
        let from = free.len() - count;
        for (descriptor, frame) in self.scratch.iter_mut().zip(free.drain(from..)) {
            *descriptor = frame.0;
        }
        // SAFETY: each descriptor came from a `Frame` of this UMEM that was just taken out of the pool.
        let produced = unsafe { self.fill.produce(&self.scratch[..count]) };
        debug_assert_eq!(produced, count, "there was room");
        self.receiving += count;
        if self.fill.needs_wakeup()
            && let Err(error) = self.fill.wakeup(self.rx.fd_mut(), 0)
        {
            tracing::debug!(%error, "waking the receive side");
        }
    }

    #[inline]
    fn home(&self, frame: &Frame) -> ThreadId {
        self.area.home(frame)
    }

    fn in_kernel(&self) -> InKernel {
        InKernel { receiving: self.receiving, sending: self.sending + self.outgoing.len() }
    }
}
