//! Limits how many connections a listener can have. If the limit is reached, a stalled connection
//! is closed to admit a new connection.
//!
//! A connection is stalled if its client has been sending a request for [`REQUEST_TIME`] or reading
//! a response for [`RESPONSE_TIME`]. The connection that has been stalled for the longest time is
//! closed first. A connection whose request is being handled is never closed. The module `server`
//! closes connections that exceed a time limit.
//!
//! A `tokio::sync::Semaphore` is not used, because it cannot revoke permits. With a semaphore, a
//! new client would have to wait for 10 s if 64 other clients were stalled.
//!
//! Invariant: the number of permits never exceeds the limit `most`, and at most one further
//! connection waits for a permit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// The connection permits of one listener.
#[derive(Debug)]
pub(crate) struct ConnectionLimiter {
    most: usize,
    permits: Mutex<Permits>,
    /// Notified when a permit is returned, or can be revoked earlier than expected.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Permits {
    held: BTreeMap<u64, Held>,
    next: u64,
}

#[derive(Debug)]
struct Held {
    phase: Phase,
    since: Instant,
    revoke: Arc<Notify>,
    is_revoked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The request is not complete.
    Request,
    /// The request is complete, but the response is not ready.
    Handling,
    /// The response is being sent.
    Response,
}

impl Phase {
    /// Returns the time after which a connection in this phase can be closed for a new connection,
    /// or `None` if it is never closed.
    fn patience(self) -> Option<Duration> {
        match self {
            Self::Request => Some(REQUEST_TIME),
            Self::Handling => None,
            Self::Response => Some(RESPONSE_TIME),
        }
    }
}

/// The permit of a connection. Dropping the value returns the permit to the limiter.
#[derive(Debug)]
pub(crate) struct Permit {
    progress: Progress,
    revoke: Arc<Notify>,
}

/// A handle that reports the progress of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    limiter: Arc<ConnectionLimiter>,
    number: u64,
}

impl ConnectionLimiter {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, permits: Mutex::default(), changed: Notify::new() })
    }

    /// Waits for a permit. If the limit is reached, this method revokes the permit of a stalled
    /// connection.
    pub(crate) async fn acquire(self: &Arc<Self>) -> Permit {
        loop {
            let again = match self.permits().admit(self.most, Instant::now()) {
                Ok((number, revoke)) => {
                    return Permit { progress: Progress { limiter: Arc::clone(self), number }, revoke };
                }
                Err(again) => again,
            };
            match again {
                // The permits are examined again after a notification or a timeout.
                Some(at) => drop(timeout_at(at, self.changed.notified()).await),
                None => self.changed.notified().await,
            }
        }
    }

    fn permits(&self) -> MutexGuard<'_, Permits> {
        self.permits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permits {
    /// Returns the number of a new permit, and the notifier that signals its revocation. If the
    /// limit is reached, returns the time at which a permit can be revoked, or `None` if the caller
    /// must wait until a permit is returned.
    fn admit(&mut self, most: usize, now: Instant) -> Result<(u64, Arc<Notify>), Option<Instant>> {
        if self.held.len() < most {
            let (number, revoke) = (self.next, Arc::new(Notify::new()));
            self.next += 1;
            let held =
                Held { phase: Phase::Request, since: now, revoke: Arc::clone(&revoke), is_revoked: false };
            self.held.insert(number, held);
            return Ok((number, revoke));
        }
        if self.held.values().any(|permit| permit.is_revoked) {
            return Err(None);
        }
        let until = |permit: &Held| Some(permit.since + permit.phase.patience()?);
        let gives_way = self.held.values_mut().filter_map(|permit| Some((until(permit)?, permit)));
        let Some((until, permit)) = gives_way.min_by_key(|(until, _)| *until) else { return Err(None) };
        if now < until {
            return Err(Some(until));
        }
        permit.is_revoked = true;
        permit.revoke.notify_one();
        Err(None)
    }
}

impl Permit {
    pub(crate) fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Waits until the permit is revoked in favor of a new connection.
    pub(crate) async fn revoked(&self) {
        self.revoke.notified().await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Progress { limiter, number } = &self.progress;
        limiter.permits().held.remove(number);
        limiter.changed.notify_one();
    }
}

