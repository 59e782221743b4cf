//! A packet thread's tap: packets as they came and as they left, with what was decided for them.
//!
//! In: batches, before and after the pipeline. Out: [`Record`]s of those that a [`CaptureFilter`] means, to the holder of the
//! [`CaptureReceiver`]. Modules: `filter`.
//! Not here: files (`sluicegate`), when a tap is put in and taken out ([`crate::Request::Capture`]).
//! Invariant: all memory is the receiver's and comes back to it; the thread allocates, frees and waits for nothing. Without a
//! tap a batch pays for one look, a packet for nothing.

mod filter;

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use packet::{Family, network};
use rtrb::{Consumer, Producer, RingBuffer};

pub use self::filter::{CaptureFilter, DropReasons, VipFilter};

use crate::{Counter, Generation, Now, Packet, ServiceId, SlotId, Snapshot, ThreadId, Verdict};

/// One packet, and what was decided for it.
#[derive(Debug)]
pub struct Record {
    /// When its batch was received.
    pub time: Now,
    /// The thread that decided it.
    pub thread: ThreadId,
    /// Under which generation.
    pub generation: Generation,
    /// What was decided. A full transmit ring or mailbox can still end a packet after that.
    pub verdict: Verdict,
    /// What it came for, as far as that was asked.
    pub service: Option<ServiceId>,
    /// Where it goes or would have gone, as far as that was decided.
    pub slot: Option<SlotId>,
    /// The connection table did not know its flow.
    pub new_flow: bool,
    before: Kept,
    after: Option<Kept>,
    /// Room for the bytes before, then as much for those after.
    bytes: Box<[u8]>,
}

/// Bytes of a frame that were kept, and how many it had.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    kept: usize,
    whole: usize,
}

/// A frame in a [`Record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapped<'a> {
    /// Its first bytes.
    pub bytes: &'a [u8],
    /// How many it had.
    pub whole: usize,
}

impl Record {
    /// The frame as it came to the thread.
    #[must_use]
    pub fn before(&self) -> Snapped<'_> {
        let bytes = self.bytes.get(..self.before.kept).unwrap_or_default();
        Snapped { bytes, whole: self.before.whole }
    }

    /// The frame as it leaves; `None`: it does not.
    #[must_use]
    pub fn after(&self) -> Option<Snapped<'_>> {
        let room = self.bytes.get(self.bytes.len() / 2..).unwrap_or_default();
        self.after
            .map(|after| Snapped { bytes: room.get(..after.kept).unwrap_or_default(), whole: after.whole })
    }

    fn empty(snap: usize) -> Self {
        Self {
            time: Now::default(),
            thread: ThreadId(0),
            generation: Generation(0),
            verdict: Verdict::Tx,
            service: None,
            slot: None,
            new_flow: false,
            before: Kept::default(),
            after: None,
            bytes: vec![0; snap * 2].into_boxed_slice(),
        }
    }
}

/// How much memory a tap brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapSize {
    /// Bytes of a frame that are kept, within [`SNAP_BYTES`].
    pub snap: usize,
    /// Records that may wait to be taken.
    pub records: usize,
    /// The most packets in a batch; what lies beyond is not captured.
    pub batch: usize,
}

/// The packet thread's end.
#[derive(Debug)]
pub struct Tap {
    filter: CaptureFilter,
    snap: usize,
    /// Matching packets until the next one that is taken, itself included.
    until: u32,
    /// Somebody still takes what this tap catches.
    open: bool,
    /// This batch's frames were copied: one of them may be taken.
    armed: bool,
    scratch: Box<[u8]>,
    kept: Box<[Kept]>,
    full: Producer<Record>,
    empty: Consumer<Record>,
    shared: Arc<Shared>,
}

/// The receiver's end. Dropping it closes the tap: from the thread's next batch on nothing is copied.
#[derive(Debug)]
pub struct CaptureReceiver {
    full: Consumer<Record>,
    empty: Producer<Record>,
    shared: Arc<Shared>,
}

/// What both ends see.
#[derive(Debug)]
struct Shared {
    // Relaxed throughout: nothing is published by it but itself.
    open: AtomicBool,
    matched: Counter,
    taken: Counter,
    lost: Counter,
}

/// What became of the packets that a tap saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounts {
    /// They matched the filter.
    pub matched: u64,
    /// Of those, sampled and recorded.
    pub taken: u64,
    /// Of those, sampled and lost, because every record waited to be taken.
    pub lost: u64,
}

/// A tap for one thread, and where its records come out. All memory is taken here.
#[must_use]
pub fn capture_tap(filter: CaptureFilter, size: TapSize) -> (Box<Tap>, CaptureReceiver) {
    let snap = size.snap.clamp(*SNAP_BYTES.start(), *SNAP_BYTES.end());
    let records = size.records.max(1);
    let (full, full_out) = RingBuffer::new(records);
    let (mut empty_in, empty) = RingBuffer::new(records);
    for _ in 0..records {
        // There is room for as many.
        let _ = empty_in.push(Record::empty(snap));
    }
    let shared = Arc::new(Shared {
        open: AtomicBool::new(true),
        matched: Counter::default(),
        taken: Counter::default(),
        lost: Counter::default(),
    });
    let tap = Tap {
        filter: filter.sorted(),
        snap,
        until: 1,
        open: true,
        armed: false,
        scratch: vec![0; size.batch * snap].into_boxed_slice(),
        kept: vec![Kept::default(); size.batch].into_boxed_slice(),
        full,
        empty,
        shared: Arc::clone(&shared),
    };
    (Box::new(tap), CaptureReceiver { full: full_out, empty: empty_in, shared })
}

