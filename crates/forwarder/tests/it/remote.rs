//! Tests of clusters that back each other up. A flow is redirected to another cluster, at most
//! once, if no local backend is serving.

use std::net::IpAddr;
use std::sync::Arc;

use forwarder::*;
use packet::{Encapsulation, Family, Mac, Outer, Template};
use proptest::prelude::*;

use crate::bed::*;
use crate::pieces::{Datagram, udp_payload};

/// The maximum number of clusters.
const CLUSTERS: usize = 5;
/// The number of backends per cluster. The slots of the backends are followed by two slots per
/// other cluster, one for each address family.
const BACKENDS: usize = 2;

fn vip(cluster: usize, ipv4: bool) -> String {
    if ipv4 { format!("198.51.100.{}", 32 * cluster + 9) } else { format!("2001:db8:e:{cluster}::9") }
}

fn front(cluster: usize, ipv4: bool) -> Prefix {
    let text = if ipv4 { format!("198.51.100.{}", 32 * cluster) } else { format!("2001:db8:e:{cluster}::") };
    Prefix::new(ip(&text), if ipv4 { 27 } else { 64 }).unwrap()
}

fn machine(cluster: usize, ipv4: bool) -> String {
    if ipv4 { format!("192.0.2.{}", 10 + cluster) } else { format!("2001:db8:{}::1", 10 + cluster) }
}

/// Returns the slot of another cluster. The address of the slot is the VIP's address in that
/// cluster, without the bits between prefix and suffix.
fn to_cluster(me: usize, other: usize, ipv4: bool) -> Slot {
    let outer = match (ip(&machine(me, ipv4)), ip(&vip(other, ipv4))) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Outer::V4 { source, destination },
        (IpAddr::V6(source), IpAddr::V6(destination)) => Outer::V6 { source, destination },
        _ => panic!("addresses of different families"),
    };
    let kept = if ipv4 { 5 } else { 64 };
    let template = |inner| {
        let plain = Template::new(Encapsulation::Gre, outer, inner, true);
        plain.to_cluster(kept).unwrap_or(plain.with_recursion(1))
    };
    Slot {
        backend: format!("c{other}").into(),
        address: ip(&vip(other, ipv4)),
        forwarding: Forwarding::Tunnel { v4: template(Family::V4), v6: template(Family::V6) },
        next_hop: Some(NextHop::plain(Mac(HOP), Mac(OURS))),
        spread: None,
        mtu: 1500,
        too_big: TooBig::FragmentInner,
    }
}

/// Returns the configuration of a machine in cluster `me`. `serves` is `true` if the backends of
/// this cluster are serving. `remotes` lists the clusters to which flows are redirected. `others`
/// is the configured tunnel source kind of the other clusters.
fn cluster_parts(me: usize, serves: bool, remotes: &[usize], others: TunnelSourceKind) -> Parts {
    let mut slots = gre_slots(BACKENDS);
    let mut parts = parts(slots.clone(), &[1; BACKENDS]);
    let families = [true, false];
    let mut all = Vec::new();
    for ipv4 in families {
        let own: Vec<Slot> = remotes.iter().map(|other| to_cluster(me, *other, ipv4)).collect();
        let table = pool(&own, &vec![1; own.len()]);
        let shifted = table.slots.iter().map(|slot| SlotId(slot.0 + slots.len() as u32)).collect();
        let pool = PoolTable {
            name: "remotes".into(),
            table: table.table.clone(),
            slots: shifted,
            weights: table.weights.clone(),
        };
        all.push(Remote {
            ours: (0..CLUSTERS).map(|other| front(other, ipv4)).collect(),
            pool: Arc::new(pool),
        });
        slots.extend(own);
    }
    parts.states = vec![SlotState::Serving; slots.len()];
    if !serves {
        parts.states[..BACKENDS].fill(SlotState::Down);
    }
    let prefixes = families.iter().flat_map(|ipv4| (0..CLUSTERS).map(|other| front(other, *ipv4))).collect();
    parts.groups = vec![PrefixGroup { name: "edge".into(), prefixes }];
    let suffixes = [Suffix::new(ip("0.0.0.9"), 5).unwrap(), Suffix::new(ip("::9"), 64).unwrap()];
    parts.bindings = suffixes
        .iter()
        .flat_map(|suffix| [(6, 80, 0), (17, 443, 0), (17, 53, 1)].map(|row| (*suffix, row)))
        .map(|(suffix, (protocol, port, service))| Binding {
            address: VipAddress::Suffix { group: 0, suffix },
            protocol,
            ports: port..=port,
            service,
        })
        .collect();
    let remotes = (!remotes.is_empty()).then(|| Arc::new(all));
    parts.services.iter_mut().for_each(|service| service.remotes.clone_from(&remotes));
    let source = |other: usize, ipv4: bool| {
        let address = ip(&machine(other, ipv4));
        let prefix = Prefix::new(address, if ipv4 { 32 } else { 128 }).unwrap();
        TunnelSource { prefix, carriers: TunnelProtocols::GRE, kind: others }
    };
    parts.tunnels =
        families.iter().flat_map(|ipv4| (0..CLUSTERS).map(|other| source(other, *ipv4))).collect();
    parts.own = families.iter().map(|ipv4| ip(&machine(me, *ipv4))).collect();
    parts.slots = slots;
    parts
}

