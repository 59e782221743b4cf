//! Tests of packet capture in a running pipeline.

use std::collections::HashSet;
use std::num::NonZeroU32;

use forwarder::*;
use proptest::prelude::*;

use crate::bed::*;
use crate::pieces::*;

const SNAP: usize = 64;

/// Installs a tap and returns the previous tap.
fn put(bed: &mut Bed, tap: Option<Box<Tap>>) -> Option<Box<Tap>> {
    bed.port.ask(Request::Capture(tap)).unwrap();
    bed.poll();
    match bed.port.answer() {
        Some(Reply::Capture(old)) => old,
        other => panic!("{other:?}"),
    }
}

fn tapped(bed: &mut Bed, filter: CaptureFilter, records: usize) -> CaptureReceiver {
    let (tap, catch) = capture_tap(filter, TapSize { snap: SNAP, records, batch: 256 });
    assert!(put(bed, Some(tap)).is_none());
    catch
}

fn only(reasons: &[DropReason]) -> CaptureFilter {
    CaptureFilter { drops: Some(reasons.iter().copied().collect()), ..CaptureFilter::default() }
}

fn all(catch: &mut CaptureReceiver) -> Vec<Record> {
    std::iter::from_fn(|| catch.pop()).collect()
}

/// Processes one batch. Returns the verdicts and the resulting frames.
fn batch(bed: &mut Bed, frames: &[Vec<u8>]) -> Vec<(Verdict, Vec<u8>)> {
    let mut buffers = vec![vec![0; ROOM]; frames.len()];
    for (buffer, frame) in buffers.iter_mut().zip(frames) {
        buffer[24..24 + frame.len()].copy_from_slice(frame);
    }
    let mut packets: Vec<Packet<'_>> = buffers
        .iter_mut()
        .zip(frames)
        .map(|(buffer, frame)| Packet::new(buffer, 24, 24 + frame.len(), Origin::Wire))
        .collect();
    let mut verdicts = vec![Verdict::Tx; frames.len()];
    bed.pipeline.process(bed.now, &mut packets, &mut verdicts);
    verdicts.into_iter().zip(packets.iter().map(|packet| packet.frame().to_vec())).collect()
}

fn echo_request() -> Vec<u8> {
    let mut frame = Vec::new();
    let builder = etherparse::PacketBuilder::ethernet2(ROUTER, OURS);
    let header = etherparse::IcmpEchoHeader { id: 1, seq: 1 };
    let step = builder.ipv4([198, 51, 100, 7], [203, 0, 113, 10], 9);
    step.icmpv4(etherparse::Icmpv4Type::EchoRequest(header)).write(&mut frame, b"x").unwrap();
    frame
}

#[test]
fn a_record_has_the_packet_as_it_came_and_as_it_left() {
    let mut bed = Bed::new(parts(gre_slots(2), &[1, 1]));
    let mut catch = tapped(&mut bed, CaptureFilter::default(), 16);
    let frame = udp("198.51.100.7", 9, VIP4, 443, &[7; 300]);
    let (verdict, out) = bed.send(24, &frame);
    assert_eq!(verdict, Verdict::Tx);
    let record = catch.pop().unwrap();
    let (time, thread) = (record.time, record.thread);
    assert_eq!((time, thread, record.generation), (bed.now, ThreadId(0), Generation(1)));
    assert_eq!((record.verdict, record.service), (Verdict::Tx, Some(ServiceId(0))));
    assert_eq!((record.slot, record.new_flow), (Some(SlotId(u32::from(out[14 + 19]) - 1)), true));
    assert_eq!(record.before(), Snapped { bytes: &frame[..SNAP], whole: frame.len() });
    assert_eq!(record.after(), Some(Snapped { bytes: &out[..SNAP], whole: frame.len() + 24 }));
    catch.give_back(record);
    // The flow is now in the connection table. The reply to an echo request is recorded. The record
    // of a dropped packet has no frame after the pipeline.
    assert_eq!(bed.send(24, &frame).0, Verdict::Tx);
    assert!(!catch.pop().unwrap().new_flow);
    let (_, out) = bed.send(24, &echo_request());
    let record = catch.pop().unwrap();
    assert_eq!((record.verdict, record.service, record.slot), (Verdict::Reply, None, None));
    assert_eq!(record.before().bytes, &echo_request()[..record.before().whole]);
    assert_eq!(record.after(), Some(Snapped { bytes: &out, whole: out.len() }));
    let (verdict, _) = bed.send(24, &tcp("198.51.100.7", 9, VIP4, 81, "S"));
    assert_eq!(verdict, Verdict::Drop(DropReason::NoVip));
    let record = catch.pop().unwrap();
    assert_eq!((record.verdict, record.service), (Verdict::Drop(DropReason::NoVip), None));
    assert!(record.after().is_none() && catch.pop().is_none());
    assert_eq!((bed.counters.captured.read(), bed.counters.capture_lost.read()), (4, 0));
}

