//! Tests that compare marks with hand-written bytes, and tests with data that is not a mark.

use std::net::IpAddr;

use classifier::{HashKey, PrefixSet};
use proptest::prelude::*;
use siphasher::sip128::SipHasher24;

use super::*;
use crate::{Trace, TraceRefusal};

const KEY: HashKey = HashKey::new([5; 16]);
const NOW: u64 = 1_700_000_000;

fn trace() -> Trace {
    let receivers = PrefixSet::new([(ip("198.18.0.8"), 30), (ip("2001:db8:9::"), 48)]);
    Trace { key: TraceKey::derive(&KEY), receivers, per_second: 100 }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn flow() -> Flow {
    Flow::new((ip("192.0.2.7"), 40_000), (ip("203.0.113.10"), 80), 6).unwrap()
}

fn mark() -> Mark {
    Mark { receiver: "198.18.0.9:9000".parse().unwrap(), unix_seconds: NOW, trace: 0x0102_0304, probe: 7 }
}

#[test]
fn a_mark_is_laid_out_as_documented() {
    let bytes = mark().sign(&TraceKey::derive(&KEY), &flow());
    let mut said = b"\x8d\xf1SLUICE\x01\x00".to_vec();
    said.extend([0x23, 0x28]);
    said.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 18, 0, 9]);
    said.extend([0, 0, 0, 0, 0x65, 0x53, 0xf1, 0x00]);
    said.extend([0, 0, 0, 0, 1, 2, 3, 4]);
    said.extend([0, 0, 0, 7]);
    assert_eq!(bytes[..48], said);
    // The expected authentication code is computed directly with the crate `siphasher`, from the
    // cluster's key.
    let key = SipHasher24::new_with_key(&[5; 16]).hash(b"sluicegate trace mark 1").as_bytes();
    said.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 7]);
    said.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 203, 0, 113, 10]);
    said.extend([0x9c, 0x40, 0, 80, 6]);
    assert_eq!(bytes[48..], SipHasher24::new_with_key(&key).hash(&said).as_bytes());
}

#[test]
fn a_mark_is_worth_sixty_seconds_either_way() {
    let bytes = mark().sign(&TraceKey::derive(&KEY), &flow());
    for (at, good) in [(NOW, true), (NOW + 60, true), (NOW - 60, true), (NOW + 61, false), (NOW - 61, false)]
    {
        let expected = if good { Ok(mark()) } else { Err(TraceRefusal::Time) };
        assert_eq!(trace().read(&bytes, &flow(), at), expected, "{at}");
    }
    assert_eq!(trace().read(&bytes, &flow(), 0), Err(TraceRefusal::Time), "the clock was never set");
}

#[test]
fn a_receiver_must_be_one_of_those_configured_and_have_a_port() {
    let read = |receiver: &str| {
        let mark = Mark { receiver: receiver.parse().unwrap(), ..mark() };
        trace().read(&mark.sign(&TraceKey::derive(&KEY), &flow()), &flow(), NOW).map(|mark| mark.receiver)
    };
    for good in ["198.18.0.8:1", "198.18.0.11:65535", "[2001:db8:9::1]:9"] {
        assert_eq!(read(good), Ok(good.parse().unwrap()));
    }
    for other in ["198.18.0.12:1", "198.18.0.7:1", "[2001:db8:a::1]:9"] {
        assert_eq!(read(other), Err(TraceRefusal::Receiver));
    }
    assert_eq!(read("198.18.0.9:0"), Err(TraceRefusal::Malformed));
}

#[test]
fn another_cluster_s_key_signs_nothing_here() {
    let other = TraceKey::derive(&HashKey::new([6; 16]));
    assert_eq!(trace().read(&mark().sign(&other, &flow()), &flow(), NOW), Err(TraceRefusal::Mac));
}

#[test]
fn keys_are_not_shown_and_a_mark_s_mac_is_no_report_s() {
    let key = TraceKey::derive(&KEY);
    assert_eq!(format!("{key:?}"), "TraceKey(secret)");
    assert_ne!(key.sign_mark(b"text"), key.sign_report(b"text"));
    let mac = key.sign_report(b"text");
    assert!(key.is_report(b"text", &mac) && !key.is_report(b"test", &mac));
}

proptest! {
    #[test]
    fn a_mark_comes_back_as_it_was_signed(address: [u8; 4], port in 1u16.., time: u64, trace: u64, probe: u32) {
        let receiver = SocketAddr::from((address, port));
        let mark = Mark { receiver, unix_seconds: time, trace, probe };
        let key = TraceKey::derive(&KEY);
        let bytes = mark.sign(&key, &flow());
        let (read, signed) = Mark::parse(&bytes).unwrap();
        prop_assert_eq!(read, mark);
        prop_assert!(signed.is_of(&key, &flow()));
    }

    /// Checks that a mark with any changed byte is refused.
    #[test]
    fn a_mark_with_any_byte_changed_is_refused(place in 0..MARK_BYTES, change in 1u8..) {
        let mut bytes = mark().sign(&TraceKey::derive(&KEY), &flow());
        bytes[place] ^= change;
        prop_assert!(trace().read(&bytes, &flow(), NOW).is_err());
    }

    #[test]
    fn a_mark_is_worth_nothing_in_a_packet_of_another_tuple(place in 0usize..37, change in 1u8..) {
        let bytes = mark().sign(&TraceKey::derive(&KEY), &flow());
        let mut other = flow();
        match place {
            0..16 => other.source[place] ^= change,
            16..32 => other.destination[place - 16] ^= change,
            32..34 => other.source_port ^= u16::from(change) << (8 * (place - 32)),
            34..36 => other.destination_port ^= u16::from(change) << (8 * (place - 34)),
            _ => other.protocol ^= change,
        }
        prop_assert_eq!(trace().read(&bytes, &other, NOW), Err(TraceRefusal::Mac));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>, cut in 0..=MARK_BYTES) {
        prop_assert!(trace().read(&bytes, &flow(), NOW).is_err());
        let whole = mark().sign(&TraceKey::derive(&KEY), &flow());
        prop_assert_eq!(trace().read(&whole[..cut], &flow(), NOW).is_ok(), cut == MARK_BYTES);
    }

    #[test]
    fn any_frame_is_looked_at_without_a_panic(frame: Vec<u8>, l4: u16, end: u16, protocol: u8) {
        let parsed = Parsed {
            family: packet::Family::V4, l3: 14, l4, end, protocol, src_port: 0, dst_port: 0, tcp_flags: 0,
            fragment: Fragment::None, tos: 0, ttl: 64, dont_fragment: false,
        };
        let at = payload_at(&frame, &parsed);
        prop_assert!(!at.is_some_and(|at| has_magic(&frame, at)));
    }
}
