//! Captures: taps into the packet threads, and a thread that makes a file of what they catch.
//!
//! In: an order of the admin API. Out: a stream of whole pcapng blocks; at its end statistics that say what was lost.
//! Not here: what a tap keeps (`forwarder`), HTTP, the file on the operator's side (`crate::capture`).
//! Invariant: one capture at a time. It ends within [`IDLE`] when the client goes, at its bounds or by DELETE: then the taps
//! are closed, and their memory comes home.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use admin::Answer;
use admin::view::{CaptureEnd, Refusal, RefusalKind};
use admin::{CaptureOrder, CaptureStream, FlowQuery};
use control_plane::CaptureBegun;
use control_plane::questions::{Filters, Questions, Taps};
use datapath::DataPlane;
use forwarder::{
    CaptureCounts, CaptureFilter, CaptureReceiver, DropReason, Live, Record, ServiceId, Snapshot, TapSize,
    Verdict, VipFilter, capture_tap,
};
use hyper::body::Bytes;
use tokio::sync::mpsc;

use super::Daemon;
use super::turns::Handle;
use crate::pcapng::{self, Interface, Packet, Statistics};

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

/// What the control loop and the writing thread both see.
#[derive(Debug, Default)]
struct Shared {
    /// It is to come to its end.
    ends: AtomicBool,
    matched: AtomicU64,
    captured: AtomicU64,
    lost: AtomicU64,
}

impl Running {
    fn words(&self) -> String {
        format!("{} has been running for {:.0} s", self.words, self.since.elapsed().as_secs_f64())
    }
}

/// Questions to the packet threads, and the capture that runs.
#[derive(Debug, Default)]
pub(super) struct Inspections {
    pub(super) questions: Questions,
    running: Option<Running>,
}

/// What a capture is taken from.
pub(super) struct Tapped<'a> {
    pub(super) plane: &'a DataPlane,
    pub(super) live: &'a Live,
    pub(super) daemon: Handle<Daemon>,
}

impl Inspections {
    /// Begins a capture: the client gets its stream once the taps are in place.
    pub(super) fn capture(
        &mut self,
        order: &CaptureOrder,
        answer: Answer<Result<CaptureStream, Refusal>>,
        from: Tapped<'_>,
    ) {
        match self.begin_capture(order, from) {
            Ok((taps, stream)) => self.questions.tap(taps, Some(Box::new(CaptureBegun { stream, answer }))),
            Err(refusal) => _ = answer.send(Err(refusal)),
        }
    }

    /// Starts the writing thread; the taps are to be put in place.
    fn begin_capture(
        &mut self,
        order: &CaptureOrder,
        from: Tapped<'_>,
    ) -> Result<(Taps, CaptureStream), Refusal> {
        if let Some(running) = &self.running {
            let words = format!("one at a time: {}; it can be ended by DELETE", running.words());
            return Err(Refusal::new(RefusalKind::Conflict, words));
        }
        let filter = capture_filter(order, &from.live.current())?;
        let threads = from.plane.counters().len();
        let size = tap_size(order, threads);
        let (taps, catches) = (0..threads).map(|_| capture_tap(filter.clone(), size)).unzip();
        let (sender, stream) = mpsc::channel(CHUNKS);
        let running = Running { words: order.to_string(), since: Instant::now(), shared: Arc::default() };
        let writer = Writer {
            catches,
            live: from.live.clone(),
            origin: wall_clock_at(from.plane.origin()),
            until: Instant::now() + order.within,
            left: order.count.map_or(u64::MAX, NonZeroU64::get),
            written: [0; 2],
            snap: size.snap,
            words: running.words.clone(),
            sender,
            names: HashMap::new(),
            shared: Arc::clone(&running.shared),
        };
        writer.spawn(from.daemon)?;
        self.running = Some(running);
        Ok((taps, CaptureStream(stream)))
    }

    /// Ends the capture that runs.
    pub(super) fn end_capture(&self) -> Result<CaptureEnd, Refusal> {
        let none = || Refusal::new(RefusalKind::NotFound, "no capture is running");
        let shared = &self.running.as_ref().ok_or_else(none)?.shared;
        shared.ends.store(true, Ordering::Relaxed);
        Ok(CaptureEnd {
            matched: shared.matched.load(Ordering::Relaxed),
            captured: shared.captured.load(Ordering::Relaxed),
            lost: shared.lost.load(Ordering::Relaxed),
        })
    }