#[test]
fn dropped_packet_is_captured_with_reason_and_backend() {
    let mut bed = Bed::new(parts(gre_slots(1), &[1]));
    let good = tcp("198.51.100.7", 9, VIP4, 80, "S");
    let mut large = udp("198.51.100.7", 9, VIP4, 443, &[0; 1460]);
    large[14 + 6] = 0; // DF
    let frames =
        [good.clone(), good[..30].to_vec(), tcp("198.51.100.7", 9, VIP4, 81, "S"), large, echo_request()];
    for (wanted, place) in [(DropReason::Malformed, 1), (DropReason::NoVip, 2), (DropReason::TooBig, 3)] {
        let mut catch = tapped(&mut bed, only(&[wanted]), 16);
        batch(&mut bed, &frames);
        let found = all(&mut catch);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].verdict, Verdict::Drop(wanted));
        assert_eq!(found[0].before().whole, frames[place].len());
        let chosen = (wanted == DropReason::TooBig).then_some(SlotId(0));
        assert_eq!(found[0].slot, chosen, "{wanted:?}: no state of the previous packet");
        assert!(put(&mut bed, None).is_some());
    }
    let mut catch = tapped(&mut bed, only(&[DropReason::Malformed, DropReason::TooBig]), 16);
    batch(&mut bed, &frames);
    assert_eq!(all(&mut catch).len(), 2);
}

#[test]
fn vip_filter_matches_by_service_or_by_destination() {
    let mut bed = Bed::new(parts(gre_slots(2), &[1, 1]));
    let vip = VipFilter { services: vec![ServiceId(1)] };
    let mut catch = tapped(&mut bed, CaptureFilter { vip: Some(vip), ..CaptureFilter::default() }, 16);
    batch(
        &mut bed,
        &[
            udp("198.51.100.7", 9, VIP4, 443, b"another service of the address"),
            udp("198.51.100.7", 9, VIP4, 53, b"its own"),
            udp("198.51.100.7", 9, VIP4, 54, b"nobody's"),
            udp("198.51.100.7", 9, "203.0.113.99", 54, b"another address"),
            tagged(&udp("2001:db8:1::7", 9, VIP6, 54, b"nobody's"), 0x88a8, 7),
            echo_request(),
        ],
    );
    let verdicts: Vec<Verdict> = all(&mut catch).iter().map(|record| record.verdict).collect();
    let no_vip = Verdict::Drop(DropReason::NoVip);
    assert_eq!(verdicts, [Verdict::Tx, no_vip, no_vip, Verdict::Reply]);
}

