//! A fuzz target for HTTP requests to the admin API.
//!
//! The first byte of the input selects the listener: the Unix socket, or TCP, where clients have
//! read access only. The server accepts commands but returns no results, as if the balancer were
//! stopping.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::pin::pin;
use std::time::Duration;

use admin::{Command, Limits, Listener, Rules, router, routes, serve};
use axum::Router;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

/// Checks that every response is valid HTTP and not a server error. A rejection must be a JSON
/// object with a kind and a message. TCP clients must not be able to change anything. `config put`
/// must fail if the configuration disables this command.
pub(crate) fn check(bytes: &[u8]) {
    let Some((&listener, request)) = bytes.split_first() else { return };
    thread_local!(static SERVER: Server = Server::new());
    answers(&SERVER.with(|server| server.ask(listener & 1 != 0, request)));
}

fn is_question(command: &Command) -> bool {
    use Command as C;
    matches!(
        command,
        C::Status(_) | C::Vips(_) | C::Backends(_) | C::Health(_) | C::Bgp(_) | C::Events { .. }
    ) || matches!(command, C::Stats(_) | C::Log(_) | C::Config(_) | C::Flows { .. } | C::Where { .. })
        || matches!(command, C::History(_) | C::Generation { .. })
}

/// Parses consecutive HTTP responses.
fn answers(mut rest: &[u8]) {
    while !rest.is_empty() {
        let end = rest.windows(4).position(|four| four == b"\r\n\r\n").expect("the head is not terminated");
        let head = std::str::from_utf8(&rest[..end]).expect("the head is not UTF-8").to_ascii_lowercase();
        rest = &rest[end + 4..];
        let status = head.strip_prefix("http/1.").and_then(|line| line.get(2..5)?.parse().ok());
        let status: u16 = status.expect("the status does not have three digits");
        assert!((100..500).contains(&status) || status == 503, "{head}");
        let header = |name| head.split("\r\n").find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let length = header("content-length").map_or(0, |length| length.parse().expect("a length"));
        // A response to a HEAD request has no body, so the next response or the end of the input
        // follows directly.
        let has_body = length <= rest.len() && !rest.starts_with(b"HTTP/1.");
        assert!(has_body || rest.is_empty() || rest.starts_with(b"HTTP/1."), "{head}");
        let (body, behind) = rest.split_at(if has_body { length } else { 0 });
        rest = behind;
        if header("content-type") == Some("application/json") && !body.is_empty() {
            let body: Value = serde_json::from_slice(body).expect("JSON");
            assert!(status < 400 || body["kind"].is_string() && body["error"].is_string(), "{body}");
        }
    }
}

/// An admin server with both listeners, and the commands that it has received.
struct Server {
    runtime: Runtime,
    unix: UnixAddress,
    tcp: SocketAddr,
    commands: RefCell<mpsc::Receiver<Command>>,
}

impl Server {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (sender, commands) = mpsc::channel(1024);
        let api = router(sender, Rules::new(false), Router::new());
        let (unix, tcp) = {
            let _inside = runtime.enter();
            let name = format!("sluicegate-fuzz-{}-{:?}", std::process::id(), std::thread::current().id());
            let name = UnixAddress::from_abstract_name(name).expect("a name");
            let unix =
                std::os::unix::net::UnixListener::bind_addr(&name).expect("cannot bind the Unix socket");
            let tcp = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let address = tcp.local_addr().expect("the listener has no address");
            unix.set_nonblocking(true)
                .and_then(|()| tcp.set_nonblocking(true))
                .expect("cannot set non-blocking mode");
            let unix = UnixListener::from_std(unix).expect("a listener");
            let tcp = TcpListener::from_std(tcp).expect("a listener");
            runtime.spawn(serve(Listener::Unix(unix), api.clone(), Limits::default()));
            runtime.spawn(serve(Listener::Plain(tcp), api, Limits::default()));
            (name, address)
        };
        Self { runtime, unix, tcp, commands: RefCell::new(commands) }
    }

    /// Sends the request and returns all responses until the server closes the connection.
    fn ask(&self, by_tcp: bool, request: &[u8]) -> Vec<u8> {
        let mut commands = self.commands.borrow_mut();
        self.runtime.block_on(async {
            let mut conversation = pin!(self.converse(by_tcp, request));
            loop {
                tokio::select! {
                    biased;
                    Some(command) = commands.recv() => {
                        assert!(!matches!(command, Command::PutConfig { .. }), "{command:?}");
                        assert!(!by_tcp || is_question(&command), "command {command:?} accepted over TCP");
                    }
                    answer = &mut conversation => break answer,
                }
            }
        })
    }

    async fn converse(&self, by_tcp: bool, request: &[u8]) -> Vec<u8> {
        if by_tcp {
            let stream = TcpStream::connect(self.tcp).await.expect("a connection");
            // Closing with RST avoids TIME-WAIT, in which so many short connections would use up
            // all ports.
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("cannot set SO_LINGER");
            return exchange(stream, request).await;
        }
        let stream = std::os::unix::net::UnixStream::connect_addr(&self.unix).expect("a connection");
        stream.set_nonblocking(true).expect("cannot set non-blocking mode");
        exchange(UnixStream::from_std(stream).expect("a stream"), request).await
    }
}

async fn exchange(stream: impl AsyncRead + AsyncWrite, request: &[u8]) -> Vec<u8> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut answer = Vec::new();
    let send = async {
        // Ignores write errors: a server that has rejected the request stops reading it.
        let _ = writer.write_all(request).await;
        let _ = writer.shutdown().await;
    };
    let _ = tokio::join!(send, reader.read_to_end(&mut answer));
    answer
}

/// Returns one request for each route and listener, pipelined requests, requests with bodies, and
/// invalid requests.
pub(crate) fn requests() -> Vec<Vec<u8>> {
    let mut all: Vec<String> = MORE.map(str::to_owned).to_vec();
    for route in routes() {
        let path = route.path.replace("{name}", "b1").replace("{generation}", "7");
        let body = if path.ends_with("weight") { r#"{"weight": 5}"# } else { "" };
        let (method, length) = (route.method.to_uppercase(), body.len());
        all.push(format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}"));
    }
    let by = |listener: u8| all.iter().map(move |request| [&[listener], request.as_bytes()].concat());
    by(0).chain(by(1)).collect()
}

const MORE: [&str; 10] = [
    "GET /v1/flows?vip=www&limit=5 HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /v1/where?source=192.0.2.7:1&destination=203.0.113.10:80&protocol=tcp HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /v1/where?source=[2001:db8::1]:1&destination=[2001:db8::2]:80&protocol=17 HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /v1/backends/b%2F9 HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /v1/vips HTTP/1.1\r\nHost: x\r\n\r\nHEAD /v1/bgp HTTP/1.1\r\nHost: x\r\n\r\nGET /nothing HTTP/1.1\r\nHost: x\r\n\r\n",
    "POST /v1/backends/b1/drain?pool=web&reason=a%20b&for_seconds=60 HTTP/1.0\r\n\r\n",
    "POST /v1/backends/b1/weight HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nd\r\n{\"weight\": 5}\r\n0\r\n\r\n",
    "POST /v1/log/level?level=debug&for_seconds=60&reason=a%20b HTTP/1.1\r\nHost: x\r\n\r\n",
    "PUT /v1/config HTTP/1.1\r\nHost: x\r\nIf-Match: \"00\"\r\nContent-Length: 9\r\n\r\n[cluster]",
    "POST /v1/capture?drop=too_big&count=9&snaplen=64 HTTP/1.1\r\nHost: x\r\nOrigin: http://y\r\n\r\n",
];
