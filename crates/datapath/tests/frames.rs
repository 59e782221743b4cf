//! Checks that no frame is lost. The test uses a forwarder with random verdicts, and three engines
//! that are connected by mailboxes. Two of the three interfaces have fewer queues than there are
//! threads.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a failed test may panic")]

use std::collections::VecDeque;
use std::sync::Arc;

use engine::{Engine, MemoryDevice, MemoryFrame, Pool, TxOwner, mesh};
use forwarder::{
    DropReason, Forward, FragmentStep, HandoffReason, HoldSlot, InterfaceId, NotSent, Now, Origin, Outlet,
    Packet, ThreadCounters, ThreadId, Totals, Verdict,
};

const THREADS: u16 = 3;
const FRAMES: usize = 96;
const RING: usize = 48;
const HOLDS: u32 = 6;
/// For each thread, the thread that sends its packets on each interface. Interface 0 has three
/// queues, interface 1 has two, and interface 2 has one.
const SENDERS: [[u16; 3]; 3] = [[0, 0, 0], [1, 1, 0], [2, 0, 0]];

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

/// A forwarder with random verdicts. Some verdicts are invalid: they name a thread that does not
/// exist, or a slot that is in use.
struct Anything {
    me: ThreadId,
    random: Random,
    counters: Arc<ThreadCounters>,
    held: VecDeque<HoldSlot>,
}

impl Anything {
    fn verdict(&mut self, origin: Origin) -> Verdict {
        match self.random.below(9) {
            0 | 1 => Verdict::Tx,
            8 => Verdict::Taken,
            2 => Verdict::Reply,
            3 => {
                let slot = HoldSlot(u32::try_from(self.random.below(u64::from(HOLDS) + 1)).unwrap());
                self.held.push_back(slot);
                Verdict::Hold(slot)
            }
            4 | 5 if origin == Origin::Wire => {
                let asked = u16::try_from(self.random.below(4)).unwrap();
                Verdict::ToThread(
                    ThreadId(asked),
                    HandoffReason::IcmpError { asked, decapsulated_from: None },
                )
            }
            _ => {
                self.counters.dropped(DropReason::NoVip);
                Verdict::Drop(DropReason::NoVip)
            }
        }
    }
}

impl Anything {
    /// Splits a packet into up to 39 fragments. Sometimes there are fewer free frames than
    /// fragments.
    fn split(&mut self, slot: HoldSlot, outlet: &mut dyn Outlet) {
        let mut left = self.random.below(40);
        outlet.split(slot, &mut |packet, piece| {
            assert_eq!(packet.frame(), frame(packet.interface()), "a held packet changed");
            if left == 0 {
                return FragmentStep::End;
            }
            left -= 1;
            piece[..20].copy_from_slice(packet.frame());
            FragmentStep::Of(20)
        });
    }
}

/// Returns a packet in which every byte is the index of its interface.
fn frame(interface: InterfaceId) -> [u8; 20] {
    [interface.0; 20]
}

impl Anything {
    /// Selects a random interface for sending, which sometimes does not exist.
    fn leave(&mut self, packet: &mut Packet<'_>) {
        packet.move_to_front();
        let interface = InterfaceId(if self.random.below(50) == 0 { 3 } else { self.random.below(3) as u8 });
        packet.set_interface(interface);
        packet.frame_mut().copy_from_slice(&frame(interface));
    }
}

