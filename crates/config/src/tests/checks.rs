//! Tests of health checks: kinds, ranges, defaults, and the checks that a pool inherits from the
//! pools that contain it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::{BASE, Row, all_printed, check, parsed, printed, says, with_pools};
use crate::{Check, CheckKind, DnsRecord, HttpCheck, Severity, Transport, Via};

const VIP: &str = "[vip.v]\naddresses = [\"203.0.113.1\"]\nservices = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n";

/// Returns the check `c` with the given keys, which the only backend of the configuration uses.
pub(super) fn the_check(body: &str) -> Check {
    let text = format!(
        "[check.c]\n{body}\n[pool.p]\nchecks = [\"c\"]\nbackends = [{{ name = \"b1\", address = \"198.18.0.1\" }}]\n{VIP}"
    );
    let (config, warnings) = parsed(&with_pools(&text)).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(warnings.to_string(), "");
    let [check] = &*config.pools()[0].members[0].checks else { panic!("one check") };
    Check::clone(check)
}

/// The keys of a check and the expected problems: field, message and help.
pub(super) type Refused<'a> = (&'a str, &'a [(&'a str, &'a str, &'a str)]);

/// Compares the problems for each case. The check is appended to [`BASE`] after line 12, and the
/// pool uses this check.
pub(super) fn refused(rows: &[Refused<'_>]) {
    for (body, expected) in rows {
        let text = BASE.replace("encapsulation = \"t\"", "encapsulation = \"t\"\nchecks = [\"c\"]");
        let text = format!("{text}[check.c]\n{body}\n");
        let problems = parsed(&text).map_or_else(|errors| errors, |(_, warnings)| warnings);
        let shown: Vec<String> = problems.iter().map(printed).collect();
        assert_eq!(problems.len(), expected.len(), "{body}: {shown:#?}");
        for (problem, (key, message, help)) in problems.iter().zip(*expected) {
            assert!(problem.line().is_some_and(|line| line >= 18), "{body}: {shown:#?}");
            let field = format!("check.c{}{key}", if key.is_empty() { "" } else { "." });
            assert_eq!(problem.field, field, "{body}: {shown:#?}");
            assert!(says(problem, message, help), "{body}: {message:?}, {help:?} not in {shown:#?}");
        }
    }
}

#[test]
fn every_kind_has_its_defaults() {
    let check = the_check("tcp = { port = 80 }");
    assert_eq!((&*check.name, check.via), ("c", Via::Backend));
    let spans = [check.interval, check.timeout, check.fast_interval].map(|span| span.as_millis());
    assert_eq!(spans, [2_000, 500, 625]);
    assert_eq!((check.rise, check.fall, check.jitter_percent), (2, 3, 10));
    assert!(matches!(&check.kind, CheckKind::Tcp(tcp) if tcp.port == 80));
    let check = the_check("http = {}");
    let CheckKind::Http(http) = &check.kind else { panic!("{check:?}") };
    let plain = HttpCheck {
        port: 80,
        tls: None,
        method: "GET".into(),
        path: "/".into(),
        host: None,
        headers: Vec::new(),
        status: vec![200..=299],
        body_contains: None,
        probe_mtu: false,
    };
    assert_eq!(http, &plain);
    let check = the_check("https = { verify = false }");
    let CheckKind::Http(http) = &check.kind else { panic!("{check:?}") };
    let tls = http.tls.as_ref().unwrap();
    assert_eq!((http.port, &tls.server_name, &tls.ca, tls.verify), (443, &None, &None, false));
    let check = the_check("grpc = { port = 1 }");
    assert!(matches!(&check.kind, CheckKind::Grpc(grpc) if grpc.service.is_empty() && grpc.tls.is_none()));
    let check = the_check("dns = { name = \"www.example.\" }");
    let CheckKind::Dns(dns) = &check.kind else { panic!("{check:?}") };
    assert!(!dns.probe_mtu);
    assert_eq!((dns.port, &*dns.name, dns.record), (53, "www.example", DnsRecord::A));
    let check = the_check("memcached = {}");
    assert!(matches!(&check.kind, CheckKind::Memcached(memcached) if memcached.port == 11_211));
    for kind in ["grpc = { port = 1,", "dns = { name = \".\",", "memcached = {", "http = {"] {
        let check = the_check(&format!("{kind} probe_mtu = true }}"));
        assert_eq!(serde_json::to_value(&check.kind).unwrap()[check.kind.word()]["probe_mtu"], true);
    }
    let check = the_check("memcached = { transport = \"udp\" }");
    assert!(matches!(&check.kind, CheckKind::Memcached(memcached) if memcached.transport == Transport::Udp));
    let check = the_check("ntp = {}");
    assert!(matches!(&check.kind, CheckKind::Ntp(ntp) if (ntp.port, ntp.max_stratum) == (123, 15)));
}

#[test]
fn values_that_are_not_defaults_arrive() {
    let check = the_check(
        "via = \"vip\"\ninterval = \"1h\"\ntimeout = \"10ms\"\nfast_interval = \"100ms\"\nrise = 1\nfall = 1000\njitter_percent = 50\n\
         http = { port = 8080, method = \"POST\", path = \"/a?b=%20\", host = \"www.example:80\", \
         headers = { X-B = \"2 3\", Accept = \"\" }, status = [404, \"200-200\", 201, \"301-302\"], body_contains = \"ok\" }",
    );
    assert_eq!((check.via, check.interval), (Via::Vip, Duration::from_secs(3_600)));
    assert_eq!((check.timeout.as_millis(), check.fast_interval.as_millis()), (10, 100));
    assert_eq!((check.rise, check.fall, check.jitter_percent), (1, 1_000, 50));
    let CheckKind::Http(http) = &check.kind else { panic!("{check:?}") };
    assert_eq!((http.port, &*http.method, &*http.path), (8_080, "POST", "/a?b=%20"));
    assert_eq!((http.host.as_deref(), http.body_contains.as_deref()), (Some("www.example:80"), Some("ok")));
    let headers: Vec<_> = http.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(headers, [("Accept", ""), ("X-B", "2 3")]);
    assert_eq!(http.status, [200..=201, 301..=302, 404..=404]);
    let check = the_check(
        "grpc = { port = 9, service = \"a.B\", tls = true, verify = false, server_name = \"b1.example\" }",
    );
    let CheckKind::Grpc(grpc) = &check.kind else { panic!("{check:?}") };
    assert_eq!((grpc.port, &*grpc.service), (9, "a.B"));
    assert_eq!(grpc.tls.as_ref().unwrap().server_name.as_deref(), Some("b1.example"));
    for (word, record) in
        [("AAAA", DnsRecord::Aaaa), ("TXT", DnsRecord::Txt), ("SOA", DnsRecord::Soa), ("NS", DnsRecord::Ns)]
    {
        let check = the_check(&format!("dns = {{ port = 5353, name = \".\", record = \"{word}\" }}"));
        let CheckKind::Dns(dns) = &check.kind else { panic!("{check:?}") };
        assert_eq!((dns.port, &*dns.name, dns.record), (5_353, ".", record));
    }
    let check = the_check("ntp = { port = 124, max_stratum = 1 }");
    assert!(matches!(&check.kind, CheckKind::Ntp(ntp) if (ntp.port, ntp.max_stratum) == (124, 1)));
}

#[test]
fn the_fast_interval_lies_between_timeout_and_interval() {
    let table = [
        ("interval = \"100ms\"", [100, 50, 100]),
        ("interval = \"101ms\"", [101, 50, 100]),
        ("interval = \"10s\"", [10_000, 500, 2_500]),
        ("interval = \"1s\"\ntimeout = \"900ms\"", [1_000, 900, 1_000]),
        ("interval = \"1s\"\ntimeout = \"400ms\"", [1_000, 400, 500]),
        ("timeout = \"10ms\"\nfast_interval = \"2s\"", [2_000, 10, 2_000]),
        ("fast_interval = \"501ms\"", [2_000, 500, 501]),
    ];
    for (keys, expected) in table {
        let check = the_check(&format!("{keys}\ntcp = {{ port = 1 }}"));
        let spans = [check.interval, check.timeout, check.fast_interval].map(|span| span.as_millis());
        assert_eq!(spans, expected, "{keys}");
    }
    refused(&[
        (
            "tcp = { port = 1 }\ninterval = \"99ms\"",
            &[("interval", "\"interval\" must be between 100ms and 1h, got \"99ms\"", "")],
        ),
        (
            "tcp = { port = 1 }\ninterval = \"61m\"",
            &[("interval", "\"interval\" must be between 100ms and 1h, got \"61m\"", "")],
        ),
        (
            "tcp = { port = 1 }\ntimeout = \"2s\"",
            &[("timeout", "\"timeout\" must be less than interval = \"2s\", got \"2s\"", "")],
        ),
        (
            "tcp = { port = 1 }\ntimeout = \"9ms\"",
            &[("timeout", "\"timeout\" must be between 10ms and 1h, got \"9ms\"", "")],
        ),
        (
            "tcp = { port = 1 }\nfast_interval = \"500ms\"",
            &[(
                "fast_interval",
                "\"fast_interval\" must be more than timeout = \"500ms\", got \"500ms\"",
                "",
            )],
        ),
        (
            "tcp = { port = 1 }\nfast_interval = \"2001ms\"",
            &[("fast_interval", "\"fast_interval\" must be between 100ms and 2s, got \"2001ms\"", "")],
        ),
        (
            "tcp = { port = 1 }\nrise = 0\nfall = 1001",
            &[
                ("rise", "\"rise\" must be between 1 and 1000, got 0", ""),
                ("fall", "\"fall\" must be between 1 and 1000, got 1001", ""),
            ],
        ),
        (
            "tcp = { port = 1 }\njitter_percent = 51",
            &[("jitter_percent", "\"jitter_percent\" must be between 0 and 50, got 51", "")],
        ),
    ]);
}

#[test]
fn a_check_is_of_one_kind() {
    refused(&[
        (
            "",
            &[(
                "",
                "[check.c] has no kind of check",
                "add one of tcp, udp, http, https, grpc, dns, memcached, ntp, agent, exec",
            )],
        ),
        (
            "tpc = { port = 1 }",
            &[
                (
                    "",
                    "[check.c] has no kind of check",
                    "add one of tcp, udp, http, https, grpc, dns, memcached, ntp, agent, exec",
                ),
                ("tpc", "unknown key \"tpc\" in [check.c]", "did you mean \"tcp\"?"),
            ],
        ),
        (
            "tcp = { port = 1 }\ndns = { name = \"x\" }\nhttp = { port = 0 }",
            &[
                (
                    "dns",
                    "a check has one kind, but this one has \"tcp\" and \"dns\"",
                    "move \"dns\" to a separate check; a pool may have several checks",
                ),
                (
                    "http",
                    "a check has one kind, but this one has \"tcp\" and \"http\"",
                    "move \"http\" to a separate check; a pool may have several checks",
                ),
                ("http.port", "\"port\" must be between 1 and 65535, got 0", ""),
            ][..],
        ),
        ("tcp = 80", &[("tcp", "\"tcp\" must be a table, got 80", "write { KEY = VALUE, ... }")]),
        (
            "tcp = {}\nvia = \"VIP\"",
            &[
                ("tcp.port", "[check.c.tcp] needs a \"port\" key", "\"port\" is a port from 1 to 65535"),
                ("via", "\"via\" must be \"backend\" or \"vip\", got \"VIP\"", "write \"vip\" in lower case"),
            ],
        ),
        ("tcp = { port = 65536 }", &[("tcp.port", "\"port\" must be between 1 and 65535, got 65536", "")]),
        (
            "tcp = { port = 1, path = \"/\" }",
            &[(
                "tcp.path",
                "unknown key \"path\" in [check.c.tcp]",
                "known keys: expect, expect_hex, expect_regex, port, send, send_hex",
            )],
        ),
    ]);
}

#[test]
fn names_of_checks_are_checked() {
    let names = "encapsulation = \"t\"\nchecks = [\"wbe\", \"web\", \"web\", \"a b\"]";
    let text = BASE.replace("encapsulation = \"t\"", names);
    let text = format!("{text}[check.web]\ntcp = {{ port = 1 }}\n[check.\"x y\"]\ntcp = {{}}\n");
    let shown: Vec<String> = super::all(&text).iter().map(printed).collect();
    let parts = [
        "pool.p.checks[0]: unknown check \"wbe\"; help: did you mean \"web\"?",
        "pool.p.checks[2]: \"checks\" lists \"web\" twice",
        "pool.p.checks[3]: invalid name \"a b\"; help: use 1 to 64 letters, digits, '.', '_' or '-', and do not start with '.' or '-'",
        "check.\"x y\": invalid name \"x y\"; help: use 1 to 64 letters, digits, '.', '_' or '-', and do not start with '.' or '-'",
        "check.\"x y\".tcp.port: [check.\"x y\".tcp] needs a \"port\" key; help: \"port\" is a port from 1 to 65535",
    ];
    assert_eq!(shown.len(), parts.len(), "{shown:#?}");
    for (shown, part) in shown.iter().zip(parts) {
        assert!(shown.contains(part), "{part:?} not in {shown}");
    }
    const ROWS: &[Row] = &[
        (
            "[io]",
            "[check.web]\ntcp = { port = 1 }\n[io]",
            &[(7, "check.web", "check \"web\" is not used by any pool", "")],
        ),
        ("encapsulation = \"t\"", "encapsulation = \"t\"\nchecks = []", &[]),
        (
            "encapsulation = \"t\"",
            "encapsulation = \"t\"\nchecks = \"web\"",
            &[(
                13,
                "pool.p.checks",
                "\"checks\" must be a list of check names, got \"web\"",
                "for example [\"web\"]",
            )],
        ),
    ];
    check(ROWS);
}

#[test]
fn a_pool_with_too_many_checks_is_refused() {
    let checks = |count: usize| {
        let names: Vec<String> = (0..count).map(|number| format!("\"c{number}\"")).collect();
        let sections: String =
            (0..count).map(|number| format!("[check.c{number}]\nmemcached = {{}}\n")).collect();
        let (outer, inner) = names.split_at(count / 2);
        with_pools(&format!(
            "{sections}[pool.p]\nchecks = [{}]\npools = [{{ pool = \"q\" }}]\n[pool.q]\nchecks = [{}]\n\
             backends = [{{ name = \"b\", address = \"198.18.0.1\" }}]\n{VIP}",
            outer.join(", "),
            inner.join(", ")
        ))
    };
    let (config, _) = parsed(&checks(64)).unwrap();
    assert_eq!(config.pool("p").unwrap().members[0].checks.len(), 64);
    let problems = parsed(&checks(65)).unwrap_err();
    assert!(all_printed(&problems).contains("pool.q: pool \"q\" has 65 checks, including the checks of pools that contain it; help: a backend can have at most 64 checks"
    ));
    assert_eq!(problems.iter().filter(|problem| problem.severity == Severity::Error).count(), 1);
}

/// The checks and the nested pools of each pool. A pool contains only pools with lower numbers.
fn shape() -> impl Strategy<Value = Vec<(BTreeSet<u8>, Vec<usize>)>> {
    let pool = (
        prop::collection::btree_set(0..5_u8, 0..3),
        prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    );
    prop::collection::vec(pool, 1..7).prop_map(|pools| {
        let pool = |(number, (checks, inner)): (usize, (_, Vec<prop::sample::Index>))| {
            (checks, inner.into_iter().filter(|_| number > 0).map(|at| at.index(number)).collect())
        };
        pools.into_iter().enumerate().map(pool).collect()
    })
}

/// Follows every path from a pool to its leaf pools, and collects the checks on the path.
fn walk(
    shape: &[(BTreeSet<u8>, Vec<usize>)],
    pool: usize,
    met: &BTreeSet<u8>,
    found: &mut BTreeMap<usize, BTreeSet<u8>>,
) {
    let met: BTreeSet<u8> = met.union(&shape[pool].0).copied().collect();
    found.entry(pool).or_default().extend(&met);
    for inner in &shape[pool].1 {
        walk(shape, *inner, &met, found);
    }
}

proptest! {
    #[test]
    fn a_leaf_has_its_checks_and_those_of_every_pool_around_it(shape in shape()) {
        let mut text: String = (0..5).map(|number| format!("[check.c{number}]\ntcp = {{ port = {} }}\n", number + 1)).collect();
        for (number, (checks, inner)) in shape.iter().enumerate() {
            let checks: Vec<String> = checks.iter().rev().map(|check| format!("\"c{check}\"")).collect();
            let inner: Vec<String> = inner.iter().map(|pool| format!("{{ pool = \"p{pool}\" }}")).collect();
            let inner = if inner.is_empty() { String::new() } else { format!("pools = [{}]\n", inner.join(", ")) };
            text.push_str(&format!(
                "[pool.p{number}]\n{inner}checks = [{}]\nbackends = [{{ name = \"b{number}\", address = \"198.18.0.{number}\" }}]\n",
                checks.join(", ")
            ));
        }
        let (config, _) = parsed(&with_pools(&text)).unwrap();
        let mut expected = BTreeMap::new();
        for pool in 0..shape.len() {
            walk(&shape, pool, &BTreeSet::new(), &mut expected);
        }
        for pool in config.pools() {
            for member in &pool.members {
                let leaf: usize = member.leaf[1..].parse().unwrap();
                let checks: Vec<String> = member.checks.iter().map(|check| check.name.to_string()).collect();
                let wanted: Vec<String> = expected[&leaf].iter().map(|check| format!("c{check}")).collect();
                prop_assert_eq!(checks, wanted);
            }
        }
    }
}
