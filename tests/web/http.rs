//! One HTTP request by hand, over TCP in a namespace or over a Unix socket; and a way for a browser to such a socket.
//!
//! HTTP/1.0 is asked for: then the end of the connection is the end of the answer.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::Value;
use testbed::Namespace;

use crate::browser::BOUND;

/// Status and body.
pub(crate) fn get(ns: &Namespace, server: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let request = request("GET", path);
    ns.run(move || {
        let stream = TcpStream::connect_timeout(&server, BOUND)?;
        stream.set_read_timeout(Some(BOUND))?;
        exchange(stream, &request)
    })
}

/// What the admin socket answers to a request that it must not refuse.
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

/// Joins a port of `ns`, which a browser can speak to, to a Unix socket, which it can't; returns the origin. It ends with the
/// test's process, as the threads do that copy.
pub(crate) fn relay(ns: &Namespace, socket: PathBuf) -> String {
    let listener = ns.run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let origin = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for browser in listener.incoming().flatten() {
            // A refused connection shows in the page.
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
    // Either side may go at any time.
    drop(io::copy(&mut from, &mut to));
}
