//! Two machines of a shard, three threads each: pieces of datagrams come to either machine, by any thread and in any order, and
//! all of one datagram meet.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use forwarder::{
    DropReason, Live, Now, Parts, PoolTable, Prefix, Slot, SlotId, SlotState, Snapshot, THIS_MACHINE,
    ThreadCounters, TooBig, TunnelProtocols, TunnelSource, TunnelSourceKind,
};
use maglev_hash::Backend;
use packet::{Encapsulation, Family, Outer, Template};

use crate::bed::{self, THREADS, Thread, VIPS, threads};
use crate::frames::{self, Piece};
use crate::random::Random;
use crate::{MILLI, drops, in_one_place_and_counted_once, sum};

const MACHINES: [[u8; 4]; 2] = [[192, 0, 2, 1], [192, 0, 2, 3]];
/// The other machine's slot, behind those of the backends.
const PEER: u32 = 5;
const DATAGRAMS: u32 = 6;

struct Machine {
    live: Live,
    engines: Vec<Thread>,
    counters: Vec<Arc<ThreadCounters>>,
}

/// A datagram in three pieces, and who has had which of them.
struct Datagram {
    client: IpAddr,
    vip: IpAddr,
    port: u16,
    id: u32,
    payload: Vec<u8>,
    cuts: [usize; 2],
}

/// What left both machines for a backend: which one, and the packet inside.
type Delivered = Vec<(u8, Vec<u8>)>;

fn slot(address: [u8; 4], own: [u8; 4], recursion: u8) -> Slot {
    let outer = Outer::V4 { source: Ipv4Addr::from(own), destination: Ipv4Addr::from(address) };
    let template = |inner| Template::new(Encapsulation::Gre, outer, inner, true).with_recursion(recursion);
    bed::way(address.into(), Some([template(Family::V4), template(Family::V6)]), 1500, TooBig::Drop)
}

fn parts(place: usize) -> Parts {
    let (own, other) = (MACHINES[place], MACHINES[1 - place]);
    let mut slots: Vec<Slot> = (1..=PEER as u8).map(|n| slot([198, 18, 1, n], own, 0)).collect();
    let mut parts = bed::plain(slots.clone());
    slots.push(slot(other, own, 1));
    (parts.states, parts.slots) = (vec![SlotState::Serving; slots.len()], slots);
    parts.own = vec![own.into()];
    parts.tunnels = vec![TunnelSource {
        prefix: Prefix::new(other.into(), 32).unwrap(),
        carriers: TunnelProtocols::GRE,
        kind: TunnelSourceKind::Peer,
    }];
    let names = ["lb1", "lb2"].map(|name| Backend { name: name.as_bytes(), weight: 1 });
    let mut slots = [SlotId(PEER); 2];
    slots[place] = THIS_MACHINE;
    parts.peers = Some(Arc::new(PoolTable {
        name: "peers@a".into(),
        table: Some(Arc::new(maglev_hash::build(&names, &bed::options()).unwrap())),
        slots: slots.into(),
        weights: [1, 1].into(),
    }));
    parts
}

fn machine(place: usize) -> Machine {
    let live = Live::new(Snapshot::new(parts(place)).unwrap());
    let (engines, counters) = threads(&live);
    Machine { live, engines, counters }
}

impl Datagram {
    fn any(random: &mut Random, id: u32) -> Self {
        let vip = VIPS[random.below(2) as usize];
        let client = if vip.is_ipv4() {
            IpAddr::from([198, 51, 100, random.byte()])
        } else {
            IpAddr::from([0x2001, 0xdb8, 9, random.below(5_000) as u16, 0, 0, 0, 7]) // a source is a /64
        };
        let port = 1_000 + random.below(60_000) as u16;
        let length = 1_200 + random.below(600);
        let mut payload = frames::udp_header(port, 443, length as u16);
        payload.extend(random.bytes(length));
        let cuts = [8 * (1 + random.below(60)) as usize, 8 * (70 + random.below(60)) as usize];
        Self { client, vip, port, id, payload, cuts }
    }

    fn places(&self) -> [std::ops::Range<usize>; 3] {
        let [first, second] = self.cuts;
        [0..first, first..second, second..self.payload.len()]
    }

    fn pieces(&self) -> [Vec<u8>; 3] {
        self.places().map(|place| {
            let piece = Piece { id: self.id, offset: place.start, more: place.end < self.payload.len() };
            frames::piece_of((self.client, self.vip), &self.payload[place], piece)
        })
    }
}

/// A turn of every thread of both machines; what goes to the other machine comes in there, by any of its threads.
fn turn(machines: &mut [Machine; 2], random: &mut Random, now: u64, delivered: &mut Delivered) {
    let mut crossing: [Vec<Vec<u8>>; 2] = [vec![], vec![]];
    for (place, machine) in machines.iter_mut().enumerate() {
        for engine in &mut machine.engines {
            engine.step(Now::from_nanos(now));
            engine.device_mut().transmitted(usize::MAX, |frame| match frame[14 + 16..14 + 20] {
                [198, 18, 1, backend] => delivered.push((backend, frame[14 + 24..].to_vec())),
                [a, b, c, d] if MACHINES[1 - place] == [a, b, c, d] => {
                    assert_eq!(frame[14 + 20..14 + 22], [1, 0], "marked as redirected once");
                    crossing[1 - place].push(frame.to_vec());
                }
                _ => panic!("to which machine? {frame:02x?}"),
            });
        }
        in_one_place_and_counted_once(&machine.engines, &machine.counters);
    }
    for (machine, frames) in machines.iter_mut().zip(crossing) {
        for frame in frames {
            let thread = random.below(u64::from(THREADS)) as usize;
            assert!(machine.engines[thread].device_mut().inject(&frame, 0), "there is room");
        }
    }
}

