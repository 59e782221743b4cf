//! Packet capture on a packet thread. A tap copies each packet that matches a [`CaptureFilter`]
//! into a [`Record`]. The record contains the verdict and the frame before and after the pipeline.
//! The holder of the [`CaptureReceiver`] reads the records. [`crate::Request::Capture`] installs
//! and removes a tap. The crate `sluicegate` writes capture files.
//!
//! The receiver allocates and frees all memory of a capture. The packet thread never allocates,
//! frees or waits. Without a tap, the cost is one check per batch.

mod filter;

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use packet::{Family, network};
use rtrb::{Consumer, Producer, RingBuffer};

pub use self::filter::{CaptureFilter, DropReasons, VipFilter};

use crate::{Counter, Generation, Now, Packet, ServiceId, SlotId, Snapshot, ThreadId, Verdict};

/// A captured packet and its verdict.
#[derive(Debug)]
pub struct Record {
    /// The time at which the packet's batch was received.
    pub time: Now,
    /// The packet thread that processed the packet.
    pub thread: ThreadId,
    /// The generation of the snapshot under which the packet was processed.
    pub generation: Generation,
    /// The verdict. The packet can still be dropped later if a transmit ring or mailbox is full.
    pub verdict: Verdict,
    /// The service that the packet was sent to, or `None` if the service was not looked up.
    pub service: Option<ServiceId>,
    /// The slot of the selected backend, or `None` if no backend was selected.
    pub slot: Option<SlotId>,
    /// `true` if the connection table had no entry for the flow.
    pub new_flow: bool,
    before: Kept,
    after: Option<Kept>,
    /// A buffer with two halves of equal size: the first for the frame before the pipeline, the
    /// second for the frame after it.
    bytes: Box<[u8]>,
}

/// The number of bytes captured from a frame, and the original length of the frame.
#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    kept: usize,
    whole: usize,
}

/// A captured frame, which may be truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapped<'a> {
    /// The captured bytes, from the start of the frame.
    pub bytes: &'a [u8],
    /// The original length of the frame in bytes.
    pub whole: usize,
}

impl Record {
    /// Returns the frame as the packet thread received it.
    #[must_use]
    pub fn before(&self) -> Snapped<'_> {
        let bytes = self.bytes.get(..self.before.kept).unwrap_or_default();
        Snapped { bytes, whole: self.before.whole }
    }

    /// Returns the frame as it was sent, or `None` if it was not sent.
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

/// The sizes and limits of a tap, which determine how much memory the tap takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapSize {
    /// The maximum number of bytes captured per frame. The value is clamped to the range
    /// [`SNAP_BYTES`].
    pub snap: usize,
    /// The maximum number of records that can be waiting for the receiver.
    pub records: usize,
    /// The maximum number of packets that are captured per batch.
    pub batch: usize,
}

/// The packet thread's side of a capture.
#[derive(Debug)]
pub struct Tap {
    filter: CaptureFilter,
    snap: usize,
    /// A countdown of matching packets. The packet that reduces the countdown to 0 is recorded.
    until: u32,
    /// `true` if the tap was still open at the start of the current batch.
    open: bool,
    /// `true` if the frames of the current batch were copied to `scratch`. Frames are copied if at
    /// least one frame may be recorded.
    armed: bool,
    scratch: Box<[u8]>,
    kept: Box<[Kept]>,
    full: Producer<Record>,
    empty: Consumer<Record>,
    shared: Arc<Shared>,
}

/// The receiver's side of a capture. Dropping the receiver closes the tap, which takes effect at
/// the thread's next batch.
#[derive(Debug)]
pub struct CaptureReceiver {
    full: Consumer<Record>,
    empty: Producer<Record>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    // Relaxed ordering is sufficient, because no other data depends on these values.
    open: AtomicBool,
    matched: Counter,
    taken: Counter,
    lost: Counter,
}

/// The packet counts of a tap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounts {
    /// The number of packets that matched the filter.
    pub matched: u64,
    /// The number of matching packets that were recorded.
    pub taken: u64,
    /// The number of matching packets that were due for recording but were lost because no free
    /// record was left.
    pub lost: u64,
}

