//! Captures: taps into the packet threads, and a thread that makes a file of what they catch.
//!
//! In: an order of the admin API. Out: a stream of whole pcapng blocks; at its end statistics that say what was lost.
//! Not here: what a tap keeps (`forwarder`), how taps reach the threads (`questions`), HTTP, the file on the operator's side.
//! Invariant: one capture at a time. It ends within 5 ms when the client goes, at its bounds or by DELETE: then the taps
//! are closed, and their memory comes home.

mod writer;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use admin::{CaptureOrder, FlowQuery};
use bytes::Bytes;
use forwarder::{CaptureFilter, DropReason, Live, Record, Snapshot, TapSize, VipFilter, capture_tap};
use tokio::sync::mpsc;

use self::writer::Writer;
use crate::questions::{Filters, Taps};
use crate::refused::Refused;

const _: () = assert!(
    *admin::SNAP_BYTES.start() == *forwarder::SNAP_BYTES.start()
        && *admin::SNAP_BYTES.end() == *forwarder::SNAP_BYTES.end(),
    "the API offers what taps keep"
);

/// The capture that runs.
#[derive(Debug)]
struct Running {
    words: String,
    since: Instant,
    shared: Arc<Shared>,
}

impl Running {
    fn words(&self) -> String {
        format!("{} has been running for {:.0} s", self.words, self.since.elapsed().as_secs_f64())
    }
}

/// What the control loop and the writing thread both see.
#[derive(Debug, Default)]
struct Shared {
    /// It is to come to its end.
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

/// What a capture has come to, in packets.
#[derive(Clone, Copy, Debug)]
pub struct Captured {
    /// Those it asked for.
    pub matched: u64,
    /// Those in its file.
    pub captured: u64,
    /// Those that found no memory.
    pub lost: u64,
}

/// The packet threads that are tapped.
#[derive(Clone, Copy, Debug)]
pub struct Tapped<'a> {
    /// How many there are.
    pub threads: usize,
    /// The most packets that one takes at once.
    pub batch: usize,
    /// The origin of their time.
    pub origin: Instant,
    /// The snapshot that they forward by.
    pub live: &'a Live,
}

/// At most one capture.
#[derive(Debug, Default)]
pub struct Captures {
    running: Option<Running>,
}

impl Captures {
    /// Starts the writing thread of a capture, which calls `over` at its end. The taps are to be put in place, one a thread; then
    /// the stream has chunks of whole blocks.
    ///
    /// # Errors
    /// A capture runs, a name of the order is not that of a VIP or backend, or there is no thread to be had.
    pub fn begin(
        &mut self,
        order: &CaptureOrder,
        from: Tapped<'_>,
        over: impl FnOnce() + Send + 'static,
    ) -> Result<(Taps, mpsc::Receiver<Bytes>), Refused> {
        if let Some(running) = self.running() {
            return Err(Refused::Conflict(format!("one at a time: {running}; it can be ended by DELETE")));
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
        spawned.map_err(|error| Refused::Unavailable(format!("no thread for a capture: {error}")))?;
        self.running = Some(running);
        Ok((taps, stream))
    }

    /// Ends the capture that runs.
    ///
    /// # Errors
    /// None does.
    pub fn end(&self) -> Result<Captured, Refused> {
        let none = || Refused::NotFound("no capture is running".to_owned());
        let shared = &self.running.as_ref().ok_or_else(none)?.shared;
        shared.ends.store(true, Ordering::Relaxed);
        Ok(shared.captured())
    }

    /// The writing thread has ended and closed the taps, whose memory is to be fetched.
    pub fn is_over(&mut self) {
        if let Some(running) = self.running.take() {
            let Captured { captured, lost, .. } = running.shared.captured();
            tracing::info!(captured, lost, "the capture is over: {}", running.words);
        }
    }

    /// The capture that runs, in words.
    #[must_use]
    pub fn running(&self) -> Option<String> {
        self.running.as_ref().map(Running::words)
    }
}

/// The names of an order as numbers, which reloads do not change.
fn capture_filter(order: &CaptureOrder, snapshot: &Snapshot) -> Result<CaptureFilter, Refused> {
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

/// Records of a thread, so that all threads together stay within [`MEMORY`].
fn tap_size(order: &CaptureOrder, threads: usize, batch: usize) -> TapSize {
    let one = 2 * order.snap + size_of::<Record>();
    let records = (MEMORY / threads.max(1) / one).clamp(RECORDS_AT_LEAST, RECORDS_AT_MOST);
    TapSize { snap: order.snap, records, batch }
}

/// Chunks that wait for a client.
const CHUNKS: usize = 16;
/// Bytes of records, over all threads.
const MEMORY: usize = 16 << 20;
const RECORDS_AT_LEAST: usize = 64;
const RECORDS_AT_MOST: usize = 8_192;
