//! The counters of a packet thread. Only that thread writes its [`ThreadCounters`]. Other threads
//! read the counters and sum the values of all packet threads. The structure is aligned to cache
//! lines, but individual counters are not. The crate `counters` defines the names and descriptions.
//!
//! After each batch, `rx + from_threads + originated = tx + replies + to_threads + taken + drops +
//! held`.

use counters::Counter;
use kv_switch::Verb;

use crate::{DropReason, TraceRefusal};

/// The packet, byte and flow counters of one service or backend.
#[derive(Debug, Default)]
pub struct PairCounter {
    /// The number of packets forwarded for the service or to the backend. The number includes
    /// packets that are later dropped because a transmit ring is full. Those packets are also
    /// counted in `tx_full`.
    pub packets: Counter,
    /// The total length of the forwarded packets as received, in bytes, including Ethernet headers.
    pub bytes: Counter,
    /// The number of times that a backend was chosen for a flow. The number includes new flows,
    /// flows that moved to another backend, and each packet of an untracked flow.
    pub flows: Counter,
}

counters::flow_table! {
    counters::counters! [
        /// Copies of the connection table's counters, which are updated between batches.
        #[derive(Debug, Default)]
        pub struct FlowTableCounters
    ]
}

counters::fragment_table! {
    counters::counters! [
        /// Copies of the fragment table's counters, which are updated between batches.
        #[derive(Debug, Default)]
        pub struct FragmentTableCounters
    ]
}

counters::thread! {
    counters::counters! [
        /// The counters of one packet thread.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct ThreadCounters {
            /// The number of batches that were not empty.
            pub batches: Counter,
            /// The number of batches by size. Entry `n` counts batches of 2ⁿ to 2ⁿ⁺¹ - 1 packets.
            /// The last entry also counts all larger batches.
            pub batch_sizes: [Counter; BATCH_SIZES],
            /// The counters of the connection table.
            pub flow_table: FlowTableCounters,
            /// The counters of the fragment table.
            pub fragment_table: FragmentTableCounters,
            /// The number of dropped packets for each [`DropReason`].
            drops: Box<[Counter]>,
            /// The number of requests to keyed services for each command, indexed by
            /// [`Verb::number`].
            verbs: [Counter; Verb::NAMES.len()],
            /// The number of marked packets that were not reported, for each [`TraceRefusal`].
            trace_refused: [Counter; TraceRefusal::ALL.len()],
            backends: Box<[PairCounter]>,
            services: Box<[PairCounter]>,
        }
    ]
}

impl ThreadCounters {
    /// Creates counters with room for `backends` slots and `services` services. Slots
    /// and services with higher IDs are not counted individually.
    #[must_use]
    pub fn new(backends: usize, services: usize) -> Self {
        let make = |n| std::iter::repeat_with(PairCounter::default).take(n).collect();
        Self {
            drops: DropReason::ALL.iter().map(|_| Counter::default()).collect(),
            backends: make(backends),
            services: make(services),
            ..Self::default()
        }
    }

    /// Counts a batch of `size` packets. The size must be at least 1.
    #[inline]
    pub fn batch(&self, size: usize) {
        self.batches.add(1);
        let place = size.checked_ilog2().unwrap_or(0) as usize;
        if let Some(counter) = self.batch_sizes.get(place.min(BATCH_SIZES - 1)) {
            counter.add(1);
        }
    }

    /// Counts a dropped packet.
    #[inline]
    pub fn dropped(&self, reason: DropReason) {
        if let Some(counter) = self.drops.get(reason.index()) {
            counter.add(1);
        }
    }

    /// Counts packets that are dropped for the same reason.
    pub(crate) fn dropped_many(&self, reason: DropReason, packets: u64) {
        if let Some(counter) = self.drops.get(reason.index()) {
            counter.add(packets);
        }
    }

    /// Returns the number of packets dropped for `reason`.
    #[must_use]
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops.get(reason.index()).map_or(0, Counter::read)
    }

    /// Counts a request to a keyed service. `verb` is the index of its command in the list of
    /// commands.
    #[inline]
    pub(crate) fn request(&self, verb: u8) {
        if let Some(counter) = self.verbs.get(usize::from(verb)) {
            counter.add(1);
        }
    }

    /// Returns the number of requests to keyed services for each command, with the name of the
    /// command.
    pub fn requests(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Verb::NAMES.into_iter().zip(self.verbs.iter().map(Counter::read))
    }

    /// Counts a packet that appeared to have a trace mark but was not reported.
    pub fn trace_refused(&self, refusal: TraceRefusal) {
        if let Some(counter) = self.trace_refused.get(refusal as usize) {
            counter.add(1);
        }
    }

    /// Returns the number of packets with a trace mark that caused no report, for one refusal
    /// reason.
    #[must_use]
    pub fn trace_refusals(&self, refusal: TraceRefusal) -> u64 {
        self.trace_refused.get(refusal as usize).map_or(0, Counter::read)
    }

    /// Returns the counters of a slot, or `None` if this slot is not counted individually.
    #[must_use]
    #[inline]
    pub fn backend(&self, slot: u32) -> Option<&PairCounter> {
        self.backends.get(slot as usize)
    }

    /// Returns the counters of a service, or `None` if this service is not counted individually.
    #[must_use]
    #[inline]
    pub fn service(&self, id: u32) -> Option<&PairCounter> {
        self.services.get(id as usize)
    }
}

/// The number of entries in `batch_sizes`. The last entry counts batches of 2⁹ or more packets.
const BATCH_SIZES: usize = 10;

/// The totals for the counter invariant `came = left + held`. The totals of several threads can be
/// summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of packets that were received, taken over from other threads, or originated by
    /// this machine.
    pub came: u64,
    /// The number of packets that were sent, answered, handed to other threads, consumed or
    /// dropped.
    pub left: u64,
    /// The number of packets that are currently held.
    pub held: u64,
}

impl From<&ThreadCounters> for Totals {
    fn from(counters: &ThreadCounters) -> Self {
        let drops: u64 = counters.drops.iter().map(Counter::read).sum();
        Self {
            came: counters.rx.read() + counters.from_threads.read() + counters.originated.read(),
            left: counters.tx.read()
                + counters.replies.read()
                + counters.to_threads.read()
                + counters.taken.read()
                + drops,
            held: counters.held.read(),
        }
    }
}
