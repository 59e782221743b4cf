//! Tests of ICMP: received errors go to the backend of the quoted flow, and errors are sent for
//! packets that do not fit.

use std::net::IpAddr;

use etherparse::{IpHeaders, PacketBuilder, SlicedPacket, TransportSlice};
use forwarder::*;
use packet::Encapsulation;

use crate::bed::*;
use crate::pieces::{Datagram, udp_payload};
use crate::tunnels::wrapped;

const ROUTER4: &str = "192.0.2.254";
const ROUTER6: &str = "2001:db8:7::fe";

/// Returns the first `len` bytes of the reply from a VIP to the client of `frame`. Addresses and
/// ports are swapped.
pub(crate) fn answer_to(frame: &[u8], len: usize) -> Vec<u8> {
    let ip = &frame[14..];
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let ports = match sliced.transport.unwrap() {
        TransportSlice::Tcp(tcp) => (tcp.source_port(), tcp.destination_port()),
        TransportSlice::Udp(udp) => (udp.source_port(), udp.destination_port()),
        other => panic!("{other:?}"),
    };
    let step = if ip[0] >> 4 == 4 {
        let (from, to) = (ip[16..20].try_into().unwrap(), ip[12..16].try_into().unwrap());
        PacketBuilder::ipv4(from, to, 60)
    } else {
        let (from, to) = (ip[24..40].try_into().unwrap(), ip[8..24].try_into().unwrap());
        PacketBuilder::ipv6(from, to, 60)
    };
    let protocol = if ip[0] >> 4 == 4 { ip[9] } else { ip[6] };
    let mut bytes = Vec::new();
    match protocol {
        6 => step.tcp(ports.1, ports.0, 7, 8).write(&mut bytes, &[0; 1200]).unwrap(),
        _ => step.udp(ports.1, ports.0).write(&mut bytes, &[0; 1200]).unwrap(),
    }
    bytes.truncate(len);
    bytes
}

/// Returns an ICMP error that a router sends to `vip` and that quotes `quote`.
pub(crate) fn error(vip: &str, kind: (u8, u8), quote: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let link = PacketBuilder::ethernet2(ROUTER, OURS);
    match (ip(vip), ip(ROUTER4), ip(ROUTER6)) {
        (IpAddr::V4(vip), IpAddr::V4(router), _) => {
            let step = link.ipv4(router.octets(), vip.octets(), 64);
            step.icmpv4_raw(kind.0, kind.1, [0, 0, 5, 0]).write(&mut bytes, quote).unwrap();
        }
        (IpAddr::V6(vip), _, IpAddr::V6(router)) => {
            let step = link.ipv6(router.octets(), vip.octets(), 64);
            step.icmpv6_raw(kind.0, kind.1, [0, 0, 5, 0]).write(&mut bytes, quote).unwrap();
        }
        _ => panic!("families"),
    }
    bytes
}

fn flows() -> Vec<(&'static str, Vec<u8>)> {
    let mut frames = Vec::new();
    for port in 0..40 {
        frames.push((VIP4, tcp("198.51.100.7", 1000 + port, VIP4, 80, "A")));
        frames.push((VIP4, udp("198.51.100.7", 1000 + port, VIP4, 443, b"")));
        frames.push((VIP6, tcp("2001:db8:9::7", 1000 + port, VIP6, 80, "A")));
        frames.push((VIP6, udp("2001:db8:9::7", 1000 + port, VIP6, 53, b"")));
    }
    frames
}

