//! Maps keys to targets by exact key or by prefix.
//!
//! A rule for the exact key takes precedence over prefix rules. Among prefix rules, the longest
//! matching prefix takes precedence. [`Routes`] returns the target of the matching rule. A key
//! without a matching rule has no target and belongs to the servers of the pool.
//!
//! Routing by exact key is described in §3.2 of the AppSwitch paper.

use thiserror::Error;

/// The reason why a table of routes cannot be built.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteError {
    /// Two rules have the same key or the same prefix.
    #[error("route `{}` is defined twice", .0.escape_ascii())]
    Twice(Box<[u8]>),
    /// The key of an exact rule is empty, but no request has an empty key. An empty prefix is valid
    /// and matches every key.
    #[error("the key of a route is empty")]
    EmptyKey,
    /// The number of rules exceeds `u32`.
    #[error("too many routes, the maximum is 2^32 - 1")]
    TooMany,
}

/// An immutable table of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    exact: Box<[Rule]>,
    prefixes: Box<[Rule]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    text: Box<[u8]>,
    target: u32,
    /// The index of the longest other rule that is a prefix of this rule. If no other rule is a
    /// prefix, this is the index of this rule itself.
    shorter: u32,
}

impl Routes {
    /// Builds the table from pairs of a key or prefix and its target. The pairs can be in any
    /// order.
    /// ```
    /// use kv_switch::Routes;
    ///
    /// let routes = Routes::build(&[(b"u:root", 1)], &[(b"u:", 2), (b"u:7", 3)])?;
    /// assert_eq!(routes.lookup(b"u:root"), Some(1));
    /// assert_eq!(routes.lookup(b"u:71"), Some(3));
    /// assert_eq!(routes.lookup(b"u:rooted"), Some(2));
    /// assert_eq!(routes.lookup(b"v"), None);
    /// # Ok::<(), kv_switch::RouteError>(())
    /// ```
    ///
    /// # Errors
    /// Returns a [`RouteError`] if a rule is repeated or an exact key is empty.
    /// # Cost
    /// One sort of all rules. A rule takes 24 bytes plus the length of its key or prefix.
    pub fn build(exact: &[(&[u8], u32)], prefixes: &[(&[u8], u32)]) -> Result<Self, RouteError> {
        if exact.iter().any(|(key, _)| key.is_empty()) {
            return Err(RouteError::EmptyKey);
        }
        Ok(Self { exact: sorted(exact)?, prefixes: nested(sorted(prefixes)?)? })
    }

    /// Returns the target of a key, or `None` if no rule matches.
    ///
    /// # Cost
    /// One binary search among exact keys and one among prefixes, each with 14 comparisons for
    /// 10,000 rules. The search among prefixes then takes one step for each nested prefix, at most
    /// the length of the key.
    #[inline]
    #[must_use]
    pub fn lookup(&self, key: &[u8]) -> Option<u32> {
        if let Ok(at) = self.exact.binary_search_by(|rule| rule.text.as_ref().cmp(key)) {
            return self.exact.get(at).map(|rule| rule.target);
        }
        self.longest(key).map(|rule| rule.target)
    }

    /// Returns the rule with the longest prefix of the key. The rules are sorted. All rules between
    /// a prefix of the key and the key itself begin with that prefix. The search therefore starts
    /// at the last rule that is not greater than the key, and follows `shorter`.
    fn longest(&self, key: &[u8]) -> Option<&Rule> {
        let behind = self.prefixes.partition_point(|rule| rule.text.as_ref() <= key);
        let mut at = behind.checked_sub(1)?;
        let mut rule = self.prefixes.get(at)?;
        let common = rule.text.iter().zip(key).take_while(|(one, other)| one == other).count();
        while rule.text.len() > common {
            let shorter = usize::try_from(rule.shorter).ok().filter(|&shorter| shorter != at)?;
            (at, rule) = (shorter, self.prefixes.get(shorter)?);
        }
        Some(rule)
    }
}

