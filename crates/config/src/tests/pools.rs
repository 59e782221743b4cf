//! Tests of nested pools. The results are compared with a second implementation that follows every
//! path.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{all_printed, parsed, printed, with_pools};
use crate::Config;

fn config_of(pools: &str) -> Config {
    match parsed(&with_pools(pools)) {
        Ok((config, _)) => config,
        Err(problems) => panic!("{problems}"),
    }
}

fn errors_of(pools: &str) -> Vec<String> {
    let problems = parsed(&with_pools(pools)).unwrap_err();
    let errors = problems.iter().filter(|problem| problem.severity == crate::Severity::Error);
    errors.map(printed).collect()
}

fn weights(config: &Config, pool: &str) -> Vec<(String, u32)> {
    let pool = config.pools().iter().find(|candidate| &*candidate.name == pool).unwrap();
    pool.members.iter().map(|member| (member.backend.name.to_string(), member.weight)).collect()
}

#[test]
fn weights_multiply_along_a_path_and_add_over_paths() {
    let config = config_of(
        "[pool.top]\npools = [{ pool = \"left\", weight = 2 }, { pool = \"right\", weight = 5 }]\n\
         backends = [{ name = \"b1\", address = \"198.18.0.1\", weight = 7 }]\n\
         [pool.left]\npools = [{ pool = \"leaf\", weight = 3 }]\n\
         [pool.right]\npools = [{ pool = \"leaf\" }, { pool = \"leaf\", weight = 0 }]\n\
         [pool.leaf]\nbackends = [{ name = \"b1\", address = \"198.18.0.1\" }, \
         { name = \"b2\", address = \"198.18.0.2\", weight = 4 }, { name = \"b3\", address = \"198.18.0.3\", weight = 0 }]\n",
    );
    let expected = [("b1", 7 + 2 * 3 + 5), ("b2", 4 * (2 * 3 + 5)), ("b3", 0)];
    assert_eq!(weights(&config, "top"), expected.map(|(name, weight)| (name.to_owned(), weight)));
    assert_eq!(&*config.pools()[3].members[0].leaf, "leaf");
    assert_eq!(&*config.pools()[3].members[0].encapsulation.name, "gre");
}

#[test]
fn a_cycle_is_named() {
    let errors = errors_of(
        "[pool.a]\npools = [{ pool = \"b\" }]\n[pool.b]\npools = [{ pool = \"c\" }, { pool = \"d\" }]\n\
         [pool.c]\npools = [{ pool = \"b\" }]\n[pool.d]\npools = [{ pool = \"d\" }]\n",
    );
    assert_eq!(
        errors,
        [
            "etc/a.toml:12:19: pool.c.pools[0].pool: pools contain each other in a cycle, b -> c -> b; help: remove one of these references",
            "etc/a.toml:14:19: pool.d.pools[0].pool: pools contain each other in a cycle, d -> d; help: remove one of these references",
        ]
    );
}

#[test]
fn what_a_pool_holds_is_checked() {
    let b = "backends = [{ name = \"b\", address = \"198.18.0.1\" }]";
    let table = [
        (
            "[pool.a]\n".to_owned(),
            "pool.a: [pool.a] needs a \"backends\" or \"pools\" key; help: for example backends = [{ name = \"b1\", address = \"198.18.1.1\" }]",
        ),
        (
            "[pool.a]\nbackends = []\n".to_owned(),
            "pool.a.backends: \"backends\" must not be empty; help: for example [{ name = \"b1\", address = \"198.18.1.1\", weight = 1 }]",
        ),
        (
            "[pool.a]\npools = []\n".to_owned(),
            "pool.a.pools: \"pools\" must not be empty; help: for example [{ pool = \"NAME\", weight = 1 }]",
        ),
        (
            format!("[pool.a]\n{b}\npools = [{{ pool = \"x\" }}]\n"),
            "pool.a.pools[0].pool: unknown pool \"x\"; help: did you mean \"a\"?",
        ),
        (
            format!("[pool.a]\n{b}\n[pool.b]\nencapsulation = \"gre\"\npools = [{{ pool = \"a\" }}]"),
            "pool.b.encapsulation: \"encapsulation\" needs \"backends\" in the same pool; help: set it in the pools that list the backends",
        ),
        (
            format!("[pool.a]\n{}", b.replace('}', "}, { name = \"b\", address = \"198.18.0.1\" }")),
            "pool.a.backends[1].name: backend \"b\" is listed twice in this pool; help: use weight to give it more traffic",
        ),
        (
            format!("[pool.a]\n{b}\n[pool.b]\n{}", b.replace("0.1", "0.2")),
            "pool.b.backends[0].address: backend \"b\" has two addresses, 198.18.0.1 and 198.18.0.2; help: the first address is pool.a.backends[0].address on line 8; use the same address or another backend name",
        ),
        (
            format!("[pool.a]\n{}", b.replace("0.1\"", "0.1\", weight = 65536")),
            "pool.a.backends[0].weight: \"weight\" must be between 0 and 65535, got 65536",
        ),
        (
            format!("[pool.a]\n{}", b.replace("198.18.0.1", "b.example")),
            "pool.a.backends[0].address: backend address \"b.example\" is not an IP address; help: host names are not resolved; see docs/reference/limits.md",
        ),
        (
            format!("[pool.a]\n{}", b.replace("name", "mac = \"x\", name")),
            "pool.a.backends[0].mac: unknown key \"mac\" in pool.a.backends[0]; help: known keys: address, name, ring_name, weight",
        ),
        (
            format!(
                "[pool.a]\n{b}\n[pool.b]\nencapsulation = \"ipip\"\n{b}\n[pool.c]\npools = [{{ pool = \"a\" }}, {{ pool = \"b\" }}]"
            ),
            "pool.c: backend \"b\" has two encapsulations, \"gre\" in pool \"a\" and \"ipip\" in pool \"b\"; help: a pool can use only one encapsulation for a backend; use the same encapsulation in both pools",
        ),
    ];
    for (text, expected) in table {
        let errors = errors_of(&text);
        assert_eq!(errors.len(), 1, "{text}: {errors:#?}");
        assert!(errors[0].contains(expected), "{expected:?} not in {errors:?}");
    }
}

