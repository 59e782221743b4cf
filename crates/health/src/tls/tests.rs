//! Tests of `tls` that use HTTPS checks.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio_rustls::TlsAcceptor;

use super::super::hostile::{ask, say, say_over, serve, silent, waits, words};
use super::*;
use config::{CheckKind, HttpCheck};

/// A certificate authority that signs test certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        Self::named("tests")
    }

    fn named(name: &str) -> Self {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn trust(&self) -> Tls {
        Tls { server_name: None, ca: Some(self.0.pem().into()), verify: true }
    }

    /// Returns a TLS acceptor whose certificate has these `names` and is valid in these years.
    pub(crate) fn server(&self, names: &[&str], years: (i32, i32), alpn: &str) -> TlsAcceptor {
        let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
        let mut parameters = CertificateParams::new(names).unwrap();
        parameters.not_before = date_time_ymd(years.0, 1, 1);
        parameters.not_after = date_time_ymd(years.1, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &self.0).unwrap();
        let secret = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let mut config = builder.with_single_cert(vec![certificate.der().clone()], secret).unwrap();
        config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

const NOW: (i32, i32) = (2000, 4000);

async fn https(acceptor: TlsAcceptor) -> u16 {
    serve(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let stream = acceptor.accept(stream).await?;
            say_over(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec()).await
        }
    })
    .await
}

fn kind(port: u16, tls: Tls, host: Option<&str>) -> CheckKind {
    CheckKind::Http(HttpCheck {
        port,
        tls: Some(tls),
        method: "GET".into(),
        path: "/".into(),
        host: host.map(Into::into),
        headers: Vec::new(),
        status: vec![200..=299],
        body_contains: Some("ok".into()),
    })
}

fn named(tls: Tls, name: &str) -> Tls {
    Tls { server_name: Some(name.into()), ..tls }
}

#[tokio::test]
async fn a_certificate_of_the_ca_passes_for_the_names_in_it() {
    let ca = Authority::new();
    let port = https(ca.server(&["www.example.org", "127.0.0.1"], NOW, "http/1.1")).await;
    assert_eq!(ask(&kind(port, ca.trust(), None)).await, Ok(()), "the address matches");
    assert_eq!(ask(&kind(port, ca.trust(), Some("www.example.org:8443"))).await, Ok(()), "the host matches");
    assert_eq!(
        ask(&kind(port, named(ca.trust(), "www.example.org"), Some("other.example.org"))).await,
        Ok(())
    );
    let other = kind(port, ca.trust(), Some("other.example.org"));
    assert_eq!(words(&other).await, "TLS: the certificate is not valid for this server name");
}

#[tokio::test]
async fn a_certificate_of_another_ca_fails_unless_nothing_is_verified() {
    let (ca, other, same_name) = (Authority::new(), Authority::named("another"), Authority::new());
    let port = https(ca.server(&["www.example.org"], NOW, "http/1.1")).await;
    let strict = kind(port, named(other.trust(), "www.example.org"), None);
    assert_eq!(words(&strict).await, "TLS: the certificate is not signed by the CA");
    let strict = kind(port, named(same_name.trust(), "www.example.org"), None);
    assert_eq!(words(&strict).await, "TLS: the certificate has a bad signature; the CA may have another key");
    let lax = Tls { server_name: None, ca: None, verify: false };
    assert_eq!(ask(&kind(port, lax, None)).await, Ok(()));
}

#[tokio::test]
async fn a_certificate_out_of_its_time_fails() {
    let ca = Authority::new();
    let port = https(ca.server(&["127.0.0.1"], (2000, 2001), "http/1.1")).await;
    assert_eq!(words(&kind(port, ca.trust(), None)).await, "TLS: the certificate has expired");
    let port = https(ca.server(&["127.0.0.1"], (3999, 4000), "http/1.1")).await;
    assert_eq!(words(&kind(port, ca.trust(), None)).await, "TLS: the certificate is not valid yet");
}

#[tokio::test]
async fn a_ca_that_is_none_is_said_to_be() {
    let ca = Authority::new();
    let port = https(ca.server(&["127.0.0.1"], NOW, "http/1.1")).await;
    for (text, expected) in [
        (Some(""), "TLS: cannot read the CA of the check (it contains no certificate)"),
        (None, "TLS: cannot read the CA of the check (it contains no certificate)"),
    ] {
        let tls = Tls { server_name: None, ca: text.map(Into::into), verify: true };
        assert_eq!(words(&kind(port, tls, None)).await, expected);
    }
}

#[tokio::test]
async fn a_server_without_tls_or_without_this_protocol_fails() {
    let ca = Authority::new();
    let plain = say("HTTP/1.1 400 Bad Request\r\n\r\n").await;
    assert_eq!(words(&kind(plain, ca.trust(), None)).await, "TLS: the response is not TLS");
    assert_eq!(
        words(&kind(say("").await, ca.trust(), None)).await,
        "connection closed before the response was complete"
    );
    let other = https(ca.server(&["127.0.0.1"], NOW, "h2")).await;
    assert!(words(&kind(other, ca.trust(), None)).await.starts_with("TLS: received fatal alert"));
    assert!(waits(&kind(silent().await, ca.trust(), None)).await);
}

#[test]
fn a_host_is_a_name_with_or_without_a_port() {
    let table = [
        ("www.example.org", "www.example.org"),
        ("www.example.org:443", "www.example.org"),
        ("192.0.2.1:443", "192.0.2.1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
    ];
    for (host, expected) in table {
        assert_eq!(without_port(host), expected);
    }
}

#[test]
fn settings_are_kept_by_ca_and_protocol_and_not_without_bound() {
    let lax = Tls { server_name: None, ca: None, verify: false };
    for _ in 0..3 * MOST_KNOWN {
        let tls = Authority::new().trust();
        let first = settings(&tls, Inside::Http1).unwrap();
        assert_eq!(first.alpn_protocols, [b"http/1.1"]);
        assert_eq!(settings(&tls, Inside::Http2).unwrap().alpn_protocols, [b"h2"]);
        assert!(KNOWN.lock().unwrap().len() <= MOST_KNOWN);
        settings(&lax, Inside::Http1).unwrap();
    }
}
