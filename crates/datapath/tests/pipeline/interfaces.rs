//! Checks a machine with two interfaces. The second interface has fewer queues than there are
//! threads. With `next_hop = "reflect"`, a packet from a gateway returns to the same gateway on the
//! same interface, on any thread. Packets from unknown senders are dropped. A gateway is accepted
//! on every interface.

use std::sync::Arc;

use engine::{MemoryDevice, TxOwner};
use forwarder::{
    Counter, DropReason, InterfaceId, Live, NextHopMode, Now, Snapshot, ThreadCounters, ThreadId, TooBig,
};
use packet::{Encapsulation, Family, Mac, Outer, Template};

use crate::bed::{self, RING, THREADS, Thread, VIPS, threads_with};
use crate::frames::{self, FragmentStep};
use crate::{MILLI, drops, in_one_place_and_counted_once, sum};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The Ethernet addresses of two gateways, one on each interface.
const GATEWAYS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 1, 2]];
const STRANGER: [u8; 6] = [2, 0, 0, 0, 0x99, 2];

struct Machine {
    engines: Vec<Thread>,
    counters: Vec<Arc<ThreadCounters>>,
}

/// The sent frames, with the interfaces on which they were sent.
type Left = Vec<(InterfaceId, Vec<u8>)>;

impl Machine {
    fn reflecting() -> Self {
        Self::new(NextHopMode::Reflect { gateways: GATEWAYS.map(Mac).into(), tagging: Box::default() })
    }

    /// Creates a machine. Only its first thread has a queue of the second interface. Resolved next
    /// hops are on the second interface.
    fn new(next_hop: NextHopMode) -> Self {
        let outer = Outer::V4 { source: [192, 0, 2, 1].into(), destination: [198, 18, 1, 1].into() };
        let template = |inner| Template::new(Encapsulation::Gre, outer, inner, true);
        let templates = Some([template(Family::V4), template(Family::V6)]);
        let mut slot = bed::way([198, 18, 1, 1].into(), templates, 1500, TooBig::FragmentInner);
        slot.next_hop.as_mut().unwrap().interface = InterfaceId(1);
        let mut parts = bed::plain(vec![slot]);
        parts.next_hop = next_hop;
        let live = Live::new(Snapshot::new(parts).unwrap());
        let (engines, counters) = threads_with(&live, |me| {
            let second = if me == ThreadId(0) { TxOwner::Own } else { TxOwner::Other(ThreadId(0)) };
            MemoryDevice::with_tx_owners(RING, [TxOwner::Own, second])
        });
        Self { engines, counters }
    }

    /// Delivers frames on the given interfaces and threads. Each thread must have a queue of the
    /// interface. Returns the sent frames.
    fn takes(&mut self, frames: &[(u8, usize, Vec<u8>)]) -> Left {
        for (by, thread, frame) in frames {
            assert!(self.engines[*thread].device_mut().inject_by(InterfaceId(*by), frame, 24));
        }
        let mut left = Vec::new();
        for _ in 0..6 {
            for (place, engine) in self.engines.iter_mut().enumerate() {
                engine.step(Now::from_nanos(MILLI));
                engine.device_mut().transmitted_by(usize::MAX, |by, frame| {
                    assert!(
                        by == InterfaceId(0) || place == 0,
                        "thread {place} has no queue on interface {by:?}"
                    );
                    left.push((by, frame.to_vec()));
                });
            }
        }
        in_one_place_and_counted_once(&self.engines, &self.counters);
        left
    }

    fn counted(&self, of: impl Fn(&ThreadCounters) -> &Counter) -> u64 {
        sum(&self.counters, of)
    }

    fn unknown(&self) -> u64 {
        drops(&self.counters, DropReason::UnknownGateway)
    }
}

fn from(gateway: [u8; 6], mut frame: Vec<u8>) -> Vec<u8> {
    frame[..6].copy_from_slice(&OURS);
    frame[6..12].copy_from_slice(&gateway);
    frame
}

fn client(host: u8, ipv4: bool) -> std::net::IpAddr {
    if ipv4 { [198, 51, 100, host].into() } else { [0x2001, 0xdb8, 9, 0, 0, 0, 0, u16::from(host)].into() }
}

fn datagram(host: u8, ipv4: bool, length: usize) -> Vec<u8> {
    let payload = [frames::udp_header(9, 443, length as u16), vec![0x5a; length]].concat();
    frames::whole_of((client(host, ipv4), VIPS[usize::from(!ipv4)]), &payload)
}

