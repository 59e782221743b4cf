//! The read-only listener: `GET /metrics`, `/healthz` and `/readyz` over plain HTTP, and nothing else.
//!
//! In: listeners at addresses of `admin.metrics`; the run loop's readiness, and its answers to scrapes.
//! Out: a [`Router`] for these routes, and [`serve`], which bounds what strangers can take: connections, time, header bytes.
//! Not here: anything that changes the balancer; how the bounds are kept (`server`).
//! Invariant: at most [`MAX_CONNECTIONS`] connections and one that waits, and none lives longer than [`CONNECTION_LIFE`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use axum::extract::{Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};

use super::{Build, Hosts, MetricsInput, render};
use crate::connection_limiter::Progress;
use crate::server::{self, Limits, Listener};
use crate::{Answer, Command};

/// What the run loop says of itself. The default is a balancer that has only begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// What is wrong with the forwarder; `None`: it is healthy.
    pub forwarder_fault: Option<String>,
    /// Why no traffic would be served, whatever its VIP, one reason a line.
    pub not_ready: Vec<String>,
    /// Of each VIP of the machine, whether every service of it has a backend.
    pub vips: BTreeMap<String, bool>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self { forwarder_fault: None, not_ready: vec!["starting".into()], vips: BTreeMap::new() }
    }
}

impl Readiness {
    /// Why traffic for this VIP would not be served, or (`None`) for some VIP.
    fn why_not(&self, vip: Option<&str>) -> Vec<String> {
        let fault = self.forwarder_fault.iter().filter(|fault| !self.not_ready.contains(fault));
        let meant = |name: &str| vip.is_none_or(|vip| vip == name);
        let without = self.vips.iter().filter(|(name, served)| !**served && meant(name));
        let without = without.map(|(name, _)| format!("no backend serves VIP {name}"));
        self.not_ready.iter().chain(fault).cloned().chain(without).collect()
    }
}

/// Where the routes have their answers from.
#[derive(Clone, Debug)]
pub struct Sources {
    /// Fed by the run loop; when its sender is gone, the process is neither healthy nor ready.
    pub readiness: watch::Receiver<Readiness>,
    /// To the run loop, which also answers the admin API.
    pub commands: mpsc::Sender<Command>,
}

impl Sources {
    /// One question after the other: a run loop that has no time for the first is not asked the rest.
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

/// The three routes, for this listener and for the admin server.
pub fn router(sources: Sources) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(sources)
}

/// Serves `router` to every connection of `listener` that asks by one of `hosts`, until dropped.
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

/// Here a request is whole with its head: no route reads a body.
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
        None => (StatusCode::SERVICE_UNAVAILABLE, "the balancer gives no counters\n").into_response(),
    }
}

async fn within<T>(asked: impl Future<Output = Option<T>>) -> Option<T> {
    tokio::time::timeout(SCRAPE_TIME, asked).await.ok().flatten()
}

async fn healthz(State(sources): State<Sources>) -> Response {
    let fault = match sources.readiness.has_changed() {
        Ok(_) => sources.readiness.borrow().forwarder_fault.clone(),
        Err(_) => Some(GONE.to_owned()),
    };
    match fault {
        None => WELL.into_response(),
        Some(fault) => refuse(&format!("{fault}\n")),
    }
}

/// What `/readyz` is asked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// The VIP; absent: all of them.
    vip: Option<String>,
}

async fn readyz(State(sources): State<Sources>, Query(Asked { vip }): Query<Asked>) -> Response {
    if sources.readiness.has_changed().is_err() {
        return refuse(&format!("{GONE}\n"));
    }
    let readiness = sources.readiness.borrow();
    if let Some(unknown) = vip.as_ref().filter(|vip| !readiness.vips.contains_key(*vip)) {
        return (StatusCode::NOT_FOUND, format!("this machine serves no VIP {unknown:?}\n")).into_response();
    }
    let reasons = readiness.why_not(vip.as_deref());
    if reasons.is_empty() { READY.into_response() } else { refuse(&format!("{}\n", reasons.join("\n"))) }
}

fn refuse(reasons: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, reasons.to_owned()).into_response()
}

/// For one more, the oldest that has not sent a whole request is ended; when there is none, more wait in the kernel's queue.
pub const MAX_CONNECTIONS: usize = 32;
/// From the accept to the last byte; the connection is closed after one answer.
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
/// Less than Prometheus waits by default.
const SCRAPE_TIME: Duration = Duration::from_secs(5);
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";
const WELL: &str = "healthy\n";
const READY: &str = "ready\n";
const MISDIRECTED: &str = "this machine has no such name: admin.metrics_hosts lists more\n";
const GONE: &str = "the run loop has ended";

#[cfg(test)]
mod tests;
