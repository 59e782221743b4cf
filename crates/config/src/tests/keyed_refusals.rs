//! Tests of invalid keys in `kv`. Each case changes a keyed pool and has one expected problem.

use super::keyed::text;
use super::{all, printed};

#[test]
fn wrong_keys_are_named() {
    let clients = "clients = [\"198.51.100.0/24\"]";
    let rows = [
        (
            "\"memcached\"",
            "\"redis\"",
            "pool.p.kv.protocol: \"protocol\" must be \"memcached\", \"header\" or \"offset\", got \"redis\"",
        ),
        (
            "protocol = \"memcached\", ",
            "",
            "pool.p.kv.protocol: [pool.p.kv] needs a \"protocol\" key; help: \"protocol\" is one of \"memcached\", \"header\" and \"offset\", for example protocol = \"memcached\"",
        ),
        (
            ", clients = [\"198.51.100.0/24\"]",
            "",
            "pool.p.kv.clients: [pool.p.kv] needs a \"clients\" key; help: \"clients\" is a list of prefixes or addresses of clients, for example clients = [\"198.51.100.0/24\"]",
        ),
        (
            clients,
            "clients = []",
            "pool.p.kv.clients: \"clients\" must not be empty; help: for example [\"198.51.100.64/28\"]",
        ),
        (
            clients,
            "clients = [\"198.51.100.9\", \"0.0.0.0/0\"]",
            "pool.p.kv.clients[1]: prefix 0.0.0.0/0 allows every client to send requests; help: use longer prefixes, or set any_client = true",
        ),
        (
            "\"memcached\"",
            "\"memcached\", start = 3",
            "pool.p.kv.start: \"start\" needs protocol = \"offset\"; help: remove \"start\"",
        ),
        (
            "\"memcached\"",
            "\"offset\"",
            "pool.p.kv.length: [pool.p.kv] needs a \"length\" key; help: \"length\" is the length of a key in bytes, from 1 to 250",
        ),
        (
            "\"memcached\"",
            "\"offset\", length = 251",
            "pool.p.kv.length: \"length\" must be between 1 and 250, got 251",
        ),
        (
            "\"memcached\"",
            "\"memcached\", max_keys = 33",
            "pool.p.kv.max_keys: \"max_keys\" must be between 1 and 32, got 33",
        ),
        (
            "\"memcached\"",
            "\"memcached\", hash = \"crc32\"",
            "pool.p.kv.hash: \"hash\" must be \"maglev\", \"ketama\" or \"fnv1a_64\", got \"crc32\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", path = \"around\"",
            "pool.p.kv.path: \"path\" must be \"direct\" or \"proxied\", got \"around\"",
        ),
        (
            "\"memcached\"",
            "\"header\", id = 7, path = \"proxied\"",
            "pool.p.kv.path: path = \"proxied\" needs protocol = \"memcached\"; help: other protocols have no request ids to match replies with",
        ),
        (
            "\"memcached\"",
            "\"memcached\", answer_timeout = \"200ms\"",
            "pool.p.kv.answer_timeout: \"answer_timeout\" needs path = \"proxied\"; help: remove \"answer_timeout\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", path = \"proxied\"",
            "pool.p: path = \"proxied\" needs encapsulation = \"l2\", but backend \"b1\" has \"gre\"; help: requests are sent to the backend's own address without encapsulation",
        ),
        (
            "\"memcached\"",
            "\"memcached\", failover = { to = \"next\", ttl = \"1500ms\" }",
            "pool.p.kv.failover.ttl: \"ttl\" must be whole seconds, got \"1500ms\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", failover = { to = \"nowhere\", ttl = \"10s\" }",
            "pool.p.kv.failover.ttl: \"ttl\" needs protocol = \"memcached\", and a failover to other backends; help: remove \"ttl\"",
        ),
        (
            "\"memcached\"",
            "\"header\", id = 7, failover = { to = \"next\", ttl = \"10s\" }",
            "pool.p.kv.failover.ttl: \"ttl\" needs protocol = \"memcached\", and a failover to other backends; help: remove \"ttl\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", cache = {}",
            "pool.p.kv.cache.memory: [pool.p.kv.cache] needs a \"memory\" key; help: \"memory\" is a size from \"1MiB\" to \"64GiB\", for example memory = \"256MiB\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", cache = true",
            "pool.p.kv.cache: \"cache\" must be a table or false, got true",
        ),
        (
            "\"memcached\"",
            "\"memcached\", cache = { memory = \"64MB\" }",
            "pool.p.kv.cache.memory: \"memory\" must be a size from \"1MiB\" to \"64GiB\", got \"64MB\"; help: for example \"256MiB\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", cache = { memory = \"1KiB\" }",
            "pool.p.kv.cache.memory: \"memory\" must be a size from \"1MiB\" to \"64GiB\", got \"1KiB\"; help: for example \"256MiB\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", cache = { memory = \"1MiB\", lease = \"2s\" }",
            "pool.p.kv.cache.lease: \"lease\" must be between 1ms and 1s, got \"2s\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", cache = { memory = \"1MiB\", fills_per_server = 0 }",
            "pool.p.kv.cache.fills_per_server: \"fills_per_server\" must be between 1 and 64, got 0",
        ),
        (
            "\"memcached\"",
            "\"memcached\", cache = { memory = \"1MiB\", source_bytes = \"1KiB\" }",
            "pool.p.kv.cache.source_bytes: \"source_bytes\" must be a size from \"64KiB\" to \"64GiB\", got \"1KiB\"; help: for example \"32MiB\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", cache = { memory = \"1MiB\", strict = \"yes\" }",
            "pool.p.kv.cache.strict: \"strict\" must be true or false, got \"yes\"",
        ),
        (
            "\"memcached\"",
            "\"header\", id = 7, cache = { memory = \"1MiB\" }",
            "pool.p.kv.cache: \"cache\" needs protocol = \"memcached\"; help: remove \"cache\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", gather = { timeout = \"30ms\" }",
            "pool.p.kv.gather.timeout: \"timeout\" must be one of 1ms, 2ms, 5ms, 10ms, 20ms, 50ms, 100ms, 200ms, 500ms and 1s, got \"30ms\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", gather = { missing = \"error\" }",
            "pool.p.kv.gather.missing: \"missing\" must be \"silent\" or \"miss\", got \"error\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", gather = true",
            "pool.p.kv.gather: \"gather\" must be a table or false, got true",
        ),
        (
            "\"memcached\"",
            "\"header\", id = 7, gather = {}",
            "pool.p.kv.gather: \"gather\" needs protocol = \"memcached\"; help: remove \"gather\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", failover = {}",
            "pool.p.kv.failover: \"failover\" needs the key \"to\" or \"pool\"; help: write to = \"next\", to = \"nowhere\", or pool = \"NAME\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", failover = { to = \"x\" }",
            "pool.p.kv.failover.to: \"to\" must be \"next\" or \"nowhere\", got \"x\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", failover = { pool = \"x\" }",
            "pool.p.kv.failover.pool: unknown pool \"x\"; help: did you mean \"p\"?",
        ),
        (
            "\"memcached\"",
            "\"memcached\", routes = []",
            "pool.p.kv.routes: \"routes\" must not be empty; help: for example [{ key = \"user:1\", pool = \"NAME\" }]",
        ),
        (
            "\"memcached\"",
            "\"memcached\", routes = [{ pool = \"q\" }]",
            "pool.p.kv.routes[0]: a route needs the key \"key\" or \"prefix\"; help: for example { key = \"user:1\", pool = \"NAME\" } or { prefix = \"user:\", pool = \"NAME\" }",
        ),
        (
            "\"memcached\"",
            "\"memcached\", routes = [{ key = \"\", pool = \"q\" }]",
            "pool.p.kv.routes[0].key: \"key\" must be a string of 1 to 250 bytes, got \"\"; help: for example \"user:1\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", routes = [{ key = \"a\", pool = \"q\" }, { key = \"a\", pool = \"p\" }]",
            "pool.p.kv.routes[1]: an earlier route has the same keys",
        ),
        (
            "\"memcached\"",
            "\"memcached\", routes = [{ key = \"a\", pool = \"x\" }]",
            "pool.p.kv.routes[0].pool: unknown pool \"x\"; help: did you mean \"p\"?",
        ),
    ];
    for (from, to, wanted) in rows {
        let shown: Vec<String> = all(&text(from, to)).iter().map(printed).collect();
        assert_eq!(shown.len(), 1, "{to}: {shown:#?}");
        assert!(shown[0].contains(wanted), "{to}: {wanted:?} not in {shown:#?}");
    }
}

/// A TCP service chooses its server by flow. If the keys are stored on several servers, the service
/// must have the key `tcp`.
#[test]
fn tcp_service_that_scatters_keys_needs_by_flow() {
    let by_flow = ", tcp = \"by-flow\"";
    let two = "{ name = \"b1\", address = \"198.18.0.1\" }, { name = \"b3\", address = \"198.18.0.3\" }";
    let one = "{ name = \"b1\", address = \"198.18.0.1\" }";
    let route = "\"memcached\", routes = [{ prefix = \"a\", pool = \"q\" }]";
    let failover = "\"memcached\", failover = { pool = \"q\" }";
    let more = "{ name = \"b2\", address = \"198.18.0.2\" }, { name = \"b4\", address = \"198.18.0.4\" }";
    let problems = |changes: &[(&str, &str)]| -> Vec<String> {
        let text = changes.iter().fold(text("", ""), |text, (from, to)| {
            assert!(text.contains(from), "no {from:?}");
            text.replacen(from, to, 1)
        });
        all(&text).iter().map(printed).collect()
    };
    let scatters = |pool: &str| {
        format!("a TCP service would scatter the keys of pool \"{pool}\" over several servers; help: ")
    };
    let q = "{ name = \"b2\", address = \"198.18.0.2\" }";
    type Changes<'a> = &'a [(&'a str, &'a str)];
    let rows: [(Changes<'_>, Option<(&str, String)>); 11] = [
        (&[(by_flow, "")], None),
        (&[(one, two)], None),
        (&[("\"memcached\"", route)], None),
        (&[(by_flow, ""), (one, two)], Some(("vip.v.services[1]", scatters("p")))),
        (&[(by_flow, ""), ("\"memcached\"", route)], Some(("vip.v.services[1]", scatters("p")))),
        (&[(by_flow, ""), ("\"memcached\"", failover)], None),
        (&[("\"memcached\"", failover), (q, more)], Some(("vip.v.services[2]", scatters("q")))),
        (&[("\"memcached\"", route), (q, more)], Some(("vip.v.services[2]", scatters("q")))),
        (
            &[("pool = \"q\" }]", "pool = \"q\", tcp = \"by-flow\" }]")],
            Some((
                "vip.v.services[2].tcp",
                "tcp = \"by-flow\" has no effect, because pool \"q\" is not keyed; help: remove \"tcp\""
                    .into(),
            )),
        ),
        (
            &[("\"udp\", pool = \"p\"", "\"udp\", pool = \"p\", tcp = \"by-flow\"")],
            Some(("vip.v.services[0].tcp", "\"tcp\" needs protocol = \"tcp\"; help: remove \"tcp\"".into())),
        ),
        (
            &[("by-flow", "by-key")],
            Some(("vip.v.services[1].tcp", "\"tcp\" must be \"by-flow\", got \"by-key\"".into())),
        ),
    ];
    for (changes, wanted) in rows {
        let shown = problems(changes);
        let (place, message) = wanted.clone().unwrap_or_default();
        let is_wanted = |problem: &String| problem.contains(&format!("{place}: {message}"));
        assert_eq!(shown.len(), usize::from(wanted.is_some()), "{changes:?}: {shown:#?}");
        assert!(shown.iter().all(is_wanted), "{changes:?}: {wanted:?} not in {shown:#?}");
    }
}
