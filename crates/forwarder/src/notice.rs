//! A packet thread sends notices about events to the control plane, without a request. Each packet
//! thread has one bounded ring with a single producer and a single consumer. A notice that does not
//! fit into the ring is lost. Losing a notice is acceptable, because the reported events recur.

use std::net::IpAddr;

use rtrb::{Consumer, Producer, RingBuffer};

use crate::{Explanation, Flow, Generation, InterfaceId, Mark, Now, ThreadId, TunnelSourceKind};

/// An event that a packet thread reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A router reported a smaller path MTU for a tunnel destination.
    PathMtu {
        /// The destination address of the outer packets.
        destination: IpAddr,
        /// The new path MTU: the size of the largest outer IP packet, in bytes.
        mtu: u16,
    },
    /// A packet with a trace mark has received its verdict.
    Trace(TraceEvent),
    /// Packets arrive with a partial checksum. The sender relied on checksum offload, but no device
    /// on the path completed the checksum. Backends drop such packets.
    PartialChecksum {
        /// The interface that receives the packets.
        interface: InterfaceId,
    },
}

/// The outcome that one packet thread determined for a packet with a trace mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// The packet thread that processed the packet.
    pub thread: ThreadId,
    /// The generation of the snapshot under which the packet was processed.
    pub generation: Generation,
    /// The time of the verdict, measured on the clock of the packet threads.
    pub at: Now,
    /// The 5-tuple of the packet. Only the first fragment of a datagram has ports.
    pub flow: Flow,
    /// The kind of tunnel source that sent the packet, or `None` if the packet did not arrive in a
    /// tunnel.
    pub decapsulated_from: Option<TunnelSourceKind>,
    /// The content of the trace mark.
    pub mark: Mark,
    /// The outcome for the packet, and the step that determined the outcome.
    pub explanation: Explanation,
}

/// The packet thread's side of a notice ring.
#[derive(Debug)]
pub struct NoticeSink(Producer<Notice>);

/// The control plane's side of a notice ring.
#[derive(Debug)]
pub struct Notices(Consumer<Notice>);

/// Creates a ring with room for `capacity` notices.
#[must_use]
pub fn notice_ring(capacity: usize) -> (NoticeSink, Notices) {
    let (sink, notices) = RingBuffer::new(capacity.max(1));
    (NoticeSink(sink), Notices(notices))
}

impl NoticeSink {
    /// Queues a notice for the control plane. Returns `false` if the ring is full.
    pub(crate) fn send(&mut self, notice: Notice) -> bool {
        self.0.push(notice).is_ok()
    }
}

/// Iterates over the waiting notices. The iterator is not fused: after `None`, a later call can
/// return a new notice.
impl Iterator for Notices {
    type Item = Notice;

    fn next(&mut self) -> Option<Notice> {
        self.0.pop().ok()
    }
}
