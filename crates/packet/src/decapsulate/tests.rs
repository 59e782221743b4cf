use core::net::{Ipv4Addr, Ipv6Addr};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::test_frames::frame;
use crate::{Encapsulation, Family, Inner, Outer, Template, decapsulate, oracle, parse};

fn templates() -> impl Strategy<Value = (Encapsulation, Outer)> {
    let v6 = |low| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, low);
    let v4 = |low| Ipv4Addr::new(198, 18, 0, low);
    let kind = prop_oneof![
        Just(Encapsulation::Gre),
        Just(Encapsulation::Ipip),
        Just(Encapsulation::Gue { udp_checksum: true })
    ];
    let outer = prop_oneof![
        Just(Outer::V4 { source: v4(1), destination: v4(2) }),
        Just(Outer::V6 { source: v6(1), destination: v6(2) })
    ];
    (kind, outer)
}

/// Inserts outer headers between the link header and the IP packet of the frame, and appends
/// padding.
fn tunnelled(plain: &[u8], (kind, outer): (Encapsulation, Outer), tos: u8, padding: usize) -> Vec<u8> {
    let parsed = parse(plain).unwrap();
    let (link, inner) = plain[..usize::from(parsed.end)].split_at(usize::from(parsed.l3));
    let template = Template::new(kind, outer, parsed.family, true);
    let mut ip = vec![0; template.len()];
    template.write(&mut ip, &Inner { len: parsed.ip_len(), tos, flow_hash: 7, identification: 7 }).unwrap();
    ip.extend(inner);
    assert!(template.finish_checksum(&mut ip));
    let kind = template.ethertype().to_be_bytes();
    [&link[..link.len() - 2], &kind, &ip, &vec![0; padding]].concat()
}

proptest! {
    #[test]
    fn open_in_place_restores_the_original_frame(
        plain in frame(), how in templates(), padding in 0..20usize
    ) {
        let Ok(parsed) = parse(&plain) else { return Ok(()) };
        let l3 = usize::from(parsed.l3);
        let mut frame = tunnelled(&plain, how, 0, padding);
        let tunnel = decapsulate(&frame[l3..]).unwrap();
        let range = decapsulate_in_place(&mut frame, l3, &tunnel).unwrap();
        prop_assert_eq!(&frame[range], &plain[..usize::from(parsed.end)]);
    }

    #[test]
    fn open_in_place_propagates_congestion_or_fails(
        plain in frame(), how in templates(), outer_tos: u8
    ) {
        let Ok(parsed) = parse(&plain) else { return Ok(()) };
        let l3 = usize::from(parsed.l3);
        let mut frame = tunnelled(&plain, how, outer_tos | 3, 0);
        let old = frame.clone();
        let tunnel = decapsulate(&frame[l3..]).unwrap();
        let decapsulated = decapsulate_in_place(&mut frame, l3, &tunnel);
        if parsed.tos & 3 == 0 {
            prop_assert_eq!(decapsulated, Err(DecapsulateError::Congestion));
            prop_assert_eq!(frame, old);
        } else {
            let decapsulated = parse(&frame[decapsulated.unwrap()]).unwrap();
            prop_assert_eq!(decapsulated, crate::Parsed { tos: parsed.tos | 3, ..parsed });
        }
    }

    // Promise: parser-safety
    #[test]
    fn open_in_place_of_any_bytes_stays_inside_the_frame(
        mut bytes in vec(any::<u8>(), 0..150), tos: u8, v6: bool,
        l3 in prop_oneof![Just(14usize), Just(18), Just(22), 0..100usize, Just(usize::MAX)],
        inner in prop_oneof![0..150usize, Just(usize::MAX)],
        end in prop_oneof![0..150usize, Just(usize::MAX)]
    ) {
        let family = if v6 { Family::V6 } else { Family::V4 };
        let source = Ipv4Addr::new(198, 18, 0, 1).into();
        let tunnel = Tunnelled {
            kind: Encapsulation::Gre, source, destination: source, inner, end, family, tos, recursion: 0
        };
        let old = bytes.clone();
        match decapsulate_in_place(&mut bytes, l3, &tunnel) {
            Ok(range) => prop_assert!(range.start < range.end && range.end <= bytes.len()),
            Err(_) => prop_assert_eq!(bytes, old),
        }
    }
}

/// Builds a GRE frame with these flags and optional fields, followed by the start of an IPv4
/// header.
fn gre(flags: u8, fields: &[u8]) -> Vec<u8> {
    let inner = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 192, 0, 2, 9, 198, 51, 100, 1];
    let len = u8::try_from(24 + fields.len() + inner.len()).unwrap();
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, len, 0, 0, 0, 0, 64, 47, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2, flags, 0, 8, 0]);
    frame.extend(fields);
    frame.extend(inner);
    frame
}

#[test]
fn open_in_place_accepts_gre_with_all_optional_fields() {
    for (flags, fields) in [(0, 0), (0x20, 4), (0x10, 4), (0x30, 8), (0x80, 4), (0xa0, 8), (0xb0, 12)] {
        let mut frame = gre(flags, &vec![0; fields]);
        if flags & 0x80 != 0 {
            let sum = oracle::checksum(&frame[34..]);
            [frame[38], frame[39]] = sum.to_be_bytes();
        }
        let tunnel = decapsulate(&frame[14..]).unwrap();
        let range = decapsulate_in_place(&mut frame, 14, &tunnel).unwrap();
        let inner = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0, 0, 192, 0, 2, 9, 198, 51, 100, 1];
        assert_eq!(frame[range], [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], &inner].concat());
    }
}

#[test]
fn decapsulate_rejects_a_wrong_gre_checksum() {
    let mut frame = gre(0x80, &[0; 4]);
    let sum = oracle::checksum(&frame[34..]);
    [frame[38], frame[39]] = sum.to_be_bytes();
    assert!(decapsulate(&frame[14..]).is_some());
    frame[57] ^= 1;
    assert_eq!(decapsulate(&frame[14..]), None);
}
