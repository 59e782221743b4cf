//! Tests of the AF_XDP device against a simulated kernel. The rings are ordinary memory, and system
//! calls on the socket arrive at the other end of a socket pair. The tests register packet memory,
//! which needs CAP_NET_RAW. Run them as root with
//! `cargo test -p sluicegate-datapath --lib xsk -- --ignored`.

#![allow(clippy::cast_possible_truncation, reason = "small numbers of a simulation")]

use std::collections::{BTreeSet, VecDeque};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use engine::{Engine, Pool, mesh};
use forwarder::{
    DropReason, Forward, InterfaceId, Now, Outlet, Packet, ThreadCounters, ThreadId, Totals, Verdict,
};

use super::*;
use crate::ring::tests::{Kernel, Shared};
use crate::sync::{AtomicU32, Ordering};
use crate::umem::{CHUNK, HEAD_ROOM, XDP_HEADROOM};

/// The rings of a queue as the kernel sees them, with the NIC.
struct Driver {
    area: Area,
    rx: Kernel<Descriptor>,
    tx: Kernel<Descriptor>,
    fill: Kernel<u64>,
    completion: Kernel<u64>,
    memory: (Shared<Descriptor>, Shared<Descriptor>, Shared<u64>, Shared<u64>),
    /// The start addresses of the chunks that the NIC can fill.
    empty: Vec<u64>,
    /// Addresses of frames that the NIC has sent, and that are not in the completion ring yet.
    sent: VecDeque<u64>,
    /// The bytes of a packet whose last frame has not been sent yet.
    partial: Vec<u8>,
    /// Receives one empty datagram for each system call that wakes the kernel.
    calls: UnixDatagram,
    socket: UnixDatagram,
}

impl Driver {
    fn new(area: &Area, interface: u8) -> (Self, Queue) {
        let first = u32::MAX - 1_000;
        let mut memory = (
            Shared::new(RING, first),
            Shared::new(RING, first),
            Shared::new(RING, first),
            Shared::new(RING, first),
        );
        let rings = Rings {
            rx: memory.0.memory(),
            tx: memory.1.memory(),
            fill: memory.2.memory(),
            completion: memory.3.memory(),
        };
        let (socket, calls) = UnixDatagram::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        calls.set_nonblocking(true).unwrap();
        let queue = Queue::new(InterfaceId(interface), rings, Handles { fd: socket.as_raw_fd(), kept: None });
        let driver = Self {
            area: area.clone(),
            rx: Kernel::new(memory.0.memory(), first),
            tx: Kernel::new(memory.1.memory(), first),
            fill: Kernel::new(memory.2.memory(), first),
            completion: Kernel::new(memory.3.memory(), first),
            memory,
            empty: Vec::new(),
            sent: VecDeque::new(),
            partial: Vec::new(),
            calls,
            socket,
        };
        (driver, queue)
    }

    /// Sets the flag that makes the process wake the kernel after it has queued frames.
    fn wants_wakeups(&self, wanted: bool) {
        let flags: &AtomicU32 = &self.memory.1.words[2];
        flags.store(u32::from(wanted), Ordering::Relaxed);
    }

    /// Returns the number of system calls since the last call.
    fn calls(&self) -> usize {
        std::iter::from_fn(|| self.calls.recv(&mut []).ok()).count()
    }

    /// Takes chunks from the fill ring.
    fn take_empty(&mut self, most: usize) {
        for _ in 0..most {
            let Some(address) = self.fill.take() else { return };
            let chunk = address / u64::from(CHUNK) * u64::from(CHUNK);
            self.empty.push(chunk);
        }
    }

    /// Receives a packet, with the headroom that the kernel leaves free in each chunk. Returns
    /// `false` if no chunk or no room in the receive ring is left.
    fn receives(&mut self, number: u32) -> bool {
        self.receives_bytes(&packet(number))
    }

