use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::parse;

const PEER_TAG: [u8; 4] = [1, 2, 3, 4];
const INITIATE_TAG: [u8; 4] = [9, 8, 7, 6];

/// Computes the CRC32c bit by bit.
fn slow_crc(bytes: &[u8]) -> u32 {
    let bits = bytes.iter().flat_map(|byte| (0..8).map(move |bit| u32::from(byte >> bit & 1)));
    !bits.fold(u32::MAX, |crc, bit| crc >> 1 ^ if (crc ^ bit) & 1 == 1 { 0x82f6_3b78 } else { 0 })
}

fn chunk(kind: u8, value: &[u8]) -> Vec<u8> {
    let mut chunk = vec![kind, 0];
    chunk.extend(u16::try_from(4 + value.len()).unwrap().to_be_bytes());
    chunk.extend(value);
    chunk.resize(chunk.len().next_multiple_of(4), 0);
    chunk
}

fn init() -> Vec<u8> {
    chunk(1, &[&INITIATE_TAG[..], &[0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 7]].concat())
}

/// Returns a frame with an SCTP packet from port 4000 to port 3868, with the correct checksums.
fn frame(v6: bool, tag: [u8; 4], chunks: &[u8]) -> Vec<u8> {
    let mut packet = [&[0x0f, 0xa0, 0x0f, 0x1c], &tag[..], &[0; 4], chunks].concat();
    let sum = slow_crc(&packet).to_le_bytes();
    packet[8..12].copy_from_slice(&sum);
    framed(v6, ADDRESSES, &packet)
}

fn framed(v6: bool, [from, to]: [u8; 2], packet: &[u8]) -> Vec<u8> {
    let link = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, from], [2, 0, 0, 0, 0, to]);
    let network = |host: u8| {
        let mut address = [0; 16];
        address[..4].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
        address[15] = host;
        address
    };
    let step = if v6 {
        link.ip(etherparse::IpHeaders::Ipv6(
            etherparse::Ipv6Header {
                hop_limit: 64,
                source: network(from),
                destination: network(to),
                ..Default::default()
            },
            Default::default(),
        ))
    } else {
        link.ipv4([192, 0, 2, from], [192, 0, 2, to], 64)
    };
    let mut frame = Vec::new();
    step.write(&mut frame, etherparse::IpNumber(132), packet).unwrap();
    frame
}

fn turned(frame: &[u8]) -> Option<Vec<u8>> {
    let parsed = parse(frame).unwrap();
    let mut buffer = frame.to_vec();
    let written = write_sctp_abort(&mut buffer, &parsed);
    assert_eq!(written.is_none(), buffer == frame);
    written.map(|length| buffer[..length].to_vec())
}

/// Returns the reply with this verification tag and this chunk without a value.
fn expected(v6: bool, tag: [u8; 4], kind: u8, flags: u8) -> Vec<u8> {
    let mut packet = [&[0x0f, 0x1c, 0x0f, 0xa0], &tag[..], &[0; 4], &[kind, flags, 0, 4]].concat();
    let sum = slow_crc(&packet).to_le_bytes();
    packet[8..12].copy_from_slice(&sum);
    let [from, to] = ADDRESSES;
    framed(v6, [to, from], &packet)
}

const ADDRESSES: [u8; 2] = [9, 1];
const ABORT_REFLECTED: Option<(u8, u8)> = Some((6, 1));