// Promise: icmp-error-routing
#[test]
fn an_error_goes_to_the_backend_of_the_flow_that_it_quotes() {
    for known in [true, false] {
        let mut bed = Bed::with(parts(gre_slots(5), &[1; 5]), generous());
        for (vip, frame) in flows() {
            let expected = bed.backend_of(&frame).unwrap();
            if known {
                // With these weights, Maglev would select different backends. Only the connection
                // table still contains the original backends.
                bed.live.publish(Snapshot::new(parts(gre_slots(5), &[1, 9, 1, 9, 1])).unwrap());
            } else {
                bed = Bed::with(parts(gre_slots(5), &[1; 5]), generous());
            }
            let quotes = if vip == VIP4 { [28, 400] } else { [48, 900] };
            let kinds = if vip == VIP4 {
                [(3, 4), (3, 1), (11, 0), (12, 0)]
            } else {
                [(2, 0), (1, 3), (3, 0), (4, 1)]
            };
            for (kind, quote) in kinds.iter().flat_map(|kind| quotes.map(|quote| (kind, quote))) {
                let message = error(vip, *kind, &answer_to(&frame, quote));
                let (verdict, out) = bed.send(24, &message);
                assert_eq!((verdict, out[14 + 19]), (Verdict::Tx, expected), "{kind:?}");
                let behind = if vip == VIP4 { 20 } else { 40 };
                assert_eq!(out[14 + 24 + behind..], message[14 + behind..], "the message is unchanged");
            }
            bed.live.publish(Snapshot::new(parts(gre_slots(5), &[1; 5])).unwrap());
        }
        assert_eq!(bed.pipeline.flows().len(), if known { 121 } else { 0 }, "errors create no flow");
    }
}

pub(crate) fn generous() -> PipelineConfig {
    let icmp =
        IcmpRates { replies: 9_999, replies_per_source: 9_999, errors: 9_999, errors_per_source: 9_999 };
    PipelineConfig { icmp, ..config() }
}

// Promise: icmp-error-routing
#[test]
fn a_quote_that_names_no_flow_is_dropped_by_name() {
    const OTHER_VIP: &str = "203.0.113.11";
    let mut parts = parts(gre_slots(2), &[1, 1]);
    parts.bindings.push(binding(OTHER_VIP, 6, 80..=80, 0));
    let mut bed = Bed::with(parts, generous());
    let frame = tcp("198.51.100.7", 9, VIP4, 80, "A");
    let whole = answer_to(&frame, 300);
    let elsewhere = bed.send(24, &error(OTHER_VIP, (3, 1), &whole)).0;
    assert_eq!(elsewhere, Verdict::Drop(DropReason::IcmpQuote), "the quoted source is another VIP");
    let mut reason = |quote: &[u8]| bed.send(24, &error(VIP4, (3, 1), quote)).0;
    assert_eq!(reason(&whole), Verdict::Tx);
    assert_eq!(reason(&whole[..22]), Verdict::Drop(DropReason::IcmpQuote), "the quote ends before the ports");
    assert_eq!(reason(&whole[..19]), Verdict::Drop(DropReason::Malformed));
    let mut later = whole.clone();
    later[6..8].copy_from_slice(&100u16.to_be_bytes());
    assert_eq!(reason(&later), Verdict::Drop(DropReason::IcmpQuote), "a later fragment has no ports");
    let mut first = whole.clone();
    first[6] = 0x20;
    assert_eq!(reason(&first), Verdict::Tx, "a first fragment has ports");
    let mut other = whole.clone();
    other[15] ^= 1;
    assert_eq!(reason(&other), Verdict::Drop(DropReason::IcmpQuote), "the quoted source is not a VIP");
    let mut port = whole.clone();
    port[21] ^= 1;
    assert_eq!(reason(&port), Verdict::Drop(DropReason::IcmpQuote), "the port has no service");
}

