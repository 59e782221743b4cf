//! The gRPC health check, version 1.
//!
//! A check passes if the server reports SERVING. An attempt uses one stream, and stores at most one
//! message of 4 KiB and 16 KiB of headers.
//!
//! See `doc/health-checking.md` and `doc/PROTOCOL-HTTP2.md` of gRPC, and "Encoding" in the
//! documentation of Protocol Buffers.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use h2::RecvStream;
use h2::client::{Builder, SendRequest};
use hyper::header::{CONTENT_TYPE, TE, USER_AGENT};
use hyper::{HeaderMap, Method, Request, StatusCode, Version};
use tokio::io::{AsyncRead, AsyncWrite};

use super::http::{alongside, authority};
use super::tls::{self, Inside};
use super::{Dialer, Failure, Interim, full_size};
use config::GrpcCheck;

/// Sends one request.
pub(super) async fn attempt(
    check: &GrpcCheck,
    address: IpAddr,
    dialer: &Dialer,
    interim: &Interim,
) -> Result<(), Failure> {
    let peer = SocketAddr::new(address, check.port);
    let stream = dialer.tcp(peer).await.map_err(|error| Failure::from(&error))?;
    let segment = check.probe_mtu.then(|| full_size::segment(&stream)).transpose()?;
    let question = question(&check.service, segment.unwrap_or(0) as usize);
    let padded = || segment.into_iter().for_each(|segment| interim.set(Err(Failure::FullSize(segment))));
    match &check.tls {
        None => {
            padded();
            exchange(stream, request("http", peer, 80)?, question).await
        }
        Some(tls) => {
            let stream = tls::handshake(stream, tls, Inside::Http2, None, address).await?;
            padded();
            exchange(stream, request("https", peer, 443)?, question).await
        }
    }
}

pub(super) fn request(scheme: &str, peer: SocketAddr, usual: u16) -> Result<Request<()>, Failure> {
    let request = Request::builder()
        .version(Version::HTTP_2)
        .method(Method::POST)
        .uri(format!("{scheme}://{}/grpc.health.v1.Health/Check", authority(peer, usual)))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, "sluicegate")
        .body(());
    request.map_err(|error| Failure::Local(format!("cannot build the request ({error})").into()))
}

pub(super) async fn exchange<S>(stream: S, request: Request<()>, message: Bytes) -> Result<(), Failure>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut builder = Builder::new();
    builder.enable_push(false).max_header_list_size(MAX_HEADER_BYTES);
    builder.initial_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
    let (sender, connection) = builder.handshake(stream).await.map_err(failure)?;
    alongside(ask(sender, request, message), connection).await
}

async fn ask(sender: SendRequest<Bytes>, request: Request<()>, message: Bytes) -> Result<(), Failure> {
    let mut sender = sender.ready().await.map_err(failure)?;
    let (response, mut body) = sender.send_request(request, false).map_err(failure)?;
    body.send_data(message, true).map_err(failure)?;
    let response = response.await.map_err(failure)?;
    if response.status() != StatusCode::OK {
        let wanted = vec![200..=200];
        return Err(Failure::Status { found: response.status().as_u16(), wanted });
    }
    // A server may report an error in the response headers and send no message.
    if let Some(code) = grpc_status(response.headers())? {
        passed(code)?;
    }
    let mut body = response.into_body();
    let message = read_message(&mut body).await?;
    let trailers = body.trailers().await.map_err(failure)?;
    let code = trailers.as_ref().map(grpc_status).transpose()?.flatten();
    passed(code.ok_or_else(|| Failure::malformed("gRPC response without grpc-status"))?)?;
    match health_of(&message)? {
        SERVING => Ok(()),
        other => Err(Failure::NotServing(other)),
    }
}

