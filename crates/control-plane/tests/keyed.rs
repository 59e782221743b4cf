//! Tests of keyed pools: how the `kv` section determines the backend for each key in the snapshot.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use compile::{CompileInput, Compiler, Mode, Override, OverrideKey, RuntimeState};
use config::{Config, parse};
use control_plane::digest::Digests;
use forwarder::{Flow, Generation, Keyed, Placement, SlotState, Snapshot};

const HEAD: &str = "[cluster]\nname = \"test\"\nhash_key_file = \"hash.key\"\n\
    [machine.lb1]\naddresses = [\"198.51.100.1\"]\ninterfaces = [\"eth0\"]\n\
    [vip.v]\naddresses = [\"203.0.113.10\"]\nservices = [{ ports = [11211], protocol = \"udp\", pool = \"p\" }]\n";

/// Creates a pool of five backends. `more` has additional keys for its `kv` section.
fn pool(more: &str) -> String {
    let backends: Vec<String> =
        (1..=5).map(|n| format!("{{ name = \"b{n}\", address = \"198.18.0.{n}\" }}")).collect();
    let kv = format!("protocol = \"memcached\", clients = [\"198.51.100.0/24\"]{more}");
    format!("[pool.p]\nbackends = [{}]\nkv = {{ {kv} }}\n", backends.join(", "))
}

fn config(pools: &str, hash_key: &str) -> Config {
    let secret = |_: &_| Ok(hash_key.to_owned());
    match parse(&format!("{HEAD}{pools}"), Path::new("test.toml"), &secret) {
        Ok((config, _)) => config,
        Err(problems) => panic!("{problems}"),
    }
}

/// Compiles `config` with runtime state in which all backends serve.
fn compile(compiler: &mut Compiler, config: &Config) -> Snapshot {
    compile_under(compiler, config, &RuntimeState::default())
}

fn compile_under(compiler: &mut Compiler, config: &Config, runtime_state: &RuntimeState) -> Snapshot {
    let input = CompileInput {
        generation: Generation(1),
        machine: "lb1",
        next_hops: &next_hop::Table::default(),
        runtime_state,
        states: &[SlotState::Serving; 128],
        now: Duration::ZERO,
    };
    compiler.compile(config, input).unwrap().snapshot
}

/// Returns the name of the backend that owns a key.
fn owner(snapshot: &Snapshot, key: &str) -> String {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let flow = Flow::new((ip("198.51.100.7"), 40_000), (ip("203.0.113.10"), 11_211), 17).unwrap();
    let said = snapshot.explain_key(&flow, key.as_bytes());
    said.slot.map_or_else(|| "none".to_owned(), |slot| snapshot.slots()[slot.0 as usize].backend.to_string())
}

fn owners(snapshot: &Snapshot) -> Vec<String> {
    (0..100).map(|n| owner(snapshot, &format!("key:{n}"))).collect()
}

fn keyed(snapshot: &Snapshot) -> &Keyed {
    snapshot.services()[0].keyed.as_deref().unwrap()
}

const KEY: &str = "00112233445566778899aabbccddeeff";

#[test]
fn rules_are_reused_while_file_and_secret_are_unchanged() {
    let routes: Vec<String> = (0..9).map(|n| format!("{{ prefix = \"r{n}\", pool = \"p\" }}")).collect();
    let plain = config(&pool(""), KEY);
    let routed = config(&pool(&format!(", routes = [{}]", routes.join(", "))), KEY);
    let other = config(&pool(""), "ffeeddccbbaa99887766554433221100");
    let mut compiler = Compiler::default();
    let [first, second] = [(); 2].map(|()| compile(&mut compiler, &plain));
    assert!(Arc::ptr_eq(&keyed(&first).rules, &keyed(&second).rules));
    let third = compile(&mut compiler, &routed);
    assert!(!Arc::ptr_eq(&keyed(&second).rules, &keyed(&third).rules));
    assert_eq!(owners(&third), owners(&first), "a route to the same pool moves no key");
    let moved = compile(&mut compiler, &other);
    assert_eq!(owners(&moved), owners(&compile(&mut Compiler::default(), &other)));
    assert_ne!(owners(&moved), owners(&first));
}