#[test]
fn icmp_error_on_an_echo_reply_goes_to_its_backend() {
    for (vip, request, reply, kind) in [(VIP4, (1, 8), 0, (3, 4)), (VIP6, (58, 128), 129, (2, 0))] {
        let mut bed = Bed::with(parts(gre_slots(7), &[1; 7]), generous());
        for host in 1..30 {
            let client =
                if vip == VIP4 { format!("198.51.100.{host}") } else { format!("2001:db8:9::{host}") };
            let client: &'static str = Box::leak(client.into_boxed_str());
            let mut payload = vec![request.1, 0, 0, 0, 0, 1, 0, 1];
            payload.resize(4000, 0);
            let asked = Datagram { source: client, vip, protocol: request.0, id: host, payload };
            let expected = bed.backend_of(&asked.cut(1400)[0]).unwrap();
            let mut answer = Datagram { source: vip, vip: client, ..asked };
            answer.payload[0] = reply;
            for piece in answer.cut(1400) {
                let (verdict, out) = bed.send(24, &error(vip, kind, &piece[14..600]));
                assert_eq!((verdict, out[14 + 19]), (Verdict::Tx, expected), "{client}");
            }
        }
        assert_eq!(bed.pipeline.flows().len(), 0);
    }
}

#[test]
fn an_error_asks_one_thread_after_the_other() {
    let live = Live::new(Snapshot::new(parts(gre_slots(5), &[1; 5])).unwrap());
    let mut threads: Vec<Pipeline> = (0..3)
        .map(|thread| {
            let config = PipelineConfig { thread: ThreadId(thread), threads: 3, ..generous() };
            Pipeline::new(config, &live, std::sync::Arc::new(ThreadCounters::new(16, 16)), None).unwrap()
        })
        .collect();
    let frame = tcp("198.51.100.7", 9, VIP4, 80, "A");
    let message = error(VIP4, (3, 1), &answer_to(&frame, 60));
    let ask = |thread: &mut Pipeline, frame: &[u8], origin| {
        let mut buffer = vec![0; ROOM];
        buffer[24..24 + frame.len()].copy_from_slice(frame);
        let mut packets = [Packet::new(&mut buffer, 24, 24 + frame.len(), origin)];
        let mut verdicts = [Verdict::Tx];
        thread.process(Now::from_nanos(1_000_000_000), &mut packets, &mut verdicts);
        (verdicts[0], packets[0].frame().get(33).copied())
    };
    let asked = |asked| HandoffReason::IcmpError { asked, decapsulated_from: None };
    assert_eq!(ask(&mut threads[1], &message, Origin::Wire).0, Verdict::ToThread(ThreadId(2), asked(1)));
    let second = ask(&mut threads[2], &message, Origin::Thread(ThreadId(1), asked(1))).0;
    assert_eq!(second, Verdict::ToThread(ThreadId(0), asked(2)));
    // If a thread has an entry for the flow, the backend of that entry is used. Otherwise, the last
    // thread selects a backend as for a new flow.
    let (verdict, chosen) = ask(&mut threads[0], &message, Origin::Thread(ThreadId(2), asked(2)));
    let (_, backend) = ask(&mut threads[2], &frame, Origin::Wire);
    assert_eq!((verdict, chosen), (Verdict::Tx, backend));
    live.publish(Snapshot::new(parts(gre_slots(5), &[0; 5])).unwrap());
    let second = ask(&mut threads[2], &message, Origin::Thread(ThreadId(1), asked(1)));
    assert_eq!(second, (Verdict::Tx, backend));
}

#[test]
fn errors_over_the_rate_of_a_source_or_of_all_are_dropped() {
    let icmp = IcmpRates { errors: 30, errors_per_source: 10, ..config().icmp };
    let mut bed = Bed::with(parts(gre_slots(2), &[1, 1]), PipelineConfig { icmp, ..config() });
    let frame = tcp("198.51.100.7", 9, VIP4, 80, "A");
    let mut message = error(VIP4, (3, 1), &answer_to(&frame, 60));
    for source in 1..=4 {
        message[14 + 15] = source;
        for _ in 0..12 {
            let (Verdict::Tx | Verdict::Drop(DropReason::IcmpRate)) = bed.send(24, &message).0 else {
                panic!()
            };
        }
    }
    assert_eq!(
        (
            bed.counters.drops(DropReason::IcmpRate),
            bed.counters.backend(0).unwrap().packets.read() + bed.counters.backend(1).unwrap().packets.read()
        ),
        (18, 30)
    );
}

