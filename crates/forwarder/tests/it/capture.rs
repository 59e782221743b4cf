//! A tap in a running pipeline: which packets it records, and what of them.

use std::collections::HashSet;
use std::num::NonZeroU32;

use forwarder::*;
use proptest::prelude::*;

use crate::bed::*;
use crate::pieces::*;

const SNAP: usize = 64;

/// Puts a tap in, and gives back the one that was there.
fn put(bed: &mut Bed, tap: Option<Box<Tap>>) -> Option<Box<Tap>> {
    bed.port.ask(Request::Capture(tap)).unwrap();
    bed.poll();
    match bed.port.answer() {
        Some(Reply::Capture(old)) => old,
        other => panic!("{other:?}"),
    }
}

fn tapped(bed: &mut Bed, filter: CaptureFilter, records: usize) -> Catch {
    let (tap, catch) = capture_tap(filter, TapSize { snap: SNAP, records, batch: 256 });
    assert!(put(bed, Some(tap)).is_none());
    catch
}

fn only(reasons: &[DropReason]) -> CaptureFilter {
    CaptureFilter { drops: Some(reasons.iter().copied().collect()), ..CaptureFilter::default() }
}

fn all(catch: &mut Catch) -> Vec<Record> {
    std::iter::from_fn(|| catch.pop()).collect()
}

/// One batch; verdicts, and frames as they then are.
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
    // The same flow again is known; an echo is answered; what is dropped does not leave.
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
fn a_drop_is_captured_by_its_name_and_with_the_backend_that_was_chosen() {
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
        assert_eq!(found[0].slot, chosen, "{wanted:?} tells nothing of the packet before it in its place");
        assert!(put(&mut bed, None).is_some());
    }
    let mut catch = tapped(&mut bed, only(&[DropReason::Malformed, DropReason::TooBig]), 16);
    batch(&mut bed, &frames);
    assert_eq!(all(&mut catch).len(), 2);
}

#[test]
fn a_packet_is_of_a_vip_by_its_service_and_before_that_is_known_by_its_destination() {
    let mut bed = Bed::new(parts(gre_slots(2), &[1, 1]));
    let vip = VipFilter { services: vec![ServiceId(1)], addresses: vec![ip(VIP6), ip(VIP4)] };
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
fn a_piece_that_was_held_is_recorded_again_when_its_time_is_over_or_its_first_comes() {
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
    assert_eq!(all(&mut catch).len(), 2, "what was caught can still be taken");
    assert_eq!((bed.counters.captured.read(), bed.counters.capture_lost.read()), (2, 3));
    assert!(put(&mut bed, None).is_some());
    assert!(put(&mut bed, None).is_none());
    assert_eq!(bed.send(24, &frame).0, Verdict::Tx);
}

/// What a menu's packet is, as far as the oracle must know.
#[derive(Clone, Debug)]
struct Dish {
    frame: Vec<u8>,
    vip: bool,
    /// Names its flow, where the connection table is asked.
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
        2 => Dish { frame: tcp(source, port, vip, 81, "S"), vip: kind % 2 == 0, flow: None },
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
            // Service 0, and of what has no service the first address.
            vip: vip.then(|| VipFilter { services: vec![ServiceId(0)], addresses: vec![ip(VIP4)] }),
            slots,
            drops: reasons.map(|reasons| reasons.into_iter().collect()),
            new_flows: new,
            sample: NonZeroU32::new(sample).unwrap(),
        }
    })
}

proptest! {
    /// Against a pipeline without a tap, and a list of what matches, of which every nth is wanted.
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
            prop_assert_eq!(&batch(&mut bed, &frames), &out, "a tap changes nothing");
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
