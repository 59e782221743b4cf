//! Tests of the table `kv` of a pool: its values, and the settings that cannot be combined with it.

use super::{all, all_printed, parsed, printed, with_pools};
use std::time::Duration;

use crate::{
    Config, Failover, KvAck, KvCache, KvGather, KvHash, KvKeys, KvMissing, KvPath, KvProtocol, KvReplicas,
    Rejoin,
};
use forwarder::HashPolicy;

const POOLS: &str = "[pool.p]\nbackends = [{ name = \"b1\", address = \"198.18.0.1\" }]\n\
    kv = { protocol = \"memcached\", clients = [\"198.51.100.0/24\"] }\n\
    [pool.q]\nbackends = [{ name = \"b2\", address = \"198.18.0.2\" }]\n\
    [vip.v]\naddresses = [\"203.0.113.1\"]\nservices = [{ ports = [11211], protocol = \"udp\", pool = \"p\" }, \
    { ports = [11211], protocol = \"tcp\", pool = \"p\", tcp = \"by-flow\" }, { ports = [80], protocol = \"tcp\", pool = \"q\" }]\n";

/// Returns [`POOLS`] with one part replaced.
pub(super) fn text(from: &str, to: &str) -> String {
    assert!(POOLS.contains(from), "no {from:?}");
    with_pools(&POOLS.replacen(from, to, 1))
}

fn good(from: &str, to: &str) -> Config {
    let (config, warnings) = parsed(&text(from, to)).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(warnings.to_string(), "");
    config
}

#[test]
fn udp_services_of_a_keyed_pool_choose_by_key_and_no_others() {
    let config = good("", "");
    let services = &config.vips()[0].services;
    let hashes: Vec<HashPolicy> = services.iter().map(|service| service.hash).collect();
    assert_eq!(hashes, [HashPolicy::Key, HashPolicy::FiveTuple, HashPolicy::FiveTuple]);
    let kv = config.pool("p").unwrap().kv.as_ref().unwrap();
    assert_eq!((kv.protocol, kv.max_keys, kv.any_client), (KvProtocol::Memcached, 32, false));
    assert_eq!((&kv.failover, kv.routes.len()), (&Failover::Next, 0));
    assert_eq!(kv.clients.iter().map(ToString::to_string).collect::<Vec<_>>(), ["198.51.100.0/24"]);
}

#[test]
fn what_is_written_arrives() {
    let more = "clients = [\"::/0\"], any_client = true, max_keys = 5, failover = { pool = \"q\" }, \
                routes = [{ key = \"k\", pool = \"q\" }, { prefix = \"k\", pool = \"q\" }]";
    let config = good("clients = [\"198.51.100.0/24\"]", more);
    let kv = config.pool("p").unwrap().kv.as_ref().unwrap();
    assert_eq!((kv.max_keys, kv.any_client), (5, true));
    assert_eq!(kv.failover, Failover::Pool("q".into()));
    let keys: Vec<&KvKeys> = kv.routes.iter().map(|route| &route.keys).collect();
    assert_eq!(keys, [&KvKeys::Key("k".into()), &KvKeys::Prefix("k".into())]);
    let config =
        good("\"memcached\"", "\"offset\", start = 8, length = 250, failover = { to = \"nowhere\" }");
    let kv = config.pool("p").unwrap().kv.as_ref().unwrap();
    let header = good("\"memcached\"", "\"header\", id = 7");
    assert_eq!(header.pool("p").unwrap().kv.as_ref().unwrap().protocol, KvProtocol::Header { id: 7 });
    assert_eq!(kv.protocol, KvProtocol::Offset { start: 8, length: 250 });
    assert_eq!(kv.failover, Failover::Nowhere);
}

