//! Tests of tunneled packets: packets from upstream tunnels are processed like packets without a
//! tunnel, and packets from peers are redirected at most once.

use std::collections::HashMap;
use std::sync::Arc;

use forwarder::*;
use packet::{Encapsulation, Family, Inner, Outer, Template};

use crate::bed::*;
use crate::pieces::{Datagram, udp_payload};

pub(crate) fn from(address: &str, kind: TunnelSourceKind) -> TunnelSource {
    let bits = if ip(address).is_ipv4() { 32 } else { 128 };
    let all = TunnelProtocols::GRE.and(TunnelProtocols::IPIP).and(TunnelProtocols::GUE);
    TunnelSource { prefix: Prefix::new(ip(address), bits).unwrap(), carriers: all, kind }
}

/// Encapsulates `frame` in a tunnel to `to`, as the kernel does. The result consists of an Ethernet
/// header, the outer headers and the unchanged inner packet.
pub(crate) fn wrapped(frame: &[u8], kind: Encapsulation, outer: (&str, &str), recursion: u8) -> Vec<u8> {
    let inner = &frame[14..];
    let family = if inner[0] >> 4 == 4 { Family::V4 } else { Family::V6 };
    let outer = match (ip(outer.0), ip(outer.1)) {
        (std::net::IpAddr::V4(source), std::net::IpAddr::V4(destination)) => {
            Outer::V4 { source, destination }
        }
        (std::net::IpAddr::V6(source), std::net::IpAddr::V6(destination)) => {
            Outer::V6 { source, destination }
        }
        _ => panic!("addresses of different families"),
    };
    let template = Template::new(kind, outer, family, true).with_recursion(recursion);
    let mut bytes = frame[..12].to_vec();
    bytes.extend(template.ethertype().to_be_bytes());
    let start = bytes.len();
    bytes.resize(start + template.len(), 0);
    template
        .write(
            &mut bytes[start..],
            &Inner { len: inner.len() as u16, tos: 0, flow_hash: 7, identification: 9 },
        )
        .unwrap();
    bytes.extend(inner);
    bytes
}

fn plain() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for port in 0..20 {
        frames.push(tcp("198.51.100.7", 1000 + port, VIP4, 80, "A"));
        frames.push(udp("2001:db8:9::7", 1000 + port, VIP6, 443, b"payload"));
    }
    frames
}

#[test]
fn what_an_encapsulator_sends_goes_on_as_if_it_had_come_plain() {
    let sources = [("192.0.2.77", "192.0.2.1"), ("2001:db8::77", "2001:db8::1")];
    let kinds = [Encapsulation::Gre, Encapsulation::Ipip, Encapsulation::Gue { udp_checksum: false }];
    for (kind, outer) in kinds.iter().flat_map(|kind| sources.map(|outer| (kind, outer))) {
        let mut parts = parts(gre_slots(5), &[1; 5]);
        parts.tunnels = vec![from(outer.0, TunnelSourceKind::UpstreamTunnel)];
        let mut bed = Bed::new(parts);
        for frame in plain() {
            let (verdict, expected) = bed.send(24, &frame);
            assert_eq!(verdict, Verdict::Tx);
            let (verdict, out) = bed.send(0, &wrapped(&frame, *kind, outer, 0));
            assert_eq!((verdict, &out), (Verdict::Tx, &expected), "{kind:?} {outer:?}");
        }
        assert_eq!(bed.counters.decapsulated.read(), 40);
    }
}

// Promise: tunnel-senders
#[test]
fn nobody_else_s_tunnel_is_opened_and_no_tunnel_in_a_tunnel() {
    let mut parts = parts(gre_slots(2), &[1, 1]);
    parts.tunnels = vec![from("192.0.2.77", TunnelSourceKind::UpstreamTunnel)];
    let mut bed = Bed::new(parts);
    let frame = tcp("198.51.100.7", 9, VIP4, 80, "A");
    let stranger = wrapped(&frame, Encapsulation::Gre, ("192.0.2.78", "192.0.2.1"), 0);
    assert_eq!(bed.send(0, &stranger).0, Verdict::Drop(DropReason::NoVip));
    let marked = wrapped(&frame, Encapsulation::Gre, ("192.0.2.77", "192.0.2.1"), 1);
    assert_eq!(
        bed.send(0, &marked).0,
        Verdict::Drop(DropReason::NoVip),
        "upstream tunnels do not mark packets"
    );
    let once = wrapped(&frame, Encapsulation::Ipip, ("192.0.2.77", "192.0.2.1"), 0);
    let twice = wrapped(&once, Encapsulation::Ipip, ("192.0.2.77", "192.0.2.1"), 0);
    assert_eq!(
        bed.send(0, &twice).0,
        Verdict::Drop(DropReason::NoVip),
        "the inner destination is this machine"
    );
    let mut cut = wrapped(&frame, Encapsulation::Gre, ("192.0.2.77", "192.0.2.1"), 0);
    cut.truncate(14 + 24 + 10);
    cut[16..18].copy_from_slice(&34u16.to_be_bytes());
    assert!(matches!(bed.send(0, &cut).0, Verdict::Drop(_)));
}

