//! At most so many connections behind a listener; when it is full, one in the middle of a request gives way, the oldest first.
//!
//! In: connections as they are accepted, and how far each has come. Out: a [`Permit`] each, and the word that it is revoked.
//! A connection sends its request, waits while that is handled, then takes the response; then the next request may come.
//! While another connection waits, one that sends is revoked after [`REQUEST_TIME`], one that does not read after
//! [`RESPONSE_TIME`], one whose request is handled never.
//! Not here: what ends a connection that no other waits behind (`server`).
//! Invariant: at most `most` permits are held, and one more connection waits for one.
//! A `tokio::sync::Semaphore` revokes no permit: with one, a client behind 64 that stop waits 10 s (`tests/api/bounds.rs`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// The permits of one listener, which one task gives out.
#[derive(Debug)]
pub(crate) struct ConnectionLimiter {
    most: usize,
    permits: Mutex<Permits>,
    /// A permit was returned, or may be revoked now.
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

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Its request is not whole.
    Request,
    /// Its request is whole, and there is no response yet.
    Handling,
    /// Its response is on its way.
    Response,
}

impl Phase {
    /// How long it is left alone while others wait; `None`: to its end.
    fn patience(self) -> Option<Duration> {
        match self {
            Self::Request => Some(REQUEST_TIME),
            Self::Handling => None,
            Self::Response => Some(RESPONSE_TIME),
        }
    }
}

/// A connection's permit. Dropping it returns it.
#[derive(Debug)]
pub(crate) struct Permit {
    progress: Progress,
    revoke: Arc<Notify>,
}

/// How far a connection has come, for what sees it.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    limiter: Arc<ConnectionLimiter>,
    number: u64,
}

impl ConnectionLimiter {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, permits: Mutex::default(), changed: Notify::new() })
    }

    /// A permit, once there is one: a connection that must give way has ended then.
    pub(crate) async fn acquire(self: &Arc<Self>) -> Permit {
        loop {
            let again = match self.permits().admit(self.most, Instant::now()) {
                Ok((number, revoke)) => {
                    return Permit { progress: Progress { limiter: Arc::clone(self), number }, revoke };
                }
                Err(again) => again,
            };
            match again {
                // Woken or not, it is looked at anew.
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
    /// A permit's number; or when to ask again at the latest, when one has been revoked or none can be.
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

    /// Waits until another connection needs the permit.
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
    /// The request is whole.
    pub(crate) fn request_read(&self) {
        self.enter(|_| true, Phase::Handling);
    }

    /// There is a response.
    pub(crate) fn response_ready(&self) {
        self.enter(|_| true, Phase::Response);
    }

    /// The kernel has taken all that was written: if that was a response, the next request may come.
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

/// A client sends its request as soon as it is let in. With none at all, those that come together would displace each other
/// before their requests are read.
const REQUEST_TIME: Duration = Duration::from_millis(50);
/// For a response that the client does not read.
const RESPONSE_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    /// Which permit the next connection would have revoked.
    async fn displaced(limiter: &Arc<ConnectionLimiter>, permits: &[&Permit]) -> Option<usize> {
        // None is returned, so it ends by the time-out; a second may pass in it.
        let _ = timeout(Duration::from_millis(1), limiter.acquire()).await;
        permits.iter().position(|permit| limiter.permits().held[&permit.progress.number].is_revoked)
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_that_sends_gives_way_then_one_that_does_not_read_and_never_one_that_is_handled() {
        let limiter = ConnectionLimiter::new(3);
        let [a, b, c] = [limiter.acquire().await, limiter.acquire().await, limiter.acquire().await];
        assert_eq!(displaced(&limiter, &[&a, &b, &c]).await, None, "a request may be on its way");
        a.progress().request_read();
        advance(Duration::from_secs(1)).await;
        assert_eq!(displaced(&limiter, &[&a, &b, &c]).await, Some(1));
        assert!(timeout(Duration::from_secs(9), b.revoked()).await.is_ok());
        drop(b);
        let d = limiter.acquire().await;
        a.progress().response_ready();
        a.progress().flushed();
        // It sends anew, and later than the others.
        assert_eq!(displaced(&limiter, &[&a, &c, &d]).await, Some(1));
        drop(c);
        let e = limiter.acquire().await;
        for permit in [&a, &d, &e] {
            permit.progress().request_read();
            permit.progress().flushed();
        }
        assert_eq!(displaced(&limiter, &[&a, &d, &e]).await, None, "all are handled");
        e.progress().response_ready();
        advance(RESPONSE_TIME / 2).await;
        assert_eq!(displaced(&limiter, &[&a, &d, &e]).await, None, "it may still read");
        advance(RESPONSE_TIME / 2).await;
        assert_eq!(displaced(&limiter, &[&a, &d, &e]).await, Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn one_gives_way_for_each_that_comes_and_none_while_none_waits() {
        let limiter = ConnectionLimiter::new(2);
        let [a, _b] = [limiter.acquire().await, limiter.acquire().await];
        assert!(timeout(Duration::from_secs(99), a.revoked()).await.is_err(), "none waits");
        let (waiting, also) = (Arc::clone(&limiter), Arc::clone(&limiter));
        let admitted = tokio::spawn(async move { waiting.acquire().await });
        a.revoked().await;
        tokio::task::yield_now().await;
        assert!(!admitted.is_finished(), "a permit is not free before it is returned");
        assert_eq!(also.permits().held.values().filter(|permit| permit.is_revoked).count(), 1);
        drop(a);
        let _c = admitted.await.unwrap();
        assert_eq!(limiter.permits().held.len(), 2);
    }
}
