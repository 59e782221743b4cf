//! TLS connections to backends.
//!
//! The root certificates of the system are not used, because backends have private names. If a
//! check has no CA, neither the certificate of the server nor the signatures of the handshake are
//! verified, because a server with a false certificate could also create valid signatures. Such a
//! check therefore accepts certificates that the TLS library cannot read.
//!
//! Each attempt performs a full handshake, because a resumed session would pass even after the
//! certificate has expired.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WantsClientCert};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore, SignatureScheme, version,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::failure::tls_words;
use super::{Failure, lock};
use config::{ClientCertificate, Tls};

/// The protocol inside TLS, for ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inside {
    /// The ALPN name `http/1.1`.
    Http1,
    /// The ALPN name `h2`.
    Http2,
}

/// Performs the TLS handshake. The server name comes from the check. If the check has no server
/// name, `host` without its port is used. If `host` is also missing, the address is used.
pub(super) async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    tls: &Tls,
    inside: Inside,
    host: Option<&str>,
    address: IpAddr,
) -> Result<TlsStream<S>, Failure> {
    let name = server_name(tls.server_name.as_deref(), host, address)?;
    let config = settings(tls, inside)?;
    let connected = TlsConnector::from(config).connect(name, stream).await;
    connected.map_err(|error| Failure::from(&error))
}

fn server_name(
    asked: Option<&str>,
    host: Option<&str>,
    address: IpAddr,
) -> Result<ServerName<'static>, Failure> {
    let Some(name) = asked.or_else(|| host.map(without_port)) else {
        return Ok(ServerName::IpAddress(address.into()));
    };
    let refused = |_| Failure::Tls(format!("{name:?} is not a valid server name").into());
    ServerName::try_from(name.to_owned()).map_err(refused)
}

/// Returns the host part of `host`, `host:port` or `[address]:port`.
fn without_port(host: &str) -> &str {
    if let Some(inner) = host.strip_prefix('[') {
        return inner.split(']').next().unwrap_or(inner);
    }
    match host.split_once(':') {
        Some((name, port)) if !port.contains(':') => name,
        _ => host,
    }
}

/// Returns the TLS settings of a check. The settings are cached, because reading a bundle of 140
/// certificates takes 2 ms.
fn settings(tls: &Tls, inside: Inside) -> Result<Arc<ClientConfig>, Failure> {
    let key = Known { ca: tls.ca.clone(), verify: tls.verify, client: tls.client.clone(), inside };
    let mut known = lock(&KNOWN);
    if let Some((_, config)) = known.iter().find(|(other, _)| other.is(&key)) {
        return Ok(Arc::clone(config));
    }
    let config = Arc::new(build(tls, inside)?);
    if known.len() >= MOST_KNOWN {
        known.clear(); // Reloads leave unused entries in the cache.
    }
    known.push((key, Arc::clone(&config)));
    Ok(config)
}

fn build(tls: &Tls, inside: Inside) -> Result<ClientConfig, Failure> {
    let failed = |error: Error| Failure::Tls(tls_words(&error).into());
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .map_err(failed)?;
    let config = if tls.verify {
        builder.with_root_certificates(roots(tls.ca.as_deref().unwrap_or_default())?)
    } else {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anyone))
    };
    let mut config = match &tls.client {
        None => config.with_no_client_auth(),
        Some(client) => authenticated(config, client).map_err(|why| {
            Failure::Local(format!("cannot use certificate_file with key_file ({why})").into())
        })?,
    };
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![match inside {
        Inside::Http1 => b"http/1.1".to_vec(),
        Inside::Http2 => b"h2".to_vec(),
    }];
    Ok(config)
}

fn authenticated(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    client: &ClientCertificate,
) -> Result<ClientConfig, String> {
    let certificates = CertificateDer::pem_slice_iter(client.certificates.as_bytes());
    let certificates: Result<Vec<_>, _> = certificates.collect();
    let certificates = certificates.map_err(|error| error.to_string())?;
    let key = PrivateKeyDer::from_pem_slice(client.key.pem().as_bytes());
    let key = key.map_err(|_| "key_file has no private key")?;
    builder.with_client_auth_cert(certificates, key).map_err(|error| tls_words(&error))
}

fn roots(pem: &str) -> Result<RootCertStore, Failure> {
    let broken = |why: String| Failure::Tls(format!("cannot read the CA of the check ({why})").into());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| broken(error.to_string()))?;
        roots.add(certificate).map_err(|error| broken(tls_words(&error)))?;
    }
    if roots.is_empty() {
        return Err(broken("the file contains no certificate".into()));
    }
    Ok(roots)
}

/// The cache key of TLS settings. The key keeps the CA text alive. As a result, no other text can
/// get the same address.
#[derive(Debug)]
struct Known {
    ca: Option<Arc<str>>,
    verify: bool,
    client: Option<ClientCertificate>,
    inside: Inside,
}

impl Known {
    /// Returns `true` if the TLS settings have the same key. CA texts are compared by address,
    /// because comparing a bundle of 200 KiB would cost more than the cache saves.
    fn is(&self, other: &Self) -> bool {
        let same = match (&self.ca, &other.ca) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        same && self.verify == other.verify && self.client == other.client && self.inside == other.inside
    }
}

/// The verifier for `verify = false`, which accepts any certificate and any signature.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ANY_SCHEME.to_vec()
    }
}

/// The signature schemes that a client offers with `verify = false`. The TLS library itself does
/// not support P-521, Ed448 or SHA-1.
const ANY_SCHEME: [SignatureScheme; 13] = [
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED25519,
    SignatureScheme::ED448,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
    SignatureScheme::RSA_PKCS1_SHA1,
    SignatureScheme::ECDSA_SHA1_Legacy,
];
static KNOWN: Mutex<Vec<(Known, Arc<ClientConfig>)>> = Mutex::new(Vec::new());
const MOST_KNOWN: usize = 64;

#[cfg(test)]
pub(super) mod tests;
