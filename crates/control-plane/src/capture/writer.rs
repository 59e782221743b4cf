//! The thread that makes a pcapng file of what the packet threads' taps caught.
//!
//! In: records of all threads, the snapshot that names what they number. Out: chunks of whole blocks, the oldest packet first; at
//! the end statistics that say what was lost.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use admin::pcapng::{self, Interface, Packet, Statistics};
use bytes::Bytes;
use forwarder::{CaptureCounts, CaptureReceiver, Live, Record, ServiceId, Snapshot, Verdict};
use tokio::sync::mpsc;

use super::Shared;

/// The thread that takes records and makes blocks of them.
pub(super) struct Writer {
    pub(super) catches: Vec<CaptureReceiver>,
    pub(super) live: Live,
    /// The packet threads' origin of time, in nanoseconds since 1970.
    pub(super) origin: u64,
    pub(super) until: Instant,
    /// Packets that are still wanted.
    pub(super) left: u64,
    /// Packets written, before and after.
    pub(super) written: [u64; 2],
    pub(super) snap: usize,
    pub(super) words: String,
    pub(super) sender: mpsc::Sender<Bytes>,
    /// Names of services that were met.
    pub(super) names: HashMap<ServiceId, Arc<str>>,
    pub(super) shared: Arc<Shared>,
}

/// The client has closed the stream.
struct Gone;

impl Writer {
    pub(super) fn spawn(mut self, over: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let write = move || {
            let _ = self.write(); // a client who has gone needs no end
            self.publish();
            over();
        };
        std::thread::Builder::new().name("capture".into()).spawn(write).map(drop)
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
            write_blocks(chunk, &record, id, self.origin, &comment);
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
fn write_blocks(chunk: &mut Vec<u8>, record: &Record, id: u64, origin: u64, comment: &str) {
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
        Verdict::Taken => "verdict=taken".to_owned(),
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

/// Nanoseconds since 1970 at a moment of the monotonic clock.
pub(super) fn wall_clock_at(moment: Instant) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let then = since.saturating_sub(moment.elapsed());
    u64::try_from(then.as_nanos()).unwrap_or(u64::MAX)
}

const INTERFACES: [Interface; 2] = [
    Interface { name: "before", description: "packets as they came to a packet thread" },
    Interface { name: "after", description: "packets as they leave: sent on, or answered" },
];
/// How long a writer sleeps that finds nothing: so long may an end go unseen, too.
pub(super) const IDLE: Duration = Duration::from_millis(5);
/// Bytes of a chunk after which it is sent.
const CHUNK: usize = 64 << 10;
