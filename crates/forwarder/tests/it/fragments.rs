//! Tests of IP fragments. Regardless of their arrival order, all fragments of a datagram must go to
//! the backend of its first fragment.

use forwarder::*;
use proptest::prelude::*;

use crate::bed::*;
use crate::pieces::*;

fn datagram(vip: &'static str, port: u16, id: u32, data: usize) -> Datagram {
    let source = if vip == VIP4 { "198.51.100.7" } else { "2001:db8:9::7" };
    Datagram { source, vip, protocol: 17, id, payload: udp_payload(1000 + id as u16, port, data) }
}

/// Returns the number of the backend, and the inner packet including its IP header.
fn delivered((verdict, frame): &(Verdict, Vec<u8>)) -> (u8, &[u8]) {
    assert_eq!(*verdict, Verdict::Tx);
    (frame[14 + 19], &frame[14 + 24..])
}

fn drops(bed: &Bed, reason: DropReason) -> u64 {
    bed.counters.drops(reason)
}

#[test]
fn pieces_go_where_the_whole_packet_goes_in_any_order() {
    for vip in [VIP4, VIP6] {
        let mut bed = Bed::new(parts(gre_slots(5), &[1; 5]));
        for id in 1..60 {
            let datagram = datagram(vip, 443, id, 3000);
            let whole = udp(datagram.source, 1000 + id as u16, vip, 443, b"");
            let expected = bed.backend_of(&whole).unwrap();
            let pieces = datagram.cut(1024);
            for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
                let mut again = datagram.clone();
                again.id += 1000 * order[0] as u32 + 100 * order[1] as u32;
                let pieces = again.cut(1024);
                let out: Vec<_> = order.iter().flat_map(|place| bed.all(&pieces[*place])).collect();
                assert_eq!(out.len(), 3);
                assert!(out.iter().all(|one| delivered(one).0 == expected), "{vip} {id} {order:?}");
            }
            assert_eq!(pieces.len(), 3);
        }
        assert_eq!(bed.holding(), 0);
    }
}

#[test]
fn a_piece_is_forwarded_as_it_came_but_for_its_ttl() {
    let mut bed = Bed::new(parts(gre_slots(2), &[1, 1]));
    let pieces = datagram(VIP4, 443, 9, 2000).cut(1400);
    let out = [bed.all(&pieces[1]), bed.all(&pieces[0])].concat();
    for (one, piece) in out.iter().zip([&pieces[0], &pieces[1]]) {
        let (_, inner) = delivered(one);
        assert_eq!((inner[8], piece[14 + 8]), (63, 64));
        assert_eq!(inner[12..], piece[14 + 12..]);
    }
}

#[test]
fn duplicates_pass_and_another_first_is_a_conflict() {
    let mut bed = Bed::new(parts(gre_slots(3), &[1, 1, 1]));
    let pieces = datagram(VIP4, 443, 5, 2000).cut(1024);
    let first = bed.all(&pieces[0]);
    assert_eq!(bed.all(&pieces[0]).len(), 1);
    assert_eq!(delivered(&bed.all(&pieces[0])[0]).0, delivered(&first[0]).0);
    let mut other = pieces[0].clone();
    *other.last_mut().unwrap() ^= 1;
    assert_eq!(bed.all(&other)[0].0, Verdict::Drop(DropReason::FragmentConflict));
    let later = bed.all(&pieces[1]);
    assert_eq!(delivered(&later[0]).0, delivered(&first[0]).0);
    bed.poll();
    let table = &bed.counters.fragment_table;
    assert_eq!((table.recorded.read(), table.duplicates.read(), table.followed.read()), (1, 2, 1));
}

#[test]
fn reused_identification_starts_a_new_datagram() {
    for vip in [VIP4, VIP6] {
        let mut bed = Bed::new(parts(gre_slots(5), &[1; 5]));
        let mut backends = std::collections::HashSet::new();
        for source_port in 0..40u32 {
            let payload = udp_payload(2_000 + source_port as u16, 443, 3_000);
            let datagram = Datagram { payload, ..datagram(vip, 443, 5, 0) };
            let whole = udp(datagram.source, 2_000 + source_port as u16, vip, 443, b"");
            let expected = bed.backend_of(&whole).unwrap();
            // For every second datagram, the second and the third fragment are swapped.
            let mut pieces = datagram.cut(1024);
            if source_port % 2 == 1 {
                pieces.swap(1, 2);
            }
            for piece in &pieces {
                assert_eq!(delivered(&bed.all(piece)[0]).0, expected, "{vip} {source_port}");
            }
            backends.insert(expected);
        }
        assert_eq!(backends.len(), 5, "the datagrams use all backends");
        assert_eq!(drops(&bed, DropReason::FragmentConflict), 0);
        bed.poll();
        assert_eq!(bed.counters.fragment_table.replaced.read(), 39);
    }
}

