//! What packet threads report to the control plane, unasked: one bounded ring each.
//!
//! One producer and one consumer. What does not fit is lost: whatever it was, it will happen again.

use std::net::IpAddr;

use rtrb::{Consumer, Producer, RingBuffer};

use crate::{Explanation, Flow, Generation, InterfaceId, Mark, Now, ThreadId, TunnelSourceKind};

/// Something that a packet thread saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A router says that outer packets to this address must not be larger.
    PathMtu {
        /// Where they go.
        destination: IpAddr,
        /// Bytes of the largest outer IP packet.
        mtu: u16,
    },
    /// A marked packet was decided.
    Trace(TraceEvent),
    /// Packets come whose sender left their checksum to hardware that there is not: backends drop them.
    PartialChecksum {
        /// The interface that they come by.
        interface: InterfaceId,
    },
}

/// A marked packet that a packet thread has decided, for the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Who decided.
    pub thread: ThreadId,
    /// Under which generation.
    pub generation: Generation,
    /// When, on the packet threads' clock.
    pub at: Now,
    /// The packet's tuple; of a later piece of a datagram without ports.
    pub flow: Flow,
    /// Who had sent it in a tunnel, if it came in one.
    pub decapsulated_from: Option<TunnelSourceKind>,
    /// What the mark says.
    pub mark: Mark,
    /// What became of it, and why.
    pub explanation: Explanation,
}

/// The packet thread's end.
#[derive(Debug)]
pub struct NoticeSink(Producer<Notice>);

/// The control plane's end.
#[derive(Debug)]
pub struct Notices(Consumer<Notice>);

/// A ring of `capacity` notices.
#[must_use]
pub fn notice_ring(capacity: usize) -> (NoticeSink, Notices) {
    let (sink, notices) = RingBuffer::new(capacity.max(1));
    (NoticeSink(sink), Notices(notices))
}

impl NoticeSink {
    /// Sends it, if there is room. `false`: the control plane is behind.
    pub(crate) fn send(&mut self, notice: Notice) -> bool {
        self.0.push(notice).is_ok()
    }
}

/// Ends when there is none just now; another may come later.
impl Iterator for Notices {
    type Item = Notice;

    fn next(&mut self) -> Option<Notice> {
        self.0.pop().ok()
    }
}
