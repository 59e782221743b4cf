//! Middleware for all requests: it reads the request body within limits, checks the role of the
//! client, and logs commands.
//!
//! A handler receives a complete request body, so it never waits for the client.

use std::error::Error;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::LengthLimitError;

use super::app_state::{AppState, PUT_CONFIG};
use super::command::CONFIG_BYTES;
use super::connection_limiter::Progress;
use super::refuse::{bad, bad_request};
use super::roles::Role;
use super::server::Peer;
use super::view::{Refusal, RefusalKind};

pub(super) async fn guard(state: State<AppState>, request: Request, next: Next) -> Response {
    let progress = request.extensions().get::<Progress>().cloned();
    let response = judge(state, request, next).await;
    progress.iter().for_each(Progress::response_ready);
    response
}

async fn judge(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    if matches!(method, Method::GET | Method::HEAD) {
        return admit(&state, request, next).await;
    }
    let peer = request.extensions().get::<Peer>();
    let refusal = peer.and_then(|peer| beyond_role(peer, &method, &path));
    let client = peer.map_or_else(|| "?".to_owned(), Peer::to_string);
    let response = match refusal {
        // The role is checked before the body is read, because the body may be large.
        Some(refusal) => refusal,
        None if from_another_site(request.headers()) => foreign(),
        None => admit(&state, request, next).await,
    };
    // Operator commands are rare, so each one is logged.
    let status = response.status().as_u16();
    match response.extensions().get::<AuditRecord>() {
        Some(AuditRecord::Said { words, reason }) => {
            // log: An operator changed the state of the load balancer with the command line or the
            // API. `client` names the client.
            tracing::info!(change = "override", %client, reason, "operator command: {words}");
        }
        Some(AuditRecord::Noted(words)) => {
            // log: An operator ran a command that does not change the state, such as counting keys.
            // `client` names the client.
            tracing::info!(%client, "operator query: {words}");
        }
        Some(AuditRecord::Logged) => tracing::debug!(%client, %method, route = path, "operator command"),
        // log: A command of an operator failed with HTTP status `status`, for example because the
        // role of the client is too low. If the line repeats, check the client in `client`.
        None => tracing::warn!(%client, %method, route = path, status, "operator command rejected"),
    }
    response
}

/// The log entry for a successful command. The handler attaches the entry to the response, and the
/// guard writes the entry to the log.
#[derive(Clone, Debug)]
pub(super) enum AuditRecord {
    /// The command is logged as an event, with the reason given by the operator.
    Said { words: String, reason: Option<String> },
    /// The command is logged, but not as an event, because it changes no state and may be sent
    /// frequently.
    Noted(String),
    /// The command is logged only at debug level, because the reload itself logs its result.
    Logged,
}

impl AuditRecord {
    pub(super) fn said(words: impl Into<String>) -> Self {
        Self::Said { words: words.into(), reason: None }
    }
}

async fn admit(state: &AppState, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let large = parts.method == Method::PUT && parts.uri.path() == PUT_CONFIG;
    let limit = if large { CONFIG_BYTES } else { USUAL_BYTES };
    let _permit = match large.then(|| state.large_bodies.try_acquire()) {
        Some(Err(_)) => {
            let message = "too many configuration uploads are in progress, try again later";
            return Refusal::new(RefusalKind::Unavailable, message).into_response();
        }
        Some(Ok(permit)) => Some(permit),
        None => None,
    };
    match read(&parts.headers, body, limit).await {
        Ok(bytes) => {
            parts.extensions.get::<Progress>().into_iter().for_each(Progress::request_read);
            next.run(Request::from_parts(parts, Body::from(bytes))).await
        }
        Err(response) => response,
    }
}

async fn read(headers: &HeaderMap, body: Body, limit: usize) -> Result<Bytes, Response> {
    let too_large =
        || bad(StatusCode::PAYLOAD_TOO_LARGE, format!("the request body is larger than {limit} bytes"));
    let is_limit = |error: &axum::Error| error.source().is_some_and(|cause| cause.is::<LengthLimitError>());
    let declared =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|declared| declared > limit as u64) {
        return Err(too_large());
    }
    match tokio::time::timeout(BODY_WITHIN, to_bytes(body, limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_limit(&error) => Err(too_large()),
        Ok(Err(error)) => Err(bad(StatusCode::BAD_REQUEST, format!("cannot read the request body: {error}"))),
        Err(_) => Err(bad(StatusCode::REQUEST_TIMEOUT, "the request body was not complete within 10 s")),
    }
}

/// Middleware for commands whose requests have no body. A body with parameters is rejected, because
/// the command would ignore them.
pub(super) async fn without_body(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    // The guard has already read the body within its limit.
    let body = to_bytes(body, USUAL_BYTES).await.unwrap_or_default();
    // Some HTTP clients always send a JSON body, even if it is empty.
    if matches!(body.trim_ascii(), b"" | b"null" | b"{}") {
        return next.run(Request::from_parts(parts, Body::empty())).await;
    }
    bad_request("this route takes no request body, use path and query parameters").into_response()
}

/// Returns `true` if a web page of another site caused the request. Such requests are rejected,
/// because the page could otherwise use the client certificate in an operator's browser. The
/// `Origin` header contains the site of the page.
fn from_another_site(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|value: &header::HeaderValue| value.to_str().unwrap_or_default());
    let host = text(header::HOST).unwrap_or_default();
    text(header::ORIGIN).is_some_and(|origin| origin.split_once("://").is_none_or(|(_, site)| site != host))
}

/// Returns an error response if the role of the client is too low for the request.
fn beyond_role(peer: &Peer, method: &Method, path: &str) -> Option<Response> {
    let (has, needed) = (peer.role(), Role::needed(method, path));
    (has < needed).then(|| {
        let message = format!(
            "this request needs the role {needed}, but {peer} has {has} (admin.tcp.{needed} lists certificate names)"
        );
        Refusal::new(RefusalKind::Forbidden, message).into_response()
    })
}

fn foreign() -> Response {
    let message = "cross-site request rejected, because the Origin header does not match the Host header";
    Refusal::new(RefusalKind::Forbidden, message).into_response()
}

const USUAL_BYTES: usize = 64 << 10;
const BODY_WITHIN: Duration = Duration::from_secs(10);
