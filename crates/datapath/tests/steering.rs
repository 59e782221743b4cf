//! Tests of software steering between threads. I/O engines receive packets from in-memory devices
//! and distribute them to packet engines.
//!
//! Every frame must be in exactly one place at every step, and every packet must be sent, or
//! dropped with a reason. The packets of a flow must be sent in order, except packets that arrived
//! when the ring of their thread was full.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a failed test may panic")]

use std::collections::BTreeMap;
use std::sync::Arc;

use datapath::lane_hashers;
use engine::{Engine, MemoryDevice, MemoryFrame, Pool, TxOwner, mesh};
use forwarder::{
    DropReason, Forward, Generation, HashKey, InterfaceId, Live, NextHopMode, Now, Origin, Outlet, Packet,
    Parts, Snapshot, SoftwareSteering, SteeringConfig, ThreadCounters, ThreadId, Totals, Verdict,
};
use packet::{Mac, protocol};
use proptest::prelude::*;

const PACKET_THREADS: u16 = 3;
/// The number of queues that each interface has. I/O thread `n` has queue `n` of each interface.
const QUEUES: [u16; 2] = [2, 1];
const IO_THREADS: u16 = 2;
const FRAMES: usize = 256;
const RING: usize = 128;
const HEAD_ROOM: usize = 8;

/// The random number generator xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

/// Returns a UDP packet of a flow. The payload contains the number of the packet within the flow,
/// and space for a thread number.
fn frame(flow: u16, number: u32) -> Vec<u8> {
    let link = [Mac([2, 0, 0, 0, 0, 1]).0, Mac([2, 0, 0, 0, 0, 2]).0].concat();
    let ip = [0x45, 0, 0, 36, 0, 0, 0, 0, 64, protocol::UDP, 0, 0, 198, 51, 100, 7, 203, 0, 113, 10];
    let udp = [&flow.to_be_bytes()[..], &443u16.to_be_bytes(), &[0, 16, 0, 0]].concat();
    let more = [&number.to_be_bytes()[..], &[0xff; 20]].concat();
    [&link[..], &[8, 0], &ip, &udp, &more].concat()
}

const NUMBER: usize = 14 + 20 + 8;
const HANDLED_BY: usize = NUMBER + 4;

/// Returns the flow, the packet number and the thread number of a frame.
fn read(frame: &[u8]) -> (u16, u32, u8) {
    let flow = u16::from_be_bytes([frame[34], frame[35]]);
    let number = u32::from_be_bytes(frame[NUMBER..NUMBER + 4].try_into().unwrap());
    (flow, number, frame[HANDLED_BY])
}

/// The forwarder of a packet thread. The forwarder writes its thread number into sent packets and
/// drops some packets.
struct Signing {
    me: ThreadId,
    random: Random,
    counters: Arc<ThreadCounters>,
    drops: bool,
}

