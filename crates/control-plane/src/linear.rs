//! Tests that the cost of reading the state of another process, and the reports of the packet
//! tracer, is linear in their length.

use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use config::Config;
use forwarder::{HashKey, TraceKey};
use serde_json::{Value, json};
use steps::Case;

use crate::controller::Controller;
use crate::handover::HandedState;
use crate::overrides::Overrides;
use crate::rows::trace_report::Report;

// Promise: linear-time
#[test]
fn handed_state_and_reports_are_read_in_linear_time() {
    steps::check("linear::handed_state_and_reports_are_read_in_linear_time", &CASES);
}

/// Applies a state to a process that has as many backends as the first element of `bytes` says.
fn handed(bytes: &[u8]) {
    let (backends, state): (usize, HandedState) = serde_json::from_slice(bytes).unwrap();
    let backend = |number: usize| format!("{{ name = \"b{number}\", address = \"{}\" }}, ", address(number));
    let text = format!(
        "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\ntable_size = 1009\n[machine.lb1]\naddresses = [\"192.0.2.1\"]\n\
         interfaces = [\"eth0\"]\n[check.web]\ntcp = {{ port = 80 }}\n[pool.p]\nchecks = [\"web\"]\nbackends = [{}]\n\
         [vip.www]\naddresses = [\"203.0.113.1\"]\n\
         services = [{{ ports = [80], protocol = \"tcp\", pool = \"p\" }}]\n",
        (0..backends).map(backend).collect::<String>()
    );
    let config: Config = config::parse(&text, Path::new("a.toml"), &|_| Ok(KEY.to_owned())).unwrap().0;
    let (mut controller, current) =
        Controller::start(Arc::new(config), "lb1", Arc::default(), Duration::ZERO).unwrap();
    let mut overrides = Overrides::default();
    let _ = black_box(state.give(&mut controller, &mut overrides, &current, Duration::from_secs(9)));
    black_box((state.failing_hops(&controller), state.learned().count()));
}

fn report(datagram: &[u8]) {
    black_box(Report::open(datagram, &key()));
}

fn key() -> TraceKey {
    TraceKey::derive(&HashKey::new([5; 16]))
}

const KEY: &str = "00112233445566778899aabbccddeeff";

const CASES: [Case<'_>; 6] = [
    ("overrides", |n| state(n, "overrides", override_of), handed),
    ("health states", |n| state(n, "health_states", health_state), handed),
    ("advice", |n| state(n, "advice", |number| json!([health_state(number), true, 4])), handed),
    ("path MTUs", |n| state(n, "path_mtus", path_mtu), handed),
    ("failing hops", |n| state(n, "failing_hops", failing), handed),
    ("reports", sealed, report),
];

fn state(count: usize, field: &str, one: impl Fn(usize) -> Value) -> Vec<u8> {
    let mut state = json!({ "overrides": [], "health_states": [], "path_mtus": [] });
    state[field] = (0..count).map(one).collect();
    serde_json::to_vec(&json!([count, state])).unwrap()
}

fn override_of(number: usize) -> Value {
    let note = json!({ "at": span(1), "until": null, "by": "uid 0", "reason": null });
    json!({ "backend": format!("b{number}"), "pool": null, "is_down": true, "mode": note, "weight": null })
}

fn health_state(number: usize) -> Value {
    json!({ "address": address(number), "check": "web", "through": null, "is_up": true })
}

fn path_mtu(number: usize) -> Value {
    json!([address(number), 32, 1_400, span(700)])
}

fn failing(number: usize) -> Value {
    json!([health_state(number), [[7, "192.0.2.9"]]])
}

fn span(seconds: u64) -> Value {
    serde_json::to_value(Duration::from_secs(seconds)).unwrap()
}

fn address(number: usize) -> String {
    format!("198.18.{}.{}", number / 250, 1 + number % 250)
}

/// Returns text with a valid MAC that is not a report.
fn sealed(count: usize) -> Vec<u8> {
    let text = format!("{{\"version\": 1, {}\"a\": 1}}", "\"b\": [], ".repeat(count)).into_bytes();
    let mac: String = key().sign_report(&text).iter().map(|byte| format!("{byte:02x}")).collect();
    [&text[..], b"\n", mac.as_bytes(), b"\n"].concat()
}
