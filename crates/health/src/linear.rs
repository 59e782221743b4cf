//! Tests that the cost of reading responses and the messages of check programs is linear in their
//! length.
//!
//! The servers are in memory, so that neither sockets nor time limits affect the counts.

use std::hint::black_box;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use config::{AgentCheck, DnsRecord, Expect, ExpectForm, HttpCheck, Tls};
use steps::Case;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};

use crate::dial::read_line;
use crate::dns::{judge, query};
use crate::exchange::Search;
use crate::exec::runner::{FirstLine, read_request};
use crate::exec::wire::{Reply, Request};
use crate::hostile::say_over;
use crate::tls::Inside;
use crate::{agent, grpc, http, tls};

// Promise: linear-time
#[test]
fn responses_are_read_in_linear_time() {
    steps::check("linear::responses_are_read_in_linear_time", &CASES);
}

/// A stream from which one byte can be read at a time.
struct ByteByByte<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for ByteByByte<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut byte = [0];
        let mut part = ReadBuf::new(&mut byte);
        ready!(Pin::new(&mut self.0).poll_read(context, &mut part))?;
        buffer.put_slice(part.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ByteByByte<S> {
    fn poll_write(mut self: Pin<&mut Self>, to: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(to, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

fn run(task: impl Future) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    black_box(runtime.block_on(task));
}

/// Runs a client against a server that sends `answer` after the first bytes of the request.
fn with_server(answer: &[u8], client: impl AsyncFnOnce(DuplexStream)) {
    let (here, there) = duplex(1 << 20);
    run(async { tokio::join!(client(here), say_over(there, answer.to_vec())) });
}

fn http(answer: &[u8]) {
    with_server(answer, async |stream| exchange_http(stream).await);
}

fn slow_http(answer: &[u8]) {
    with_server(answer, async |stream| exchange_http(ByteByByte(stream)).await);
}

async fn exchange_http(stream: impl AsyncRead + AsyncWrite + Unpin) {
    let check = HttpCheck {
        port: 80,
        tls: None,
        method: "GET".into(),
        path: "/".into(),
        host: None,
        headers: Vec::new(),
        status: vec![200..=299],
        body_contains: Some("aaaaaaaaaaaaaaab".into()),
        probe_mtu: false,
    };
    let request = http::request(&check, PEER).unwrap();
    let _ = black_box(http::exchange(stream, request, &check).await);
}

/// The server sends bytes in place of a TLS handshake.
fn https(answer: &[u8]) {
    let tls = Tls { server_name: None, ca: None, verify: false, client: None };
    with_server(answer, async |stream| {
        let _ = black_box(tls::handshake(stream, &tls, Inside::Http1, None, PEER.ip()).await);
    });
}

fn grpc(answer: &[u8]) {
    with_server(answer, async |stream| exchange_grpc(stream).await);
}

fn slow_grpc(answer: &[u8]) {
    with_server(answer, async |stream| exchange_grpc(ByteByByte(stream)).await);
}

async fn exchange_grpc(stream: impl AsyncRead + AsyncWrite + Unpin) {
    let request = grpc::request("http", PEER, 80).unwrap();
    let _ = black_box(grpc::exchange(stream, request, grpc::question("", 0)).await);
}

fn health_message(framed: &[u8]) {
    let _ = black_box(grpc::health_of(framed));
}

/// Reads a line as the checks of agents and memcached servers do.
fn line(answer: &[u8]) {
    let (mut buffer, mut length) = (vec![0; answer.len() + 1], 0);
    run(read_line(&mut ByteByByte(answer), &mut buffer, &mut length, |byte| byte == b'\n'));
}

fn agent(line: &[u8]) {
    let check = AgentCheck { port: 80, send: None, min_weight: 10, max_weight: 200 };
    let _ = black_box(agent::judge(line, &check));
}

fn search(answer: &[u8]) {
    let form = ExpectForm::parse("expect_regex", "(a|aa)+b|(x*)*y$").unwrap();
    let expect = Expect::new(form).unwrap();
    for length in [1, 999] {
        let mut search = Search::new(&expect).unwrap();
        for chunk in answer.chunks(length) {
            black_box((search.add(chunk), search.failure()));
        }
    }
}

fn dns(answer: &[u8]) {
    black_box(judge(answer, &dns_query()));
}

fn program_request(message: &[u8]) {
    run(read_request(&mut ByteByByte(message)));
    let _ = black_box((Request::parse(message), Reply::parse(message)));
}

fn program_output(output: &[u8]) {
    run(async { FirstLine::default().read(Some(ByteByByte(output))).await });
}

const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 80);

const CASES: [Case<'_>; 23] = [
    ("HTTP header fields", |n| http_head(&"A: b\r\n".repeat(n / 8)), http),
    ("one HTTP header field", |n| http_head(&format!("A: {}\r\n", "b".repeat(12 * n))), http),
    ("an HTTP head, byte by byte", |n| http_head(&format!("A: {}\r\n", "b".repeat(4 * n))), slow_http),
    ("an HTTP head without an end", |n| format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(12 * n)).into(), http),
    ("HTTP responses before the last", |n| "HTTP/1.1 100 Continue\r\n\r\n".repeat(n).into(), http),
    ("an HTTP body", |n| [http_head(""), "a".repeat(40 * n).into()].concat(), http),
    ("an HTTP body, byte by byte", |n| [http_head(""), "a".repeat(n).into()].concat(), slow_http),
    (
        "chunks of an HTTP body",
        |n| [http_head("Transfer-Encoding: chunked\r\n"), "1\r\na\r\n".repeat(n).into()].concat(),
        http,
    ),
    ("TLS records of one byte", |n| [22, 3, 3, 0, 1, 2].repeat(n), https),
    (
        "a long TLS handshake message",
        |n| {
            let record = [&[22, 3, 3, 0, 40][..], &[0; 40]].concat();
            [&[22, 3, 3, 0, 4, 2, 0, 0xff, 0xff][..], &record.repeat(n)].concat()
        },
        https,
    ),
    ("HTTP/2 pings", |n| h2(&[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8].repeat(n)), grpc),
    ("HTTP/2 settings", |n| h2(&[0, 0, 0, 4, 0, 0, 0, 0, 0].repeat(n)), grpc),
    (
        "an HTTP/2 frame, byte by byte",
        |n| {
            let length = u16::try_from(8 * n).unwrap().to_be_bytes();
            h2(&[&[0, length[0], length[1], 9, 0, 0, 0, 0, 1][..], &vec![0; 8 * n]].concat())
        },
        slow_grpc,
    ),
    (
        "fields of a gRPC message",
        |n| {
            let length = u32::try_from(2 * n).unwrap().to_be_bytes();
            [&[0][..], &length, &[16, 1].repeat(n)].concat()
        },
        health_message,
    ),
    ("a line, byte by byte", |n| "VERSION ".repeat(n).into(), line),
    ("words of an agent", |n| "up 90% ".repeat(n).into(), agent),
    ("bytes that nearly match", |n| "a".repeat(8 * n).into(), search),
    ("bytes that could match at the end", |n| "x".repeat(8 * n).into(), search),
    ("DNS records", |n| dns_answer(&[0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 0, 0, 1, 7].repeat(n)), dns),
    ("DNS records with chains of pointers", |n| dns_answer(&chains(n)), dns),
    (
        "arguments of a program",
        |n| {
            let lines = "argument a\nbackend b\n".repeat(n);
            format!("sluicegate-check 1\nprogram a\n{lines}\n").into()
        },
        program_request,
    ),
    ("blank lines of a program", |n| "\n \n".repeat(n).into(), program_output),
    ("a long line of a program", |n| "\u{e9}".repeat(4 * n).into(), program_output),
];

fn http_head(fields: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{fields}\r\n").into()
}

/// Returns frames after an empty SETTINGS frame.
fn h2(frames: &[u8]) -> Vec<u8> {
    [&[0, 0, 0, 4, 0, 0, 0, 0, 0][..], frames].concat()
}

fn dns_query() -> Vec<u8> {
    query([0x12, 0x34], "www.example.org", DnsRecord::A).unwrap()
}

/// Returns a response with 65,535 records, of which only the first are present.
fn dns_answer(records: &[u8]) -> Vec<u8> {
    let mut answer = dns_query();
    answer[2] |= 0x82; // a truncated response
    answer[6..8].copy_from_slice(&[0xff, 0xff]);
    [answer, records.to_vec()].concat()
}

/// Returns a record that contains a chain of 100 pointers, and records whose names are the last
/// pointer of the chain.
fn chains(records: usize) -> Vec<u8> {
    let count = 100;
    let start = dns_query().len() + 12;
    let pointer = |at: usize| u16::try_from(0xc000 | at).unwrap().to_be_bytes();
    let chain = (0..count).flat_map(|number| match number {
        0 => pointer(12),
        number => pointer(start + 2 * (number - 1)),
    });
    let [high, low] = u16::try_from(2 * count).unwrap().to_be_bytes();
    let first: Vec<u8> = [0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 0, high, low].into_iter().chain(chain).collect();
    let [high, low] = pointer(start + 2 * (count - 1));
    [first, [high, low, 0, 16, 0, 1, 0, 0, 0, 0, 0, 1, 7].repeat(records)].concat()
}
