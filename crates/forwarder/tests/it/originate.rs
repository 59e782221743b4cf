//! Checks that an originated packet is identical to the packet that the pipeline writes for the
//! same flow and slot.

use forwarder::*;
use packet::Encapsulation;
use proptest::prelude::*;

use crate::bed::*;

/// Returns six slots. The slots cover all encapsulations, both outer address families, and GRE with
/// a source prefix.
fn slots() -> Vec<Slot> {
    let mut slots = vec![
        slot("gre", "198.18.1.1", Encapsulation::Gre),
        slot("ipip", "2001:db8:18::2", Encapsulation::Ipip),
        slot("gue", "198.18.1.3", Encapsulation::Gue { udp_checksum: true }),
        slot("gue6", "2001:db8:18::4", Encapsulation::Gue { udp_checksum: false }),
        slot("l2", "198.18.1.5", Encapsulation::L2),
        slot("spread", "198.18.1.6", Encapsulation::Gre),
    ];
    if let Forwarding::Tunnel { v4, v6 } = &mut slots[5].forwarding {
        for headers in [v4, v6] {
            *headers = headers.with_source(ip("198.18.4.0"), 24).unwrap();
        }
    }
    slots
}

fn frame(v4: bool, port: u16, is_tcp: bool, vip_port: u16) -> Vec<u8> {
    let (source, vip) = if v4 { ("192.0.2.1", VIP4) } else { ("2001:db8::1", VIP6) };
    if is_tcp { tcp(source, port, vip, 80, "S") } else { udp(source, port, vip, vip_port, b"query") }
}

fn originate(snapshot: &Snapshot, slot: u32, head: usize, frame: &[u8]) -> Result<Vec<u8>, DropReason> {
    let mut buffer = vec![0xee; ROOM];
    buffer[head..head + frame.len()].copy_from_slice(frame);
    let mut packet = Packet::new(&mut buffer, head, head + frame.len(), Origin::Wire);
    snapshot.originate(SlotId(slot), &mut packet, 0).map(|_| packet.frame().to_vec())
}

proptest! {
    #[test]
    fn a_packet_made_here_leaves_as_a_clients_would(
        v4: bool, port in 1u16.., is_tcp: bool, vip_port in prop_oneof![Just(443u16), Just(53)], only in 0usize..6, head in 0usize..80,
    ) {
        let mut weights = [0; 6];
        weights[only] = 1;
        let mut bed = Bed::new(parts(slots(), &weights));
        let frame = frame(v4, port, is_tcp, vip_port);
        let (verdict, expected) = bed.send(60, &frame);
        prop_assert_eq!(verdict, Verdict::Tx);
        let made = originate(&bed.live.current(), u32::try_from(only).unwrap(), head, &frame);
        prop_assert_eq!(made, Ok(expected));
    }

    #[test]
    fn any_bytes_are_wrapped_or_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..120), slot in 0u32..8) {
        let snapshot = Snapshot::new(parts(slots(), &[1; 6])).unwrap();
        let wrapped = originate(&snapshot, slot, 60, &bytes);
        prop_assert!(wrapped.is_err() || slot < 6);
    }
}

#[test]
fn a_slot_that_is_down_is_served_and_one_without_a_way_is_not() {
    let mut slots = slots();
    slots[1].next_hop = None;
    slots[2].mtu = 60;
    let mut parts = parts(slots, &[1; 6]);
    parts.states[0] = SlotState::Down;
    let snapshot = Snapshot::new(parts).unwrap();
    let frame = frame(true, 9, true, 80);
    assert!(originate(&snapshot, 0, 60, &frame).is_ok());
    assert_eq!(originate(&snapshot, 1, 60, &frame), Err(DropReason::NoNextHop));
    assert_eq!(originate(&snapshot, 2, 60, &frame), Err(DropReason::TooBig));
    assert_eq!(originate(&snapshot, 6, 60, &frame), Err(DropReason::NoBackend));
}

#[test]
fn originated_packet_uses_the_next_hop_under_reflect() {
    let mut parts = parts(slots(), &[1; 6]);
    parts.next_hop = NextHopMode::Reflect { gateways: Box::new([]), tagging: Box::default() };
    let snapshot = Snapshot::new(parts).unwrap();
    let made = originate(&snapshot, 0, 60, &frame(true, 9, true, 80)).unwrap();
    assert_eq!((&made[..6], &made[6..12]), (&HOP[..], &OURS[..]));
}

#[test]
fn a_port_that_no_service_has_is_hashed_by_its_five_tuple() {
    let snapshot = Snapshot::new(parts(slots(), &[1; 6])).unwrap();
    let sources: std::collections::BTreeSet<Vec<u8>> = (1..40)
        .map(|port| originate(&snapshot, 5, 60, &frame(true, port, false, 9999)).unwrap()[26..30].to_vec())
        .collect();
    assert!(sources.len() > 20, "sources are spread over the prefix: {sources:?}");
}
