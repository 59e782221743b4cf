//! The admin socket: HTTP over a Unix socket, read-only in this version.
//!
//! In: requests. Out: `GET /counters`, as JSON; `GET /healthz` and `GET /readyz`, 200 or 503 with the reason. The run loop
//! owns the data plane; a question for it is a message. Health is watched: its answer does not wait for the loop.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use control_plane::admin::command::Command;
use nix::sys::stat::{Mode, umask};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot, watch};

use crate::liveness::State as Liveness;

/// The socket's file; removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens at `path` with permissions `mode`. A socket that a killed process left is replaced; one that answers is not.
pub(crate) fn listen(
    path: &Path,
    mode: u32,
    questions: mpsc::Sender<Command>,
    liveness: watch::Receiver<Liveness>,
) -> anyhow::Result<Socket> {
    let at = || format!("admin socket {}", path.display());
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        anyhow::ensure!(
            std::os::unix::net::UnixStream::connect(path).is_err(),
            "{}: another process answers there; is a balancer running already?",
            at()
        );
        std::fs::remove_file(path).with_context(at)?;
    }
    // Nobody may connect between bind and chmod.
    let usual = umask(Mode::all());
    let bound = UnixListener::bind(path);
    umask(usual);
    let listener = bound.with_context(at)?;
    let socket = Socket(path.to_owned());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).with_context(at)?;
    let watched =
        Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz)).with_state(liveness);
    let router = Router::new().route("/counters", get(counters)).with_state(questions).merge(watched);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the admin socket has ended");
        }
    });
    Ok(socket)
}

async fn counters(State(questions): State<mpsc::Sender<Command>>) -> Response {
    let (ask, answer) = oneshot::channel();
    if questions.send(Command::Figures(ask)).await.is_ok()
        && let Ok(figures) = answer.await
    {
        return axum::Json(figures).into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, "the balancer is stopping").into_response()
}

/// Whether the forwarder works. A drain is no illness.
async fn healthz(State(liveness): State<watch::Receiver<Liveness>>) -> (StatusCode, String) {
    let liveness = liveness.borrow();
    (status(liveness.health.is_healthy()), format!("{}\n", liveness.health))
}

/// Whether traffic should be sent here.
async fn readyz(State(liveness): State<watch::Receiver<Liveness>>) -> (StatusCode, String) {
    let liveness = liveness.borrow();
    let why_not = liveness.why_not();
    let words = if why_not.is_empty() { "ready".to_owned() } else { why_not.join("; ") };
    (status(liveness.is_ready()), format!("{words}\n"))
}

fn status(is_well: bool) -> StatusCode {
    if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
