//! Runs many slow downloads in parallel, to find out whether open connections survive an event.
//!
//! Each download reports which backend served it and whether it was complete. The module
//! `http_client` sends short requests.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Namespace;

/// Downloads that are in progress.
#[derive(Debug)]
pub struct Downloads {
    threads: Vec<JoinHandle<Download>>,
    begun: Arc<AtomicUsize>,
}

/// A finished download.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Download {
    /// The name of the backend, or an empty string if no response arrived.
    pub backend: String,
    /// The error that interrupted the download, or `None` if the download was complete.
    pub broke: Option<String>,
    /// The local address of the connection, or `None` if there was no connection.
    pub local: Option<SocketAddr>,
    /// The time from the start of the download to its end.
    pub lasted: Duration,
}

impl Downloads {
    /// Starts `count` downloads from `server`. Each download takes `length`.
    #[must_use]
    pub fn start(ns: &Namespace, server: SocketAddr, count: usize, length: Duration) -> Self {
        let begun = Arc::new(AtomicUsize::new(0));
        let one = |_| {
            let begun = Arc::clone(&begun);
            ns.spawn(move || {
                let (mut download, start) = (Download::default(), Instant::now());
                let result = fetch(server, length, &mut download, &begun);
                download.broke = result.err().map(|error| error.to_string());
                Download { lasted: start.elapsed(), ..download }
            })
        };
        let threads = (0..count).map(one).collect();
        Self { threads, begun }
    }

    /// Returns the number of downloads whose response has started.
    #[must_use]
    pub fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    /// Waits until all downloads have ended, and returns their results.
    #[must_use]
    pub fn join(self) -> Vec<Download> {
        let panicked = || Download { broke: Some("panicked".into()), ..Download::default() };
        self.threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    }
}

fn fetch(
    server: SocketAddr,
    length: Duration,
    download: &mut Download,
    begun: &AtomicUsize,
) -> io::Result<()> {
    let stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    download.local = Some(stream.local_addr()?);
    stream.set_read_timeout(Some(PATIENCE))?;
    let path = format!("/for/{}", length.as_millis());
    (&stream)
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: bed\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut input = BufReader::new(stream);
    let mut bytes = 0_u64;
    loop {
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim().split_once(": ") {
            None if line.trim().is_empty() => break,
            Some(("X-Backend", name)) => name.clone_into(&mut download.backend),
            Some(("Content-Length", count)) => bytes = count.parse().unwrap_or_default(),
            _ => {}
        }
    }
    begun.fetch_add(1, Ordering::Relaxed);
    let read = io::copy(&mut input.take(bytes), &mut io::sink())?;
    if read < bytes { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// The timeout of a download, which is longer than any outage in the tests: TCP retransmits after
/// 0.2 s and then at growing intervals.
const PATIENCE: Duration = Duration::from_secs(30);
