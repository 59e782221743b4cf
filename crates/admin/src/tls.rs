//! Mutual TLS for the TCP listener: from PEM texts to an acceptor. TLS 1.3 only.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// Why the texts make no acceptor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A text is not what it should be.
    #[error("admin.tcp: {0} in PEM not readable: {1}")]
    Pem(&'static str, rustls::pki_types::pem::Error),
    /// A text holds no certificate.
    #[error("admin.tcp: no certificate among {0}")]
    Empty(&'static str),
    /// They do not go together.
    #[error("admin.tcp: {0}")]
    Rejected(String),
}

/// An acceptor that shows `certificates` (the server's first), and lets in who shows one of `client_ca`.
///
/// # Errors
/// [`TlsError`]: a text is not PEM, or they do not go together.
pub fn acceptor(certificates: &str, key: &str, client_ca: &str) -> Result<TlsAcceptor, TlsError> {
    let rejected = |error: &dyn std::fmt::Display| TlsError::Rejected(error.to_string());
    let mut roots = RootCertStore::empty();
    for certificate in read(client_ca, CLIENT_CA)? {
        roots.add(certificate).map_err(|error| rejected(&error))?;
    }
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|error| TlsError::Pem("the private key", error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|error| rejected(&error))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| rejected(&error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(read(certificates, CERTIFICATES)?, key)
        .map_err(|error| rejected(&error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn read(text: &str, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let found = found.map_err(|error| TlsError::Pem(what, error))?;
    if found.is_empty() { Err(TlsError::Empty(what)) } else { Ok(found) }
}

const CERTIFICATES: &str = "the server's certificates";
const CLIENT_CA: &str = "the clients' CA";
