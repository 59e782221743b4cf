//! The reloads that wait, one under way, and how the last one ended.
//!
//! In: requests. Out: each in its turn.
//! Invariant: one is under way at a time; requests without a client that wait are one.

use std::collections::VecDeque;

use super::{Ended, Request};
use crate::refused::Refused;

/// See the module's header.
#[derive(Debug)]
pub struct ReloadQueue<C> {
    waiting: VecDeque<Request<C>>,
    is_under_way: bool,
    last: Option<Ended>,
}

impl<C> Default for ReloadQueue<C> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), is_under_way: false, last: None }
    }
}

impl<C> ReloadQueue<C> {
    /// Enters a request. The client of one too many comes back, to be refused by [`too_many`].
    pub fn ask(&mut self, request: Request<C>) -> Option<C> {
        match request.client {
            None if self.waiting.iter().any(|other| other.client.is_none()) => None,
            Some(client) if self.waiting.len() >= MAX_WAITING => Some(client),
            _ => {
                self.waiting.push_back(request);
                None
            }
        }
    }

    /// The next one, if none is under way: it is from now on.
    pub fn begin(&mut self) -> Option<Request<C>> {
        if self.is_under_way {
            return None;
        }
        let next = self.waiting.pop_front();
        self.is_under_way = next.is_some();
        next
    }

    /// The one under way has ended.
    pub fn end(&mut self, last: Ended) {
        (self.is_under_way, self.last) = (false, Some(last));
    }

    /// Whether none is under way or waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.is_under_way && self.waiting.is_empty()
    }

    /// How the last one ended.
    #[must_use]
    pub fn last(&self) -> Option<&Ended> {
        self.last.as_ref()
    }
}

/// The refusal of a request for which there is no place.
#[must_use]
pub fn too_many() -> Refused {
    Refused::Unavailable("too many reloads wait already".to_owned())
}

const MAX_WAITING: usize = 16;

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::super::InForce;
    use super::*;

    fn last() -> Ended {
        let outcome = Ok(InForce { generation: 1, changed: Vec::new() });
        Ended { outcome, took: Duration::from_millis(1), at: SystemTime::UNIX_EPOCH }
    }

    fn request(why: &'static str) -> Request<u8> {
        Request { why, text: None, client: None }
    }

    #[test]
    fn one_is_under_way_and_signals_that_wait_are_one() {
        let mut queue = ReloadQueue::default();
        assert!(queue.begin().is_none() && queue.is_idle());
        queue.ask(request("SIGHUP"));
        assert_eq!(queue.begin().map(|next| next.why), Some("SIGHUP"));
        queue.ask(request("SIGHUP"));
        queue.ask(request("the file has changed"));
        assert!(queue.begin().is_none(), "one is under way");
        queue.end(last());
        assert!(queue.begin().is_some() && !queue.is_idle());
        queue.end(last());
        assert!(queue.begin().is_none() && queue.is_idle());
    }

    #[test]
    fn clients_each_wait_for_their_own_and_one_too_many_is_refused() {
        let mut queue = ReloadQueue::default();
        for _ in 0..MAX_WAITING {
            assert_eq!(queue.ask(Request { client: Some(1), ..request("api") }), None);
        }
        assert_eq!(queue.ask(Request { client: Some(2), ..request("api") }), Some(2));
        assert_eq!(queue.waiting.len(), MAX_WAITING);
    }
}