fn sorted(rules: &[(&[u8], u32)]) -> Result<Box<[Rule]>, RouteError> {
    let mut sorted: Vec<Rule> =
        rules.iter().map(|&(text, target)| Rule { text: text.into(), target, shorter: 0 }).collect();
    sorted.sort_unstable_by(|one, other| one.text.cmp(&other.text));
    let is_twice = |pair: &&[Rule]| matches!(pair, [one, next] if one.text == next.text);
    if let Some([rule, ..]) = sorted.windows(2).find(is_twice) {
        return Err(RouteError::Twice(rule.text.clone()));
    }
    Ok(sorted.into())
}

/// Sets `shorter` in all rules. Because the rules are sorted, all prefixes of a rule come before
/// the rule, and each prefix is itself a prefix of the next one.
fn nested(mut rules: Box<[Rule]>) -> Result<Box<[Rule]>, RouteError> {
    let mut open: Vec<(u32, Box<[u8]>)> = Vec::new();
    for (index, rule) in rules.iter_mut().enumerate() {
        let index = u32::try_from(index).map_err(|_| RouteError::TooMany)?;
        while open.pop_if(|(_, outer)| !rule.text.starts_with(outer)).is_some() {}
        rule.shorter = open.last().map_or(index, |&(outer, _)| outer);
        open.push((index, rule.text.clone()));
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::collection::{hash_map, vec};
    use proptest::prelude::*;

    use super::*;

    fn pairs(rules: &HashMap<Vec<u8>, u32>) -> Vec<(&[u8], u32)> {
        rules.iter().map(|(text, &target)| (text.as_slice(), target)).collect()
    }

    /// Tests every prefix of the key, the longest first.
    fn slow(exact: &HashMap<Vec<u8>, u32>, prefixes: &HashMap<Vec<u8>, u32>, key: &[u8]) -> Option<u32> {
        exact
            .get(key)
            .copied()
            .or_else(|| (0..=key.len()).rev().find_map(|len| prefixes.get(&key[..len]).copied()))
    }

    /// Generates strings from only a few letters, so that many rules are prefixes of others.
    fn text(at_least: usize) -> impl Strategy<Value = Vec<u8>> {
        vec(prop::sample::select(vec![0, b'a', b'b', 0xff]), at_least..7)
    }

    proptest! {
        #[test]
        fn routes_exact_rule_precedes_longest_prefix(
            exact in hash_map(text(1), any::<u32>(), 0..8),
            prefixes in hash_map(text(0), any::<u32>(), 0..40),
            keys in vec(text(0), 40),
        ) {
            let routes = Routes::build(&pairs(&exact), &pairs(&prefixes)).unwrap();
            for key in keys.iter().chain(exact.keys()).chain(prefixes.keys()) {
                prop_assert_eq!(routes.lookup(key), slow(&exact, &prefixes, key), "{}", key.escape_ascii());
            }
        }
    }

    #[test]
    fn routes_finds_10000_rules_and_250_nested_prefixes() {
        let exact = (0..10_000).map(|n| (format!("user:{n}").into_bytes(), n)).collect();
        let mut prefixes: HashMap<_, _> =
            (0..10_000).map(|n| (format!("u{}:", n * 7).into_bytes(), 20_000 + n)).collect();
        prefixes.extend((1..=250).map(|len| (vec![b'z'; len], 40_000)));
        let routes = Routes::build(&pairs(&exact), &pairs(&prefixes)).unwrap();
        for n in 0..70_000 {
            for key in [format!("user:{n}"), format!("u{n}:x"), format!("user:{n}x"), format!("u{n}")] {
                assert_eq!(routes.lookup(key.as_bytes()), slow(&exact, &prefixes, key.as_bytes()), "{key}");
            }
        }
        assert_eq!(routes.lookup(&[b'z'; 300]), Some(40_000));
    }

    #[test]
    fn what_stands_twice_is_named() {
        let twice = Routes::build(&[(b"a\n", 1), (b"b", 2), (b"a\n", 1)], &[]).unwrap_err();
        assert_eq!(twice.to_string(), "route `a\\n` is defined twice");
        assert_eq!(Routes::build(&[], &[(b"a", 1), (b"a", 2)]), Err(RouteError::Twice(Box::from(*b"a"))));
        assert_eq!(Routes::build(&[(b"", 1)], &[]), Err(RouteError::EmptyKey));
        assert_eq!(Routes::build(&[], &[(b"", 1)]).unwrap().lookup(b"anything"), Some(1));
        assert_eq!(Routes::default().lookup(b"anything"), None);
    }
}