impl Forward for Signing {
    fn process(&mut self, _: Now, packets: &mut [Packet<'_>], verdicts: &mut [Verdict]) {
        for (packet, verdict) in packets.iter_mut().zip(verdicts) {
            assert_eq!(
                (packet.origin(), packet.start()),
                (Origin::Wire, HEAD_ROOM),
                "the packet changed before it arrived"
            );
            packet.frame_mut()[HANDLED_BY] = self.me.0 as u8;
            packet.move_to_front();
            // All packets of a flow are sent on the same interface.
            packet.set_interface(InterfaceId((read(packet.frame()).0 / 2 % 2) as u8));
            *verdict = match self.random.below(7) {
                0 if self.drops => Verdict::Drop(DropReason::NoVip),
                1 => Verdict::Reply,
                _ => Verdict::Tx,
            };
            if let Verdict::Drop(reason) = *verdict {
                self.counters.dropped(reason);
            }
        }
    }

    fn poll(&mut self, _: Now, _: &mut dyn Outlet) {}

    fn failed(&mut self, reason: DropReason) {
        self.counters.dropped(reason);
    }

    fn max_batch(&self) -> usize {
        16
    }

    fn hold_slots(&self) -> usize {
        0
    }
}

fn live() -> Live {
    Live::new(
        Snapshot::new(Parts {
            generation: Generation(1),
            hash_key: HashKey::new([5; 16]),
            services: vec![],
            bindings: vec![],
            groups: vec![],
            states: vec![],
            slots: vec![],
            next_hop: NextHopMode::Resolve,
            own: vec![],
            tunnels: vec![],
            peers: None,
        })
        .unwrap(),
    )
}

/// The threads of a machine, and the packets that they send.
struct Machine {
    packet: Vec<Engine<MemoryDevice, Signing>>,
    io: Vec<Engine<MemoryDevice, SoftwareSteering>>,
    counters: Vec<Arc<ThreadCounters>>,
    now: u64,
    /// For each flow, the numbers of the sent packets in order, each with the thread that sent it.
    sent: BTreeMap<u16, Vec<(u32, u8)>>,
    received: u64,
}

impl Machine {
    /// Creates a machine. Each mailbox has room for `mailbox` frames.
    fn new(mailbox: usize, drops: bool) -> Self {
        let counters: Vec<_> =
            (0..PACKET_THREADS + IO_THREADS).map(|_| Arc::new(ThreadCounters::new(0, 0))).collect();
        let in_all = FRAMES * counters.len();
        let (mut packet, mut io) = (Vec::new(), Vec::new());
        for mailboxes in mesh::<MemoryFrame>(PACKET_THREADS + IO_THREADS, mailbox) {
            let me = mailboxes.me();
            let counters = Arc::clone(&counters[usize::from(me.0)]);
            let number = if me.0 < PACKET_THREADS { me.0 } else { me.0 - PACKET_THREADS };
            let owner = |queues: u16| match PACKET_THREADS + number % queues {
                by if by == me.0 => TxOwner::Own,
                by => TxOwner::Other(ThreadId(by)),
            };
            let device = MemoryDevice::with_tx_owners(RING, QUEUES.map(owner));
            let pool = |frames: usize| Pool {
                frames: (0..frames).map(|_| MemoryFrame::new(me, 128)).collect(),
                in_all,
            };
            if me.0 < PACKET_THREADS {
                let random = Random(u64::from(me.0) + 1);
                let signing = Signing { me, random, counters: Arc::clone(&counters), drops };
                let engine = Engine::new(device, signing, mailboxes, pool(0), counters);
                packet.push(engine.with_mail_alone());
            } else {
                let config = SteeringConfig {
                    threads: PACKET_THREADS,
                    max_batch: 32,
                    hashers: lane_hashers(),
                    source_ports: None,
                };
                let steering = SoftwareSteering::new(config, &live(), Arc::clone(&counters));
                let engine = Engine::new(device, steering, mailboxes, pool(FRAMES), counters);
                io.push(engine.steering_to(PACKET_THREADS));
            }
        }
        Self { packet, io, counters, now: 0, sent: BTreeMap::new(), received: 0 }
    }

    fn receive(&mut self, queue: usize, interface: InterfaceId, frame: &[u8]) -> bool {
        let taken = self.io[queue].device_mut().inject_by(interface, frame, HEAD_ROOM);
        self.received += u64::from(taken);
        taken
    }

    fn step(&mut self, thread: usize) {
        self.now += 1;
        let now = Now::from_nanos(self.now);
        match self.packet.get_mut(thread) {
            Some(engine) => _ = engine.step(now),
            None => _ = self.io[thread - usize::from(PACKET_THREADS)].step(now),
        }
        let sent = &mut self.sent;
        for engine in &mut self.io {
            engine.device_mut().transmitted(usize::MAX, |frame| {
                let (flow, number, by) = read(frame);
                sent.entry(flow).or_default().push((number, by));
            });
        }
        let packet: usize = self.packet.iter().map(|engine| engine.census().total()).sum();
        let io: usize = self.io.iter().map(|engine| engine.census().total()).sum();
        assert_eq!(packet + io, FRAMES * usize::from(IO_THREADS), "after {} iterations", self.now);
        let balance = Totals::from(&*self.counters[thread]);
        assert_eq!(balance.came, balance.left + balance.held);
    }