    /// The writing thread has ended and closed the taps; their memory is fetched.
    fn capture_is_over(&mut self) {
        if let Some(running) = self.running.take() {
            let lost = running.shared.lost.load(Ordering::Relaxed);
            let captured = running.shared.captured.load(Ordering::Relaxed);
            tracing::info!(captured, lost, "the capture is over: {}", running.words);
        }
        self.questions.tap(Taps::new(), None);
    }

    /// For the status.
    pub(super) fn warning(&self) -> Option<String> {
        self.running.as_ref().map(Running::words)
    }
}

/// The names of an order as numbers, which reloads do not change.
fn capture_filter(order: &CaptureOrder, snapshot: &Snapshot) -> Result<CaptureFilter, Refusal> {
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
fn tap_size(order: &CaptureOrder, threads: usize) -> TapSize {
    let one = 2 * order.snap + size_of::<Record>();
    let records = (MEMORY / threads.max(1) / one).clamp(RECORDS_AT_LEAST, RECORDS_AT_MOST);
    TapSize { snap: order.snap, records, batch: datapath::MAX_BATCH }
}

/// Nanoseconds since 1970 at a moment of the monotonic clock.
fn wall_clock_at(moment: Instant) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let then = since.saturating_sub(moment.elapsed());
    u64::try_from(then.as_nanos()).unwrap_or(u64::MAX)
}

/// The thread that takes records and makes blocks of them.
struct Writer {
    catches: Vec<CaptureReceiver>,
    live: Live,
    /// The packet threads' origin of time, in nanoseconds since 1970.
    origin: u64,
    until: Instant,
    /// Packets that are still wanted.
    left: u64,
    /// Packets written, before and after.
    written: [u64; 2],
    snap: usize,
    words: String,
    sender: mpsc::Sender<Bytes>,
    /// Names of services that were met.
    names: HashMap<ServiceId, Arc<str>>,
    shared: Arc<Shared>,
}

/// The client has closed the stream.
struct Gone;

impl Writer {
    fn spawn(mut self, daemon: Handle<Daemon>) -> Result<(), Refusal> {
        let write = move || {
            let _ = self.write(); // a client who has gone needs no end
            self.publish();
            daemon.send(|daemon| daemon.inspections.capture_is_over());
        };
        let spawned = std::thread::Builder::new().name("capture".into()).spawn(write);
        let no_thread = |error| format!("no thread for a capture: {error}");
        spawned.map(drop).map_err(|error| Refusal::new(RefusalKind::Unavailable, no_thread(error)))
    }

    fn write(&mut self) -> Result<(), Gone> {
        let mut chunk = Vec::with_capacity(CHUNK);
        let snap = u32::try_from(self.snap).unwrap_or(u32::MAX);
        pcapng::begin(&mut chunk, &self.words, &INTERFACES, snap);
        self.send(&mut chunk)?;
        while self.left > 0 && Instant::now() < self.until && !self.shared.ends.load(Ordering::Relaxed) {
            self.fill(&mut chunk);
            self.publish();
            if !chunk.is_empty() {
                self.send(&mut chunk)?;
            } else if self.sender.is_closed() {
                return Err(Gone);
            } else {
                std::thread::sleep(IDLE);
            }
        }
        self.catches.iter().for_each(CaptureReceiver::close);
        // A batch that was under way is finished by then.
        std::thread::sleep(IDLE);
        loop {
            self.fill(&mut chunk);
            if chunk.is_empty() {
                break;
            }
            self.send(&mut chunk)?;
        }
        self.close(&mut chunk);
        self.send(&mut chunk)
    }

    fn send(&self, chunk: &mut Vec<u8>) -> Result<(), Gone> {
        let bytes = std::mem::replace(chunk, Vec::with_capacity(CHUNK));
        self.sender.blocking_send(bytes.into()).map_err(|_| Gone)
    }