/// Parses the ICMP error in `out`. Returns the type, the code, the MTU field, the source, the
/// destination and the quote.
pub(crate) fn read_error(out: &[u8]) -> (u8, u8, u32, IpAddr, IpAddr, Vec<u8>) {
    let (headers, payload) = IpHeaders::from_slice(&out[14..]).unwrap();
    let message = payload.payload;
    let (source, destination): (IpAddr, IpAddr) = match (headers.ipv4(), headers.ipv6()) {
        (Some((v4, _)), _) => {
            assert_eq!(v4.calc_header_checksum(), v4.header_checksum);
            (v4.source.into(), v4.destination.into())
        }
        (_, Some((v6, _))) => (v6.source.into(), v6.destination.into()),
        _ => panic!("no IP"),
    };
    assert_eq!(SlicedPacket::from_ethernet(out).map(|_| ()), Ok(()));
    let mtu = u32::from_be_bytes(message[4..8].try_into().unwrap());
    (message[0], message[1], mtu, source, destination, message[8..].to_vec())
}

pub(crate) fn without_df(mut frame: Vec<u8>) -> Vec<u8> {
    frame[14 + 6] = 0;
    refresh(frame)
}

pub(crate) fn refresh(mut frame: Vec<u8>) -> Vec<u8> {
    let mut header = etherparse::Ipv4Header::from_slice(&frame[14..]).unwrap().0;
    header.header_checksum = header.calc_header_checksum();
    frame[14..34].copy_from_slice(&header.to_bytes());
    frame
}

#[test]
fn a_sender_is_told_which_size_fits() {
    for (backend, encap_overhead) in [("198.18.1.1", 24), ("2001:db8:18::1", 44)] {
        let slots = vec![slot("b1", backend, Encapsulation::Gre)];
        let mut bed = Bed::with(parts(slots, &[1]), generous());
        for head in [0, encap_overhead, 60] {
            let four = udp("198.51.100.7", 9, VIP4, 443, &[7; 1460]);
            let (verdict, out) = bed.send(head, &four);
            assert_eq!(verdict, Verdict::Reply);
            let (kind, code, mtu, source, destination, quote) = read_error(&out);
            assert_eq!((kind, code, mtu), (3, 4, 1500 - encap_overhead as u32));
            assert_eq!((source, destination), (ip(VIP4), ip("198.51.100.7")));
            assert_eq!(quote[..], four[14..][..quote.len()], "the quote is unchanged, including the TTL");
            assert_eq!((&out[..6], &out[6..12]), (&ROUTER[..], &OURS[..]));
            let six = udp("2001:db8:9::7", 9, VIP6, 443, &[7; 1440]);
            let (verdict, out) = bed.send(head, &six);
            assert_eq!(verdict, Verdict::Reply);
            let (kind, code, mtu, source, destination, quote) = read_error(&out);
            assert_eq!((kind, code, mtu), (2, 0, 1500 - encap_overhead as u32));
            assert_eq!((source, destination), (ip(VIP6), ip("2001:db8:9::7")));
            assert_eq!(quote[..], six[14..][..quote.len()]);
        }
        assert_eq!(bed.counters.packet_too_big_sent.read(), 6);
    }
}