fn cluster(me: usize, serves: bool, remotes: &[usize]) -> Bed {
    Bed::new(cluster_parts(me, serves, remotes, TunnelSourceKind::Cluster))
}

/// Sets the state of all backends on a machine.
fn set(bed: &mut Bed, state: SlotState) {
    let mut states = bed.live.current().states().to_vec();
    states[..BACKENDS].fill(state);
    let next = bed.live.current().with_states(states).unwrap();
    bed.live.publish(next);
}

/// Returns the outer destination of a frame, and the redirect mark in its GRE header.
fn outer(frame: &[u8]) -> (IpAddr, u8) {
    if frame[14] >> 4 == 4 {
        let bytes: [u8; 4] = frame[30..34].try_into().unwrap();
        return (bytes.into(), frame[34] & 7);
    }
    let bytes: [u8; 16] = frame[38..54].try_into().unwrap();
    (bytes.into(), frame[54] & 7)
}

/// Returns the cluster that a frame is sent to, or `None` if it is sent to a backend.
fn next_cluster(frame: &[u8]) -> Option<usize> {
    let (to, mark) = outer(frame);
    let found = (0..CLUSTERS).find(|other| [true, false].iter().any(|v4| front(*other, *v4).contains(to)));
    assert_eq!(found.is_some(), mark > 0, "only packets to a cluster are marked");
    found
}

