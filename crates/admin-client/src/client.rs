//! Sends requests to the HTTP API of a running balancer, and parses the responses.
//!
//! The submodule `server` connects to the balancer. Errors that determine the exit code have the
//! type `Failure`. The module of each subcommand formats the output.

#[cfg(test)]
mod linear;
mod server;
mod stream;

use std::fmt::Display;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use admin::Refusal;
use anyhow::Context;
use clap::Args;
use config::{self, format_duration, parse_duration};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};

pub use self::server::{Endpoint, Remote};

use self::server::Server;
use self::stream::Stream;
use crate::failure::Failure;
use crate::table::show;

/// The command-line options that select a running load balancer and set the response timeout.
#[derive(Clone, Debug, Default, Args)]
pub struct Reach {
    /// The load balancer.
    #[command(flatten)]
    pub endpoint: Endpoint,
    /// Fail if no response arrives within this time, 1ms to 1h (default: 10s, or 45s for `machine
    /// upgrade`, `config put`, `reload` and `rollback`)
    #[arg(long = "wait", value_name = "DURATION", value_parser = patience)]
    pub wait: Option<Duration>,
}

/// Parses a timeout of 1 ms to 1 h.
pub fn patience(text: &str) -> Result<Duration, String> {
    parse_duration(text)
        .filter(|wait| (Duration::from_millis(1)..=Duration::from_secs(3_600)).contains(wait))
        .ok_or_else(|| "expected a duration from 1ms to 1h, such as 10s".to_owned())
}

/// Parses a duration of at least one second, in whole seconds.
pub(crate) fn whole_seconds(text: &str) -> Result<u64, String> {
    let time = parse_duration(text).filter(|time| time.subsec_nanos() == 0 && !time.is_zero());
    let wrong = || "expected whole seconds with a unit, such as 30s or 2h".to_owned();
    time.map(|time| time.as_secs()).ok_or_else(wrong)
}

/// The options that most subcommands share: the admin socket, the response timeout and the output
/// format.
#[derive(Debug, Args)]
pub struct Common {
    /// The admin socket and the response timeout.
    #[command(flatten)]
    pub reach: Reach,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl Common {
    /// Creates a client for the selected load balancer.
    ///
    /// # Errors
    /// Returns an error if the configuration file given by `--config` has no admin socket.
    pub fn client(&self) -> anyhow::Result<Client> {
        Client::new(&self.reach)
    }

    /// Sends a GET request to `path` and parses the JSON response.
    ///
    /// # Errors
    /// Returns a [`Failure`] if the daemon is not reachable or rejects the request, and another
    /// error if the response cannot be parsed.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.client()?.get(path)
    }

    /// Prints a response as JSON if `--json` is set, otherwise as the text that `words` returns.
    ///
    /// # Errors
    /// Returns the same errors as [`show`].
    pub fn show<T: Serialize>(&self, answer: &T, words: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
        show(answer, self.json, words)
    }
}

/// A client for the admin API of one load balancer.
#[derive(Debug)]
pub struct Client {
    server: Server,
    wait: Option<Duration>,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// Creates a client without connecting. Each request opens a new connection.
    pub fn new(reach: &Reach) -> anyhow::Result<Self> {
        let Endpoint { socket, config, remote } = &reach.endpoint;
        let server = match (&remote.url, socket, config) {
            (Some(authority), ..) => Server::remote(authority.clone(), remote)?,
            (None, Some(path), _) => Server::Unix(path.clone()),
            (None, None, Some(file)) => Server::Unix(socket_of(file)?),
            (None, None, None) => Server::Unix(DEFAULT_SOCKET.into()),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { server, wait: reach.wait, runtime })
    }

