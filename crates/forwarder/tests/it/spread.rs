//! Tests of slots with several next hops. Each flow uses one hop and keeps this hop while the hop
//! is in the set. `paths` compares the fast path with the slow path for such slots.

use std::collections::BTreeMap;

use forwarder::*;
use packet::{Encapsulation, Mac};

use crate::bed::*;

/// The last byte of the MAC address of a hop, its interface, and its ID in the hop table.
type HopNumber = u8;

fn spread(hops: &[HopNumber]) -> Spread {
    let hop = |number: &u8| NextHop {
        interface: InterfaceId(*number),
        ..NextHop::plain(Mac([2, 0, 0, 0, 9, *number]), Mac([2, 0, 0, 0, 8, *number]))
    };
    let table = HopTable::new(&hops.iter().map(|number| (u64::from(*number), 1)).collect::<Vec<_>>());
    Spread::new(hops.iter().map(hop).collect(), table)
}

/// Returns the hop of each of 600 flows, which send two packets each.
fn hops_of_flows(hops: &[HopNumber], kind: Encapsulation) -> Vec<HopNumber> {
    let mut slot = slot("b1", "198.18.1.1", kind);
    slot.spread = Some(spread(hops));
    let headroom = slot.encap_overhead();
    let mut bed = Bed::new(parts(vec![slot], &[1]));
    let mut hop_of = |port: u16| {
        let sent = ["S", "A"].map(|flags| {
            let frame = tcp("198.51.100.7", port, VIP4, 80, flags);
            let mut buffer = vec![0; ROOM];
            buffer[headroom..headroom + frame.len()].copy_from_slice(&frame);
            let mut packets = [Packet::new(&mut buffer, headroom, headroom + frame.len(), Origin::Wire)];
            let mut verdicts = [Verdict::Taken];
            bed.pipeline.process(bed.now, &mut packets, &mut verdicts);
            assert_eq!(verdicts, [Verdict::Tx]);
            let [packet] = &packets;
            let (to, from) = (&packet.frame()[..6], &packet.frame()[6..12]);
            assert_eq!((&to[..5], &from[..5]), (&[2, 0, 0, 0, 9][..], &[2, 0, 0, 0, 8][..]));
            assert_eq!((to[5], from[5]), (packet.interface().0, packet.interface().0));
            to[5]
        });
        assert_eq!(sent[0], sent[1], "packets of a flow use one hop");
        sent[0]
    };
    (1..=600).map(&mut hop_of).collect()
}

#[test]
fn flows_are_spread_and_stay_on_their_hop() {
    for kind in [Encapsulation::Gre, Encapsulation::Gue { udp_checksum: true }, Encapsulation::L2] {
        let whole = hops_of_flows(&[0, 1, 2], kind);
        let mut shares: BTreeMap<HopNumber, usize> = BTreeMap::new();
        whole.iter().for_each(|hop| *shares.entry(*hop).or_default() += 1);
        assert!(shares.len() == 3 && shares.values().all(|count| *count > 120), "{shares:?}");
        for lost in [0, 1, 2] {
            let rest: Vec<HopNumber> = [0, 1, 2].into_iter().filter(|hop| *hop != lost).collect();
            for (before, after) in whole.iter().zip(hops_of_flows(&rest, kind)) {
                assert!(*before == after || *before == lost, "a flow moved from {before} to {after}");
                assert_ne!(after, lost);
            }
        }
    }
}

#[test]
fn originated_packets_use_the_given_hop() {
    let mut slot = slot("b1", "198.18.1.1", Encapsulation::Gre);
    slot.spread = Some(spread(&[0, 1]));
    let snapshot = Snapshot::new(parts(vec![slot], &[1])).unwrap();
    for number in [0, 1] {
        let hop = spread(&[number]).hops()[0].clone();
        let frame = tcp("192.0.2.1", 9, VIP4, 80, "S");
        for wraps in [true, false] {
            let mut buffer = vec![0; ROOM];
            buffer[64..64 + frame.len()].copy_from_slice(&frame);
            let mut packet = Packet::new(&mut buffer, 64, 64 + frame.len(), Origin::Wire);
            let made = match wraps {
                true => snapshot.originate_by(SlotId(0), &hop, &mut packet, 0),
                false => address_frame(&mut packet, &hop),
            };
            assert_eq!(made, Ok(14));
            assert_eq!(
                (&packet.frame()[..6], packet.interface()),
                (&hop.destination.0[..], InterfaceId(number))
            );
            // Without encapsulation, the packet stays the same, including its TTL.
            assert_eq!(packet.frame()[14..] == frame[14..], !wraps);
        }
    }
}
