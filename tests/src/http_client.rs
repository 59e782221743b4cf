//! An HTTP client that sends requests from a network namespace and records the result of each
//! request.
//!
//! A request returns a [`Response`], or a [`Failure`] that names the step that failed.
//! [`Response::peer`] is certainly the address that sent the response, because a TCP connection
//! accepts segments only from its peer.
//!
//! References: RFC 9112 (the subset that `http_server` implements).

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Namespace;

/// An HTTP client that sends from one network namespace.
#[derive(Clone, Debug)]
pub struct Client {
    ns: Namespace,
    /// The timeout for establishing a connection.
    pub connect_timeout: Duration,
    /// The timeout for a response.
    pub reply_timeout: Duration,
}

/// The result of a successful request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
    /// The name that the backend sent in `X-Backend`.
    pub backend: String,
    /// The client address from which the backend received the request.
    pub client_seen: Option<SocketAddr>,
    /// The destination address at which the backend received the request.
    pub server_seen: Option<SocketAddr>,
    /// The local address of the client.
    pub local: SocketAddr,
    /// The address that sent the response.
    pub peer: SocketAddr,
    /// The time from the start of the connection attempt to the last byte of the response. On a
    /// connection that is already open, the time starts with the request.
    pub time: Duration,
}

/// The cause of a failed request.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The connection could not be established.
    Connect(io::Error),
    /// The connection broke or timed out.
    Exchange(io::Error),
    /// The response is not HTTP.
    NotHttp(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect: {error}"),
            Self::Exchange(error) => write!(f, "no response: {error}"),
            Self::NotHttp(line) => write!(f, "response is not HTTP: {line:?}"),
        }
    }
}

impl std::error::Error for Failure {}

impl Client {
    /// Creates a client in `ns` that waits 5 s for a connection and 10 s for a response.
    #[must_use]
    pub fn new(ns: &Namespace) -> Self {
        Self {
            ns: ns.clone(),
            connect_timeout: Duration::from_secs(30),
            reply_timeout: Duration::from_secs(30),
        }
    }

    /// Sets the timeout for connections.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Opens a new connection and sends one GET request.
    ///
    /// # Errors
    /// Returns a [`Failure`] that names the step that failed.
    pub fn get(&self, server: SocketAddr, path: &str) -> Result<Response, Failure> {
        let (client, path) = (self.clone(), path.to_owned());
        self.ns.run(move || client.get_here(server, &path))
    }

