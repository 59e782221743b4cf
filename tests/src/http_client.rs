//! A client that makes real HTTP requests from a namespace, and keeps what each one saw.
//!
//! In: an address and a path. Out: a [`Response`], or a [`Failure`] that says how far it came.
//! TCP accepts a reply from the address that it asked and from no other: `Response::peer` is where the answer came from.
//! Source: RFC 9112 (the subset of `http_server`).

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Namespace;

/// A client in a namespace.
#[derive(Clone, Debug)]
pub struct Client {
    ns: Namespace,
    /// For a connection to be made.
    pub connect_timeout: Duration,
    /// For a reply to come.
    pub reply_timeout: Duration,
}

/// What a request brought back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
    /// The backend that answered, by its own word.
    pub backend: String,
    /// The client's address as the backend saw it.
    pub client_seen: Option<SocketAddr>,
    /// The address asked as the backend saw it.
    pub server_seen: Option<SocketAddr>,
    /// The client's own address.
    pub local: SocketAddr,
    /// Where the reply came from.
    pub peer: SocketAddr,
    /// From before the connection, or the request on an open one, to the last byte.
    pub time: Duration,
}

/// Why a request brought nothing back.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// No connection.
    Connect(io::Error),
    /// The connection broke, or fell silent.
    Exchange(io::Error),
    /// What came is not HTTP.
    NotHttp(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "can't connect: {error}"),
            Self::Exchange(error) => write!(f, "no reply: {error}"),
            Self::NotHttp(line) => write!(f, "not HTTP: {line:?}"),
        }
    }
}

impl std::error::Error for Failure {}

impl Client {
    /// A client in `ns` that waits 5 s for a connection and 10 s for a reply.
    #[must_use]
    pub fn new(ns: &Namespace) -> Self {
        Self {
            ns: ns.clone(),
            connect_timeout: Duration::from_secs(30),
            reply_timeout: Duration::from_secs(30),
        }
    }

    /// The same with another time-out for connections.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// One request on a fresh connection.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn get(&self, server: SocketAddr, path: &str) -> Result<Response, Failure> {
        let (client, path) = (self.clone(), path.to_owned());
        self.ns.run(move || client.get_here(server, &path))
    }

    /// Many requests, each on a fresh connection, by `workers` threads; results in the order in which they ended.
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
                    let turns =
                        std::iter::from_fn(|| (next.fetch_add(1, Ordering::Relaxed) < count).then_some(()));
                    turns.map(|()| client.get_here(server, &path)).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(thread::JoinHandle::join).flatten().collect()
    }

    /// Opens a connection for several requests, which may be made from any thread.
    ///
    /// # Errors
    /// [`Failure::Connect`].
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
    /// The client's own address.
    pub local: SocketAddr,
    /// The address asked.
    pub peer: SocketAddr,
}

impl Connection {
    /// Asks for `path`; the connection stays open.
    ///
    /// # Errors
    /// [`Failure`]; the connection is of no more use then.
    pub fn get(&mut self, path: &str) -> Result<Response, Failure> {
        self.request("GET", path, &[], false)
    }

    /// Sends `body` to `path`; the connection stays open.
    ///
    /// # Errors
    /// As for [`Self::get`].
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

/// Takes what the headers say; returns the bytes of the body.
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
    fn a_reply_is_read_with_what_the_backend_says() {
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
