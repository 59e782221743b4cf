//! Signed marks of the packet tracer. A packet is traced if its payload, or the first parameter of
//! its SCTP INIT chunk, begins with a mark that was signed with the cluster's key.
//!
//! This crate writes, parses and verifies marks. The forwarder reports each valid mark to the
//! control plane and forwards the packet normally. The control plane sends the report to the
//! receiver, because packet threads neither format text nor make system calls.
//!
//! Invariant: a packet is reported only if the authentication code, the time and the receiver of
//! its mark are valid. See the Maglev paper, §4.4.
//!
//! ```
//! use classifier::{Flow, HashKey, PrefixSet};
//! use trace_mark::{Mark, Trace, TraceKey, TraceRefusal};
//!
//! let key = TraceKey::derive(&HashKey::new([7; 16]));
//! let flow = |port| {
//!     let (client, server) = (([198, 51, 100, 7], 40_000), ([203, 0, 113, 10], port));
//!     Flow::new(client, server, 17).expect("both addresses are IPv4")
//! };
//! let receiver = ([192, 0, 2, 200], 9_000).into();
//! let mark = Mark { receiver, unix_seconds: 1_000, trace: 1, probe: 0 };
//! let payload = mark.sign(&key, &flow(53));
//!
//! let receivers = PrefixSet::new([([192, 0, 2, 200].into(), 32)]);
//! let trace = Trace { key, receivers, per_second: 100 };
//! assert_eq!(trace.read(&payload, &flow(53), 1_030), Ok(mark));
//! // The mark was signed for another flow, so the authentication code is wrong.
//! assert_eq!(trace.read(&payload, &flow(123), 1_030), Err(TraceRefusal::Mac));
//! // The mark is too old, as it would be in a replay.
//! assert_eq!(trace.read(&payload, &flow(53), 1_061), Err(TraceRefusal::Time));
//! ```

#![forbid(unsafe_code)]

mod key;
mod mark;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use self::key::TraceKey;
pub use self::mark::{MARK_BYTES, Mark};

pub use self::mark::{has_magic, payload_at};

use classifier::{Flow, PrefixSet};

/// The tracing configuration of this machine.
#[derive(Debug)]
pub struct Trace {
    /// The keys that sign marks and reports.
    pub key: TraceKey,
    /// The addresses to which reports may be sent.
    pub receivers: PrefixSet,
    /// The maximum number of reports per second from each packet thread, which is also the maximum
    /// burst.
    pub per_second: u32,
}

/// The reason why a packet with a mark is not reported. Such a packet is still forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceRefusal {
    /// The mark is too short, has an unknown version, or has no receiver.
    Malformed,
    /// The time of the mark differs from the current time by more than [`MARK_AGE`] seconds. The
    /// packet was replayed, or the clocks of the machines differ.
    Time,
    /// The receiver in the mark is not one of the configured receivers.
    Receiver,
    /// The mark was not signed with the cluster's key, or it was signed for a different 5-tuple.
    Mac,
    /// The rate limit for reports was exceeded.
    Rate,
    /// The ring from the packet thread to the control plane was full.
    RingFull,
}

impl TraceRefusal {
    /// All reasons, ordered by number.
    pub const ALL: [Self; 6] =
        [Self::Malformed, Self::Time, Self::Receiver, Self::Mac, Self::Rate, Self::RingFull];

    /// Returns the name for metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Time => "time",
            Self::Receiver => "receiver",
            Self::Mac => "mac",
            Self::Rate => "rate",
            Self::RingFull => "ring_full",
        }
    }
}

/// The time of day for packet threads, which themselves read only the monotonic clock. The control
/// plane sets the time. All clones share one value.
#[derive(Clone, Debug, Default)]
pub struct WallClock(Arc<AtomicU64>);

impl WallClock {
    /// Sets the time, in seconds since 1970. If the control plane stops setting the time, packet
    /// threads refuse marks that are signed later, because the time in such a mark appears to be in
    /// the future.
    pub fn set(&self, unix_seconds: u64) {
        // Relaxed ordering is sufficient, because the value does not publish other data.
        self.0.store(unix_seconds, Ordering::Relaxed);
    }

    /// Returns the time in seconds since 1970. Returns 0 if the time was never set.
    #[must_use]
    pub fn unix_seconds(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Trace {
    /// Reads and verifies the mark of a packet that belongs to `flow`. `bytes` is the payload of
    /// the packet, which begins with the magic number of a mark.
    ///
    /// The cheapest checks run first. The caller checks the rate limit afterwards. As a result,
    /// only senders that know the key can exhaust the limit.
    ///
    /// # Errors
    /// Returns a [`TraceRefusal`] if the mark is not valid.
    ///
    /// # Cost
    /// The verification computes one SipHash-2-4 over 85 bytes.
    pub fn read(&self, bytes: &[u8], flow: &Flow, unix_seconds: u64) -> Result<Mark, TraceRefusal> {
        let (mark, signed) = Mark::parse(bytes).ok_or(TraceRefusal::Malformed)?;
        if mark.unix_seconds.abs_diff(unix_seconds) > MARK_AGE {
            return Err(TraceRefusal::Time);
        }
        if !self.receives(mark.receiver) {
            return Err(TraceRefusal::Receiver);
        }
        if signed.is_of(&self.key, flow) { Ok(mark) } else { Err(TraceRefusal::Mac) }
    }

    /// Returns `true` if reports may be sent to `receiver`.
    #[must_use]
    pub fn receives(&self, receiver: SocketAddr) -> bool {
        self.receivers.contains(receiver.ip())
    }
}

/// The maximum difference between the time of a mark and the current time, in seconds.
pub const MARK_AGE: u64 = 60;
