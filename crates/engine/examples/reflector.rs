//! Example: the loop of a packet thread with a custom forwarder, without a kernel. The forwarder
//! sends each Ethernet frame back to its sender and drops frames shorter than 12 bytes.

use std::error::Error;
use std::sync::Arc;

use engine::{Engine, MemoryDevice, MemoryFrame, Pool, mesh};
use forwarder::{DropReason, Forward, Now, Outlet, Packet, ThreadCounters, ThreadId, Verdict};

const FRAMES: usize = 64;

struct Reflector(Arc<ThreadCounters>);

impl Forward for Reflector {
    fn process(&mut self, _: Now, packets: &mut [Packet<'_>], verdicts: &mut [Verdict]) {
        for (packet, verdict) in packets.iter_mut().zip(verdicts) {
            *verdict = match packet.frame_mut().first_chunk_mut::<12>() {
                Some(stations) => {
                    stations.rotate_left(6);
                    Verdict::Reply
                }
                None => Verdict::Drop(DropReason::Malformed),
            };
        }
    }

    fn poll(&mut self, _: Now, _: &mut dyn Outlet) {}

    fn failed(&mut self, reason: DropReason) {
        self.0.dropped(reason);
    }

    fn max_batch(&self) -> usize {
        32
    }

    fn hold_slots(&self) -> usize {
        0
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let counters = Arc::new(ThreadCounters::default());
    let frames = (0..FRAMES).map(|_| MemoryFrame::new(ThreadId(0), 2_048)).collect();
    let mailboxes = mesh(1, FRAMES).pop().ok_or("one thread")?;
    let pool = Pool { frames, in_all: FRAMES };
    let mut engine =
        Engine::new(MemoryDevice::new(FRAMES), Reflector(Arc::clone(&counters)), mailboxes, pool, counters);
    let request = [&[2, 0, 0, 0, 0, 1][..], &[2, 0, 0, 0, 0, 2], &[8, 0], b"hello"].concat();
    for frame in [&request[..], b"short"] {
        assert!(engine.device_mut().inject(frame, 0), "the fill ring must contain a frame");
    }
    let packets = engine.step(Now::from_nanos(1));
    println!("{packets} packets");
    engine.device_mut().transmitted(FRAMES, |frame| println!("sent {frame:02x?}"));
    println!("{:?} of {FRAMES} frames", engine.census().total());
    Ok(())
}
