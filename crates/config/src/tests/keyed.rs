//! `kv` of pools: what it says, and what a keyed pool may not have beside it.

use super::{all, parsed, with_pools};
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
    { ports = [11211], protocol = \"tcp\", pool = \"p\" }, { ports = [80], protocol = \"tcp\", pool = \"q\" }]\n";

/// The file with a part replaced.
fn text(from: &str, to: &str) -> String {
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
fn requests_are_gathered_unless_the_file_says_no_or_no_reply_could_be_made() {
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
            "pool.p.kv.replicas.count: found 1, allowed an integer from 2 to 4",
        ),
        (
            "\"memcached\", replicas = { count = 5 }",
            four,
            "pool.p.kv.replicas.count: found 5, allowed an integer from 2 to 4",
        ),
        (
            "\"memcached\", replicas = { ack = \"most\" }",
            two,
            "pool.p.kv.replicas.ack: found \"most\", allowed \"all\", \"majority\", \"first\"",
        ),
        (
            "\"memcached\", replicas = true",
            two,
            "pool.p.kv.replicas: found true, allowed a table, or false for none",
        ),
        (
            "\"memcached\", replicas = { count = 3 }",
            two,
            "pool.p.kv: found 3 replicas beside 2 backends of the pool \"p\", allowed at least as many backends as replicas",
        ),
        (
            "\"memcached\", replicas = {}, routes = [{ key = \"a\", pool = \"q\" }]",
            two,
            "pool.p.kv: found 2 replicas beside 1 backend of the pool \"q\", allowed at least as many backends as replicas",
        ),
        (
            "\"memcached\", replicas = {}, cache = { memory = \"1MiB\" }",
            two,
            "pool.p.kv.replicas: found replicas beside cache, allowed one of them",
        ),
        (
            "\"memcached\", replicas = {}, gather = false",
            two,
            "pool.p.kv.replicas: found replicas beside gather = false, allowed gather, whose timeout is that of writes too",
        ),
        (
            "\"memcached\", replicas = {}, failover = { to = \"nowhere\" }",
            two,
            "pool.p.kv.replicas: found replicas beside another failover, allowed failover = { to = \"next\" }",
        ),
        (
            "\"header\", id = 7, replicas = {}",
            two,
            "pool.p.kv.replicas: found an empty table, allowed nothing here: it is for protocol = \"memcached\"",
        ),
    ] {
        let shown: Vec<String> = all(&with(kv, backends)).iter().map(ToString::to_string).collect();
        assert_eq!(shown.len(), 1, "{kv}: {shown:#?}");
        assert!(shown[0].contains(wanted), "{kv}: {wanted:?} not in {shown:#?}");
    }
    let through = with("\"memcached\", replicas = {}, path = \"through\"", two);
    let through = through.replacen("[pool.p]\n", "[pool.p]\nencapsulation = \"l2\"\n", 1);
    let shown = parsed(&through).unwrap_err().to_string();
    assert!(shown.contains("replicas beside path = \"through\", allowed path = \"direct\""), "{shown}");
}

#[test]
fn what_is_stored_away_lives_ten_seconds_unless_the_file_says_otherwise() {
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
    let of = |millis| KvPath::Through { answer_timeout: Duration::from_millis(millis) };
    assert_eq!(path("\"memcached\""), KvPath::Direct);
    assert_eq!(path("\"memcached\", path = \"direct\""), KvPath::Direct);
    assert_eq!(path("\"memcached\", path = \"through\""), of(200));
    assert_eq!(path("\"memcached\", path = \"through\", answer_timeout = \"50ms\""), of(50));

    let via_vip = "checks = [\"c\"]\n";
    for (kv, vip, more, wanted) in [
        (
            "path = \"through\", answer_timeout = \"30ms\"",
            "\"203.0.113.1\"",
            "",
            "pool.p.kv.answer_timeout: found \"30ms\", allowed 1ms, 2ms, 5ms, 10ms, 20ms, 50ms, 100ms, 200ms, 500ms or 1s",
        ),
        (
            "path = \"through\"",
            "\"203.0.113.1\", \"2001:db8:f::1\"",
            "",
            "found 2001:db8:f::1 beside path = \"through\" to backend 198.18.0.1, allowed addresses of IPv4 alone, the family of the pool's backends",
        ),
        (
            "path = \"through\"",
            "\"203.0.113.1\"",
            via_vip,
            "pool.p: found \"c\", a check via a VIP, beside path = \"through\", allowed checks with via = \"backend\": backends need not have the VIP",
        ),
    ] {
        let problems = parse(&format!("\"memcached\", {kv}"), vip, more).unwrap_err().to_string();
        assert!(problems.contains(wanted) && problems.lines().count() == 1, "{problems}");
    }
}

