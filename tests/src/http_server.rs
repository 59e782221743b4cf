//! A small HTTP/1.1 server whose responses contain the server's name and the client's address.
//!
//! The server accepts connections on all addresses of its network namespace, over IPv4 and IPv6.
//! The response to `/` has the backend name, the client address, the destination address and the
//! length of the request body. `/bytes/N` returns a body of N bytes, `/for/MS` sends its body over
//! MS milliseconds, and `/status/N` returns status N. TLS and chunked bodies are not supported.
//!
//! References: RFC 9112 (a subset: one request at a time, Content-Length bodies, keep-alive by
//! default).

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{Backlog, listen};

use crate::Namespace;

/// A running HTTP server. Dropping the handle stops the server.
#[derive(Debug)]
pub struct HttpServer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Starts a server in `ns` on `port` with the backend name `name`.
    ///
    /// # Errors
    /// Returns an error if the port is in use.
    pub fn start(ns: &Namespace, name: &str, port: u16) -> Result<Self> {
        let listener = ns
            .run(move || TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)))
            .with_context(|| format!("{name} cannot listen on port {port}"))?;
        listener.set_nonblocking(true)?;
        // The standard library's backlog of 128 is too small under load: a client whose SYN finds
        // the backlog full retransmits it only after a second.
        listen(&listener, Backlog::new(4_096)?)?;
        let shared =
            Arc::new(Shared { name: name.into(), requests: AtomicU64::new(0), stop: AtomicBool::new(false) });
        let thread = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || accept(&listener, &shared))
        };
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns how many requests the server has answered so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[derive(Debug)]
struct Shared {
    name: String,
    requests: AtomicU64,
    stop: AtomicBool,
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.stop.load(Ordering::Relaxed) {
        let mut ready = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        if !poll(&mut ready, LOOK_MS).is_ok_and(|n| n > 0) {
            continue;
        }
        while let Ok((stream, _)) = listener.accept() {
            let shared = Arc::clone(shared);
            // If no thread can be started, the connection is closed, and the request of the client
            // fails.
            drop(thread::Builder::new().stack_size(STACK_BYTES).spawn(move || serve(&stream, &shared)));
        }
    }
}

fn serve(stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    // With a read timeout, threads of idle connections notice that the server stops.
    stream.set_read_timeout(Some(Duration::from_millis(u64::from(LOOK_MS))))?;
    let mut input = BufReader::new(stream);
    loop {
        while input.buffer().is_empty() {
            match input.fill_buf() {
                Ok([]) => return Ok(()),
                Ok(_) => {}
                Err(error) if waits(&error) && !shared.stop.load(Ordering::Relaxed) => {}
                Err(error) => return Err(error),
            }
        }
        stream.set_read_timeout(Some(REST))?;
        let request = Request::read(&mut input)?;
        let reply =
            request.reply(&shared.name, canonical(stream.peer_addr()?), canonical(stream.local_addr()?));
        shared.requests.fetch_add(1, Ordering::Relaxed);
        (&mut &*stream).write_all(&reply)?;
        for _ in 0..request.pieces() {
            thread::sleep(PIECE);
            if shared.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            (&mut &*stream).write_all(&[b'x'; PIECE_BYTES])?;
        }
        if request.close {
            return Ok(());
        }
        stream.set_read_timeout(Some(Duration::from_millis(u64::from(LOOK_MS))))?;
    }
}

fn waits(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = address.ip().to_canonical();
    SocketAddr::new(ip, address.port())
}

#[derive(Debug, PartialEq, Eq)]
struct Request {
    path: String,
    body_bytes: u64,
    close: bool,
}

impl Request {
    fn read(input: &mut impl BufRead) -> io::Result<Self> {
        let mut line = String::new();
        input.read_line(&mut line)?;
        let path = line.split(' ').nth(1).ok_or(io::ErrorKind::InvalidData)?.to_owned();
        let (mut body_bytes, mut close) = (0, false);
        loop {
            line.clear();
            if input.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let Some((key, value)) = line.trim_end().split_once(':') else { break };
            match key.to_ascii_lowercase().as_str() {
                "content-length" => {
                    body_bytes = value.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
                }
                "connection" => close = value.trim().eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
        let read = io::copy(&mut input.take(body_bytes), &mut io::sink())?;
        if read < body_bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self { path, body_bytes, close })
    }

    fn number(&self, prefix: &str) -> Option<usize> {
        self.path.strip_prefix(prefix).and_then(|number| number.parse().ok())
    }

    /// Returns the number of pieces in which the body is sent, one every 100 ms.
    fn pieces(&self) -> usize {
        self.number("/for/").map_or(0, |millis| millis / 100)
    }

    fn reply(&self, name: &str, client: SocketAddr, server: SocketAddr) -> Vec<u8> {
        let status = self.number("/status/").unwrap_or(200);
        let body = match self.number("/bytes/") {
            Some(count) => vec![b'x'; count.min(MAX_BYTES)],
            None if self.pieces() > 0 => Vec::new(),
            None => {
                format!("backend {name}\nclient {client}\nserver {server}\nreceived {}\n", self.body_bytes)
                    .into_bytes()
            }
        };
        let mut reply = format!(
            "HTTP/1.1 {status} {}\r\nX-Backend: {name}\r\nX-Client: {client}\r\nX-Server: {server}\r\n\
             Content-Length: {}\r\nConnection: {}\r\n\r\n",
            if status == 200 { "OK" } else { "As Asked" },
            body.len() + self.pieces() * PIECE_BYTES,
            if self.close { "close" } else { "keep-alive" },
        )
        .into_bytes();
        reply.extend(body);
        reply
    }
}

const LOOK_MS: u16 = 50;
const REST: Duration = Duration::from_secs(30);
const STACK_BYTES: usize = 256 << 10;
const PIECE: Duration = Duration::from_millis(100);
const PIECE_BYTES: usize = 500;
const MAX_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_to_the_end_of_its_body() {
        let mut input =
            &b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabcGET"[..];
        let request = Request::read(&mut input).unwrap();
        assert_eq!(request, Request { path: "/x".into(), body_bytes: 3, close: true });
        assert_eq!(input, b"GET");
    }

    #[test]
    fn a_cut_request_is_an_error() {
        for cut in [
            &b"GET"[..],
            b"GET / HTTP/1.1\r\nHost: a\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc",
        ] {
            assert!(Request::read(&mut &cut[..]).is_err(), "{cut:?}");
        }
    }

    #[test]
    fn a_mapped_address_is_told_as_ipv4() {
        let mapped: SocketAddr = "[::ffff:192.0.2.7]:9".parse().unwrap();
        assert_eq!(canonical(mapped).to_string(), "192.0.2.7:9");
    }
}