#[test]
fn vip_filter_matches_suffix_vips_in_every_cluster() {
    let mut parts = parts(gre_slots(2), &[1, 1]);
    let prefixes = [("198.51.100.0", 24), ("2001:db8:e::", 48)];
    let prefixes = prefixes.map(|(front, length)| Prefix::new(ip(front), length).unwrap()).to_vec();
    parts.groups = vec![PrefixGroup { name: "edge".into(), prefixes }];
    for (suffix, length, service) in [("0.0.0.20", 5, 0), ("::20", 72, 0), ("0.0.0.180", 8, 1)] {
        let suffix = Suffix::new(ip(suffix), length).unwrap();
        let address = VipAddress::Suffix { group: 0, suffix };
        parts.bindings.push(Binding { address, protocol: 6, ports: 80..=80, service });
    }
    let mut bed = Bed::new(parts);
    let vip = Some(VipFilter { services: vec![ServiceId(0)] });
    let mut catch = tapped(&mut bed, CaptureFilter { vip, ..CaptureFilter::default() }, 16);
    let frames = [
        tcp("198.18.0.7", 9, "198.51.100.52", 80, "S"),
        tcp("198.18.0.7", 9, "198.51.100.20", 81, "S"),
        udp("2001:db8::7", 9, "2001:db8:e:ab00::20", 80, b"another protocol"),
        tcp("198.18.0.7", 9, "198.51.100.180", 81, "S"), // The longer suffix matches.
        tcp("198.18.0.7", 9, "198.51.100.21", 81, "S"),
        tcp("2001:db8::7", 9, "2001:db8:f::20", 81, "S"),
        tcp("198.18.0.7", 9, "192.0.2.20", 81, "S"),
    ];
    batch(&mut bed, &frames);
    let found = all(&mut catch);
    assert_eq!(found.len(), 3, "{found:?}");
    for (record, frame) in found.iter().zip(&frames) {
        assert_eq!(record.before().bytes, &frame[..frame.len().min(SNAP)]);
    }
    assert_eq!((found[1].verdict, found[1].service), (Verdict::Drop(DropReason::NoVip), None));
}

/// The address of a VIP, or a prefix group and the suffix of a VIP. All bits of an address except
/// the last eight are fixed. The strings contain binary digits.
#[derive(Clone, Debug)]
enum Ends {
    Exact(String),
    Suffix(usize, String),
}

fn digits(most: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::bool::ANY, 0..=most)
        .prop_map(|bits| bits.into_iter().map(|bit| if bit { '1' } else { '0' }).collect())
}

fn ends() -> impl Strategy<Value = Ends> {
    let exact = prop::collection::vec(prop::bool::ANY, 8)
        .prop_map(|bits| Ends::Exact(bits.into_iter().map(|bit| if bit { '1' } else { '0' }).collect()));
    prop_oneof![1 => exact, 3 => (0..3usize, digits(8)).prop_map(|(group, digits)| Ends::Suffix(group, digits))]
}

/// Returns an octet that starts or ends with the given digits. The other bits are zero.
fn octet(digits: &str, before: bool) -> u8 {
    let all = if before { format!("{digits:0>8}") } else { format!("{digits:0<8}") };
    u8::from_str_radix(&all, 2).unwrap()
}

fn address(octet: u8, is_v4: bool) -> std::net::IpAddr {
    if is_v4 { ip(&format!("198.51.100.{octet}")) } else { ip(&format!("2001:db8:e::{octet:x}")) }
}