#[test]
fn reads_are_answered_from_copies_where_the_file_says_how_much_memory() {
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
        all(&with_pools(&format!("{machine}{pools}"))).iter().map(ToString::to_string).collect()
    };
    assert_eq!(wrong("", &strict), Vec::<String>::new());
    let problems = wrong(&second(""), &strict);
    let wanted = "pool.p.kv.cache.strict: found strict = true beside 2 machines that have VIP \"v\", allowed one machine, \
                  alone in the VIP's shard: no other one hears of an answer that passes it";
    assert!(problems.len() == 1 && problems[0].contains(wanted), "{problems:#?}");
    assert_eq!(wrong(&second(""), &strict.replace("strict = true", "strict = false")), Vec::<String>::new());
    // Beside a machine of another shard it is alone.
    let shard = "shard = \"b\"\n";
    let of_one = strict.replacen("[vip.v]\n", &format!("[vip.v]\n{shard}"), 1);
    assert_eq!(wrong(&second(shard), &of_one), Vec::<String>::new());
    // Where no service reads keys there are no copies.
    let udp = "{ ports = [11211], protocol = \"udp\", pool = \"p\" }, ";
    assert!(strict.contains(udp));
    let without = strict.replacen(udp, "", 1);
    assert!(!wrong(&second(""), &without).iter().any(|problem| problem.contains("strict")));
}