/// Checks that all frames were returned to the gateway of `interface`, on this interface.
fn back_to(left: &Left, interface: u8) {
    for (by, frame) in left {
        assert_eq!(*by, InterfaceId(interface));
        assert_eq!((&frame[..6], &frame[6..12]), (&GATEWAYS[usize::from(interface)][..], &OURS[..]));
    }
}

#[test]
fn reflect_returns_to_gateways_and_drops_unknown_senders() {
    let mut machine = Machine::reflecting();
    for interface in [0, 1] {
        for ipv4 in [true, false] {
            let known = from(GATEWAYS[usize::from(interface)], datagram(1, ipv4, 100));
            let left = machine.takes(&[(interface, 0, known)]);
            assert_eq!(left.len(), 1);
            back_to(&left, interface);
            let before = machine.unknown();
            let strange = from(STRANGER, datagram(1, ipv4, 100));
            assert_eq!(machine.takes(&[(interface, 0, strange)]), []);
            assert_eq!(machine.unknown(), before + 1);
        }
    }
    // The gateway of interface 0 sends on interface 1. This occurs if a router, or a router and its
    // standby, use the same address on both links. A gateway is identified only by its address.
    let left = machine.takes(&[(1, 0, from(GATEWAYS[0], datagram(1, true, 100)))]);
    assert_eq!((left.len(), left[0].0, &left[0].1[..6]), (1, InterfaceId(1), &GATEWAYS[0][..]));
}

/// Returns a packet that is too long for the path. The packet has no DF flag, so it may be
/// fragmented.
fn large(gateway: [u8; 6]) -> Vec<u8> {
    let mut frame = from(gateway, datagram(1, true, 1_460));
    frame[14 + 6] = 0;
    frames::sum_v4(&mut frame[14..]);
    frame
}

#[test]
fn fragments_leave_by_the_interface_of_their_next_hop() {
    let mut machine = Machine::new(NextHopMode::Resolve);
    for thread in 0..usize::from(THREADS) {
        let left = machine.takes(&[(0, thread, large(STRANGER))]);
        assert_eq!(left.len(), 2, "pieces");
        assert!(left.iter().all(|(by, frame)| *by == InterfaceId(1) && frame[..6] == [2, 0, 0, 0, 0, 3]));
    }
}

#[test]
fn reflect_returns_fragments_and_drops_unknown_senders() {
    let mut machine = Machine::reflecting();
    for interface in [0, 1] {
        let left = machine.takes(&[(interface, 0, large(GATEWAYS[usize::from(interface)]))]);
        assert_eq!(left.len(), 2, "pieces");
        back_to(&left, interface);
    }
    assert_eq!((machine.counted(|c| &c.fragmented), machine.unknown()), (2, 0));
    assert_eq!(machine.takes(&[(1, 0, large(STRANGER))]), []);
    assert_eq!(machine.unknown(), 1);
}

#[test]
fn reflect_returns_each_fragment_by_its_own_interface() {
    let mut machine = Machine::reflecting();
    let mut crossed = 0;
    for host in 1..60 {
        let ipv4 = host % 2 == 0;
        let ends = (client(host, ipv4), VIPS[usize::from(!ipv4)]);
        let payload = [frames::udp_header(9, 443, 1_200), vec![0x5a; 1_200]].concat();
        let piece = |place: std::ops::Range<usize>, gateway| {
            let at = FragmentStep { id: host.into(), offset: place.start, more: place.end < payload.len() };
            from(gateway, frames::piece_of(ends, &payload[place], at))
        };
        let (first, later) = (piece(0..800, GATEWAYS[0]), piece(800..1_208, GATEWAYS[1]));
        let before = machine.counted(|c| &c.to_threads);
        // The later fragment must wait for the first fragment. When the first fragment arrives on
        // the other interface, the later fragment is sent on the second interface.
        assert_eq!(machine.takes(&[(1, 0, later)]), []);
        let left = machine.takes(&[(0, usize::from(host % 3), first)]);
        let (second, first): (Left, Left) = left.into_iter().partition(|(by, _)| *by == InterfaceId(1));
        assert_eq!((first.len(), second.len()), (1, 1));
        back_to(&first, 0);
        back_to(&second, 1);
        crossed += machine.counted(|c| &c.to_threads) - before;
    }
    assert!(crossed > 50 && machine.unknown() == 0, "{crossed}");
}
