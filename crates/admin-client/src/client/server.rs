//! Connects to the API: over the Unix socket on the same machine, or over TLS to `admin.tcp` of a
//! remote machine.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, DnsName, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::time::timeout;
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
    /// Connect to `admin.tcp` of the load balancer on another machine. The host is an address or a
    /// name, such as https://192.0.2.1:9851
    #[arg(
        long,
        value_name = "URL",
        value_parser = authority,
        requires_all = ["ca", "cert", "cert_key"],
        conflicts_with_all = ["socket", "config"]
    )]
    pub url: Option<Authority>,
    /// Verify the certificate of the remote load balancer with the CA certificates in this PEM file
    #[arg(long, value_name = "FILE", requires = "url")]
    pub ca: Option<PathBuf>,
    /// Present the client certificate in this PEM file; its name determines the role
    #[arg(long, value_name = "FILE", requires = "url")]
    pub cert: Option<PathBuf>,
    /// Use the private key in this PEM file for --cert
    #[arg(long, value_name = "FILE", requires = "url")]
    pub cert_key: Option<PathBuf>,
    /// Expect this name in the certificate of the remote load balancer (default: the host in
    /// --url)
    #[arg(long, value_name = "NAME", requires = "url")]
    pub server_name: Option<String>,
}

/// The host and the port of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authority {
    /// An address and a port, and the zone of a link-local address.
    Address(SocketAddr),
    /// A host name and a port.
    Name(DnsName<'static>, u16),
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name, port) => write!(f, "{}:{port}", name.as_ref()),
        }
    }
}

/// Parses the URL of `admin.tcp`.
fn authority(url: &str) -> Result<Authority, String> {
    let parse = |text: &str| {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Some(Authority::Address(address));
        }
        let (name, port) = text.rsplit_once(':')?;
        Some(Authority::Name(DnsName::try_from(name.to_owned()).ok()?, port.parse().ok()?))
    };
    let text = url.strip_prefix("https://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    text.and_then(parse).ok_or_else(|| {
        "expected https:// with a host name or an IP address, and a port, such as https://lb1.example.net:9851, \
         https://192.0.2.1:9851 or https://[2001:db8::1]:9851"
            .to_owned()
    })
}

impl Authority {
    /// Opens a TCP connection. The addresses of a host name are tried in the order in which the
    /// resolver returns them.
    async fn connect(&self) -> io::Result<TcpStream> {
        match self {
            Self::Address(address) => TcpStream::connect(address).await,
            Self::Name(name, port) => connect_to_any(&resolve(name.as_ref().to_owned(), *port).await?).await,
        }
    }

    /// Returns the name that the certificate of the load balancer must have.
    fn server_name(&self) -> ServerName<'static> {
        match self {
            Self::Address(address) => address.ip().into(),
            Self::Name(name, _) => ServerName::DnsName(name.clone()),
        }
    }
}

/// Resolves a host name with the resolver of the system.
async fn resolve(host: String, port: u16) -> io::Result<Vec<SocketAddr>> {
    let (sender, result) = oneshot::channel();
    let name = host.clone();
    // The resolver has its own thread, because the runtime would wait for the end of the resolver
    // even after the response timeout.
    std::thread::spawn(move || sender.send((name, port).to_socket_addrs().map(Iterator::collect)));
    let addresses: io::Result<Vec<_>> = result.await.unwrap_or_else(|_| Ok(Vec::new()));
    match addresses {
        Ok(addresses) if addresses.is_empty() => {
            Err(io::Error::other(format!("the host name {host} has no address")))
        }
        Ok(addresses) => Ok(addresses),
        Err(error) => Err(io::Error::other(format!("cannot resolve the host name {host}: {error}"))),
    }
}

/// Connects to the first address that accepts the connection. If every address fails, the error
/// lists all addresses.
async fn connect_to_any(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut failures = Vec::new();
    for (number, address) in (1..).zip(addresses) {
        // An address that does not respond must not use up the response timeout.
        let limit = if number < addresses.len() { NEXT_AFTER } else { Duration::MAX };
        match timeout(limit, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failures.push(format!("{address}: {error}")),
            Err(_) => failures.push(format!("{address}: no response")),
        }
    }
    Err(io::Error::other(failures.join("; ")))
}

/// The time after which the next address is tried.
const NEXT_AFTER: Duration = Duration::from_secs(2);

/// A load balancer to which a client connects.
#[derive(Clone)]
pub(super) enum Server {
    Unix(PathBuf),
    Tls { authority: Authority, name: ServerName<'static>, connector: TlsConnector },
}

/// A connection to the API.
pub(super) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Connection for S {}

impl Server {
    /// Reads the certificates and the key of a client.
    pub(super) fn remote(authority: Authority, remote: &Remote) -> anyhow::Result<Self> {
        let (Some(ca), Some(cert), Some(key)) = (&remote.ca, &remote.cert, &remote.cert_key) else {
            bail!("--url needs --ca, --cert and --cert-key");
        };
        let name = match &remote.server_name {
            Some(name) => ServerName::try_from(name.clone())
                .with_context(|| format!("--server-name {name:?} is neither a host name nor an address"))?,
            None => authority.server_name(),
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
        Ok(Self::Tls { authority, name, connector: TlsConnector::from(Arc::new(config)) })
    }

    /// Opens a connection.
    pub(super) async fn connect(&self) -> io::Result<Box<dyn Connection>> {
        Ok(match self {
            Self::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Self::Tls { authority, name, connector } => {
                let stream = authority.connect().await?;
                Box::new(connector.connect(name.clone(), stream).await?)
            }
        })
    }

    /// Returns the value of the Host header. A Unix socket has no host name, but HTTP/1.1 requires
    /// the header.
    pub(super) fn host(&self) -> String {
        match self {
            Self::Unix(_) => "localhost".to_owned(),
            Self::Tls { authority, .. } => authority.to_string(),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tls { authority, .. } => write!(f, "https://{authority}"),
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
    fn url_is_https_with_host_and_port() {
        for (url, wanted) in [
            ("https://lb1:9851", "lb1:9851"),
            ("https://lb1.example.net:9851/", "lb1.example.net:9851"),
            ("https://192.0.2.1:9851", "192.0.2.1:9851"),
            ("https://[2001:db8::1]:443/", "[2001:db8::1]:443"),
            ("https://[fe80::1%2]:9851", "[fe80::1%2]:9851"),
        ] {
            assert_eq!(authority(url).unwrap().to_string(), wanted);
        }
        for wrong in [
            "http://192.0.2.1:9851",
            "192.0.2.1:9851",
            "https://192.0.2.1",
            "https://lb1",
            "https://lb1:port",
            "https://lb 1:9851",
            "https://192.0.2.300:9851",
            "https://2001:db8::1:9851",
            "https://:9851",
            "https://192.0.2.1:9851/v1",
        ] {
            assert!(authority(wrong).unwrap_err().starts_with("expected https://"), "{wrong}");
        }
    }

    #[tokio::test]
    async fn addresses_are_tried_in_order() {
        let listen = async || tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (first, second) = (listen().await, listen().await);
        let closed = ["[::1]:1".parse().unwrap(), listen().await.local_addr().unwrap()];
        let open = [first.local_addr().unwrap(), second.local_addr().unwrap()];
        let stream = connect_to_any(&[&closed[..], &open].concat()).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), open[0]);
        let why = connect_to_any(&closed).await.unwrap_err().to_string();
        assert!(closed.iter().all(|address| why.contains(&format!("{address}: "))), "{why}");
    }
}