/// Returns a configuration with one service and port per binding. A prefix that several groups
/// contain belongs to the first of these groups.
fn cluster(bindings: &[Ends], groups: &[Vec<String>], is_v4: bool) -> Parts {
    let mut parts = parts(gre_slots(2), &[1, 1]);
    let pool = std::sync::Arc::clone(&parts.services[0].pool);
    let (fixed, mut seen) = (if is_v4 { 24 } else { 120 }, HashSet::new());
    parts.groups = (0..)
        .zip(groups)
        .map(|(number, prefixes)| {
            let new = prefixes.iter().filter(|digits| seen.insert((*digits).clone()));
            let prefix = |digits: &String| {
                Prefix::new(address(octet(digits, false), is_v4), fixed + digits.len() as u8).unwrap()
            };
            PrefixGroup { name: format!("g{number}").into(), prefixes: new.map(prefix).collect() }
        })
        .collect();
    parts.services = (0..bindings.len() as u32).map(|id| service(id, HashPolicy::FiveTuple, &pool)).collect();
    parts.bindings = (0..)
        .zip(bindings)
        .map(|(service, ends)| {
            let address = match ends {
                Ends::Exact(digits) => address(octet(digits, true), is_v4).into(),
                Ends::Suffix(group, digits) => {
                    let back = if is_v4 { "0.0.0." } else { "::" };
                    let octet = octet(digits, true);
                    let octet = if is_v4 { octet.to_string() } else { format!("{octet:x}") };
                    let suffix = Suffix::new(ip(&format!("{back}{octet}")), digits.len() as u8).unwrap();
                    VipAddress::Suffix { group: *group, suffix }
                }
            };
            Binding { address, protocol: 6, ports: 1000 + service as u16..=1000 + service as u16, service }
        })
        .collect();
    parts
}

/// Returns the services of an address. Exact bindings take precedence. Otherwise, the address
/// belongs to the longest matching suffix in the group with the longest matching prefix.
fn owners(bindings: &[Ends], groups: &[Vec<String>], probe: &str) -> Vec<u32> {
    let of = |wanted: &dyn Fn(&Ends) -> bool| -> Vec<u32> {
        (0..).zip(bindings).filter(|(_, ends)| wanted(ends)).map(|(service, _)| service).collect()
    };
    let exact = of(&|ends| matches!(ends, Ends::Exact(digits) if digits == probe));
    if !exact.is_empty() {
        return exact;
    }
    for length in (0..=8).rev() {
        let Some(group) = groups.iter().position(|prefixes| prefixes.contains(&probe[..length].to_owned()))
        else {
            continue;
        };
        let suffix = |back: usize| {
            of(
                &|ends| matches!(ends, Ends::Suffix(of, digits) if *of == group && *digits == probe[8 - back..]),
            )
        };
        return (0..=8).rev().map(suffix).find(|found| !found.is_empty()).unwrap_or_default();
    }
    Vec::new()
}

#[test]
fn held_fragment_is_recorded_again_at_its_release() {
    let mut bed = Bed::new(parts(gre_slots(2), &[1, 1]));
    let datagram = |id| Datagram {
        source: "198.51.100.7",
        vip: VIP4,
        protocol: 17,
        id,
        payload: udp_payload(1000, 443, 2000),
    };
    let (never, late) = (datagram(1).cut(1400), datagram(2).cut(1400));
    let mut catch = tapped(&mut bed, CaptureFilter::default(), 16);
    assert!(bed.all(&never[1]).is_empty() && bed.all(&late[1]).is_empty());
    let out = bed.all(&late[0]);
    assert_eq!(out.len(), 2);
    let found = all(&mut catch);
    assert!(matches!(found[0].verdict, Verdict::Hold(_)) && matches!(found[1].verdict, Verdict::Hold(_)));
    assert!(found[0].after().is_none());
    assert_eq!((found[2].verdict, found[3].verdict, found.len()), (Verdict::Tx, Verdict::Tx, 4));
    assert_eq!(found[3].before().bytes, &late[1][..SNAP]);
    let left = out.iter().find(|(_, frame)| frame.len() == late[1].len() + 24).unwrap();
    assert_eq!(found[3].after().unwrap().bytes, &left.1[..SNAP]);
    assert_eq!((found[3].service, found[3].slot), (Some(ServiceId(0)), found[2].slot));
    put(&mut bed, None).unwrap();
    let mut catch = tapped(&mut bed, only(&[DropReason::FragmentTimeout]), 16);
    bed.advance(3600);
    bed.poll();
    let found = all(&mut catch);
    assert_eq!((found.len(), bed.counters.drops(DropReason::FragmentTimeout)), (1, 1));
    assert_eq!((found[0].before().bytes, found[0].service), (&never[1][..SNAP], None));
}

