//! Tests of packets that exceed the MTU: which senders receive an ICMP error, and which packets are
//! fragmented or dropped. The expected results are computed from a list of rules.

use forwarder::*;
use packet::Encapsulation;
use proptest::prelude::*;

use crate::bed::*;
use crate::icmp::{read_error, reassembled, refresh};

/// A packet, and the properties of the slot that it is sent to.
#[derive(Clone, Debug)]
struct Case {
    is_v4: bool,
    payload: usize,
    dont_fragment: bool,
    ttl: u8,
    kind: Encapsulation,
    outer_v4: bool,
    mtu: u16,
    too_big: TooBig,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Sent,
    /// The TTL has expired.
    Ended,
    /// The packet is too big. The field contains the size that fits.
    TooBig(usize),
    CutInside,
    CutOutside,
    Dropped,
}

impl Case {
    fn ip_len(&self) -> usize {
        (if self.is_v4 { 20 } else { 40 }) + 8 + self.payload
    }

    /// Returns the number of bytes between the outer IP header and the inner packet, or `None`
    /// without encapsulation.
    fn shim(&self) -> Option<usize> {
        match self.kind {
            Encapsulation::L2 => None,
            Encapsulation::Ipip => Some(0),
            Encapsulation::Gre => Some(4),
            Encapsulation::Gue { .. } => Some(8 + 4),
        }
    }

    fn encap_overhead(&self) -> usize {
        self.shim().map_or(0, |shim| shim + if self.outer_v4 { 20 } else { 40 })
    }

    fn frame(&self) -> Vec<u8> {
        let data: Vec<u8> = (0..self.payload).map(|at| (at * 7 + at / 251) as u8).collect();
        if !self.is_v4 {
            let mut frame = udp("2001:db8:9::7", 9, VIP6, 443, &data);
            frame[14 + 7] = self.ttl;
            return frame;
        }
        let mut frame = udp("198.51.100.7", 9, VIP4, 443, &data);
        (frame[14 + 6], frame[14 + 8]) = (if self.dont_fragment { 0x40 } else { 0 }, self.ttl);
        refresh(frame)
    }

    fn fate(&self) -> Fate {
        let (len, mtu, encap_overhead) = (self.ip_len(), usize::from(self.mtu), self.encap_overhead());
        let wrapped = if encap_overhead == 0 { Fate::Dropped } else { Fate::CutOutside };
        if self.ttl <= 1 {
            return Fate::Ended;
        }
        if len + encap_overhead <= mtu {
            return Fate::Sent;
        }
        match (self.is_v4, self.too_big) {
            (false, _) if len <= 1280 => wrapped,
            (false, _) => Fate::TooBig(1280.max(mtu - encap_overhead)),
            (true, _) if self.dont_fragment => Fate::TooBig(mtu - encap_overhead),
            (true, TooBig::FragmentInner) => Fate::CutInside,
            (true, TooBig::FragmentOuter) => wrapped,
            (true, TooBig::Drop) => Fate::Dropped,
        }
    }

    /// Removes the outer headers. For L2 forwarding, there are no outer headers.
    fn opened<'a>(&self, outer: &'a [u8]) -> &'a [u8] {
        &outer[self.encap_overhead()..]
    }
}

fn case() -> impl Strategy<Value = Case> {
    let kind = prop::sample::select(vec![
        Encapsulation::Gre,
        Encapsulation::Ipip,
        Encapsulation::Gue { udp_checksum: false },
        Encapsulation::L2,
    ]);
    let too_big = prop::sample::select(vec![TooBig::Drop, TooBig::FragmentInner, TooBig::FragmentOuter]);
    // Sizes close to the minimum IPv6 MTU are generated more often.
    let payload = prop_oneof![4 => 0..=1_660usize, 1 => 1_200..=1_260usize, 1 => 1_231..=1_233usize];
    let mtu = prop_oneof![600..=1_700u16, 1_270..=1_340u16];
    let ttl = prop_oneof![1 => 1..=2u8, 3 => Just(64u8)];
    (any::<[bool; 3]>(), payload, ttl, kind, mtu, too_big).prop_map(
        |([is_v4, dont_fragment, outer_v4], payload, ttl, kind, mtu, too_big)| Case {
            is_v4,
            payload,
            dont_fragment,
            ttl,
            kind,
            outer_v4,
            mtu,
            too_big,
        },
    )
}

/// Reassembles IPv6 fragments, which must be in order.
fn reassembled_v6(pieces: &[Vec<u8>]) -> Vec<u8> {
    let mut whole = Vec::new();
    for (place, piece) in pieces.iter().enumerate() {
        let (header, fragment, payload) = (&piece[..40], &piece[40..48], &piece[48..]);
        assert_eq!(header[6], 44);
        assert_eq!(usize::from(u16::from_be_bytes([header[4], header[5]])), piece.len() - 40);
        let word = u16::from_be_bytes([fragment[2], fragment[3]]);
        assert_eq!(usize::from(word & !7), whole.len());
        assert_eq!(word & 1 == 1, place + 1 < pieces.len());
        assert_eq!((&fragment[4..], fragment[0]), (&pieces[0][44..48], pieces[0][40]));
        whole.extend_from_slice(payload);
    }
    whole
}

