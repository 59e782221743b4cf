//! Manages the listeners of the admin API: the Unix socket, the TCP ports with TLS, and the metrics
//! ports.
//!
//! A reload first binds the new sockets with [`bind`] and later applies the configuration with
//! [`Listeners::take`]. If a port is already in use, the reload fails before anything has changed.
//! A reload does not change the roles of clients that are already connected. `/healthz` and
//! `/readyz` read a watch channel, so that they do not wait for the control loop. The ports in
//! `admin.metrics` serve only `/healthz`, `/readyz` and `/metrics`.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use admin::Readiness;
use admin::metrics::{self, Hosts, Sources};
use admin::{
    Command, Limits, Listener, Roles, Rules, Socket, SocketError, Tls, acceptor, listen, router, serve,
    status_page,
};
use axum::Router;
use compile::find_machine;
use config::{AdminSocket, AdminTcp, Config};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// The running listeners. Dropping this value stops all listeners and removes the socket file.
#[derive(Debug)]
pub(crate) struct Listeners {
    api: Router,
    watched: Router,
    rules: Rules,
    hosts: Hosts,
    /// The names of this machine, which are always allowed in the Host header of metrics requests.
    names: Vec<String>,
    socket: Option<(Socket, Task)>,
    tls: Option<watch::Sender<Tls>>,
    tcp: BTreeMap<SocketAddr, Task>,
    metrics: BTreeMap<SocketAddr, Task>,
    /// The reason why the configured mode or group could not be set on the socket file.
    fault: Option<String>,
}

/// A listener task. Dropping the task stops the listener.
type Task = JoinSet<Infallible>;

/// The addresses that already have a listener.
#[derive(Clone, Debug, Default)]
pub(crate) struct Existing {
    socket: Option<PathBuf>,
    tcp: BTreeSet<SocketAddr>,
    metrics: BTreeSet<SocketAddr>,
}

/// New listeners, which are bound but do not accept connections yet.
#[derive(Debug)]
pub(crate) struct Bound {
    socket: Option<(Socket, UnixListener)>,
    tls: Option<Tls>,
    tcp: Vec<(SocketAddr, TcpListener)>,
    metrics: Vec<(SocketAddr, TcpListener)>,
}

/// Binds the listeners in `config` that are not in `existing`.
///
/// # Errors
/// Returns an error if an address or the socket path is in use, if the folder or the group of the
/// socket does not exist, or if a certificate does not match its key.
pub(crate) async fn bind(config: &Config, machine: &str, existing: &Existing) -> anyhow::Result<Bound> {
    let admin = config.admin();
    let socket = match &admin.socket {
        Some(wanted) if existing.socket.as_ref() != Some(&wanted.path) => open_file(wanted)?,
        _ => None,
    };
    let tls = admin.tcp.as_ref().map(tls).transpose()?;
    let [of_tcp, of_metrics] = addresses(config, machine)?;
    let tcp = listeners("admin.tcp", &of_tcp, &existing.tcp).await?;
    let metrics = listeners("admin.metrics", &of_metrics, &existing.metrics).await?;
    Ok(Bound { socket, tls, tcp, metrics })
}

/// Returns the TCP addresses of the API and the metrics addresses on which this machine listens.
fn addresses(config: &Config, machine: &str) -> anyhow::Result<[BTreeSet<SocketAddr>; 2]> {
    let (admin, machine) = (config.admin(), find_machine(config, machine)?);
    let own = |all: &[SocketAddr]| {
        all.iter().copied().filter(|address| config.listens(machine, *address)).collect()
    };
    Ok([admin.tcp.as_ref().map(|tcp| own(&tcp.listen)).unwrap_or_default(), own(&admin.metrics)])
}

async fn listeners(
    key: &str,
    wanted: &BTreeSet<SocketAddr>,
    existing: &BTreeSet<SocketAddr>,
) -> anyhow::Result<Vec<(SocketAddr, TcpListener)>> {
    let mut bound = Vec::new();
    for &address in wanted.difference(existing) {
        let listener = TcpListener::bind(address).await.map_err(|error| {
            let help = match error.kind() {
                io::ErrorKind::AddrNotAvailable => {
                    ": list only addresses of this machine and of machines in the configuration"
                }
                _ => "",
            };
            anyhow::Error::new(error).context(format!("{key}: {address}{help}"))
        })?;
        bound.push((address, listener));
    }
    Ok(bound)
}