fn leaked(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

fn ask(port: u16, cluster: usize, ipv4: bool, flags: &str) -> Vec<u8> {
    let client = if ipv4 { "192.0.2.200" } else { "2001:db8:9::7" };
    tcp(client, port, &vip(cluster, ipv4), 80, flags)
}

/// Returns the inner packet of a GRE packet, with an Ethernet header.
fn opened(frame: &[u8]) -> Vec<u8> {
    let (header, ethertype) = if frame[14] >> 4 == 4 { (24, &frame[36..38]) } else { (44, &frame[56..58]) };
    [&frame[..12], ethertype, &frame[14 + header..]].concat()
}

#[test]
fn unserved_flow_is_redirected_to_another_cluster() {
    for ipv4 in [true, false] {
        let (mut here, mut there) = (cluster(0, false, &[1]), cluster(1, true, &[0]));
        let plain = ask(4000, 0, ipv4, "S");
        let (verdict, frame) = here.send(24, &plain);
        assert_eq!((verdict, outer(&frame)), (Verdict::Tx, (ip(&vip(1, ipv4)), 1)));
        let inner = opened(&frame);
        assert_eq!(inner[54..], plain[54..], "ports and payload are unchanged");
        let addresses = if ipv4 { 26..34 } else { 22..54 };
        assert_eq!(inner[addresses.clone()], plain[addresses], "the inner addresses are unchanged");
        let (verdict, served) = there.send(24, &frame);
        assert_eq!(verdict, Verdict::Tx);
        assert_eq!((outer(&served).1, served[30..33] == [198, 18, 1]), (0, true), "to a backend, unmarked");
        let counts = |bed: &Bed| (bed.counters.remote_flows.read(), bed.counters.remote_decapsulated.read());
        assert_eq!((counts(&here), counts(&there)), ((1, 0), (0, 1)));
        assert_eq!(here.counters.backend(if ipv4 { 2 } else { 3 }).unwrap().packets.read(), 1);
    }
}

#[test]
fn bits_between_prefix_and_suffix_go_along() {
    let mut parts = cluster_parts(0, false, &[1], TunnelSourceKind::Cluster);
    parts.bindings.truncate(3); // This removes the IPv6 bindings.
    parts.bindings.iter_mut().for_each(|binding| {
        binding.address = VipAddress::Suffix { group: 0, suffix: Suffix::new(ip("0.0.0.1"), 3).unwrap() };
    });
    let mut bed = Bed::new(parts);
    for (to, expected) in [("198.51.100.9", "198.51.100.41"), ("198.51.100.17", "198.51.100.49")] {
        let (verdict, frame) = bed.send(24, &tcp("192.0.2.200", 4000, to, 80, "S"));
        assert_eq!((verdict, outer(&frame).0), (Verdict::Tx, ip(expected)));
    }
}

#[test]
fn redirected_flows_stay_redirected_and_new_flows_are_local() {
    for ipv4 in [true, false] {
        let mut bed = cluster(0, false, &[1, 2]);
        let to: Vec<IpAddr> =
            (0..50).map(|n| outer(&bed.send(24, &ask(4000 + n, 0, ipv4, "S")).1).0).collect();
        assert_eq!(
            [1, 2].map(|other| to.contains(&ip(&vip(other, ipv4)))),
            [true, true],
            "both clusters are used"
        );
        set(&mut bed, SlotState::Serving);
        for (n, to) in (0..).zip(&to) {
            let (verdict, frame) = bed.send(24, &ask(4000 + n, 0, ipv4, "A"));
            assert_eq!((verdict, outer(&frame).0), (Verdict::Tx, *to));
            assert_eq!(next_cluster(&bed.send(24, &ask(5000 + n, 0, ipv4, "S")).1), None);
        }
        // A new connection can use the ports of an ended connection.
        assert_eq!(bed.send(24, &ask(4000, 0, ipv4, "FA")).0, Verdict::Tx);
        assert_eq!(outer(&bed.send(24, &ask(4000, 0, ipv4, "A")).1).0, to[0]);
        bed.advance(1);
        assert_eq!(next_cluster(&bed.send(24, &ask(4000, 0, ipv4, "S")).1), None);
        // Local flows also stay local.
        set(&mut bed, SlotState::Draining);
        assert_eq!(next_cluster(&bed.send(24, &ask(5001, 0, ipv4, "A")).1), None);
        assert!(next_cluster(&bed.send(24, &ask(6000, 0, ipv4, "S")).1).is_some());
        assert_eq!(bed.counters.remote_flows.read(), 51);
    }
}

#[test]
fn a_dead_cluster_is_hashed_around_and_its_flows_move() {
    let mut bed = cluster(0, false, &[1, 2]);
    let first: Vec<_> =
        (0..40).map(|n| next_cluster(&bed.send(24, &ask(4000 + n, 0, true, "S")).1)).collect();
    let mut states = bed.live.current().states().to_vec();
    states[BACKENDS] = SlotState::Down; // Cluster 1 is down over IPv4.
    let next = bed.live.current().with_states(states.clone()).unwrap();
    bed.live.publish(next);
    for (n, before) in (0..).zip(&first) {
        assert_eq!(next_cluster(&bed.send(24, &ask(4000 + n, 0, true, "A")).1), Some(2), "{before:?}");
    }
    states[BACKENDS + 1] = SlotState::Down;
    let next = bed.live.current().with_states(states).unwrap();
    bed.live.publish(next);
    assert_eq!(bed.send(24, &ask(9, 0, true, "S")).0, Verdict::Drop(DropReason::NoBackend));
}

#[test]
fn two_clusters_without_backends_make_one_hop_and_a_named_drop() {
    for ipv4 in [true, false] {
        let (mut one, mut other) = (cluster(0, false, &[1]), cluster(1, false, &[0]));
        // The packet is not rejected, because the other cluster serves the VIP.
        let mut services = other.live.current().services().to_vec();
        services.iter_mut().for_each(|service| service.rejects.no_backend = true);
        let rejecting = other.live.current().with_services(services).unwrap();
        other.live.publish(rejecting);
        let (verdict, frame) = one.send(24, &ask(4000, 0, ipv4, "S"));
        assert_eq!((verdict, next_cluster(&frame)), (Verdict::Tx, Some(1)));
        assert_eq!(other.send(24, &frame).0, Verdict::Drop(DropReason::NoBackend));
        assert_eq!((other.counters.remote_flows.read(), other.pipeline.flows().len()), (0, 0));
        // An earlier redirected flow with the same ports does not affect this packet.
        assert_eq!(next_cluster(&other.send(24, &ask(4000, 0, ipv4, "S")).1), Some(0));
        assert_eq!(other.send(24, &frame).0, Verdict::Drop(DropReason::NoBackend));
        set(&mut other, SlotState::Serving);
        let (verdict, served) = other.send(24, &frame);
        assert_eq!((verdict, next_cluster(&served)), (Verdict::Tx, None));
    }
}

#[test]
fn unmarked_or_unknown_cluster_tunnels_are_dropped() {
    let mut there = cluster(1, true, &[]);
    let (_, mut frame) = cluster(0, false, &[1]).send(24, &ask(4000, 0, true, "S"));
    frame[34] = 0;
    assert_eq!(there.send(24, &frame).0, Verdict::Drop(DropReason::Unmarked));
    frame[34] = 1;
    frame[29] = 99; // This is the last byte of the outer source address.
    assert_eq!(there.send(24, &frame).0, Verdict::Drop(DropReason::NoVip));
    // The source is configured both as an upstream tunnel and as a cluster. Only upstream tunnels
    // may send unmarked packets, and only to the machine's own address.
    let mut parts = cluster_parts(1, true, &[], TunnelSourceKind::Cluster);
    let both = parts
        .tunnels
        .iter()
        .map(|source| TunnelSource { kind: TunnelSourceKind::UpstreamTunnel, ..source.clone() });
    parts.tunnels.extend(both.collect::<Vec<_>>());
    (frame[29], frame[34]) = (10, 0);
    let mut both = Bed::new(parts);
    assert_eq!(both.send(24, &frame).0, Verdict::Drop(DropReason::NoVip), "the destination is a VIP");
    assert_eq!(both.send(24, &to_machine(1, frame)).0, Verdict::Tx);
}

/// Changes the destination of a tunnel packet to the machine's own address.
fn to_machine(cluster: usize, mut frame: Vec<u8>) -> Vec<u8> {
    match (frame[14] >> 4, ip(&machine(cluster, true)), ip(&machine(cluster, false))) {
        (4, IpAddr::V4(own), _) => frame[30..34].copy_from_slice(&own.octets()),
        (_, _, IpAddr::V6(own)) => frame[38..54].copy_from_slice(&own.octets()),
        _ => unreachable!(),
    }
    frame
}

fn datagram(cluster: usize, ipv4: bool, port: u16) -> Datagram {
    let source = if ipv4 { "192.0.2.200" } else { "2001:db8:9::7" };
    let payload = udp_payload(1000, port, 2800);
    Datagram { source, vip: leaked(vip(cluster, ipv4)), protocol: 17, id: 7, payload }
}

#[test]
fn fragments_follow_their_first_to_the_other_cluster() {
    for (ipv4, port) in [(true, 443), (false, 443), (true, 53), (false, 53)] {
        let pieces = datagram(0, ipv4, port).cut(1000);
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
            let (mut here, mut there) = (cluster(0, false, &[1, 2]), cluster(1, true, &[]));
            let out: Vec<_> = order.iter().flat_map(|n| here.all(&pieces[*n])).collect();
            assert_eq!(out.len(), 3);
            let to = next_cluster(&out[0].1);
            assert!(
                to.is_some() && out.iter().all(|(v, frame)| *v == Verdict::Tx && next_cluster(frame) == to)
            );
            let served: Vec<_> = out.iter().flat_map(|(_, frame)| there.all(frame)).collect();
            assert_eq!(served.len(), 3);
            assert!(served.iter().all(|(v, frame)| *v == Verdict::Tx && outer(frame) == outer(&served[0].1)));
        }
    }
}

