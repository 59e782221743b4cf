//! The doors of the admin API, as the configuration has them.
//!
//! In: `[admin]`; where orders go; what is known of readiness. Out: listeners at work, until [`Doors`] is dropped; the socket's
//! file is made again when it is removed.
//! `/healthz` and `/readyz` watch: their answers do not wait for the run loop. `admin.metrics` has these and `/metrics` alone.

use std::sync::Arc;

use admin::metrics::{self, Readiness, Sources};
use admin::{Command, Door, Limits, Roles, Rules, Socket, acceptor, listen, router, serve, status_page};
use anyhow::Context;
use config::Config;
use control_plane::compile::find_machine;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

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
    readiness: watch::Receiver<Readiness>,
) -> anyhow::Result<Option<Doors>> {
    let admin = config.admin();
    let watched = metrics::router(Sources { readiness, commands: orders.clone() });
    let router = router(orders, Rules { put: admin.put }, watched.clone().merge(status_page()));
    let of_machine = find_machine(config, machine)?;
    let mut listeners = JoinSet::new();
    let mut file = None;
    if let Some(path) = &admin.socket {
        let group = path.group.as_ref().map(AsRef::as_ref);
        let (socket, listener) = listen(&path.path, path.mode, group)?;
        listeners.spawn(socket.keep(listener, router.clone(), Limits::default()));
        file = Some(socket);
    }
    if let Some(tcp) = &admin.tcp {
        let all = |names: &[Arc<str>]| names.iter().map(ToString::to_string).collect();
        let roles = Arc::new(Roles { operate: all(&tcp.operate), configure: all(&tcp.configure) });
        let acceptor = acceptor(&tcp.certificates, tcp.key.pem(), &tcp.client_ca)?;
        for &address in tcp.listen.iter().filter(|address| config.listens(of_machine, **address)) {
            let listener =
                TcpListener::bind(address).await.with_context(|| format!("admin.tcp: {address}"))?;
            let door = Door::Tls(listener, acceptor.clone(), Arc::clone(&roles));
            listeners.spawn(serve(door, router.clone(), Limits::default()));
        }
    }
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let names = admin.metrics_hosts.iter().map(ToString::to_string).chain([machine.to_owned()]).chain(host);
    let hosts = metrics::Hosts::new(names);
    for &address in admin.metrics.iter().filter(|address| config.listens(of_machine, **address)) {
        let bound = TcpListener::bind(address).await.with_context(|| format!("admin.metrics: {address}"))?;
        listeners.spawn(metrics::serve(bound, watched.clone(), hosts.clone()));
    }
    Ok((!listeners.is_empty()).then_some(Doors { _socket: file, _listeners: listeners }))
}