    fn receives_bytes(&mut self, packet: &[u8]) -> bool {
        let room = CHUNK as usize - XDP_HEADROOM as usize;
        let mut parts: VecDeque<&[u8]> = packet.chunks(room).collect();
        if self.empty.len().min(self.rx.room() as usize) < parts.len() {
            return false;
        }
        let start = u64::from(XDP_HEADROOM);
        while let Some(part) = parts.pop_front() {
            let chunk = self.empty.pop().unwrap();
            let mut descriptor = Descriptor::at(chunk + start);
            descriptor.set_len(part.len() as u32);
            descriptor.set_followed(!parts.is_empty());
            self.area.chunk(&mut Frame(Descriptor::at(chunk + start)))[..part.len()].copy_from_slice(part);
            assert!(self.rx.put(descriptor));
        }
        true
    }

    /// Sends up to `most` frames from the transmit ring, and passes the number of each packet to
    /// `each`.
    fn sends(&mut self, most: usize, mut each: impl FnMut(u32)) {
        for _ in 0..most {
            let Some(descriptor) = self.tx.take() else { return };
            self.sent.push_back(descriptor.offset());
            let bytes = &mut self.partial;
            let mut frame = Frame(Descriptor::at(descriptor.offset()));
            bytes.extend_from_slice(&self.area.chunk(&mut frame)[..descriptor.len()]);
            if descriptor.is_followed() {
                continue;
            }
            let number = u32::from_le_bytes(*bytes.first_chunk().unwrap());
            let header = bytes.len() - packet(number).len();
            assert!(header == HEAD || header == 0, "packet {number} was cut");
            assert!(bytes[header + 4..] == packet(number)[4..], "packet {number} changed");
            bytes.clear();
            each(number);
        }
    }

    fn completes(&mut self, most: usize) {
        for _ in 0..most {
            let Some(address) = self.sent.pop_front() else { return };
            assert!(self.completion.put(address), "the completion ring has a slot for each frame");
        }
    }

    /// Returns the chunks that the NIC has taken from the rings.
    fn holds(&self) -> impl Iterator<Item = u64> {
        self.empty.iter().chain(&self.sent).map(|address| address / u64::from(CHUNK))
    }
}

