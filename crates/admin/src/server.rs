//! Serves the HTTP/1.1 connections of a listener, within limits on their number, duration and
//! header size.
//!
//! Each listener has separate limits. As a result, clients of one listener cannot block clients of
//! another listener. A full listener closes a stalled connection (`connection_limiter`). The module
//! `guard` limits the size of request bodies, and `handlers` processes the requests.
//!
//! Invariants: a listener has at most [`Limits::connections`] connections, and one more that waits
//! for a permit. A connection ends at most `life` plus `farewell` after its start, except for a
//! capture stream, which has its own limits.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::rustls::ServerConnection;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use super::client_stream::ClientStream;
use super::connection_limiter::{ConnectionLimiter, Permit, Progress};
use super::roles::{Role, Roles, names};

/// A socket that accepts clients.
pub enum Listener {
    /// The Unix socket. The permissions of the socket file decide which users can connect.
    Unix(UnixListener),
    /// A TCP socket that gives every client the role `read`.
    Plain(TcpListener),
    /// A TCP socket with TLS. Clients need a certificate that the client CA has signed, and their
    /// role depends on the names in the certificate.
    Tls(TcpListener, watch::Receiver<Tls>),
}

/// The certificates and roles of a TLS listener. The values are read whenever a connection is
/// accepted, so a change applies to new connections.
#[derive(Clone)]
pub struct Tls {
    /// The acceptor with the server certificate and the client CA.
    pub acceptor: TlsAcceptor,
    /// The roles of clients. A connection keeps the role that its client had when the connection
    /// was accepted.
    pub roles: Arc<Roles>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("roles", &self.roles).finish_non_exhaustive()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(listener) => f.debug_tuple("Unix").field(listener).finish(),
            Self::Plain(listener) => f.debug_tuple("Plain").field(listener).finish(),
            Self::Tls(listener, ..) => f.debug_tuple("Tls").field(listener).finish_non_exhaustive(),
        }
    }
}

/// The limits of a listener and its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of connections. If the maximum is reached, the oldest connection with an
    /// incomplete request is closed to admit a new one. If no connection can be closed, new
    /// connections wait in the kernel.
    pub connections: usize,
    /// The maximum time for a TLS handshake, and for receiving the headers of a request.
    pub head: Duration,
    /// The maximum size of the request headers in bytes. The library hyper requires at least 8,192.
    pub head_bytes: usize,
    /// `true` if a connection can serve more than one request.
    pub keep_alive: bool,
    /// The maximum time for which the server waits until the client reads a part of the response.
    pub reading: Duration,
    /// The age after which a connection accepts no new request.
    pub life: Duration,
    /// The time after `life` until the connection is closed even if a request is still running. A
    /// capture stream is not interrupted.
    pub farewell: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            head: Duration::from_secs(10),
            head_bytes: 64 << 10,
            keep_alive: true,
            reading: Duration::from_secs(10),
            life: Duration::from_secs(300),
            farewell: Duration::from_secs(60),
        }
    }
}

/// The client of a connection, in the form that appears in the log.
#[derive(Clone, Debug)]
pub(super) enum Peer {
    /// A client on the Unix socket, which has all permissions.
    Unix {
        user: Option<u32>,
    },
    Tcp(SocketAddr),
    /// A TLS client, with the first name of its certificate.
    Tls {
        address: SocketAddr,
        name: Arc<str>,
        role: Role,
    },
}

impl Peer {
    fn of_tls(address: SocketAddr, connection: &ServerConnection, roles: &Roles) -> Self {
        let certificate = connection.peer_certificates().and_then(<[_]>::first);
        let names = certificate.map(|certificate| names(certificate)).unwrap_or_default();
        let name = names.first().map_or("?", String::as_str);
        // The name is written to the log, so control characters are escaped.
        let name = name.escape_default().to_string().into();
        Self::Tls { address, name, role: roles.of(&names) }
    }

