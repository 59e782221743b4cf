//! Counters: one writer each, one sentence each, summed when somebody asks.
//!
//! A packet thread owns one [`ThreadCounters`] for writing; everyone may read it. Writes are a relaxed load and a relaxed
//! store: no locked instruction on the packet path. Only the slab is padded, not each counter.
//! Invariant: `rx + from_threads + originated = tx + replies + to_threads + drops + held` once a batch is done.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{DropReason, TraceRefusal};

/// A number that only its owner writes.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning thread may call it: two writers would lose counts.
    #[inline]
    pub fn add(&self, n: u64) {
        // Relaxed: nothing is published by a counter, and there is no second writer.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets it, for what is a level and not a count.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// What it says now.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

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

/// What the connection table said last; copied between batches.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Entries in use, expired ones that nobody looked at included.
    pub flows: Counter,
    /// Entries that there is room for.
    pub capacity: Counter,
    /// A flow was found.
    pub flow_hits: Counter,
    /// A flow was not found.
    pub flow_misses: Counter,
    /// A flow was entered.
    pub flow_inserts: Counter,
    /// A flow's time was renewed.
    pub flow_refreshes: Counter,
    /// An entry was found past its time and freed.
    pub flow_expired: Counter,
    /// An entry on probation gave way to a new flow.
    pub flow_evicted: Counter,
    /// No room for the flow: forwarded by Maglev alone.
    pub flow_untracked: Counter,
}

/// What the fragment table said last; copied between batches.
#[derive(Debug, Default)]
pub struct FragmentGauges {
    /// Datagrams whose first fragment has come (a level), expired ones that nobody looked at included.
    pub datagrams: Counter,
    /// Frames held for a first fragment that has not come (a level).
    pub held: Counter,
    /// First fragments whose decision was recorded.
    pub recorded: Counter,
    /// First fragments that came once more.
    pub duplicates: Counter,
    /// Later fragments that found a decision.
    pub followed: Counter,
    /// Later fragments that were held.
    pub waited: Counter,
    /// Held fragments that went on because their first came.
    pub released: Counter,
    /// Datagrams with a decision that gave way to a newer one before their time.
    pub evicted: Counter,
    /// Whole datagrams whose name another one took over before their time.
    pub succeeded: Counter,
}

/// Counters of one packet thread.
#[derive(Debug)]
#[repr(align(128))]
pub struct ThreadCounters {
    /// Frames received by this thread.
    pub rx_packets: Counter,
    /// Bytes of those, Ethernet header included, FCS not.
    pub rx_bytes: Counter,
    /// Frames for a backend that the transmit ring took.
    pub tx_packets: Counter,
    /// Bytes of those, outer headers included.
    pub tx_bytes: Counter,
    /// Frames turned round in place and sent.
    pub replies: Counter,
    /// Frames handed to another thread.
    pub to_threads: Counter,
    /// Frames that came from another thread.
    pub from_threads: Counter,
    /// Frames sent that no packet caused.
    pub originated: Counter,
    /// Frames held now (a level).
    pub held: Counter,
    /// Batches that were not empty.
    pub batches: Counter,
    /// Those by size: place n counts sizes from 2ⁿ to 2ⁿ⁺¹ - 1, the last all above.
    pub batch_sizes: [Counter; BATCH_SIZES],
    /// Frames whose opened head room was not what their backend needs: moved once.
    pub head_room_mismatch: Counter,
    /// The flow's backend was gone, down, or draining when a new connection reused the 5-tuple, so another was chosen.
    pub reselected: Counter,
    /// The Maglev entry's backend was not serving, so the hash was hashed again.
    pub rehashed: Counter,
    /// Frames turned into a time-exceeded message to their sender.
    pub time_exceeded: Counter,
    /// Frames turned into a message to their sender that says which size fits.
    pub too_big_told: Counter,
    /// Tunnelled packets whose outer header was taken off here.
    pub opened: Counter,
    /// Fragments chosen to be sent to another machine of the cluster, which gathers them.
    pub redirected: Counter,
    /// Flows for which another cluster was chosen, because no backend here serves.
    pub remote_flows: Counter,
    /// Tunnelled packets of other clusters whose outer header was taken off here.
    pub remote_arrivals: Counter,
    /// Packets cut to pieces because they were too large for the way.
    pub cut: Counter,
    /// Packets of which a capture was given a record.
    pub captured: Counter,
    /// Packets that a capture wanted and that found no room in its ring.
    pub capture_lost: Counter,
    /// Marked packets that the control plane was told of.
    pub trace_reports: Counter,
    /// Nanoseconds spent on batches that were not empty.
    pub busy_nanos: Counter,
    /// The connection table.
    pub flow_table: Gauges,
    /// The fragment table.
    pub fragment_table: FragmentGauges,
    /// Drops, by [`DropReason`].
    drops: Box<[Counter]>,
    /// Packets that began like a marked one and were not told of, by [`TraceRefusal`].
    trace_refused: [Counter; TraceRefusal::ALL.len()],
    backends: Box<[PairCounter]>,
    services: Box<[PairCounter]>,
}

impl ThreadCounters {
    /// Room for `backends` slots and `services`; what lies beyond is not counted singly.
    #[must_use]
    pub fn new(backends: usize, services: usize) -> Self {
        let make = |n| std::iter::repeat_with(PairCounter::default).take(n).collect();
        Self {
            rx_packets: Counter::default(),
            rx_bytes: Counter::default(),
            tx_packets: Counter::default(),
            tx_bytes: Counter::default(),
            replies: Counter::default(),
            to_threads: Counter::default(),
            from_threads: Counter::default(),
            originated: Counter::default(),
            held: Counter::default(),
            batches: Counter::default(),
            batch_sizes: std::array::from_fn(|_| Counter::default()),
            head_room_mismatch: Counter::default(),
            reselected: Counter::default(),
            rehashed: Counter::default(),
            time_exceeded: Counter::default(),
            too_big_told: Counter::default(),
            opened: Counter::default(),
            redirected: Counter::default(),
            remote_flows: Counter::default(),
            remote_arrivals: Counter::default(),
            cut: Counter::default(),
            captured: Counter::default(),
            capture_lost: Counter::default(),
            trace_reports: Counter::default(),
            busy_nanos: Counter::default(),
            flow_table: Gauges::default(),
            fragment_table: FragmentGauges::default(),
            drops: DropReason::ALL.iter().map(|_| Counter::default()).collect(),
            trace_refused: Default::default(),
            backends: make(backends),
            services: make(services),
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

    /// Counts a packet that began like a marked one, and was not told of.
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
    /// Left: sent, replied, to other threads, dropped.
    pub left: u64,
    /// Held now.
    pub held: u64,
}

impl From<&ThreadCounters> for Totals {
    fn from(counters: &ThreadCounters) -> Self {
        let drops: u64 = counters.drops.iter().map(Counter::read).sum();
        Self {
            came: counters.rx_packets.read() + counters.from_threads.read() + counters.originated.read(),
            left: counters.tx_packets.read() + counters.replies.read() + counters.to_threads.read() + drops,
            held: counters.held.read(),
        }
    }
}