/// For each number of servers, the expected hash over the owners of the keys `key:0` to `key:2999`.
/// The owners were computed with `memcached_generate_hash` of libmemcached 1.1.4 with
/// KETAMA_WEIGHTED. The hash is the 64-bit FNV-1a hash over the owner indices. The servers have
/// consecutive addresses starting at 192.0.2.0. In the first case, all servers have port 11211 and
/// weight 1. In the second case, server n has port 11211 + n mod 3 and weight 1 + n^2 mod 17.
const BY_LIBMEMCACHED: [(u32, u64, u64); 6] = [
    (1, 0x0e91_54a5_da46_4b85, 0x0e91_54a5_da46_4b85),
    (2, 0x6ca4_491a_1fd4_009b, 0x2c9f_9440_d18c_82f3),
    (5, 0x7e3b_2baf_50e1_84af, 0x5965_01d5_ee62_77a8),
    (13, 0x8811_8877_7cf4_f101, 0x8c2e_13ca_3879_9bbb),
    (25, 0x021b_371a_4011_1cc8, 0xf4f3_d958_606e_4407),
    (40, 0xc956_7231_962b_d57a, 0xfed9_51b5_cd26_2a9b),
];

/// Creates a configuration with `count` servers, which have the names that memcached clients use.
fn servers(count: u32, is_weighted: bool, more: &str) -> Config {
    config(&servers_text(count, is_weighted, more), KEY)
}

fn servers_text(count: u32, is_weighted: bool, more: &str) -> String {
    let backend = |n: u32| {
        let port = 11_211 + n % 3;
        let name = if port == 11_211 { format!("192.0.2.{n}") } else { format!("192.0.2.{n}:{port}") };
        let weighted = format!(", ring_name = \"{name}\", weight = {}", 1 + n * n % 17);
        let more = if is_weighted { weighted } else { String::new() };
        format!("{{ name = \"b{n:02}\", address = \"192.0.2.{n}\"{more} }}")
    };
    let backends: Vec<String> = (0..count).map(backend).collect();
    let kv = format!(
        "protocol = \"memcached\", clients = [\"198.51.100.0/24\"], hash = \"ketama\", \
         routes = [{{ prefix = \"other:\", pool = \"q\" }}]{more}"
    );
    format!(
        "[pool.p]\nbackends = [{}]\nkv = {{ {kv} }}\n[pool.q]\nbackends = [{}]\n",
        backends.join(", "),
        backends.join(", ")
    )
}

/// Returns the FNV-1a hash over the owner indices of 3,000 keys.
fn fingerprint(snapshot: &Snapshot) -> u64 {
    (0..3_000).fold(0xcbf2_9ce4_8422_2325, |hash: u64, n| {
        let number: u64 = owner(snapshot, &format!("key:{n}"))[1..].parse().unwrap();
        (hash ^ number).wrapping_mul(0x100_0000_01b3)
    })
}

fn without(last: u32, mode: Mode) -> RuntimeState {
    let key = OverrideKey { backend: format!("b{last:02}").into(), pool: None };
    RuntimeState {
        overrides: [(key, Override { mode: Some(mode), weight: None })].into(),
        ..RuntimeState::default()
    }
}

// Promise: ketama-compatibility
#[test]
fn ketama_places_keys_like_libmemcached() {
    for (count, equal, weighted) in BY_LIBMEMCACHED {
        for (is_weighted, expected) in [(false, equal), (true, weighted)] {
            let whole = compile(&mut Compiler::default(), &servers(count, is_weighted, ""));
            assert_eq!(fingerprint(&whole), expected, "{count} servers");
            let mut compiler = Compiler::default();
            let config = servers(count + 1, is_weighted, "");
            let before = compile(&mut compiler, &config);
            for mode in [Mode::Down, Mode::Drain] {
                let after = compile_under(&mut compiler, &config, &without(count, mode));
                assert_eq!(fingerprint(&after), expected, "{count} servers of {}", count + 1);
            }
            let again = compile(&mut compiler, &config);
            assert_eq!(fingerprint(&again), fingerprint(&before), "the server returned");
        }
    }
}

/// After a state change, the next snapshot skips the server immediately, and the ring is rebuilt
/// later. With equal weights, the snapshot and the rebuilt ring choose the same owners.
#[test]
fn server_that_is_down_owns_no_key_in_the_next_snapshot() {
    let whole = compile(&mut Compiler::default(), &servers(6, false, ""));
    let mut states = whole.states().to_vec();
    let down = whole.slots().iter().position(|slot| &*slot.backend == "b05").unwrap();
    states[down] = SlotState::Down;
    let (_, expected, _) = BY_LIBMEMCACHED[2];
    assert_eq!(fingerprint(&whole.with_states(states).unwrap()), expected);
}

