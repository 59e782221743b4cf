//! A fuzz target for the packet pipeline, including encapsulation, fragments, rejected packets and
//! ICMP errors.
//!
//! The input is a sequence of frames. Each frame is preceded by its length in two bytes. The length
//! 0xffff stands for no frame, and advances the clock by one second.

use std::net::IpAddr;

use forwarder::{DropReason, Prefix, Rejects, TunnelProtocols, TunnelSource, TunnelSourceKind, Verdict};
use packet::{Encapsulation, decapsulate, network};

use crate::bed::{Bed, ROOM, VIP4, VIP6, gre_slots, ip, parts, slot};
use crate::frames;

/// Checks that each frame gets one verdict, that the counters match the verdicts, and that no frame
/// is held forever. A forwarded frame must contain the received packet with a decremented TTL,
/// encapsulated for a backend. A second pipeline without the fast path must produce the same
/// results.
pub(crate) fn check(bytes: &[u8]) {
    let (mut bed, mut general) = (bed(), bed());
    general.pipeline = general.pipeline.without_fast_path();
    let (mut verdicts, mut rest) = (vec![], bytes);
    while let Some(([high, low], behind)) = rest.split_first_chunk() {
        rest = behind;
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if length == usize::from(u16::MAX) {
            pass(&mut bed, 1);
            pass(&mut general, 1);
            continue;
        }
        let (frame, behind) = rest.split_at(length.min(rest.len()).min(LONGEST));
        rest = behind;
        let opened = bed.counters.decapsulated.read();
        let head = HEADS[frame.len() % HEADS.len()];
        let (verdict, out) = bed.send(head, frame);
        assert_eq!(
            general.send(head, frame),
            (verdict, out.clone()),
            "the fast path and the slow path differ"
        );
        sent(verdict, &out);
        match bed.counters.decapsulated.read() - opened {
            0 if verdict == Verdict::Tx => is_inside(frame, &out),
            0 => {}
            one => assert!(one == 1 && may_be_opened(frame), "{one} packets decapsulated"),
        }
        verdicts.push(verdict);
    }
    pass(&mut bed, LONGEST_HOLD);
    pass(&mut general, LONGEST_HOLD);
    assert_eq!((bed.holding(), general.holding()), (0, 0));
    assert_eq!(general.held.out, bed.held.out, "the fast path and the slow path differ");
    bed.held.out.iter().for_each(|(verdict, out)| sent(*verdict, out));
    verdicts.extend(bed.held.out.iter().map(|(verdict, _)| *verdict));
    let held = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Hold(_))).count();
    assert_eq!(held, bed.held.out.len());
    [bed, general].iter().for_each(|bed| counts(bed, &verdicts));
}

fn pass(bed: &mut Bed, seconds: u64) {
    bed.advance(seconds);
    bed.poll();
}

fn sent(verdict: Verdict, out: &[u8]) {
    match verdict {
        Verdict::Reply => assert!(packet::parse(out).is_ok(), "the reply is not a packet {out:02x?}"),
        Verdict::Tx => {
            let (tunnel, inner) = carried(out);
            assert!(BACKENDS.map(ip).contains(&tunnel), "{tunnel}");
            let (at, bytes) = if inner[0] >> 4 == 4 { (16, 4) } else { (24, 16) };
            let vip = [VIP4, VIP6].map(|vip| match ip(vip) {
                IpAddr::V4(vip) => vip.octets().to_vec(),
                IpAddr::V6(vip) => vip.octets().to_vec(),
            });
            assert!(vip.iter().any(|vip| *vip == inner[at..at + bytes]), "{inner:02x?}");
        }
        _ => {}
    }
}

/// Returns the outer destination address and the inner packet of a sent frame.
fn carried(out: &[u8]) -> (IpAddr, &[u8]) {
    let (_, ip_bytes) = network(out).expect("the sent packet is not IP");
    let tunnel = decapsulate(ip_bytes).expect("the sent packet is not encapsulated");
    (tunnel.destination, &ip_bytes[tunnel.inner..tunnel.end])
}

