//! Checks a single flow that sends more packets than its thread can process. The thread processes
//! packets in order of arrival. Packets of other flows therefore wait only for the packets before
//! them in the ring. Other flows must not lose a larger share of their packets, and every received
//! packet must be sent.

use std::collections::VecDeque;

use forwarder::{Live, Now, Snapshot, TooBig};
use packet::{Encapsulation, Family, Outer, Template};

use crate::bed::{self, RING, VIPS, threads};
use crate::frames::{udp_header, whole_of};
use crate::random::Random;
use crate::{MILLI, in_one_place_and_counted_once, sum};

/// The capacity of the ring, as set in the module `bed`.
const BATCH: usize = 32;
/// The number of packets offered in each iteration, which is three times the number that a thread
/// processes.
const OFFERED: u64 = 96;
const OTHERS: u64 = 100;
const TURNS: u64 = 4_000;
/// The offset of the packet number in a sent frame.
const NUMBER: usize = 14 + 24 + 20 + 8;

/// Returns a packet from the client with address `host`. The payload is the packet number.
fn frame(host: u8, number: u32) -> Vec<u8> {
    let udp = [udp_header(4_000, 443, 4), number.to_be_bytes().to_vec()].concat();
    whole_of(([198, 51, 100, host].into(), VIPS[0]), &udp)
}

fn snapshot() -> Snapshot {
    let backend = |n: u8| {
        let destination = [198, 18, 1, n].into();
        let outer = Outer::V4 { source: [192, 0, 2, 1].into(), destination };
        let template = |inner| Template::new(Encapsulation::Gre, outer, inner, true);
        let templates = Some([template(Family::V4), template(Family::V6)]);
        bed::way(destination.into(), templates, 1500, TooBig::Drop)
    };
    Snapshot::new(bed::plain((1..4).map(backend).collect())).unwrap()
}

/// The numbers of offered and received packets.
#[derive(Default)]
struct Share {
    offered: u64,
    received: u64,
}

// Promise: single-flow-fairness
#[test]
fn heavy_flow_does_not_starve_other_flows() {
    let (mut engines, counters) = threads(&Live::new(snapshot()));
    let (mut random, mut number, mut waiting) = (Random(3), 0, VecDeque::new());
    let (mut heavy, mut others) = (Share::default(), Share::default());
    engines[0].step(Now::from_nanos(MILLI));
    for turn in 1..=TURNS {
        for _ in 0..OFFERED {
            let is_other = random.once_in(64);
            let host = if is_other { 100 + random.below(OTHERS) as u8 } else { 7 };
            let share = if is_other { &mut others } else { &mut heavy };
            number += 1;
            share.offered += 1;
            if engines[0].device_mut().inject(&frame(host, number), 24) {
                share.received += 1;
                waiting.push_back(number);
            }
        }
        assert!(waiting.len() <= RING);
        let due: Vec<u32> = waiting.drain(..BATCH).collect();
        assert_eq!(engines[0].step(Now::from_nanos((turn + 1) * MILLI)), BATCH);
        let mut sent = Vec::new();
        engines[0].device_mut().transmitted(usize::MAX, |frame| {
            sent.push(u32::from_be_bytes(frame[NUMBER..NUMBER + 4].try_into().unwrap()));
        });
        assert_eq!(sent, due, "turn {turn}: packets out of order");
    }
    in_one_place_and_counted_once(&engines, &counters);
    assert_eq!(sum(&counters, |c| &c.flow_table.entries), 1 + OTHERS, "one entry for each flow");
    assert_eq!(sum(&counters, |c| &c.tx), TURNS * BATCH as u64);
    let rate = |share: &Share| share.received as f64 / share.offered as f64;
    println!("received: {:.3} of the heavy flow, {:.3} of others", rate(&heavy), rate(&others));
    assert!(rate(&heavy) < 0.4, "the heavy flow did not exceed the capacity");
    assert!(rate(&others) > 0.9 * rate(&heavy), "other flows lost more packets");
}