/// Creates the admin socket. Returns `None` if the default socket cannot be created, because only a
/// configured socket is required.
fn open_file(wanted: &AdminSocket) -> Result<Option<(Socket, UnixListener)>, SocketError> {
    match listen(&wanted.path, wanted.mode, group(wanted)) {
        Err(error) if wanted.is_default => {
            let hint = "set admin.socket = false to disable the socket";
            match error {
                SocketError::NoFolder { folder, .. } => {
                    // log: The directory of the admin socket does not exist. The systemd unit
                    // creates `/run/sluicegate`.
                    tracing::info!(path = %folder.display(), hint, "admin socket not created, folder missing");
                }
                // log: The admin socket could not be created for the reason in `error`. Commands
                // that connect to the load balancer exit with code 3.
                error => tracing::warn!(%error, hint, "admin socket not created"),
            }
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

fn group(socket: &AdminSocket) -> Option<&str> {
    socket.group.as_deref()
}

fn tls(tcp: &AdminTcp) -> anyhow::Result<Tls> {
    let all = |names: &[Arc<str>]| names.iter().map(ToString::to_string).collect();
    let roles = Arc::new(Roles { operate: all(&tcp.operate), configure: all(&tcp.configure) });
    Ok(Tls { acceptor: acceptor(&tcp.certificates, tcp.key.pem(), &tcp.client_ca)?, roles })
}

impl Listeners {
    /// Creates the state of the listeners without opening any.
    pub(crate) fn new(
        machine: &str,
        overrides: mpsc::Sender<Command>,
        readiness: watch::Receiver<Readiness>,
    ) -> Self {
        let (rules, hosts) = (Rules::default(), Hosts::default());
        let watched = metrics::router(Sources { readiness, commands: overrides.clone() });
        let api = router(overrides, rules.clone(), watched.clone().merge(status_page()));
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let names = [machine.to_owned()].into_iter().chain(host).collect();
        let (tcp, metrics) = Default::default();
        Self { api, watched, rules, hosts, names, socket: None, tls: None, tcp, metrics, fault: None }
    }

    /// Returns the addresses that have a listener.
    pub(crate) fn existing(&self) -> Existing {
        Existing {
            socket: self.socket.as_ref().map(|(socket, _)| socket.path().to_owned()),
            tcp: self.tcp.keys().copied().collect(),
            metrics: self.metrics.keys().copied().collect(),
        }
    }

    /// Closes all listeners and removes the socket file.
    pub(crate) fn close(&mut self) {
        self.socket = None;
        self.tcp.clear();
        self.metrics.clear();
    }

    /// Returns the error if the socket file could not be given the configured permissions.
    pub(crate) fn fault(&self) -> Option<String> {
        self.fault.clone()
    }

    /// Applies `config`: closes the listeners that are no longer configured, and starts the
    /// listeners in `bound`.
    pub(crate) fn take(&mut self, config: &Config, machine: &str, bound: Bound) {
        let admin = config.admin();
        self.rules.set_put(admin.put);
        let listed = admin.metrics_hosts.iter().map(ToString::to_string);
        self.hosts.replace(listed.chain(self.names.iter().cloned()));
        self.take_socket(admin.socket.as_ref(), bound.socket);
        // The lookup succeeds, because `bind` has already found the machine.
        let [of_tcp, of_metrics] = addresses(config, machine).unwrap_or_default();
        self.take_tls(bound.tls);
        self.tcp.retain(|address, _| of_tcp.contains(address));
        self.metrics.retain(|address, _| of_metrics.contains(address));
        for (address, listener) in bound.metrics {
            let serving = metrics::serve(listener, self.watched.clone(), self.hosts.clone());
            self.metrics.insert(address, task(serving));
        }
        let Some(tls) = &self.tls else { return };
        for (address, listener) in bound.tcp {
            let listener = Listener::Tls(listener, tls.subscribe());
            self.tcp.insert(address, task(serve(listener, self.api.clone(), Limits::default())));
        }
    }

    fn take_tls(&mut self, next: Option<Tls>) {
        match (&self.tls, next) {
            (Some(tls), Some(next)) => drop(tls.send_replace(next)),
            (None, Some(next)) => self.tls = Some(watch::Sender::new(next)),
            (_, None) => self.tls = None,
        }
    }

    fn take_socket(&mut self, wanted: Option<&AdminSocket>, bound: Option<(Socket, UnixListener)>) {
        self.fault = None;
        let is_at = |path: &Path| wanted.is_some_and(|wanted| wanted.path == path);
        if self.socket.as_ref().is_some_and(|(socket, _)| !is_at(socket.path())) {
            self.socket = None;
        }
        if let Some((socket, listener)) = bound {
            let serving = task(socket.keep(listener, self.api.clone(), Limits::default()));
            self.socket = Some((socket, serving));
        } else if let (Some((socket, _)), Some(wanted)) = (&self.socket, wanted)
            && let Err(error) = socket.open_to(wanted.mode, group(wanted))
        {
            // log: The mode or group of the admin socket could not be changed. Restart the process
            // to use a group that the process does not belong to yet.
            tracing::error!(%error, "admin socket permissions not changed");
            self.fault = Some(error.to_string());
        }
    }
}

fn task(serving: impl Future<Output = Infallible> + Send + 'static) -> Task {
    let mut task = JoinSet::new();
    task.spawn(serving);
    task
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};

    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
    use tokio::net::{TcpStream, UnixStream};

    use super::*;

    struct Scene {
        folder: PathBuf,
        listeners: Listeners,
        _commands: mpsc::Receiver<Command>,
    }

    impl Scene {
        fn new(name: &str) -> Self {
            let folder =
                std::env::temp_dir().join(format!("sluicegate-listeners-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            let (overrides, commands) = mpsc::channel(1);
            let readiness = watch::Sender::new(Readiness::default());
            let listeners = Listeners::new("lb1", overrides, readiness.subscribe());
            // The sender must exist until the end of the test, because `/healthz` reads this
            // channel.
            std::mem::forget(readiness);
            Self { folder, listeners, _commands: commands }
        }

        fn socket(&self, name: &str) -> PathBuf {
            self.folder.join(name)
        }

        /// Reloads with `keys` as the content of the section `[admin]`.
        async fn follow(&mut self, keys: &str) -> anyhow::Result<()> {
            let config = config(keys);
            let bound = bind(&config, "lb1", &self.listeners.existing()).await?;
            self.listeners.take(&config, "lb1", bound);
            Ok(())
        }

        async fn serves(&self, name: &str) -> bool {
            match UnixStream::connect(self.socket(name)).await {
                Ok(stream) => get(stream, "/openapi.json", "localhost").await.starts_with("HTTP/1.1 200"),
                Err(_) => false,
            }
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    fn config(keys: &str) -> Config {
        let text = format!(
            "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n[machine.lb1]\naddresses = [\"192.0.2.1\"]\n\
             interfaces = [\"eth0\"]\n[admin]\n{keys}"
        );
        let secret = |name: &config::SecretName| match name {
            config::SecretName::File(path) if path.is_absolute() => Ok(fs::read_to_string(path).unwrap()),
            _ => Ok("00112233445566778899aabbccddeeff".to_owned()),
        };
        config::parse(&text, Path::new("a.toml"), &secret).unwrap().0
    }

    async fn get(mut stream: impl AsyncRead + AsyncWrite + Unpin, path: &str, host: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A connection reset also means that the connection has ended.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn metrics(address: SocketAddr, host: &str) -> Option<String> {
        Some(get(TcpStream::connect(address).await.ok()?, "/healthz", host).await)
    }

    /// Waits until a listener is closed. The runtime closes listeners asynchronously.
    async fn closes(address: SocketAddr) {
        let end = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(address).await.is_ok() {
            assert!(Instant::now() < end, "{address} is still open");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn free() -> SocketAddr {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    // Promise: reload-access
    #[tokio::test]
    async fn a_reload_moves_the_socket_and_changes_who_may_open_it() {
        let mut scene = Scene::new("socket");
        let (one, other) = (scene.socket("one.sock"), scene.socket("other.sock"));
        scene.follow(&format!("socket = {{ path = {one:?} }}\n")).await.unwrap();
        assert!(scene.serves("one.sock").await && mode(&one) == 0o600);
        let mut open = UnixStream::connect(&one).await.unwrap();
        open.write_all(b"GET /openapi.json HTTP/1.1\r\n").await.unwrap();
        scene.follow(&format!("socket = {{ path = {one:?}, mode = \"0660\" }}\nput = true\n")).await.unwrap();
        assert!(scene.serves("one.sock").await && mode(&one) == 0o660 && scene.listeners.fault().is_none());
        scene.follow(&format!("socket = {{ path = {other:?} }}\n")).await.unwrap();
        assert!(scene.serves("other.sock").await && !one.exists());
        open.write_all(b"Host: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        open.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "open connections continue: {answer}");
        let refused = scene.follow("socket = { path = \"/none/admin.sock\" }\n").await.unwrap_err();
        assert!(refused.to_string().contains("create directory /none"), "{refused}");
        assert!(scene.serves("other.sock").await, "a failed reload changes nothing");
        scene.follow("socket = false\n").await.unwrap();
        assert!(!other.exists());
    }

    #[tokio::test]
    async fn missing_group_is_reported_and_mode_unchanged() {
        let mut scene = Scene::new("group");
        let path = scene.socket("admin.sock");
        scene.follow(&format!("socket = {{ path = {path:?}, mode = \"0660\" }}\n")).await.unwrap();
        let wrong = format!("socket = {{ path = {path:?}, mode = \"0666\", group = \"no-such-group\" }}\n");
        scene.follow(&wrong).await.unwrap();
        assert!(scene.listeners.fault().unwrap().contains("no-such-group") && mode(&path) == 0o660);
        scene.follow(&format!("socket = {{ path = {path:?}, mode = \"0660\" }}\n")).await.unwrap();
        assert_eq!(scene.listeners.fault(), None);
    }

    // Promise: reload-access
    #[tokio::test]
    async fn reload_opens_and_closes_ports_or_fails_on_used_port() {
        let mut scene = Scene::new("metrics");
        let (one, other) = (free(), free());
        let well =
            async |address, host| metrics(address, host).await.is_some_and(|said| said.contains(" 200 "));
        scene.follow(&format!("socket = false\nmetrics = [\"{one}\"]\n")).await.unwrap();
        assert!(well(one, "lb1").await && !well(one, "lb1.example.net").await);
        let keys = format!(
            "socket = false\nmetrics = [\"{one}\", \"{other}\"]\nmetrics_hosts = [\"*.example.net\"]\n"
        );
        scene.follow(&keys).await.unwrap();
        assert!(well(one, "lb1.example.net").await && well(other, "lb1").await);
        scene.follow(&format!("socket = false\nmetrics = [\"{other}\"]\n")).await.unwrap();
        closes(one).await;
        assert!(well(other, "lb1").await && !well(other, "lb1.example.net").await);
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (new, taken) = (scene.socket("new.sock"), taken.local_addr().unwrap());
        let keys = format!("socket = {{ path = {new:?} }}\nmetrics = [\"{taken}\"]\n");
        let refused = format!("{:#}", scene.follow(&keys).await.unwrap_err());
        assert!(refused.starts_with(&format!("admin.metrics: {taken}: ")), "{refused}");
        assert!(!new.exists() && well(other, "lb1").await, "a failed reload changes nothing");
        // No interface has this address.
        let refused = scene.follow("socket = false\nmetrics = [\"192.0.2.99:1\"]\n").await.unwrap_err();
        let wanted = "admin.metrics: 192.0.2.99:1: list only addresses of this machine and of machines in";
        assert!(format!("{refused:#}").starts_with(wanted), "{refused:#}");
    }

    // Promise: reload-access
    #[tokio::test]
    async fn reload_replaces_the_roles_of_an_open_tls_port() {
        let mut scene = Scene::new("tls");
        let issued = rcgen::generate_simple_self_signed(["lb1".to_owned()]).unwrap();
        let pem = [("c.pem", issued.cert.pem()), ("k.pem", issued.signing_key.serialize_pem())];
        let [certificate, key] = pem.map(|(name, text)| {
            let path = scene.folder.join(name);
            fs::write(&path, text).unwrap();
            path
        });
        let address = free();
        let keys = |operator: &str| {
            format!(
                "socket = false\ntcp = {{ listen = [\"{address}\"], certificate_file = {certificate:?}, \
                 key_file = {key:?}, client_ca_file = {certificate:?}, operate = [\"{operator}\"] }}\n"
            )
        };
        scene.follow(&keys("alice")).await.unwrap();
        let open = scene.listeners.tls.as_ref().unwrap().subscribe();
        assert_eq!(open.borrow().roles.operate, ["alice"]);
        scene.follow(&keys("bob")).await.unwrap();
        assert_eq!(open.borrow().roles.operate, ["bob"], "the open port uses the new roles");
    }

    #[tokio::test]
    async fn default_socket_is_optional_and_configured_one_required() {
        let scene = Scene::new("usual");
        let at = |folder: &str, is_default| {
            let path = scene.folder.join(folder).join("admin.sock");
            AdminSocket { path, is_default, ..AdminSocket::default() }
        };
        assert!(open_file(&at("none", true)).unwrap().is_none());
        assert!(matches!(open_file(&at("none", false)), Err(SocketError::NoFolder { .. })));
        let made = open_file(&at("", true)).unwrap();
        assert!(
            made.is_some() && open_file(&at("", true)).unwrap().is_none(),
            "another process uses the socket"
        );
        assert!(matches!(open_file(&at("", false)), Err(SocketError::Taken { .. })));
    }
}
