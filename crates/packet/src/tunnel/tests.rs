use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::test_frames::damaged_frame;

/// Returns 20 bytes of IPv4 header from 198.18.0.1 to 198.18.0.2, followed by `payload`.
fn v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let len = u8::try_from(20 + payload.len()).unwrap();
    let header = [0x45, 0, 0, len, 0, 0, 0x40, 0, 64, protocol, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2];
    [&header[..], payload].concat()
}

fn source() -> IpAddr {
    "198.18.0.1".parse().unwrap()
}

#[test]
fn optional_fields_and_padding_do_not_hide_the_inner_packet() {
    let gre = [0x31, 0, 0x86, 0xdd, 0, 0, 0, 1, 0, 0, 0, 2, 0x60, 1, 2];
    let seen = decapsulate(&[v4(47, &gre), vec![0; 5]].concat()).unwrap();
    assert_eq!((seen.kind, seen.family, seen.recursion), (Encapsulation::Gre, Family::V6, 1));
    assert_eq!((seen.inner, seen.end, seen.source), (32, 35, source()));

    let gue = [0xc0, 1, 0x17, 0xc0, 0, 18, 0xbe, 0xef, 1, 4, 0, 0, 9, 9, 9, 9, 0x45, 7, 8, 8];
    let seen = decapsulate(&v4(17, &gue)).unwrap(); // Two bytes follow the UDP payload.
    assert_eq!((seen.kind, seen.family), (Encapsulation::Gue { udp_checksum: true }, Family::V4));
    assert_eq!((seen.inner, seen.end), (36, 38));
}

#[test]
fn decapsulate_skips_extension_headers() {
    let mut ip = vec![0x60, 0, 0, 0, 0, 10, 60, 64];
    ip.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    ip.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    ip.extend([41, 0, 4, 1, 1, 1, 1, 1]); // tunnel encapsulation limit (RFC 2473)
    ip.extend([0x60, 0]);
    let seen = decapsulate(&ip).unwrap();
    assert_eq!((seen.kind, seen.family, seen.inner, seen.end), (Encapsulation::Ipip, Family::V6, 48, 50));
    assert_eq!(seen.destination, "2001:db8::2".parse::<IpAddr>().unwrap());
}

#[test]
fn decapsulate_rejects_other_payloads() {
    let carries = |protocol, payload: &[u8]| decapsulate(&v4(protocol, payload)).is_some();
    assert!(carries(4, &[0x45]) && !carries(4, &[0x60]) && !carries(4, &[]));
    assert!(carries(41, &[0x60]) && !carries(41, &[0x45]));
    assert!(!carries(47, &[0, 0, 0x65, 0x58, 0x45])); // bridged Ethernet
    assert!(!carries(47, &[0, 1, 8, 0, 0x45]));
    let gue = |port: u8, first: u8, protocol: u8| {
        carries(17, &[0, 1, 0x17, port, 0, 13, 0, 0, first, protocol, 0, 0, 0x45])
    };
    assert!(gue(0xc0, 0, 4));
    assert!(!gue(0xc1, 0, 4) && !gue(0xc0, 0x20, 4) && !gue(0xc0, 0x40, 4) && !gue(0xc0, 0, 47));
    assert!(!carries(6, &[0x45; 20]));
}

#[test]
fn a_fragment_carries_nothing() {
    let mut ip = v4(4, &[0x45, 0, 0, 0]);
    assert!(decapsulate(&ip).is_some());
    ip[6] = 0x20;
    assert_eq!(decapsulate(&ip), None);
    [ip[6], ip[7]] = [0, 1];
    assert_eq!(decapsulate(&ip), None);
}

proptest! {
    // Promise: parser-safety
    #[test]
    fn decapsulate_of_any_bytes_stays_inside_the_input(bytes in vec(any::<u8>(), 0..120)) {
        if let Some(seen) = decapsulate(&bytes) {
            prop_assert!(20 <= seen.inner && seen.inner < seen.end && seen.end <= bytes.len());
        }
    }

    #[test]
    fn damaged_frames_inside_outer_headers_do_not_panic(inner in damaged_frame(), protocol in 0..5usize) {
        let protocol = [4, 41, 47, 17, 50][protocol];
        let inner = &inner[..inner.len().min(230)];
        if let Some(seen) = decapsulate(&v4(protocol, inner)) {
            prop_assert!(20 <= seen.inner && seen.inner < seen.end && seen.end <= 20 + inner.len());
        }
    }
}