#[test]
fn a_datagram_of_which_eight_bytes_are_missing_is_not_whole() {
    for vip in [VIP4, VIP6] {
        let mut bed = Bed::new(parts(gre_slots(3), &[1, 1, 1]));
        let datagram = datagram(vip, 443, 5, 2000);
        let _ = (bed.all(&datagram.piece(0, 1024)), bed.all(&datagram.piece(1032, 2008)));
        let mut other = datagram.piece(0, 1024);
        *other.last_mut().unwrap() ^= 1;
        assert_eq!(bed.all(&other)[0].0, Verdict::Drop(DropReason::FragmentConflict));
        let _ = bed.all(&datagram.piece(1024, 1032));
        assert_eq!(bed.all(&other)[0].0, Verdict::Tx);
    }
}

#[test]
fn fragments_without_a_first_are_dropped_at_timeout() {
    let mut bed = Bed::new(parts(gre_slots(2), &[1, 1]));
    for id in 0..3 {
        assert_eq!(bed.all(&datagram(VIP4, 443, id, 2000).cut(1024)[1]), []);
    }
    assert_eq!(bed.holding(), 3);
    bed.advance(3);
    bed.poll();
    assert_eq!((bed.holding(), drops(&bed, DropReason::FragmentTimeout)), (0, 3));
    assert!(bed.held.out.iter().all(|(verdict, _)| *verdict == Verdict::Drop(DropReason::FragmentTimeout)));
}

#[test]
fn what_becomes_of_the_first_becomes_of_the_others() {
    let mut bed = Bed::new(parts(gre_slots(2), &[1, 1]));
    let no_port = datagram(VIP4, 444, 1, 2000).cut(1024);
    assert_eq!(bed.all(&no_port[1]), [], "the fragment is held");
    let out = bed.all(&no_port[0]);
    assert!(out.iter().all(|(verdict, _)| *verdict == Verdict::Drop(DropReason::NoVip)) && out.len() == 2);
    let down = vec![SlotState::Down, SlotState::Down];
    let late = datagram(VIP4, 443, 2, 3000).cut(1024);
    assert_eq!(delivered(&bed.all(&late[0])[0]).1.len(), 1044);
    bed.live.publish(bed.live.current().with_states(down).unwrap());
    assert_eq!(
        bed.all(&late[1])[0].0,
        Verdict::Drop(DropReason::NoBackend),
        "the first fragment is dropped too"
    );
    let none = datagram(VIP4, 443, 3, 2000).cut(1024);
    assert_eq!(bed.all(&none[0])[0].0, Verdict::Drop(DropReason::NoBackend));
    assert_eq!(bed.all(&none[1])[0].0, Verdict::Drop(DropReason::NoBackend));
}

#[test]
fn no_datagram_no_source_and_no_flood_takes_all_the_room() {
    let mut bed = Bed::new(parts(gre_slots(2), &[1, 1]));
    let long = datagram(VIP4, 443, 1, 8 * 200);
    for n in 1..12 {
        bed.all(&long.piece(8 * (10 + n), 8 * (11 + n)));
    }
    assert_eq!((bed.holding(), drops(&bed, DropReason::FragmentDatagramFull)), (8, 3));
    for id in 2..20 {
        bed.all(&datagram(VIP4, 443, id, 2000).cut(1024)[1]);
    }
    assert_eq!((bed.holding(), drops(&bed, DropReason::FragmentSourceFull)), (16, 10));
    let sources = ["198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4", "198.51.100.5"];
    for source in sources {
        for id in 0..16 {
            let other = Datagram { source, ..datagram(VIP4, 443, id, 2000) };
            bed.all(&other.cut(1024)[1]);
        }
    }
    assert_eq!((bed.holding(), drops(&bed, DropReason::FragmentBufferFull)), (64, 32));
}