    /// Sends a GET request to `path` and parses the JSON response.
    ///
    /// # Errors
    /// Returns a [`Failure`] if the daemon is not reachable or rejects the request, and another
    /// error if the response cannot be parsed. All other request methods return the same errors.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.send(PATIENCE, Request::get(path), Bytes::new())
    }

    /// Sends a POST request to `path`, with `body` as JSON.
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> anyhow::Result<T> {
        self.send(PATIENCE, Request::post(path), serde_json::to_vec(body)?.into())
    }

    /// Sends a POST request to `path` with the longer timeout of a reload. A reload takes longer,
    /// because the daemon reads files, builds tables and resolves neighbors before it responds.
    pub fn reload<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.send(RELOAD_PATIENCE, Request::post(path), Bytes::new())
    }

    /// Sends a DELETE request to `path`.
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.send(PATIENCE, Request::delete(path), Bytes::new())
    }

    /// Sends a PUT request that replaces the resource at `path`. The daemon rejects the request if
    /// the current entity tag of the resource differs from `if_match`.
    pub fn put<T: DeserializeOwned>(&self, path: &str, if_match: &str, body: String) -> anyhow::Result<T> {
        self.send(RELOAD_PATIENCE, Request::put(path).header(header::IF_MATCH, if_match), body.into())
    }

    /// Sends a POST request to `path` and passes each part of the response body to `take`, until
    /// the response ends or `take` returns `Break`.
    ///
    /// The closure `began` creates the first argument of `take` after the daemon accepts the
    /// request. On the first SIGINT or SIGTERM, a DELETE request is sent, after which the daemon
    /// ends the response. On the second signal, the function returns without waiting for the
    /// daemon.
    pub fn follow<T>(
        &self,
        path: &str,
        began: impl FnOnce() -> anyhow::Result<T>,
        take: impl FnMut(&mut T, &Bytes) -> anyhow::Result<ControlFlow<()>>,
    ) -> anyhow::Result<()> {
        let whole = path.split('?').next().unwrap_or_default();
        let request = |builder: hyper::http::request::Builder| {
            builder.header(header::HOST, self.server.host()).body(Full::new(Bytes::new()))
        };
        let stream = Stream {
            server: &self.server,
            post: request(Request::post(path))?,
            delete: request(Request::delete(whole))?,
            wait: self.wait.unwrap_or(PATIENCE),
        };
        self.runtime.block_on(stream.follow(began, take))
    }

    fn send<T: DeserializeOwned>(
        &self,
        usual: Duration,
        request: hyper::http::request::Builder,
        body: Bytes,
    ) -> anyhow::Result<T> {
        let request = request.header(header::HOST, self.server.host()).body(Full::new(body))?;
        let no_daemon = |why: &dyn Display| no_daemon(&self.server, why);
        let wait = self.wait.unwrap_or(usual);
        // The timeout covers the connection and the whole response.
        let exchange = async { tokio::time::timeout(wait, exchange(&self.server, request)).await };
        let (status, body) = match self.runtime.block_on(exchange) {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(no_daemon(&format!("{error:#}{}", hint(&error)))),
            Err(_) => {
                let given = format_duration(wait);
                return Err(no_daemon(&format!("no response within {given} (--wait sets a longer timeout)")));
            }
        };
        if status.is_success() {
            return serde_json::from_slice(&body)
                .context("cannot parse the response, the running balancer may have another version");
        }
        Err(refused(status, &body))
    }
}

fn no_daemon(server: &Server, why: &dyn Display) -> anyhow::Error {
    Failure::NoDaemon(format!("cannot reach the balancer at {server}: {why}")).into()
}

/// Returns advice if the socket file does not exist.
fn hint(error: &anyhow::Error) -> &'static str {
    match error.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
        Some(ErrorKind::NotFound) => {
            " (is sluicegate running? --socket PATH or --config FILE selects another socket)"
        }
        _ => "",
    }
}

/// Converts a response with an error status to an error.
fn refused(status: hyper::StatusCode, body: &[u8]) -> anyhow::Error {
    match serde_json::from_slice::<Refusal>(body) {
        Ok(refusal) => Failure::Refused(refusal).into(),
        Err(error) => anyhow::Error::new(error).context(format!(
            "cannot parse the response with status {status}, the running balancer may have another version"
        )),
    }
}

async fn exchange(
    server: &Server,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<(hyper::StatusCode, Bytes)> {
    received_whole(send(server, request).await?).await
}

async fn received_whole(response: Response<Incoming>) -> anyhow::Result<(hyper::StatusCode, Bytes)> {
    let status = response.status();
    Ok((status, response.into_body().collect().await?.to_bytes()))
}

/// Sends a request over a new connection and returns as soon as the response headers have arrived.
async fn send(server: &Server, request: Request<Full<Bytes>>) -> anyhow::Result<Response<Incoming>> {
    send_over(server.connect().await?, request).await
}

async fn send_over(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Response<Incoming>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The connection task ends when the response body ends. Reads of the body also return
    // connection errors, so the result of this task is ignored.
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

fn socket_of(file: &Path) -> anyhow::Result<PathBuf> {
    // Secret files are not read, because the operator may have no permission to read the cluster
    // keys.
    match config::load_without_secrets(file) {
        Ok((config, _)) => {
            let socket = config
                .admin()
                .socket
                .as_ref()
                .context("no admin socket, because the configuration has admin.socket = false")?;
            Ok(socket.path.to_owned())
        }
        // The daemon may be running with an older, valid version of the file, so the socket path is
        // used even if the file is now invalid.
        Err(problems) => {
            config::admin_socket(file).with_context(|| format!("the configuration has problems:\n{problems}"))
        }
    }
}

/// Percent-encodes a name for use in a URL path or query.
pub fn escape(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped += &format!("%{byte:02X}");
        }
    }
    escaped
}

const DEFAULT_SOCKET: &str = "/run/sluicegate/admin.sock";
const PATIENCE: Duration = Duration::from_secs(10);
/// The response timeout of a reload, which is longer than the maximum time that the daemon allows
/// for it.
const RELOAD_PATIENCE: Duration = Duration::from_secs(45);
