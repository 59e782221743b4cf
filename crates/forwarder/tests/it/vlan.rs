//! Tests of the VLAN tags of outgoing frames, which are kept, set or translated. The tests build
//! the expected frames themselves.

use forwarder::*;
use packet::{Encapsulation, Mac, Tag, Tags};
use proptest::prelude::*;

use crate::bed::*;
use crate::icmp::without_df;

/// A VLAN tag as two 16-bit values: the EtherType, and the priority bits with the VLAN identifier.
type Raw = (u16, u16);

fn with_tags(frame: &[u8], tags: &[Raw]) -> Vec<u8> {
    tags.iter().rev().fold(frame.to_vec(), |frame, (kind, control)| tagged(&frame, *kind, *control))
}

fn tags(raw: &[Raw]) -> Tags {
    raw.iter().rev().fold(Tags::NONE, |tags, (kind, control)| {
        let (id, priority) = (control & 0xfff, u8::try_from(control >> 13).unwrap());
        let tag = if *kind == 0x88a8 { Tag::service(id, priority) } else { Tag::customer(id, priority) };
        tags.push(tag.unwrap()).unwrap()
    })
}

fn bed_with(mut slot: Slot, tagging: Tagging) -> Bed {
    slot.next_hop = Some(NextHop { tagging, ..NextHop::plain(Mac(HOP), Mac(OURS)) });
    Bed::new(parts(vec![slot], &[1]))
}

/// A tagging policy in an independent form, from which the expected tags are computed.
#[derive(Clone, Debug)]
enum Policy {
    Keep,
    Set(Vec<Raw>),
    Translate(Vec<(Option<Vec<u16>>, Vec<Raw>)>),
}

impl Policy {
    fn tagging(&self) -> Tagging {
        match self {
            Self::Keep => Tagging::Keep,
            Self::Set(to) => Tagging::Set(tags(to)),
            Self::Translate(rules) => {
                let rule = |(from, to): &(Option<Vec<u16>>, Vec<Raw>)| Translation {
                    from: from.as_ref().map(|ids| [ids.first().copied(), ids.get(1).copied()]),
                    to: tags(to),
                };
                Tagging::Translate(rules.iter().map(rule).collect())
            }
        }
    }

    fn after(&self, before: &[Raw]) -> Option<Vec<Raw>> {
        let new = match self {
            Self::Keep => return Some(before.to_vec()),
            Self::Set(to) => to,
            Self::Translate(rules) => {
                let mut ids: Vec<u16> = before.iter().map(|(_, control)| control % 4096).collect();
                if ids == [0] {
                    ids.clear();
                }
                &rules.iter().find(|(from, _)| from.is_none() || from.as_ref() == Some(&ids))?.1
            }
        };
        let mut after = new.clone();
        for (place, (_, control)) in after.iter_mut().enumerate() {
            if let Some((_, old)) = before.get(place).or(before.first()) {
                *control = *control % 4096 + old / 4096 * 4096;
            }
        }
        Some(after)
    }
}

fn raw_tags(ids: std::ops::Range<u16>, priorities: bool) -> impl Strategy<Value = Vec<Raw>> {
    let highest = if priorities { 15u16 } else { 0 };
    let tag = (any::<bool>(), ids, 0..=highest)
        .prop_map(|(service, id, high)| (if service { 0x88a8 } else { 0x8100 }, id + high * 4096));
    prop::collection::vec(tag, 0..=2)
}

fn policy() -> impl Strategy<Value = Policy> {
    let from = prop::option::of(prop::collection::vec(1..4u16, 0..=2));
    let rules = prop::collection::vec((from, raw_tags(1..4094, false)), 1..6);
    prop_oneof![
        Just(Policy::Keep),
        raw_tags(0..4095, false).prop_map(Policy::Set),
        rules.prop_map(Policy::Translate)
    ]
}

const KINDS: [Encapsulation; 4] =
    [Encapsulation::Gre, Encapsulation::Ipip, Encapsulation::Gue { udp_checksum: true }, Encapsulation::L2];