#[test]
fn a_weight_that_is_too_large_is_refused_and_the_largest_is_not() {
    let chain = |last: u32, extra: u32| {
        format!(
            "[pool.a]\npools = [{{ pool = \"b\", weight = 65535 }}]\n\
             backends = [{{ name = \"b\", address = \"198.18.0.1\", weight = {extra} }}]\n\
             [pool.b]\nbackends = [{{ name = \"b\", address = \"198.18.0.1\", weight = {last} }}]\n\
             [pool.c]\npools = [{{ pool = \"a\" }}, {{ pool = \"b\", weight = 2 }}]\n"
        )
    };
    assert_eq!(weights(&config_of(&chain(65_535, 0)), "c"), [("b".to_owned(), u32::MAX)]);
    let errors = errors_of(&chain(65_535, 1));
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].contains("pool.c.pools[1].pool: the total weight of backend \"b\" is 4294967296; help: reduce weights until the sum is at most 4294967295"
        ),
        "{errors:?}"
    );
}

#[test]
fn a_long_chain_and_a_lattice_of_pools_are_flattened_quickly() {
    let mut text = "[pool.p0]\nbackends = [{ name = \"b\", address = \"198.18.0.1\" }]\n".to_owned();
    for level in 1..=20_000 {
        text.push_str(&format!("[pool.p{level}]\npools = [{{ pool = \"p{}\" }}]\n", level - 1));
    }
    for level in 20_001..=20_030 {
        let below = level - 1;
        text.push_str(&format!(
            "[pool.p{level}]\npools = [{{ pool = \"p{below}\" }}, {{ pool = \"p{below}\" }}]\n"
        ));
    }
    assert_eq!(weights(&config_of(&text), "p20030"), [("b".to_owned(), 1 << 30)]);
}

#[test]
fn two_names_for_one_address_are_a_warning() {
    let text = "[pool.a]\nbackends = [{ name = \"b\", address = \"198.18.0.1\" }, { name = \"c\", address = \"198.18.0.1\" }]\n\
                [vip.v]\naddresses = [\"203.0.113.1\"]\nservices = [{ ports = [80], protocol = \"tcp\", pool = \"a\" }]";
    let (_, warnings) = parsed(&with_pools(text)).unwrap();
    assert_eq!(warnings.len(), 1);
    assert!(all_printed(&warnings).contains("warning: pool.a.backends[1].address: 198.18.0.1 is also the address of backend \"b\"; help: use one backend name for each address"
    ));
}

/// The backends and the nested pools of each pool. A pool contains only pools with lower numbers.
type Shape = Vec<(Vec<(u8, u32)>, Vec<(usize, u32)>)>;

fn shape() -> impl Strategy<Value = Shape> {
    let backends = proptest::collection::btree_map(0..6_u8, 0..5_u32, 1..4);
    let pool = (backends, proptest::collection::vec((any::<prop::sample::Index>(), 0..5_u32), 0..4));
    proptest::collection::vec(pool, 1..7).prop_map(|pools| {
        let shape = pools.into_iter().enumerate().map(|(number, (backends, inner))| {
            let lower = inner.into_iter().filter(|_| number > 0);
            (backends.into_iter().collect(), lower.map(|(at, weight)| (at.index(number), weight)).collect())
        });
        shape.collect()
    })
}

fn add_paths(shape: &Shape, pool: usize, factor: u64, sums: &mut BTreeMap<String, u64>) {
    for (backend, weight) in &shape[pool].0 {
        *sums.entry(format!("b{backend}")).or_default() += factor * u64::from(*weight);
    }
    for (inner, weight) in &shape[pool].1 {
        add_paths(shape, *inner, factor * u64::from(*weight), sums);
    }
}

proptest! {
    #[test]
    fn flattening_agrees_with_walking_every_path(shape in shape()) {
        let mut text = String::new();
        for (number, (backends, inner)) in shape.iter().enumerate().rev() {
            let backends = backends.iter().map(|(b, w)| format!("{{ name = \"b{b}\", address = \"198.18.0.{b}\", weight = {w} }}"));
            let inner: Vec<String> = inner.iter().map(|(p, w)| format!("{{ pool = \"p{p}\", weight = {w} }}")).collect();
            text.push_str(&format!("[pool.p{number}]\nbackends = [{}]\n", backends.collect::<Vec<_>>().join(", ")));
            if !inner.is_empty() {
                text.push_str(&format!("pools = [{}]\n", inner.join(", ")));
            }
        }
        let config = config_of(&text);
        for number in 0..shape.len() {
            let mut sums = BTreeMap::new();
            add_paths(&shape, number, 1, &mut sums);
            let flat: BTreeMap<String, u64> =
                weights(&config, &format!("p{number}")).into_iter().map(|(name, weight)| (name, u64::from(weight))).collect();
            prop_assert_eq!(flat, sums);
        }
    }
}
