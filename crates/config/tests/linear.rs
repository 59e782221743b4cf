//! Checks that reading a configuration takes linear time. Clients can send configurations of 16 MiB
//! with `config put`, and no reload runs while one is read.
//!
//! Each case repeats the parts that one check between sections compares with each other.

use std::fmt::Write as _;
use std::path::Path;

// Promise: linear-time
#[test]
fn configurations_are_read_in_linear_time() {
    steps::check(
        "configurations_are_read_in_linear_time",
        &CASES.map(|(name, input)| (name, input, read as _)),
    );
}

fn read(bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).expect("the inputs are UTF-8");
    let key = "000102030405060708090a0b0c0d0e0f";
    let _ = config::parse(text, Path::new("a.toml"), &|_| Ok(key.to_owned()));
}

type Family = (&'static str, fn(usize) -> Vec<u8>);

const CASES: [Family; 28] = [
    ("unknown keys", |n| with(&[(n, &|i| format!("key{i} = 1\n"))])),
    ("unknown pools", |n| vips(n, &|i| format!("q{i}"), "")),
    ("problems on one line", |n| {
        with(&[(1, &|_| format!("[pool.q]\nbackends = [{}]\n", "1, ".repeat(4 * n)))])
    }),
    ("interfaces and VLANs", |n| {
        let names: String = list(n, |i| format!("i{i}"));
        let vlan = |i: usize| format!("[machine.m.vlan.v{i}]\npolicy = \"keep\"\n");
        let machine = format!("[machine.m]\naddresses = [\"192.0.2.7\"]\ninterfaces = {names}\n");
        with(&[(1, &|_| machine.clone()), (n, &vlan)])
    }),
    ("machines", |n| with(&[(n, &|i| machine(i, ""))])),
    ("shards and VIPs", |n| {
        let group = "[prefix_group.g]\nprefixes = [\"198.51.100.0/24\"]\n";
        let vip =
            |i| format!("[vip.w{i}]\ngroup = \"g\"\nsuffixes = [\"0.0.0.{}/8\"]\nservices = []\n", i % 256);
        with(&[(n, &|i| machine(i, &format!("shard = \"s{i}\"\n"))), (1, &|_| group.into()), (n, &vip)])
    }),
    ("backends of one pool", |n| with(&[(1, &|_| pool("q", n, ""))])),
    ("pools", |n| with(&[(n, &|i| pool(&format!("q{i}"), 1, ""))])),
    ("backends with the same name", |n| {
        with(&[(n, &|i| format!("[pool.q{i}]\nbackends = [{{ name = \"b\", address = \"{}\" }}]\n", v4(i)))])
    }),
    ("references to one large pool", |n| {
        let references: String = (0..n).map(|_| "{ pool = \"q\" }, ").collect();
        with(&[(1, &|_| pool("q", n, "")), (1, &|_| format!("[pool.r]\npools = [{references}]\n"))])
    }),
    ("cycles of pools", |n| {
        let back: String = (0..n).map(|_| "{ pool = \"q0\" }, ").collect();
        let next = |i| format!("[pool.q{i}]\npools = [{{ pool = \"q{}\" }}]\n", i + 1);
        with(&[(n, &next), (1, &|_| format!("[pool.q{n}]\npools = [{back}]\n"))])
    }),
    ("fallbacks", |n| {
        let next = |i| format!("fallback = {{ pool = \"q{}\" }}", i + 1);
        with(&[(n, &|i| format!("[pool.q{i}]\nbackends = []\n{}\n", next(i)))])
    }),
    ("services and backends", |n| {
        let services: String = (1..=n).map(|i| service(i, "tcp", "q")).collect();
        let vip = format!(
            "[vip.w]\naddresses = [\"{}\"]\nservices = [{services}]\nannounce = {{ min_serving = 2 }}\n",
            v4(0)
        );
        with(&[(1, &|_| pool("q", n, "")), (1, &|_| vip.clone())])
    }),
    ("keyed pools", |n| keyed(n, "hash = \"ketama\"\n")),
    ("proxied pools", |n| keyed(n, "path = \"proxied\"\n")),
    ("pools with replicas", |n| keyed(n, "replicas = { count = 2 }\n")),
    ("strict pools", |n| keyed(n, "cache = { strict = true }\n")),
    ("remote addresses", |n| {
        let addresses: String = (0..n).map(|i| format!("w{i} = [\"{}\"]\n", v6(i))).collect();
        let remote = format!("[remote.r]\nsources = [\"198.51.100.1\"]\n[remote.r.addresses]\n{addresses}");
        [vips(n, &|_| "p".into(), "remotes = [\"r\"]\n"), remote.into_bytes()].concat()
    }),
    ("remote sources", |n| {
        let remote = format!("[remote.r]\nsources = {}\n", list(n, |i| format!("2001:db8:1::{i:x}")));
        [vips(n, &|_| "p".into(), ""), remote.into_bytes()].concat()
    }),
    ("remotes of one VIP", |n| {
        let remote = |i| {
            format!(
                "[remote.r{i}]\nsources = [\"2001:db8:2::{i:x}\"]\naddresses = {{ w = [\"{}\"] }}\n",
                v6(i)
            )
        };
        let (names, own) = (list(n, |i| format!("r{i}")), list(n, v6));
        let vip = format!("[vip.w]\nremotes = {names}\naddresses = {own}\nservices = []\n");
        with(&[(n, &remote), (1, &|_| vip.clone())])
    }),
    ("prefixes, suffixes and machine addresses", |n| {
        let prefixes = list(n, |i| format!("2001:db8:3:{i:x}::/64"));
        let suffixes = list(n, |i| format!("::{i:x}/64"));
        let own = list(n, |i| format!("2001:db8:3:{i:x}::{i:x}"));
        let vip = format!("[vip.w]\ngroup = \"g\"\nsuffixes = {suffixes}\nservices = []\n");
        let machine = format!("[machine.m]\naddresses = {own}\ninterfaces = [\"eth0\"]\n");
        let remote = format!("[remote.r]\nsources = [\"198.51.100.1\"]\nprefixes = {{ g = {prefixes} }}\n");
        with(&[(1, &|_| format!("[prefix_group.g]\nprefixes = {prefixes}\n{vip}{machine}{remote}"))])
    }),
    ("prefix groups and VIPs", |n| {
        let group = |i| format!("[prefix_group.g{i}]\nprefixes = [\"2001:db8:3:{i:x}::/64\"]\n");
        let vip = |i| {
            format!("[vip.w{i}]\ngroup = \"g{i}\"\nsuffixes = [\"::1/64\"]\nservices = []\nannounce = {{}}\n")
        };
        with(&[(n, &group), (n, &vip)])
    }),
    ("aggregates", |n| {
        let (own, wider) = (list(n, v6), list(n, |i| format!("{}/128", v6(2 * i))));
        let vip =
            format!("[vip.w]\naddresses = {own}\nservices = []\nannounce = {{ aggregates = {wider} }}\n");
        with(&[(1, &|_| vip.clone()), (1, &|_| bgp(1, &|_| String::new(), ""))])
    }),
    ("routes and backups of one VIP", |n| {
        let vip = format!(
            "[vip.w]\naddresses = {}\nservices = []\nannounce = {{ backups = {} }}\n",
            list(n, v6),
            list(n, |i| format!("other-machine-{i}"))
        );
        with(&[(1, &|_| vip.clone()), (1, &|_| bgp(1, &|_| String::new(), ""))])
    }),
    ("announcements to all peers", |n| announced(n, &|_| String::new())),
    ("announcements to some peers", |n| {
        announced(n, &|i| format!("peers = [\"n{i}\"], backups = [\"x{i}\"]"))
    }),
    ("equal peers", |n| {
        with(&[(1, &|_| {
            bgp(n, &|_| "name = \"n\", source = \"192.0.2.1\", passive = true".into(), &list(n, v4_port))
        })])
    }),
    ("allowed prefixes", |n| {
        let allowed = list(n, |i| format!("{}/128", v6(i)));
        vips(1, &|_| "p".into(), &format!("allow = {allowed}\ndeny = {allowed}\n"))
    }),
];

/// Returns a configuration that contains a number of parts of each kind.
fn with(parts: &[(usize, &dyn Fn(usize) -> String)]) -> Vec<u8> {
    let mut text = "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n[machine.lb1]\naddresses = [\"192.0.2.1\", \"2001:db8::1\"]\n\
                    interfaces = [\"eth0\"]\n[pool.p]\nbackends = [{ name = \"a\", address = \"198.18.255.1\" }]\n"
        .to_owned();
    parts.iter().for_each(|(count, part)| text.extend((0..*count).map(part)));
    text.into_bytes()
}

fn list(count: usize, item: impl Fn(usize) -> String) -> String {
    let mut text = String::from("[");
    (0..count).for_each(|number| _ = write!(text, "\"{}\", ", item(number)));
    text + "]"
}

fn v4(number: usize) -> String {
    format!("198.18.{}.{}", number / 250, 1 + number % 250)
}

fn v4_port(number: usize) -> String {
    format!("{}:179", v4(number))
}

fn v6(number: usize) -> String {
    format!("2001:db8:9::{number:x}")
}

fn machine(number: usize, more: &str) -> String {
    format!("[machine.m{number}]\naddresses = [\"2001:db8:8::{number:x}\"]\ninterfaces = [\"eth0\"]\n{more}")
}

fn pool(name: &str, backends: usize, more: &str) -> String {
    let backend = |i| format!("{{ name = \"{name}-{i}\", address = \"{}\" }}, ", v4(i));
    format!("[pool.{name}]\nbackends = [{}]\n{more}", (0..backends).map(backend).collect::<String>())
}

fn service(port: usize, protocol: &str, pool: &str) -> String {
    format!("{{ ports = [{port}], protocol = \"{protocol}\", pool = \"{pool}\" }}, ")
}

fn vips(count: usize, pool: &dyn Fn(usize) -> String, more: &str) -> Vec<u8> {
    let service = |i| service(80, "tcp", &pool(i));
    let vip = |i| format!("[vip.w{i}]\naddresses = [\"{}\"]\nservices = [{}]\n{more}", v6(i), service(i));
    with(&[(count, &vip)])
}

/// Returns keyed pools, each with services for UDP and TCP, and routes to one pool.
fn keyed(count: usize, more: &str) -> Vec<u8> {
    let kv = format!(
        "protocol = \"memcached\"\nclients = [\"192.0.2.0/24\"]\nroutes = [{{ prefix = \"a\", pool = \"p\" }}]\n{more}"
    );
    let backend = |i| format!("[pool.q{i}]\nbackends = [{{ name = \"q{i}\", address = \"{}\" }}]\n", v4(i));
    let pool = |i| format!("{}[pool.q{i}.kv]\n{kv}", backend(i));
    let services = |i| ["udp", "tcp"].map(|protocol| service(11_211, protocol, &format!("q{i}"))).concat();
    let vip = |i| format!("[vip.w{i}]\naddresses = [\"{}\"]\nservices = [{}]\n", v6(i), services(i));
    with(&[(count, &pool), (count, &vip)])
}

fn bgp(peers: usize, more: &dyn Fn(usize) -> String, listen: &str) -> String {
    let peer = |i| format!("{{ address = \"2001:db8:7::{i:x}\", asn = 65000, {} }}, ", more(i));
    let peers: String = (0..peers).map(peer).collect();
    let listen = if listen.is_empty() { String::new() } else { format!("listen = {listen}\n") };
    format!("[bgp]\nasn = 65101\n{listen}peers = [{peers}]\n")
}

/// Returns announced VIPs, and as many peers that have a list of machines. The number of machines
/// is constant, because it is limited.
fn announced(count: usize, announce: &dyn Fn(usize) -> String) -> Vec<u8> {
    let peer = |i| format!("name = \"n{i}\", machines = [\"m{}\", \"m{}\"]", i % 20, (i + 1) % 20);
    let vip = |i| {
        let announce = announce(i);
        format!(
            "[vip.w{i}]\naddresses = [\"{}\"]\nservices = []\nannounce = {{ local_pref = 7, {announce} }}\n",
            v6(i)
        )
    };
    with(&[(20, &|i| machine(i, "")), (count, &vip), (1, &|_| bgp(count, &peer, ""))])
}
