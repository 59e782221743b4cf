use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::oracle;

/// One option: whether it is copied, and its bytes.
fn option() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(vec![1]),
        (any::<u8>(), vec(any::<u8>(), 0..8)).prop_map(|(kind, data)| {
            let kind = if kind & 0x7f < 2 { kind | 7 } else { kind };
            [&[kind, u8::try_from(data.len() + 2).unwrap()][..], &data].concat()
        })
    ]
}

/// Whole options of at most 40 bytes.
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

/// A packet with a right checksum; `word` holds flags and offset.
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

/// Every piece as bytes; the promised number and lengths are checked on the way.
fn written(pieces: Pieces<'_>) -> Vec<Vec<u8>> {
    let mut left = pieces.len();
    let mut all = Vec::new();
    let mut pieces = pieces;
    while let Some(piece) = pieces.next() {
        left -= 1;
        assert_eq!(pieces.len(), left);
        let mut out = vec![0xee; piece.len() + 3];
        assert_eq!(piece.write(&mut out[..piece.len() - 1]), None);
        assert!(out.iter().all(|&byte| byte == 0xee));
        assert_eq!(piece.write(&mut out), Some(piece.len()));
        assert_eq!(out.split_off(piece.len()), [0xee; 3]);
        assert_eq!(out, [piece.header(), piece.payload()].concat());
        all.push(out);
    }
    assert_eq!(left, 0);
    all
}

/// A piece as read by etherparse: offset in bytes, more follow, payload.
fn slow_v4(piece: &[u8]) -> (usize, bool, Vec<u8>) {
    let (header, payload) = etherparse::Ipv4Header::from_slice(piece).unwrap();
    assert_eq!(usize::from(header.total_len), piece.len());
    assert_eq!(header.calc_header_checksum(), header.header_checksum);
    assert_eq!(oracle::checksum(&piece[..piece.len() - payload.len()]), 0);
    assert_eq!((header.identification, header.dont_fragment), (0xabcd, false));
    assert_eq!((header.source, header.destination), ([198, 18, 0, 1], [198, 18, 0, 2]));
    assert_eq!((header.time_to_live, header.protocol.0, header.dscp.value()), (63, 17, 10));
    (usize::from(header.fragment_offset.value()) * 8, header.more_fragments, payload.to_vec())
}

fn slow_v6(piece: &[u8]) -> (usize, bool, Vec<u8>) {
    let (header, rest) = etherparse::Ipv6Header::from_slice(piece).unwrap();
    assert_eq!(usize::from(header.payload_length) + 40, piece.len());
    assert_eq!((header.next_header.0, header.hop_limit, header.flow_label.value()), (44, 64, 0x12345));
    assert_eq!(header.traffic_class, 0xb8);
    let (fragment, payload) = etherparse::Ipv6FragmentHeader::from_slice(rest).unwrap();
    assert_eq!((fragment.next_header.0, fragment.identification), (47, 0xdead_beef));
    assert_eq!(rest[1], 0);
    (usize::from(fragment.fragment_offset.value()) * 8, fragment.more_fragments, payload.to_vec())
}

