//! The HTTP/1.1 check, with or without TLS.
//!
//! A check passes if the status is one of the expected statuses and the body contains the expected
//! text, if one is configured. Redirects are not followed. The status of a redirect is compared
//! like any other status.
//!
//! An attempt reads and stores at most 16 KiB of headers and 64 KiB of body. Without an expected
//! text, the body is not read.

use std::error::Error as _;
use std::future::{Future, pending};
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, HeaderValue, USER_AGENT};
use hyper::{Error, Request};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::tls::{self, Inside};
use super::{Dialer, Failure, Interim, full_size};
use config::HttpCheck;

/// Sends one request.
pub(super) async fn attempt(
    check: &HttpCheck,
    address: IpAddr,
    dialer: &Dialer,
    interim: &Interim,
) -> Result<(), Failure> {
    let peer = SocketAddr::new(address, check.port);
    let mut request = request(check, peer)?;
    let stream = dialer.tcp(peer).await.map_err(|error| Failure::from(&error))?;
    let segment = if check.probe_mtu { Some(pad(&mut request, &stream)?) } else { None };
    let padded = || segment.into_iter().for_each(|segment| interim.set(Err(Failure::FullSize(segment))));
    match &check.tls {
        None => {
            padded();
            exchange(stream, request, check).await
        }
        Some(tls) => {
            let stream = tls::handshake(stream, tls, Inside::Http1, check.host.as_deref(), address).await?;
            padded();
            exchange(stream, request, check).await
        }
    }
}

/// Adds headers to the request until it is longer than a TCP segment, so that its first packet has
/// the full size that the path should carry. Returns the length of a segment in bytes.
fn pad(request: &mut Request<Empty<Bytes>>, stream: &TcpStream) -> Result<u32, Failure> {
    let segment = full_size::segment(stream)?;
    for _ in 0..segment.div_ceil(PADDING_BYTES) {
        request.headers_mut().append("x-padding", HeaderValue::from_static(PADDING));
    }
    Ok(segment)
}

pub(super) fn request(check: &HttpCheck, peer: SocketAddr) -> Result<Request<Empty<Bytes>>, Failure> {
    let usual = if check.tls.is_some() { 443 } else { 80 };
    let host = check.host.as_deref().map_or_else(|| authority(peer, usual), ToOwned::to_owned);
    let mut request = Request::builder().method(&*check.method).uri(&*check.path).header(HOST, host);
    if !check.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(USER_AGENT.as_str())) {
        request = request.header(USER_AGENT, "sluicegate");
    }
    for (name, value) in &check.headers {
        request = request.header(&**name, &**value);
    }
    let request = request.header(CONNECTION, "close").body(Empty::new());
    request.map_err(|error| Failure::Local(format!("cannot build the request ({error})").into()))
}

/// Returns the `Host` value for a peer without a name. The value is the address, followed by the
/// port if the port is not the default port.
pub(super) fn authority(peer: SocketAddr, usual: u16) -> String {
    let whole = peer.to_string();
    whole.strip_suffix(&format!(":{usual}")).unwrap_or(&whole).to_owned()
}

pub(super) async fn exchange<S>(
    stream: S,
    request: Request<Empty<Bytes>>,
    check: &HttpCheck,
) -> Result<(), Failure>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEADER_BYTES).max_headers(MAX_HEADERS);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(failure)?;
    let health_state = async {
        let response = sender.send_request(request).await.map_err(failure)?;
        let found = response.status().as_u16();
        if !check.status.iter().any(|range| range.contains(&found)) {
            return Err(Failure::Status { found, wanted: check.status.clone() });
        }
        match &check.body_contains {
            Some(wanted) if !contains(response.into_body(), wanted.as_bytes()).await? => {
                Err(Failure::Body { wanted: wanted.clone() })
            }
            _ => Ok(()),
        }
    };
    alongside(health_state, connection).await
}

/// Drives an HTTP connection until the result of the check is available. If the connection ends
/// early, the received data is still evaluated.
pub(super) async fn alongside<T>(health_state: impl Future<Output = T>, connection: impl Future) -> T {
    let driven = async {
        connection.await;
        pending().await
    };
    tokio::select! {
        biased; // the result may be available, and the tests count the steps of both futures
        health_state = health_state => health_state,
        never = driven => never,
    }
}

/// Returns `true` if the first 64 KiB of the body contain `wanted`. Reading stops at the first
/// match.
async fn contains(mut body: Incoming, wanted: &[u8]) -> Result<bool, Failure> {
    let mut seen = Seen::new(wanted);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(failure)?.into_data() else { continue };
        if let Some(found) = seen.add(&data) {
            return Ok(found);
        }
    }
    Ok(false)
}

/// A search for a string in a body that arrives in chunks. The end of each chunk is kept, because a
/// match can span two chunks.
struct Seen<'w> {
    wanted: &'w [u8],
    /// The last received bytes. Between two chunks, this buffer has the length of the searched text
    /// minus one.
    tail: Vec<u8>,
    left: usize,
}

impl<'w> Seen<'w> {
    fn new(wanted: &'w [u8]) -> Self {
        Self { wanted, tail: Vec::new(), left: MAX_BODY_BYTES }
    }

    /// Adds a chunk. Returns `None` if the text has not been found yet and more data may follow.
    fn add(&mut self, piece: &[u8]) -> Option<bool> {
        let piece = piece.get(..self.left).unwrap_or(piece);
        self.left -= piece.len();
        self.tail.extend_from_slice(piece);
        if self.wanted.is_empty() || self.tail.windows(self.wanted.len()).any(|part| part == self.wanted) {
            return Some(true);
        }
        if self.left == 0 {
            return Some(false);
        }
        let keep = self.wanted.len() - 1;
        self.tail.drain(..self.tail.len().saturating_sub(keep));
        None
    }
}

fn failure(error: Error) -> Failure {
    // A canceled request means that the connection ended before the request was sent. If the
    // connection has an error, that error is used.
    let own = error.source().and_then(|source| source.downcast_ref::<Error>());
    let ended = |error: &Error| error.is_incomplete_message() || error.is_closed();
    if ended(own.unwrap_or(&error)) || error.is_canceled() && own.is_none() {
        return Failure::Closed;
    }
    Failure::of_library(own.unwrap_or(&error), "HTTP/1.1")
}

/// The value of one padding header. Servers limit the length of a header, so several such headers
/// are added.
const PADDING: &str = match std::str::from_utf8(&[b'0'; PADDING_BYTES as usize]) {
    Ok(text) => text,
    Err(_) => "",
};
const PADDING_BYTES: u32 = 1_000;
const MAX_HEADER_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 100;
const MAX_BODY_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests;