#[test]
fn held_frames_stay_within_the_limit_of_the_thread() {
    let mut bed = Bed::with(parts(gre_slots(2), &[1, 1]), PipelineConfig { held_of_a_pool: 3, ..config() });
    let pieces = |id| datagram(VIP4, 443, id, 2000).cut(1024);
    for id in 0..5 {
        bed.all(&pieces(id)[1]);
    }
    assert_eq!((bed.holding(), drops(&bed, DropReason::FragmentBufferFull)), (3, 2));
    assert_eq!(bed.all(&pieces(0)[0]).len(), 2);
    for id in 5..7 {
        bed.all(&pieces(id)[1]);
    }
    assert_eq!((bed.holding(), drops(&bed, DropReason::FragmentBufferFull)), (3, 3));
}

#[test]
fn the_next_header_of_a_later_piece_of_ipv6_is_not_asked() {
    let mut bed = Bed::new(parts(gre_slots(5), &[1; 5]));
    for id in 0..20 {
        // RFC 8200 §4.5: only the Next Header value of the first fragment is used.
        let mut pieces = datagram(VIP6, 443, id, 2000).cut(1024);
        pieces[1][14 + 40] = 6;
        let order = if id % 2 == 0 { [0, 1] } else { [1, 0] };
        let out: Vec<_> = order.iter().flat_map(|place| bed.all(&pieces[*place])).collect();
        assert_eq!(out.len(), 2);
        assert!(out.iter().all(|(verdict, _)| *verdict == Verdict::Tx));
        assert_eq!(out[0].1[14 + 19], out[1].1[14 + 19], "both fragments go to one backend");
    }
}

#[test]
fn what_no_honest_host_sends_is_dropped_by_name() {
    let mut bed = Bed::new(parts(gre_slots(2), &[1, 1]));
    let tcp = Datagram { protocol: 6, payload: vec![0; 400], ..datagram(VIP4, 80, 1, 0) };
    assert_eq!(bed.all(&tcp.piece(0, 8))[0].0, Verdict::Drop(DropReason::FragmentTiny));
    assert_eq!(bed.all(&tcp.piece(8, 400))[0].0, Verdict::Drop(DropReason::FragmentOverlap));
    let mut short = datagram(VIP4, 443, 2, 100).piece(0, 8);
    short[14 + 2..14 + 4].copy_from_slice(&26u16.to_be_bytes());
    assert_eq!(bed.all(&short)[0].0, Verdict::Drop(DropReason::FragmentTiny));
    let stray = Datagram { vip: "203.0.113.99", ..datagram(VIP4, 443, 3, 2000) };
    assert!(stray.cut(1024).iter().all(|piece| bed.all(piece)[0].0 == Verdict::Drop(DropReason::NoVip)));
}

/// Returns a configuration with four backends, and with UDP services on these ports of both VIPs.
/// `policy` is a hash policy that ignores ports.
fn hashed_without_ports(policy: HashPolicy, ports: &[std::ops::RangeInclusive<u16>]) -> Parts {
    let pool = pool(&gre_slots(4), &[1; 4]);
    let mut parts = parts(gre_slots(4), &[1; 4]);
    parts.services = vec![service(7, policy, &pool)];
    let bind = |vip: &'static str| ports.iter().map(move |ports| binding(vip, 17, ports.clone(), 0));
    parts.bindings = [VIP4, VIP6].into_iter().flat_map(bind).collect();
    parts
}

#[test]
fn fragments_need_no_state_under_a_policy_without_ports() {
    let mut bed = Bed::new(hashed_without_ports(HashPolicy::Addresses, &[0..=65_535]));
    let expected = bed.backend_of(&udp("198.51.100.7", 5, VIP4, 443, b"")).unwrap();
    let pieces = datagram(VIP4, 443, 1, 3000).cut(1024);
    for piece in pieces.iter().rev() {
        assert_eq!(delivered(&bed.all(piece)[0]).0, expected);
    }
    bed.poll();
    assert_eq!(bed.counters.fragment_table.recorded.read(), 0);
}

// Promise: fragment-ports
#[test]
fn fragments_to_an_unserved_port_reach_no_backend() {
    for policy in [HashPolicy::Addresses, HashPolicy::Source, HashPolicy::FiveTuple] {
        for vip in [VIP4, VIP6] {
            let mut bed = Bed::new(hashed_without_ports(policy, &[0..=443, 8000..=65_535]));
            let served = datagram(vip, 443, 1, 3000);
            let expected = bed.backend_of(&udp(served.source, 1001, vip, 443, b"")).unwrap();
            for (order, id) in [[0, 1, 2], [2, 1, 0]].into_iter().zip(1..) {
                let pieces = Datagram { id, ..served.clone() }.cut(1024);
                let out: Vec<_> = order.iter().flat_map(|place| bed.all(&pieces[*place])).collect();
                assert!(out.len() == 3 && out.iter().all(|one| delivered(one).0 == expected), "{policy:?}");
                let pieces = datagram(vip, 444, 10 + id, 3000).cut(1024);
                let out: Vec<_> = order.iter().flat_map(|place| bed.all(&pieces[*place])).collect();
                let verdicts: Vec<Verdict> = out.iter().map(|(verdict, _)| *verdict).collect();
                assert_eq!(verdicts, [Verdict::Drop(DropReason::NoVip); 3], "{policy:?} {vip} {order:?}");
            }
        }
    }
}