/// Returns `true` if the frame is an encapsulated packet to the machine itself from an allowed
/// source.
fn may_be_opened(frame: &[u8]) -> bool {
    let (_, outer) = network(frame).expect("the decapsulated packet is not IP");
    let at = if outer[0] >> 4 == 4 { 12..20 } else { 8..40 };
    TUNNELS.iter().any(|(from, to)| {
        let octets = [from, to].map(|address| match ip(address) {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        });
        outer[at.clone()] == octets.concat()
    })
}

/// Checks that a sent frame contains the received packet. Only the TTL and the header checksum may
/// differ, and a correct checksum must remain correct.
fn is_inside(frame: &[u8], out: &[u8]) {
    let (_, came) = network(frame).expect("the forwarded packet is not IP");
    let (_, goes) = carried(out);
    let came = came.get(..goes.len()).expect("the sent packet is longer than the received packet");
    let (hop, sum) = if came[0] >> 4 == 4 { (8, 10..12) } else { (7, 0..0) };
    assert_eq!(goes[hop], came[hop] - 1, "the TTL is not lower by one");
    let others = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[hop] = 0;
        bytes[sum.clone()].fill(0);
        bytes
    };
    assert_eq!(others(goes), others(came));
    let is_right = |ip_bytes: &[u8]| {
        let header = ip_bytes[..usize::from(ip_bytes[0] & 15) * 4].chunks(2);
        header.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum::<u32>() % 0xffff == 0
    };
    assert!(sum.is_empty() || is_right(came) == is_right(goes), "{came:02x?} {goes:02x?}");
}

/// Checks that the counters of the pipeline match the verdicts.
fn counts(bed: &Bed, verdicts: &[Verdict]) {
    let of = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count() as u64;
    for reason in DropReason::ALL {
        assert_eq!(bed.counters.drops(*reason), of(Verdict::Drop(*reason)), "{reason:?}");
    }
    let slots = 0..u32::try_from(BACKENDS.len()).expect("a few");
    let sent: u64 = slots.filter_map(|slot| Some(bed.counters.backend(slot)?.packets.read())).sum();
    assert_eq!(sent, of(Verdict::Tx));
}

fn bed() -> Bed {
    let mut slots = gre_slots(2);
    slots.push(slot("b3", BACKENDS[2], Encapsulation::Ipip));
    slots.push(slot("b4", BACKENDS[3], Encapsulation::Gue { udp_checksum: true }));
    let mut parts = parts(slots, &[1; BACKENDS.len()]);
    let rejects = Rejects { no_backend: true, unserved_port: true };
    parts.services.iter_mut().for_each(|service| service.rejects = rejects);
    let all = TunnelProtocols::GRE.and(TunnelProtocols::IPIP).and(TunnelProtocols::GUE);
    parts.tunnels = TUNNELS
        .map(|(source, _)| TunnelSource {
            prefix: Prefix::of(ip(source), u8::MAX),
            carriers: all,
            kind: TunnelSourceKind::UpstreamTunnel,
        })
        .to_vec();
    Bed::new(parts)
}

/// Returns each seed frame of the other targets as one input, and one input with all of these
/// frames, one second apart.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let all: Vec<_> = [frames::plain(), frames::errors(), frames::tunnelled()].concat();
    let framed = |frame: &Vec<u8>| {
        let length = u16::try_from(frame.len()).expect("the seed fits 16 bits");
        [&length.to_be_bytes(), &frame[..]].concat()
    };
    let each: Vec<Vec<u8>> = all.iter().map(framed).collect();
    let row = each.join(&[0xff, 0xff][..]);
    each.into_iter().chain([row]).collect()
}

/// The source addresses of the upstream tunnels, each with this machine's address in the same
/// address family.
const TUNNELS: [(&str, &str); 2] = [("198.18.0.1", "192.0.2.1"), ("2001:db8::77", "2001:db8::1")];
const BACKENDS: [&str; 4] = ["198.18.1.1", "198.18.1.2", "198.18.1.3", "2001:db8:1::4"];
/// The sizes of the headroom in front of a frame, in bytes: the outer header length for each of the
/// two kinds of backends, and a larger size.
const HEADS: [usize; 3] = [20, 24, 64];
/// The maximum length of a received frame in bytes.
const LONGEST: usize = ROOM - 64;
/// The maximum time for which a frame may be held, in seconds. A fragment that arrives before its
/// first fragment is held for less time.
const LONGEST_HOLD: u64 = 120;
