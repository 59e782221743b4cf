//! Tests that the cost of reading responses is linear in their length.

use std::hint::black_box;

use config::{
    AgentCheck, CheckKind, DnsRecord, Expect, ExpectForm, GrpcCheck, HttpCheck, MemcachedCheck, TcpCheck,
    Tls, Transport,
};
use steps::Case;

use super::hostile::{ask, say};
use crate::dns::{judge, query};
use crate::exec::wire::{Reply, Request};

// Promise: linear-time
#[test]
fn responses_are_read_in_linear_time() {
    steps::check("linear::responses_are_read_in_linear_time", &CASES);
}

fn attempt(answer: &[u8], kind: impl Fn(u16) -> CheckKind) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _ = runtime.block_on(async { ask(&kind(say(answer).await)).await });
}

fn http(answer: &[u8]) {
    attempt(answer, |port| http_check(port, None));
}

/// The server sends bytes in place of a TLS handshake.
fn https(answer: &[u8]) {
    let tls = Tls { server_name: None, ca: None, verify: false, client: None };
    attempt(answer, |port| http_check(port, Some(tls.clone())));
}

fn http_check(port: u16, tls: Option<Tls>) -> CheckKind {
    CheckKind::Http(HttpCheck {
        port,
        tls,
        method: "GET".into(),
        path: "/".into(),
        host: None,
        headers: Vec::new(),
        status: vec![200..=299],
        body_contains: Some("aaaaaaaaaaaaaaab".into()),
        probe_mtu: false,
    })
}

fn grpc(answer: &[u8]) {
    attempt(answer, |port| {
        CheckKind::Grpc(GrpcCheck { port, service: "".into(), tls: None, probe_mtu: false })
    });
}

fn agent(answer: &[u8]) {
    attempt(answer, |port| {
        CheckKind::Agent(AgentCheck { port, send: None, min_weight: 10, max_weight: 200 })
    });
}

fn memcached(answer: &[u8]) {
    attempt(answer, |port| {
        CheckKind::Memcached(MemcachedCheck { port, transport: Transport::Tcp, probe_mtu: false })
    });
}

fn tcp(answer: &[u8]) {
    attempt(answer, |port| {
        let form = ExpectForm::parse("expect_regex", "(a|aa)+b|(x*)*y$").unwrap();
        CheckKind::Tcp(TcpCheck { port, send: None, expect: Some(Expect::new(form).unwrap()) })
    });
}

fn dns(answer: &[u8]) {
    black_box(judge(answer, &dns_query()));
}

fn program(message: &[u8]) {
    let _ = black_box((Request::parse(message), Reply::parse(message)));
}

const CASES: [Case<'_>; 18] = [
    ("HTTP header fields", |n| http_head(&"A: b\r\n".repeat(n)), http),
    ("one HTTP header field", |n| http_head(&format!("A: {}\r\n", "b".repeat(20 * n))), http),
    ("an HTTP head without an end", |n| format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(20 * n)).into(), http),
    ("HTTP responses before the last", |n| "HTTP/1.1 100 Continue\r\n\r\n".repeat(n).into(), http),
    ("an HTTP body", |n| [http_head(""), "a".repeat(40 * n).into()].concat(), http),
    (
        "chunks of an HTTP body",
        |n| [http_head("Transfer-Encoding: chunked\r\n"), "1\r\na\r\n".repeat(n).into()].concat(),
        http,
    ),
    ("TLS records of one byte", |n| [22, 3, 3, 0, 1, 2].repeat(n), https),
    (
        "a long TLS handshake message",
        |n| {
            [&[22, 3, 3, 0, 4, 2, 0, 0xff, 0xff][..], &[&[22, 3, 3, 0, 40][..], &[0; 40]].concat().repeat(n)]
                .concat()
        },
        https,
    ),
    ("HTTP/2 pings", |n| h2(&[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8].repeat(n)), grpc),
    ("HTTP/2 settings", |n| h2(&[0, 0, 0, 4, 0, 0, 0, 0, 0].repeat(n)), grpc),
    (
        "HTTP/2 continuations",
        |n| h2(&[&[0, 0, 0, 1, 0, 0, 0, 0, 1][..], &[0, 0, 0, 9, 0, 0, 0, 0, 1].repeat(n)].concat()),
        grpc,
    ),
    ("words of an agent", |n| "up ".repeat(n).into(), agent),
    ("a long line of memcached", |n| "VERSION ".repeat(n).into(), memcached),
    ("bytes that nearly match", |n| "a".repeat(40 * n).into(), tcp),
    ("bytes that could match at the end", |n| "x".repeat(40 * n).into(), tcp),
    ("DNS records", |n| dns_answer(&[0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 0, 0, 1, 7].repeat(n)), dns),
    (
        "DNS records with chains of pointers",
        |n| {
            let question = dns_query().len();
            let pointer = |at: usize| u16::try_from(0xc000 | at).unwrap().to_be_bytes();
            let chain =
                (0..n).flat_map(|at| pointer(if at == 0 { 12 } else { question + 12 + 2 * (at - 1) }));
            let [high, low] = u16::try_from(2 * n).unwrap().to_be_bytes();
            let first: Vec<u8> =
                [0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 0, high, low].into_iter().chain(chain).collect();
            let [high, low] = pointer(question + 12 + 2 * (n - 1));
            dns_answer(&[first, [high, low, 0, 16, 0, 1, 0, 0, 0, 0, 0, 1, 7].repeat(n)].concat())
        },
        dns,
    ),
    (
        "arguments of a program",
        |n| format!("sluicegate-check 1\nprogram a\n{}", "argument \u{e9}\nbackend b\n".repeat(n)).into(),
        program,
    ),
];

fn dns_query() -> Vec<u8> {
    query([0x12, 0x34], "www.example.org", DnsRecord::A).unwrap()
}

fn http_head(fields: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{fields}\r\n").into()
}

/// Returns frames after an empty SETTINGS frame.
fn h2(frames: &[u8]) -> Vec<u8> {
    [&[0, 0, 0, 4, 0, 0, 0, 0, 0][..], frames].concat()
}

/// Returns a response with 65,535 records, of which only the first are present.
fn dns_answer(records: &[u8]) -> Vec<u8> {
    let mut answer = dns_query();
    answer[2] |= 0x82; // a truncated response
    answer[6..8].copy_from_slice(&[0xff, 0xff]);
    [answer, records.to_vec()].concat()
}
