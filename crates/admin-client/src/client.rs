//! The operator's side of the admin API: HTTP over the Unix socket of a running balancer.
//!
//! In: a request. Out: the answer as its type, or why there is none (`failure`).
//! Not here: what the verbs print.

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
use tokio::net::UnixStream;

use self::stream::Stream;
use crate::failure::Failure;
use crate::table::show;

/// Which balancer, and how long it is waited for.
#[derive(Clone, Debug, Args)]
pub struct Reach {
    /// The admin socket of the running balancer.
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    pub socket: Option<PathBuf>,
    /// Take the socket's path from this configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Give up when the balancer has not answered by then. Default: 10s; 45s for a reload and for `config put`.
    #[arg(long = "wait", value_name = "DURATION", value_parser = patience)]
    pub wait: Option<Duration>,
}

/// How long is waited: from 1 ms to 1 h.
pub fn patience(text: &str) -> Result<Duration, String> {
    parse_duration(text)
        .filter(|wait| (Duration::from_millis(1)..=Duration::from_secs(3_600)).contains(wait))
        .ok_or_else(|| "a duration from 1ms to 1h, such as \"10s\"".to_owned())
}

/// Which balancer, and how to print.
#[derive(Debug, Args)]
pub struct Common {
    /// Which balancer.
    #[command(flatten)]
    pub reach: Reach,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl Common {
    /// The balancer that is meant.
    ///
    /// # Errors
    /// The configuration file has no socket.
    pub fn client(&self) -> anyhow::Result<Client> {
        Client::new(&self.reach)
    }

    /// Asks for what is at `path`.
    ///
    /// # Errors
    /// [`Failure`], or an answer of another version.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.client()?.get(path)
    }

    /// Prints an answer, as JSON where that is asked for.
    ///
    /// # Errors
    /// As [`show`].
    pub fn show<T: Serialize>(&self, answer: &T, words: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
        show(answer, self.json, words)
    }
}

/// A balancer that can be asked.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    wait: Option<Duration>,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// Does not connect yet: each request has a connection of its own.
    pub fn new(reach: &Reach) -> anyhow::Result<Self> {
        let socket = match (&reach.socket, &reach.config) {
            (Some(path), _) => path.clone(),
            (None, Some(file)) => socket_of(file)?,
            (None, None) => DEFAULT_SOCKET.into(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { socket, wait: reach.wait, runtime })
    }

    /// Asks for what is at `path`.
    ///
    /// # Errors
    /// [`Failure`], or an answer of another version; so for all that follow.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.send(PATIENCE, Request::get(path), Bytes::new())
    }

    /// Sends `body` to `path`.
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> anyhow::Result<T> {
        self.send(PATIENCE, Request::post(path), serde_json::to_vec(body)?.into())
    }

    /// Posts to the path of a reload, which reads files, builds tables and looks for neighbours before it answers.
    pub fn reload<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.send(RELOAD_PATIENCE, Request::post(path), Bytes::new())
    }

    /// Takes back what is at `path`.
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.send(PATIENCE, Request::delete(path), Bytes::new())
    }

    /// Puts `body` in the place of what has the entity tag `if_match`.
    pub fn put<T: DeserializeOwned>(&self, path: &str, if_match: &str, body: String) -> anyhow::Result<T> {
        self.send(RELOAD_PATIENCE, Request::put(path).header(header::IF_MATCH, if_match), body.into())
    }

    /// Posts to `path`, and hands the answer's body to `take` as it comes, until it ends or `take` breaks.
    /// `began` makes what it is taken with, once it begins. The first SIGINT or SIGTERM asks the balancer to end it, by DELETE; the second
    /// ends it here.
    pub fn follow<T>(
        &self,
        path: &str,
        began: impl FnOnce() -> anyhow::Result<T>,
        take: impl FnMut(&mut T, &Bytes) -> anyhow::Result<ControlFlow<()>>,
    ) -> anyhow::Result<()> {
        let whole = path.split('?').next().unwrap_or_default();
        let request = |builder: hyper::http::request::Builder| {
            builder.header(header::HOST, HOST).body(Full::new(Bytes::new()))
        };
        let stream = Stream {
            socket: &self.socket,
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
        let request = request.header(header::HOST, HOST).body(Full::new(body))?;
        let no_daemon = |why: &dyn Display| no_daemon(&self.socket, why);
        let wait = self.wait.unwrap_or(usual);
        // From the connection to the last byte of the answer.
        let exchange = async { tokio::time::timeout(wait, exchange(&self.socket, request)).await };
        let (status, body) = match self.runtime.block_on(exchange) {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(no_daemon(&format!("{error:#}{}", hint(&error)))),
            Err(_) => {
                let given = format_duration(wait);
                return Err(no_daemon(&format!("no answer within {given}; --wait gives it longer")));
            }
        };
        if status.is_success() {
            return serde_json::from_slice(&body).context("an answer of another version");
        }
        Err(refused(status, &body))
    }
}

fn no_daemon(socket: &Path, why: &dyn Display) -> anyhow::Error {
    Failure::NoDaemon(format!("{}: {why}", socket.display())).into()
}

/// What is often forgotten where there is no socket.
fn hint(error: &anyhow::Error) -> &'static str {
    match error.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
        Some(ErrorKind::NotFound) => {
            ": `sluicegate run` makes it where its folder is there; --config FILE or --socket PATH says where else it is"
        }
        _ => "",
    }
}

/// What an answer says that is no success.
fn refused(status: hyper::StatusCode, body: &[u8]) -> anyhow::Error {
    match serde_json::from_slice::<Refusal>(body) {
        Ok(refusal) => Failure::Refused(refusal).into(),
        Err(error) => {
            anyhow::Error::new(error).context(format!("an answer of another version, with status {status}"))
        }
    }
}

async fn exchange(
    socket: &Path,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<(hyper::StatusCode, Bytes)> {
    let response = send(socket, request).await?;
    let status = response.status();
    Ok((status, response.into_body().collect().await?.to_bytes()))
}

/// Sends a request by a connection of its own, up to the head of the answer.
async fn send(socket: &Path, request: Request<Full<Bytes>>) -> anyhow::Result<Response<Incoming>> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the body: its errors come back from there.
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

fn socket_of(file: &Path) -> anyhow::Result<PathBuf> {
    // An operator may look without being able to read the cluster's secrets.
    match config::load_without_secrets(file) {
        Ok((config, _)) => {
            let socket =
                config.admin().socket.as_ref().context("the configuration says admin.socket = false")?;
            Ok(socket.path.to_owned())
        }
        // What runs goes on with what it read before: now most of all is it asked how it is.
        Err(problems) => {
            config::admin_socket(file).with_context(|| format!("the configuration has problems:\n{problems}"))
        }
    }
}

/// A name as a part of a path or of a query.
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
/// On a Unix socket there is no other; HTTP/1.1 wants one.
const HOST: &str = "localhost";
const PATIENCE: Duration = Duration::from_secs(10);
/// Longer than the balancer itself gives a reload.
const RELOAD_PATIENCE: Duration = Duration::from_secs(45);
