//! Compares names so that numbers in them are ordered by value.

use std::cmp::Ordering;

/// Compares two names: `v2` is before `v10`. All lists of names use this order. Names that differ
/// only in leading zeros are compared byte by byte, because only identical names may compare as
/// equal.
#[must_use]
pub fn natural(one: &str, other: &str) -> Ordering {
    let (mut left, mut right) = (one.as_bytes(), other.as_bytes());
    let starts_with_digit = |text: &[u8]| text.first().is_some_and(u8::is_ascii_digit);
    loop {
        let order = if starts_with_digit(left) && starts_with_digit(right) {
            let (a, b) = (number(&mut left), number(&mut right));
            // A longer number without leading zeros is larger.
            a.len().cmp(&b.len()).then_with(|| a.cmp(b))
        } else {
            let (Some((a, rest)), Some((b, other_rest))) = (left.split_first(), right.split_first()) else {
                return left.len().cmp(&right.len()).then_with(|| one.cmp(other));
            };
            left = rest;
            right = other_rest;
            a.cmp(b)
        };
        if order.is_ne() {
            return order;
        }
    }
}

/// Removes the digits at the start of the text, and returns them without leading zeros.
fn number<'t>(text: &mut &'t [u8]) -> &'t [u8] {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    digits.split_at(digits.iter().take_while(|digit| **digit == b'0').count()).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_compared_by_value() {
        let sorted = [
            "",
            "10",
            "a",
            "eth2-1",
            "eth10",
            "v",
            "v-1",
            "v01",
            "v1",
            "v2",
            "v2a",
            "v10",
            "v18446744073709551616",
            "w",
        ];
        let mut names = sorted;
        names.reverse();
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, sorted);
    }

    proptest! {
        #[test]
        fn order_is_total(names in prop::collection::vec("[ab0-3./:]{0,6}", 3)) {
            let [a, b, c] = [&names[0], &names[1], &names[2]];
            prop_assert_eq!(natural(a, b), natural(b, a).reverse());
            prop_assert_eq!(natural(a, b).is_eq(), a == b);
            if natural(a, b).is_le() && natural(b, c).is_le() {
                prop_assert!(natural(a, c).is_le(), "{a} {b} {c}");
            }
        }
    }
}
