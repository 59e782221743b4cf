use proptest::prelude::*;

use super::*;
use crate::test_frames::{damaged_frame, frame};
use crate::{Fragment, parse};

/// Checks that [`FastHeaders`] and `parse` return the same fields.
fn agrees(frame: &[u8]) -> Result<(), TestCaseError> {
    let Some(plain) = FastHeaders::read(frame) else { return Ok(()) };
    let parsed = parse(frame).expect("parse accepts every frame that FastHeaders::read accepts");
    prop_assert_eq!(parsed.fragment, Fragment::None);
    let headers = if parsed.family == Family::V4 { 20 } else { 40 };
    prop_assert_eq!(parsed.l4 - parsed.l3, headers, "no options, no extension headers");
    prop_assert_eq!(plain.parsed(frame), Some(parsed));
    prop_assert_eq!(plain.ports, u32::from(parsed.src_port) << 16 | u32::from(parsed.dst_port));
    let addresses = parsed.addresses(frame);
    prop_assert_eq!((plain.source_bytes(), plain.destination_bytes()), (addresses.src, addresses.dst));
    let header = if parsed.protocol == protocol::UDP {
        8
    } else {
        usize::from(frame[usize::from(parsed.l4) + 12] >> 4) * 4
    };
    prop_assert_eq!(
        FastHeaders::payload_in(frame, plain.family, plain.l3, plain.protocol),
        usize::from(parsed.l4) + header
    );
    Ok(())
}

/// Returns `true` if the frame qualifies for the fast path, judged by the result of `parse`.
fn is_fast(frame: &[u8]) -> bool {
    let Ok(parsed) = parse(frame) else { return false };
    let (headers, least) = match (parsed.family, parsed.protocol) {
        (Family::V4, _) => (20, 40),
        (Family::V6, protocol::UDP) => (40, 48),
        (Family::V6, _) => (40, 60),
    };
    parsed.fragment == Fragment::None
        && matches!(parsed.protocol, protocol::TCP | protocol::UDP)
        && parsed.l4 - parsed.l3 == headers
        && frame.len() >= usize::from(parsed.l3) + least
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn plain_read_matches_parse(frame in frame()) {
        agrees(&frame)?;
        prop_assert_eq!(FastHeaders::read(&frame).is_some(), is_fast(&frame));
    }

    #[test]
    fn plain_read_rejects_what_parse_rejects(frame in damaged_frame()) {
        agrees(&frame)?;
        prop_assert_eq!(FastHeaders::read(&frame).is_some(), is_fast(&frame));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(frame in prop::collection::vec(any::<u8>(), 0..90)) {
        agrees(&frame)?;
    }
}

/// Checks that common frames are accepted, because the property tests would also pass if
/// [`FastHeaders::read`] rejected every frame.
#[test]
fn plain_read_accepts_common_frames() {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];
    frame.extend([0x45, 0x28, 0, 40, 0xab, 0xcd, 0x40, 0, 63, 6, 0, 0, 192, 0, 2, 9, 198, 51, 100, 1]);
    frame.extend([0x30, 0x39, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12, 0xff, 0xff, 0, 0, 0, 0]);
    let plain = FastHeaders::read(&frame).expect("a plain frame");
    assert_eq!((plain.family, plain.l3, plain.ip_len, plain.tos), (Family::V4, 14, 40, 0x28));
    assert_eq!((plain.protocol, plain.tcp_flags, plain.ports), (6, 0x12, 12_345 << 16 | 80));
    assert_eq!(plain.source_bytes(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 9]);
    frame.splice(12..12, [0x88, 0xa8, 0, 7, 0x81, 0, 0, 8]);
    assert_eq!(FastHeaders::read(&frame), Some(FastHeaders { l3: 22, ..plain }));
}