// Promise: tunnel-senders
#[test]
fn a_tunnel_to_a_vip_is_a_packet_like_any_other() {
    for kind in [TunnelSourceKind::UpstreamTunnel, TunnelSourceKind::Peer] {
        let mut parts = parts(gre_slots(2), &[1, 1]);
        parts.tunnels = vec![from("192.0.2.77", kind)];
        let mut bed = Bed::new(parts);
        let recursion = u8::from(kind == TunnelSourceKind::Peer);
        let frame = tcp("198.51.100.7", 9, VIP4, 80, "A");
        // The VIP has a service for protocol 47 (GRE).
        let to_vip = wrapped(&frame, Encapsulation::Gre, ("192.0.2.77", VIP4), recursion);
        let (verdict, out) = bed.send(24, &to_vip);
        assert_eq!((verdict, out[14 + 24 + 9]), (Verdict::Tx, 47), "{kind:?}");
        assert_eq!(out[14 + 24 + 20..], to_vip[14 + 20..]);
        assert_eq!(bed.counters.decapsulated.read(), 0);
    }
}

#[test]
fn an_ipv4_mapped_destination_is_nobodys_in_a_tunnel_too() {
    let mapped = format!("::ffff:{VIP4}");
    let mut parts = parts(gre_slots(2), &[1, 1]);
    parts.tunnels = vec![from("192.0.2.77", TunnelSourceKind::UpstreamTunnel)];
    let mut bed = Bed::new(parts);
    let no_vip = Verdict::Drop(DropReason::NoVip);
    for frame in [tcp("2001:db8:9::7", 9, &mapped, 80, "S"), udp("2001:db8:9::7", 9, &mapped, 443, b"x")] {
        assert_eq!(bed.send(24, &frame).0, no_vip);
        let inside = wrapped(&frame, Encapsulation::Ipip, ("192.0.2.77", "192.0.2.1"), 0);
        assert_eq!(bed.send(0, &inside).0, no_vip);
    }
    assert!(bed.pipeline.flows().is_empty());
}

#[test]
fn an_ipv4_mapped_outer_source_is_nobodys_who_may_send() {
    for kind in [TunnelSourceKind::UpstreamTunnel, TunnelSourceKind::Peer, TunnelSourceKind::Cluster] {
        let mut parts = parts(gre_slots(2), &[1, 1]);
        parts.tunnels = vec![from("192.0.2.77", kind)];
        let mut bed = Bed::new(parts);
        let recursion = u8::from(kind != TunnelSourceKind::UpstreamTunnel);
        let frame = tcp("198.51.100.7", 9, VIP4, 80, "A");
        let outer = ("::ffff:192.0.2.77", "2001:db8::1");
        let verdict = bed.send(0, &wrapped(&frame, Encapsulation::Gre, outer, recursion)).0;
        assert_eq!(
            (verdict, bed.counters.decapsulated.read()),
            (Verdict::Drop(DropReason::NoVip), 0),
            "{kind:?}"
        );
    }
}