#[test]
fn marked_fragment_is_not_redirected_again() {
    for ipv4 in [true, false] {
        let pieces = datagram(0, ipv4, 443).cut(1400);
        let last = pieces.last().unwrap();
        // The last fragment arrives with a redirect mark, as from cluster 0 to cluster 1. The first
        // fragment arrives without a tunnel.
        let (verdict, away) = {
            let mut sender = cluster(0, false, &[1]);
            assert_eq!(sender.all(&pieces[0]).len(), 1);
            sender.all(last).remove(0)
        };
        assert_eq!((verdict, next_cluster(&away)), (Verdict::Tx, Some(1)));
        let drop = Verdict::Drop(DropReason::NoBackend);
        let mut first = cluster(1, false, &[2]);
        assert_eq!(next_cluster(&first.all(&pieces[0])[0].1), Some(2));
        assert_eq!(first.all(&away)[0].0, drop, "the first fragment has arrived");
        let mut held = cluster(1, false, &[2]);
        assert_eq!(held.all(&away), []);
        let out = held.all(&pieces[0]);
        assert_eq!(out.len(), 2);
        let redirected = out.iter().filter(|(verdict, _)| *verdict == Verdict::Tx).count();
        let dropped = out.iter().filter(|(verdict, _)| *verdict == drop).count();
        assert_eq!((redirected, dropped), (1, 1), "only the first fragment is redirected");
    }
}

