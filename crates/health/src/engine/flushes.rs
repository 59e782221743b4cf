//! Flushes memcached servers, so that they hold no outdated entries when they go back into service.
//!
//! The caller decides which servers are flushed. The module `memcached` sends the command
//! `flush_all`. Results are published through `exchange`.
//!
//! Each request has at most one attempt at a time, and at most [`AT_ONCE`] attempts run.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::exchange::Exchange;
use super::{Flush, Flushed};
use crate::{Dialer, Failure, flush};

/// Starts and cancels flushes according to `wanted`, until the sender of `wanted` is dropped.
pub(super) async fn carry_out(mut wanted: watch::Receiver<Vec<Flush>>, exchange: Arc<Exchange>) {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut running: HashMap<u64, Running> = HashMap::new();
    while wanted.changed().await.is_ok() {
        let set = wanted.borrow_and_update().clone();
        running.retain(|number, _| set.iter().any(|flush| flush.number == *number));
        exchange.keep_flushed(|number| running.contains_key(&number));
        for flush in set {
            let start =
                || Running(tokio::spawn(until_empty(flush, Arc::clone(&permits), Arc::clone(&exchange))));
            running.entry(flush.number).or_insert_with(start);
        }
    }
}

/// The task of one request. The task is aborted when this value is dropped.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn until_empty(wanted: Flush, permits: Arc<Semaphore>, exchange: Arc<Exchange>) {
    let Flush { number, server, interval, timeout: limit } = wanted;
    loop {
        // Waiting for a permit cannot fail, because the semaphore is never closed.
        let permit = permits.acquire().await;
        let ended = timeout(limit, flush(server, &Dialer::Direct)).await.unwrap_or(Err(Failure::NoAnswer));
        drop(permit);
        let result = ended.map_err(|failure| failure.to_string());
        let is_empty = result.is_ok();
        exchange.flushed(Flushed { number, result });
        if is_empty {
            return;
        }
        sleep(interval).await;
    }
}

/// The maximum number of attempts at a time. Each attempt needs a file descriptor. With this limit,
/// the servers of a rack are still flushed in a few rounds.
const AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::hostile::{HERE, datagrams, serve};
    use crate::{CheckHops, Event, Health};

    fn wanted(number: u64, port: u16) -> Flush {
        let (interval, timeout) = (Duration::from_millis(20), Duration::from_millis(500));
        Flush { number, server: SocketAddr::new(HERE, port), interval, timeout }
    }

    /// Waits for the next results. The timeout is ten times the longest time that a result should
    /// take.
    async fn next(events: &mut crate::Events) -> Vec<Flushed> {
        match timeout(Duration::from_secs(20), events.recv()).await {
            Ok(Some(Event::Flushed(flushed))) => flushed,
            other => panic!("{other:?}"),
        }
    }

    /// Starts a server that responds with an error to the first request and with OK to later
    /// requests. Returns its port and the received requests.
    async fn second_time() -> (u16, tokio::sync::mpsc::UnboundedReceiver<Vec<u8>>) {
        let (sender, asked) = tokio::sync::mpsc::unbounded_channel();
        let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let port = serve(move |mut stream| {
            let (sender, count) = (sender.clone(), Arc::clone(&count));
            async move {
                let mut request = [0; 64];
                let length = stream.read(&mut request).await?;
                let _ = sender.send(request[..length].to_vec());
                let is_first = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
                stream.write_all(if is_first { b"SERVER_ERROR busy\r\n" } else { b"OK\r\n" }).await
            }
        })
        .await;
        (port, asked)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_server_is_asked_until_it_is_empty_and_then_no_more() {
        let (health, mut events) = Health::start(|_, _| Dialer::Direct, CheckHops::default()).unwrap();
        let (port, mut asked) = second_time().await;
        health.flush(vec![wanted(1, port)]);
        let words = "\"SERVER_ERROR busy\\r\", expected \"OK\"".to_owned();
        assert_eq!(next(&mut events).await, [Flushed { number: 1, result: Err(words) }]);
        assert_eq!(next(&mut events).await, [Flushed { number: 1, result: Ok(()) }]);
        // Request 1 is done, and request 2 is a new request for the same server.
        health.flush(vec![wanted(1, port), wanted(2, port)]);
        assert_eq!(next(&mut events).await, [Flushed { number: 2, result: Ok(()) }]);
        drop(health);
        let mut requests = Vec::new();
        while let Ok(request) = asked.try_recv() {
            requests.push(request);
        }
        assert_eq!(requests, [b"flush_all\r\n"; 3]);
    }

    /// Starts a UDP server. The function also binds the port for TCP without listening on it, so
    /// that TCP connections are refused.
    async fn datagrams_alone(
        answers: impl Fn(&[u8]) -> Vec<Vec<u8>> + Clone + Send + 'static,
    ) -> (u16, tokio::net::TcpSocket) {
        loop {
            let (port, held) = (datagrams(answers.clone()).await, tokio::net::TcpSocket::new_v4().unwrap());
            if held.bind(SocketAddr::new(HERE, port)).is_ok() {
                return (port, held);
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn what_is_no_longer_wanted_ends_and_nothing_more_is_said_of_it() {
        let (health, mut events) = Health::start(|_, _| Dialer::Direct, CheckHops::default()).unwrap();
        let (silent, _held) = datagrams_alone(|_| Vec::new()).await;
        health.flush(vec![wanted(1, silent)]);
        let said = next(&mut events).await;
        assert!(matches!(&said[..], [Flushed { number: 1, result: Err(_) }]), "{said:?}");
        let (good, _held) = datagrams_alone(|request| {
            assert_eq!(&request[2..], b"\0\0\0\x01\0\0flush_all\r\n");
            vec![[&request[..8], b"OK\r\n"].concat()]
        })
        .await;
        health.flush(vec![wanted(2, good)]);
        // A result for request 1 may still arrive.
        let mut said = next(&mut events).await;
        while said.iter().all(|flushed| flushed.number == 1) {
            said = next(&mut events).await;
        }
        assert_eq!(said, [Flushed { number: 2, result: Ok(()) }], "UDP is used because TCP is refused");
    }
}
