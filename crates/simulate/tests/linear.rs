//! Checks that the cost of reading scripts is linear in their length.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::path::Path;

use steps::Case;

// Promise: linear-time
#[test]
fn scripts_are_read_in_linear_time() {
    steps::check("scripts_are_read_in_linear_time", &CASES);
}

fn read(bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).unwrap();
    let _ = std::hint::black_box(simulate::script::parse(text, Path::new("script.toml"), None));
}

const CASES: [Case<'_>; 4] = [
    ("events", |n| events(n, "backend_drains", |i| format!("b{}", 1 + i % 10)), read),
    ("events about unknown backends", |n| events(n, "backend_down", |i| format!("x{i}")), read),
    ("unknown keys", |n| (0..n).map(|i| format!("key{i} = 1\n")).collect::<String>().into(), read),
    ("broken brackets", |n| format!("seed = {}{}\n", "[{".repeat(4 * n), "}".repeat(4 * n)).into(), read),
];

fn events(count: usize, kind: &str, backend: impl Fn(usize) -> String) -> Vec<u8> {
    let event = |i| format!("[[event]]\nat = \"{i}s\"\n{kind} = \"{}\"\n", backend(i));
    format!("duration = \"1h\"\n{}", (0..count).map(event).collect::<String>()).into()
}
