//! Packet captures. Each packet thread has a tap that records packets, and a writer thread turns
//! the records into a pcapng stream.
//!
//! At most one capture runs at a time. A capture ends when the client disconnects, when a limit is
//! reached, or on a DELETE request. The writer thread detects the end of the capture within 5 ms,
//! and closes the taps to free their memory. The last block of the stream contains the number of
//! lost packets. `forwarder` selects the packets, `questions` sends taps to the threads, and the
//! HTTP interface is in `admin`.

mod writer;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use admin::{CaptureCommand, FlowQuery};
use bytes::Bytes;
use forwarder::{CaptureFilter, DropReason, Live, Record, Snapshot, TapSize, VipFilter, capture_tap};
use tokio::sync::mpsc;

use self::writer::Writer;
use crate::questions::{Filters, Taps};
use crate::refused::Refused;

const _: () = assert!(
    *admin::SNAP_BYTES.start() == *forwarder::SNAP_BYTES.start()
        && *admin::SNAP_BYTES.end() == *forwarder::SNAP_BYTES.end(),
    "the API and the taps must have the same limits"
);

#[derive(Debug)]
struct Running {
    words: String,
    since: Instant,
    shared: Arc<Shared>,
}

impl Running {
    fn words(&self) -> String {
        format!("{}, running for {:.0} s", self.words, self.since.elapsed().as_secs_f64())
    }
}

/// State that the control loop and the writer thread share.
#[derive(Debug, Default)]
struct Shared {
    /// `true` if the writer must end the capture.
    ends: AtomicBool,
    matched: AtomicU64,
    captured: AtomicU64,
    lost: AtomicU64,
}

impl Shared {
    fn captured(&self) -> Captured {
        let [matched, captured, lost] =
            [&self.matched, &self.captured, &self.lost].map(|count| count.load(Ordering::Relaxed));
        Captured { matched, captured, lost }
    }
}

/// The packet counts of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Captured {
    /// The number of packets that matched the filter.
    pub matched: u64,
    /// The number of packets that were written to the stream.
    pub captured: u64,
    /// The number of packets that are missing from the stream, because the memory of a tap was
    /// full.
    pub lost: u64,
}

/// The packet threads that a capture covers.
#[derive(Clone, Copy, Debug)]
pub struct Tapped<'a> {
    /// The number of packet threads.
    pub threads: usize,
    /// The maximum number of packets in a batch.
    pub batch: usize,
    /// The instant at which the clock of the packet threads is zero.
    pub origin: Instant,
    /// The snapshot that the packet threads currently use.
    pub live: &'a Live,
}

/// Starts and ends captures. At most one capture runs at a time.
#[derive(Debug, Default)]
pub struct Captures {
    running: Option<Running>,
}

impl Captures {
    /// Starts the writer thread of a capture. The thread calls `over` when it ends. Returns one tap
    /// per packet thread, and the stream of pcapng blocks. The caller must send the taps to the
    /// packet threads.
    ///
    /// # Errors
    /// Returns [`Refused`] if a capture is already running, if the request names an unknown VIP or
    /// backend, or if the thread cannot be created.
    pub fn begin(
        &mut self,
        order: &CaptureCommand,
        from: Tapped<'_>,
        over: impl FnOnce() + Send + 'static,
    ) -> Result<(Taps, mpsc::Receiver<Bytes>), Refused> {
        if let Some(running) = self.running() {
            return Err(Refused::Conflict(format!("a capture is already running ({running}); end it first")));
        }
        let filter = capture_filter(order, &from.live.current())?;
        let size = tap_size(order, from.threads, from.batch);
        let (taps, catches) = (0..from.threads).map(|_| capture_tap(filter.clone(), size)).unzip();
        let (sender, stream) = mpsc::channel(CHUNKS);
        let running = Running { words: order.to_string(), since: Instant::now(), shared: Arc::default() };
        let writer = Writer {
            catches,
            live: from.live.clone(),
            origin: writer::wall_clock_at(from.origin),
            until: Instant::now() + order.within,
            left: order.count.map_or(u64::MAX, NonZeroU64::get),
            written: [0; 2],
            snap: size.snap,
            words: running.words.clone(),
            sender,
            names: Default::default(),
            shared: Arc::clone(&running.shared),
        };
        let spawned = writer.spawn(over);
        spawned
            .map_err(|error| Refused::Unavailable(format!("cannot create the capture thread: {error}")))?;
        self.running = Some(running);
        Ok((taps, stream))
    }

    /// Requests the end of the running capture, and returns its packet counts so far.
    pub fn end(&self) -> Result<Captured, Refused> {
        let none = || Refused::NotFound("no capture is running".to_owned());
        let shared = &self.running.as_ref().ok_or_else(none)?.shared;
        shared.ends.store(true, Ordering::Relaxed);
        Ok(shared.captured())
    }

    /// Removes the capture whose writer thread has ended and closed the taps. The caller must get
    /// the taps back from the packet threads, which frees their memory.
    pub fn is_over(&mut self) {
        if let Some(running) = self.running.take() {
            let Captured { captured, lost, .. } = running.shared.captured();
            // log: A capture ended. The fields contain the numbers of captured and lost packets.
            tracing::info!(captured, lost, capture = %running.words, "capture ended");
        }
    }

    /// Returns a description of the running capture, or `None` if no capture is running.
    #[must_use]
    pub fn running(&self) -> Option<String> {
        self.running.as_ref().map(Running::words)
    }
}

/// Converts the names in a capture request to slot and service IDs, which stay valid across
/// reloads.
fn capture_filter(order: &CaptureCommand, snapshot: &Snapshot) -> Result<CaptureFilter, Refused> {
    let vip = order.vip.as_ref().map(|name| Filters::of(&FlowQuery::Vip(name.clone()), snapshot));
    let vip = vip.transpose()?.map(|found| match found {
        Filters::Services(services) => VipFilter { services: services.into_iter().collect() },
        Filters::All | Filters::Slots(_) => VipFilter { services: Vec::new() },
    });
    let slots = order.backend.as_ref().map(|name| Filters::of(&FlowQuery::Backend(name.clone()), snapshot));
    let slots = slots.transpose()?.and_then(|found| match found {
        Filters::Slots(slots) => Some(slots.into_iter().collect()),
        Filters::All | Filters::Services(_) => None,
    });
    Ok(CaptureFilter {
        vip,
        slots,
        drops: order.drops.as_ref().map(|names| {
            DropReason::ALL.iter().copied().filter(|reason| names.contains(&reason.name())).collect()
        }),
        new_flows: order.new_flows,
        sample: order.sample,
    })
}

/// Returns the number of records per packet thread. The records of all threads together use at most
/// [`MEMORY`].
fn tap_size(order: &CaptureCommand, threads: usize, batch: usize) -> TapSize {
    let one = 2 * order.snap + size_of::<Record>();
    let records = (MEMORY / threads.max(1) / one).clamp(RECORDS_AT_LEAST, RECORDS_AT_MOST);
    TapSize { snap: order.snap, records, batch }
}

/// The number of pcapng chunks that can wait until the client reads them.
const CHUNKS: usize = 16;
/// The maximum memory for the records of all threads, in bytes.
const MEMORY: usize = 16 << 20;
const RECORDS_AT_LEAST: usize = 64;
const RECORDS_AT_MOST: usize = 8_192;