#[test]
fn requests_are_gathered_by_default() {
    let gather = |from: &str, to: &str| good(from, to).pool("p").unwrap().kv.as_ref().unwrap().gather;
    let of = |millis, missing| Some(KvGather { timeout: Duration::from_millis(millis), missing });
    let says = |text: &str| gather("\"memcached\"", &format!("\"memcached\", gather = {text}"));
    assert_eq!(gather("", ""), of(20, KvMissing::Silent));
    assert_eq!(says("false"), None);
    assert_eq!(says("{}"), of(20, KvMissing::Silent));
    assert_eq!(says("{ timeout = \"1s\" }"), of(1_000, KvMissing::Silent));
    assert_eq!(says("{ timeout = \"1ms\", missing = \"miss\" }"), of(1, KvMissing::Miss));
    assert_eq!(gather("\"memcached\"", "\"header\", id = 7"), None);
    assert_eq!(gather("\"memcached\"", "\"header\", id = 7, gather = false"), None);
}

#[test]
fn keys_have_several_backends_where_the_file_says_how_many() {
    let two = "{ name = \"b1\", address = \"198.18.0.1\" }, { name = \"b3\", address = \"198.18.0.3\" }";
    let with = |kv: &str, backends: &str| {
        let text = POOLS.replacen("\"memcached\"", kv, 1);
        with_pools(&text.replacen("{ name = \"b1\", address = \"198.18.0.1\" }", backends, 1))
    };
    let replicas = |text: &str| {
        let kv = format!("\"memcached\"{text}");
        let (config, warnings) = parsed(&with(&kv, two)).unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!(warnings.to_string(), "");
        config.pool("p").unwrap().kv.as_ref().unwrap().replicas
    };
    let of = |count, ack| Some(KvReplicas { count, ack });
    assert_eq!((replicas(""), replicas(", replicas = false")), (None, None));
    assert_eq!(replicas(", replicas = {}"), of(2, KvAck::All));
    assert_eq!(replicas(", replicas = { count = 2, ack = \"majority\" }"), of(2, KvAck::Majority));
    assert_eq!(replicas(", replicas = { ack = \"first\" }, hash = \"ketama\""), of(2, KvAck::First));

    let four = "{ name = \"b1\", address = \"198.18.0.1\" }, { name = \"b3\", address = \"198.18.0.3\" }, \
        { name = \"b4\", address = \"198.18.0.4\" }, { name = \"b5\", address = \"198.18.0.5\" }";
    for (kv, backends, wanted) in [
        (
            "\"memcached\", replicas = { count = 1 }",
            two,
            "pool.p.kv.replicas.count: \"count\" must be between 2 and 4, got 1",
        ),
        (
            "\"memcached\", replicas = { count = 5 }",
            four,
            "pool.p.kv.replicas.count: \"count\" must be between 2 and 4, got 5",
        ),
        (
            "\"memcached\", replicas = { ack = \"most\" }",
            two,
            "pool.p.kv.replicas.ack: \"ack\" must be \"all\", \"majority\" or \"first\", got \"most\"",
        ),
        (
            "\"memcached\", replicas = true",
            two,
            "pool.p.kv.replicas: \"replicas\" must be a table or false, got true",
        ),
        (
            "\"memcached\", replicas = { count = 3 }",
            two,
            "pool.p.kv: 3 replicas need 3 backends, but pool \"p\" has 2 backends; help: add backends, or reduce replicas.count",
        ),
        (
            "\"memcached\", replicas = {}, routes = [{ key = \"a\", pool = \"q\" }]",
            two,
            "pool.p.kv: 2 replicas need 2 backends, but pool \"q\" has 1 backend; help: add backends, or reduce replicas.count",
        ),
        (
            "\"memcached\", replicas = {}, cache = { memory = \"1MiB\" }",
            two,
            "pool.p.kv.replicas: replicas cannot be combined with cache; help: remove one of them; cached values come from one backend",
        ),
        (
            "\"memcached\", replicas = {}, gather = false",
            two,
            "pool.p.kv.replicas: replicas cannot be combined with gather = false; help: writes to several replicas use the timeout of gather",
        ),
        (
            "\"memcached\", replicas = {}, failover = { to = \"nowhere\" }",
            two,
            "pool.p.kv.replicas: replicas cannot be combined with this failover; help: use failover = { to = \"next\" }; the next backend of the hash replaces a replica that is down",
        ),
        (
            "\"header\", id = 7, replicas = {}",
            two,
            "pool.p.kv.replicas: \"replicas\" needs protocol = \"memcached\"; help: remove \"replicas\"",
        ),
    ] {
        let shown: Vec<String> = all(&with(kv, backends)).iter().map(printed).collect();
        assert_eq!(shown.len(), 1, "{kv}: {shown:#?}");
        assert!(shown[0].contains(wanted), "{kv}: {wanted:?} not in {shown:#?}");
    }
    let through = with("\"memcached\", replicas = {}, path = \"proxied\"", two);
    let through = through.replacen("[pool.p]\n", "[pool.p]\nencapsulation = \"l2\"\n", 1);
    let shown = all_printed(&parsed(&through).unwrap_err());
    assert!(shown.contains("pool.p.kv.replicas: replicas cannot be combined with path = \"proxied\"; help: use path = \"direct\""), "{shown}");
}