#[test]
fn a_closed_tap_catches_nothing_and_goes_home() {
    let mut bed = Bed::new(parts(gre_slots(1), &[1]));
    let frame = tcp("198.51.100.7", 9, VIP4, 80, "S");
    let mut catch = tapped(&mut bed, CaptureFilter::default(), 2);
    for _ in 0..5 {
        assert_eq!(bed.send(24, &frame).0, Verdict::Tx);
    }
    assert_eq!(catch.counts(), CaptureCounts { matched: 5, taken: 2, lost: 3 });
    catch.close();
    assert_eq!(bed.send(24, &frame).0, Verdict::Tx);
    assert_eq!(catch.counts().matched, 5);
    assert_eq!(all(&mut catch).len(), 2, "captured records stay available");
    assert_eq!((bed.counters.captured.read(), bed.counters.capture_lost.read()), (2, 3));
    assert!(put(&mut bed, None).is_some());
    assert!(put(&mut bed, None).is_none());
    assert_eq!(bed.send(24, &frame).0, Verdict::Tx);
}

/// A packet with the properties from which the expected result is computed.
#[derive(Clone, Debug)]
struct Dish {
    frame: Vec<u8>,
    vip: bool,
    /// The flow, or `None` for packets that are not looked up in the connection table.
    flow: Option<(bool, u16)>,
}

fn dish((kind, port): (u8, u16)) -> Dish {
    let source = ["198.51.100.7", "2001:db8:1::7"][usize::from(kind % 2)];
    let vip = [VIP4, VIP6][usize::from(kind % 2)];
    match kind / 2 {
        0 => Dish { frame: tcp(source, port, vip, 80, "SA"), vip: true, flow: Some((kind % 2 == 0, port)) },
        1 => {
            Dish { frame: udp(source, port, vip, 53, b"one"), vip: false, flow: Some((kind % 2 == 0, 1000)) }
        }
        2 => Dish { frame: tcp(source, port, vip, 81, "S"), vip: true, flow: None },
        _ => Dish { frame: vec![kind; 20 + usize::from(port)], vip: false, flow: None },
    }
}

fn filter() -> impl Strategy<Value = CaptureFilter> {
    let reasons = prop::option::of(prop::sample::subsequence(
        vec![DropReason::NoVip, DropReason::NotIp, DropReason::Ttl],
        0..3,
    ));
    let slots = prop::option::of(prop::sample::subsequence(vec![SlotId(2), SlotId(0), SlotId(1)], 1..3));
    (any::<bool>(), slots, reasons, any::<bool>(), 1..20u32).prop_map(|(vip, slots, reasons, new, sample)| {
        CaptureFilter {
            // Service 0 has a port on both addresses.
            vip: vip.then(|| VipFilter { services: vec![ServiceId(0)] }),
            slots,
            drops: reasons.map(|reasons| reasons.into_iter().collect()),
            new_flows: new,
            sample: NonZeroU32::new(sample).unwrap(),
        }
    })
}