#[test]
fn what_is_wrong_is_named() {
    let clients = "clients = [\"198.51.100.0/24\"]";
    let rows = [
        (
            "\"memcached\"",
            "\"redis\"",
            "pool.p.kv.protocol: found \"redis\", allowed \"memcached\", \"header\", \"offset\"",
        ),
        ("protocol = \"memcached\", ", "", "pool.p.kv.protocol: found nothing, allowed \"memcached\""),
        (
            ", clients = [\"198.51.100.0/24\"]",
            "",
            "pool.p.kv.clients: found nothing, allowed a list of 1 to 256",
        ),
        (clients, "clients = []", "pool.p.kv.clients: found an empty list"),
        (
            clients,
            "clients = [\"198.51.100.9\", \"0.0.0.0/0\"]",
            "pool.p.kv.clients[1]: found 0.0.0.0/0, allowed longer prefixes, or any_client",
        ),
        (
            "\"memcached\"",
            "\"memcached\", start = 3",
            "pool.p.kv.start: found 3, allowed nothing here: it is for protocol = \"offset\"",
        ),
        ("\"memcached\"", "\"offset\"", "pool.p.kv.length: found nothing, allowed the bytes of a key"),
        (
            "\"memcached\"",
            "\"offset\", length = 251",
            "pool.p.kv.length: found 251, allowed an integer from 1 to 250",
        ),
        (
            "\"memcached\"",
            "\"memcached\", max_keys = 33",
            "pool.p.kv.max_keys: found 33, allowed an integer from 1 to 32",
        ),
        (
            "\"memcached\"",
            "\"memcached\", hash = \"crc32\"",
            "pool.p.kv.hash: found \"crc32\", allowed \"maglev\", \"ketama\", \"fnv1a_64\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", path = \"around\"",
            "pool.p.kv.path: found \"around\", allowed \"direct\", \"through\"",
        ),
        (
            "\"memcached\"",
            "\"header\", id = 7, path = \"through\"",
            "pool.p.kv.path: found \"through\", allowed \"direct\": answers of other protocols than memcached have no id to know them by",
        ),
        (
            "\"memcached\"",
            "\"memcached\", answer_timeout = \"200ms\"",
            "pool.p.kv.answer_timeout: found \"200ms\", allowed nothing here: it is for path = \"through\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", path = \"through\"",
            "pool.p: found backend \"b1\" by gre beside path = \"through\", allowed encapsulation = \"l2\": it is asked at its own address, by its route",
        ),
        (
            "\"memcached\"",
            "\"memcached\", failover = { to = \"next\", ttl = \"1500ms\" }",
            "pool.p.kv.failover.ttl: found \"1500ms\", allowed whole seconds",
        ),
        (
            "\"memcached\"",
            "\"memcached\", failover = { to = \"nowhere\", ttl = \"10s\" }",
            "pool.p.kv.failover.ttl: found \"10s\", allowed nothing here: it is for protocol = \"memcached\" whose keys go elsewhere",
        ),
        (
            "\"memcached\"",
            "\"header\", id = 7, failover = { to = \"next\", ttl = \"10s\" }",
            "pool.p.kv.failover.ttl: found \"10s\", allowed nothing here: it is for protocol = \"memcached\" whose keys go elsewhere",
        ),
        (
            "\"memcached\"",
            "\"memcached\", cache = {}",
            "pool.p.kv.cache.memory: found nothing, allowed a whole number with KiB, MiB or GiB",
        ),
        (
            "\"memcached\"",
            "\"memcached\", cache = true",
            "pool.p.kv.cache: found true, allowed a table, or false for none",
        ),
        (
            "\"memcached\"",
            "\"memcached\", cache = { memory = \"64MB\" }",
            "pool.p.kv.cache.memory: found \"64MB\", allowed a whole number with KiB, MiB or GiB",
        ),
        (
            "\"memcached\"",
            "\"memcached\", cache = { memory = \"1KiB\" }",
            "pool.p.kv.cache.memory: found \"1KiB\", allowed a whole number with KiB, MiB or GiB, from \"1MiB\" to \"64GiB\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", cache = { memory = \"1MiB\", lease = \"2s\" }",
            "pool.p.kv.cache.lease: found \"2s\", allowed a whole number with us, ms, s, m or h, from \"1ms\" to \"1s\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", cache = { memory = \"1MiB\", fills_per_server = 0 }",
            "pool.p.kv.cache.fills_per_server: found 0, allowed an integer from 1 to 64",
        ),
        (
            "\"memcached\"",
            "\"memcached\", cache = { memory = \"1MiB\", source_bytes = \"1KiB\" }",
            "pool.p.kv.cache.source_bytes: found \"1KiB\", allowed a whole number",
        ),
        (
            "\"memcached\"",
            "\"memcached\", cache = { memory = \"1MiB\", strict = \"yes\" }",
            "pool.p.kv.cache.strict: found \"yes\", allowed true or false",
        ),
        (
            "\"memcached\"",
            "\"header\", id = 7, cache = { memory = \"1MiB\" }",
            "allowed nothing here: it is for protocol = \"memcached\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", gather = { timeout = \"30ms\" }",
            "pool.p.kv.gather.timeout: found \"30ms\", allowed 1ms, 2ms, 5ms, 10ms, 20ms, 50ms, 100ms, 200ms, 500ms or 1s",
        ),
        (
            "\"memcached\"",
            "\"memcached\", gather = { missing = \"error\" }",
            "pool.p.kv.gather.missing: found \"error\", allowed \"silent\", \"miss\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", gather = true",
            "pool.p.kv.gather: found true, allowed a table, or false for none",
        ),
        (
            "\"memcached\"",
            "\"header\", id = 7, gather = {}",
            "pool.p.kv.gather: found an empty table, allowed nothing here: it is for protocol = \"memcached\"",
        ),
        ("\"memcached\"", "\"memcached\", failover = {}", "pool.p.kv.failover: found not one of to and pool"),
        (
            "\"memcached\"",
            "\"memcached\", failover = { to = \"x\" }",
            "pool.p.kv.failover.to: found \"x\", allowed \"next\", \"nowhere\"",
        ),
        (
            "\"memcached\"",
            "\"memcached\", failover = { pool = \"x\" }",
            "pool.p.kv.failover.pool: found \"x\", allowed a section [pool.NAME]",
        ),
        ("\"memcached\"", "\"memcached\", routes = []", "pool.p.kv.routes: found an empty list"),
        (
            "\"memcached\"",
            "\"memcached\", routes = [{ pool = \"q\" }]",
            "pool.p.kv.routes[0]: found not one of key and prefix",
        ),
        (
            "\"memcached\"",
            "\"memcached\", routes = [{ key = \"\", pool = \"q\" }]",
            "pool.p.kv.routes[0].key: found \"\", allowed a text of 1 to 250 bytes",
        ),
        (
            "\"memcached\"",
            "\"memcached\", routes = [{ key = \"a\", pool = \"q\" }, { key = \"a\", pool = \"p\" }]",
            "pool.p.kv.routes[1]: found the same keys a second time",
        ),
        (
            "\"memcached\"",
            "\"memcached\", routes = [{ key = \"a\", pool = \"x\" }]",
            "pool.p.kv.routes[0].pool: found \"x\", allowed a section [pool.NAME]",
        ),
    ];
    for (from, to, wanted) in rows {
        let shown: Vec<String> = all(&text(from, to)).iter().map(ToString::to_string).collect();
        assert_eq!(shown.len(), 1, "{to}: {shown:#?}");
        assert!(shown[0].contains(wanted), "{to}: {wanted:?} not in {shown:#?}");
    }
}

#[test]
fn a_server_is_emptied_where_a_command_does_it_and_the_file_does_not_say_otherwise() {
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
        let wanted = "pool.p.kv.rejoin: found \"flush\", allowed \"serve\": only memcached can be emptied";
        assert!(shown[0].to_string().ends_with(wanted), "{shown:#?}");
    }
}

#[test]
fn a_server_is_emptied_at_few_ports() {
    let udp = "ports = [11211], protocol = \"udp\"";
    let ports = |ports: &str| text(udp, &format!("ports = {ports}, protocol = \"udp\""));
    assert!(all(&ports("[11211, \"12000-12014\"]")).is_empty(), "16");
    for many in ["[11211, \"12000-12015\"]", "\"any\""] {
        let shown = all(&ports(many));
        assert_eq!(shown.len(), 1, "{shown:#?}");
        assert!(shown[0].to_string().contains("vip.v.services[0]: found ports "), "{shown:#?}");
        assert!(shown[0].allowed.ends_with("or rejoin = \"serve\""), "{shown:#?}");
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
        (text("[pool.q]", "slow_start = \"5s\"\n[pool.q]"), "pool.p.slow_start: found a slow_start of"),
        (
            text("[pool.q]", "fallback = { pool = \"q\" }\n[pool.q]"),
            "pool.p.fallback.pool: found a fallback of",
        ),
        (
            text("\"memcached\"", routed).replace("[vip.v]", "slow_start = \"5s\"\n[vip.v]"),
            "pool.q.slow_start: found a slow_start of",
        ),
        (text(udp, hashed), "vip.v.services[0].hash: found a hash beside the keyed pool \"p\""),
        (
            text("[vip.v]\n", "[vip.v]\nremotes = [\"r\"]\n") + remote,
            "vip.v.remotes[0]: found remotes beside the keyed pool \"p\"",
        ),
    ];
    for (text, wanted) in rows {
        let shown: Vec<String> = all(&text).iter().map(ToString::to_string).collect();
        assert!(shown.iter().any(|problem| problem.contains(wanted)), "{wanted:?} not in {shown:#?}\n{text}");
    }
}

#[test]
fn a_keyed_pool_inside_others_is_warned_of() {
    let text = with_pools(&POOLS.replace("[pool.q]\nbackends", "[pool.q]\npools = [{ pool = \"r\" }]\n[pool.r]\nkv = { protocol = \"header\", id = 7, clients = [\"192.0.2.9\"] }\nbackends"));
    let shown: Vec<String> = all(&text).iter().map(ToString::to_string).collect();
    assert_eq!(shown.len(), 1, "{shown:#?}");
    assert!(shown[0].contains("pool.r.kv: found a kv of a pool that is only inside others"), "{shown:#?}");
}

/// Two backends on a ring, the second with a name of its own, and a pool that has some of their keys.
const RING: &str = "[pool.p]\nbackends = [{ name = \"b1\", address = \"198.18.0.1\" }, \
    { name = \"b2\", address = \"198.18.0.2\", ring_name = \"cache2\" }]\n\
    kv = { protocol = \"memcached\", clients = [\"198.51.100.0/24\"], hash = \"ketama\", routes = [{ prefix = \"a\", pool = \"q\" }] }\n\
    [pool.q]\nbackends = [{ name = \"b3\", address = \"2001:db8::3\", ring_name = \"\" }]\n\
    [vip.v]\naddresses = [\"203.0.113.1\"]\nservices = [{ ports = [11211], protocol = \"udp\", pool = \"p\" }, \
    { ports = [80], protocol = \"tcp\", pool = \"q\" }]\n";

/// The names on the rings of both pools.
fn ring_names(text: &str) -> [Vec<Option<String>>; 2] {
    let (config, _) = parsed(text).unwrap_or_else(|problems| panic!("{problems}"));
    ["p", "q"].map(|pool| {
        let members = &config.pool(pool).unwrap().members;
        members.iter().map(|member| member.ring_name.as_deref().map(str::to_owned)).collect()
    })
}

#[test]
fn names_on_a_ring_are_the_files_or_address_and_port_as_clients_write_them() {
    let text = with_pools(&RING.replace(", ring_name = \"\"", ""));
    let named = |names: &[&str]| names.iter().map(|name| Some((*name).to_owned())).collect::<Vec<_>>();
    assert_eq!(ring_names(&text), [named(&["198.18.0.1", "cache2"]), named(&["2001:db8::3"])]);
    let other = text.replace("[11211]", "[11212]").replace("ketama", "fnv1a_64");
    assert_eq!(ring_names(&other), [named(&["198.18.0.1:11212", "cache2"]), named(&["2001:db8::3:11212"])]);
    let (config, _) = parsed(&other).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(config.pool("p").unwrap().kv.as_ref().unwrap().hash, KvHash::Fnv1a64);
    assert_eq!(ring_names(&text.replace("ketama", "maglev")), [vec![None; 2], vec![None]]);
    // All have names: ports are of no matter.
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
        (with_pools(RING), "pool.q.backends[0].ring_name: found \"\", allowed the server's name"),
        (
            plain.replace("\"cache2\"", "\"198.18.0.1\""),
            "pool.p: found backends \"b1\" and \"b2\" as \"198.18.0.1\" on one ring, allowed each ring_name once",
        ),
        (
            plain.replace("[11211]", "[11211, 11212]"),
            "pool.p: found no ring_name of backend \"b1\" beside services at several ports",
        ),
        (
            plain.replace("[11211]", "[\"11211-11212\"]"),
            "pool.q: found no ring_name of backend \"b3\" beside services at several ports",
        ),
    ] {
        let shown: Vec<String> = all(&text).iter().map(ToString::to_string).collect();
        assert!(shown.iter().any(|problem| problem.contains(wanted)), "{wanted:?} not in {shown:#?}\n{text}");
    }
}
