//! Checks that the cost of converting IPVS rules is linear in their length.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::path::Path;

use steps::Case;

// Promise: linear-time
#[test]
fn rules_are_read_in_linear_time() {
    steps::check("rules_are_read_in_linear_time", &CASES);
}

fn read(bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).unwrap();
    let _ = std::hint::black_box(import::ipvs(text, Path::new("rules")));
}

const CASES: [Case<'_>; 6] = [
    (
        "services",
        |n| text(n, |i| format!("-A -t {}:80 -s rr\n-a -t {}:80 -r 198.18.0.1:80\n", vip(i), vip(i))),
        read,
    ),
    (
        "servers of one service",
        |n| {
            let servers = text(n, |i| format!("-a -t 203.0.113.1:80 -r {}:80 -i -w {i}\n", server(i)));
            [b"-A -t 203.0.113.1:80 -s fo\n".to_vec(), servers].concat()
        },
        read,
    ),
    (
        "services with firewall marks",
        |n| text(n, |i| format!("-A -f {} -s rr -p 60\n-a -f {} -r 198.18.0.1:0 -g\n", i + 1, i + 1)),
        read,
    ),
    ("options of one rule", |n| format!("-A{} x\n", " -p 7".repeat(8 * n)).into(), read),
    ("words of one rule", |n| format!("-A -t 203.0.113.1:80 -s {}\n", "rr ".repeat(8 * n)).into(), read),
    ("servers without a service", |n| text(n, |i| format!("-a -t {}:80 -r 198.18.0.1:80\n", vip(i))), read),
];

fn text(count: usize, part: impl Fn(usize) -> String) -> Vec<u8> {
    (0..count).map(part).collect::<String>().into()
}

fn vip(number: usize) -> String {
    format!("[2001:db8::{number:x}]")
}

fn server(number: usize) -> String {
    format!("198.18.{}.{}", number / 250, 1 + number % 250)
}
