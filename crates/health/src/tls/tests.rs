//! Tests of `tls` that use HTTPS checks.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, Signer, SigningKey, SingleCertAndKey};
use rustls::{
    AlertDescription, CertificateError, OtherError, ServerConfig, SignatureAlgorithm,
    SupportedProtocolVersion,
};
use tokio_rustls::TlsAcceptor;

use super::super::hostile::{ask, say, say_over, serve, silent, waits, words};
use super::*;
use config::{CheckKind, HttpCheck, PrivateKey};

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

    /// Returns a client certificate that this authority has signed.
    fn client(&self) -> ClientCertificate {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(Vec::new()).unwrap().signed_by(&key, &self.0).unwrap();
        let key = PrivateKey::parse(&key.serialize_pem()).unwrap();
        ClientCertificate { certificates: certificate.pem().into(), key }
    }

    /// Returns a TLS acceptor that requires a client certificate of the authority `clients`.
    fn strict_server(&self, clients: &Self, versions: &[&'static SupportedProtocolVersion]) -> TlsAcceptor {
        let mut roots = RootCertStore::empty();
        roots.add(clients.0.der().clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &self.0).unwrap();
        let secret = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let builder = builder.with_client_cert_verifier(verifier.build().unwrap());
        let config = builder.with_single_cert(vec![certificate.der().clone()], secret).unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    pub(crate) fn trust(&self) -> Tls {
        Tls { server_name: None, ca: Some(self.0.pem().into()), verify: true, client: None }
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
        probe_mtu: false,
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
    assert_eq!(
        words(&strict).await,
        "TLS: a signature of the certificate or of the handshake is wrong; the CA may have another key, or an RSA key is \
         shorter than 2048 bits"
    );
    let lax = Tls { server_name: None, ca: None, verify: false, client: None };
    assert_eq!(ask(&kind(port, lax, None)).await, Ok(()));
}

#[tokio::test]
async fn client_certificate_is_presented_and_its_absence_has_words() {
    let (ca, clients) = (Authority::new(), Authority::named("clients"));
    let with = |client| Tls { client: Some(client), ..ca.trust() };
    for versions in [&[&version::TLS12], &[&version::TLS13]] {
        let port = https(ca.strict_server(&clients, versions)).await;
        assert_eq!(ask(&kind(port, with(clients.client()), None)).await, Ok(()));
        let missing = words(&kind(port, ca.trust(), None)).await;
        assert!(missing.contains("client certificate"), "{missing}");
        let other = words(&kind(port, with(Authority::named("other").client()), None)).await;
        let expected = [
            "TLS: the server does not trust the CA of the client certificate",
            "TLS: the server rejected the client certificate",
        ];
        assert!(expected.contains(&&*other), "{other}");
    }
}

#[tokio::test]
async fn client_certificate_that_cannot_be_used_is_a_local_failure() {
    let ca = Authority::new();
    let port = https(ca.server(&["127.0.0.1"], NOW, "http/1.1")).await;
    let mixed = ClientCertificate { key: ca.client().key, ..ca.client() };
    let failure = ask(&kind(port, Tls { client: Some(mixed), ..ca.trust() }, None)).await.unwrap_err();
    assert!(failure.is_local());
    assert!(
        failure.to_string().ends_with("(the private key does not belong to the certificate)"),
        "{failure}"
    );
}

/// A key that offers one signature scheme, and signs with arbitrary bytes.
#[derive(Clone, Debug)]
struct FalseKey(SignatureScheme);

impl SigningKey for FalseKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&self.0).then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        match self.0 {
            SignatureScheme::ECDSA_NISTP521_SHA512 => SignatureAlgorithm::ECDSA,
            _ => SignatureAlgorithm::RSA,
        }
    }
}

impl Signer for FalseKey {
    fn sign(&self, _message: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(vec![0; 128])
    }

    fn scheme(&self) -> SignatureScheme {
        self.0
    }
}

/// The TLS library can neither read X.509 version 1 certificates nor verify signatures of 1024-bit
/// RSA keys or of keys on the curve P-521.
#[tokio::test]
async fn certificates_beyond_the_library_pass_without_verification() {
    let lax = || Tls { server_name: None, ca: None, verify: false, client: None };
    for (pem, scheme) in [
        (include_str!("tests/v1-rsa1024.pem"), SignatureScheme::RSA_PSS_SHA256),
        (include_str!("tests/p521.pem"), SignatureScheme::ECDSA_NISTP521_SHA512),
    ] {
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let certified = Arc::new(CertifiedKey::new(vec![certificate], Arc::new(FalseKey(scheme))));
        for versions in [&[&version::TLS12], &[&version::TLS13]] {
            let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
            let builder = builder.with_protocol_versions(versions).unwrap().with_no_client_auth();
            let config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&certified))));
            let port = https(TlsAcceptor::from(Arc::new(config))).await;
            assert_eq!(ask(&kind(port, lax(), None)).await, Ok(()), "{scheme:?} {versions:?}");
            assert!(ask(&kind(port, Authority::new().trust(), None)).await.is_err());
        }
    }
}

#[test]
fn tls_errors_have_words_for_operators() {
    let other = |text: &'static str| {
        Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(std::io::Error::other(text)))))
    };
    let table = [
        (other("UnsupportedCertVersion"), "the certificate has X.509 version 1 or 2 instead of 3"),
        (other("CaUsedAsEndEntity"), "the certificate of the server is a CA certificate"),
        (
            Error::AlertReceived(AlertDescription::ProtocolVersion),
            "the server supports neither TLS 1.2 nor TLS 1.3",
        ),
        (
            Error::AlertReceived(AlertDescription::UnrecognisedName),
            "the server does not know this server name (SNI)",
        ),
        (Error::AlertReceived(AlertDescription::CertificateExpired), "the client certificate has expired"),
        (Error::AlertReceived(AlertDescription::DecodeError), "received fatal alert: DecodeError"),
    ];
    for (error, expected) in table {
        assert_eq!(tls_words(&error), expected);
    }
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
        (Some(""), "TLS: cannot read the CA of the check (the file contains no certificate)"),
        (None, "TLS: cannot read the CA of the check (the file contains no certificate)"),
    ] {
        let tls = Tls { server_name: None, ca: text.map(Into::into), verify: true, client: None };
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
    let alpn = "TLS: the server does not support the protocol of the check (ALPN)";
    assert_eq!(words(&kind(other, ca.trust(), None)).await, alpn);
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
    let lax = Tls { server_name: None, ca: None, verify: false, client: None };
    for _ in 0..3 * MOST_KNOWN {
        let tls = Authority::new().trust();
        let first = settings(&tls, Inside::Http1).unwrap();
        assert_eq!(first.alpn_protocols, [b"http/1.1"]);
        assert_eq!(settings(&tls, Inside::Http2).unwrap().alpn_protocols, [b"h2"]);
        assert!(KNOWN.lock().unwrap().len() <= MOST_KNOWN);
        settings(&lax, Inside::Http1).unwrap();
    }
}
