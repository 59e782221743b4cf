//! The packet tracer: marked packets, and what is reported of them.
//!
//! In: a packet whose payload begins with a mark (`mark`), signed under a key of the cluster (`key`). Out: a `forwarder::TraceEvent` for
//! the control plane, which adds names and sends the report. The packet itself is forwarded as any other.
//! Not here: which packets are looked at and when (`pipeline/tracing`), reports and their socket (`control-plane`,
//! `sluicegate`): a packet thread builds no text and calls no kernel.
//! Invariant: nothing is reported unless the mark's MAC, its time and its receiver are right.
//! Source: paper §4.4.
//!
//! ```
//! use classifier::{Flow, HashKey, PrefixSet};
//! use trace_mark::{Mark, Trace, TraceKey, TraceRefusal};
//!
//! let key = TraceKey::derive(&HashKey::new([7; 16]));
//! let flow = |port| Flow::new(([198, 51, 100, 7], 40_000), ([203, 0, 113, 10], port), 17).expect("one family");
//! let mark = Mark { receiver: ([192, 0, 2, 200], 9_000).into(), unix_seconds: 1_000, trace: 1, probe: 0 };
//! let payload = mark.sign(&key, &flow(53));
//!
//! let trace = Trace { key, receivers: PrefixSet::new([([192, 0, 2, 200].into(), 32)]), per_second: 100 };
//! assert_eq!(trace.read(&payload, &flow(53), 1_030), Ok(mark));
//! assert_eq!(trace.read(&payload, &flow(123), 1_030), Err(TraceRefusal::Mac)); // not signed for this flow
//! assert_eq!(trace.read(&payload, &flow(53), 1_061), Err(TraceRefusal::Time)); // a replay
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

/// How a machine reports marked packets.
#[derive(Debug)]
pub struct Trace {
    /// What marks and reports are signed under.
    pub key: TraceKey,
    /// Where reports may go.
    pub receivers: PrefixSet,
    /// Reports a second of each packet thread, bursts of as many.
    pub per_second: u32,
}

/// Why nothing is reported of a packet that begins like a marked one. It is forwarded all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceRefusal {
    /// Shorter than a mark, of another version, or without a receiver.
    Malformed,
    /// Signed more than [`MARK_AGE`] seconds ago, or as far in the future: a replay, or clocks that differ.
    Time,
    /// The receiver is not one of those that are configured.
    Receiver,
    /// Not signed under the cluster's key, or for another tuple.
    Mac,
    /// Over the rate.
    Rate,
    /// The control plane is behind.
    RingFull,
}

impl TraceRefusal {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Malformed, Self::Time, Self::Receiver, Self::Mac, Self::Rate, Self::RingFull];

    /// The name in metrics.
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

/// The time of day, set by the control plane for packet threads, which read no clock of their own but the monotonic one.
/// Clones share it.
#[derive(Clone, Debug, Default)]
pub struct WallClock(Arc<AtomicU64>);

impl WallClock {
    /// Sets it, in seconds since 1970. A clock that is no longer set stands still, and marks grow too young for it.
    pub fn set(&self, unix_seconds: u64) {
        // Relaxed: nothing else is published by it.
        self.0.store(unix_seconds, Ordering::Relaxed);
    }

    /// Seconds since 1970; 0 before it was first set.
    #[must_use]
    pub fn unix_seconds(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Trace {
    /// What a marked packet of `flow` says, when it may be reported. `bytes` is its payload from the magic on.
    ///
    /// What costs least is asked first; the rate comes last and elsewhere, so that nobody without the key can use it up.
    ///
    /// # Errors
    /// [`TraceRefusal`].
    /// # Cost
    /// One SipHash-2-4 over 85 bytes.
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

    /// Whether reports may go to an address.
    #[must_use]
    pub fn receives(&self, receiver: SocketAddr) -> bool {
        self.receivers.contains(receiver.ip())
    }
}

/// How many seconds a mark's time may be off.
pub const MARK_AGE: u64 = 60;