#[test]
fn failover_moves_only_keys_of_the_failed_server() {
    let failovers = [("{ to = \"nowhere\" }", true), ("{ pool = \"q\" }", false)];
    for (failover, is_nowhere, hash) in
        ["ketama", "maglev"].into_iter().flat_map(|hash| failovers.map(|(to, none)| (to, none, hash)))
    {
        let text = servers_text(5, true, &format!(", failover = {failover}")).replace("ketama", hash);
        let config = config(&text, KEY);
        let whole = compile(&mut Compiler::default(), &config);
        let less = compile_under(&mut Compiler::default(), &config, &without(3, Mode::Down));
        let mut lost = 0;
        for key in (0..500).map(|n| format!("key:{n}")) {
            match (&*owner(&whole, &key), owner(&less, &key)) {
                ("b03", now) => {
                    lost += 1;
                    assert_eq!(now == "none", is_nowhere, "{key}: {now}, {hash}");
                    assert_ne!(now, "b03");
                }
                (before, now) => assert_eq!(before, now, "{key}, {hash}"),
            }
        }
        assert!(lost > 50, "{lost}");
    }
}

#[test]
fn route_uses_the_ring_of_its_pool() {
    let snapshot = compile(&mut Compiler::default(), &servers(5, true, ""));
    let ring = kv_switch::Ring::build(&[0, 1, 2, 3, 4].map(|n| kv_switch::Server {
        ring_name: ["192.0.2.0", "192.0.2.1:11212", "192.0.2.2:11213", "192.0.2.3", "192.0.2.4:11212"][n],
        weight: [1, 2, 5, 10, 17][n],
        is_ejected: false,
    }));
    let ring = ring.unwrap();
    for key in (0..200).map(|n| format!("other:{n}")) {
        let expected = ring.lookup(u64::from(kv_switch::md5_ketama(key.as_bytes())));
        assert_eq!(owner(&snapshot, &key), format!("b{expected:02}"));
    }
}

#[test]
fn rings_are_reused_while_names_weights_and_states_match() {
    let (mut compiler, config) = (Compiler::default(), servers(5, true, ""));
    let live = |placement: &Placement| match placement {
        Placement::Ring(rings) => rings.live.clone(),
        Placement::Maglev { .. } => None,
    };
    let rings = |snapshot: &Snapshot| -> Vec<_> {
        keyed(snapshot).placements.iter().map(|placement| live(placement).unwrap()).collect()
    };
    let [first, second] = [(); 2].map(|()| rings(&compile(&mut compiler, &config)));
    assert_eq!(first.len(), 2);
    assert!(first.iter().chain(&second).all(|ring| Arc::ptr_eq(ring, &first[0])), "equal rings are shared");
    let less = rings(&compile_under(&mut compiler, &config, &without(3, Mode::Down)));
    assert!(!Arc::ptr_eq(&less[0], &first[0]));
    let none = RuntimeState {
        overrides: (0..5).flat_map(|n| without(n, Mode::Down).overrides).collect(),
        ..RuntimeState::default()
    };
    assert_eq!(owner(&compile_under(&mut compiler, &config, &none), "key:1"), "none");
}

/// Returns the table digest of a configuration in which `change.0` is replaced with `change.1`.
fn digest(change: (&str, &str), state: &RuntimeState) -> String {
    let text = servers_text(5, true, "").replace(change.0, change.1);
    let config = Arc::new(config(&text, KEY));
    let snapshot = Arc::new(compile_under(&mut Compiler::default(), &config, state));
    Digests::default().view(&config, "lb1", &snapshot).tables.unwrap()
}

#[test]
fn tables_digest_distinguishes_rings() {
    let all = RuntimeState::default();
    let known = digest(("", ""), &all);
    assert_eq!(digest(("max_keys = 32", ""), &all), known);
    let mut seen = std::collections::BTreeSet::from([known]);
    for (change, state) in [
        (("", ""), &without(3, Mode::Down)),
        (("192.0.2.1:11212", "other"), &all),
        (("\"ketama\"", "\"fnv1a_64\""), &all),
        (("\"ketama\"", "\"maglev\""), &all),
    ] {
        assert!(seen.insert(digest(change, state)), "{change:?}");
    }
}