/// Returns a packet whose length depends on its number.
fn packet(number: u32) -> Vec<u8> {
    let length = if number % 16 == 9 { LONG } else { 60 + number as usize % 700 };
    let mut bytes: Vec<u8> = (0..length).map(|at| (at as u32).wrapping_mul(number) as u8).collect();
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// A forwarder whose verdicts depend on the number of the packet.
struct Scripted {
    counters: Arc<ThreadCounters>,
    /// `true` if all packets are sent on the first interface.
    sends_all: bool,
}

impl Scripted {
    fn verdict(&self, packet: &mut Packet<'_>) -> Verdict {
        let number = u32::from_le_bytes(*packet.frame().first_chunk().unwrap());
        let kind = if self.sends_all { 0 } else { number / 64 % 4 * (number % 11) };
        match kind {
            7 => {
                self.counters.dropped(DropReason::NoVip);
                return Verdict::Drop(DropReason::NoVip);
            }
            8 => return Verdict::Taken,
            9 => packet.move_to_front(),
            _ => {
                packet.set_bounds(0, packet.end());
                packet.frame_mut()[..4].copy_from_slice(&number.to_le_bytes());
            }
        }
        packet.set_interface(InterfaceId(match kind {
            12 | 14 => 1,
            15 => 2,
            16 => 9,
            _ => 0,
        }));
        if kind == 10 { Verdict::Reply } else { Verdict::Tx }
    }
}

impl Forward for Scripted {
    fn process(&mut self, _: Now, packets: &mut [Packet<'_>], verdicts: &mut [Verdict]) {
        for (packet, verdict) in packets.iter_mut().zip(verdicts) {
            *verdict = self.verdict(packet);
        }
    }

    fn poll(&mut self, _: Now, _: &mut dyn Outlet) {}

    fn failed(&mut self, reason: DropReason) {
        self.counters.dropped(reason);
    }

    fn max_batch(&self) -> usize {
        64
    }

    fn hold_slots(&self) -> usize {
        0
    }
}

/// A packet thread with two queues on different interfaces. A third interface belongs to a thread
/// that does not exist.
struct Bed {
    engine: Engine<XskDevice, Scripted>,
    counters: Arc<ThreadCounters>,
    drivers: [Driver; 2],
}

impl Bed {
    fn new(multi_buffer: bool, sends_all: bool) -> Self {
        let me = ThreadId(0);
        let (area, mut pools) = Area::new(vec![me; 2], FRAMES, CHUNK, multi_buffer).unwrap();
        let [(first, one), (second, two)] = [0, 1].map(|interface| Driver::new(&area, interface));
        let counters = Arc::new(ThreadCounters::new(0, 0));
        let forward = Scripted { counters: Arc::clone(&counters), sends_all };
        let device = XskDevice::new(area, vec![one, two], me, &[me, me, ThreadId(1)], FRAMES as usize);
        let pool = Pool { frames: pools.remove(0), in_all: 2 * FRAMES as usize };
        let mailboxes = mesh(1, 1).remove(0);
        let engine = Engine::new(device, forward, mailboxes, pool, Arc::clone(&counters));
        Self { engine, counters, drivers: [first, second] }
    }

    /// Checks that every frame and every packet is counted, and that no chunk has two owners. The
    /// further chunks of long packets are not counted.
    fn is_balanced(&self, multi_buffer: bool) {
        let (counted, all) = (self.engine.census().total(), 2 * FRAMES as usize);
        assert!(counted == all || multi_buffer && counted < all, "{counted} of {all} frames");
        let balance = Totals::from(&*self.counters);
        assert_eq!(balance.came, balance.left + balance.held);
        let held: Vec<u64> = self.drivers.iter().flat_map(Driver::holds).collect();
        assert_eq!(held.iter().collect::<BTreeSet<_>>().len(), held.len(), "a chunk has two owners");
    }
}

/// Runs one iteration. The function is separate, so that callgrind can count its instructions.
#[inline(never)]
fn iteration(engine: &mut Engine<XskDevice, Scripted>) -> usize {
    engine.step(Now::default())
}

/// The random number generator xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}

// Promise: frame-accounting
#[test]
#[ignore = "needs CAP_NET_RAW; the lane net runs it"]
fn xsk_frames_are_never_lost_and_leave_in_order() {
    for multi_buffer in [false, true] {
        let (mut bed, mut random) = (Bed::new(multi_buffer, false), Random(5));
        let (mut number, mut left) = (0, [0; 2]);
        for turn in 0..1_800 {
            // For some time, the NIC sends slowly and the transmit ring fills up.
            let sends = if turn / 150 % 3 == 2 { 8 } else { 200 };
            for driver in &mut bed.drivers {
                driver.wants_wakeups(turn % 7 > 2);
                driver.take_empty(random.below(150));
                for _ in 0..random.below(100) {
                    number += u32::from(number % 16 == 9 && !multi_buffer);
                    number += u32::from(driver.receives(number));
                }
            }
            iteration(&mut bed.engine);
            for (driver, last) in bed.drivers.iter_mut().zip(&mut left) {
                driver.calls();
                driver.sends(random.below(sends), |number| *last = number);
                driver.completes(random.below(sends));
            }
            bed.is_balanced(multi_buffer);
        }
        let drops = |reason| bed.counters.drops(reason);
        assert!(number > 60_000 && left.iter().all(|last| *last > number / 2), "{number} {left:?}");
        for reason in [DropReason::TxFull, DropReason::NoNextHop, DropReason::MailboxFull] {
            assert!(drops(reason) > 0, "no packet was dropped for {}", reason.name());
        }
    }
}

#[test]
#[ignore = "needs CAP_NET_RAW; the lane net runs it"]
fn xsk_receives_the_packet_behind_a_batch_of_dropped_ones() {
    let mut bed = Bed::new(true, true);
    let [first, _] = &mut bed.drivers;
    first.take_empty(200);
    // The packets are too long, and their frames fill more than two batches.
    (0..16).for_each(|_| assert!(first.receives_bytes(&[0; 16_000])));
    assert!(first.receives(16));
    assert_eq!(iteration(&mut bed.engine), 1);
    assert_eq!(iteration(&mut bed.engine), 0);
    assert_eq!(bed.engine.device().queues[0].gathering.too_long, 16);
    bed.is_balanced(true);
}

/// Lets `count` packets arrive at the first queue and runs an iteration. Returns the number of
/// system calls that woke the kernel for each queue.
fn calls(bed: &mut Bed, count: u32) -> [usize; 2] {
    let [first, _] = &mut bed.drivers;
    first.take_empty(count as usize);
    (0..count).for_each(|number| assert!(first.receives(number * 16)));
    iteration(&mut bed.engine);
    bed.drivers.each_ref().map(Driver::calls)
}

/// Creates a bed whose first queue has the given kind of wakeup. The kernel wants wakeups for both
/// queues.
fn sleeping_driver(wakeup: Wakeup) -> Bed {
    let mut bed = Bed::new(false, true);
    bed.engine.device_mut().queues[0].wakeup = wakeup;
    bed.drivers.iter().for_each(|driver| driver.wants_wakeups(true));
    bed
}

#[test]
#[ignore = "needs CAP_NET_RAW; the lane net runs it"]
fn xsk_wakes_a_zero_copy_driver_once_for_each_batch() {
    let mut bed = sleeping_driver(Wakeup::Once(false));
    assert_eq!(calls(&mut bed, 0), [0, 0], "nothing to send");
    assert_eq!(calls(&mut bed, 5), [1, 0]);
    assert!(bed.engine.device_mut().is_sending());
    assert_eq!(calls(&mut bed, 0), [0, 0], "the driver was already called");
    bed.engine.device_mut().wake_again();
    assert_eq!(calls(&mut bed, 0), [1, 0], "the driver may have missed the first call");
    bed.drivers[0].sends(9, |_| {});
    assert!(!bed.engine.device_mut().is_sending(), "the driver has taken all frames");
    bed.engine.device_mut().wake_again();
    assert_eq!(calls(&mut bed, 0), [0, 0], "no frame is left in the ring");
    assert_eq!(calls(&mut bed, 2), [1, 0]);
    assert_eq!(calls(&mut bed, 2), [1, 0], "frames have been added");
    bed.drivers[0].wants_wakeups(false);
    assert_eq!(calls(&mut bed, 3), [0, 0], "the driver is running");
    bed.drivers[0].wants_wakeups(true);
    assert_eq!(calls(&mut bed, 0), [1, 0], "the driver stopped before it took the frames");
}

#[test]
#[ignore = "needs CAP_NET_RAW; the lane net runs it"]
fn xsk_wakes_again_if_the_kernel_has_no_resources() {
    let mut bed = sleeping_driver(Wakeup::Once(false));
    while bed.drivers[0].socket.send(&[]).is_ok() {}
    calls(&mut bed, 5);
    assert_eq!(calls(&mut bed, 0), [1, 0], "the kernel refused the first call");
    assert_eq!(calls(&mut bed, 0), [0, 0]);
}

#[test]
#[ignore = "needs CAP_NET_RAW; the lane net runs it"]
fn xsk_in_copy_mode_wakes_until_the_ring_is_empty() {
    let mut bed = sleeping_driver(Wakeup::Repeated);
    assert_eq!(calls(&mut bed, 5), [1, 0]);
    assert_eq!(calls(&mut bed, 0), [1, 0]);
    bed.drivers[0].sends(9, |_| {});
    assert_eq!(calls(&mut bed, 0), [0, 0]);
}

const FRAMES: u32 = 4_096;
/// The headroom in front of a received packet, in bytes.
const HEAD: usize = HEAD_ROOM;
/// The length of a packet in two buffers.
const LONG: usize = 2_500;
