//! What the loop around an engine, and who looks at it from outside, need of a device's sockets.
//!
//! In: a [`Device`] over AF_XDP or packet sockets. Out: descriptors to wait for, and counters.
//! Not here: frames (`xsk`, `af_packet`).

use std::os::fd::RawFd;

use counters::Counter;
use engine::Device;
use forwarder::InterfaceId;

/// How packets get into the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketMode {
    /// AF_XDP: the NIC writes into our memory.
    ZeroCopy,
    /// AF_XDP: the kernel copies each packet.
    Copy,
    /// Packet sockets, behind the kernel's packet buffers.
    Packet,
}

impl SocketMode {
    /// The name in logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ZeroCopy => "zero-copy",
            Self::Copy => "copy",
            Self::Packet => "af-packet",
        }
    }
}

counters::socket! {
    counters::counters! [
        /// What the kernel and the rings say of a thread's sockets, summed over them.
        #[derive(Debug, Default)]
        pub struct SocketCounters {
            /// By socket, in the order of the interfaces.
            pub links: Box<[LinkCounters]>,
        }
    ]
}

/// What one socket of a thread carried: its part of an interface's traffic.
#[derive(Debug, Default)]
pub struct LinkCounters {
    /// The interface.
    pub interface: InterfaceId,
    /// Frames received.
    pub rx: Counter,
    /// Frames that its transmit ring took, for backends and as answers.
    pub tx: Counter,
    /// Frames that were dropped before a packet thread had them.
    pub lost: Counter,
}

impl SocketCounters {
    /// Those of a thread that has a socket on each of these interfaces.
    pub(crate) fn on(interfaces: impl Iterator<Item = InterfaceId>) -> Self {
        let links =
            interfaces.map(|interface| LinkCounters { interface, ..LinkCounters::default() }).collect();
        Self { links, ..Self::default() }
    }
}

/// A device whose frames come and go by sockets.
pub(crate) trait Sockets: Device {
    /// Each socket's interface and descriptor. A socket with packets is readable.
    fn sockets(&self) -> impl Iterator<Item = (InterfaceId, RawFd)>;

    /// Lets the drivers of its queues receive, where they leave that to the thread.
    fn run_drivers(&self) {}

    /// Whether something is being sent whose end no socket announces.
    fn is_sending(&mut self) -> bool;

    /// Whether received frames are not coming back fast enough to receive others.
    fn is_short_of_frames(&self) -> bool;

    /// What was counted on the sockets goes to `to`.
    ///
    /// # Errors
    /// What getsockopt says.
    fn copy_statistics(&mut self, to: &SocketCounters) -> std::io::Result<()>;
}