/// Puts pieces together byte by byte: the offset of the first byte, whether more follow the last, all bytes.
fn reassembled(pieces: &[(usize, bool, Vec<u8>)]) -> (usize, bool, Vec<u8>) {
    let start = pieces.iter().map(|piece| piece.0).min().unwrap();
    let end = pieces.iter().map(|piece| piece.0 + piece.2.len()).max().unwrap();
    let mut bytes = vec![None; end - start];
    let mut last_more = true;
    for (offset, more, payload) in pieces {
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
    fn pieces_of_pieces_reassemble_to_the_packet_and_each_fits(
        options in options(), payload in vec(any::<u8>(), 0..2500),
        offset in prop_oneof![Just(0u16), 1..7000u16], more: bool, mtu in 68..1600u16, smaller in 68..1600u16
    ) {
        let ip = packet_v4(&padded(&options), offset | u16::from(more) << 13, &payload);
        let padded_ip = [&ip[..], &[0; 7]].concat();
        let pieces = written(pieces_v4(&padded_ip, mtu).unwrap());
        let parts: Vec<_> = pieces.iter().map(|piece| slow_v4(piece)).collect();
        prop_assert!(pieces.iter().all(|piece| piece.len() <= usize::from(mtu)));
        prop_assert_eq!(reassembled(&parts), (usize::from(offset) * 8, more, payload.clone()));

        let again = pieces.iter().flat_map(|piece| written(pieces_v4(piece, smaller).unwrap()));
        let again: Vec<_> = again.collect();
        prop_assert!(again.iter().all(|piece| piece.len() <= usize::from(smaller)));
        let parts: Vec<_> = again.iter().map(|piece| slow_v4(piece)).collect();
        prop_assert_eq!(reassembled(&parts), (usize::from(offset) * 8, more, payload));

        // No piece but the last could have held eight bytes more.
        let largest = |piece: &Vec<u8>| piece.len() + 8 > usize::from(mtu);
        prop_assert!(pieces.iter().rev().skip(1).all(largest));
        if ip.len() <= usize::from(mtu) {
            prop_assert_eq!(pieces, [ip]);
        }
    }

    #[test]
    fn options_stand_in_the_first_piece_and_copied_ones_in_all(
        options in options(), payload in vec(any::<u8>(), 200..400)
    ) {
        let ip = packet_v4(&padded(&options), 0, &payload);
        let pieces = written(pieces_v4(&ip, 120).unwrap());
        let of = |piece: &[u8]| piece[20..usize::from(piece[0] & 15) * 4].to_vec();
        prop_assert_eq!(of(&pieces[0]), padded(&options));
        let copied: Vec<_> = options.into_iter().filter(|option| option[0] >= 0x80).collect();
        for piece in &pieces[1..] {
            prop_assert_eq!(of(piece), padded(&copied));
        }
    }

    #[test]
    fn garbage_in_place_of_options_makes_pieces_all_the_same(
        garbage in vec(any::<u8>(), 0..=10), payload in vec(any::<u8>(), 0..400)
    ) {
        let options: Vec<_> = garbage.iter().flat_map(|&byte| [byte, byte / 16, 0x83, byte % 16]).collect();
        let ip = packet_v4(&options, 0, &payload);
        let pieces = written(pieces_v4(&ip, 100).unwrap());
        let parts: Vec<_> = pieces.iter().map(|piece| slow_v4(piece)).collect();
        prop_assert_eq!(reassembled(&parts), (0, false, payload));
    }

    #[test]
    fn ipv6_pieces_reassemble_and_each_fits(payload in vec(any::<u8>(), 0..4000), mtu in 56..1600u16) {
        let ip = packet_v6(&payload);
        let padded_ip = [&ip[..], &[0; 7]].concat();
        let pieces = written(pieces_v6(&padded_ip, mtu, 0xdead_beef).unwrap());
        if ip.len() <= usize::from(mtu) {
            prop_assert_eq!(pieces, [ip]);
            return Ok(());
        }
        prop_assert!(pieces.iter().all(|piece| piece.len() <= usize::from(mtu)));
        let parts: Vec<_> = pieces.iter().map(|piece| slow_v6(piece)).collect();
        prop_assert_eq!(reassembled(&parts), (0, false, payload));
    }

    #[test]
    fn any_bytes_give_pieces_that_fit_or_an_error(
        mut bytes in vec(any::<u8>(), 0..300), mtu in 0..300u16, v6: bool
    ) {
        if let [first, _, hi, _, len, low, ..] = &mut bytes[..] {
            *first = if v6 { 0x60 } else { 0x45 | *first & 0x0f };
            *(if v6 { len } else { hi }) = 0;
            *low = if v6 { *low } else { 0 };
        }
        let pieces = if v6 { pieces_v6(&bytes, mtu, 7) } else { pieces_v4(&bytes, mtu) };
        if let Ok(pieces) = pieces {
            prop_assert!(written(pieces).iter().all(|piece| piece.len() <= usize::from(mtu)));
        }
    }
}

#[test]
fn the_example_of_rfc_791_is_cut_as_there() {
    // Appendix A, example 2: 452 bytes of data, an MTU of 280, pieces of 276 and 216 bytes, the second at block 32.
    let ip = packet_v4(&[], 0, &[7; 452]);
    let pieces = written(pieces_v4(&ip, 280).unwrap());
    assert_eq!(pieces.iter().map(Vec::len).collect::<Vec<_>>(), [276, 216]);
    assert_eq!((&pieces[0][6..8], &pieces[1][6..8]), (&[0x20, 0][..], &[0, 32][..]));
}

#[test]
fn what_must_not_or_cannot_be_cut_is_refused() {
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
    for piece in written(pieces_v4(&ip, 68).unwrap()) {
        assert_eq!(piece[6] & 0xc0, 0x80);
    }
}
