//! Tests of shards: allowed references, and the machines that serve each VIP.

use proptest::prelude::*;

use super::{Row, all_printed, check, parsed, printed};
use crate::{Config, Problems, Severity};

/// Returns a configuration with one machine per element of `machines`, followed by `rest`. Each
/// element is the shard of one machine.
fn text(machines: &[Option<&str>], rest: &str) -> String {
    let mut text = "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n".to_owned();
    for (number, shard) in machines.iter().enumerate() {
        let shard = shard.map(|shard| format!("shard = \"{shard}\"\n")).unwrap_or_default();
        text.push_str(&format!(
            "[machine.m{number}]\n{shard}addresses = [\"192.0.2.{}\"]\ninterfaces = [\"eth0\"]\n",
            number + 1
        ));
    }
    text + rest
}

fn pool(number: usize, shard: Option<&str>, more: &str) -> String {
    let shard = shard.map(|shard| format!("shard = \"{shard}\"\n")).unwrap_or_default();
    format!(
        "[pool.p{number}]\n{shard}{more}\nbackends = [{{ name = \"b{number}\", address = \"198.18.0.{number}\" }}]\n"
    )
}

fn vip(number: usize, shard: Option<&str>, pool: usize) -> String {
    let shard = shard.map(|shard| format!("shard = \"{shard}\"\n")).unwrap_or_default();
    format!(
        "[vip.v{number}]\n{shard}addresses = [\"203.0.113.{number}\"]\nservices = [{{ ports = [80], protocol = \"tcp\", pool = \"p{pool}\" }}]\n"
    )
}

fn read(text: &str) -> Result<(Config, Problems), Problems> {
    parsed(text)
}

#[test]
fn shard_without_peer_checks_is_warned_of() {
    let rest = [pool(0, None, ""), vip(0, None, 0)].concat();
    let alone = text(&[Some("a"), Some("b"), None, None], &rest);
    assert_eq!(read(&alone).unwrap().1.to_string(), "");
    let several = text(&[Some("a"), Some("b"), Some("b")], &rest);
    let (_, warnings) = read(&several).unwrap();
    let shown = all_printed(&warnings);
    assert!(
        shown.contains("warning: cluster.peer_checks: shard \"b\" has several machines, but no peer checks; help: name checks with via = \"backend\" in cluster.peer_checks; fragments for a failed machine are lost"),
        "{shown}"
    );
    let check = "[check.c]\ntcp = { port = 1 }\ninterval = \"2s\"\ntimeout = \"1s\"\n";
    let checked = several.replacen("[cluster]\n", "[cluster]\npeer_checks = [\"c\"]\n", 1) + check;
    assert_eq!(read(&checked).unwrap().1.to_string(), "", "the check counts as used");
}

