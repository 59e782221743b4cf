//! Connections: accepted up to a number, served within limits, ended in time.
//!
//! In: a [`Listener`] and a router. Out: HTTP/1.1. Each listener has a limit of its own, so that strangers at one keep no client from another.
//! Not here: what a request means (`handlers`), how long its body may be (`guard`).
//! When a listener is full, a connection in the middle of a request gives way (`connection_limiter`): one that stops there delays none.
//! Invariant: at most [`Limits::connections`] at a listener and one that waits for a permit, and none lives longer than `life` and
//! `farewell` together.
//! A stream is carried to its end, which has bounds of its own.

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

/// Where clients come in.
pub enum Listener {
    /// The Unix socket; its file's permissions say who may.
    Unix(UnixListener),
    /// TCP; any client may read.
    Plain(TcpListener),
    /// TCP; a client with a certificate of the clients' CA may, as its role says.
    Tls(TcpListener, watch::Receiver<Tls>),
}

/// By which certificates a TLS listener speaks, and what its clients may: read at each accept.
#[derive(Clone)]
pub struct Tls {
    /// The server's certificate, and the clients' CA.
    pub acceptor: TlsAcceptor,
    /// Of the clients; a connection keeps the one that it began with.
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

/// What a client may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time. For one more, the oldest that has not sent a whole request is ended; when there is none,
    /// more wait in the kernel.
    pub connections: usize,
    /// For the TLS handshake, and for the head of each request.
    pub head: Duration,
    /// The head of a request fits into it, or is refused; hyper's least is 8,192.
    pub head_bytes: usize,
    /// Whether a connection serves more than one request.
    pub keep_alive: bool,
    /// For each step of reading the answer.
    pub reading: Duration,
    /// A connection serves no new request after so long.
    pub life: Duration,
    /// It is cut off so long after that, unless a stream is under way.
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

/// The client, for the log.
#[derive(Clone, Debug)]
pub(super) enum Peer {
    /// The file's permissions have said that it may all.
    Unix {
        user: Option<u32>,
    },
    Tcp(SocketAddr),
    /// With the first name of its certificate.
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
        // It stands in the log.
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

/// Whether a connection carries a stream.
#[derive(Clone, Debug, Default)]
pub(super) struct Streaming(Arc<AtomicBool>);

/// A stream; it is over when this is dropped.
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

/// Serves `router` at `listener`, until dropped. Connections that are open then go on to their end.
pub async fn serve(listener: Listener, router: Router, limits: Limits) -> Infallible {
    let limiter = ConnectionLimiter::new(limits.connections);
    loop {
        if let Err(error) = accept(&listener, &router, limits, &limiter).await {
            // The client has gone, or descriptors are short: neither ends the listener.
            tracing::debug!(%error, "admin: a connection was not accepted");
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

/// What follows a handshake that succeeds `within` its time; of another the log says why.
async fn secured(
    handshake: Accept<TcpStream>,
    address: SocketAddr,
    within: Duration,
) -> Option<TlsStream<TcpStream>> {
    match timeout(within, handshake).await {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => tracing::debug!(%error, peer = %address, "admin: no TLS"),
        Err(_) => tracing::debug!(peer = %address, "admin: no TLS in time"),
    }
    None
}

/// Until it ends, or its permit is revoked.
fn spawn<F>(permit: Permit, conversation: impl FnOnce(Progress) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let conversation = conversation(permit.progress());
    tokio::spawn(async move {
        tokio::select! {
            biased; // a connection whose permit is revoked does nothing more
            () = permit.revoked() => {}
            () = conversation => {}
        }
        // The connection is closed by now.
        drop(permit);
    });
}

async fn converse<S>(stream: S, peer: Peer, router: Router, limits: Limits, progress: Progress)
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
    // How a conversation ends is the client's affair.
    if timeout(limits.life, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        while timeout(limits.farewell, connection.as_mut()).await.is_err() && streaming.is_on() {}
    }
}

const AFTER_ERROR: Duration = Duration::from_millis(50);