/// Reassembles fragments of either address family.
fn put_together(pieces: &[Vec<u8>]) -> Vec<u8> {
    if pieces[0][0] >> 4 == 4 { reassembled(pieces).1 } else { reassembled_v6(pieces) }
}

/// Checks that the reassembled packet is the client's packet with a decremented TTL.
fn is_carried(case: &Case, frame: &[u8], packet: &[u8]) {
    let (ttl, header) = if case.is_v4 { (8, 20) } else { (7, 40) };
    assert_eq!((packet[ttl], packet.len()), (case.ttl - 1, frame.len() - 14));
    assert_eq!(packet[header..], frame[14 + header..]);
}

fn is_cut(case: &Case, frame: &[u8], fate: Fate, pieces: &[Vec<u8>]) {
    assert!(pieces.len() > 1 && pieces.iter().all(|piece| piece.len() <= usize::from(case.mtu)));
    if fate == Fate::CutInside {
        let inner: Vec<Vec<u8>> = pieces.iter().map(|piece| case.opened(piece).to_vec()).collect();
        assert!(inner.iter().all(|piece| piece[8] == case.ttl - 1));
        assert_eq!(reassembled(&inner).1, frame[34..]);
    } else {
        is_carried(case, frame, &put_together(pieces)[case.shim().unwrap()..]);
    }
}

#[test]
fn fragments_of_successive_packets_have_unique_ids() {
    for (backend, ipv4) in [("198.18.1.1", true), ("2001:db8:18::1", false)] {
        let way =
            Slot { mtu: 1_400, too_big: TooBig::FragmentOuter, ..slot("b1", backend, Encapsulation::Gre) };
        let mut bed = Bed::new(parts(vec![way], &[1]));
        let frame = refresh({
            let mut frame = udp("198.51.100.7", 9, VIP4, 443, &[7; 1_400]);
            frame[14 + 6] = 0;
            frame
        });
        // The test sends more packets than can be held at a time.
        let mut names = std::collections::HashSet::new();
        for _ in 0..600 {
            let out = bed.all(&frame);
            assert_eq!(out.len(), 2);
            let name = |(_, piece): &(Verdict, Vec<u8>)| {
                if ipv4 { piece[14 + 4..14 + 6].to_vec() } else { piece[14 + 44..14 + 48].to_vec() }
            };
            assert_eq!(name(&out[0]), name(&out[1]));
            names.insert(name(&out[0]));
        }
        assert_eq!((names.len(), bed.counters.fragmented.read()), (600, 600));
        bed.poll();
        assert!(bed.held.out.is_empty());
    }
}

proptest! {
    #[test]
    fn oversized_packet_is_refused_fragmented_or_dropped(case in case()) {
        let backend = if case.outer_v4 { "198.18.1.1" } else { "2001:db8:18::1" };
        let way = Slot { mtu: case.mtu, too_big: case.too_big, ..slot("b1", backend, case.kind) };
        let mut bed = Bed::new(parts(vec![way], &[1]));
        let (frame, fate) = (case.frame(), case.fate());
        let out = bed.all(&frame);
        let verdicts: Vec<Verdict> = out.iter().map(|(verdict, _)| *verdict).collect();
        let packets: Vec<Vec<u8>> = out.iter().map(|(_, frame)| frame[14..].to_vec()).collect();
        match fate {
            Fate::Sent => {
                prop_assert_eq!(&verdicts, &[Verdict::Tx]);
                is_carried(&case, &frame, case.opened(&packets[0]));
            }
            Fate::Ended | Fate::TooBig(_) => {
                prop_assert_eq!(&verdicts, &[Verdict::Reply]);
                let (kind, code, word, _, to, quote) = read_error(&out[0].1);
                let (wanted, mtu) = match fate {
                    Fate::TooBig(mtu) => (if case.is_v4 { (3, 4) } else { (2, 0) }, mtu),
                    _ => (if case.is_v4 { (11, 0) } else { (3, 0) }, 0),
                };
                prop_assert_eq!(((kind, code), word as usize), (wanted, mtu));
                prop_assert_eq!(to, ip(if case.is_v4 { "198.51.100.7" } else { "2001:db8:9::7" }));
                prop_assert_eq!(&quote[..], &frame[14..][..quote.len()], "the request is unchanged");
            }
            Fate::CutInside | Fate::CutOutside => {
                prop_assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Tx), "{:?}", verdicts);
                is_cut(&case, &frame, fate, &packets);
            }
            Fate::Dropped => prop_assert_eq!(&verdicts, &[Verdict::Drop(DropReason::TooBig)]),
        }
        let counters = &bed.counters;
        let counted = [&counters.time_exceeded, &counters.packet_too_big_sent, &counters.fragmented].map(Counter::read);
        let is_cut = matches!(fate, Fate::CutInside | Fate::CutOutside);
        prop_assert_eq!(counted, [fate == Fate::Ended, matches!(fate, Fate::TooBig(_)), is_cut].map(u64::from));
        let forwarded = bed.counters.backend(0).unwrap();
        let goes_on = u64::from(is_cut || fate == Fate::Sent);
        prop_assert_eq!(forwarded.packets.read(), goes_on);
        prop_assert_eq!(forwarded.bytes.read(), goes_on * frame.len() as u64);
        prop_assert_eq!(bed.holding(), 0);
    }
}
