//! Tests of the TCP listener with TLS: accepted and rejected clients, roles, and replaced
//! certificates.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use admin::{Limits, Listener, Roles, Route, Rules, Tls, TlsError, acceptor, router, routes, serve};
use axum::Router;
use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;

use crate::mock;

type Ca = CertifiedIssuer<'static, KeyPair>;

fn ca() -> Ca {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Issues a certificate for `127.0.0.1`.
fn issue(ca: &Ca) -> (Certificate, KeyPair) {
    issue_to(ca, "nobody")
}

fn issue_to(ca: &Ca, name: &str) -> (Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    (params.signed_by(&key, ca).unwrap(), key)
}

/// Starts a TLS listener that accepts clients of `ca`. The server certificate of the listener is
/// also signed by `ca`.
async fn open(ca: &Ca, limits: Limits) -> SocketAddr {
    open_to_change(ca, limits).await.0
}

/// Starts a listener and returns its address and the sender for new certificates and roles.
async fn open_to_change(ca: &Ca, limits: Limits) -> (SocketAddr, watch::Sender<Tls>) {
    let (certificate, key) = issue(ca);
    let acceptor = acceptor(&certificate.pem(), &key.serialize_pem(), &ca.pem()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (commands, _) = mock::start();
    let router = router(commands, Rules::new(true), Router::new());
    let roles = Roles { operate: vec!["alice".into()], configure: vec!["carol".into()] };
    let (tls, shown) = watch::channel(Tls { acceptor, roles: Arc::new(roles) });
    tokio::spawn(serve(Listener::Tls(listener, shown), router, limits));
    (address, tls)
}

// Promise: reload-access
#[tokio::test]
async fn roles_and_client_ca_change_without_restart() {
    let (ca, other) = (ca(), ca());
    let (address, tls) = open_to_change(&ca, Limits::default()).await;
    let drain = "POST /v1/backends/b1/drain";
    let alice = || Some(issue_to(&ca, "alice"));
    assert!(order(address, &ca, alice(), drain).await.starts_with("HTTP/1.1 200"));
    tls.send_modify(|tls| tls.roles = Arc::new(Roles { operate: vec!["bob".into()], ..Roles::default() }));
    assert!(order(address, &ca, alice(), drain).await.starts_with("HTTP/1.1 403"));
    assert!(order(address, &ca, Some(issue_to(&ca, "bob")), drain).await.starts_with("HTTP/1.1 200"));
    let (certificate, key) = issue(&other);
    let next = acceptor(&certificate.pem(), &key.serialize_pem(), &other.pem()).unwrap();
    tls.send_modify(|tls| tls.acceptor = next);
    assert_eq!(ask(address, &other, alice()).await, "", "a certificate of the previous CA");
    assert!(ask(address, &other, Some(issue(&other))).await.starts_with("HTTP/1.1 200"));
}

/// Returns the response to `GET /v1/status` for a client with this certificate, or an empty string
/// after a failed handshake.
async fn ask(address: SocketAddr, ca: &Ca, certificate: Option<(Certificate, KeyPair)>) -> String {
    order(address, ca, certificate, "GET /v1/status").await
}

/// Returns the response to a request without a body.
async fn order(
    address: SocketAddr,
    ca: &Ca,
    certificate: Option<(Certificate, KeyPair)>,
    line: &str,
) -> String {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match certificate {
        Some((certificate, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![certificate.der().clone()], key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    let stream = TcpStream::connect(address).await.unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let mut answer = Vec::new();
    // In TLS 1.3, the client detects a rejected certificate only at its first read.
    if let Ok(mut stream) = connector.connect(address.ip().into(), stream).await {
        let request = format!("{line} HTTP/1.1\r\nHost: lb\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(request.as_bytes()).await;
        let _ = stream.read_to_end(&mut answer).await;
    }
    String::from_utf8_lossy(&answer).into_owned()
}

// Promise: api-access
#[tokio::test]
async fn only_certificates_of_the_client_ca_are_accepted() {
    let (ours, theirs) = (ca(), ca());
    let address = open(&ours, Limits::default()).await;
    let answer = ask(address, &ours, Some(issue(&ours))).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(ask(address, &ours, None).await, "");
    assert_eq!(ask(address, &ours, Some(issue(&theirs))).await, "");
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /v1/status HTTP/1.1\r\nHost: lb\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    // The listener still accepts clients after rejecting others.
    assert!(ask(address, &ours, Some(issue(&ours))).await.starts_with("HTTP/1.1 200"));
}

// Promise: api-roles
/// This test lists the expected roles independently of the implementation.
#[tokio::test]
async fn every_route_requires_its_role() {
    let ca = ca();
    let address = open(&ca, Limits::default()).await;
    let needed = |route: &Route| match (route.method, route.path) {
        ("get", _) => 0,
        ("put", "/v1/config") | ("post", "/v1/reload") => 2,
        ("post", "/v1/config/confirm" | "/v1/config/rollback") => 2,
        ("post", "/v1/machine/upgrade") => 2,
        ("post", path)
            if path.starts_with("/v1/backends/")
                || path.starts_with("/v1/machine/")
                || path.starts_with("/v1/vips/") =>
        {
            1
        }
        ("post" | "delete", "/v1/flows" | "/v1/capture" | "/v1/log/level" | "/v1/kv/top") => 1,
        other => panic!("which role is {other:?} for?"),
    };
    let mut needs = [0; 3];
    for route in routes().iter().filter(|route| route.path != "/v1/capture" || route.method == "delete") {
        needs[needed(route)] += 1;
        let line = format!("{} {}", route.method.to_uppercase(), route.path.replace("{name}", "b1"));
        for (has, name) in ["nobody", "alice", "carol"].into_iter().enumerate() {
            let answer = order(address, &ca, Some(issue_to(&ca, name)), &line).await;
            let refused =
                answer.starts_with("HTTP/1.1 403") && answer.contains("this request needs the role");
            assert_eq!(refused, has < needed(route), "{name} {line}: {answer}");
        }
    }
    assert!(needs.iter().all(|count| *count >= 2), "{needs:?}");
}

// Promise: api-roles
#[tokio::test]
async fn upgrade_over_tls_cannot_choose_the_program() {
    let ca = ca();
    let address = open(&ca, Limits::default()).await;
    let upgrade = "POST /v1/machine/upgrade";
    let carol = || Some(issue_to(&ca, "carol"));
    let refused = order(address, &ca, carol(), &format!("{upgrade}?binary=/tmp/other")).await;
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("another program file"), "{refused}");
    let upgraded = order(address, &ca, carol(), upgrade).await;
    assert!(upgraded.starts_with("HTTP/1.1 200"), "{upgraded}");
}

#[tokio::test]
async fn a_client_without_a_handshake_is_disconnected() {
    let limits = Limits { head: Duration::from_millis(50), connections: 1, ..Limits::default() };
    let address = open(&ca(), limits).await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(10), silent.read_to_end(&mut answer)).await;
    assert_eq!(read.expect("the server ends it").unwrap_or_default(), 0);
}

#[test]
fn invalid_certificate_files_are_named_in_the_error() {
    let ca = ca();
    let ((certificate, key), (_, other)) = (issue(&ca), issue(&ca));
    let (certificate, key) = (certificate.pem(), key.serialize_pem());
    let refused = |certificates: &str, key: &str, client_ca: &str| {
        acceptor(certificates, key, client_ca).err().expect("refused").to_string()
    };
    assert!(acceptor(&certificate, &key, &ca.pem()).is_ok());
    assert!(refused("", &key, &ca.pem()).contains("certificate_file"));
    assert!(refused(&certificate, "", &ca.pem()).contains("key_file"));
    assert!(refused(&certificate, &key, "no PEM").contains("client_ca_file"));
    let error = acceptor(&certificate, &other.serialize_pem(), &ca.pem()).err().expect("refused");
    assert!(matches!(error, TlsError::Rejected(_)), "{error}");
}
