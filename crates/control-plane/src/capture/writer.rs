//! The writer thread of a capture. The writer merges the records of all packet threads, sorted by
//! time, and writes them as pcapng blocks.
//!
//! The writer looks up the names of services and slots in the current snapshot. The last block of
//! the stream contains the number of lost packets.

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

/// The state of the writer thread.
pub(super) struct Writer {
    pub(super) catches: Vec<CaptureReceiver>,
    pub(super) live: Live,
    /// The wall clock time at which the clock of the packet threads is zero, in nanoseconds since
    /// 1970.
    pub(super) origin: u64,
    pub(super) until: Instant,
    /// The number of packets that may still be written.
    pub(super) left: u64,
    /// The number of packets written for each of the two pcapng interfaces, which are for packets
    /// before and after processing.
    pub(super) written: [u64; 2],
    pub(super) snap: usize,
    pub(super) words: String,
    pub(super) sender: mpsc::Sender<Bytes>,
    /// A cache of service names.
    pub(super) names: HashMap<ServiceId, Arc<str>>,
    pub(super) shared: Arc<Shared>,
}

/// The error that the writer gets when the client has closed the stream.
struct Gone;

impl Writer {
    pub(super) fn spawn(mut self, over: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let write = move || {
            let _ = self.write(); // an error means that the client has disconnected
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
        // After this time, no packet thread still processes a batch that it started before the taps
        // were closed.
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

    /// Moves records to `chunk`, oldest first, until no record is left or the chunk is full.
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

/// Writes one block for a received packet, and a second block if the packet was sent.
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

/// Returns the packet's verdict and service as a comment for the pcapng block. Wireshark can filter
/// by this comment, for example with `frame.comment contains "reason=ttl"`.
fn comment(record: &Record, snapshot: &Snapshot, names: &mut HashMap<ServiceId, Arc<str>>) -> String {
    let mut said = match record.verdict {
        Verdict::Tx => "verdict=tx".to_owned(),
        Verdict::Reply => "verdict=reply".to_owned(),
        Verdict::Hold(_) => "verdict=hold".to_owned(),
        Verdict::ToThread(to, _) => format!("verdict=to_thread to={}", to.0),
        Verdict::Taken => "verdict=taken".to_owned(),
        Verdict::Drop(reason) => format!("verdict=drop reason={}", reason.name()),
    };
    // Errors are ignored, because writing to a `String` cannot fail.
    if let Some(id) = record.service {
        // A service ID is not reused while a flow can refer to it, so cached names stay valid.
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

/// Converts an instant to nanoseconds since 1970.
pub(super) fn wall_clock_at(moment: Instant) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let then = since.saturating_sub(moment.elapsed());
    u64::try_from(then.as_nanos()).unwrap_or(u64::MAX)
}

const INTERFACES: [Interface; 2] = [
    Interface { name: "before", description: "packets as received by a packet thread" },
    Interface { name: "after", description: "packets as sent: forwarded or replied" },
];
/// The sleep time of the writer between checks for new records, and the maximum delay until the
/// writer detects the end of a capture.
pub(super) const IDLE: Duration = Duration::from_millis(5);
/// The size in bytes at which a chunk is sent to the client.
const CHUNK: usize = 64 << 10;
