//! Tests of fallback pools and slow start: ranges, unknown pools, and cycles.

use std::time::Duration;

use proptest::prelude::*;

use super::{check, parsed, printed, with_pools};
use crate::Severity;

fn pool(name: &str, keys: &str) -> String {
    format!("[pool.{name}]\n{keys}\nbackends = [{{ name = \"b\", address = \"198.18.0.1\" }}]\n")
}

fn errors(text: &str) -> Vec<String> {
    let problems = parsed(&with_pools(text)).map_or_else(|errors| errors, |(_, warnings)| warnings);
    problems.iter().filter(|problem| problem.severity == Severity::Error).map(printed).collect()
}

#[test]
fn a_fallback_and_slow_start_arrive() {
    let text = [
        pool("a", "fallback = { pool = \"b\" }\nslow_start = \"1h\""),
        pool("b", "fallback = { pool = \"c\", below = 65535, hold = \"0s\" }\nslow_start = \"1s\""),
        pool("c", ""),
    ];
    let (config, _) = parsed(&with_pools(&text.concat())).unwrap();
    let fallback = |name: &str| {
        let fallback = config.pool(name).unwrap().fallback.as_ref()?;
        Some((fallback.pool.to_string(), fallback.below, fallback.hold))
    };
    assert_eq!(fallback("a"), Some(("b".to_owned(), 1, Duration::from_secs(30))));
    assert_eq!(fallback("b"), Some(("c".to_owned(), 65_535, Duration::ZERO)));
    assert_eq!(fallback("c"), None);
    let slow = ["a", "b", "c"].map(|name| config.pool(name).unwrap().slow_start.map(|span| span.as_secs()));
    assert_eq!(slow, [Some(3_600), Some(1), None]);
    let text = ["1%", "99%", "100%"].map(|most| pool("a", &format!("max_down = \"{most}\"")));
    let most = text.map(|text| parsed(&with_pools(&text)).unwrap().0.pool("a").unwrap().max_down);
    assert_eq!(most, [Some(1), Some(99), None]);
    assert!(config.pool("d").is_none());
}

#[test]
fn fallbacks_are_checked() {
    let with = |keys: &'static str| (keys, "encapsulation = \"t\"");
    let (below, base) = with(
        "encapsulation = \"t\"\nfallback = { pool = \"q\", below = 0, hold = \"61m\" }\nslow_start = \"0s\"\n\
         max_down = \"0%\"",
    );
    check(&[
        (
            base,
            below,
            &[
                (13, "pool.p.fallback.pool", "unknown pool \"q\"", "did you mean \"p\"?"),
                (13, "pool.p.fallback.below", "\"below\" must be between 1 and 65535, got 0", ""),
                (13, "pool.p.fallback.hold", "\"hold\" must be between 0s and 1h, got \"61m\"", ""),
                (14, "pool.p.slow_start", "\"slow_start\" must be between 1s and 1h, got \"0s\"", ""),
                (
                    15,
                    "pool.p.max_down",
                    "\"max_down\" must be a percentage between \"1%\" and \"100%\", got \"0%\"",
                    "",
                ),
            ],
        ),
        (
            base,
            "encapsulation = \"t\"\nfallback = \"q\"",
            &[(
                13,
                "pool.p.fallback",
                "\"fallback\" must be a table, got \"q\"",
                "write { KEY = VALUE, ... }",
            )],
        ),
        (
            base,
            "encapsulation = \"t\"\nfallback = {}",
            &[(
                13,
                "pool.p.fallback.pool",
                "[pool.p.fallback] needs a \"pool\" key",
                "\"pool\" is the name of a pool",
            )],
        ),
        (
            base,
            "encapsulation = \"t\"\nfallback = { pool = \"p\" }",
            &[(
                13,
                "pool.p.fallback.pool",
                "pool \"p\" is its own fallback",
                "remove one fallback to break the cycle",
            )],
        ),
        (
            base,
            "encapsulation = \"t\"\nfallback = { pool = \"pp\", below = 2 }\nbackends = [{ name = \"b2\", address = \"198.18.0.2\" }]\n[pool.pp]",
            &[(
                13,
                "pool.p.fallback.pool",
                "pool \"p\" is never used, because it has 1 backend and its fallback has below = 2",
                "set below to 1 or less",
            )],
        ),
    ]);
}