#[test]
fn tunneled_icmp_errors_are_limited_on_every_thread() {
    let mut parts = parts(gre_slots(2), &[1, 1]);
    parts.tunnels = vec![from("192.0.2.77", TunnelSourceKind::UpstreamTunnel)];
    let icmp = IcmpRates { errors: 10, ..config().icmp };
    let mut bed = Bed::with(parts, PipelineConfig { icmp, threads: 1, ..config() });
    let mut quote = Vec::new();
    let step = etherparse::PacketBuilder::ipv4([203, 0, 113, 10], [198, 51, 100, 7], 60);
    step.tcp(80, 9, 7, 8).write(&mut quote, &[0; 20]).unwrap();
    let mut message = Vec::new();
    let step =
        etherparse::PacketBuilder::ethernet2(ROUTER, OURS).ipv4([192, 0, 2, 254], [203, 0, 113, 10], 64);
    step.icmpv4_raw(3, 1, [0; 4]).write(&mut message, &quote).unwrap();
    let steered = Origin::Thread(
        ThreadId(1),
        HandoffReason::Steered { decapsulated_from: Some(TunnelSourceKind::UpstreamTunnel) },
    );
    let verdicts: Vec<Verdict> = (0..15).map(|_| bed.send_as(steered, 24, &message).0).collect();
    let (passed, limited) = verdicts.split_at(10);
    assert!(passed.iter().all(|verdict| *verdict == Verdict::Tx), "{passed:?}");
    assert!(limited.iter().all(|verdict| *verdict == Verdict::Drop(DropReason::IcmpRate)), "{limited:?}");
}

#[test]
fn tunneled_flows_are_spread_by_the_inner_tuple() {
    let mut parts = parts(gre_slots(2), &[1, 1]);
    parts.tunnels = vec![from("192.0.2.77", TunnelSourceKind::UpstreamTunnel)];
    let live = Live::new(Snapshot::new(parts).unwrap());
    let pipeline = |thread| {
        let config = PipelineConfig { thread: ThreadId(thread), threads: 4, ..config() };
        Pipeline::new(config, &live, Arc::new(ThreadCounters::new(16, 16)), None).unwrap()
    };
    let mut threads: Vec<Pipeline> = (0..4).map(pipeline).collect();
    let mut share: HashMap<u16, usize> = HashMap::new();
    for port in 0..400 {
        let frame = tcp("198.51.100.7", 1000 + port, VIP4, 80, "A");
        let outer = wrapped(&frame, Encapsulation::Gre, ("192.0.2.77", "192.0.2.1"), 0);
        let mut buffer = vec![0; ROOM];
        buffer[..outer.len()].copy_from_slice(&outer);
        let mut packets = [Packet::new(&mut buffer, 0, outer.len(), Origin::Wire)];
        let mut verdicts = [Verdict::Tx];
        threads[2].process(Now::from_nanos(9), &mut packets, &mut verdicts);
        let thread = match verdicts[0] {
            Verdict::Tx => 2,
            Verdict::ToThread(thread, reason) => {
                assert_eq!(
                    (reason, packets[0].frame()),
                    (
                        HandoffReason::Steered { decapsulated_from: Some(TunnelSourceKind::UpstreamTunnel) },
                        &frame[..]
                    ),
                    "opened"
                );
                let bounds = packets[0].bounds();
                let origin = Origin::Thread(ThreadId(2), reason);
                let mut there = [Packet::new(&mut buffer, bounds.start, bounds.end, origin)];
                threads[usize::from(thread.0)].process(Now::from_nanos(9), &mut there, &mut verdicts);
                assert_eq!(verdicts[0], Verdict::Tx);
                thread.0
            }
            other => panic!("{other:?}"),
        };
        *share.entry(thread).or_default() += 1;
    }
    assert!(share.len() == 4 && share.values().all(|count| (60..140).contains(count)), "{share:?}");
}

/// If all flows of a thread had similar hashes, they would use only part of its connection table
/// and evict each other.
#[test]
fn inner_tuple_spreading_uses_the_whole_flow_table() {
    let mut parts = parts(gre_slots(2), &[1, 1]);
    parts.tunnels = vec![from("192.0.2.77", TunnelSourceKind::UpstreamTunnel)];
    // The table of each thread has room for 1,024 flows. This thread receives about 512 of the
    // 2,048 flows.
    let config = PipelineConfig { threads: 4, flows: 1_024, ..config() };
    let mut bed = Bed::with(parts, config);
    for port in 0..2_048 {
        let frame = tcp("198.51.100.7", 1000 + port, VIP4, 80, "S");
        let outer = wrapped(&frame, Encapsulation::Gre, ("192.0.2.77", "192.0.2.1"), 0);
        assert!(!matches!(bed.send(0, &outer).0, Verdict::Drop(_)));
    }
    let (known, left_out) = (bed.pipeline.flows().len(), bed.pipeline.flows().counters().untracked);
    assert!((440..600).contains(&known), "{known} flows belong to this thread");
    assert!(left_out <= 5, "{left_out} flows are untracked in a half-full table");
}

