//! Tests that the cost of reading requests of the admin API, IPVS rules, scripts of `simulate` and
//! JSON is linear in their length.
//!
//! JSON stands for the responses of the API, handover messages and trace reports, which are read
//! with the same library. The crates of other readers have their own tests.

use std::path::Path;

use serde_json::Value;
use steps::Case;

use crate::admin_requests;

// Promise: linear-time
#[test]
fn requests_and_files_are_read_in_linear_time() {
    steps::check("linear::requests_and_files_are_read_in_linear_time", &CASES);
}

fn ipvs(bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).expect("the rules are UTF-8");
    let _ = std::hint::black_box(import::ipvs(text, Path::new("rules")));
}

fn script(bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).expect("the script is UTF-8");
    let _ = std::hint::black_box(simulate::script::parse(text, Path::new("script.toml"), None));
}

fn json(bytes: &[u8]) {
    let _ = std::hint::black_box(serde_json::from_slice::<Value>(bytes));
}

const CASES: [Case<'_>; 21] = [
    (
        "header fields of a request",
        |n| request(&format!("GET /v1/status HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(n))),
        admin_requests::check,
    ),
    (
        "one header field",
        |n| request(&format!("GET /v1/status HTTP/1.1\r\nA: {}\r\n\r\n", "b".repeat(8 * n))),
        admin_requests::check,
    ),
    (
        "a long path",
        |n| request(&format!("GET /v1/backends/{} HTTP/1.1\r\nHost: x\r\n\r\n", "%2F/".repeat(4 * n))),
        admin_requests::check,
    ),
    (
        "parameters of a query",
        |n| request(&format!("GET /v1/flows?{} HTTP/1.1\r\nHost: x\r\n\r\n", "vip=a&".repeat(4 * n))),
        admin_requests::check,
    ),
    (
        "drop reasons of a capture",
        |n| {
            request(&format!(
                "POST /v1/capture?drop={} HTTP/1.1\r\nHost: x\r\n\r\n",
                "too_big,".repeat(4 * n)
            ))
        },
        admin_requests::check,
    ),
    (
        "names of a reason",
        |n| {
            request(&format!(
                "POST /v1/backends/b/drain?reason={} HTTP/1.1\r\nHost: x\r\n\r\n",
                "%41+".repeat(4 * n)
            ))
        },
        admin_requests::check,
    ),
    (
        "requests on one connection",
        |n| request(&"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n".repeat(n)),
        admin_requests::check,
    ),
    (
        "chunks of a body",
        |n| {
            request(&format!(
                "POST /v1/reload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
                "1\r\n \r\n".repeat(n)
            ))
        },
        admin_requests::check,
    ),
    (
        "a JSON body",
        |n| {
            let body = format!("{{\"weight\": {}1}}", " ".repeat(40 * n));
            request(&format!(
                "POST /v1/backends/b/weight HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ))
        },
        admin_requests::check,
    ),
    (
        "services of IPVS",
        |n| {
            (0..n)
                .map(|i| format!("-A -t {}:80 -s rr\n-a -t {}:80 -r 198.18.0.1:80\n", vip(i), vip(i)))
                .collect::<String>()
                .into()
        },
        ipvs,
    ),
    (
        "servers of IPVS",
        |n| {
            let servers: String =
                (0..n).map(|i| format!("-a -t 203.0.113.1:80 -r {}:80 -i -w {i}\n", server(i))).collect();
            format!("-A -t 203.0.113.1:80 -s fo\n{servers}").into()
        },
        ipvs,
    ),
    ("options of IPVS", |n| format!("-A{} x\n", " -p 7".repeat(n)).into(), ipvs),
    ("words of IPVS", |n| format!("-A -t 203.0.113.1:80 -s {}\n", "rr ".repeat(n)).into(), ipvs),
    ("invalid rules of IPVS", |n| "-X\n".repeat(n).into(), ipvs),
    (
        "rules of IPVS without a service",
        |n| (0..n).map(|i| format!("-a -t {}:80 -r 198.18.0.1:80\n", vip(i))).collect::<String>().into(),
        ipvs,
    ),
    (
        "events of a script",
        |n| {
            (0..n)
                .map(|i| format!("[[event]]\nat = \"{i}s\"\nbackend_drains = \"b{}\"\n", 1 + i % 10))
                .collect::<String>()
                .into()
        },
        script,
    ),
    (
        "unknown backends of a script",
        |n| {
            (0..n)
                .map(|i| format!("[[event]]\nat = \"7s\"\nbackend_down = \"x{i}\"\n"))
                .collect::<String>()
                .into()
        },
        script,
    ),
    ("arrays of JSON", |n| format!("[{}7]", "[], ".repeat(n)).into(), json),
    ("nested JSON", |n| "[".repeat(20 * n).into(), json),
    (
        "keys of JSON",
        |n| format!("{{{}\"a\": 1}}", (0..n).map(|i| format!("\"{i}\": 1, ")).collect::<String>()).into(),
        json,
    ),
    ("a string of JSON", |n| format!("\"{}\"", "\\u0041\\n".repeat(10 * n)).into(), json),
];

/// Returns a request for the Unix socket.
fn request(text: &str) -> Vec<u8> {
    [&[0][..], text.as_bytes()].concat()
}

fn vip(number: usize) -> String {
    format!("[2001:db8::{number:x}]")
}

fn server(number: usize) -> String {
    format!("198.18.{}.{}", number / 250, 1 + number % 250)
}
