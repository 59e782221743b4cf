//! What every request goes through: its body is read whole, within limits; orders are logged with their client.
//!
//! In: any request. Out: one whose body is in memory, or a refusal.
//! Invariant: a handler never waits for a client.

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
    let peer = peer.map_or_else(|| "?".to_owned(), Peer::to_string);
    let response = match refusal {
        // Before the body is read: it may be large.
        Some(refusal) => refusal,
        None if from_another_site(request.headers()) => foreign(),
        None => admit(&state, request, next).await,
    };
    // Operators' orders are few: each leaves one line.
    let status = response.status().as_u16();
    match response.extensions().get::<AuditRecord>() {
        Some(AuditRecord::Said { words, reason }) => {
            tracing::info!(change = "order", %peer, reason, "an operator's order: {words}");
        }
        Some(AuditRecord::Noted(words)) => tracing::info!(%peer, "an operator's order: {words}"),
        Some(AuditRecord::Logged) => tracing::debug!(%peer, %method, path, "an operator's order"),
        None => tracing::warn!(%peer, %method, path, status, "an operator's order was refused"),
    }
    response
}

/// What the log and the events are to say of an order that was carried out; it travels with the response.
#[derive(Clone, Debug)]
pub(super) enum AuditRecord {
    /// This, and why its giver wants it.
    Said { words: String, reason: Option<String> },
    /// This, in the log alone: it changes nothing, and is given again and again.
    Noted(String),
    /// A reload logs its outcome itself.
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
            let message = "another configuration is being put: try again";
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
    let too_large = || bad(StatusCode::PAYLOAD_TOO_LARGE, format!("the body may have {limit} bytes at most"));
    let is_limit = |error: &axum::Error| error.source().is_some_and(|cause| cause.is::<LengthLimitError>());
    let declared =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|declared| declared > limit as u64) {
        return Err(too_large());
    }
    match tokio::time::timeout(BODY_WITHIN, to_bytes(body, limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_limit(&error) => Err(too_large()),
        Ok(Err(error)) => Err(bad(StatusCode::BAD_REQUEST, format!("the body broke off: {error}"))),
        Err(_) => Err(bad(StatusCode::REQUEST_TIMEOUT, "the body did not come in time")),
    }
}

/// For an order whose words all stand in its path and query: a body that says more would be carried out without it.
pub(super) async fn without_body(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    // It has been read already, within its limit.
    let body = to_bytes(body, USUAL_BYTES).await.unwrap_or_default();
    // What clients send that always send JSON.
    if matches!(body.trim_ascii(), b"" | b"null" | b"{}") {
        return next.run(Request::from_parts(parts, Body::empty())).await;
    }
    bad_request("this order has no body: what it is for stands in its path and query").into_response()
}

/// A browser that holds a client certificate would carry orders of any page that it shows: it names that page's origin.
fn from_another_site(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|value: &header::HeaderValue| value.to_str().unwrap_or_default());
    let host = text(header::HOST).unwrap_or_default();
    text(header::ORIGIN).is_some_and(|origin| origin.split_once("://").is_none_or(|(_, site)| site != host))
}

/// The refusal of what the client's role does not cover.
fn beyond_role(peer: &Peer, method: &Method, path: &str) -> Option<Response> {
    let (has, needed) = (peer.role(), Role::needed(method, path));
    (has < needed).then(|| {
        let message = format!(
            "this needs the role {needed}, {peer} has {has}: admin.tcp.{needed} lists names of certificates"
        );
        Refusal::new(RefusalKind::Forbidden, message).into_response()
    })
}

fn foreign() -> Response {
    Refusal::new(RefusalKind::Forbidden, "orders from another site's page are refused").into_response()
}

const USUAL_BYTES: usize = 64 << 10;
const BODY_WITHIN: Duration = Duration::from_secs(10);