    /// Takes records, the oldest first, until there is none or a chunk is full.
    fn fill(&mut self, chunk: &mut Vec<u8>) {
        let snapshot = self.live.current();
        while self.left > 0 && chunk.len() < CHUNK {
            let times = self.catches.iter_mut().filter_map(|catch| Some((catch.next_time()?, catch)));
            let Some((_, catch)) = times.min_by_key(|(time, _)| *time) else { return };
            let Some(record) = catch.pop() else { return };
            self.left -= 1;
            let id = self.written[0];
            let [before, after] = &mut self.written;
            (*before, *after) = (*before + 1, *after + u64::from(record.after().is_some()));
            let comment = comment(&record, &snapshot, &mut self.names);
            tell(chunk, &record, id, self.origin, &comment);
            catch.give_back(record);
        }
    }

    fn counted(&self) -> CaptureCounts {
        let all = self.catches.iter().map(CaptureReceiver::counts);
        all.fold(CaptureCounts::default(), |sum, one| CaptureCounts {
            matched: sum.matched + one.matched,
            taken: sum.taken + one.taken,
            lost: sum.lost + one.lost,
        })
    }

    fn publish(&self) {
        let counted = self.counted();
        self.shared.matched.store(counted.matched, Ordering::Relaxed);
        self.shared.captured.store(self.written[0], Ordering::Relaxed);
        self.shared.lost.store(counted.lost, Ordering::Relaxed);
    }

    fn close(&self, chunk: &mut Vec<u8>) {
        let CaptureCounts { matched, lost, .. } = self.counted();
        let nanos = wall_clock_at(Instant::now());
        for (interface, delivered) in (0..).zip(self.written) {
            pcapng::statistics(
                chunk,
                interface,
                &Statistics { nanos, accepted: matched, dropped: lost, delivered },
            );
        }
    }
}

/// One block, or two for a packet that leaves.
fn tell(chunk: &mut Vec<u8>, record: &Record, id: u64, origin: u64, comment: &str) {
    let nanos = origin.saturating_add(record.time.nanos());
    for (interface, snapped) in [(0, Some(record.before())), (1, record.after())] {
        let Some(snapped) = snapped else { continue };
        let packet = Packet {
            interface,
            nanos,
            bytes: snapped.bytes,
            whole: snapped.whole,
            id,
            outbound: interface == 1,
            comment,
        };
        pcapng::packet(chunk, &packet);
    }
}

/// What was decided, as words that a display filter can look for: `frame.comment contains "reason=ttl"`.
fn comment(record: &Record, snapshot: &Snapshot, names: &mut HashMap<ServiceId, Arc<str>>) -> String {
    let mut said = match record.verdict {
        Verdict::Tx => "verdict=tx".to_owned(),
        Verdict::Reply => "verdict=reply".to_owned(),
        Verdict::Hold(_) => "verdict=hold".to_owned(),
        Verdict::ToThread(to, _) => format!("verdict=to_thread to={}", to.0),
        Verdict::Drop(reason) => format!("verdict=drop reason={}", reason.name()),
    };
    // Writing to a string cannot fail.
    if let Some(id) = record.service {
        // A number is not given to another service while a flow could name it, so a name that was found once holds.
        let name = names.entry(id).or_insert_with(|| {
            let found = snapshot.services().iter().find(|service| service.id == id);
            found.map_or_else(|| format!("number {}", id.0).into(), |found| Arc::clone(&found.name))
        });
        let _ = write!(said, " service=\"{name}\"");
    }
    if let Some(slot) = record.slot {
        let _ = match snapshot.slots().get(slot.0 as usize) {
            Some(found) => write!(said, " backend=\"{}\" address={}", found.backend, found.address),
            None => write!(said, " backend=\"number {}\"", slot.0),
        };
    }
    if record.new_flow {
        said += " flow=new";
    }
    let _ = write!(said, " thread={} generation={}", record.thread.0, record.generation.0);
    said
}

const INTERFACES: [Interface; 2] = [
    Interface { name: "before", description: "packets as they came to a packet thread" },
    Interface { name: "after", description: "packets as they leave: sent on, or answered" },
];
/// How long a writer sleeps that finds nothing: so long may an end go unseen, too.
const IDLE: Duration = Duration::from_millis(5);
/// Bytes of a chunk after which it is sent.
const CHUNK: usize = 64 << 10;
/// Chunks that wait for a client.
const CHUNKS: usize = 16;
/// Bytes of records, over all threads.
const MEMORY: usize = 16 << 20;
const RECORDS_AT_LEAST: usize = 64;
const RECORDS_AT_MOST: usize = 8_192;
