use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::oracle;

/// Generates one IPv4 option.
fn option() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(vec![1]),
        (any::<u8>(), vec(any::<u8>(), 0..8)).prop_map(|(kind, data)| {
            let kind = if kind & 0x7f < 2 { kind | 7 } else { kind };
            [&[kind, u8::try_from(data.len() + 2).unwrap()][..], &data].concat()
        })
    ]
}

/// Generates complete options of at most 40 bytes.
fn options() -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec(option(), 0..6).prop_map(|mut options| {
        while options.concat().len() > 40 {
            options.pop();
        }
        options
    })
}

fn padded(options: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = options.concat();
    bytes.resize(bytes.len().div_ceil(4) * 4, 0);
    bytes
}

/// Builds a packet with a correct checksum. `word` contains the flags and the offset.
fn packet_v4(options: &[u8], word: u16, payload: &[u8]) -> Vec<u8> {
    let len = 20 + options.len();
    let mut ip = vec![0x40 + u8::try_from(len / 4).unwrap(), 0x28];
    ip.extend(u16::try_from(len + payload.len()).unwrap().to_be_bytes());
    ip.extend([0xab, 0xcd]);
    ip.extend(word.to_be_bytes());
    ip.extend([63, 17, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2]);
    ip.extend(options);
    let sum = oracle::checksum(&ip);
    [ip[10], ip[11]] = sum.to_be_bytes();
    ip.extend(payload);
    ip
}

fn packet_v6(payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x6b, 0x81, 0x23, 0x45];
    ip.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
    ip.extend([47, 64]);
    ip.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    ip.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    ip.extend(payload);
    ip
}

/// Returns the bytes of each fragment. Checks the reported number of fragments and the length of
/// each fragment.
fn written(fragments: FragmentIter<'_>) -> Vec<Vec<u8>> {
    let mut left = fragments.len();
    let mut all = Vec::new();
    let mut fragments = fragments;
    while let Some(fragment) = fragments.next() {
        left -= 1;
        assert_eq!(fragments.len(), left);
        let mut out = vec![0xee; fragment.len() + 3];
        assert_eq!(fragment.write(&mut out[..fragment.len() - 1]), None);
        assert!(out.iter().all(|&byte| byte == 0xee));
        assert_eq!(fragment.write(&mut out), Some(fragment.len()));
        assert_eq!(out.split_off(fragment.len()), [0xee; 3]);
        assert_eq!(out, [fragment.header(), fragment.payload()].concat());
        all.push(out);
    }
    assert_eq!(left, 0);
    all
}

/// Parses a fragment with `etherparse`. Returns the offset in bytes, the more-fragments flag and
/// the payload.
fn slow_v4(fragment: &[u8]) -> (usize, bool, Vec<u8>) {
    let (header, payload) = etherparse::Ipv4Header::from_slice(fragment).unwrap();
    assert_eq!(usize::from(header.total_len), fragment.len());
    assert_eq!(header.calc_header_checksum(), header.header_checksum);
    assert_eq!(oracle::checksum(&fragment[..fragment.len() - payload.len()]), 0);
    assert_eq!((header.identification, header.dont_fragment), (0xabcd, false));
    assert_eq!((header.source, header.destination), ([198, 18, 0, 1], [198, 18, 0, 2]));
    assert_eq!((header.time_to_live, header.protocol.0, header.dscp.value()), (63, 17, 10));
    (usize::from(header.fragment_offset.value()) * 8, header.more_fragments, payload.to_vec())
}

fn slow_v6(fragment: &[u8]) -> (usize, bool, Vec<u8>) {
    let (header, rest) = etherparse::Ipv6Header::from_slice(fragment).unwrap();
    assert_eq!(usize::from(header.payload_length) + 40, fragment.len());
    assert_eq!((header.next_header.0, header.hop_limit, header.flow_label.value()), (44, 64, 0x12345));
    assert_eq!(header.traffic_class, 0xb8);
    let (fragment, payload) = etherparse::Ipv6FragmentHeader::from_slice(rest).unwrap();
    assert_eq!((fragment.next_header.0, fragment.identification), (47, 0xdead_beef));
    assert_eq!(rest[1], 0);
    (usize::from(fragment.fragment_offset.value()) * 8, fragment.more_fragments, payload.to_vec())
}