// Promise: icmp-rate-limits
// Promise: icmp-independent-limits
#[test]
fn pings_and_spent_hops_silence_no_packet_too_big() {
    let icmp = IcmpRates { replies: 50, replies_per_source: 20, ..config().icmp };
    let mut bed = Bed::with(parts(gre_slots(1), &[1]), PipelineConfig { icmp, ..config() });
    let ping = |source: [u8; 4]| {
        let mut bytes = Vec::new();
        let IpAddr::V4(vip) = ip(VIP4) else { unreachable!() };
        let step = PacketBuilder::ethernet2(ROUTER, OURS).ipv4(source, vip.octets(), 64);
        step.icmpv4_echo_request(1, 2).write(&mut bytes, b"ping").unwrap();
        bytes
    };
    let large = udp("198.51.100.7", 9, VIP4, 443, &[7; 1460]);
    let spent = with_ttl(tcp("198.51.100.7", 9, VIP4, 80, "S"), 1);
    let flood = [[198, 51, 100, 7], [198, 51, 100, 8], [198, 51, 100, 9]].map(ping);
    let flood_with_spent = flood.iter().chain([&spent]).cycle().take(400);
    let answered = flood_with_spent.filter(|frame| bed.send(24, frame).0 == Verdict::Reply).count();
    assert_eq!(answered, 50);
    assert_eq!(bed.send(24, &flood[0]).0, Verdict::Drop(DropReason::ReplyRate));
    let sent = (0..100).filter(|_| bed.send(24, &large).0 == Verdict::Reply).count();
    assert_eq!(sent, 20, "the limit per source");
    let others = (0..100u8).filter(|n| {
        bed.send(24, &udp(&format!("198.51.100.{}", 100 + n), 9, VIP4, 443, &[7; 1460])).0 == Verdict::Reply
    });
    assert_eq!(others.count(), 30, "the limit per second");
}

#[test]
fn a_packet_without_a_hop_left_is_answered_from_the_machine() {
    let mut bed = Bed::with(parts(gre_slots(1), &[1]), generous());
    let mut four = tcp("198.51.100.7", 9, VIP4, 80, "S");
    four[14 + 8] = 1;
    let four = refresh(four);
    let (verdict, out) = bed.send(24, &four);
    let (kind, code, _, source, destination, quote) = read_error(&out);
    assert_eq!((verdict, kind, code, source), (Verdict::Reply, 11, 0, ip("192.0.2.1")));
    assert_eq!((destination, &quote[..]), (ip("198.51.100.7"), &four[14..]));
    let mut six = tcp("2001:db8:9::7", 9, VIP6, 80, "S");
    six[14 + 7] = 1;
    let (verdict, out) = bed.send(24, &six);
    let (kind, code, _, source, _, quote) = read_error(&out);
    assert_eq!((verdict, kind, code, source), (Verdict::Reply, 3, 0, ip("2001:db8::1")));
    assert_eq!(quote[..], six[14..]);
    assert_eq!(bed.counters.time_exceeded.read(), 2);
}

#[test]
fn oversized_packet_with_expired_ttl_gets_time_exceeded() {
    for too_big in [TooBig::FragmentInner, TooBig::FragmentOuter, TooBig::Drop] {
        let mut slots = gre_slots(1);
        slots[0].too_big = too_big;
        let mut bed = Bed::with(parts(slots, &[1]), generous());
        let mut four = udp("198.51.100.7", 9, VIP4, 443, &[5; 1460]);
        four[14 + 8] = 1;
        for frame in [refresh(four.clone()), without_df(four)] {
            let (verdict, out) = bed.send(24, &frame);
            assert_eq!((verdict, read_error(&out).0), (Verdict::Reply, 11));
        }
        let mut six = udp("2001:db8:9::7", 9, VIP6, 443, &[5; 1440]);
        six[14 + 7] = 1;
        let (verdict, out) = bed.send(24, &six);
        assert_eq!((verdict, read_error(&out).0), (Verdict::Reply, 3));
        assert_eq!((bed.counters.time_exceeded.read(), bed.counters.packet_too_big_sent.read()), (3, 0));
        assert_eq!((bed.holding(), bed.counters.fragmented.read()), (0, 0));
    }
}