    /// Runs iterations until no frame is on its way between threads.
    fn drain(&mut self) {
        for _ in 0..200 {
            (0..self.counters.len()).for_each(|thread| self.step(thread));
        }
        let on_the_way: usize = self.io.iter().map(|engine| engine.census().mailboxes).sum::<usize>()
            + self.packet.iter().map(|engine| engine.census().mailboxes).sum::<usize>();
        assert_eq!(on_the_way, 0);
    }

    fn counted(&self, of: fn(&ThreadCounters) -> &forwarder::Counter) -> u64 {
        self.counters.iter().map(|counters| of(counters).read()).sum()
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.counters.iter().map(|counters| counters.drops(reason)).sum()
    }

    /// Returns the packet thread that steering selects for each flow.
    fn named(flows: u16) -> Vec<u16> {
        let config = SteeringConfig {
            threads: PACKET_THREADS,
            max_batch: 1,
            hashers: lane_hashers(),
            source_ports: None,
        };
        let mut steering = SoftwareSteering::new(config, &live(), Arc::new(ThreadCounters::new(0, 0)));
        let mut named = |flow| {
            let (mut bytes, mut verdicts) = (frame(flow, 0), [Verdict::Tx]);
            let end = bytes.len();
            let mut packets = [Packet::new(&mut bytes, 0, end, Origin::Wire)];
            steering.process(Now::from_nanos(0), &mut packets, &mut verdicts);
            let Verdict::ToThread(thread, _) = verdicts[0] else { panic!("{verdicts:?}") };
            thread.0
        };
        (0..flows).map(&mut named).collect()
    }
}

const FLOWS: u16 = 24;

/// Sends packets of several flows while the threads run in random order. Each flow arrives on one
/// queue, as with a NIC. `pause` stops the packet threads for some iterations.
fn run(machine: &mut Machine, random: &mut Random, iterations: u32, pause: u64) {
    let mut numbers = [0u32; FLOWS as usize];
    for turn in 0..iterations {
        for _ in 0..random.below(24) {
            let flow = random.below(u64::from(FLOWS)) as u16;
            let (queue, interface) = (usize::from(flow % 2), InterfaceId(if flow % 6 == 4 { 1 } else { 0 }));
            let number = &mut numbers[usize::from(flow)];
            if machine.receive(queue, interface, &frame(flow, *number)) {
                *number += 1;
            }
        }
        let stands = u64::from(turn) % (2 * pause) < pause;
        let threads =
            if stands { PACKET_THREADS..PACKET_THREADS + IO_THREADS } else { 0..PACKET_THREADS + IO_THREADS };
        let which = threads.start + random.below(u64::from(threads.end - threads.start)) as u16;
        machine.step(usize::from(which));
    }
    machine.drain();
}

/// Checks that the packets of each flow were sent in order. Returns the number of packets that were
/// sent by a thread other than the selected thread.
fn in_order(machine: &Machine) -> u64 {
    let named = Machine::named(FLOWS);
    let mut elsewhere = 0;
    for (flow, sent) in &machine.sent {
        let own = named[usize::from(*flow)];
        let in_place: Vec<u32> =
            sent.iter().filter(|(_, by)| u16::from(*by) == own).map(|(number, _)| *number).collect();
        assert!(in_place.is_sorted_by(|one, next| one < next), "flow {flow}: {in_place:?}");
        elsewhere += (sent.len() - in_place.len()) as u64;
    }
    elsewhere
}

// Promise: steering-order
#[test]
fn steering_with_free_rings_keeps_all_packets_in_order() {
    let mut machine = Machine::new(FRAMES * 2, false);
    run(&mut machine, &mut Random(3), 40_000, 1);
    assert_eq!((in_order(&machine), machine.counted(|c| &c.overflowed)), (0, 0));
    let sent: u64 = machine.sent.values().map(|numbers| numbers.len() as u64).sum();
    assert_eq!((sent, machine.counted(|c| &c.steered)), (machine.received, machine.received));
    assert!(machine.received > 100_000, "{}", machine.received);
    assert_eq!(machine.counted(|c| &c.tx) + machine.counted(|c| &c.replies), machine.received);
    let by: Vec<u64> = machine.counters.iter().map(|counters| counters.from_threads.read()).collect();
    println!("taken over by thread: {by:?}");
    assert!(by.iter().all(|count| *count > 1_000), "a thread has too few packets: {by:?}");
}

// Promise: steering-order
#[test]
fn steering_full_ring_spreads_packets_over_other_threads() {
    let mut machine = Machine::new(16, true);
    run(&mut machine, &mut Random(5), 60_000, 40);
    let elsewhere = in_order(&machine);
    let (steered, overflowed) = (machine.counted(|c| &c.steered), machine.counted(|c| &c.overflowed));
    println!("{steered} steered, {overflowed} overflowed, {elsewhere} of these sent");
    assert!(overflowed > 1_000 && elsewhere > 1_000 && elsewhere <= overflowed);
    // A packet is dropped with the corresponding reason if all rings are full. All other packets
    // are sent or are dropped by the forwarder.
    let sent: u64 = machine.sent.values().map(|numbers| numbers.len() as u64).sum();
    let full = machine.dropped(DropReason::MailboxFull);
    assert!(full > 100, "{full}");
    assert_eq!(
        machine.received,
        sent + full + machine.dropped(DropReason::NoVip) + machine.dropped(DropReason::TxFull)
    );
    let by: Vec<u64> = machine.counters.iter().take(3).map(|counters| counters.from_threads.read()).collect();
    assert!(by.iter().all(|count| *count > steered / 10), "{by:?}");
}

#[test]
fn steering_one_flow_at_full_rate_uses_all_threads() {
    let mut machine = Machine::new(16, false);
    for number in 0..20_000 {
        machine.receive(0, InterfaceId(0), &frame(7, number));
        // The packet threads run less often than frames arrive, so their rings fill up.
        machine.step(if number % 8 == 0 { number as usize / 8 % 3 } else { 3 });
    }
    machine.drain();
    let by: Vec<u64> = machine.counters.iter().take(3).map(|counters| counters.from_threads.read()).collect();
    println!("taken over by thread: {by:?}");
    assert!(by.iter().all(|count| *count > 1_000), "{by:?}");
    in_order(&machine);
}

#[test]
fn steering_drops_a_fragment_if_its_gatherer_is_full() {
    let mut machine = Machine::new(4, false);
    let mut piece = frame(7, 0);
    piece[20] = 0x20; // more fragments
    for _ in 0..40 {
        machine.receive(0, InterfaceId(0), &piece);
    }
    machine.step(3);
    machine.step(3);
    machine.step(3);
    let taken: Vec<usize> = machine.packet.iter().map(|engine| engine.census().mailboxes).collect();
    assert_eq!(taken.iter().sum::<usize>(), 4, "{taken:?}");
    assert_eq!(taken.iter().filter(|count| **count > 0).count(), 1, "{taken:?}");
    assert_eq!((machine.dropped(DropReason::MailboxFull), machine.counted(|c| &c.overflowed)), (36, 0));
    machine.drain();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Checks rings of different sizes, with packet threads that pause for different times.
    #[test]
    fn steering_with_any_rings_keeps_frames_and_order(
        seed in 1u64..u64::MAX, mailbox in 1usize..80, pause in 1u64..60, drops in any::<bool>(),
    ) {
        let mut machine = Machine::new(mailbox, drops);
        run(&mut machine, &mut Random(seed), 2_000, pause);
        in_order(&machine);
        let lost = [DropReason::MailboxFull, DropReason::NoVip, DropReason::TxFull].map(|r| machine.dropped(r));
        let sent: u64 = machine.sent.values().map(|numbers| numbers.len() as u64).sum();
        prop_assert_eq!(machine.received, sent + lost.iter().sum::<u64>());
        prop_assert_eq!(machine.received, machine.counted(|c| &c.rx));
    }
}