#[test]
fn fragments_from_a_peer_are_redirected_only_once_more() {
    for ipv4 in [true, false] {
        // Cluster 0 is configured as a peer on this machine.
        let mut gatherer = Bed::new(cluster_parts(1, false, &[2], TunnelSourceKind::Peer));
        let mut last = cluster(2, false, &[0, 1]);
        let (_, from_peer) = cluster(0, false, &[1]).all(&datagram(0, ipv4, 443).cut(1000)[0]).remove(0);
        assert_eq!(
            gatherer.all(&from_peer)[0].0,
            Verdict::Drop(DropReason::NoVip),
            "a peer's tunnel to a VIP is not decapsulated"
        );
        let out = gatherer.all(&to_machine(1, from_peer));
        assert_eq!(
            (out[0].0, outer(&out[0].1)),
            (Verdict::Tx, (ip(&vip(2, ipv4)), 2)),
            "the packet is marked as redirected twice"
        );
        assert_eq!(last.all(&out[0].1)[0].0, Verdict::Drop(DropReason::NoBackend));
        // Even if machines are configured both as peers and as clusters, there is no third
        // redirect.
        let mut confused = Bed::new(cluster_parts(2, false, &[0, 1], TunnelSourceKind::Peer));
        assert_eq!(confused.all(&out[0].1)[0].0, Verdict::Drop(DropReason::NoVip));
        let to_machine = to_machine(2, out[0].1.clone());
        assert_eq!(confused.all(&to_machine)[0].0, Verdict::Drop(DropReason::NoBackend));
    }
}

#[test]
fn vip_without_fragments_drops_only_fragments() {
    let mut parts = cluster_parts(0, true, &[], TunnelSourceKind::Cluster);
    parts.services.iter_mut().for_each(|service| service.fragments = false);
    let mut bed = Bed::new(parts);
    for (ipv4, port) in [(true, 443), (false, 443), (true, 53), (false, 53)] {
        for piece in datagram(0, ipv4, port).cut(1000) {
            assert_eq!(bed.send(24, &piece).0, Verdict::Drop(DropReason::Fragment));
        }
        assert_eq!(bed.send(24, &ask(port, 0, ipv4, "S")).0, Verdict::Tx);
    }
    let mut elsewhere = datagram(0, true, 443);
    elsewhere.vip = "198.51.100.10";
    assert_eq!(bed.send(24, &elsewhere.piece(0, 800)).0, Verdict::Drop(DropReason::NoVip));
}