proptest! {
    /// Compares the filter with a model that matches prefixes and suffixes as text.
    #[test]
    fn a_packet_to_no_port_is_of_each_vip_that_has_its_address(
        bindings in prop::collection::vec(ends(), 1..8),
        groups in prop::collection::vec(prop::collection::vec(digits(8), 0..4), 3),
        wanted in prop::collection::vec(prop::bool::ANY, 8),
        is_v4: bool,
    ) {
        let mut bed = Bed::new(cluster(&bindings, &groups, is_v4));
        let services: Vec<ServiceId> = (0..bindings.len() as u32)
            .rev().filter(|id| wanted[*id as usize]).map(ServiceId).collect();
        let vip = Some(VipFilter { services: services.clone() });
        let mut catch = tapped(&mut bed, CaptureFilter { vip, ..CaptureFilter::default() }, 256);
        let source = if is_v4 { "198.18.0.7" } else { "2001:db8::7" };
        let frames: Vec<Vec<u8>> =
            (0..=255).map(|last| tcp(source, 9, &address(last, is_v4).to_string(), 999, "S")).collect();
        let verdicts = batch(&mut bed, &frames);
        prop_assert!(verdicts.iter().all(|(verdict, _)| *verdict == Verdict::Drop(DropReason::NoVip)));
        let is_wanted = |last: u8| {
            let owners = owners(&bindings, &groups, &format!("{last:08b}"));
            owners.iter().any(|owner| services.contains(&ServiceId(*owner)))
        };
        let expected: Vec<&[u8]> = (0..=255u8).zip(&frames)
            .filter(|(last, _)| is_wanted(*last)).map(|(_, frame)| &frame[..frame.len().min(SNAP)]).collect();
        let found = all(&mut catch);
        let found: Vec<&[u8]> = found.iter().map(|record| record.before().bytes).collect();
        prop_assert_eq!(found, expected);
    }

    /// Checks that the capture contains every n-th matching packet, and that verdicts and frames
    /// are the same as without a tap.
    #[test]
    fn what_is_recorded_is_every_nth_packet_that_matches(
        batches in prop::collection::vec(prop::collection::vec((0..8u8, 0..40u16), 1..24), 1..8),
        filter in filter(),
    ) {
        let mut bed = Bed::new(parts(gre_slots(3), &[1, 1, 1]));
        let mut plain = Bed::new(parts(gre_slots(3), &[1, 1, 1]));
        let mut catch = tapped(&mut bed, filter.clone(), 200);
        let (mut known, mut matching) = (HashSet::new(), Vec::new());
        for dishes in batches {
            let dishes: Vec<Dish> = dishes.into_iter().map(dish).collect();
            let frames: Vec<Vec<u8>> = dishes.iter().map(|dish| dish.frame.clone()).collect();
            let out = batch(&mut plain, &frames);
            prop_assert_eq!(&batch(&mut bed, &frames), &out, "a tap does not change frames");
            for (dish, (verdict, out)) in dishes.iter().zip(out) {
                let new = dish.flow.is_some_and(|flow| known.insert(flow));
                let slot = (verdict == Verdict::Tx).then(|| SlotId(u32::from(out[14 + 19]) - 1));
                let dropped = match verdict { Verdict::Drop(reason) => Some(reason), _ => None };
                let matches = (filter.vip.is_none() || dish.vip)
                    && filter.slots.as_ref().is_none_or(|slots| slot.is_some_and(|slot| slots.contains(&slot)))
                    && filter.drops.is_none_or(|drops| dropped.is_some_and(|reason| drops.contains(reason)))
                    && (new || !filter.new_flows);
                if matches {
                    matching.push((dish.frame.clone(), verdict, slot, new, out));
                }
            }
        }
        let expected: Vec<_> = matching.iter().step_by(filter.sample.get() as usize).collect();
        let found = all(&mut catch);
        prop_assert_eq!(found.len(), expected.len());
        prop_assert_eq!(catch.counts().matched, matching.len() as u64);
        for (record, (frame, verdict, slot, new, out)) in found.iter().zip(expected) {
            prop_assert_eq!((record.verdict, record.slot, record.new_flow), (*verdict, *slot, *new));
            let cut = |bytes: &[u8]| bytes[..bytes.len().min(SNAP)].to_vec();
            prop_assert_eq!((record.before().bytes.to_vec(), record.before().whole), (cut(frame), frame.len()));
            let after = record.after().map(|after| (after.bytes.to_vec(), after.whole));
            prop_assert_eq!(after, slot.map(|_| (cut(out), out.len())));
        }
    }
}
