//! Comparison of `parse` with other parsers on valid, damaged and random frames.

use super::readers::{check, theirs};
use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_alike(bytes in vec(any::<u8>(), 0..200)) {
        check(&bytes);
    }

    // Promise: parser-safety
    #[test]
    fn parse_of_any_bytes_agrees_with_other_readers(
        tags in 0..3usize, v6: bool, bytes in vec(any::<u8>(), 0..200)
    ) {
        let mut frame = vec![2; 12];
        frame.extend([0x81, 0, 0, 7].repeat(tags));
        frame.extend(if v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        frame.extend(bytes);
        if let Some(first) = frame.get_mut(14 + 4 * tags) {
            *first = *first & 0x0f | if v6 { 0x60 } else { 0x40 };
        }
        check(&frame);
    }

    #[test]
    fn valid_frames_are_read_alike(frame in frame()) {
        check(&frame);
    }

    // Promise: parser-safety
    #[test]
    fn damaged_frames_are_read_alike(frame in damaged_frame()) {
        check(&frame);
    }
}

#[test]
fn most_generated_frames_are_compared_and_accepted() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut taken, mut left_out) = (0, 0);
    for _ in 0..2000 {
        let frame = frame().new_tree(&mut runner).unwrap().current();
        taken += usize::from(parse(&frame).is_ok());
        left_out += usize::from(theirs(&frame).is_err());
    }
    assert!(taken > 1500 && left_out < 500, "{taken} frames compared, {left_out} skipped");
}
