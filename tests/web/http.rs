//! A minimal HTTP client for TCP in a network namespace and for Unix sockets. A relay makes a Unix
//! socket available to the browser over TCP.
//!
//! Requests use HTTP/1.0, so the server marks the end of a response by closing the connection.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::Value;
use testbed::Namespace;

use crate::browser::BOUND;

/// Sends a GET request, and returns the status and the body.
pub(crate) fn get(ns: &Namespace, server: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let request = request("GET", path);
    ns.run(move || {
        let stream = TcpStream::connect_timeout(&server, BOUND)?;
        stream.set_read_timeout(Some(BOUND))?;
        exchange(stream, &request)
    })
}

/// Sends a request to the admin socket and returns the JSON response. Panics if the request fails.
pub(crate) fn admin(socket: &Path, method: &str, path: &str) -> Value {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    let (status, body) = exchange(stream, &request(method, path)).unwrap();
    assert_eq!(status, 200, "{method} {path}: {body}");
    serde_json::from_str(&body).unwrap()
}

fn request(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
}

fn exchange(mut stream: impl Read + Write, request: &str) -> io::Result<(u16, String)> {
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    let status =
        head.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok((status, body.to_owned()))
}

/// Relays connections from a TCP port of `ns` to a Unix socket, because a browser cannot connect to
/// a Unix socket. Returns the origin for the browser. The relay runs until the process ends.
pub(crate) fn relay(ns: &Namespace, socket: PathBuf) -> String {
    let listener = ns.run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let origin = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for browser in listener.incoming().flatten() {
            // If the connection fails, the browser's connection is closed, and the page shows an
            // error.
            let Ok(balancer) = UnixStream::connect(&socket) else { continue };
            let (Ok(from), Ok(to)) = (browser.try_clone(), balancer.try_clone()) else { continue };
            thread::spawn(move || {
                copy(from, &to);
                drop(to.shutdown(Shutdown::Write));
            });
            thread::spawn(move || {
                copy(balancer, &browser);
                drop(browser.shutdown(Shutdown::Write));
            });
        }
    });
    origin
}

fn copy(mut from: impl Read, mut to: impl Write) {
    // Errors do not matter, because either side may close the connection at any time.
    drop(io::copy(&mut from, &mut to));
}
