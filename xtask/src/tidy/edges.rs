//! Checks the dependencies between crates against the map in `crates/README.md`.
//!
//! The map lists the allowed dependencies in a code block that opens with "```edges". Each line has
//! the form `crate: crate, crate`. A dependency that is only in the map or only in a manifest is a
//! finding.

use std::collections::{BTreeMap, BTreeSet};

use super::MAP;

/// Compares the map with the dependencies in the manifests. A missing map is a finding.
pub(super) fn check(map: &str, edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let Some(block) = map.split("```edges\n").nth(1).and_then(|rest| rest.split("```").next()) else {
        return vec![format!("{MAP}:1: the page has no block that opens with ```edges")];
    };
    let mut allowed = BTreeSet::new();
    for (room, needs) in block.lines().filter_map(|line| line.split_once(':')) {
        allowed.extend(
            needs.split(',').map(|need| (room.trim(), need.trim())).filter(|(_, need)| !need.is_empty()),
        );
    }
    let real: BTreeSet<(&str, &str)> = edges
        .iter()
        .flat_map(|(room, needs)| needs.iter().map(move |need| (room.as_str(), need.as_str())))
        .collect();
    let unlisted = real
        .difference(&allowed)
        .map(|(a, b)| format!("{MAP}:1: {a} depends on {b}, which the map does not list"));
    let gone = allowed
        .difference(&real)
        .map(|(a, b)| format!("{MAP}:1: {a} does not depend on {b}, but the map lists it"));
    unlisted.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_and_manifests_must_agree() {
        let edges = |list: &[(&str, &[&str])]| -> BTreeMap<String, BTreeSet<String>> {
            list.iter()
                .map(|(room, needs)| ((*room).into(), needs.iter().map(|&need| need.into()).collect()))
                .collect()
        };
        let map = "# Map\n```edges\na: b, c\nb:\n```\n";
        assert_eq!(check(map, &edges(&[("a", &["b", "c"]), ("b", &[])])), [""; 0]);
        let more = check(map, &edges(&[("a", &["b", "c"]), ("b", &["c"])]));
        assert!(more.len() == 1 && more[0].contains("b depends on c"), "{more:?}");
        let less = check(map, &edges(&[("a", &["b"])]));
        assert!(less.len() == 1 && less[0].contains("a does not depend on c"), "{less:?}");
        assert_eq!(check("# Map", &edges(&[])).len(), 1);
    }
}