/// Each case has the chunks of a packet, and the type and the flags of the expected chunk,
/// according to RFC 9260 §8.4.
#[test]
fn reply_follows_the_rules_for_unknown_associations() {
    let data = chunk(0, &[0; 13]);
    let cookie_echo = chunk(10, b"cookie");
    let stale = chunk(9, &[0, 7, 0, 6, 1, 2, 0, 0, 0, 3, 0, 8, 0, 0, 0, 1]);
    let other_error = chunk(9, &[0, 7, 0, 6, 1, 2, 0, 0, 0, 1, 0, 8, 0, 0, 0, 3]);
    let shutdown_ack = chunk(8, b"");
    let cases = [
        (data.clone(), ABORT_REFLECTED),
        ([&data[..], &data].concat(), ABORT_REFLECTED),
        ([&cookie_echo[..], &data].concat(), ABORT_REFLECTED),
        (other_error, ABORT_REFLECTED),
        (init(), ABORT_REFLECTED),
        (chunk(4, b"heartbeat"), ABORT_REFLECTED),
        (shutdown_ack.clone(), Some((14, 1))),
        ([&data[..], &shutdown_ack].concat(), Some((14, 1))),
        (stale, None),
        ([&data[..], &chunk(6, b"")].concat(), None),
        (chunk(6, b"reason"), None),
        (chunk(14, b""), None),
        ([&chunk(11, b"")[..], &data].concat(), None),
        (vec![], None),
        // The length of the chunk is too small or too large.
        (vec![0, 0, 0, 3], None),
        (vec![0, 0, 0, 5], None),
    ];
    for v6 in [false, true] {
        for (chunks, reply) in &cases {
            let wanted = reply.map(|(kind, flags)| expected(v6, PEER_TAG, kind, flags));
            assert_eq!(turned(&frame(v6, PEER_TAG, chunks)), wanted, "{chunks:?}");
        }
        // Only an INIT may have the verification tag 0. Its initiate tag is the tag of the reply.
        assert_eq!(turned(&frame(v6, [0; 4], &init())), Some(expected(v6, INITIATE_TAG, 6, 0)));
        let no_tag = chunk(1, &[0; 16]);
        let short = chunk(1, &INITIATE_TAG);
        for chunks in [data.clone(), shutdown_ack.clone(), [init(), data.clone()].concat(), no_tag, short] {
            assert_eq!(turned(&frame(v6, [0; 4], &chunks)), None, "{chunks:?}");
        }
    }
}

#[test]
fn reply_keeps_vlan_tags_and_removes_padding() {
    let mut sent = frame(false, [0; 4], &init());
    sent.extend([0xee; 9]);
    sent.splice(12..12, [0x81, 0, 0, 7]);
    let mut wanted = expected(false, INITIATE_TAG, 6, 0);
    wanted.splice(12..12, [0x81, 0, 0, 7]);
    assert_eq!(turned(&sent), Some(wanted));
}

#[test]
fn fragments_get_no_abort() {
    let mut sent = frame(false, PEER_TAG, &chunk(0, &[0; 60]));
    sent[20] = 0x20; // more fragments
    sent[24..26].fill(0);
    let sum = crate::oracle::checksum(&sent[14..34]).to_be_bytes();
    sent[24..26].copy_from_slice(&sum);
    assert_eq!(turned(&sent), None);
}

#[test]
fn crc_matches_published_values() {
    for (bytes, crc) in
        [(&b"123456789"[..], 0xe306_9283), (&[0; 32], 0x8a91_36aa), (&[0xff; 32], 0x62a8_ab43)]
    {
        assert_eq!((!crc32c(u32::MAX, bytes), slow_crc(bytes)), (crc, crc));
    }
}

proptest! {
    #[test]
    fn checksum_matches_the_bitwise_computation(packet in vec(any::<u8>(), 12..200)) {
        let mut zeroed = packet.clone();
        zeroed[8..12].fill(0);
        prop_assert_eq!(sctp_checksum(&packet), Some(slow_crc(&zeroed).to_le_bytes()));
    }

    #[test]
    fn damaged_packet_gets_no_abort(v6: bool, is_init: bool, at: prop::sample::Index, bit in 0..8) {
        let (tag, chunks) = if is_init { ([0; 4], init()) } else { (PEER_TAG, chunk(0, &[7; 20])) };
        let mut frame = frame(v6, tag, &chunks);
        let start = if v6 { 54 } else { 34 };
        let at = start + at.index(frame.len() - start);
        frame[at] ^= 1_u8 << bit;
        prop_assert_eq!(turned(&frame), None);
    }

    #[test]
    fn any_chunks_and_any_offsets_do_not_panic(
        mut bytes in vec(any::<u8>(), 0..120), chunks in vec(any::<u8>(), 0..60), l3: u16, l4: u16, end: u16,
    ) {
        let _ = turned(&frame(false, PEER_TAG, &chunks));
        let mut parsed = parse(&frame(false, PEER_TAG, &chunks)).unwrap();
        (parsed.l3, parsed.l4, parsed.end) = (l3, l4, end);
        let old = bytes.clone();
        if write_sctp_abort(&mut bytes, &parsed).is_none() {
            prop_assert_eq!(bytes, old);
        }
    }
}