/// Reassembles IPv4 fragments, which may be in any order. The algorithm is simple and independent
/// of the product code.
pub(crate) fn reassembled(pieces: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
    let mut bytes: Vec<Option<u8>> = Vec::new();
    let mut end = None;
    for piece in pieces {
        let (header, payload) = etherparse::Ipv4Header::from_slice(piece).unwrap();
        assert_eq!(header.calc_header_checksum(), header.header_checksum);
        assert_eq!(usize::from(header.total_len), piece.len());
        let at = usize::from(header.fragment_offset.value()) * 8;
        bytes.resize(bytes.len().max(at + payload.len()), None);
        for (place, byte) in payload.iter().enumerate() {
            assert_eq!(bytes[at + place].replace(*byte), None, "no byte is duplicated");
        }
        if !header.more_fragments {
            end = Some(at + payload.len());
        }
    }
    assert_eq!(end, Some(bytes.len()));
    (pieces[0][12..20].to_vec(), bytes.into_iter().map(Option::unwrap).collect())
}

#[test]
fn with_df_clear_the_packet_is_cut_inside_or_outside() {
    for (too_big, mtu) in
        [(TooBig::FragmentInner, 700), (TooBig::FragmentOuter, 700), (TooBig::FragmentInner, 1500)]
    {
        let mut slots = gre_slots(1);
        (slots[0].too_big, slots[0].mtu) = (too_big, mtu);
        let mut bed = Bed::new(parts(slots, &[1]));
        let frame = without_df(udp("198.51.100.7", 9, VIP4, 443, &[5; 1460]));
        let out = bed.all(&frame);
        assert_eq!(bed.holding(), 0);
        assert!(out.len() > 1 && out.iter().all(|(verdict, _)| *verdict == Verdict::Tx));
        assert!(out.iter().all(|(_, piece)| piece.len() <= 14 + usize::from(mtu)));
        assert!(out.iter().all(|(_, piece)| piece[..6] == HOP && piece[14 + 16..14 + 20] == [198, 18, 1, 1]));
        let inner: Vec<u8> = if too_big == TooBig::FragmentInner {
            let pieces: Vec<_> = out.iter().map(|(_, piece)| piece[14 + 24..].to_vec()).collect();
            assert!(pieces.iter().all(|piece| piece[8] == 63));
            reassembled(&pieces).1
        } else {
            let pieces: Vec<_> = out.iter().map(|(_, piece)| piece[14..].to_vec()).collect();
            let outer = reassembled(&pieces).1;
            assert_eq!(outer[..4], [0, 0, 8, 0]);
            assert_eq!(outer[4 + 8], 63);
            outer[4 + 20..].to_vec()
        };
        assert_eq!(inner, frame[34..]);
        assert_eq!(bed.counters.fragmented.read(), 1);
        // All fragments together are counted as one packet from the client.
        let forwarded = bed.counters.backend(0).unwrap();
        assert_eq!((forwarded.packets.read(), forwarded.bytes.read()), (1, frame.len() as u64));
    }
}

#[test]
fn what_cannot_be_cut_is_dropped_for_what_hindered_it() {
    let mut slots = gre_slots(1);
    slots[0].too_big = TooBig::FragmentInner;
    let mut bed = Bed::new(parts(slots, &[1]));
    let frame = without_df(udp("198.51.100.7", 9, VIP4, 443, &[5; 1460]));
    let mut lying = frame.clone();
    lying[14 + 10] ^= 1;
    assert_eq!(bed.all(&lying)[0].0, Verdict::Drop(DropReason::Malformed), "the checksum is wrong");
    let mut slots = gre_slots(1);
    (slots[0].too_big, slots[0].next_hop) = (TooBig::FragmentInner, None);
    bed.live.publish(Snapshot::new(parts(slots, &[1])).unwrap());
    assert_eq!(bed.all(&frame)[0].0, Verdict::Drop(DropReason::NoNextHop));
    assert_eq!(bed.holding(), 0);
}

#[test]
fn with_df_clear_and_no_policy_it_is_dropped() {
    let mut bed = Bed::new(parts(gre_slots(1), &[1]));
    let frame = without_df(udp("198.51.100.7", 9, VIP4, 443, &[5; 1460]));
    assert_eq!(bed.send(24, &frame).0, Verdict::Drop(DropReason::TooBig));
}

