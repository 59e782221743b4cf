//! Tests of `attempt`: the TCP check, and properties that all kinds of checks have.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::super::hostile::{HERE, ask, nobody, serve, silent, words};
use super::super::{Dialer, Failure, Interim, Pass};
use config::{CheckKind, HttpCheck, MemcachedCheck, TcpCheck, Transport};

fn tcp(port: u16) -> CheckKind {
    CheckKind::Tcp(TcpCheck { port, send: None, expect: None })
}

#[tokio::test]
async fn a_listening_port_passes_though_nothing_is_said() {
    assert_eq!(ask(&tcp(silent().await)).await, Ok(()));
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_refuses() {
    let port = nobody().await;
    let http = HttpCheck {
        port,
        tls: None,
        method: "GET".into(),
        path: "/".into(),
        host: None,
        headers: Vec::new(),
        status: vec![200..=299],
        body_contains: None,
        probe_mtu: false,
    };
    for kind in [
        tcp(port),
        CheckKind::Memcached(MemcachedCheck { port, transport: Transport::Tcp, probe_mtu: false }),
        CheckKind::Http(http),
    ] {
        assert_eq!(words(&kind).await, "connection refused");
    }
}

#[tokio::test]
async fn connection_ends_by_reset_without_time_wait() {
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let kind = tcp(listener.local_addr().unwrap().port());
    assert_eq!(ask(&kind).await, Ok(()));
    let (mut stream, _) = listener.accept().await.unwrap();
    let error = stream.read(&mut [0]).await.expect_err("a reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn ipv6_is_dialled_as_ipv4_is() {
    let listener = TcpListener::bind("[::1]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let here: IpAddr = "::1".parse().unwrap();
    assert_eq!(
        super::attempt(&tcp(port), here, &Dialer::Direct, &Interim::default()).await,
        Ok(Pass::Answered)
    );
    let socket = Dialer::Direct.udp(SocketAddr::new(here, port)).await.unwrap();
    assert_eq!(socket.peer_addr().unwrap(), SocketAddr::new(here, port));
}

#[test]
fn an_error_of_the_socket_becomes_the_reason_that_it_is() {
    let table = [
        (libc_code::ECONNREFUSED, "refused"),
        (libc_code::EHOSTUNREACH, "unreachable"),
        (libc_code::ENETUNREACH, "unreachable"),
        (libc_code::ETIMEDOUT, "no_answer"),
        (libc_code::ECONNRESET, "reset"),
        (libc_code::EPIPE, "reset"),
        (libc_code::EMFILE, "local"),
        (libc_code::ENOBUFS, "local"),
        (libc_code::EADDRNOTAVAIL, "local"),
        (libc_code::EPERM, "local"),
        (libc_code::EACCES, "local"),
    ];
    for (code, reason) in table {
        let failure = Failure::from(&io::Error::from_raw_os_error(code));
        assert_eq!(failure.reason(), reason, "{failure}");
        assert_eq!(failure.is_local(), reason == "local");
    }
}

#[test]
fn every_reason_is_in_the_list_and_every_message_has_words() {
    let all = [
        (Failure::NoAnswer, "no answer"),
        (Failure::Refused, "connection refused"),
        (Failure::PortUnreachable, "ICMP port unreachable"),
        (Failure::Unreachable, "no route to the backend"),
        (Failure::Reset, "connection reset"),
        (Failure::Closed, "connection closed before the response was complete"),
        (Failure::Local("no port left".into()), "this machine could not send the check: no port left"),
        (Failure::Tls("x".into()), "TLS: x"),
        (Failure::Malformed("x".into()), "x"),
        (Failure::Unexpected("x".into()), "x"),
        (
            Failure::Status { found: 503, wanted: vec![200..=299, 301..=301] },
            "status 503, expected 200-299, 301",
        ),
        (Failure::Body { wanted: Arc::from("ok") }, "body does not contain \"ok\""),
        (Failure::GrpcStatus(14), "gRPC status 14, expected 0"),
        (Failure::NotServing(2), "gRPC health status NOT_SERVING"),
        (Failure::Rcode(2), "DNS response code SERVFAIL, expected NOERROR"),
        (Failure::Program("exit status 2".into()), "exit status 2"),
        (Failure::NoRecord, "DNS response without a record of the requested type"),
    ];
    let reasons: BTreeSet<&str> = all.iter().map(|(failure, _)| failure.reason()).collect();
    assert_eq!(reasons, BTreeSet::from(Failure::REASONS));
    for (failure, words) in all {
        assert_eq!(failure.to_string(), words);
    }
}

#[tokio::test]
async fn a_dropped_attempt_resets_its_connection_at_once() {
    let (closed, mut was_closed) = tokio::sync::mpsc::unbounded_channel();
    let port = serve(move |mut stream| {
        let closed = closed.clone();
        async move {
            let mut asked = [0; 4096];
            while stream.read(&mut asked).await? > 0 {}
            let _ = closed.send(());
            Ok(())
        }
    })
    .await;
    // The server reads the request and sends no response, so the attempt waits. Dropping the
    // attempt must reset the connection.
    let kind = CheckKind::Memcached(MemcachedCheck { port, transport: Transport::Tcp, probe_mtu: false });
    assert!(super::super::hostile::waits(&kind).await);
    assert!(was_closed.try_recv().is_err(), "the connection was closed gracefully");
}

/// Linux error numbers.
mod libc_code {
    pub(super) const EPERM: i32 = 1;
    pub(super) const EACCES: i32 = 13;
    pub(super) const EMFILE: i32 = 24;
    pub(super) const EPIPE: i32 = 32;
    pub(super) const EADDRNOTAVAIL: i32 = 99;
    pub(super) const ENETUNREACH: i32 = 101;
    pub(super) const ECONNRESET: i32 = 104;
    pub(super) const ENOBUFS: i32 = 105;
    pub(super) const ETIMEDOUT: i32 = 110;
    pub(super) const ECONNREFUSED: i32 = 111;
    pub(super) const EHOSTUNREACH: i32 = 113;
}
