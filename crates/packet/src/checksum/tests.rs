use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::oracle;

#[test]
fn rfc_1071_section_3_example() {
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(Sum::new().add_bytes(&bytes).fold(), 0xddf2);
    assert_eq!(checksum(&bytes), 0x220d);
}

#[test]
fn rfc_1624_section_4_example_gives_zero_and_not_minus_zero() {
    assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
}

#[test]
fn checksum_of_empty_and_longest_input() {
    assert_eq!(checksum(&[]), 0xffff);
    let ones = vec![0xff; 65_535];
    assert_eq!(checksum(&ones), oracle::checksum(&ones));
}

proptest! {
    #[test]
    fn agrees_with_a_word_at_a_time(bytes in vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(checksum(&bytes), oracle::checksum(&bytes));
    }

    #[test]
    fn pieces_of_even_length_add_up(words in vec(any::<[u8; 2]>(), 0..50), at in 0..50usize, last: Option<u8>) {
        let bytes = [words.concat(), last.into_iter().collect()].concat();
        let (head, tail) = bytes.split_at((at * 2).min(words.len() * 2));
        prop_assert_eq!(Sum::new().add_bytes(head).add_bytes(tail).finish(), oracle::checksum(&bytes));
    }

    #[test]
    fn update_matches_full_computation(mut bytes: [u8; 20], at in 0..10usize, new: [u8; 2]) {
        bytes[0] |= 1; // A header is never all zeros.
        let at = if at == 0 { 2 } else { at * 2 };
        let (before, old) = (oracle::checksum(&bytes), [bytes[at], bytes[at + 1]]);
        [bytes[at], bytes[at + 1]] = new;
        let updated = update(before, u16::from_be_bytes(old), u16::from_be_bytes(new));
        prop_assert_eq!(updated, oracle::checksum(&bytes));
    }

    #[test]
    fn pseudo_headers_match_the_rfcs(a: [u8; 16], b: [u8; 16], protocol: u8, len: u16) {
        let [hi, lo] = len.to_be_bytes();
        let v6 = [&a[..], &b, &[0, 0, hi, lo, 0, 0, 0, protocol]].concat();
        prop_assert_eq!(
            Sum::new().add_pseudo_v6(a.into(), b.into(), protocol, len).finish(),
            oracle::checksum(&v6)
        );
        let (a, b) = ([a[0], a[1], a[2], a[3]], [b[0], b[1], b[2], b[3]]);
        let v4 = [&a[..], &b, &[0, protocol, hi, lo]].concat();
        prop_assert_eq!(
            Sum::new().add_pseudo_v4(a.into(), b.into(), protocol, len).finish(),
            oracle::checksum(&v4)
        );
    }
}
