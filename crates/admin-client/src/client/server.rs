//! Connects to the API: over the Unix socket on the same machine, or over TLS to `admin.tcp` of a
//! remote machine.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

/// The command-line options that select a running load balancer.
#[derive(Clone, Debug, Default, Args)]
pub struct Endpoint {
    /// Connect to this admin socket (default: /run/sluicegate/admin.sock)
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    pub socket: Option<PathBuf>,
    /// Read the path of the admin socket from this configuration file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The load balancer on another machine.
    #[command(flatten)]
    pub remote: Remote,
}

/// The command-line options that select a load balancer on another machine.
#[derive(Clone, Debug, Default, Args)]
pub struct Remote {
    /// Connect to `admin.tcp` of the load balancer on another machine, such as
    /// https://192.0.2.1:9851
    #[arg(
        long,
        value_name = "URL",
        value_parser = address,
        requires_all = ["ca", "cert", "cert_key"],
        conflicts_with_all = ["socket", "config"]
    )]
    pub url: Option<SocketAddr>,
    /// Verify the certificate of the remote load balancer with the CA certificates in this PEM file
    #[arg(long, value_name = "FILE", requires = "url")]
    pub ca: Option<PathBuf>,
    /// Present the client certificate in this PEM file; its name determines the role
    #[arg(long, value_name = "FILE", requires = "url")]
    pub cert: Option<PathBuf>,
    /// Use the private key in this PEM file for --cert
    #[arg(long, value_name = "FILE", requires = "url")]
    pub cert_key: Option<PathBuf>,
    /// Expect this name in the certificate of the remote load balancer (default: the address in
    /// --url)
    #[arg(long, value_name = "NAME", requires = "url")]
    pub server_name: Option<String>,
}

/// Parses the URL of `admin.tcp`.
fn address(url: &str) -> Result<SocketAddr, String> {
    let address = url.strip_prefix("https://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    address.and_then(|address| address.parse().ok()).ok_or_else(|| {
        "expected https:// with an IP address and a port, such as https://192.0.2.1:9851 or https://[2001:db8::1]:9851"
            .to_owned()
    })
}

/// A load balancer to which a client connects.
#[derive(Clone)]
pub(super) enum Server {
    Unix(PathBuf),
    Tls { address: SocketAddr, name: ServerName<'static>, connector: TlsConnector },
}

/// A connection to the API.
pub(super) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Connection for S {}

impl Server {
    /// Reads the certificates and the key of a client.
    pub(super) fn remote(address: SocketAddr, remote: &Remote) -> anyhow::Result<Self> {
        let (Some(ca), Some(cert), Some(key)) = (&remote.ca, &remote.cert, &remote.cert_key) else {
            bail!("--url needs --ca, --cert and --cert-key");
        };
        let name = match &remote.server_name {
            Some(name) => ServerName::try_from(name.clone())
                .with_context(|| format!("--server-name {name:?} is neither a host name nor an address"))?,
            None => ServerName::from(address.ip()),
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates("--ca", ca)? {
            roots.add(certificate).with_context(|| format!("--ca {}", ca.display()))?;
        }
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| {
            anyhow::anyhow!("cannot read a private key from --cert-key {}: {error}", key.display())
        })?;
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(certificates("--cert", cert)?, private)
            .with_context(|| {
                format!("cannot use --cert {} with --cert-key {}", cert.display(), key.display())
            })?;
        Ok(Self::Tls { address, name, connector: TlsConnector::from(Arc::new(config)) })
    }

    /// Opens a connection.
    pub(super) async fn connect(&self) -> io::Result<Box<dyn Connection>> {
        Ok(match self {
            Self::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Self::Tls { address, name, connector } => {
                let stream = TcpStream::connect(address).await?;
                Box::new(connector.connect(name.clone(), stream).await?)
            }
        })
    }

    /// Returns the value of the Host header. A Unix socket has no host name, but HTTP/1.1 requires
    /// the header.
    pub(super) fn host(&self) -> String {
        match self {
            Self::Unix(_) => "localhost".to_owned(),
            Self::Tls { address, .. } => address.to_string(),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tls { address, .. } => write!(f, "https://{address}"),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn certificates(option: &str, file: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let failed =
        |error| anyhow::anyhow!("cannot read certificates from {option} {}: {error}", file.display());
    let found: Vec<_> =
        CertificateDer::pem_file_iter(file).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
    if found.is_empty() {
        bail!("{option} {} contains no certificate in PEM", file.display());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_https_with_address_and_port() {
        for (url, wanted) in [
            ("https://192.0.2.1:9851", "192.0.2.1:9851"),
            ("https://[2001:db8::1]:443/", "[2001:db8::1]:443"),
        ] {
            assert_eq!(address(url).unwrap().to_string(), wanted);
        }
        for wrong in [
            "http://192.0.2.1:9851",
            "192.0.2.1:9851",
            "https://192.0.2.1",
            "https://lb1:9851",
            "https://192.0.2.1:9851/v1",
        ] {
            assert!(address(wrong).unwrap_err().starts_with("expected https://"), "{wrong}");
        }
    }
}