/// Reads the whole body. The size is limited, because a peer could send data forever.
async fn read_message(body: &mut RecvStream) -> Result<Vec<u8>, Failure> {
    let mut message = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece.map_err(failure)?;
        if message.len() + piece.len() > MAX_MESSAGE_BYTES {
            return Err(Failure::malformed("gRPC response larger than 4 KiB"));
        }
        message.extend_from_slice(&piece);
        // A stream error is returned by the next read.
        let _ = body.flow_control().release_capacity(piece.len());
    }
    Ok(message)
}

fn grpc_status(headers: &HeaderMap) -> Result<Option<u32>, Failure> {
    let Some(value) = headers.get("grpc-status") else { return Ok(None) };
    let code = value.to_str().ok().and_then(|text| text.parse().ok());
    code.map(Some).ok_or_else(|| Failure::malformed("grpc-status is not a number"))
}

fn passed(code: u32) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure::GrpcStatus(code)) }
}

/// Encodes `HealthCheckRequest { service = 1 }` with the five-byte prefix of gRPC. If `padding` is
/// not 0, the message also has a field with this number of bytes. Servers ignore the field because
/// they do not know its number. The field does not count toward limits on metadata.
pub(super) fn question(service: &str, padding: usize) -> Bytes {
    let mut message = Vec::with_capacity(service.len() + padding + 20);
    put_field(&mut message, SERVICE_FIELD, service.as_bytes());
    put_field(&mut message, PADDING_FIELD, &vec![0; padding]);
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut framed = vec![0]; // The compression flag is not set.
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(&message);
    framed.into()
}

/// Appends a length-delimited field, unless its value is empty.
fn put_field(message: &mut Vec<u8>, number: u8, value: &[u8]) {
    if value.is_empty() {
        return;
    }
    message.push(number << 3 | 2);
    let mut length = value.len();
    while length > 0x7f {
        message.push(0x80 | u8::try_from(length & 0x7f).unwrap_or_default());
        length >>= 7;
    }
    message.push(u8::try_from(length).unwrap_or_default());
    message.extend_from_slice(value);
}

/// Returns the status in a framed `HealthCheckResponse { status = 1 }`, or 0 (UNKNOWN) if the field
/// is missing.
pub(super) fn health_of(framed: &[u8]) -> Result<u64, Failure> {
    let broken = || Failure::malformed("gRPC response is not a health status");
    let (&[compressed, length @ ..], message) = framed.split_first_chunk::<5>().ok_or_else(broken)?;
    let length = usize::try_from(u32::from_be_bytes(length)).map_err(|_| broken())?;
    if compressed != 0 || length != message.len() {
        return Err(broken());
    }
    status_field(message).ok_or_else(broken)
}

/// Returns the last value of field 1 (`status`) in a message. Other fields are skipped, because
/// later versions of the protocol may add fields.
fn status_field(mut message: &[u8]) -> Option<u64> {
    let mut status = 0;
    while !message.is_empty() {
        let key = varint(&mut message)?;
        match (key >> 3, key & 7) {
            (0, _) => return None,
            (1, 0) => status = varint(&mut message)?,
            (_, 0) => drop(varint(&mut message)?),
            (_, 1) => message = message.get(8..)?,
            (_, 2) => {
                let length = usize::try_from(varint(&mut message)?).ok()?;
                message = message.get(length..)?;
            }
            (_, 5) => message = message.get(4..)?,
            _ => return None,
        }
    }
    Some(status)
}

/// Reads a varint, which has seven bits per byte with the lowest bits first.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn failure(error: h2::Error) -> Failure {
    if let Some(error) = error.get_io() {
        return error.into();
    }
    Failure::of_library(&error, "HTTP/2")
}

const SERVING: u64 = 1;
const SERVICE_FIELD: u8 = 1;
/// The highest number of a field with a key of one byte. The protocol does not use this field
/// number.
const PADDING_FIELD: u8 = 15;
const MAX_MESSAGE_BYTES: usize = 4 << 10;
const MAX_HEADER_BYTES: u32 = 16 << 10;
const WINDOW_BYTES: u32 = 64 << 10;

#[cfg(test)]
mod tests;
