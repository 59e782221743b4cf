mod figure_4;

use proptest::prelude::*;

use self::figure_4::FIGURE_4;
use super::*;
use crate::oracle;

proptest! {
    #[test]
    fn merge_ecn_matches_figure_4_of_rfc_6040(mut v4: [u8; 24], mut v6: [u8; 44], outer: u8) {
        [v4[10], v4[11]] = [0, 0];
        [v4[10], v4[11]] = oracle::checksum(&v4[..20]).to_be_bytes();
        let row = FIGURE_4[usize::from(v4[1] & 3)];
        let mut expected = v4;
        let kept = row[usize::from(outer & 3)];
        if let Some(ecn) = kept {
            expected[1] = v4[1] & 0xfc | ecn;
            [expected[10], expected[11]] = [0, 0];
            [expected[10], expected[11]] = oracle::checksum(&expected[..20]).to_be_bytes();
        }
        prop_assert_eq!(merge_ecn(&mut v4, Family::V4, outer), kept.is_some());
        prop_assert_eq!(v4, expected);

        let kept = FIGURE_4[usize::from(v6[1] >> 4 & 3)][usize::from(outer & 3)];
        let mut expected = v6;
        if let Some(ecn) = kept {
            expected[1] = v6[1] & 0xcf | ecn << 4;
        }
        prop_assert_eq!(merge_ecn(&mut v6, Family::V6, outer), kept.is_some());
        prop_assert_eq!(v6, expected);
    }
}

#[test]
fn a_short_header_is_refused() {
    assert!(!merge_ecn(&mut [2; 19], Family::V4, 3));
    assert!(!merge_ecn(&mut [2; 39], Family::V6, 3));
}