/// Reassembles fragments byte by byte. Returns the offset of the first byte, the more-fragments
/// flag of the last fragment, and all bytes.
fn reassembled(fragments: &[(usize, bool, Vec<u8>)]) -> (usize, bool, Vec<u8>) {
    let start = fragments.iter().map(|fragment| fragment.0).min().unwrap();
    let end = fragments.iter().map(|fragment| fragment.0 + fragment.2.len()).max().unwrap();
    let mut bytes = vec![None; end - start];
    let mut last_more = true;
    for (offset, more, payload) in fragments {
        for (at, byte) in payload.iter().enumerate() {
            assert_eq!(bytes[offset - start + at].replace(*byte), None, "overlap");
        }
        if offset + payload.len() == end {
            last_more = *more;
        } else {
            assert!(*more && payload.len() % 8 == 0);
        }
    }
    (start, last_more, bytes.into_iter().map(|byte| byte.expect("a gap")).collect())
}

proptest! {
    #[test]
    fn fragments_of_fragments_reassemble_and_fit_the_mtu(
        options in options(), payload in vec(any::<u8>(), 0..2500),
        offset in prop_oneof![Just(0u16), 1..7000u16], more: bool, mtu in 68..1600u16, smaller in 68..1600u16
    ) {
        let ip = packet_v4(&padded(&options), offset | u16::from(more) << 13, &payload);
        let padded_ip = [&ip[..], &[0; 7]].concat();
        let fragments = written(pieces_v4(&padded_ip, mtu).unwrap());
        let parts: Vec<_> = fragments.iter().map(|fragment| slow_v4(fragment)).collect();
        prop_assert!(fragments.iter().all(|fragment| fragment.len() <= usize::from(mtu)));
        prop_assert_eq!(reassembled(&parts), (usize::from(offset) * 8, more, payload.clone()));

        let again = fragments.iter().flat_map(|fragment| written(pieces_v4(fragment, smaller).unwrap()));
        let again: Vec<_> = again.collect();
        prop_assert!(again.iter().all(|fragment| fragment.len() <= usize::from(smaller)));
        let parts: Vec<_> = again.iter().map(|fragment| slow_v4(fragment)).collect();
        prop_assert_eq!(reassembled(&parts), (usize::from(offset) * 8, more, payload));

        // Every fragment except the last fragment is as full as possible.
        let largest = |fragment: &Vec<u8>| fragment.len() + 8 > usize::from(mtu);
        prop_assert!(fragments.iter().rev().skip(1).all(largest));
        if ip.len() <= usize::from(mtu) {
            prop_assert_eq!(fragments, [ip]);
        }
    }

    #[test]
    fn fragments_repeat_only_options_with_the_copied_flag(
        options in options(), payload in vec(any::<u8>(), 200..400)
    ) {
        let ip = packet_v4(&padded(&options), 0, &payload);
        let fragments = written(pieces_v4(&ip, 120).unwrap());
        let of = |fragment: &[u8]| fragment[20..usize::from(fragment[0] & 15) * 4].to_vec();
        prop_assert_eq!(of(&fragments[0]), padded(&options));
        let copied: Vec<_> = options.into_iter().filter(|option| option[0] >= 0x80).collect();
        for fragment in &fragments[1..] {
            prop_assert_eq!(of(fragment), padded(&copied));
        }
    }

    #[test]
    fn pieces_v4_accepts_invalid_options(
        garbage in vec(any::<u8>(), 0..=10), payload in vec(any::<u8>(), 0..400)
    ) {
        let options: Vec<_> = garbage.iter().flat_map(|&byte| [byte, byte / 16, 0x83, byte % 16]).collect();
        let ip = packet_v4(&options, 0, &payload);
        let fragments = written(pieces_v4(&ip, 100).unwrap());
        let parts: Vec<_> = fragments.iter().map(|fragment| slow_v4(fragment)).collect();
        prop_assert_eq!(reassembled(&parts), (0, false, payload));
    }

    #[test]
    fn ipv6_fragments_reassemble_and_fit_the_mtu(payload in vec(any::<u8>(), 0..4000), mtu in 56..1600u16) {
        let ip = packet_v6(&payload);
        let padded_ip = [&ip[..], &[0; 7]].concat();
        let fragments = written(pieces_v6(&padded_ip, mtu, 0xdead_beef).unwrap());
        if ip.len() <= usize::from(mtu) {
            prop_assert_eq!(fragments, [ip]);
            return Ok(());
        }
        prop_assert!(fragments.iter().all(|fragment| fragment.len() <= usize::from(mtu)));
        let parts: Vec<_> = fragments.iter().map(|fragment| slow_v6(fragment)).collect();
        prop_assert_eq!(reassembled(&parts), (0, false, payload));
    }

    #[test]
    fn fragments_of_any_bytes_fit_the_mtu(
        mut bytes in vec(any::<u8>(), 0..300), mtu in 0..300u16, v6: bool
    ) {
        if let [first, _, hi, _, len, low, ..] = &mut bytes[..] {
            *first = if v6 { 0x60 } else { 0x45 | *first & 0x0f };
            *(if v6 { len } else { hi }) = 0;
            *low = if v6 { *low } else { 0 };
        }
        let fragments = if v6 { pieces_v6(&bytes, mtu, 7) } else { pieces_v4(&bytes, mtu) };
        if let Ok(fragments) = fragments {
            prop_assert!(written(fragments).iter().all(|fragment| fragment.len() <= usize::from(mtu)));
        }
    }
}