impl Forward for Anything {
    fn process(&mut self, _: Now, packets: &mut [Packet<'_>], verdicts: &mut [Verdict]) {
        for (packet, verdict) in packets.iter_mut().zip(verdicts) {
            assert_eq!(packet.frame(), frame(packet.interface()), "the packet changed on its way");
            if let Origin::Thread(_, reason) = packet.origin() {
                assert_eq!(
                    reason,
                    HandoffReason::IcmpError { asked: self.me.0, decapsulated_from: None },
                    "wrong hand-off reason"
                );
            }
            *verdict = self.verdict(packet.origin());
            if matches!(*verdict, Verdict::Tx | Verdict::Reply) {
                self.leave(packet);
            }
        }
    }

    fn poll(&mut self, _: Now, outlet: &mut dyn Outlet) {
        if self.random.below(4) == 0 {
            let free = outlet.free_frames();
            let is_wanted = self.random.below(8) > 0;
            let sent = outlet.originate(&mut |packet| {
                packet.buffer_mut()[..20].copy_from_slice(&frame(InterfaceId(0)));
                packet.set_bounds(0, 20);
                is_wanted
            });
            match sent {
                Ok(()) => assert!(is_wanted && free > 0),
                Err(NotSent::NoFrame) => assert_eq!(free, 0),
                Err(NotSent::NotBuilt) => assert!(!is_wanted),
                Err(NotSent::NoRoom) => assert!(is_wanted),
            }
        }
        if self.random.below(3) == 0
            && let Some(slot) = self.held.pop_front()
        {
            if self.random.below(2) == 0 {
                outlet.release(slot, &mut |packet| {
                    assert_eq!(packet.frame(), frame(packet.interface()), "a held packet changed");
                    let verdict = self.verdict(packet.origin());
                    if matches!(verdict, Verdict::Tx | Verdict::Reply) {
                        self.leave(packet);
                    }
                    verdict
                });
            } else {
                self.split(slot, outlet);
            }
        }
    }

    fn failed(&mut self, reason: DropReason) {
        self.counters.dropped(reason);
    }

    fn max_batch(&self) -> usize {
        16
    }

    fn hold_slots(&self) -> usize {
        HOLDS as usize
    }
}

type Thread = Engine<MemoryDevice, Anything>;

fn threads() -> (Vec<Thread>, Vec<Arc<ThreadCounters>>) {
    let counters: Vec<_> = (0..THREADS).map(|_| Arc::new(ThreadCounters::new(0, 0))).collect();
    let engines = mesh::<MemoryFrame>(THREADS, 8).into_iter().map(|mailboxes| {
        let me = mailboxes.me();
        let counters = Arc::clone(&counters[usize::from(me.0)]);
        let random = Random(u64::from(me.0) + 77);
        let forward = Anything { me, random, counters: Arc::clone(&counters), held: VecDeque::new() };
        let frames = (0..FRAMES).map(|_| MemoryFrame::new(me, 128)).collect();
        let all = FRAMES * usize::from(THREADS);
        let device = MemoryDevice::with_tx_owners(
            RING,
            SENDERS[usize::from(me.0)]
                .map(|by| if by == me.0 { TxOwner::Own } else { TxOwner::Other(ThreadId(by)) }),
        );
        Engine::new(device, forward, mailboxes, Pool { frames, in_all: all }, counters)
    });
    (engines.collect(), counters)
}

// Promise: frame-accounting
#[test]
fn engines_keep_every_frame_over_a_million_packets() {
    let (mut engines, counters) = threads();
    let mut random = Random(1);
    let (mut injected, mut turn, mut left_by) = (0u64, 0u64, [0u64; 3]);
    while injected < 1_000_000 {
        let which = usize::try_from(random.below(u64::from(THREADS))).unwrap();
        let engine = &mut engines[which];
        for _ in 0..random.below(24) {
            let head = usize::try_from(random.below(40)).unwrap();
            // The first `3 - n` threads have a queue of interface `n`.
            let by = InterfaceId(random.below(u64::from(THREADS) - which as u64) as u8);
            injected += u64::from(engine.device_mut().inject_by(by, &frame(by), head));
        }
        turn += 1;
        engine.step(Now::from_nanos(turn));
        let taken = usize::try_from(random.below(20)).unwrap();
        engine.device_mut().transmitted_by(taken, |by, sent| {
            assert_eq!(sent, frame(by), "turn {turn}: sent on the wrong interface");
            assert_eq!(
                usize::from(SENDERS[which][usize::from(by.0)]),
                which,
                "turn {turn}: {by:?} has no such queue"
            );
            left_by[usize::from(by.0)] += 1;
        });
        let total: usize = engines.iter().map(|engine| engine.census().total()).sum();
        assert_eq!(total, FRAMES * usize::from(THREADS), "turn {turn}");
        let balance = Totals::from(&*counters[which]);
        assert_eq!(balance.came, balance.left + balance.held, "turn {turn}");
    }
    let received: u64 = counters.iter().map(|c| c.rx.read()).sum();
    let waiting: u64 = engines.iter().map(|e| e.census().receiving as u64).sum();
    assert!(received <= injected && injected <= received + waiting);
    println!("sent by interface: {left_by:?}");
    assert!(left_by.iter().all(|count| *count > 10_000), "{left_by:?}");
    use DropReason::{HoldFull, MailboxFull, NoFrame, NoNextHop, TxFull};
    for reason in [TxFull, MailboxFull, HoldFull, NoFrame, NoNextHop] {
        let drops: u64 = counters.iter().map(|c| c.drops(reason)).sum();
        assert!(drops > 0, "no packet was dropped for {}", reason.name());
    }
}