impl CaptureReceiver {
    /// The time of the next record, if there is one.
    #[must_use]
    pub fn next_time(&self) -> Option<Now> {
        self.full.peek().ok().map(|record| record.time)
    }

    /// The next record, if there is one; [`CaptureReceiver::give_back`] is owed.
    pub fn pop(&mut self) -> Option<Record> {
        self.full.pop().ok()
    }

    /// Makes room for another one.
    pub fn give_back(&mut self, record: Record) {
        // There is room for every record that there is.
        let _ = self.empty.push(record);
    }

    /// What the thread has counted.
    #[must_use]
    pub fn counts(&self) -> CaptureCounts {
        let Shared { matched, taken, lost, .. } = &*self.shared;
        CaptureCounts { matched: matched.read(), taken: taken.read(), lost: lost.read() }
    }

    /// Nothing is caught from the thread's next batch on; what was, can still be taken.
    pub fn close(&self) {
        self.shared.open.store(false, Ordering::Relaxed);
    }
}

impl Drop for CaptureReceiver {
    fn drop(&mut self) {
        self.close();
    }
}

/// A packet after its verdict.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) place: usize,
    pub(crate) verdict: Verdict,
    pub(crate) service: Option<ServiceId>,
    pub(crate) slot: Option<SlotId>,
    pub(crate) new_flow: bool,
}

/// What holds for a whole batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) time: Now,
    pub(crate) thread: ThreadId,
    pub(crate) generation: Generation,
}

impl Tap {
    /// Keeps the batch as it came, unless none of it can be taken: sampling is exact, and costs little where it is sparse.
    pub(crate) fn begin(&mut self, packets: &[Packet<'_>]) {
        self.open = self.shared.open.load(Ordering::Relaxed);
        let due = usize::try_from(self.until).unwrap_or(usize::MAX) <= packets.len();
        // Of a packet without a service, the VIP is its destination as it came.
        self.armed = self.open && (due || self.filter.vip.is_some());
        if !self.armed {
            return;
        }
        let rooms = self.scratch.chunks_exact_mut(self.snap).zip(self.kept.iter_mut());
        for (packet, (room, kept)) in packets.iter().zip(rooms) {
            *kept = keep(packet.frame(), room);
        }
    }

    /// Whether anything is caught of this batch.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Records a packet if it is one of those that are meant, and its turn; `frame` is what became of it.
    pub(crate) fn offer(&mut self, seen: &Seen, frame: &[u8], moment: &Moment, snapshot: &Snapshot) {
        if !self.filter.matches(seen, snapshot, || self.destination(seen.place)) {
            return;
        }
        self.shared.matched.add(1);
        self.until -= 1;
        if self.until == 0 {
            self.until = self.filter.sample.get();
            self.take(seen, frame, moment);
        }
    }

    fn take(&mut self, seen: &Seen, frame: &[u8], moment: &Moment) {
        let from = seen.place * self.snap;
        let before = self.kept.get(seen.place).copied();
        let (Some(before), Some(bytes)) = (before, self.scratch.get(from..from + self.snap)) else { return };
        let Ok(mut record) = self.empty.pop() else {
            self.shared.lost.add(1);
            return;
        };
        let (first, second) = record.bytes.split_at_mut(self.snap);
        keep(bytes.get(..before.kept).unwrap_or_default(), first);
        let leaves = matches!(seen.verdict, Verdict::Tx | Verdict::Reply);
        let after = leaves.then(|| keep(frame, second));
        let Moment { time, thread, generation } = *moment;
        let Seen { verdict, service, slot, new_flow, .. } = *seen;
        record =
            Record { time, thread, generation, verdict, service, slot, new_flow, before, after, ..record };
        // There is room for every record that there is.
        let _ = self.full.push(record);
        self.shared.taken.add(1);
    }

    /// Where a packet of this batch went when it came.
    fn destination(&self, place: usize) -> Option<IpAddr> {
        let from = place * self.snap;
        let room = self.scratch.get(from..from + self.snap)?;
        destination(room.get(..self.kept.get(place)?.kept)?)
    }

    /// What it has counted.
    pub(crate) fn counts(&self) -> CaptureCounts {
        let Shared { matched, taken, lost, .. } = &*self.shared;
        CaptureCounts { matched: matched.read(), taken: taken.read(), lost: lost.read() }
    }
}

/// Copies what there is room for.
fn keep(frame: &[u8], room: &mut [u8]) -> Kept {
    let kept = frame.len().min(room.len());
    if let (Some(to), Some(from)) = (room.get_mut(..kept), frame.get(..kept)) {
        to.copy_from_slice(from);
    }
    Kept { kept, whole: frame.len() }
}

/// The IP destination of a frame that may be cut short.
fn destination(frame: &[u8]) -> Option<IpAddr> {
    match network(frame)? {
        (Family::V4, ip) => Some(IpAddr::from(*ip.get(16..)?.first_chunk::<4>()?)),
        (Family::V6, ip) => Some(IpAddr::from(*ip.get(24..)?.first_chunk::<16>()?)),
    }
}

/// One of each: every packet that matches.
pub const EVERY_PACKET: NonZeroU32 = NonZeroU32::MIN;
/// Bytes of a frame that may be kept: at least both headers, at most what a frame's first pages hold.
pub const SNAP_BYTES: std::ops::RangeInclusive<usize> = 64..=2048;

#[cfg(test)]
mod tests;
