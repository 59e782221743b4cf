//! Routes of keys: an exact key, else the longest prefix, else none.
//!
//! In: rules of the configuration, each with the number of its target. Out: a key's target, or `None`: the pool's own servers.
//! Not here: what a target is.
//! Invariant: no rule is found for a key that it does not name, whatever the number of rules.
//! Source: AppSwitch §3.2 for exact keys.

use thiserror::Error;

/// Why rules give no table.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteError {
    /// A key or a prefix that stands twice.
    #[error("the route `{}` stands twice", .0.escape_ascii())]
    Twice(Box<[u8]>),
    /// An exact key without a byte, which no request has. (A prefix without a byte is every key's.)
    #[error("a route's key is empty")]
    EmptyKey,
    /// More rules than `u32` counts.
    #[error("more routes than 2^32 - 1")]
    TooMany,
}

/// Rules, built once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    exact: Box<[Rule]>,
    prefixes: Box<[Rule]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    text: Box<[u8]>,
    target: u32,
    /// The longest other rule that begins this one, as an index; its own index where there is none.
    shorter: u32,
}

impl Routes {
    /// Builds the table from (key, target) and (prefix, target), in any order.
    ///
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
    /// [`RouteError`].
    /// # Cost
    /// A sort. 24 bytes a rule and its text.
    pub fn build(exact: &[(&[u8], u32)], prefixes: &[(&[u8], u32)]) -> Result<Self, RouteError> {
        if exact.iter().any(|(key, _)| key.is_empty()) {
            return Err(RouteError::EmptyKey);
        }
        Ok(Self { exact: sorted(exact)?, prefixes: nested(sorted(prefixes)?)? })
    }

    /// The target of a key.
    ///
    /// # Cost
    /// A binary search by whole keys for each of both tables that has rules: 14 comparisons for 10,000. Behind the search for
    /// prefixes one comparison with the key, and a step for each prefix within a prefix, at most as many as the key has bytes.
    #[inline]
    #[must_use]
    pub fn lookup(&self, key: &[u8]) -> Option<u32> {
        if let Ok(at) = self.exact.binary_search_by(|rule| rule.text.as_ref().cmp(key)) {
            return self.exact.get(at).map(|rule| rule.target);
        }
        self.longest(key).map(|rule| rule.target)
    }

    /// All rules between a prefix of the key and the key begin with that prefix. So the longest prefix of the key begins the rule
    /// in front of the key, or is it.
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

/// Fills in `shorter`: rules that begin this one stand in front of it, each within the one before.
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

    /// Every beginning of the key, the longest first.
    fn slow(exact: &HashMap<Vec<u8>, u32>, prefixes: &HashMap<Vec<u8>, u32>, key: &[u8]) -> Option<u32> {
        exact
            .get(key)
            .copied()
            .or_else(|| (0..=key.len()).rev().find_map(|len| prefixes.get(&key[..len]).copied()))
    }

    /// Few letters, so that rules lie within each other.
    fn text(at_least: usize) -> impl Strategy<Value = Vec<u8>> {
        vec(prop::sample::select(vec![0, b'a', b'b', 0xff]), at_least..7)
    }

    proptest! {
        #[test]
        fn a_key_has_the_target_of_its_exact_rule_else_of_its_longest_prefix(
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
    fn ten_thousand_rules_of_each_kind_and_prefixes_250_deep_are_found() {
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
        assert_eq!(twice.to_string(), "the route `a\\n` stands twice");
        assert_eq!(Routes::build(&[], &[(b"a", 1), (b"a", 2)]), Err(RouteError::Twice(Box::from(*b"a"))));
        assert_eq!(Routes::build(&[(b"", 1)], &[]), Err(RouteError::EmptyKey));
        assert_eq!(Routes::build(&[], &[(b"", 1)]).unwrap().lookup(b"anything"), Some(1));
        assert_eq!(Routes::default().lookup(b"anything"), None);
    }
}