#[test]
fn steered_tunnel_packet_is_served_by_its_thread() {
    let mut parts = parts(gre_slots(2), &[1, 1]);
    parts.tunnels = vec![from("192.0.2.77", TunnelSourceKind::UpstreamTunnel)];
    let mut bed = Bed::with(parts, PipelineConfig { threads: 64, is_steered: true, ..config() });
    for frame in plain() {
        let outer = wrapped(&frame, Encapsulation::Gre, ("192.0.2.77", "192.0.2.1"), 0);
        assert_eq!(bed.send(0, &outer).0, Verdict::Tx);
    }
}

/// Returns the configurations of two machines that are peers. On each machine, slot 4 represents
/// the other machine.
pub(crate) fn machines() -> [Parts; 2] {
    ["192.0.2.1", "192.0.2.3"].map(|own| {
        let other = if own == "192.0.2.1" { "192.0.2.3" } else { "192.0.2.1" };
        let mut slots = gre_slots(4);
        slots.push(slot("lb", other, Encapsulation::Gre));
        let (std::net::IpAddr::V4(source), std::net::IpAddr::V4(destination)) = (ip(own), ip(other)) else {
            panic!("IPv4")
        };
        let template = |inner| {
            Template::new(Encapsulation::Gre, Outer::V4 { source, destination }, inner, true)
                .with_recursion(1)
        };
        slots[4].forwarding = Forwarding::Tunnel { v4: template(Family::V4), v6: template(Family::V6) };
        slots.iter_mut().for_each(|slot| slot.too_big = TooBig::FragmentInner);
        let mut parts = parts(slots, &[1; 4]);
        parts.own = vec![ip(own)];
        parts.tunnels = vec![from(other, TunnelSourceKind::Peer)];
        let two =
            pool(&[slot("lb1", other, Encapsulation::Gre), slot("lb2", other, Encapsulation::Gre)], &[1, 1]);
        let slots = if own == "192.0.2.1" { [THIS_MACHINE, SlotId(4)] } else { [SlotId(4), THIS_MACHINE] };
        parts.peers = Some(Arc::new(PoolTable {
            name: "peers@a".into(),
            table: two.table.clone(),
            slots: slots.into(),
            weights: [1, 1].into(),
        }));
        parts
    })
}

fn cluster() -> [Bed; 2] {
    machines().map(Bed::new)
}

fn datagram(host: u8, vip: &'static str) -> Datagram {
    let source = if vip == VIP4 { format!("198.51.100.{host}") } else { format!("2001:db8:9::{host:x}") };
    let source: &'static str = Box::leak(source.into_boxed_str());
    let payload = udp_payload(1000 + u16::from(host), 443, 2800);
    Datagram { source, vip, protocol: 17, id: 7, payload }
}

#[test]
fn fragments_on_different_machines_reach_one_backend() {
    let mut redirected = 0;
    for vip in [VIP4, VIP6] {
        for host in 1..40 {
            let mut cluster = cluster();
            let datagram = datagram(host, vip);
            let whole = udp(datagram.source, 1000 + u16::from(host), vip, 443, b"");
            let expected = cluster[0].backend_of(&whole).unwrap();
            let mut delivered = 0;
            for (came_to, piece) in [1, 0, 1].into_iter().zip(datagram.cut(1000).iter().rev()) {
                for (verdict, frame) in cluster[came_to].all(piece) {
                    assert_eq!(verdict, Verdict::Tx);
                    let mut arrived = vec![frame];
                    if arrived[0][14 + 19] != expected || arrived[0][14 + 16..14 + 19] != [198, 18, 1] {
                        assert_eq!(
                            arrived[0][14 + 16..14 + 19],
                            [192, 0, 2],
                            "the packet goes to the other machine"
                        );
                        assert_eq!(
                            arrived[0][14 + 20..14 + 22],
                            [1, 0],
                            "the packet is marked as redirected once"
                        );
                        redirected += 1;
                        let out = cluster[1 - came_to].all(&arrived.remove(0));
                        arrived.extend(out.into_iter().map(|(verdict, frame)| {
                            assert_eq!(verdict, Verdict::Tx);
                            frame
                        }));
                    }
                    for frame in arrived {
                        assert_eq!(frame[14 + 16..14 + 20], [198, 18, 1, expected]);
                        let hops = if vip == VIP4 { frame[14 + 24 + 8] } else { frame[14 + 24 + 7] };
                        assert_eq!(hops, 63, "the TTL is decremented once");
                        delivered += 1;
                    }
                }
            }
            assert_eq!(delivered, 3, "{vip} {host}");
        }
    }
    assert!(redirected > 60, "{redirected}");
}