/// Returns an ICMP error that quotes a reply from a VIP to the client of [`ask`].
fn too_big(cluster: usize, port: u16) -> Vec<u8> {
    use etherparse::PacketBuilder;
    let (vip, client) = (ip(&vip(cluster, true)), ip("192.0.2.200"));
    let (IpAddr::V4(vip), IpAddr::V4(client)) = (vip, client) else { panic!("IPv4") };
    let (mut quote, mut bytes) = (Vec::new(), Vec::new());
    let step = PacketBuilder::ipv4(vip.octets(), client.octets(), 60).tcp(80, port, 7, 8);
    step.write(&mut quote, &[0; 40]).unwrap();
    let link = PacketBuilder::ethernet2(ROUTER, OURS).ipv4([192, 0, 2, 254], vip.octets(), 64);
    link.icmpv4_raw(3, 4, [0, 0, 5, 0]).write(&mut bytes, &quote).unwrap();
    bytes
}

#[test]
fn icmp_error_follows_its_flow_to_the_other_cluster() {
    let (mut here, mut there) = (cluster(0, false, &[1]), cluster(1, false, &[0]));
    let (_, flow) = here.send(24, &ask(4000, 0, true, "S"));
    set(&mut here, SlotState::Serving);
    let (verdict, error) = here.send(24, &too_big(0, 4000));
    assert_eq!((verdict, outer(&error)), (Verdict::Tx, (ip(&vip(1, true)), 1)));
    assert_eq!(there.send(24, &error).0, Verdict::Drop(DropReason::NoBackend));
    set(&mut there, SlotState::Serving);
    let (_, served) = there.send(24, &flow);
    let (verdict, delivered) = there.send(24, &error);
    assert_eq!(
        (verdict, outer(&delivered)),
        (Verdict::Tx, outer(&served)),
        "the error goes to the backend of its flow"
    );
    // No thread has an entry for the flow, and no local backend is serving.
    set(&mut here, SlotState::Down);
    assert_eq!(next_cluster(&here.send(24, &too_big(0, 9)).1), Some(1));
}

#[test]
fn redirect_larger_than_mtu_is_fragmented_or_refused() {
    let mut bed = cluster(0, false, &[1]);
    let payload = vec![7; 1472];
    let mut frame = udp("192.0.2.200", 4000, &vip(0, true), 443, &payload);
    frame[20] &= !0x40; // DF clear
    let sum: u32 = (14..34)
        .step_by(2)
        .filter(|at| *at != 24)
        .map(|at| u32::from(frame[at]) << 8 | u32::from(frame[at + 1]))
        .sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    let out = bed.all(&frame);
    assert_eq!(out.len(), 2);
    assert!(out.iter().all(|(verdict, frame)| *verdict == Verdict::Tx && next_cluster(frame) == Some(1)));
    assert!(out.iter().all(|(_, frame)| frame.len() <= 1514));
}

#[test]
fn handoff_keeps_the_cluster_as_tunnel_source() {
    let live = Live::new(Snapshot::new(cluster_parts(1, false, &[0], TunnelSourceKind::Cluster)).unwrap());
    let pipeline = |thread| {
        let config = PipelineConfig { thread: ThreadId(thread), threads: 4, ..config() };
        Pipeline::new(config, &live, Arc::new(ThreadCounters::new(16, 16)), None).unwrap()
    };
    let mut threads: Vec<Pipeline> = (0..4).map(pipeline).collect();
    let mut sender = cluster(0, false, &[1]);
    let mut crossed = 0;
    let frames: Vec<Vec<u8>> = (0..40)
        .flat_map(|n| [ask(4000 + n, 0, true, "S"), too_big(0, 4000 + n)])
        .chain(datagram(0, true, 443).cut(1400))
        .filter_map(|frame| sender.all(&frame).pop())
        .map(|(_, frame)| frame)
        .collect();
    for frame in frames {
        let mut buffer = vec![0; ROOM];
        buffer[..frame.len()].copy_from_slice(&frame);
        let (mut bounds, mut origin, mut thread) = (0..frame.len(), Origin::Wire, 2);
        let verdict = loop {
            let mut packets = [Packet::new(&mut buffer, bounds.start, bounds.end, origin)];
            let mut verdicts = [Verdict::Tx];
            threads[thread].process(Now::from_nanos(9), &mut packets, &mut verdicts);
            bounds = packets[0].bounds();
            let Verdict::ToThread(next, reason) = verdicts[0] else { break verdicts[0] };
            origin = Origin::Thread(ThreadId(thread as u16), reason);
            (thread, crossed) = (usize::from(next.0), crossed + 1);
        };
        assert_eq!(verdict, Verdict::Drop(DropReason::NoBackend));
    }
    assert!(crossed > 100, "{crossed} packets crossed threads");
}