#[test]
fn ipv6_of_the_least_mtu_always_goes_through() {
    for backend in ["198.18.1.1", "2001:db8:18::1"] {
        let mut slots = vec![slot("b1", backend, Encapsulation::Gre)];
        slots[0].mtu = 1280;
        let encap_overhead = slots[0].encap_overhead();
        let mut bed = Bed::new(parts(slots, &[1]));
        let least = udp("2001:db8:9::7", 9, VIP6, 443, &[5; 1232]);
        let out = bed.all(&least);
        assert_eq!(out.len(), 2);
        assert!(out.iter().all(|(verdict, piece)| *verdict == Verdict::Tx && piece.len() <= 14 + 1280));
        let carried: usize = out.iter().map(|(_, piece)| piece.len() - 14).sum();
        assert_eq!(carried, 1280 + encap_overhead + if encap_overhead == 24 { 20 } else { 40 + 8 + 8 });
        let larger = udp("2001:db8:9::7", 9, VIP6, 443, &[5; 1233]);
        let (verdict, out) = bed.send(24, &larger);
        assert_eq!((verdict, read_error(&out).2), (Verdict::Reply, 1280));
    }
}

#[test]
fn a_fragment_that_is_too_big_is_cut_again() {
    let mut slots = gre_slots(1);
    slots[0].too_big = TooBig::FragmentInner;
    let mut bed = Bed::new(parts(slots, &[1]));
    let payload = udp_payload(9, 443, 3600);
    let datagram = Datagram { source: "198.51.100.7", vip: VIP4, protocol: 17, id: 5, payload };
    let pieces = datagram.cut(1480);
    let out: Vec<_> = [2, 0, 1].iter().flat_map(|place| bed.all(&pieces[*place])).collect();
    assert!(out.iter().all(|(verdict, piece)| *verdict == Verdict::Tx && piece.len() <= 1514));
    let inner: Vec<_> = out.iter().map(|(_, piece)| piece[14 + 24..].to_vec()).collect();
    assert_eq!((inner.len(), reassembled(&inner).1), (5, datagram.payload));
}

// Promise: path-mtu-forgery
#[test]
fn icmp_error_on_an_outer_packet_is_reported() {
    let mut bed = Bed::with(parts(gre_slots(2), &[1, 1]), generous());
    let (sink, mut notices) = notice_ring(4);
    bed = bed.with_notices(sink);
    let mut sent = |port| bed.send(24, &tcp("198.51.100.7", port, VIP4, 80, "S")).1[14..].to_vec();
    let outer = sent(9);
    let backend = format!("198.18.1.{}", outer[19]);
    let elsewhere = (10..).map(&mut sent).find(|other| other[19] != outer[19]).unwrap();
    let mut quoting = |quote: &[u8], mtu: u16, to: &str| {
        let mut message = error(to, (3, 4), quote);
        message[14 + 26..14 + 28].copy_from_slice(&mtu.to_be_bytes());
        bed.send(0, &with_icmp_checksum(message)).0
    };
    let path = |mtu| Some(Notice::PathMtu { destination: ip(&backend), mtu });
    // The first quoted flow is unknown. The second quoted flow is tracked, but on a different
    // backend.
    let (mut unknown, mut misplaced) = (outer[..60].to_vec(), elsewhere[..60].to_vec());
    unknown[24 + 20..24 + 22].copy_from_slice(&8u16.to_be_bytes());
    misplaced[16..20].copy_from_slice(&outer[16..20]);
    for forged in [unknown, misplaced] {
        assert_eq!(quoting(&forged, 1400, "192.0.2.1"), Verdict::Drop(DropReason::IcmpQuote));
        assert_eq!(notices.next(), None);
    }
    let mut about = |len: usize, mtu: u16, to: &str| quoting(&outer[..len], mtu, to);
    assert_eq!(about(60, 1400, "192.0.2.1"), Verdict::Drop(DropReason::TakenIn));
    assert_eq!(notices.next(), path(1400));
    assert_eq!(about(28, 1300, "192.0.2.1"), Verdict::Drop(DropReason::TakenIn));
    assert_eq!(notices.next(), path(1300), "8 bytes after the outer header are enough");
    assert_eq!(about(60, 68, "192.0.2.1"), Verdict::Drop(DropReason::TakenIn));
    assert_eq!(notices.next(), path(552), "the MTU has a lower limit");
    assert_eq!(
        about(60, 1400, "192.0.2.2"),
        Verdict::Drop(DropReason::IcmpQuote),
        "the outer source differs"
    );
    assert_eq!(notices.next(), None);
}