#[test]
fn a_dead_peer_is_hashed_around() {
    let mut cluster = cluster();
    let mut states = cluster[0].live.current().states().to_vec();
    states[4] = SlotState::Down;
    let next = cluster[0].live.current().with_states(states).unwrap();
    cluster[0].live.publish(next);
    for host in 1..40 {
        let pieces = datagram(host, VIP4).cut(1400);
        let out: Vec<_> = pieces.iter().flat_map(|piece| cluster[0].all(piece)).collect();
        assert!(out.len() == 2 + usize::from(pieces.len() == 3));
        assert!(out.iter().all(|(verdict, frame)| *verdict == Verdict::Tx && frame[14 + 16] == 198));
    }
    assert_eq!(cluster[0].counters.redirected.read(), 0);
}

/// Returns two machines, each of which expects the other machine to collect all fragments. This
/// situation can occur during a reload.
fn at_odds() -> [Bed; 2] {
    machines().map(|mut parts| {
        let peers = parts.peers.take().unwrap();
        let slots: Box<[SlotId]> = [SlotId(4), SlotId(4)].into();
        let (name, table) = (Arc::clone(&peers.name), peers.table.clone());
        parts.peers = Some(Arc::new(PoolTable { name, table, slots, weights: peers.weights.clone() }));
        Bed::new(parts)
    })
}

#[test]
fn peer_fragments_stop_and_upstream_fragments_go_on_once() {
    for vip in [VIP4, VIP6] {
        for host in 1..20 {
            let mut cluster = at_odds();
            for piece in datagram(host, vip).cut(1000) {
                let (verdict, there) = cluster[0].all(&piece).remove(0);
                assert_eq!((verdict, &there[14 + 16..14 + 20]), (Verdict::Tx, &[192, 0, 2, 3][..]));
                for (verdict, frame) in cluster[1].all(&there) {
                    assert_eq!((verdict, &frame[14 + 16..14 + 19]), (Verdict::Tx, &[198, 18, 1][..]));
                }
            }
            let redirected = cluster.each_ref().map(|bed| bed.counters.redirected.read());
            assert_eq!(redirected, [3, 0]);
        }
    }
    let mut parts = machines().into_iter().next().unwrap();
    parts.tunnels.push(from("192.0.2.77", TunnelSourceKind::UpstreamTunnel));
    let (mut plain, mut bed) = (Bed::new(machines().into_iter().next().unwrap()), Bed::new(parts));
    let mut redirected = 0;
    for host in 1..40 {
        for piece in datagram(host, VIP4).cut(1000) {
            let expected = plain.all(&piece);
            let outer = wrapped(&piece, Encapsulation::Gre, ("192.0.2.77", "192.0.2.1"), 0);
            assert_eq!(bed.all(&outer), expected, "the packet is handled as a plain one");
            redirected += expected.iter().filter(|(_, frame)| frame[14 + 16] == 192).count();
        }
    }
    assert!(redirected > 20, "{redirected}");
}

#[test]
fn handed_over_fragment_is_not_redirected_by_newer_tables() {
    let [mut bed, _] = at_odds();
    let handed = Origin::Thread(ThreadId(0), HandoffReason::Fragment { decapsulated_from: None });
    for host in 1..20 {
        for piece in datagram(host, VIP4).cut(1000) {
            let (verdict, frame) = bed.send_as(handed, 24, &piece);
            assert_eq!((verdict, frame[14 + 16]), (Verdict::Tx, 198));
        }
    }
    assert_eq!(bed.counters.redirected.read(), 0);
}

#[test]
fn a_full_size_fragment_is_cut_once_more_on_its_way_to_a_peer() {
    let mut cluster = cluster();
    let mut seen = 0;
    for host in 1..30 {
        let datagram = datagram(host, VIP4);
        let mut inner = 0;
        for piece in datagram.cut(1480) {
            let out = cluster[0].all(&piece);
            assert!(out.iter().all(|(verdict, frame)| *verdict == Verdict::Tx && frame.len() <= 1514));
            if out[0].1[14 + 16] == 192 {
                seen += out.len();
                for (_, frame) in &out {
                    inner += cluster[1].all(frame).len();
                }
            }
        }
        assert!(inner == 0 || inner > 2, "{inner}");
    }
    assert!(seen > 20);
}
