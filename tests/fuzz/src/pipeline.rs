//! Frames through the packet thread's pipeline, with tunnels, pieces and ICMP errors.
//!
//! The bytes are frames, each behind its length in two bytes; 0xffff in place of a length lets a second go by.

use forwarder::{DropReason, Prefix, TunnelProtocols, TunnelSource, TunnelSourceKind, Verdict};
use packet::{Encapsulation, decapsulate, network};

use crate::bed::{Bed, ROOM, VIP4, VIP6, gre_slots, ip, parts, slot};
use crate::frames;

/// Each frame has one verdict, the counters add up, a frame that is sent on is a whole packet for a backend with a packet for a
/// VIP inside, and no frame is held for ever.
pub(crate) fn check(bytes: &[u8]) {
    let mut bed = bed();
    let (mut received, mut rest) = (0, bytes);
    while let Some(([high, low], behind)) = rest.split_first_chunk() {
        rest = behind;
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if length == usize::from(u16::MAX) {
            bed.advance(1);
            bed.poll();
            continue;
        }
        let (frame, behind) = rest.split_at(length.min(rest.len()).min(ROOM - HEAD));
        rest = behind;
        received += 1;
        let (verdict, out) = bed.send(HEAD, frame);
        sent(verdict, &out);
    }
    bed.advance(LONGEST_HOLD);
    bed.poll();
    assert_eq!(bed.holding(), 0);
    let released = std::mem::take(&mut bed.held.out);
    released.iter().for_each(|(verdict, out)| sent(*verdict, out));
    adds_up(&bed, received);
}

fn sent(verdict: Verdict, out: &[u8]) {
    match verdict {
        Verdict::Reply => assert!(packet::parse(out).is_ok(), "a reply that is no packet: {out:02x?}"),
        Verdict::Tx => {
            let (_, ip_bytes) = network(out).expect("what is sent is IP");
            let tunnel = decapsulate(ip_bytes).expect("what is sent is in a tunnel");
            assert!(BACKENDS.map(ip).contains(&tunnel.destination), "{}", tunnel.destination);
            let inner = &ip_bytes[tunnel.inner..tunnel.end];
            let (at, bytes) = if inner[0] >> 4 == 4 { (16, 4) } else { (24, 16) };
            let vip = [VIP4, VIP6].map(|vip| match ip(vip) {
                std::net::IpAddr::V4(vip) => vip.octets().to_vec(),
                std::net::IpAddr::V6(vip) => vip.octets().to_vec(),
            });
            assert!(vip.iter().any(|vip| *vip == inner[at..at + bytes]), "{inner:02x?}");
        }
        _ => {}
    }
}

fn adds_up(bed: &Bed, received: u64) {
    let drops: u64 = DropReason::ALL.iter().map(|reason| bed.counters.drops(*reason)).sum();
    let slots = 0..u32::try_from(BACKENDS.len()).expect("a few");
    let sent: u64 = slots.filter_map(|slot| Some(bed.counters.backend(slot)?.packets.read())).sum();
    assert!(drops <= received && sent <= received, "{drops} dropped and {sent} sent of {received}");
}

fn bed() -> Bed {
    let mut slots = gre_slots(2);
    slots.push(slot("b3", BACKENDS[2], Encapsulation::Ipip));
    slots.push(slot("b4", BACKENDS[3], Encapsulation::Gue { udp_checksum: true }));
    let mut parts = parts(slots, &[1; BACKENDS.len()]);
    let all = TunnelProtocols::GRE.and(TunnelProtocols::IPIP).and(TunnelProtocols::GUE);
    parts.tunnels = [("198.18.0.1", 32), ("2001:db8::77", 128)]
        .map(|(source, bits)| TunnelSource {
            prefix: Prefix::new(ip(source), bits).expect("a prefix"),
            carriers: all,
            kind: TunnelSourceKind::Encapsulator,
        })
        .to_vec();
    Bed::new(parts)
}

/// Every frame of the other targets alone, and all of them in a row with a second between.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let all: Vec<_> = [frames::plain(), frames::errors(), frames::tunnelled()].concat();
    let framed = |frame: &Vec<u8>| {
        let length = u16::try_from(frame.len()).expect("a seed is short");
        [&length.to_be_bytes(), &frame[..]].concat()
    };
    let each: Vec<Vec<u8>> = all.iter().map(framed).collect();
    let row = each.join(&[0xff, 0xff][..]);
    each.into_iter().chain([row]).collect()
}

const BACKENDS: [&str; 4] = ["198.18.1.1", "198.18.1.2", "198.18.1.3", "2001:db8:1::4"];
/// Room in front of a frame, as the XDP program opens it.
const HEAD: usize = 64;
/// In seconds; longer than a piece waits for the first one.
const LONGEST_HOLD: u64 = 120;