#[test]
fn rings_of_fallbacks_are_named_once() {
    let text = [
        pool("a", "fallback = { pool = \"c\" }"),
        pool("b", "fallback = { pool = \"d\" }"),
        pool("c", "fallback = { pool = \"b\" }"),
        pool("d", "fallback = { pool = \"c\" }"),
        pool("e", "fallback = { pool = \"e\" }"),
    ];
    assert_eq!(
        errors(&text.concat()),
        [
            "etc/a.toml:11:21: pool.b.fallback.pool: fallbacks form a cycle, b -> d -> c -> b; help: remove one fallback to break the cycle",
            "etc/a.toml:20:21: pool.e.fallback.pool: pool \"e\" is its own fallback; help: remove one fallback to break the cycle",
        ]
    );
    let long: String = (0..40)
        .map(|n| pool(&format!("p{n:02}"), &format!("fallback = {{ pool = \"p{:02}\" }}", (n + 1) % 40)))
        .collect();
    let errors = errors(&long);
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("40 fallbacks form a cycle through pool \"p00\""), "{errors:?}");
}

proptest! {
    #[test]
    fn every_ring_is_one_error_and_nothing_else_is(next in prop::collection::vec(prop::option::of(0..8_usize), 8)) {
        let text: String = next.iter().enumerate().map(|(number, next)| {
            pool(&format!("p{number}"), &next.map(|next| format!("fallback = {{ pool = \"p{next}\" }}")).unwrap_or_default())
        }).collect();
        // A pool is part of a cycle if the chain of its fallbacks leads back to the pool. Each
        // cycle is counted once, at the pool with the lowest number in the cycle.
        let follow = |start: usize| std::iter::successors(next[start], |at| next[*at]).take(8);
        let rings = (0..8).filter(|&start| {
            let ring: Vec<usize> = follow(start).collect();
            ring.iter().position(|&at| at == start).is_some_and(|end| ring[..end].iter().all(|&at| at > start))
        });
        prop_assert_eq!(errors(&text).len(), rings.count());
    }
}

#[test]
fn keys_without_effect_are_warned_of() {
    let own = "backends = [{ name = \"b\", address = \"198.18.0.1\" }]";
    let keys = "fallback = { pool = \"spare\" }\nslow_start = \"30s\"\nmax_down = \"50%\"";
    let vip = "[vip.v]\naddresses = [\"203.0.113.1\"]\nservices = [{ ports = [80], protocol = \"tcp\", pool = \"top\" }]\n";
    let warnings = |top: &str| {
        let text = [
            vip.to_owned(),
            format!("[pool.top]\n{top}\npools = [{{ pool = \"middle\" }}]\n"),
            format!("[pool.middle]\n{keys}\npools = [{{ pool = \"leaf\" }}]\n"),
            format!("[pool.leaf]\n{keys}\n{own}\n"),
            "[pool.spare]\nbackends = [{ name = \"s\", address = \"198.18.0.9\" }]\n".to_owned(),
            format!("[pool.lone]\n{keys}\nbackends = [{{ name = \"l\", address = \"198.18.0.8\" }}]\n"),
        ];
        let (_, warnings) = parsed(&with_pools(&text.concat())).unwrap();
        warnings.iter().map(|warning| (warning.line().unwrap(), printed(warning))).collect::<Vec<_>>()
    };
    let never = |line: usize, pool: &str, key: &str, field: &str| {
        let column = match key {
            "fallback" => 21,
            "slow_start" => 14,
            _ => 12,
        };
        let words = format!(
            "etc/a.toml:{line}:{column}: warning: pool.{pool}.{field}: {key} has no effect, because pool \"{pool}\" is only \
             used inside other pools; help: set {key} in a pool that a VIP names, such as \"top\""
        );
        (line, words)
    };
    let found = warnings(keys);
    let expected = [
        never(16, "middle", "fallback", "fallback.pool"),
        never(17, "middle", "slow_start", "slow_start"),
        never(18, "middle", "max_down", "max_down"),
        // Slow start has an effect in a pool that lists backends.
        never(21, "leaf", "fallback", "fallback.pool"),
        never(23, "leaf", "max_down", "max_down"),
    ];
    assert_eq!(found[..5], expected);
    assert!(
        found.len() == 6 && found[5].1.contains("pool.lone: pool \"lone\" is not used by any VIP"),
        "{found:#?}"
    );
    // The key `fallback` also has an effect in a pool that is itself a fallback.
    let found = warnings("fallback = { pool = \"middle\" }");
    assert!(found.iter().all(|(_, words)| !words.contains("pool.middle")), "{found:#?}");
}