impl Progress {
    /// Records that the request is complete.
    pub(crate) fn request_read(&self) {
        self.enter(|_| true, Phase::Handling);
    }

    /// Records that the response is ready.
    pub(crate) fn response_ready(&self) {
        self.enter(|_| true, Phase::Response);
    }

    /// Records that the kernel has accepted all written bytes. If these bytes complete a response,
    /// the next request can follow.
    pub(crate) fn flushed(&self) {
        self.enter(|phase| phase == Phase::Response, Phase::Request);
    }

    fn enter(&self, from: impl Fn(Phase) -> bool, to: Phase) {
        let mut permits = self.limiter.permits();
        let Some(permit) = permits.held.get_mut(&self.number).filter(|permit| from(permit.phase)) else {
            return;
        };
        (permit.phase, permit.since) = (to, Instant::now());
        self.limiter.changed.notify_one();
    }
}

/// The time that a client has for sending a request before its connection can be closed to admit a
/// new connection. If this time were zero and several clients connected at once, each connection
/// would close the previous one before the server had read its request.
const REQUEST_TIME: Duration = Duration::from_millis(50);
/// The time that a client has for reading a response before its connection can be closed to admit a
/// new connection.
const RESPONSE_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    /// Returns the index of the permit that is revoked when another connection arrives.
    async fn displaced(limiter: &Arc<ConnectionLimiter>, permits: &[&Permit]) -> Option<usize> {
        // `acquire` does not obtain a permit here, and the timeout expires in simulated time.
        let _ = timeout(Duration::from_millis(1), limiter.acquire()).await;
        permits.iter().position(|permit| limiter.permits().held[&permit.progress.number].is_revoked)
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_connections_are_revoked_oldest_first() {
        let limiter = ConnectionLimiter::new(3);
        let [a, b, c] = [limiter.acquire().await, limiter.acquire().await, limiter.acquire().await];
        assert_eq!(displaced(&limiter, &[&a, &b, &c]).await, None, "the request may still arrive");
        a.progress().request_read();
        advance(Duration::from_secs(1)).await;
        assert_eq!(displaced(&limiter, &[&a, &b, &c]).await, Some(1));
        assert!(timeout(Duration::from_secs(9), b.revoked()).await.is_ok());
        drop(b);
        let d = limiter.acquire().await;
        a.progress().response_ready();
        a.progress().flushed();
        // `a` has just started its next request, so `c` is the oldest.
        assert_eq!(displaced(&limiter, &[&a, &c, &d]).await, Some(1));
        drop(c);
        let e = limiter.acquire().await;
        for permit in [&a, &d, &e] {
            permit.progress().request_read();
            permit.progress().flushed();
        }
        assert_eq!(displaced(&limiter, &[&a, &d, &e]).await, None, "all requests are being handled");
        e.progress().response_ready();
        advance(RESPONSE_TIME / 2).await;
        assert_eq!(displaced(&limiter, &[&a, &d, &e]).await, None, "the client still has time to read");
        advance(RESPONSE_TIME / 2).await;
        assert_eq!(displaced(&limiter, &[&a, &d, &e]).await, Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn one_permit_is_revoked_per_waiting_connection() {
        let limiter = ConnectionLimiter::new(2);
        let [a, _b] = [limiter.acquire().await, limiter.acquire().await];
        assert!(timeout(Duration::from_secs(99), a.revoked()).await.is_err(), "no connection waits");
        let (waiting, also) = (Arc::clone(&limiter), Arc::clone(&limiter));
        let admitted = tokio::spawn(async move { waiting.acquire().await });
        a.revoked().await;
        tokio::task::yield_now().await;
        assert!(!admitted.is_finished(), "a permit is reused only after it was returned");
        assert_eq!(also.permits().held.values().filter(|permit| permit.is_revoked).count(), 1);
        drop(a);
        let _c = admitted.await.unwrap();
        assert_eq!(limiter.permits().held.len(), 2);
    }
}
