//! Compares an engine that sends frames together with an engine that sends each frame alone. Both
//! engines get the same packets and the same verdicts. Both must send the same frames in the same
//! order, count the same packets and keep every frame.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::ops::Range;
use std::sync::Arc;

use engine::{Device, Engine, InKernel, MemoryDevice, MemoryFrame, Pool, Received, TxOwner, mesh};
use forwarder::{
    DropReason, Forward, HandoffReason, HoldSlot, InterfaceId, Now, Outlet, Packet, ThreadCounters, ThreadId,
    Verdict,
};
use proptest::prelude::*;

/// A device that sends each frame alone, because it keeps the default of `Device::send_all`.
#[derive(Debug)]
struct Alone(MemoryDevice);

impl Device for Alone {
    type Frame = MemoryFrame;

    fn receive(&mut self, batch: &mut Vec<Received<MemoryFrame>>, limit: usize) {
        self.0.receive(batch, limit);
    }

    fn bytes<'a>(&'a self, frame: &'a mut MemoryFrame) -> &'a mut [u8] {
        self.0.bytes(frame)
    }

    fn tx_owner(&self, interface: InterfaceId) -> TxOwner {
        self.0.tx_owner(interface)
    }

    fn send(
        &mut self,
        frame: MemoryFrame,
        bounds: Range<usize>,
        interface: InterfaceId,
    ) -> Result<(), MemoryFrame> {
        self.0.send(frame, bounds, interface)
    }

    fn flush(&mut self) {
        self.0.flush();
    }

    fn is_unsent(&mut self) -> bool {
        self.0.is_unsent()
    }

    fn reap(&mut self, free: &mut Vec<MemoryFrame>) {
        self.0.reap(free);
    }

    fn refill(&mut self, free: &mut Vec<MemoryFrame>) {
        self.0.refill(free);
    }

    fn home(&self, frame: &MemoryFrame) -> ThreadId {
        self.0.home(frame)
    }

    fn in_kernel(&self) -> InKernel {
        self.0.in_kernel()
    }
}

/// A verdict with the interface and the length of the frame to send.
type Fate = (Verdict, u8, usize);

/// A forwarder that returns the given verdicts.
struct Scripted {
    fates: std::vec::IntoIter<Fate>,
    counters: Arc<ThreadCounters>,
}

impl Forward for Scripted {
    fn process(&mut self, _: Now, packets: &mut [Packet<'_>], verdicts: &mut [Verdict]) {
        for (packet, verdict) in packets.iter_mut().zip(verdicts) {
            let (wanted, interface, len) = self.fates.next().unwrap_or((Verdict::Taken, 0, 0));
            *verdict = wanted;
            match wanted {
                Verdict::Tx | Verdict::Reply => {
                    packet.move_to_front();
                    packet.set_bounds(0, len);
                    packet.set_interface(InterfaceId(interface));
                }
                Verdict::Drop(reason) => self.counters.dropped(reason),
                _ => {}
            }
        }
    }

    fn poll(&mut self, _: Now, _: &mut dyn Outlet) {}

    fn failed(&mut self, reason: DropReason) {
        self.counters.dropped(reason);
    }

    fn max_batch(&self) -> usize {
        BATCH
    }

    fn hold_slots(&self) -> usize {
        HOLDS
    }
}

/// The packets that arrive before an iteration, and the number of frames that leave after it.
type Turn = (Vec<Fate>, usize);

fn fate() -> impl Strategy<Value = Fate> {
    let hand_over = Verdict::ToThread(ThreadId(1), HandoffReason::Steered { decapsulated_from: None });
    let verdict = prop_oneof![
        20 => Just(Verdict::Tx),
        1 => Just(Verdict::Reply),
        1 => (0..=HOLDS).prop_map(|slot| Verdict::Hold(HoldSlot(u32::try_from(slot).unwrap()))),
        1 => Just(hand_over),
        1 => Just(Verdict::Taken),
        1 => Just(Verdict::Drop(DropReason::NoVip)),
    ];
    // The device sends on the first two interfaces. Another thread sends on the third interface,
    // and the fourth does not exist.
    let interface = prop_oneof![20 => Just(0u8), 3 => Just(1), 1 => Just(2), 1 => Just(3)];
    (verdict, interface, 1..=FRAME_BYTES)
}

/// The sent frames with their interfaces, the values of all counters, and the dropped packets.
type Results = (Vec<(u8, Vec<u8>)>, Vec<u64>, Vec<u64>);

/// Runs an engine. `memory` returns the memory device inside the device.
fn run<D: Device<Frame = MemoryFrame>>(
    turns: &[Turn],
    device: D,
    memory: fn(&mut D) -> &mut MemoryDevice,
) -> Results {
    let counters = Arc::new(ThreadCounters::new(0, 0));
    let fates: Vec<Fate> = turns.iter().flat_map(|(fates, _)| fates.clone()).collect();
    let forward = Scripted { fates: fates.into_iter(), counters: Arc::clone(&counters) };
    let frames = (0..FRAMES).map(|_| MemoryFrame::new(ThreadId(0), FRAME_BYTES)).collect();
    let pool = Pool { frames, in_all: FRAMES };
    let mut ends = mesh(2, 4);
    let mut other = ends.pop().unwrap();
    let mut engine = Engine::new(device, forward, ends.remove(0), pool, Arc::clone(&counters));
    let (mut sent, mut crossed) = (Vec::new(), 0);
    for (number, (fates, leaving)) in turns.iter().enumerate() {
        for place in 0..fates.len() {
            let bytes = [u8::try_from(number).unwrap(), u8::try_from(place).unwrap(), 7, 7];
            memory(engine.device_mut()).inject(&bytes, place % 5);
        }
        engine.step(Now::default());
        let leaves = |by: InterfaceId, frame: &[u8]| sent.push((by.0, frame.to_vec()));
        memory(engine.device_mut()).transmitted_by(*leaving, leaves);
        other.take(2, |_, _| crossed += 1);
        assert_eq!(engine.census().total() + other.waiting() + crossed, FRAMES);
    }
    let drops = DropReason::ALL.iter().map(|reason| counters.drops(*reason)).collect();
    (sent, counters.values().to_vec(), drops)
}

proptest! {
    // Promise: frame-accounting
    #[test]
    fn frames_sent_together_equal_frames_sent_alone(
        turns in prop::collection::vec((prop::collection::vec(fate(), 0..BATCH), 0..2 * BATCH), 1..24),
    ) {
        let device = || MemoryDevice::with_tx_owners(RING, [
            TxOwner::Own,
            TxOwner::Own,
            TxOwner::Other(ThreadId(1)),
        ]);
        prop_assert_eq!(run(&turns, device(), |device| device), run(&turns, Alone(device()), |alone| &mut alone.0));
    }
}

const BATCH: usize = 16;
const RING: usize = 24;
const FRAMES: usize = 96;
const HOLDS: usize = 3;
const FRAME_BYTES: usize = 48;
