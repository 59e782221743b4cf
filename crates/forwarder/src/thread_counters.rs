//! What a packet thread counts: one writer each, summed when somebody asks.
//!
//! A packet thread owns one [`ThreadCounters`] for writing; everyone may read it. Only the slab is padded, not each counter.
//! Names and sentences of the fields stand in the table of the crate `counters`.
//! Invariant: `rx + from_threads + originated = tx + replies + to_threads + taken + drops + held` once a batch is done.

use counters::Counter;
use kv_switch::Verb;

use crate::{DropReason, TraceRefusal};

/// Packets and bytes of one VIP or backend.
#[derive(Debug, Default)]
pub struct PairCounter {
    /// Packets decided and rewritten for it; a full transmit ring can still drop one, counted as `tx_full`.
    pub packets: Counter,
    /// Bytes of those as received, Ethernet header included.
    pub bytes: Counter,
    /// Flows for which it was chosen: new ones, reselected ones, and each packet of an untracked one.
    pub flows: Counter,
}

counters::flow_table! {
    counters::counters! [
        /// What the connection table said last; copied between batches.
        #[derive(Debug, Default)]
        pub struct FlowTableCounters
    ]
}

counters::fragment_table! {
    counters::counters! [
        /// What the fragment table said last; copied between batches.
        #[derive(Debug, Default)]
        pub struct FragmentTableCounters
    ]
}

counters::thread! {
    counters::counters! [
        /// Counters of one packet thread.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct ThreadCounters {
            /// Batches that were not empty.
            pub batches: Counter,
            /// Those by size: place n counts sizes from 2ⁿ to 2ⁿ⁺¹ - 1, the last all above.
            pub batch_sizes: [Counter; BATCH_SIZES],
            /// The connection table.
            pub flow_table: FlowTableCounters,
            /// The fragment table.
            pub fragment_table: FragmentTableCounters,
            /// By [`DropReason`].
            drops: Box<[Counter]>,
            /// Requests for keyed services that were read, by [`Verb::number`].
            verbs: [Counter; Verb::NAMES.len()],
            /// Packets that began like a marked one and were not reported, by [`TraceRefusal`].
            trace_refused: [Counter; TraceRefusal::ALL.len()],
            backends: Box<[PairCounter]>,
            services: Box<[PairCounter]>,
        }
    ]
}

impl ThreadCounters {
    /// Room for `backends` slots and `services`; what lies beyond is not counted singly.
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

    /// Counts a batch of `size` packets, at least one.
    #[inline]
    pub fn batch(&self, size: usize) {
        self.batches.add(1);
        let place = size.checked_ilog2().unwrap_or(0) as usize;
        if let Some(counter) = self.batch_sizes.get(place.min(BATCH_SIZES - 1)) {
            counter.add(1);
        }
    }

    /// Counts a drop.
    #[inline]
    pub fn dropped(&self, reason: DropReason) {
        if let Some(counter) = self.drops.get(reason.index()) {
            counter.add(1);
        }
    }

    /// Drops for `reason`.
    #[must_use]
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops.get(reason.index()).map_or(0, Counter::read)
    }

    /// Counts a request that was read.
    #[inline]
    pub(crate) fn request(&self, verb: u8) {
        if let Some(counter) = self.verbs.get(usize::from(verb)) {
            counter.add(1);
        }
    }

    /// Requests for keyed services that were read, by the name of their verb.
    pub fn requests(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Verb::NAMES.into_iter().zip(self.verbs.iter().map(Counter::read))
    }

    /// Counts a packet that began like a marked one, and was not reported.
    pub fn trace_refused(&self, refusal: TraceRefusal) {
        if let Some(counter) = self.trace_refused.get(refusal as usize) {
            counter.add(1);
        }
    }

    /// Those for one reason.
    #[must_use]
    pub fn trace_refusals(&self, refusal: TraceRefusal) -> u64 {
        self.trace_refused.get(refusal as usize).map_or(0, Counter::read)
    }

    /// The counters of a slot, `None` beyond the room.
    #[must_use]
    #[inline]
    pub fn backend(&self, slot: u32) -> Option<&PairCounter> {
        self.backends.get(slot as usize)
    }

    /// The counters of a service, `None` beyond the room.
    #[must_use]
    #[inline]
    pub fn service(&self, id: u32) -> Option<&PairCounter> {
        self.services.get(id as usize)
    }
}

/// Sizes from 1 to 2⁹ and above.
const BATCH_SIZES: usize = 10;

/// One thread's counters that must balance, read at one time. Sums add up over threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Came in: received, from other threads, originated.
    pub came: u64,
    /// Left: sent, replied, to other threads, taken in, dropped.
    pub left: u64,
    /// Held now.
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
