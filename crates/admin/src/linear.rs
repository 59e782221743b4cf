//! Tests that the cost of reading requests and client certificates is linear in their length.

use std::hint::black_box;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::Router;
use rcgen::{CertificateParams, DnType, KeyPair};
use steps::Case;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::sync::mpsc;

use crate::app_state::Rules;
use crate::connection_limiter::ConnectionLimiter;
use crate::roles::names;
use crate::routes::router;
use crate::server::{Limits, Peer, converse};

// Promise: linear-time
#[test]
fn requests_are_read_in_linear_time() {
    steps::check("linear::requests_are_read_in_linear_time", &CASES);
}

/// The stream of a server that can read at most `.1` bytes at a time.
struct Parts(DuplexStream, usize);

impl AsyncRead for Parts {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = vec![0; self.1.min(buffer.remaining())];
        let mut part = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut self.0).poll_read(context, &mut part))?;
        buffer.put_slice(part.filled());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Parts {
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

fn requests(bytes: &[u8]) {
    serve(bytes, 1_600);
}

fn byte_by_byte(bytes: &[u8]) {
    serve(bytes, 1);
}

/// Serves a client on the Unix socket, which has all roles. Commands get no result, as if the
/// balancer were stopping.
fn serve(bytes: &[u8], part: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let (sender, mut commands) = mpsc::channel(1_024);
        let api = router(sender, Rules::new(true), Router::new());
        let (mut client, server) = duplex(1 << 22);
        let permit = ConnectionLimiter::new(1).acquire().await;
        let peer = Peer::Unix { user: None };
        let served = converse(Parts(server, part), peer, api, Limits::default(), permit.progress());
        let asked = async {
            // The server may close the connection before it has read everything.
            let _ = client.write_all(bytes).await;
            let _ = client.shutdown().await;
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer).await;
            black_box(answer);
        };
        let refused = async { while commands.recv().await.is_some() {} };
        tokio::join!(served, asked, refused);
    });
}

fn certificate(der: &[u8]) {
    black_box(names(der));
}

const CASES: [Case<'_>; 12] = [
    ("one header field", |n| get("/v1/status", &format!("A: {}\r\n", "b".repeat(100 * n))), requests),
    ("a head, byte by byte", |n| get("/v1/status", &format!("A: {}\r\n", "b".repeat(8 * n))), byte_by_byte),
    ("a long path", |n| get(&format!("/v1/backends/{}", "%2F/".repeat(24 * n)), ""), requests),
    ("parameters of a query", |n| get(&format!("/v1/flows?{}", "vip=a&".repeat(16 * n)), ""), requests),
    ("kinds of events", |n| get(&format!("/v1/events?kind={}", "vip,".repeat(16 * n)), ""), requests),
    (
        "drop reasons of a capture",
        |n| post(&format!("/v1/capture?drop={}", "too_big,".repeat(8 * n)), ""),
        requests,
    ),
    (
        "characters of a reason",
        |n| post(&format!("/v1/backends/b/drain?reason={}", "%41+".repeat(24 * n)), ""),
        requests,
    ),
    ("requests on one connection", |n| get("/nothing", "").repeat(n), requests),
    (
        "chunks of a body",
        |n| {
            let head = "POST /v1/reload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
            format!("{head}{}0\r\n\r\n", "1\r\n \r\n".repeat(n)).into()
        },
        requests,
    ),
    (
        "a JSON body",
        |n| post("/v1/backends/b/weight", &format!("{{\"weight\": {}1}}", " ".repeat(100 * n))),
        requests,
    ),
    ("a configuration, byte by byte", |n| put("/v1/config", &"# a\n".repeat(n)), byte_by_byte),
    ("names in a certificate", names_of, certificate),
];

fn get(path: &str, fields: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n").into()
}

fn post(path: &str, body: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into()
}

fn put(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("PUT {path} HTTP/1.1\r\nHost: x\r\nIf-Match: \"0\"\r\nContent-Length: {length}\r\n\r\n{body}")
        .into()
}

fn names_of(count: usize) -> Vec<u8> {
    let all: Vec<String> = (0..count).map(|number| format!("n{number}.example.net")).collect();
    let mut params = CertificateParams::new(all).unwrap();
    params.distinguished_name.push(DnType::CommonName, "a");
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
}