#[test]
fn failover_values_live_ten_seconds_by_default() {
    let of = |to: &str| good("\"memcached\"", to).pool("p").unwrap().kv.as_ref().unwrap().failover_ttl;
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(of("\"memcached\""), seconds(10));
    assert_eq!(of("\"memcached\", failover = { pool = \"q\" }"), seconds(10));
    assert_eq!(of("\"memcached\", failover = { to = \"next\", ttl = \"720h\" }"), seconds(2_592_000));
    assert_eq!(of("\"memcached\", failover = { to = \"next\", ttl = \"0s\" }"), None);
    assert_eq!(of("\"memcached\", failover = { to = \"nowhere\" }"), None);
    assert_eq!(of("\"header\", id = 7"), None);
}

const CHECK: &str = "[check.c]\nmemcached = { transport = \"udp\" }\nvia = \"vip\"\n";

#[test]
fn requests_pass_both_ways_where_backends_need_no_vip() {
    let parse = |kv: &str, vip: &str, more: &str| {
        let pools = POOLS.replacen("[pool.p]\n", &format!("[pool.p]\nencapsulation = \"l2\"\n{more}"), 1);
        parsed(&with_pools(
            &(pools.replacen("\"memcached\"", kv, 1).replace("\"203.0.113.1\"", vip)
                + if more.is_empty() { "" } else { CHECK }),
        ))
    };
    let path = |kv: &str| {
        let (config, warnings) =
            parse(kv, "\"203.0.113.1\"", "").unwrap_or_else(|problems| panic!("{problems}"));
        assert_eq!(warnings.to_string(), "");
        config.pool("p").unwrap().kv.as_ref().unwrap().path
    };
    let of = |millis| KvPath::Proxied { answer_timeout: Duration::from_millis(millis) };
    assert_eq!(path("\"memcached\""), KvPath::Direct);
    assert_eq!(path("\"memcached\", path = \"direct\""), KvPath::Direct);
    assert_eq!(path("\"memcached\", path = \"proxied\""), of(200));
    assert_eq!(path("\"memcached\", path = \"proxied\", answer_timeout = \"50ms\""), of(50));

    let via_vip = "checks = [\"c\"]\n";
    for (kv, vip, more, wanted) in [
        (
            "path = \"proxied\", answer_timeout = \"30ms\"",
            "\"203.0.113.1\"",
            "",
            "pool.p.kv.answer_timeout: \"answer_timeout\" must be one of 1ms, 2ms, 5ms, 10ms, 20ms, 50ms, 100ms, 200ms, 500ms and 1s, got \"30ms\"",
        ),
        (
            "path = \"proxied\"",
            "\"203.0.113.1\", \"2001:db8:f::1\"",
            "",
            "vip.v.addresses[1]: VIP address 2001:db8:f::1 and backend address 198.18.0.1 have different families, which path = \"proxied\" does not support; help: use IPv4 addresses for the VIP, or backends with addresses of the VIP's family",
        ),
        (
            "path = \"proxied\"",
            "\"203.0.113.1\"",
            via_vip,
            "pool.p: path = \"proxied\" does not support check \"c\", which probes through the VIP; help: use checks with via = \"backend\"; backends need not have the VIP",
        ),
    ] {
        let problems = all_printed(&parse(&format!("\"memcached\", {kv}"), vip, more).unwrap_err());
        assert!(problems.contains(wanted) && problems.lines().count() == 1, "{problems}");
    }
}

