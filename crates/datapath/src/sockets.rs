//! Defines the trait through which the thread loop and the health monitor access the sockets of a
//! device. The modules `xsk` and `af_packet` implement the trait.

use std::os::fd::RawFd;

use counters::Counter;
use engine::Device;
use forwarder::InterfaceId;

use crate::wait::Trigger;

/// The method by which packets are transferred between the NIC and the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketMode {
    /// AF_XDP in zero-copy mode: the NIC writes packets into the memory of the process.
    ZeroCopy,
    /// AF_XDP in copy mode: the kernel copies each packet.
    Copy,
    /// Packet sockets: the kernel allocates a packet buffer for each packet and then copies the
    /// packet.
    Packet,
}

impl SocketMode {
    /// Returns the name for logs and metrics.
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
        /// The socket counters of a thread, summed over all of its sockets.
        #[derive(Debug, Default)]
        pub struct SocketCounters {
            /// The counters of each socket, in interface order.
            pub links: Box<[LinkCounters]>,
            /// The time at which the last complete iteration started, in nanoseconds on the clock
            /// of the packet threads.
            pub last_iteration: counters::Counter,
        }
    ]
}

/// The packet counts of one socket. Each thread has a separate socket on the interface, with
/// separate counts.
#[derive(Debug, Default)]
pub struct LinkCounters {
    /// The interface to which the socket is bound.
    pub interface: InterfaceId,
    /// The number of received frames.
    pub rx: Counter,
    /// The number of frames that were put into the transmit ring, which includes forwarded frames
    /// and replies.
    pub tx: Counter,
    /// The number of frames that were dropped before a packet thread received them.
    pub lost: Counter,
}

impl SocketCounters {
    /// Creates the counters for a thread with a socket on each of the given interfaces.
    pub(crate) fn on(interfaces: impl Iterator<Item = InterfaceId>) -> Self {
        let links =
            interfaces.map(|interface| LinkCounters { interface, ..LinkCounters::default() }).collect();
        Self { links, ..Self::default() }
    }
}

/// A device that receives and sends frames with sockets.
pub(crate) trait Sockets: Device {
    /// The condition under which the sockets wake a sleeping thread.
    const TRIGGER: Trigger;

    /// Returns the interface and the descriptor of each socket. A socket is readable while packets
    /// wait in its receive ring.
    fn sockets(&self) -> impl Iterator<Item = (InterfaceId, RawFd)>;

    /// Runs the drivers of the queues with busy polling. Does nothing if the drivers run in
    /// interrupt context.
    fn run_drivers(&self) {}

    /// Makes the next iteration of the engine wake the kernel again if the kernel has not yet taken
    /// all frames. The thread calls this method from time to time, in case the driver missed a
    /// wakeup.
    fn wake_again(&mut self) {}

    /// Wakes the kernel if it has stopped receiving. This happens if the kernel finds no free frame
    /// just before the thread provides frames. The thread calls this method before it sleeps.
    fn wake_receivers(&mut self) {}

    /// Returns `true` if the kernel still has to take frames to send, or if frames that it is
    /// sending are needed for receiving. The end of a transmission does not make a socket readable
    /// or writable, so the thread must check the rings again soon.
    fn is_sending(&mut self) -> bool;

    /// Returns `true` if the device cannot receive packets because it has too few free frames.
    fn is_short_of_frames(&self) -> bool;

    /// Copies the socket statistics to `to`.
    ///
    /// # Errors
    /// Returns the error of `getsockopt`.
    fn copy_statistics(&mut self, to: &SocketCounters) -> std::io::Result<()>;
}
