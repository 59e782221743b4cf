//! The read-only listener: `GET /metrics`, `/healthz` and `/readyz` over plain HTTP, and nothing else.
//!
//! In: addresses of `admin.metrics`; what the run loop says of its readiness, and its answers to scrapes.
//! Out: a [`Router`] for these routes, and [`serve`], which bounds what strangers can take: connections, time, header bytes.
//! Not here: anything that changes the balancer.
//! When all are taken, whoever is in the middle of a request gives way (`admin::room`): who stops there delays nobody.
//! Invariant: at most [`MAX_CONNECTIONS`] connections and one that waits for room, and none lives longer than
//! [`CONNECTION_LIFE`].

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};

use super::{MetricsInput, render};
use crate::paced::Paced;
use crate::room::{Progress, Room};
use crate::server::spawn;
use crate::{Answer, Command};

/// What the run loop says of itself. The default is a balancer that has only begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// What is wrong with the forwarder; `None`: it is healthy.
    pub forwarder_fault: Option<String>,
    /// Why traffic would not be served, one reason a line; empty: it would.
    pub not_ready: Vec<String>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self { forwarder_fault: None, not_ready: vec!["starting".into()] }
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
        Some(MetricsInput::new(stats, &status, &vips, &backends, bgp))
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

/// Binds `address`, so that a wrong one is known at the start.
///
/// # Errors
/// The kernel's: the address is not this machine's, or taken.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves `router` to every connection of `listener`, until dropped.
pub async fn serve(listener: TcpListener, router: Router) -> Infallible {
    let room = Room::new(MAX_CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                spawn(room.enter().await, |progress| answer(stream, router.clone(), progress));
            }
            Err(error) => {
                // The client has gone, or descriptors are short: neither ends the listener.
                tracing::debug!(%error, "metrics: a connection was not accepted");
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, router: Router, progress: Progress) {
    let stream = Paced::new(stream, CONNECTION_LIFE, progress.clone());
    let router = router.layer(from_fn_with_state(progress, follow));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(MAX_HEADER_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // A client that goes in the middle of something is its own affair.
    let _ = tokio::time::timeout(CONNECTION_LIFE, connection).await;
}

/// Here a request is whole with its head: no route reads a body.
async fn follow(State(progress): State<Progress>, request: Request, next: Next) -> Response {
    progress.has_asked();
    let response = next.run(request).await;
    progress.has_answer();
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

async fn readyz(State(sources): State<Sources>) -> Response {
    let mut reasons = match sources.readiness.has_changed() {
        Ok(_) => sources.readiness.borrow().not_ready.clone(),
        Err(_) => vec![GONE.to_owned()],
    };
    let fault = sources.readiness.borrow().forwarder_fault.clone();
    reasons.extend(fault.filter(|fault| !reasons.contains(fault)));
    if reasons.is_empty() { READY.into_response() } else { refuse(&format!("{}\n", reasons.join("\n"))) }
}

fn refuse(reasons: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, reasons.to_owned()).into_response()
}

/// For one more, the oldest that has not sent a whole request is ended; when there is none, more wait in the kernel's queue.
pub const MAX_CONNECTIONS: usize = 32;
/// From the accept to the last byte; the connection is closed after one answer.
pub const CONNECTION_LIFE: Duration = Duration::from_secs(10);
const HEADER_TIME: Duration = Duration::from_secs(5);
/// The least that hyper takes.
const MAX_HEADER_BYTES: usize = 8_192;
/// Less than Prometheus waits by default.
const SCRAPE_TIME: Duration = Duration::from_secs(5);
const AFTER_ERROR: Duration = Duration::from_millis(100);
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";
const WELL: &str = "healthy\n";
const READY: &str = "ready\n";
const GONE: &str = "the run loop has ended";

#[cfg(test)]
mod tests;
