//! The doors of the admin API, as the configuration has them.
//!
//! In: `[admin]`; whom orders go to; what is known of liveness. Out: listeners at work, until [`Doors`] is dropped.
//! `/healthz` and `/readyz` watch: their answers do not wait for the run loop.

use std::convert::Infallible;

use anyhow::Context;
use control_plane::admin::{Command, Door, Limits, Rules, Socket, page, router, serve, socket, tls};
use control_plane::compile::find_machine;
use control_plane::config::Config;
use control_plane::metrics::listener::{self, Readiness, Sources};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::liveness::State as Liveness;

/// Listeners, which end when it is dropped; the socket's file goes with it.
#[derive(Debug)]
pub(crate) struct Doors {
    _socket: Option<Socket>,
    _listeners: JoinSet<Infallible>,
}

/// Opens every door of `machine`; `None`: the balancer can't be asked.
pub(crate) async fn open(
    config: &Config,
    machine: &str,
    orders: mpsc::Sender<Command>,
    liveness: &watch::Receiver<Liveness>,
) -> anyhow::Result<Option<Doors>> {
    let admin = config.admin();
    let mut listeners = JoinSet::new();
    let (readiness, watched) = watch::channel(readiness_of(&liveness.borrow()));
    let watching = listener::router(Sources { readiness: watched, commands: orders.clone() });
    let router = router(orders, Rules { put: admin.put() }, watching.clone().merge(page::router()));
    let machine = find_machine(config, machine)?;
    for &address in admin.metrics().iter().filter(|address| config.listens(machine, **address)) {
        let bound = listener::bind(address).await.with_context(|| format!("admin.metrics: {address}"))?;
        listeners.spawn(listener::serve(bound, watching.clone()));
    }
    let mut file = None;
    if let Some(path) = admin.socket() {
        let group = path.group().map(AsRef::as_ref);
        let (socket, listener) = socket::listen(path.path(), path.mode(), group)?;
        listeners.spawn(serve(Door::Unix(listener), router.clone(), Limits::default()));
        file = Some(socket);
    }
    if let Some(tcp) = admin.tcp() {
        let acceptor = tls::acceptor(tcp.certificates(), tcp.key().pem(), tcp.client_ca())?;
        for &address in tcp.listen().iter().filter(|address| config.listens(machine, **address)) {
            let listener =
                TcpListener::bind(address).await.with_context(|| format!("admin.tcp: {address}"))?;
            let door = Door::Tls(listener, acceptor.clone());
            listeners.spawn(serve(door, router.clone(), Limits::default()));
        }
    }
    if listeners.is_empty() {
        return Ok(None);
    }
    listeners.spawn(follow(liveness.clone(), readiness));
    Ok(Some(Doors { _socket: file, _listeners: listeners }))
}

/// Liveness as the routes take it. When the run loop has gone, so has what it says.
async fn follow(mut liveness: watch::Receiver<Liveness>, readiness: watch::Sender<Readiness>) -> Infallible {
    loop {
        readiness.send_replace(readiness_of(&liveness.borrow_and_update()));
        if liveness.changed().await.is_err() {
            drop(readiness);
            return std::future::pending().await;
        }
    }
}

fn readiness_of(state: &Liveness) -> Readiness {
    let fault = (!state.health.is_healthy()).then(|| state.health.to_string());
    Readiness { forwarder_fault: fault, not_ready: state.why_not() }
}
