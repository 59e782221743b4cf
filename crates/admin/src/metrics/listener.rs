//! A read-only listener for `GET /metrics`, `/healthz`, `/readyz` and `/readyz/vip/NAME` over plain
//! HTTP.
//!
//! `/healthz` and both forms of `/readyz` read the readiness of the process. `/metrics` sends
//! queries to the run loop. The listener accepts requests from any client, so [`serve`] limits the
//! number of connections, their duration, and the size of headers. At most [`MAX_CONNECTIONS`]
//! connections are open, and one further connection waits until an open one is closed. No
//! connection lasts longer than [`CONNECTION_LIFE`].

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};

use super::{Build, Hosts, MetricsInput, render};
use crate::connection_limiter::Progress;
use crate::server::{self, Limits, Listener};
use crate::view::DownView;
use crate::{Answer, Command, Readiness};

/// The sources of the data that the routes return.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The readiness, sent by the run loop. If the sender has been dropped, the process is neither
    /// healthy nor ready.
    pub readiness: watch::Receiver<Readiness>,
    /// The channel to the run loop, which the admin API also uses.
    pub commands: mpsc::Sender<Command>,
}

impl Sources {
    /// Sends the queries one at a time. An overloaded run loop therefore does not receive further
    /// queries of this scrape.
    async fn observe(&self) -> Option<MetricsInput> {
        let stats = self.ask(Command::Stats).await?;
        let status = self.ask(Command::Status).await?;
        let vips = self.ask(Command::Vips).await?;
        let backends = self.ask(Command::Backends).await?;
        let bgp = self.ask(Command::Bgp).await?;
        Some(MetricsInput { stats, status, vips, backends, bgp, build: Build::default() })
    }

    async fn ask<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(command(answer)).await.ok()?;
        answered.await.ok()
    }
}

/// Returns a router with these routes. The admin server uses this function too.
pub fn router(sources: Sources) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/readyz/vip/{name}", get(vip_readyz))
        .with_state(sources)
}

/// Serves `router` on `listener` until the future is dropped. Requests with an unknown host name
/// are rejected.
pub async fn serve(listener: TcpListener, router: Router, hosts: Hosts) -> Infallible {
    let router = router.layer(from_fn_with_state(hosts, by_our_names)).layer(from_fn(follow));
    server::serve(Listener::Plain(listener), router, LIMITS).await
}

async fn by_our_names(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    if hosts.allow(request.headers()) {
        return next.run(request).await;
    }
    (StatusCode::MISDIRECTED_REQUEST, MISDIRECTED).into_response()
}

/// Reports the progress of the connection. A request is complete after its headers, because no
/// route reads a body.
async fn follow(Extension(progress): Extension<Progress>, request: Request, next: Next) -> Response {
    progress.request_read();
    let response = next.run(request).await;
    progress.response_ready();
    response
}

async fn metrics(State(sources): State<Sources>) -> Response {
    match within(sources.observe()).await.map(|input| render(&input)) {
        Some(Ok(text)) => ([(header::CONTENT_TYPE, EXPOSITION)], text).into_response(),
        Some(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the load balancer did not return its counters in time\n")
            .into_response(),
    }
}

async fn within<T>(asked: impl Future<Output = Option<T>>) -> Option<T> {
    tokio::time::timeout(SCRAPE_TIME, asked).await.ok().flatten()
}

async fn healthz(State(sources): State<Sources>) -> Response {
    let fault = match sources.readiness.has_changed() {
        Ok(_) => sources.readiness.borrow().forwarder_fault().map(str::to_owned),
        Err(_) => Some(GONE.to_owned()),
    };
    match fault {
        None => WELL.into_response(),
        Some(fault) => refuse(&format!("{fault}\n")),
    }
}

/// Returns the readiness of the machine. If it is not ready because no VIP is announced, the
/// response includes the reasons of the VIPs.
async fn readyz(State(sources): State<Sources>, RawQuery(query): RawQuery) -> Response {
    if query.is_some() {
        return (StatusCode::BAD_REQUEST, NO_PARAMETERS).into_response();
    }
    if sources.readiness.has_changed().is_err() {
        return refuse(&format!("{GONE}\n"));
    }
    let readiness = sources.readiness.borrow();
    let mut reasons = readiness.not_ready();
    if !reasons.is_empty() {
        reasons.extend(readiness.vip_faults(DownView::MOST));
    }
    respond(&reasons)
}

async fn vip_readyz(State(sources): State<Sources>, name: Result<Path<String>, PathRejection>) -> Response {
    let Ok(Path(name)) = name else { return StatusCode::BAD_REQUEST.into_response() };
    if sources.readiness.has_changed().is_err() {
        return refuse(&format!("{GONE}\n"));
    }
    match sources.readiness.borrow().vip_not_ready(&name) {
        Some(reasons) => respond(&reasons),
        None => (StatusCode::NOT_FOUND, format!("VIP {name:?} is not configured on this machine\n"))
            .into_response(),
    }
}

fn respond(reasons: &[String]) -> Response {
    if reasons.is_empty() { READY.into_response() } else { refuse(&format!("{}\n", reasons.join("\n"))) }
}

fn refuse(reasons: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, reasons.to_owned()).into_response()
}

/// The maximum number of connections. If the maximum is reached, the oldest connection with an
/// incomplete request is closed to admit a new one. If no connection can be closed, new connections
/// wait in the kernel.
pub const MAX_CONNECTIONS: usize = 32;
/// The maximum duration of a connection, which carries one request.
pub const CONNECTION_LIFE: Duration = Duration::from_secs(10);
const MAX_HEADER_BYTES: usize = 8_192;
const LIMITS: Limits = Limits {
    connections: MAX_CONNECTIONS,
    head: Duration::from_secs(5),
    head_bytes: MAX_HEADER_BYTES,
    keep_alive: false,
    reading: CONNECTION_LIFE,
    life: CONNECTION_LIFE,
    farewell: Duration::ZERO,
};
/// The maximum time for a scrape. This time is less than the default scrape timeout of Prometheus.
const SCRAPE_TIME: Duration = Duration::from_secs(5);
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";
const WELL: &str = "healthy\n";
const READY: &str = "ready\n";
const NO_PARAMETERS: &str = "/readyz has no parameters, /readyz/vip/NAME returns the state of a VIP\n";
const MISDIRECTED: &str = "unknown host name, admin.metrics_hosts lists accepted names\n";
const GONE: &str = "the run loop of the load balancer has ended";

#[cfg(test)]
mod tests;