#[test]
fn where_says_which_cluster_it_would_be() {
    let bed = cluster(0, false, &[1]);
    let flow = Flow::new((ip("192.0.2.200"), 4000), (ip(&vip(0, true)), 80), 6).unwrap();
    let Decision::Remote { service: 0, selection, .. } = bed.live.current().decide(&flow) else { panic!() };
    assert_eq!(&*bed.live.current().slots()[selection.slot.0 as usize].backend, "c1");
    let slot = bed.live.current().slots()[selection.slot.0 as usize].clone();
    let reaches = |text: &str| slot.reach().contains(ip(text));
    assert_eq!(
        ["198.51.100.41", "198.51.100.60", "198.51.100.64", "2001:db8::1"].map(reaches),
        [true, true, false, false]
    );
}

#[derive(Clone, Debug)]
struct Site {
    serves: bool,
    remotes: Vec<usize>,
    /// `true` if other clusters are configured both as clusters and as peers.
    confused: bool,
}

fn site() -> impl Strategy<Value = Site> {
    let remotes = prop::collection::btree_set(0..CLUSTERS, 0..4);
    (prop::bool::weighted(0.4), remotes, prop::bool::weighted(0.2)).prop_map(|(serves, remotes, confused)| {
        Site { serves, remotes: remotes.into_iter().collect(), confused }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    // Promise: remote-no-loop
    /// Under any topology, including redirects from a cluster to itself, a packet is redirected at
    /// most once and is then forwarded to a backend or dropped. If other clusters are also
    /// configured as peers, the machine does not decapsulate packets to a VIP.
    #[test]
    fn no_topology_makes_a_loop(
        sites in prop::collection::vec(site(), CLUSTERS),
        packets in prop::collection::vec((0..CLUSTERS, any::<bool>(), 0..3u8, 1000..1010u16), 1..30),
    ) {
        let mut beds: Vec<Bed> = sites.iter().enumerate().map(|(me, site)| {
            let sender = if site.confused { TunnelSourceKind::Peer } else { TunnelSourceKind::Cluster };
            Bed::new(cluster_parts(me, site.serves, &site.remotes, sender))
        }).collect();
        for (came_to, ipv4, kind, port) in packets {
            let frames = match kind {
                0 => vec![ask(port, came_to, ipv4, "S")],
                1 => vec![ask(port, came_to, ipv4, "A")],
                _ => Datagram { id: port.into(), ..datagram(came_to, ipv4, 443) }.cut(1000),
            };
            for frame in frames {
                let (mut at, mut hops, mut frame) = (came_to, 0, frame);
                while let Some((verdict, next)) = beds[at].all(&frame).into_iter().next_back() {
                    if verdict != Verdict::Tx {
                        let is_shut = hops > 0 && sites[at].confused;
                        let reason = if is_shut { DropReason::NoVip } else { DropReason::NoBackend };
                        prop_assert_eq!(verdict, Verdict::Drop(reason));
                        prop_assert!(is_shut || !sites[at].serves);
                        break;
                    }
                    let Some(to) = next_cluster(&next) else {
                        prop_assert!(sites[at].serves);
                        break;
                    };
                    prop_assert!(!sites[at].serves, "packets are redirected only without a local backend");
                    prop_assert!(sites[at].remotes.contains(&to));
                    hops += 1;
                    prop_assert!(hops <= 1, "{hops} hops");
                    (at, frame) = (to, next);
                }
            }
        }
    }
}
