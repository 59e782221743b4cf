//! From `kv` of a pool to where the snapshot has its keys.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

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

/// A pool of five backends, its `kv` with what is said besides.
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

/// As the file has it: all serve.
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

/// The backend that has a key.
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
fn rules_are_kept_while_the_file_says_the_same_and_the_secret_is_the_same() {
    let routes: Vec<String> = (0..9).map(|n| format!("{{ prefix = \"r{n}\", pool = \"p\" }}")).collect();
    let plain = config(&pool(""), KEY);
    let routed = config(&pool(&format!(", routes = [{}]", routes.join(", "))), KEY);
    let other = config(&pool(""), "ffeeddccbbaa99887766554433221100");
    let mut compiler = Compiler::default();
    let [first, second] = [(); 2].map(|()| compile(&mut compiler, &plain));
    assert!(Arc::ptr_eq(&keyed(&first).rules, &keyed(&second).rules));
    let third = compile(&mut compiler, &routed);
    assert!(!Arc::ptr_eq(&keyed(&second).rules, &keyed(&third).rules));
    assert_eq!(owners(&third), owners(&first), "a route to its own pool moves no key");
    let moved = compile(&mut compiler, &other);
    assert_eq!(owners(&moved), owners(&compile(&mut Compiler::default(), &other)));
    assert_ne!(owners(&moved), owners(&first));
}

/// By `memcached_generate_hash` of libmemcached 1.1.4 with KETAMA_WEIGHTED, FNV-1a over 64 bits of the indices of the owners of
/// `key:0` to `key:2999`: servers 192.0.2.0 and following, all at 11211 with weight 1, and at 11211 + n mod 3 with weights
/// 1 + n^2 mod 17.
const BY_LIBMEMCACHED: [(u32, u64, u64); 6] = [
    (1, 0x0e91_54a5_da46_4b85, 0x0e91_54a5_da46_4b85),
    (2, 0x6ca4_491a_1fd4_009b, 0x2c9f_9440_d18c_82f3),
    (5, 0x7e3b_2baf_50e1_84af, 0x5965_01d5_ee62_77a8),
    (13, 0x8811_8877_7cf4_f101, 0x8c2e_13ca_3879_9bbb),
    (25, 0x021b_371a_4011_1cc8, 0xf4f3_d958_606e_4407),
    (40, 0xc956_7231_962b_d57a, 0xfed9_51b5_cd26_2a9b),
];

/// Those servers, with the names that their clients' file gives them.
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

/// Of the owners' numbers.
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

#[test]
fn three_thousand_keys_are_where_libmemcached_has_them_with_weights_and_with_a_server_ejected() {
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
            assert_eq!(fingerprint(&again), fingerprint(&before), "it came back");
        }
    }
}

/// What the states say counts at once, though the ring of the others follows: with equal weights that is the same.
#[test]
fn a_server_that_goes_down_has_no_key_from_the_next_snapshot_on() {
    let whole = compile(&mut Compiler::default(), &servers(6, false, ""));
    let mut states = whole.states().to_vec();
    let down = whole.slots().iter().position(|slot| &*slot.backend == "b05").unwrap();
    states[down] = SlotState::Down;
    let (_, expected, _) = BY_LIBMEMCACHED[2];
    assert_eq!(fingerprint(&whole.with_states(states).unwrap()), expected);
}

#[test]
fn keys_that_go_nowhere_are_those_of_the_server_that_is_down_and_the_others_stay() {
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
fn a_route_leads_to_a_ring_of_its_own() {
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
fn rings_are_kept_while_names_weights_and_states_are_the_same() {
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
    assert!(first.iter().chain(&second).all(|ring| Arc::ptr_eq(ring, &first[0])), "one content, one ring");
    let less = rings(&compile_under(&mut compiler, &config, &without(3, Mode::Down)));
    assert!(!Arc::ptr_eq(&less[0], &first[0]));
    let none = RuntimeState {
        overrides: (0..5).flat_map(|n| without(n, Mode::Down).overrides).collect(),
        ..RuntimeState::default()
    };
    assert_eq!(owner(&compile_under(&mut compiler, &config, &none), "key:1"), "none");
}

/// What a live table's digest says, after the text of the file is changed.
fn digest(change: (&str, &str), state: &RuntimeState) -> String {
    let text = servers_text(5, true, "").replace(change.0, change.1);
    let config = Arc::new(config(&text, KEY));
    let snapshot = Arc::new(compile_under(&mut Compiler::default(), &config, state));
    Digests::default().view(&config, "lb1", &snapshot).tables.unwrap()
}

#[test]
fn the_digest_of_live_tables_tells_rings_apart() {
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