/// The backend that a whole packet of the same flow is given.
fn backend_of_whole(machines: &mut [Machine; 2], random: &mut Random, now: u64, datagram: &Datagram) -> u8 {
    let payload = [frames::udp_header(datagram.port, 443, 4), vec![1; 4]].concat();
    let frame = frames::whole_of((datagram.client, datagram.vip), &payload);
    let backends: BTreeSet<u8> = (0..2)
        .map(|place| {
            let mut delivered = Vec::new();
            let thread = random.below(u64::from(THREADS)) as usize;
            assert!(machines[place].engines[thread].device_mut().inject(&frame, 24));
            turn(machines, random, now, &mut delivered);
            assert_eq!(delivered.len(), 1);
            delivered[0].0
        })
        .collect();
    assert_eq!(backends.len(), 1, "the same on both machines");
    backends.into_iter().next().unwrap()
}

/// Each piece once, with one hop less in all, and all at one backend.
fn all_arrived(datagrams: &[(Datagram, u8)], delivered: &Delivered) {
    assert_eq!(delivered.len(), datagrams.len() * 3);
    for (datagram, backend) in datagrams {
        for piece in datagram.pieces() {
            let mut expected = piece[14..].to_vec();
            frames::lower_hops(&mut expected);
            let had: Vec<u8> = delivered
                .iter()
                .filter(|(_, inner)| *inner == expected)
                .map(|(backend, _)| *backend)
                .collect();
            assert_eq!(had, [*backend], "{} {}", datagram.client, datagram.id);
        }
    }
}

/// Some datagrams, their pieces in any order at the machines whose number is below `machines_used`.
fn round(
    machines: &mut [Machine; 2],
    random: &mut Random,
    (round, machines_used): (u32, u64),
    now: &mut u64,
) {
    let mut datagrams = Vec::new();
    for n in 0..DATAGRAMS {
        let datagram = Datagram::any(random, round * DATAGRAMS + n);
        let backend = backend_of_whole(machines, random, *now, &datagram);
        datagrams.push((datagram, backend));
    }
    let mut pieces: Vec<Vec<u8>> = datagrams.iter().flat_map(|(datagram, _)| datagram.pieces()).collect();
    let mut delivered = Vec::new();
    while !pieces.is_empty() {
        let piece = pieces.swap_remove(random.below(pieces.len() as u64) as usize);
        let machine = &mut machines[random.below(machines_used) as usize];
        let thread = random.below(u64::from(THREADS)) as usize;
        assert!(machine.engines[thread].device_mut().inject(&piece, 24));
        if random.once_in(2) {
            turn(machines, random, *now, &mut delivered);
        }
    }
    // To the other machine, there to a thread, and held pieces after their first.
    for _ in 0..12 {
        turn(machines, random, *now, &mut delivered);
    }
    nothing_is_dropped(machines);
    all_arrived(&datagrams, &delivered);
    // All that is known of these datagrams is forgotten.
    *now += 200 * MILLI;
    turn(machines, random, *now, &mut delivered);
}

fn over(machines: &[Machine; 2], of: impl Fn(&[Arc<ThreadCounters>]) -> u64) -> u64 {
    machines.iter().map(|machine| of(&machine.counters)).sum()
}

fn nothing_is_dropped(machines: &[Machine; 2]) {
    for &reason in DropReason::ALL {
        assert_eq!(over(machines, |counters| drops(counters, reason)), 0, "{}", reason.name());
    }
}

#[test]
fn pieces_meet_at_one_thread_of_one_machine_wherever_they_come_to_and_go_to_the_backend_of_the_whole() {
    let mut machines = [machine(0), machine(1)];
    let (mut random, mut now) = (Random(3), MILLI);
    for n in 0..200 {
        round(&mut machines, &mut random, (n, 2), &mut now);
    }
    let redirected = over(&machines, |counters| sum(counters, |c| &c.redirected));
    let opened = over(&machines, |counters| sum(counters, |c| &c.decapsulated));
    let waited = over(&machines, |counters| sum(counters, |c| &c.fragment_table.waited));
    let released = over(&machines, |counters| sum(counters, |c| &c.fragment_table.released));
    let crossed = over(&machines, |counters| sum(counters, |c| &c.to_threads));
    println!("{redirected} redirected, {crossed} crossed threads, {waited} waited");
    assert!(redirected > 500 && crossed > 500 && waited > 500);
    assert_eq!((opened, released), (redirected, waited));
    // With its peer dead a machine gathers alone.
    let next = machines[0].live.current();
    let mut states = next.states().to_vec();
    states[PEER as usize] = SlotState::Down;
    machines[0].live.publish(next.with_states(states).unwrap());
    for n in 200..220 {
        round(&mut machines, &mut random, (n, 1), &mut now);
    }
    assert_eq!(over(&machines, |counters| sum(counters, |c| &c.redirected)), redirected);
    let left = machines.iter().flat_map(|machine| &machine.engines).map(|engine| engine.census());
    assert!(left.into_iter().all(|census| census.held + census.mailboxes == 0));
}
