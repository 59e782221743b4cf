//! From `kv` of a pool to where the snapshot has its keys.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use config::{Config, parse};
use control_plane::compile::{CompileInput, Compiler};
use control_plane::runtime_state::RuntimeState;
use forwarder::{Flow, Generation, Keyed, SlotState, Snapshot};

const HEAD: &str = "[cluster]\nname = \"test\"\nhash_key_file = \"hash.key\"\n\
    [machine.lb1]\naddresses = [\"192.0.2.1\"]\ninterfaces = [\"eth0\"]\n\
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

fn compile(compiler: &mut Compiler, config: &Config) -> Snapshot {
    let input = CompileInput {
        generation: Generation(1),
        machine: "lb1",
        next_hops: &next_hop::Table::default(),
        runtime_state: &RuntimeState::default(),
        states: &[SlotState::Serving; 8],
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