/// Creates a tap for one packet thread, and the receiver of its records. This function allocates
/// all memory of the capture.
#[must_use]
pub fn capture_tap(filter: CaptureFilter, size: TapSize) -> (Box<Tap>, CaptureReceiver) {
    let snap = size.snap.clamp(*SNAP_BYTES.start(), *SNAP_BYTES.end());
    let records = size.records.max(1);
    let (full, full_out) = RingBuffer::new(records);
    let (mut empty_in, empty) = RingBuffer::new(records);
    for _ in 0..records {
        // The ring has room for all records.
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
    /// Returns the capture time of the next record, or `None` if no record is waiting.
    #[must_use]
    pub fn next_time(&self) -> Option<Now> {
        self.full.peek().ok().map(|record| record.time)
    }

    /// Returns the next record, or `None` if no record is waiting. The caller must pass the record
    /// to [`CaptureReceiver::give_back`] after use.
    pub fn pop(&mut self) -> Option<Record> {
        self.full.pop().ok()
    }

    /// Gives a record back to the tap for reuse.
    pub fn give_back(&mut self, record: Record) {
        // The ring has room for all records.
        let _ = self.empty.push(record);
    }

    /// Returns the packet counts of the tap.
    #[must_use]
    pub fn counts(&self) -> CaptureCounts {
        let Shared { matched, taken, lost, .. } = &*self.shared;
        CaptureCounts { matched: matched.read(), taken: taken.read(), lost: lost.read() }
    }

    /// Closes the tap, which takes effect at the thread's next batch. The receiver can still read
    /// records that were captured before.
    pub fn close(&self) {
        self.shared.open.store(false, Ordering::Relaxed);
    }
}

impl Drop for CaptureReceiver {
    fn drop(&mut self) {
        self.close();
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) place: usize,
    pub(crate) verdict: Verdict,
    pub(crate) service: Option<ServiceId>,
    pub(crate) slot: Option<SlotId>,
    pub(crate) new_flow: bool,
}

/// Data that is the same for all packets of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) time: Now,
    pub(crate) thread: ThreadId,
    pub(crate) generation: Generation,
}

impl Tap {
    /// Copies the frames of a batch before the pipeline changes them. If the sampling interval
    /// selects no packet of this batch, the frames are not copied. Sparse sampling therefore costs
    /// little.
    pub(crate) fn begin(&mut self, packets: &[Packet<'_>]) {
        self.open = self.shared.open.load(Ordering::Relaxed);
        let due = usize::try_from(self.until).unwrap_or(usize::MAX) <= packets.len();
        // For a packet without a service, a VIP filter compares the destination address that the
        // packet had before it was rewritten. Only the copied frames still contain this address.
        self.armed = self.open && (due || self.filter.vip.is_some());
        if !self.armed {
            return;
        }
        let rooms = self.scratch.chunks_exact_mut(self.snap).zip(self.kept.iter_mut());
        for (packet, (room, kept)) in packets.iter().zip(rooms) {
            *kept = keep(packet.frame(), room);
        }
    }

    /// Returns `true` if the tap was still open at the start of this batch.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Records a packet if it matches the filter and the sampling interval selects it.
    /// `frame` is the frame after the pipeline.
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
        // The ring has room for all records.
        let _ = self.full.push(record);
        self.shared.taken.add(1);
    }

    /// Returns the original destination address of a packet in this batch.
    fn destination(&self, place: usize) -> Option<IpAddr> {
        let from = place * self.snap;
        let room = self.scratch.get(from..from + self.snap)?;
        destination(room.get(..self.kept.get(place)?.kept)?)
    }

    pub(crate) fn counts(&self) -> CaptureCounts {
        let Shared { matched, taken, lost, .. } = &*self.shared;
        CaptureCounts { matched: matched.read(), taken: taken.read(), lost: lost.read() }
    }
}

/// Copies the start of a frame into `room`, up to the size of `room`.
fn keep(frame: &[u8], room: &mut [u8]) -> Kept {
    let kept = frame.len().min(room.len());
    if let (Some(to), Some(from)) = (room.get_mut(..kept), frame.get(..kept)) {
        to.copy_from_slice(from);
    }
    Kept { kept, whole: frame.len() }
}

/// Returns the destination IP address of a frame that may be truncated.
fn destination(frame: &[u8]) -> Option<IpAddr> {
    match network(frame)? {
        (Family::V4, ip) => Some(IpAddr::from(*ip.get(16..)?.first_chunk::<4>()?)),
        (Family::V6, ip) => Some(IpAddr::from(*ip.get(24..)?.first_chunk::<16>()?)),
    }
}

/// The sampling interval at which every matching packet is captured.
pub const EVERY_PACKET: NonZeroU32 = NonZeroU32::MIN;
/// The permitted range for the number of bytes captured per frame. The minimum has room for the
/// outer and inner headers. The maximum is 2,048 bytes, so that capturing touches only the first
/// pages of a frame.
pub const SNAP_BYTES: std::ops::RangeInclusive<usize> = 64..=2048;

#[cfg(test)]
mod tests;