#[test]
fn pieces_v4_matches_the_example_of_rfc_791() {
    // RFC 791, appendix A, example 2: with an MTU of 280, 452 bytes of data become fragments of 276
    // and 216 bytes. The second fragment has offset 32 in units of 8 bytes.
    let ip = packet_v4(&[], 0, &[7; 452]);
    let fragments = written(pieces_v4(&ip, 280).unwrap());
    assert_eq!(fragments.iter().map(Vec::len).collect::<Vec<_>>(), [276, 216]);
    assert_eq!((&fragments[0][6..8], &fragments[1][6..8]), (&[0x20, 0][..], &[0, 32][..]));
}

#[test]
fn fragmenter_rejects_packets_that_cannot_be_fragmented() {
    let reason = |ip: &[u8], mtu| pieces_v4(ip, mtu).err();
    let ip = packet_v4(&[], 0x4000, &[7; 100]);
    assert_eq!(reason(&ip, 119), Some(FragmentError::DontFragment));
    assert_eq!(reason(&ip, 120), None);
    let mut ip = packet_v4(&[], 0, &[7; 100]);
    assert_eq!((reason(&ip, 28), reason(&ip, 27)), (None, Some(FragmentError::MtuTooSmall { mtu: 27 })));
    assert_eq!(reason(&ip[..119], 68), Some(FragmentError::Malformed(Malformed::Truncated)));
    ip[8] = 9;
    assert_eq!(reason(&ip, 68), Some(FragmentError::Checksum));
    let far = |payload: usize| reason(&packet_v4(&[], 8191, &vec![7; payload]), 68);
    assert_eq!((far(7), far(100)), (None, Some(FragmentError::Offset)));

    let reason = |ip: &[u8], mtu| pieces_v6(ip, mtu, 1).err();
    let mut ip = packet_v6(&[7; 100]);
    assert_eq!((reason(&ip, 56), reason(&ip, 55)), (None, Some(FragmentError::MtuTooSmall { mtu: 55 })));
    for next in [0, 43, 44, 60] {
        ip[6] = next;
        assert_eq!(reason(&ip, 100), Some(FragmentError::Extensions), "{next}");
        assert_eq!(reason(&ip, 140), None); // fits
    }
}

#[test]
fn the_reserved_flag_stays() {
    let ip = packet_v4(&[], 0x8000, &[7; 100]);
    for fragment in written(pieces_v4(&ip, 68).unwrap()) {
        assert_eq!(fragment[6] & 0xc0, 0x80);
    }
}