#[test]
fn a_machine_serves_its_own_shard_and_what_has_none() {
    let rest = [
        pool(0, None, ""),
        pool(1, Some("a"), "pools = [{ pool = \"p0\" }]"),
        pool(2, Some("b"), "fallback = { pool = \"p0\" }"),
        vip(0, None, 0),
        vip(1, Some("a"), 1),
        vip(2, Some("b"), 2),
        vip(3, Some("b"), 0),
    ];
    let (config, warnings) = read(&text(&[Some("a"), Some("b"), None], &rest.concat())).unwrap();
    assert_eq!(warnings.to_string(), "");
    let served = |machine: &str| {
        let machine = config.machine(machine).unwrap();
        config.vips_of(machine).map(|vip| vip.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(served("m0"), ["v0", "v1"]);
    assert_eq!(served("m1"), ["v0", "v2", "v3"]);
    assert_eq!(served("m2"), ["v0"]);
    assert_eq!(
        config.pools().iter().map(|pool| pool.shard()).collect::<Vec<_>>(),
        [None, Some("a"), Some("b")]
    );
    assert_eq!(config.vips()[1].shard(), Some("a"));
}

#[test]
fn what_crosses_shards_is_refused_in_words() {
    let rest = [
        pool(0, Some("b"), ""),
        pool(1, Some("a"), "pools = [{ pool = \"p0\" }]\nfallback = { pool = \"p0\" }"),
        vip(0, None, 1),
        vip(1, Some("a"), 0),
    ];
    let problems = read(&text(&[Some("a"), Some("b")], &rest.concat())).unwrap_err();
    let shown: Vec<String> = problems.iter().map(printed).collect();
    let parts = [
        "pool.p1.pools[0].pool: pool \"p1\" of shard \"a\" cannot use pool \"p0\" of shard \"b\"; help: use a pool of shard \"a\", or a pool without a shard",
        "pool.p1.fallback.pool: pool \"p1\" of shard \"a\" cannot use pool \"p0\" of shard \"b\"; help: use a pool of shard \"a\", or a pool without a shard",
        "vip.v0.services[0].pool: VIP \"v0\" without a shard cannot use pool \"p1\" of shard \"a\"; help: use a pool without a shard, because every machine serves this VIP",
        "vip.v1.services[0].pool: VIP \"v1\" of shard \"a\" cannot use pool \"p0\" of shard \"b\"; help: use a pool of shard \"a\", or a pool without a shard",
    ];
    assert_eq!(shown.len(), parts.len(), "{shown:#?}");
    for (shown, part) in shown.iter().zip(parts) {
        assert!(shown.contains(part), "{part:?} not in {shown}");
    }
}

#[test]
fn shards_are_checked() {
    const ROWS: &[Row] = &[
        (
            "[vip.v]",
            "[vip.v]\nshard = \"a\"",
            &[(
                15,
                "vip.v.shard",
                "no machine has shard \"a\"",
                "add shard = \"a\" to a section [machine.NAME]",
            )],
        ),
        (
            "[pool.p]",
            "[pool.p]\nshard = 1",
            &[(12, "pool.p.shard", "\"shard\" must be a name in quotes, got 1", "")],
        ),
        (
            "[vip.v]",
            "[vip.v]\nshard = \"a b\"",
            &[(
                15,
                "vip.v.shard",
                "invalid name \"a b\"",
                "use 1 to 64 letters, digits, '.', '_' or '-', and do not start with '.' or '-'",
            )],
        ),
        (
            "interfaces = [\"eth0\"]",
            "interfaces = [\"eth0\"]\nshard = \"rack1\"\n[vip.w]\nshard = \"rack2\"\naddresses = [\"203.0.113.2\"]\n\
             services = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]",
            &[(9, "vip.w.shard", "no machine has shard \"rack2\"", "did you mean \"rack1\"?")],
        ),
    ];
    check(ROWS);
}

#[test]
fn the_filters_room_counts_for_each_machine() {
    let io = "[io]\nmax_vips = 2\n";
    let of = |vips: &[(usize, Option<&str>)]| {
        let vips: String = vips.iter().map(|(number, shard)| vip(*number, *shard, 0)).collect();
        let problems = read(&text(&[Some("a"), Some("b")], &format!("{io}{}{vips}", pool(0, None, ""))));
        problems
            .map_or_else(|errors| errors, |(_, warnings)| warnings)
            .iter()
            .map(printed)
            .collect::<Vec<_>>()
    };
    assert_eq!(of(&[(1, None), (2, Some("a")), (3, Some("b"))]), [""; 0]);
    let over = of(&[(1, None), (2, Some("a")), (3, Some("b")), (4, Some("a"))]);
    assert_eq!(over.len(), 1);
    assert!(
        over[0].contains(
            "vip: 3 VIP addresses on machines of shard \"a\" exceed io.max_vips = 2; help: raise io.max_vips"
        ),
        "{over:?}"
    );
}

#[test]
fn an_outer_source_is_needed_on_the_machines_of_the_shard_alone() {
    let v6 = |shard| pool(0, shard, "").replace("198.18.0.0", "2001:db8:18::1");
    let machines =
        text(&[Some("a"), Some("b")], "").replace("\"192.0.2.1\"", "\"192.0.2.1\", \"2001:db8::1\"");
    assert!(read(&format!("{machines}{}{}", v6(Some("a")), vip(0, Some("a"), 0))).is_ok());
    let problems = read(&format!("{machines}{}{}", v6(None), vip(0, Some("a"), 0))).unwrap_err();
    assert!(all_printed(&problems).contains("pool.p0.backends[0].address: machine \"m1\" has no IPv6 source address for packets to 2001:db8:18::1; help: add an IPv6 address to the machine, or an IPv6 prefix to source_prefixes of encapsulation \"gre\""), "{problems}");
}

proptest! {
    #[test]
    fn what_is_accepted_is_there_on_every_machine_that_needs_it(
        shards in prop::collection::vec(0..3_usize, 4),
        vips in prop::collection::vec((0..3_usize, 0..4_usize), 1..5),
        edges in prop::collection::vec((0..4_usize, 0..4_usize, any::<bool>()), 0..4),
    ) {
        let shard = |number: usize| [None, Some("a"), Some("b")][number];
        let mut rest = String::new();
        for (number, own) in shards.iter().enumerate() {
            // Pools refer only to pools with higher numbers, so there are no cycles.
            let of = |kind: bool| edges.iter().filter(move |(a, b, k)| a < b && *a == number && *k == kind).map(|(_, b, _)| *b);
            let inner: Vec<String> = of(true).map(|pool| format!("{{ pool = \"p{pool}\" }}")).collect();
            let mut more = if inner.is_empty() { String::new() } else { format!("pools = [{}]\n", inner.join(", ")) };
            if let Some(fallback) = of(false).next() {
                more.push_str(&format!("fallback = {{ pool = \"p{fallback}\" }}\n"));
            }
            rest.push_str(&pool(number, shard(*own), &more));
        }
        for (number, (own, pool)) in vips.iter().enumerate() {
            rest.push_str(&vip(number + 1, shard(*own), *pool));
        }
        let refused = read(&text(&[None, Some("a"), Some("b")], &rest));
        let refused = refused.map_or_else(|errors| errors, |(_, warnings)| warnings);
        let refused = refused.iter().any(|problem| problem.severity == Severity::Error);
        // Each VIP and each pool exists on the machines of its shard, or on all machines. The
        // configuration must be rejected if a VIP or pool uses a pool that does not exist on all of
        // these machines.
        let here = |own: usize, machine: usize| own == 0 || own == machine;
        let missing = (0..3).any(|machine| {
            let vips = vips.iter().any(|(own, pool)| here(*own, machine) && !here(shards[*pool], machine));
            let fallback = |a: usize| edges.iter().find(|(c, b, k)| c < b && *c == a && !k).map(|(_, b, _)| *b);
            let used = edges.iter().filter(|(a, b, kind)| a < b && (*kind || fallback(*a) == Some(*b)));
            vips || used.into_iter().any(|(a, b, _)| here(shards[*a], machine) && !here(shards[*b], machine))
        });
        prop_assert_eq!(refused, missing);
    }
}
