//! What packet threads have to tell the control plane, unasked: one bounded ring each.
//!
//! One producer and one consumer. What does not fit is lost: whatever it was, it will happen again.

use std::net::IpAddr;

use rtrb::{Consumer, Producer, RingBuffer};

use crate::TraceEvent;

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
    /// Tells it, if there is room. `false`: the control plane is behind.
    pub(crate) fn tell(&mut self, notice: Notice) -> bool {
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
