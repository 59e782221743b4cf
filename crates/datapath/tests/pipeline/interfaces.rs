//! A machine with two interfaces, of which the second has fewer queues than there are threads. With `next_hop = "reflect"` what
//! a gateway sent goes back to it by the interface that it came by, whichever thread decides, and what a stranger sent is
//! dropped by name; the gateways are those of all interfaces.

use std::sync::Arc;

use engine::{MemoryDevice, TxOwner};
use forwarder::{
    Counter, DropReason, InterfaceId, Live, NextHopMode, Now, Snapshot, ThreadCounters, ThreadId, TooBig,
};
use packet::{Encapsulation, Family, Mac, Outer, Template};

use crate::bed::{self, RING, THREADS, Thread, VIPS, threads_with};
use crate::frames::{self, Piece};
use crate::{MILLI, drops, in_one_place_and_counted_once, sum};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// One on each interface's link.
const GATEWAYS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 1, 2]];
const STRANGER: [u8; 6] = [2, 0, 0, 0, 0x99, 2];

struct Machine {
    engines: Vec<Thread>,
    counters: Vec<Arc<ThreadCounters>>,
}

/// What left: by which interface, and the frame.
type Left = Vec<(InterfaceId, Vec<u8>)>;

impl Machine {
    fn reflecting() -> Self {
        Self::new(NextHopMode::Reflect { gateways: GATEWAYS.map(Mac).into(), tagging: Box::default() })
    }

    /// Only the first thread has a queue of the second interface. By their own next hop, packets leave by that.
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

    /// Frames that come by an interface, each to a thread that has its queue; what leaves for them.
    fn takes(&mut self, frames: &[(u8, usize, Vec<u8>)]) -> Left {
        for (by, thread, frame) in frames {
            assert!(self.engines[*thread].device_mut().inject_by(InterfaceId(*by), frame, 24));
        }
        let mut left = Vec::new();
        for _ in 0..6 {
            for (place, engine) in self.engines.iter_mut().enumerate() {
                engine.step(Now::from_nanos(MILLI));
                engine.device_mut().transmitted_by(usize::MAX, |by, frame| {
                    assert!(by == InterfaceId(0) || place == 0, "by a queue that there is");
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

/// All went back to this gateway by this interface.
fn back_to(left: &Left, interface: u8) {
    for (by, frame) in left {
        assert_eq!(*by, InterfaceId(interface));
        assert_eq!((&frame[..6], &frame[6..12]), (&GATEWAYS[usize::from(interface)][..], &OURS[..]));
    }
}

#[test]
fn what_a_gateway_sent_goes_back_by_its_interface_and_what_a_stranger_sent_is_dropped_on_either() {
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
    // A router has the same address on both links, or its standby answers on the other: its address alone names it.
    let left = machine.takes(&[(1, 0, from(GATEWAYS[0], datagram(1, true, 100)))]);
    assert_eq!((left.len(), left[0].0, &left[0].1[..6]), (1, InterfaceId(1), &GATEWAYS[0][..]));
}

/// One that has to be cut, and may be.
fn large(gateway: [u8; 6]) -> Vec<u8> {
    let mut frame = from(gateway, datagram(1, true, 1_460));
    frame[14 + 6] = 0;
    frames::sum_v4(&mut frame[14..]);
    frame
}

#[test]
fn pieces_of_what_is_cut_leave_by_the_interface_of_their_next_hop() {
    let mut machine = Machine::new(NextHopMode::Resolve);
    for thread in 0..usize::from(THREADS) {
        let left = machine.takes(&[(0, thread, large(STRANGER))]);
        assert_eq!(left.len(), 2, "pieces");
        assert!(left.iter().all(|(by, frame)| *by == InterfaceId(1) && frame[..6] == [2, 0, 0, 0, 0, 3]));
    }
}

#[test]
fn pieces_of_what_is_cut_go_back_by_the_interface_and_a_strangers_are_dropped_once() {
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
fn pieces_of_a_datagram_go_back_each_by_its_own_interface_whichever_thread_gathers_them() {
    let mut machine = Machine::reflecting();
    let mut crossed = 0;
    for host in 1..60 {
        let ipv4 = host % 2 == 0;
        let ends = (client(host, ipv4), VIPS[usize::from(!ipv4)]);
        let payload = [frames::udp_header(9, 443, 1_200), vec![0x5a; 1_200]].concat();
        let piece = |place: std::ops::Range<usize>, gateway| {
            let at = Piece { id: host.into(), offset: place.start, more: place.end < payload.len() };
            from(gateway, frames::piece_of(ends, &payload[place], at))
        };
        let (first, later) = (piece(0..800, GATEWAYS[0]), piece(800..1_208, GATEWAYS[1]));
        let before = machine.counted(|c| &c.to_threads);
        // The later one waits, and leaves by the second interface when the first has come by the other.
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
