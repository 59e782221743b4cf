//! Mutual TLS for the TCP listener, restricted to TLS 1.3.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// The reasons why the certificates or the key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The PEM data is invalid.
    #[error("cannot read {0} of admin.tcp as PEM: {1}")]
    Pem(&'static str, rustls::pki_types::pem::Error),
    /// The PEM data contains no certificate.
    #[error("{0} of admin.tcp contains no certificate")]
    Empty(&'static str),
    /// The certificate and the key do not match, or rustls does not accept them.
    #[error("cannot use the certificates or the key of admin.tcp: {0}")]
    Rejected(String),
}

/// Creates an acceptor that presents `certificates`, of which the first is the server certificate.
/// The acceptor accepts only clients with a certificate signed by `client_ca`.
///
/// # Errors
/// Returns [`TlsError`] if the PEM data is invalid, or if the certificates and the key do not
/// match.
pub fn acceptor(certificates: &str, key: &str, client_ca: &str) -> Result<TlsAcceptor, TlsError> {
    let rejected = |error: &dyn std::fmt::Display| TlsError::Rejected(error.to_string());
    let mut roots = RootCertStore::empty();
    for certificate in read(client_ca, CLIENT_CA)? {
        roots.add(certificate).map_err(|error| rejected(&error))?;
    }
    let key =
        PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| TlsError::Pem("key_file", error))?;
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

const CERTIFICATES: &str = "certificate_file";
const CLIENT_CA: &str = "client_ca_file";