    pub(super) const fn role(&self) -> Role {
        match self {
            Self::Unix { .. } => Role::Configure,
            Self::Tcp(_) => Role::Read,
            Self::Tls { role, .. } => *role,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { user: Some(user) } => write!(f, "uid {user}"),
            Self::Unix { user: None } => f.write_str("uid ?"),
            Self::Tcp(address) => address.fmt(f),
            Self::Tls { address, name, .. } => write!(f, "{name} at {address}"),
        }
    }
}

/// A flag of a connection, which is set while a capture is streamed.
#[derive(Clone, Debug, Default)]
pub(super) struct Streaming(Arc<AtomicBool>);

/// A guard for an active capture stream. Dropping the guard clears the flag of the connection.
#[derive(Debug)]
pub(super) struct Stream(Arc<AtomicBool>);

impl Streaming {
    pub(super) fn begin(&self) -> Stream {
        self.0.store(true, Ordering::Relaxed);
        Stream(Arc::clone(&self.0))
    }

    fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Serves `router` on `listener` until the future is dropped. Connections that are open at that
/// time continue.
pub async fn serve(listener: Listener, router: Router, limits: Limits) -> Infallible {
    let limiter = ConnectionLimiter::new(limits.connections);
    loop {
        if let Err(error) = accept(&listener, &router, limits, &limiter).await {
            // Either the client has disconnected, or no file descriptors are available. The
            // listener continues after a pause.
            tracing::debug!(%error, "admin connection not accepted");
            sleep(AFTER_ERROR).await;
        }
    }
}

async fn accept(
    listener: &Listener,
    router: &Router,
    limits: Limits,
    limiter: &Arc<ConnectionLimiter>,
) -> io::Result<()> {
    let router = router.clone();
    match listener {
        Listener::Unix(listener) => {
            let (stream, _) = listener.accept().await?;
            let user = stream.peer_cred().ok().map(|credentials| credentials.uid());
            spawn(limiter.acquire().await, move |progress| {
                converse(stream, Peer::Unix { user }, router, limits, progress)
            });
        }
        Listener::Plain(listener) => {
            let (stream, address) = listener.accept().await?;
            spawn(limiter.acquire().await, move |progress| {
                converse(stream, Peer::Tcp(address), router, limits, progress)
            });
        }
        Listener::Tls(listener, tls) => {
            let (stream, address) = listener.accept().await?;
            let Tls { acceptor, roles } = tls.borrow().clone();
            let handshake = acceptor.accept(stream);
            spawn(limiter.acquire().await, move |progress| async move {
                let Some(stream) = secured(handshake, address, limits.head).await else { return };
                let peer = Peer::of_tls(address, stream.get_ref().1, &roles);
                converse(stream, peer, router, limits, progress).await;
            });
        }
    }
    Ok(())
}

/// Completes a TLS handshake within `within`. A failure is logged.
async fn secured(
    handshake: Accept<TcpStream>,
    address: SocketAddr,
    within: Duration,
) -> Option<TlsStream<TcpStream>> {
    match timeout(within, handshake).await {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!(%error, %address, "TLS handshake failed"),
        Err(_) => tracing::debug!(%address, "TLS handshake timed out"),
    }
    None
}

/// Spawns a task that serves a connection until the connection ends or its permit is revoked.
fn spawn<F>(permit: Permit, conversation: impl FnOnce(Progress) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let conversation = conversation(permit.progress());
    tokio::spawn(async move {
        tokio::select! {
            biased; // a revoked connection is not polled again
            () = permit.revoked() => {}
            () = conversation => {}
        }
        // The permit is returned only after the connection has been closed.
        drop(permit);
    });
}

pub(super) async fn converse<S>(stream: S, peer: Peer, router: Router, limits: Limits, progress: Progress)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let stream = ClientStream::new(stream, limits.reading, progress.clone());
    let streaming = Streaming::default();
    let router = router.layer(Extension(progress)).layer(Extension(peer)).layer(Extension(streaming.clone()));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(limits.head_bytes)
        .keep_alive(limits.keep_alive)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    // Connection errors affect only one client and are ignored.
    if timeout(limits.life, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        while timeout(limits.farewell, connection.as_mut()).await.is_err() && streaming.is_on() {}
    }
}

const AFTER_ERROR: Duration = Duration::from_millis(50);