#[test]
fn cache_has_the_configured_memory() {
    let cache = |text: &str| {
        let config = good("\"memcached\"", &format!("\"memcached\"{text}"));
        config.pool("p").unwrap().kv.as_ref().unwrap().cache
    };
    assert_eq!((cache(""), cache(", cache = false")), (None, None));
    let default = KvCache {
        memory: 64 << 20,
        lease: Duration::from_millis(10),
        fills_per_server: 16,
        source_bytes: 32 << 20,
        strict: false,
    };
    assert_eq!(cache(", cache = { memory = \"64MiB\" }"), Some(default));
    assert_eq!(cache(", cache = { memory = \"64MiB\", strict = false }"), Some(default));
    let strict = KvCache { strict: true, ..default };
    assert_eq!(cache(", cache = { memory = \"64MiB\", strict = true }"), Some(strict));
    let all = "memory = \"1GiB\", lease = \"1s\", fills_per_server = 64, source_bytes = \"64KiB\"";
    let lease = Duration::from_secs(1);
    let wanted =
        KvCache { memory: 1 << 30, lease, fills_per_server: 64, source_bytes: 64 << 10, strict: false };
    assert_eq!(cache(&format!(", cache = {{ {all} }}")), Some(wanted));
}

#[test]
fn copies_are_strict_where_one_machine_has_the_vip() {
    let kv = "\"memcached\", cache = { memory = \"1MiB\", strict = true }";
    let strict = POOLS.replacen("\"memcached\"", kv, 1);
    let second =
        |shard: &str| format!("[machine.lb2]\n{shard}addresses = [\"192.0.2.3\"]\ninterfaces = [\"eth0\"]\n");
    let wrong = |machine: &str, pools: &str| -> Vec<String> {
        all(&with_pools(&format!("{machine}{pools}"))).iter().map(printed).collect()
    };
    assert_eq!(wrong("", &strict), Vec::<String>::new());
    let problems = wrong(&second(""), &strict);
    let wanted = "pool.p.kv.cache.strict: strict = true needs a VIP with one machine, but VIP \"v\" has 2 machines; help: give the VIP a shard with one machine; other machines do not see the replies to writes";
    assert!(problems.len() == 1 && problems[0].contains(wanted), "{problems:#?}");
    assert_eq!(wrong(&second(""), &strict.replace("strict = true", "strict = false")), Vec::<String>::new());
    // The other machine is in another shard, so only one machine serves the VIP.
    let shard = "shard = \"b\"\n";
    let of_one = strict.replacen("[vip.v]\n", &format!("[vip.v]\n{shard}"), 1);
    assert_eq!(wrong(&second(shard), &of_one), Vec::<String>::new());
    // A pool that no UDP service uses has no cache.
    let udp = "{ ports = [11211], protocol = \"udp\", pool = \"p\" }, ";
    assert!(strict.contains(udp));
    let without = strict.replacen(udp, "", 1);
    assert!(!wrong(&second(""), &without).iter().any(|problem| problem.contains("strict")));
}

#[test]
fn memcached_servers_are_flushed_by_default() {
    let rejoin = |from: &str, to: &str| good(from, to).pool("p").unwrap().kv.as_ref().unwrap().rejoin;
    assert_eq!(rejoin("", ""), Rejoin::Flush);
    assert_eq!(rejoin("\"memcached\"", "\"memcached\", rejoin = \"flush\""), Rejoin::Flush);
    assert_eq!(rejoin("\"memcached\"", "\"memcached\", rejoin = \"serve\""), Rejoin::Serve);
    for other in ["\"header\", id = 7", "\"offset\", length = 9"] {
        assert_eq!(rejoin("\"memcached\"", other), Rejoin::Serve);
        assert_eq!(rejoin("\"memcached\"", &format!("{other}, rejoin = \"serve\"")), Rejoin::Serve);
        let flush = format!("{other}, rejoin = \"flush\"");
        let shown = all(&text("\"memcached\"", &flush));
        assert_eq!(shown.len(), 1, "{shown:#?}");
        let wanted = "pool.p.kv.rejoin: rejoin = \"flush\" needs protocol = \"memcached\"; help: use rejoin = \"serve\"; other protocols cannot empty a server";
        assert!(printed(&shown[0]).contains(wanted), "{shown:#?}");
    }
}