/// Inserts a header in front of the payload: an authentication header for IPv4, or a destination
/// options header for IPv6.
fn behind_extension(datagram: Datagram) -> Datagram {
    let next = datagram.protocol;
    let (protocol, extension) = match datagram.vip {
        VIP4 => (51, vec![next, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        _ => (60, vec![next, 0, 1, 4, 0, 0, 0, 0]),
    };
    Datagram { protocol, payload: [extension, datagram.payload].concat(), ..datagram }
}

#[test]
fn extension_headers_in_a_first_piece_lose_none_of_the_others() {
    let policies = [HashPolicy::FiveTuple, HashPolicy::Addresses, HashPolicy::Source];
    for (policy, ports) in policies.into_iter().flat_map(|policy| [(policy, 443..=443), (policy, 0..=65_535)])
    {
        for (vip, icmp) in [(VIP4, 1), (VIP6, 58)] {
            let mut bed = Bed::new(hashed_without_ports(policy, std::slice::from_ref(&ports)));
            let whole = udp(datagram(vip, 443, 1, 0).source, 1001, vip, 443, b"");
            let expected = bed.backend_of(&whole).unwrap();
            for order in [[0, 1, 2], [2, 1, 0]] {
                let ping = [vec![8, 0, 0, 0, 0, 1, 0, 1], vec![0; 3000]].concat();
                let ping = Datagram { protocol: icmp, payload: ping, ..datagram(vip, 0, 7, 0) };
                for datagram in [datagram(vip, 443, 1, 3000), ping] {
                    let id = datagram.id + 100 * order[0] as u32;
                    let pieces = behind_extension(Datagram { id, ..datagram.clone() }).cut(1024);
                    let out: Vec<_> = order.iter().flat_map(|place| bed.all(&pieces[*place])).collect();
                    let to: Vec<u8> = out.iter().map(|one| delivered(one).0).collect();
                    let one = if datagram.protocol == 17 { expected } else { to[0] };
                    assert_eq!(to, [one; 3], "{policy:?} {ports:?} {vip} {order:?}");
                }
            }
        }
    }
}

#[test]
fn datagram_with_extension_headers_completes() {
    for vip in [VIP4, VIP6] {
        let mut bed = Bed::new(parts(gre_slots(5), &[1; 5]));
        for source_port in 0..10 {
            let payload = udp_payload(2_000 + source_port, 443, 2_000);
            let datagram = behind_extension(Datagram { payload, ..datagram(vip, 443, 5, 0) });
            assert!(datagram.cut(1024).iter().all(|piece| bed.all(piece)[0].0 == Verdict::Tx));
        }
        assert_eq!(drops(&bed, DropReason::FragmentConflict), 0);
    }
}

#[test]
fn a_large_echo_request_goes_whole_to_one_backend() {
    for (vip, protocol) in [(VIP4, 1), (VIP6, 58)] {
        let mut bed = Bed::new(parts(gre_slots(4), &[1; 4]));
        let mut payload = vec![8, 0, 0, 0, 0, 1, 0, 1];
        payload.extend(vec![0; 4000]);
        let ping = Datagram { protocol, payload, ..datagram(vip, 0, 77, 0) };
        let mut out: Vec<_> = ping.cut(1400).iter().rev().flat_map(|piece| bed.all(piece)).collect();
        let backends: Vec<u8> = out.iter_mut().map(|one| delivered(one).0).collect();
        assert_eq!(backends.len(), 3);
        assert!(backends.iter().all(|backend| *backend == backends[0]));
    }
}

#[test]
fn pieces_cross_to_the_thread_that_gathers_them() {
    let live = Live::new(Snapshot::new(parts(gre_slots(2), &[1, 1])).unwrap());
    let mut threads: Vec<Pipeline> = (0..4).map(|thread| pipeline_of(&live, thread, 4)).collect();
    let mut gatherers = std::collections::HashSet::new();
    for host in 1..40u8 {
        let source: &'static str = Box::leak(format!("198.51.100.{host}").into_boxed_str());
        let pieces = Datagram { source, ..datagram(VIP4, 443, u32::from(host), 2000) }.cut(1024);
        let mut meets = std::collections::HashSet::new();
        for (came_on, piece) in (0..4).zip([&pieces[0], &pieces[1], &pieces[0], &pieces[1]]) {
            match one(&mut threads[came_on], piece, Origin::Wire) {
                Verdict::ToThread(to, reason) => {
                    assert_eq!(reason, HandoffReason::Fragment { decapsulated_from: None });
                    let origin = Origin::Thread(ThreadId(came_on as u16), reason);
                    assert_ne!(
                        one(&mut threads[usize::from(to.0)], piece, origin),
                        Verdict::ToThread(to, reason)
                    );
                    meets.insert(to.0);
                }
                Verdict::Tx | Verdict::Hold(_) => {
                    meets.insert(came_on as u16);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(meets.len(), 1, "one thread per 3-tuple");
        gatherers.extend(meets);
    }
    assert_eq!(gatherers.len(), 4, "all threads have a share");
}

fn pipeline_of(live: &Live, thread: u16, threads: u16) -> Pipeline {
    let counters = std::sync::Arc::new(ThreadCounters::new(16, 16));
    Pipeline::new(PipelineConfig { thread: ThreadId(thread), threads, ..config() }, live, counters, None)
        .unwrap()
}

fn one(pipeline: &mut Pipeline, frame: &[u8], origin: Origin) -> Verdict {
    let mut buffer = vec![0; ROOM];
    buffer[24..24 + frame.len()].copy_from_slice(frame);
    let mut packets = [Packet::new(&mut buffer, 24, 24 + frame.len(), origin)];
    let mut verdicts = [Verdict::Tx];
    pipeline.process(Now::from_nanos(1_000_000_000), &mut packets, &mut verdicts);
    verdicts[0]
}

proptest! {
    /// Datagrams are split at random offsets, shuffled and duplicated. Each copy of a fragment must
    /// arrive at the backend of its datagram.
    #[test]
    fn any_order_any_cut_any_copies(
        cuts in prop::collection::vec((1usize..6, 100usize..1500), 1..6),
        shuffle in prop::collection::vec(any::<prop::sample::Index>(), 60),
        copies in prop::collection::vec(any::<bool>(), 60),
        six in any::<bool>(),
    ) {
        let vip = if six { VIP6 } else { VIP4 };
        let fragments = FragmentConfig { buffered: 128, per_source: 128, ..FragmentConfig::default() };
        let config = PipelineConfig { fragments, held_of_a_pool: 128, ..config() };
        let mut bed = Bed::with(parts(gre_slots(5), &[3, 1, 2, 1, 1]), config);
        let mut expected = Vec::new();
        let mut pieces = Vec::new();
        for (id, (eights, data)) in cuts.iter().enumerate() {
            let datagram = datagram(vip, 443, id as u32, *data);
            let whole = udp(datagram.source, 1000 + id as u16, vip, 443, b"");
            expected.push(bed.backend_of(&whole).unwrap());
            let room = (*eights * 8).max(data.div_ceil(7)).max(24);
            pieces.extend(datagram.cut(room).into_iter().map(|piece| (id, piece)));
        }
        for (place, index) in shuffle.iter().enumerate().take(pieces.len()) {
            let other = index.index(pieces.len());
            pieces.swap(place, other);
        }
        let doubled: Vec<_> = pieces.iter().zip(copies.iter().chain(std::iter::repeat(&false)))
            .flat_map(|(piece, twice)| std::iter::repeat_n(piece, 1 + usize::from(*twice))).collect();
        let mut arrived = vec![0; cuts.len()];
        for (_, piece) in &doubled {
            for one in bed.all(piece) {
                let (backend, inner) = delivered(&one);
                let id = if six { u32::from_be_bytes(inner[44..48].try_into().unwrap()) } else {
                    u32::from(u16::from_be_bytes(inner[4..6].try_into().unwrap()))
                };
                prop_assert_eq!(backend, expected[id as usize]);
                arrived[id as usize] += 1;
            }
        }
        for (id, arrived) in arrived.iter().enumerate() {
            prop_assert_eq!(*arrived, doubled.iter().filter(|(of, _)| *of == id).count());
        }
        prop_assert_eq!(bed.holding(), 0);
    }
}