proptest! {
    /// The outgoing frame must be identical to the frame of the untagged packet, with the expected
    /// tags inserted after the MAC addresses.
    #[test]
    fn frame_leaves_with_the_tags_of_its_policy(
        policy in policy(), before in raw_tags(0..4, true), head in 0..64usize, kind in 0..4usize,
        outer_v4: bool, inner_v4: bool, length in 0..200usize,
    ) {
        let backend = if outer_v4 { "198.18.1.1" } else { "2001:db8:18::1" };
        let (source, vip) = if inner_v4 { ("198.51.100.7", VIP4) } else { ("2001:db8:1::7", VIP6) };
        let plain = udp(source, 9, vip, 443, &vec![7; length]);
        let slot = || slot("b1", backend, KINDS[kind]);
        let (_, body) = bed_with(slot(), Tagging::Keep).send(slot().encap_overhead(), &plain);
        let mut bed = bed_with(slot(), policy.tagging());
        let (verdict, out) = bed.send(head, &with_tags(&plain, &before));
        match policy.after(&before) {
            None => {
                prop_assert_eq!(verdict, Verdict::Drop(DropReason::VlanUnmapped));
                prop_assert_eq!(bed.counters.drops(DropReason::VlanUnmapped), 1);
            }
            Some(after) => {
                prop_assert_eq!(verdict, Verdict::Tx);
                prop_assert_eq!(out, with_tags(&body, &after));
                let shift = (head + 4 * before.len()) as i64 - (slot().encap_overhead() + 4 * after.len()) as i64;
                prop_assert_eq!(bed.counters.head_room_mismatch.read(), u64::from(shift < 0));
            }
        }
    }
}

#[test]
fn fragments_leave_with_the_tags_of_the_next_hop() {
    let all = [vec![], vec![(0x8100, 0x6000 + 5)], vec![(0x88a8, 1), (0x8100, 2)]];
    for too_big in [TooBig::FragmentInner, TooBig::FragmentOuter] {
        for (before, to) in all.iter().flat_map(|before| all.iter().map(move |to| (before, to))) {
            let mut slot = slot("b1", "198.18.1.1", Encapsulation::Gre);
            (slot.too_big, slot.mtu) = (too_big, 700);
            let frame = without_df(udp("198.51.100.7", 9, VIP4, 443, &[5; 1400]));
            let pieces = |tagging, frame: &[u8]| bed_with(slot.clone(), tagging).all(frame);
            let plain = pieces(Tagging::Keep, &frame);
            let out = pieces(Tagging::Set(tags(to)), &with_tags(&frame, before));
            let after = Policy::Set(to.clone()).after(before).unwrap();
            assert!(plain.len() > 1 && out.len() == plain.len());
            for ((verdict, piece), (_, untagged)) in out.iter().zip(&plain) {
                let wanted = with_tags(untagged, &after);
                assert_eq!((*verdict, piece), (Verdict::Tx, &wanted), "{too_big:?} {before:?} {to:?}");
            }
        }
    }
}

#[test]
fn what_is_answered_keeps_the_tags_that_it_came_with() {
    let before = [(0x88a8, 0x2064), (0x8100, 7)];
    let mut echo = Vec::new();
    let link = etherparse::PacketBuilder::ethernet2(ROUTER, OURS);
    let builder = link.ipv4([198, 51, 100, 7], [203, 0, 113, 10], 9).icmpv4_echo_request(1, 2);
    builder.write(&mut echo, b"ping").unwrap();
    let mut large = udp("198.51.100.7", 9, VIP4, 443, &[5; 1480]);
    large[20] = 0x40; // DF is set.
    let dying = with_ttl(udp("198.51.100.7", 9, VIP4, 443, b"x"), 1);
    for frame in [echo, large, dying] {
        let answer = |frame: &[u8]| {
            let slot = slot("b1", "198.18.1.1", Encapsulation::Gre);
            bed_with(slot, Tagging::Set(Tags::NONE)).send(24, frame)
        };
        let (verdict, plain) = answer(&frame);
        assert_eq!(verdict, Verdict::Reply);
        assert_eq!(answer(&with_tags(&frame, &before)), (verdict, with_tags(&plain, &before)));
    }
}

#[test]
fn reflected_frame_uses_the_policy_of_its_interface() {
    let mut reflecting = parts(gre_slots(1), &[1]);
    let tagging = Box::new([Policy::Translate(vec![(Some(vec![5]), vec![(0x8100, 6)])]).tagging()]);
    reflecting.next_hop = NextHopMode::Reflect { gateways: [Mac(ROUTER)].into(), tagging };
    let mut bed = Bed::new(reflecting);
    let frame = tcp("198.51.100.7", 9, VIP4, 80, "S");
    let (verdict, out) = bed.send(24, &tagged(&frame, 0x8100, 0xa005));
    assert_eq!((verdict, &out[..6], &out[12..16]), (Verdict::Tx, &ROUTER[..], &[0x81, 0, 0xa0, 6][..]));
    assert_eq!(bed.send(24, &frame).0, Verdict::Drop(DropReason::VlanUnmapped));
}
