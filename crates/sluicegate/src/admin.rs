//! The doors of the admin API, as the configuration has them.
//!
//! In: `[admin]`; whom orders go to; what is known of liveness. Out: listeners at work, until [`Doors`] is dropped.
//! `/healthz` and `/readyz` watch: their answers do not wait for the run loop.

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use control_plane::admin::{Command, Door, Limits, Rules, Socket, router, serve, socket, tls};
use control_plane::compile::find_machine;
use control_plane::config::Config;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::liveness::State as Liveness;

/// Listeners, which end when it is dropped; the socket's file goes with it.
#[derive(Debug)]
pub(crate) struct Doors {
    _socket: Option<Socket>,
    _listeners: JoinSet<std::convert::Infallible>,
}

/// Opens every door of `machine`; `None`: the balancer can't be asked.
pub(crate) async fn open(
    config: &Config,
    machine: &str,
    orders: mpsc::Sender<Command>,
    liveness: &watch::Receiver<Liveness>,
) -> anyhow::Result<Option<Doors>> {
    let admin = config.admin();
    let router = router(orders, Rules { put: admin.put() }, watched(liveness));
    let mut listeners = JoinSet::new();
    let mut file = None;
    if let Some(path) = admin.socket() {
        let group = path.group().map(AsRef::as_ref);
        let (socket, listener) = socket::listen(path.path(), path.mode(), group)?;
        listeners.spawn(serve(Door::Unix(listener), router.clone(), Limits::default()));
        file = Some(socket);
    }
    if let Some(tcp) = admin.tcp() {
        let acceptor = tls::acceptor(tcp.certificates(), tcp.key().pem(), tcp.client_ca())?;
        let machine = find_machine(config, machine)?;
        for &address in tcp.listen().iter().filter(|address| config.listens(machine, **address)) {
            let listener =
                TcpListener::bind(address).await.with_context(|| format!("admin.tcp: {address}"))?;
            let door = Door::Tls(listener, acceptor.clone());
            listeners.spawn(serve(door, router.clone(), Limits::default()));
        }
    }
    Ok((!listeners.is_empty()).then_some(Doors { _socket: file, _listeners: listeners }))
}

fn watched(liveness: &watch::Receiver<Liveness>) -> Router {
    let routes = Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz));
    routes.with_state(liveness.clone())
}

/// Whether the forwarder works. A drain is no illness.
async fn healthz(State(liveness): State<watch::Receiver<Liveness>>) -> (StatusCode, String) {
    let liveness = liveness.borrow();
    (status(liveness.health.is_healthy()), format!("{}\n", liveness.health))
}

/// Whether traffic should be sent here.
async fn readyz(State(liveness): State<watch::Receiver<Liveness>>) -> (StatusCode, String) {
    let liveness = liveness.borrow();
    let words = if liveness.draining { "draining".to_owned() } else { liveness.health.to_string() };
    (status(liveness.is_ready()), format!("{words}\n"))
}

fn status(is_well: bool) -> StatusCode {
    if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
