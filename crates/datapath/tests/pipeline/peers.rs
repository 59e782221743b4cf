//! Checks two machines of one shard, with three threads each. The fragments of a datagram arrive at
//! either machine, on any thread and in any order. All fragments of a datagram must reach the same
//! backend.

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
use crate::frames::{self, FragmentStep};
use crate::random::Random;
use crate::{MILLI, drops, in_one_place_and_counted_once, sum};

const MACHINES: [[u8; 4]; 2] = [[192, 0, 2, 1], [192, 0, 2, 3]];
/// The slot number of the other machine. This slot follows the slots of the backends.
const PEER: u32 = 5;
const DATAGRAMS: u32 = 6;

struct Machine {
    live: Live,
    engines: Vec<Thread>,
    counters: Vec<Arc<ThreadCounters>>,
}

/// A datagram in three fragments, with the machine that receives each fragment.
struct Datagram {
    client: IpAddr,
    vip: IpAddr,
    port: u16,
    id: u32,
    payload: Vec<u8>,
    cuts: [usize; 2],
}

/// The packets that both machines sent to backends, each without its outer header and with the
/// number of its backend.
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
            // the fragment table treats each /64 prefix as one source
            IpAddr::from([0x2001, 0xdb8, 9, random.below(5_000) as u16, 0, 0, 0, 7])
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
            let piece =
                FragmentStep { id: self.id, offset: place.start, more: place.end < self.payload.len() };
            frames::piece_of((self.client, self.vip), &self.payload[place], piece)
        })
    }
}

/// Runs one iteration of every thread on both machines. Packets from one machine to the other are
/// received by a random thread.
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
                _ => panic!("unknown destination machine: {frame:02x?}"),
            });
        }
        in_one_place_and_counted_once(&machine.engines, &machine.counters);
    }
    for (machine, frames) in machines.iter_mut().zip(crossing) {
        for frame in frames {
            let thread = random.below(u64::from(THREADS)) as usize;
            assert!(machine.engines[thread].device_mut().inject(&frame, 0), "device full");
        }
    }
}

/// Returns the backend that an unfragmented packet of the same flow is sent to.
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
    assert_eq!(backends.len(), 1, "the machines chose different backends");
    backends.into_iter().next().unwrap()
}

/// Checks that each fragment arrived exactly once with a TTL that was decremented exactly once. All
/// fragments of a datagram must have reached the same backend.
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

/// Sends some datagrams. The first `machines_used` machines receive the fragments in random order.
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
    // A fragment needs several iterations. It may be sent to the other machine, be passed to the
    // thread that gathers fragments, and wait for its first fragment.
    for _ in 0..12 {
        turn(machines, random, *now, &mut delivered);
    }
    nothing_is_dropped(machines);
    all_arrived(&datagrams, &delivered);
    // Advances the time so that all state about these datagrams expires.
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
fn fragments_meet_on_one_thread_of_one_machine() {
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
    // While its peer is down, a machine gathers fragments itself.
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
