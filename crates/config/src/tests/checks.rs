//! Checks: their kinds, ranges and defaults, and how pools hand them down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::{BASE, Row, check, parsed, with_pools};
use crate::{Check, CheckKind, DnsRecord, HttpCheck, Severity, Transport, Via};

const VIP: &str = "[vip.v]\naddresses = [\"203.0.113.1\"]\nservices = [{ ports = [80], protocol = \"tcp\", pool = \"p\" }]\n";

/// The check `c` with this body, as its only pool's only backend has it.
fn the_check(body: &str) -> Check {
    let text = format!(
        "[check.c]\n{body}\n[pool.p]\nchecks = [\"c\"]\nbackends = [{{ name = \"b1\", address = \"198.18.0.1\" }}]\n{VIP}"
    );
    let (config, warnings) = parsed(&with_pools(&text)).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(warnings.to_string(), "");
    let [check] = &*config.pools()[0].members[0].checks else { panic!("one check") };
    Check::clone(check)
}

/// A check's body, and of each expected problem: field, parts of what was found and allowed.
type Refused<'a> = (&'a str, &'a [(&'a str, &'a str, &'a str)]);

/// Expects these problems of a check with each body; the check is used by the base's pool, its lines follow line 12.
fn refused(rows: &[Refused<'_>]) {
    for (body, expected) in rows {
        let text = BASE.replace("encapsulation = \"t\"", "encapsulation = \"t\"\nchecks = [\"c\"]");
        let text = format!("{text}[check.c]\n{body}\n");
        let problems = parsed(&text).map_or_else(|errors| errors, |(_, warnings)| warnings);
        let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(problems.len(), expected.len(), "{body}: {shown:#?}");
        for (problem, (field, found, allowed)) in problems.iter().zip(*expected) {
            assert!(problem.line().is_some_and(|line| line >= 18), "{body}: {shown:#?}");
            let field = format!("check.c{}{field}", if field.is_empty() { "" } else { "." });
            assert_eq!(problem.field, field, "{body}: {shown:#?}");
            assert!(problem.found.contains(found), "{body}: {found:?} not in {shown:#?}");
            assert!(problem.allowed.contains(allowed), "{body}: {allowed:?} not in {shown:#?}");
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
    assert_eq!((dns.port, &*dns.name, dns.record), (53, "www.example", DnsRecord::A));
    let check = the_check("memcached = {}");
    assert!(matches!(&check.kind, CheckKind::Memcached(memcached) if memcached.port == 11_211));
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
        ("tcp = { port = 1 }\ninterval = \"99ms\"", &[("interval", "\"99ms\"", "from \"100ms\" to \"1h\"")]),
        ("tcp = { port = 1 }\ninterval = \"61m\"", &[("interval", "\"61m\"", "")]),
        ("tcp = { port = 1 }\ntimeout = \"2s\"", &[("timeout", "\"2s\"", "less than interval = \"2s\"")]),
        ("tcp = { port = 1 }\ntimeout = \"9ms\"", &[("timeout", "\"9ms\"", "from \"10ms\"")]),
        (
            "tcp = { port = 1 }\nfast_interval = \"500ms\"",
            &[("fast_interval", "\"500ms\"", "more than timeout = \"500ms\"")],
        ),
        (
            "tcp = { port = 1 }\nfast_interval = \"2001ms\"",
            &[("fast_interval", "", "from \"100ms\" to \"2s\"")],
        ),
        (
            "tcp = { port = 1 }\nrise = 0\nfall = 1001",
            &[("rise", "0", "1 to 1000"), ("fall", "1001", "1 to 1000")],
        ),
        ("tcp = { port = 1 }\njitter_percent = 51", &[("jitter_percent", "51", "0 to 50")]),
    ]);
}

#[test]
fn a_check_is_of_one_kind() {
    refused(&[
        ("", &[("", "no kind of check", "one of tcp, http, https, grpc, dns, memcached, ntp")]),
        ("tpc = { port = 1 }", &[("", "no kind", ""), ("tpc", "unknown", "did you mean \"tcp\"?")]),
        (
            "tcp = { port = 1 }\ndns = { name = \"x\" }\nhttp = { port = 0 }",
            &[
                ("dns", "dns beside another kind", "one kind a check"),
                ("http", "http beside", "one kind a check"),
                ("http.port", "0", "1 to 65535"),
            ][..],
        ),
        ("tcp = 80", &[("tcp", "80", "a table")]),
        (
            "tcp = {}\nvia = \"VIP\"",
            &[("tcp.port", "nothing", "a port"), ("via", "\"VIP\"", "\"backend\", \"vip\"")],
        ),
        ("tcp = { port = 65536 }", &[("tcp.port", "65536", "1 to 65535")]),
        ("tcp = { port = 1, path = \"/\" }", &[("tcp.path", "unknown", "port")]),
    ]);
}

#[test]
fn http_checks_are_checked() {
    refused(&[
        (
            "http = { method = \"get\", path = \"x\", host = \"a b\", body_contains = \"\" }",
            &[
                ("http.method", "\"get\"", "in capitals"),
                ("http.path", "\"x\"", "starts with '/'"),
                ("http.host", "\"a b\"", "a host name"),
                ("http.body_contains", "\"\"", "1 to 1024 bytes"),
            ],
        ),
        ("http = { path = \"/a b\" }", &[("http.path", "", "without space")]),
        ("http = { path = \"/a\\r\\nx\" }", &[("http.path", "\\r\\n", "")]),
        ("http = { method = \"CONNECT\" }", &[("http.method", "", "not CONNECT")]),
        (
            "http = { method = \"HEAD\", body_contains = \"x\" }",
            &[("http.body_contains", "\"x\"", "HEAD has no body")],
        ),
        ("http = { status = [] }", &[("http.status", "an empty list", "from 100 to 599")]),
        (
            "http = { status = [99, 600, \"100-600\", \"299-200\", \"2xx\"] }",
            &[
                ("http.status[0]", "99", "from 100 to 599"),
                ("http.status[1]", "600", ""),
                ("http.status[2]", "\"100-600\"", ""),
                ("http.status[3]", "\"299-200\"", "lower"),
                ("http.status[4]", "\"2xx\"", ""),
            ],
        ),
        ("http = { status = [\"200-299\", 250] }", &[("http.status", "200-299 and 250", "once")]),
        (
            "http.headers = { \"a b\" = \"x\", Host = \"x\", authorization = \"x\", Cookie = \"x\", e = \"\\n\", f = \" x\", G = \"1\", g = \"1\" }",
            &[
                ("http.headers.\"a b\"", "\"x\"", "RFC 9110"),
                ("http.headers.Host", "the header host", "the key host"),
                ("http.headers.authorization", "the header authorization", "no secret"),
                ("http.headers.Cookie", "the header cookie", "no secret"),
                ("http.headers.e", "\"\\n\"", "printable"),
                ("http.headers.f", "\" x\"", "without space at either end"),
                ("http.headers.g", "the header g a second time", "once"),
            ],
        ),
        ("http = { verify = false }", &[("http.verify", "unknown", "")]),
    ]);
}

#[test]
fn tls_keys_are_checked() {
    refused(&[
        ("https = {}", &[("https", "verify = true without a CA", "do not know private names")]),
        ("grpc = { port = 1, tls = true }", &[("grpc", "verify = true without a CA", "ca_file")]),
        (
            "grpc = { port = 1, verify = false, ca_file = \"x\", server_name = \"x\" }",
            &[
                ("grpc.verify", "false", "nothing here without tls = true"),
                ("grpc.ca_file", "\"x\"", "nothing here"),
                ("grpc.server_name", "\"x\"", "nothing here"),
            ],
        ),
        (
            "https = { verify = false, server_name = \"a b\" }",
            &[("https.server_name", "\"a b\"", "a host name")],
        ),
        (
            "https = { ca_file = \"none.pem\" }",
            &[("https.ca_file", "etc/none.pem\": no such file", "in PEM")],
        ),
        ("https = { ca_file = \"/dev/null\" }", &[("https.ca_file", "not a regular file", "")]),
        ("https = { ca_file = \"\" }", &[("https.ca_file", "\"\"", "in PEM")]),
    ]);
}

#[test]
fn dns_and_grpc_names_are_checked() {
    let long = format!("dns = {{ name = \"{}\" }}", "a.".repeat(127));
    refused(&[
        ("dns = {}", &[("dns.name", "nothing", "a domain name")]),
        ("dns = { name = \"\" }", &[("dns.name", "\"\"", "a domain name")]),
        ("dns = { name = \"a..b\" }", &[("dns.name", "\"a..b\"", "1 to 63")]),
        ("dns = { name = \"..\" }", &[("dns.name", "\"..\"", "1 to 63")]),
        ("dns = { name = \"a b\" }", &[("dns.name", "\"a b\"", "")]),
        ("dns = { name = \"x\", record = \"a\" }", &[("dns.record", "\"a\"", "\"A\", \"AAAA\"")]),
        ("grpc = { port = 1, service = \"a b\" }", &[("grpc.service", "\"a b\"", "")]),
        (&long, &[]),
        (&long.replace("a.\"", "a.aa\""), &[("dns.name", "of", "253 characters")]),
    ]);
}

#[test]
fn ntp_keys_are_checked() {
    refused(&[
        (
            "ntp = { port = 0, max_stratum = 0 }",
            &[("ntp.port", "0", "1 to 65535"), ("ntp.max_stratum", "0", "1 to 15")],
        ),
        ("ntp = { max_stratum = 16 }", &[("ntp.max_stratum", "16", "1 to 15")]),
        ("ntp = { max_stratum = \"1\" }", &[("ntp.max_stratum", "\"1\"", "1 to 15")]),
        ("ntp = { stratum = 1 }", &[("ntp.stratum", "unknown", "max_stratum")]),
    ]);
}

#[test]
fn names_of_checks_are_checked() {
    let names = "encapsulation = \"t\"\nchecks = [\"wbe\", \"web\", \"web\", \"a b\"]";
    let text = BASE.replace("encapsulation = \"t\"", names);
    let text = format!("{text}[check.web]\ntcp = {{ port = 1 }}\n[check.\"x y\"]\ntcp = {{}}\n");
    let shown: Vec<String> = super::all(&text).iter().map(ToString::to_string).collect();
    let parts = [
        "13:11: pool.p.checks[0]: found \"wbe\", allowed a section [check.NAME] (did you mean \"web\"?)",
        "13:25: pool.p.checks[2]: found \"web\", allowed each check once in a pool",
        "13:32: pool.p.checks[3]: found \"a b\", allowed a name of 1 to 64",
        "20:8: check.\"x y\": found \"x y\", allowed a name of 1 to 64",
        "21:7: check.\"x y\".tcp.port: found nothing, allowed a port",
    ];
    assert_eq!(shown.len(), parts.len(), "{shown:#?}");
    for (shown, part) in shown.iter().zip(parts) {
        assert!(shown.contains(part), "{part:?} not in {shown}");
    }
    const ROWS: &[Row] = &[
        ("[io]", "[check.web]\ntcp = { port = 1 }\n[io]", &[(7, "check.web", "no pool uses", "a use")]),
        ("encapsulation = \"t\"", "encapsulation = \"t\"\nchecks = []", &[]),
        (
            "encapsulation = \"t\"",
            "encapsulation = \"t\"\nchecks = \"web\"",
            &[(13, "pool.p.checks", "\"web\"", "a list")],
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
    assert!(
        problems
            .to_string()
            .contains("pool.q: found 65 checks, with those of the pools around it, allowed at most 64")
    );
    assert_eq!(problems.iter().filter(|problem| problem.severity == Severity::Error).count(), 1);
}

/// Pools numbered so that references lead to lower numbers: per pool its checks and its references.
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

/// Walks every path from every pool downwards, with the checks met on the way.
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