#[test]
fn a_server_is_emptied_at_few_ports() {
    let udp = "ports = [11211], protocol = \"udp\"";
    let ports = |ports: &str| text(udp, &format!("ports = {ports}, protocol = \"udp\""));
    assert!(all(&ports("[11211, \"12000-12014\"]")).is_empty(), "16");
    for (many, got) in [("[11211, \"12000-12015\"]", "11211,12000-12015"), ("\"any\"", "any")] {
        let shown = all(&ports(many));
        assert_eq!(shown.len(), 1, "{shown:#?}");
        let wanted = format!(
            "vip.v.services[0]: pool \"p\" with rejoin = \"flush\" can have at most 16 ports, got {got}; help: each server is emptied once \
             per port; list fewer ports, or set rejoin = \"serve\""
        );
        assert!(printed(&shown[0]).contains(&wanted), "{shown:#?}");
        let serve = ports(many).replace("\"memcached\"", "\"memcached\", rejoin = \"serve\"");
        assert!(all(&serve).is_empty());
    }
}

#[test]
fn what_would_move_keys_unseen_is_refused() {
    let routed = "\"memcached\", routes = [{ prefix = \"a\", pool = \"q\" }]";
    let remote = "[remote.r]\nsources = [\"198.51.100.96/28\"]\naddresses = { v = [\"203.0.113.74\"] }\n";
    let (udp, hashed) = ("\"udp\", pool = \"p\"", "\"udp\", pool = \"p\", hash = \"source\"");
    let rows = [
        (
            text("[pool.q]", "slow_start = \"5s\"\n[pool.q]"),
            "pool.p.slow_start: a keyed pool cannot have \"slow_start\"; help: this setting would silently move keys to other backends",
        ),
        (
            text("[pool.q]", "fallback = { pool = \"q\" }\n[pool.q]"),
            "pool.p.fallback.pool: a keyed pool cannot have \"fallback\"; help: this setting would silently move keys to other backends",
        ),
        (
            text("\"memcached\"", routed).replace("[vip.v]", "slow_start = \"5s\"\n[vip.v]"),
            "pool.q.slow_start: a keyed pool cannot have \"slow_start\"; help: this setting would silently move keys to other backends",
        ),
        (
            text(udp, hashed),
            "vip.v.services[0].hash: a service of keyed pool \"p\" cannot have \"hash\"; help: the key chooses the backend",
        ),
        (
            text("[vip.v]\n", "[vip.v]\nremotes = [\"r\"]\n") + remote,
            "vip.v.remotes[0]: a VIP with keyed pool \"p\" cannot have \"remotes\"; help: remotes would silently move keys to other clusters",
        ),
    ];
    for (text, wanted) in rows {
        let shown: Vec<String> = all(&text).iter().map(printed).collect();
        assert!(shown.iter().any(|problem| problem.contains(wanted)), "{wanted:?} not in {shown:#?}\n{text}");
    }
}

#[test]
fn a_keyed_pool_inside_others_is_warned_of() {
    let text = with_pools(&POOLS.replace("[pool.q]\nbackends", "[pool.q]\npools = [{ pool = \"r\" }]\n[pool.r]\nkv = { protocol = \"header\", id = 7, clients = [\"192.0.2.9\"] }\nbackends"));
    let shown: Vec<String> = all(&text).iter().map(printed).collect();
    assert_eq!(shown.len(), 1, "{shown:#?}");
    assert!(shown[0].contains("warning: pool.r.kv: kv has no effect, because pool \"r\" is only used inside other pools; help: set kv in a pool that a VIP names, such as \"q\""), "{shown:#?}");
}