// Promise: path-mtu-forgery
#[test]
fn icmp_error_on_an_outer_packet_visits_all_threads() {
    let mut bed = Bed::with(parts(gre_slots(1), &[1]), PipelineConfig { threads: 3, ..generous() });
    let (_, outer) = Bed::new(parts(gre_slots(1), &[1])).send(24, &tcp("198.51.100.7", 9, VIP4, 80, "S"));
    let message = with_icmp_checksum(error("192.0.2.1", (3, 4), &outer[14..][..60]));
    let asked = |asked| HandoffReason::IcmpError { asked, decapsulated_from: None };
    assert_eq!(bed.send(0, &message).0, Verdict::ToThread(ThreadId(1), asked(1)));
    let from = |count| Origin::Thread(ThreadId(2), asked(count));
    assert_eq!(bed.send_as(from(1), 0, &message).0, Verdict::ToThread(ThreadId(1), asked(2)));
    assert_eq!(
        bed.send_as(from(2), 0, &message).0,
        Verdict::Drop(DropReason::IcmpQuote),
        "all threads were searched"
    );
}

#[test]
fn mapped_destination_in_a_quote_matches_nothing() {
    let mut bed = Bed::with(parts(gre_slots(2), &[1, 1]), generous());
    let (sink, mut notices) = notice_ring(4);
    bed = bed.with_notices(sink);
    let mapped = format!("::ffff:{VIP4}");
    let quotes = [
        (tcp("2001:db8:9::7", 9, VIP6, 80, "S"), "::ffff:198.18.1.1", 40 + 8),
        // The quote must end before the inner ports. Otherwise, the flow would be looked up.
        (tcp("2001:db8:9::7", 9, &mapped, 80, "S"), "2001:db8:1::1", 40 + 4 + 40),
    ];
    for (inner, backend, len) in quotes {
        let outer = wrapped(&inner, Encapsulation::Gre, ("2001:db8::1", backend), 0);
        let message = error("2001:db8::1", (2, 0), &outer[14..][..len]);
        assert_eq!(bed.send(0, &message).0, Verdict::Drop(DropReason::IcmpQuote), "{backend}");
        assert_eq!(notices.next(), None);
    }
}

/// Fills in the ICMP checksum.
fn with_icmp_checksum(mut message: Vec<u8>) -> Vec<u8> {
    message[14 + 22..14 + 24].copy_from_slice(&[0, 0]);
    let words = message[34..].chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    message[14 + 22..14 + 24].copy_from_slice(&sum.to_be_bytes());
    message
}

#[test]
fn icmp_error_on_a_large_echo_reply_goes_to_its_backend() {
    let mut bed = Bed::with(parts(gre_slots(5), &[1; 5]), generous());
    for host in 1..30 {
        let source: &'static str = Box::leak(format!("2001:db8:9::{host:x}").into_boxed_str());
        let request = Datagram { source, vip: VIP6, protocol: 58, id: 7, payload: vec![128; 2000] };
        let expected = bed.all(&request.cut(1000)[0])[0].1[14 + 19];
        let reply = Datagram { source: VIP6, vip: source, protocol: 58, id: 8, payload: vec![129; 2000] };
        for piece in reply.cut(1000) {
            let (verdict, out) = bed.send(24, &error(VIP6, (2, 0), &piece[14..]));
            assert_eq!((verdict, out[14 + 19]), (Verdict::Tx, expected));
        }
    }
}