    /// Sends many requests with `workers` threads. Each request has its own connection. Results are
    /// ordered by completion.
    pub fn get_many(
        &self,
        server: SocketAddr,
        path: &str,
        count: usize,
        workers: usize,
    ) -> Vec<Result<Response, Failure>> {
        let next = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..workers)
            .map(|_| {
                let (client, path, next) = (self.clone(), path.to_owned(), Arc::clone(&next));
                self.ns.spawn(move || {
                    let iterations =
                        std::iter::from_fn(|| (next.fetch_add(1, Ordering::Relaxed) < count).then_some(()));
                    iterations.map(|()| client.get_here(server, &path)).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(thread::JoinHandle::join).flatten().collect()
    }

    /// Opens a connection that can be used for several requests and from any thread.
    ///
    /// # Errors
    /// Returns [`Failure::Connect`] if the connection cannot be established.
    pub fn connect(&self, server: SocketAddr) -> Result<Connection, Failure> {
        let client = self.clone();
        self.ns.run(move || client.connect_here(server))
    }

    fn get_here(&self, server: SocketAddr, path: &str) -> Result<Response, Failure> {
        let start = Instant::now();
        let mut response = self.connect_here(server)?.request("GET", path, &[], true)?;
        response.time = start.elapsed();
        Ok(response)
    }

    fn connect_here(&self, server: SocketAddr) -> Result<Connection, Failure> {
        let stream = TcpStream::connect_timeout(&server, self.connect_timeout).map_err(Failure::Connect)?;
        stream.set_nodelay(true).map_err(Failure::Connect)?;
        stream.set_read_timeout(Some(self.reply_timeout)).map_err(Failure::Connect)?;
        stream.set_write_timeout(Some(self.reply_timeout)).map_err(Failure::Connect)?;
        let local = stream.local_addr().map_err(Failure::Connect)?;
        let peer = stream.peer_addr().map_err(Failure::Connect)?;
        Ok(Connection { stream: BufReader::new(stream), local, peer })
    }
}

/// An open connection.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
    /// The local address of the client.
    pub local: SocketAddr,
    /// The address of the server.
    pub peer: SocketAddr,
}

impl Connection {
    /// Sends a GET request and keeps the connection open.
    ///
    /// # Errors
    /// Returns a [`Failure`] that names the step that failed. The connection cannot be used after a
    /// failure.
    pub fn get(&mut self, path: &str) -> Result<Response, Failure> {
        self.request("GET", path, &[], false)
    }

    /// Sends a POST request with `body` and keeps the connection open.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::get`].
    pub fn post(&mut self, path: &str, body: &[u8]) -> Result<Response, Failure> {
        self.request("POST", path, body, false)
    }

    fn request(&mut self, method: &str, path: &str, body: &[u8], close: bool) -> Result<Response, Failure> {
        let start = Instant::now();
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n{}\r\n",
            self.peer,
            body.len(),
            if close { "Connection: close\r\n" } else { "" }
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.stream.get_mut().write_all(&request).map_err(Failure::Exchange)?;
        let mut response = read_response(&mut self.stream, self.local, self.peer)?;
        response.time = start.elapsed();
        Ok(response)
    }
}

fn read_response(input: &mut impl BufRead, local: SocketAddr, peer: SocketAddr) -> Result<Response, Failure> {
    let mut response = Response {
        status: 0,
        body: Vec::new(),
        backend: String::new(),
        client_seen: None,
        server_seen: None,
        local,
        peer,
        time: Duration::ZERO,
    };
    let mut line = String::new();
    if input.read_line(&mut line).map_err(Failure::Exchange)? == 0 {
        return Err(Failure::Exchange(io::ErrorKind::UnexpectedEof.into()));
    }
    let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    response.status = status.ok_or_else(|| Failure::NotHttp(line.clone()))?;
    response.body = vec![0; read_headers(input, &mut response)?];
    input.read_exact(&mut response.body).map_err(Failure::Exchange)?;
    Ok(response)
}

/// Reads the headers into `response`, and returns the length of the body in bytes.
fn read_headers(input: &mut impl BufRead, response: &mut Response) -> Result<usize, Failure> {
    let mut line = String::new();
    let mut length = 0;
    loop {
        line.clear();
        input.read_line(&mut line).map_err(Failure::Exchange)?;
        let Some((key, value)) = line.trim_end().split_once(": ") else { return Ok(length) };
        match key {
            "X-Backend" => value.clone_into(&mut response.backend),
            "X-Client" => response.client_seen = value.parse().ok(),
            "X-Server" => response.server_seen = value.parse().ok(),
            name if name.eq_ignore_ascii_case("Content-Length") => {
                length = value.parse().map_err(|_| Failure::NotHttp(line.clone()))?
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Response, Failure> {
        let here = SocketAddr::from(([192, 0, 2, 1], 1));
        read_response(&mut text.as_bytes(), here, here)
    }

    #[test]
    fn response_has_backend_headers() {
        let reply = read(
            "HTTP/1.1 200 OK\r\nX-Backend: b2\r\nX-Client: [2001:db8::2]:7\r\nContent-Length: 2\r\n\r\nhi",
        );
        let reply = reply.unwrap();
        assert_eq!((reply.status, &reply.body[..], reply.backend.as_str()), (200, &b"hi"[..], "b2"));
        assert_eq!(reply.client_seen, "[2001:db8::2]:7".parse().ok());
    }

    #[test]
    fn a_cut_or_foreign_reply_is_a_failure() {
        assert!(matches!(read(""), Err(Failure::Exchange(_))));
        assert!(matches!(read("SSH-2.0-x\r\n"), Err(Failure::NotHttp(_))));
        assert!(matches!(read("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"), Err(Failure::Exchange(_))));
    }
}