/// A keyed pool with two backends on a ring. The second backend has a `ring_name`, and a route of
/// the pool leads to a second pool.
const RING: &str = "[pool.p]\nbackends = [{ name = \"b1\", address = \"198.18.0.1\" }, \
    { name = \"b2\", address = \"198.18.0.2\", ring_name = \"cache2\" }]\n\
    kv = { protocol = \"memcached\", clients = [\"198.51.100.0/24\"], hash = \"ketama\", routes = [{ prefix = \"a\", pool = \"q\" }] }\n\
    [pool.q]\nbackends = [{ name = \"b3\", address = \"2001:db8::3\", ring_name = \"\" }]\n\
    [vip.v]\naddresses = [\"203.0.113.1\"]\nservices = [{ ports = [11211], protocol = \"udp\", pool = \"p\" }, \
    { ports = [80], protocol = \"tcp\", pool = \"q\" }]\n";

/// Returns the ring names in both pools.
fn ring_names(text: &str) -> [Vec<Option<String>>; 2] {
    let (config, _) = parsed(text).unwrap_or_else(|problems| panic!("{problems}"));
    ["p", "q"].map(|pool| {
        let members = &config.pool(pool).unwrap().members;
        members.iter().map(|member| member.ring_name.as_deref().map(str::to_owned)).collect()
    })
}

#[test]
fn ring_names_default_to_address_and_port() {
    let text = with_pools(&RING.replace(", ring_name = \"\"", ""));
    let named = |names: &[&str]| names.iter().map(|name| Some((*name).to_owned())).collect::<Vec<_>>();
    assert_eq!(ring_names(&text), [named(&["198.18.0.1", "cache2"]), named(&["2001:db8::3"])]);
    let other = text.replace("[11211]", "[11212]").replace("ketama", "fnv1a_64");
    assert_eq!(ring_names(&other), [named(&["198.18.0.1:11212", "cache2"]), named(&["2001:db8::3:11212"])]);
    let (config, _) = parsed(&other).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(config.pool("p").unwrap().kv.as_ref().unwrap().hash, KvHash::Fnv1a64);
    assert_eq!(ring_names(&text.replace("ketama", "maglev")), [vec![None; 2], vec![None]]);
    // The port does not matter if every backend has a `ring_name`.
    let several = text.replace("[11211]", "[\"11211-11212\"]");
    let whole = several
        .replace("0.1\"", "0.1\", ring_name = \"cache1\"")
        .replace("::3\"", "::3\", ring_name = \"c\"");
    assert_eq!(ring_names(&whole), [named(&["cache1", "cache2"]), named(&["c"])]);
}

#[test]
fn what_is_wrong_with_a_ring_is_named() {
    let plain = with_pools(&RING.replace(", ring_name = \"\"", ""));
    for (text, wanted) in [
        (
            with_pools(RING),
            "pool.q.backends[0].ring_name: \"ring_name\" must be the name of the server in the configuration of the clients, 1 to 260 bytes, got \"\"; help: for example \"198.18.1.1:11212\"",
        ),
        (
            plain.replace("\"cache2\"", "\"198.18.0.1\""),
            "pool.p: backends \"b1\" and \"b2\" have the ring name \"198.18.0.1\"; help: set a different ring_name for each backend of a pool",
        ),
        (
            plain.replace("[11211]", "[11211, 11212]"),
            "pool.p: backend \"b1\" needs a \"ring_name\"; help: services at several ports use this ring; add ring_name to each backend, or use one port",
        ),
        (
            plain.replace("[11211]", "[\"11211-11212\"]"),
            "pool.q: backend \"b3\" needs a \"ring_name\"; help: services at several ports use this ring; add ring_name to each backend, or use one port",
        ),
    ] {
        let shown: Vec<String> = all(&text).iter().map(printed).collect();
        assert!(shown.iter().any(|problem| problem.contains(wanted)), "{wanted:?} not in {shown:#?}\n{text}");
    }
}
