//! The queue of requested reloads, and the result of the last reload.
//!
//! Invariant: one reload runs at a time. If several reloads of the configuration file wait and no
//! client waits for their results, these reloads are merged into one reload.

use std::collections::VecDeque;

use super::{Ended, Request, Wanted};
use crate::refused::Refused;

/// The waiting reloads, and the result of the last reload.
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
    /// Adds a request to the queue. If the queue is full, returns the client of the request. The
    /// caller must then send the error [`too_many`] to the client.
    pub fn ask(&mut self, request: Request<C>) -> Option<C> {
        let is_any = |one: &Request<C>| one.client.is_none() && matches!(one.wanted, Wanted::File);
        match request.client {
            None if is_any(&request) && self.waiting.iter().any(is_any) => None,
            Some(client) if self.waiting.len() >= MAX_WAITING => Some(client),
            _ => {
                self.waiting.push_back(request);
                None
            }
        }
    }

    /// Returns the next reload to run, or `None` if a reload is running or the queue is empty.
    pub fn begin(&mut self) -> Option<Request<C>> {
        if self.is_under_way {
            return None;
        }
        let next = self.waiting.pop_front();
        self.is_under_way = next.is_some();
        next
    }

    /// Records the result of the running reload.
    pub fn end(&mut self, last: Ended) {
        (self.is_under_way, self.last) = (false, Some(last));
    }

    /// Returns `true` if no reload is running or waiting.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.is_under_way && self.waiting.is_empty()
    }

    /// Returns the result of the last reload.
    #[must_use]
    pub fn last(&self) -> Option<&Ended> {
        self.last.as_ref()
    }
}

/// Returns the error for a request that does not fit into the queue.
#[must_use]
pub fn too_many() -> Refused {
    Refused::Unavailable("too many reloads are waiting; try again later".to_owned())
}

const MAX_WAITING: usize = 16;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use super::super::{About, Cause, InForce, Kept};
    use super::*;

    fn last() -> Ended {
        let outcome = Ok(InForce { generation: 1, changed: Vec::new() });
        Ended { outcome, took: Duration::from_millis(1), at: SystemTime::UNIX_EPOCH }
    }

    fn request(cause: Cause) -> Request<u8> {
        Request { about: About::plain(cause), wanted: Wanted::File, client: None }
    }

    #[test]
    fn waiting_signals_are_merged_and_one_reload_runs() {
        let mut queue = ReloadQueue::default();
        assert!(queue.begin().is_none() && queue.is_idle());
        queue.ask(request(Cause::Signal));
        assert_eq!(queue.begin().map(|next| next.about.cause), Some(Cause::Signal));
        queue.ask(request(Cause::Signal));
        queue.ask(request(Cause::Watch));
        assert!(queue.begin().is_none(), "a reload is running");
        queue.end(last());
        assert!(queue.begin().is_some() && !queue.is_idle());
        queue.end(last());
        assert!(queue.begin().is_none() && queue.is_idle());
    }

    #[test]
    fn client_requests_are_not_merged_and_the_queue_is_bounded() {
        let mut queue = ReloadQueue::default();
        for _ in 0..MAX_WAITING {
            assert_eq!(queue.ask(Request { client: Some(1), ..request(Cause::Api) }), None);
        }
        assert_eq!(queue.ask(Request { client: Some(2), ..request(Cause::Api) }), Some(2));
        assert_eq!(queue.waiting.len(), MAX_WAITING);
    }

    #[test]
    fn rollback_is_not_merged_with_a_signal() {
        let mut queue = ReloadQueue::default();
        let kept = || Wanted::Kept(Arc::new(kept()));
        queue.ask(request(Cause::Signal));
        queue.ask(Request { wanted: kept(), ..request(Cause::Unconfirmed) });
        queue.ask(request(Cause::Watch));
        assert_eq!(queue.waiting.len(), 2);
        for cause in [Cause::Signal, Cause::Unconfirmed] {
            assert_eq!(queue.begin().map(|next| next.about.cause), Some(cause));
            queue.end(last());
        }
    }

    fn kept() -> Kept {
        let text = "[cluster]\nname = \"c\"\nhash_key_file = \"k\"\n[machine.lb1]\n\
                    addresses = [\"192.0.2.1\"]\ninterfaces = [\"eth0\"]\n";
        let secret = |_: &_| Ok("00112233445566778899aabbccddeeff".to_owned());
        let (config, warnings) = config::parse(text, "a.toml".as_ref(), &secret).unwrap();
        let (at, cause) = (SystemTime::UNIX_EPOCH, Cause::Start);
        Kept { generation: 0, at, cause, by: None, config: Arc::new(config), warnings }
    }
}
