//! HTTP/1.1, in TLS or not.
//!
//! In: the check. Out: passed when the status is wanted and the body holds the text, where one is named.
//! Not here: redirects, which are judged by their status and never followed.
//! Invariant: 16 KiB of headers and 64 KiB of body at most are read and held; without a text the body is not read at all.

use std::error::Error as _;
use std::future::{Future, pending};
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, USER_AGENT};
use hyper::{Error, Request};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::tls::{self, Inside};
use super::{Dialer, Failure};
use config::HttpCheck;

/// Asks once.
pub(super) async fn attempt(check: &HttpCheck, address: IpAddr, dialer: &Dialer) -> Result<(), Failure> {
    let peer = SocketAddr::new(address, check.port);
    let request = request(check, peer)?;
    let stream = dialer.tcp(peer).await.map_err(|error| Failure::from(&error))?;
    match &check.tls {
        None => exchange(stream, request, check).await,
        Some(tls) => {
            let stream = tls::handshake(stream, tls, Inside::Http1, check.host.as_deref(), address).await?;
            exchange(stream, request, check).await
        }
    }
}

fn request(check: &HttpCheck, peer: SocketAddr) -> Result<Request<Empty<Bytes>>, Failure> {
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
    request.map_err(|error| Failure::Local(format!("the request cannot be written: {error}").into()))
}

/// How a request names a peer that has no name.
pub(super) fn authority(peer: SocketAddr, usual: u16) -> String {
    let whole = peer.to_string();
    whole.strip_suffix(&format!(":{usual}")).unwrap_or(&whole).to_owned()
}

async fn exchange<S>(stream: S, request: Request<Empty<Bytes>>, check: &HttpCheck) -> Result<(), Failure>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEADER_BYTES).max_headers(MAX_HEADERS);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(failure)?;
    let verdict = async {
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
    alongside(verdict, connection).await
}

/// Runs a connection until the verdict is there. A connection may end before: what it read is still judged.
pub(super) async fn alongside<T>(verdict: impl Future<Output = T>, connection: impl Future) -> T {
    let driven = async {
        connection.await;
        pending().await
    };
    tokio::select! {
        verdict = verdict => verdict,
        never = driven => never,
    }
}

/// Whether the first 64 KiB of the body hold `wanted`; stops reading when it is found.
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

/// A search over pieces: keeps what a match over the edge of two pieces needs, and counts.
struct Seen<'w> {
    wanted: &'w [u8],
    /// The last bytes so far, fewer than are wanted.
    tail: Vec<u8>,
    left: usize,
}

impl<'w> Seen<'w> {
    fn new(wanted: &'w [u8]) -> Self {
        Self { wanted, tail: Vec::new(), left: MAX_BODY_BYTES }
    }

    /// `None`: not found yet, and more may come.
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
    // Cancelled: the connection ended before the request was on it, by its own error if it had one.
    let own = error.source().and_then(|source| source.downcast_ref::<Error>());
    let ended = |error: &Error| error.is_incomplete_message() || error.is_closed();
    if ended(own.unwrap_or(&error)) || error.is_canceled() && own.is_none() {
        return Failure::Closed;
    }
    Failure::of_library(own.unwrap_or(&error), "HTTP/1.1")
}

const MAX_HEADER_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 100;
const MAX_BODY_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests;
