//! The reloads that wait, one under way, and how the last one ended.
//!
//! In: requests. Out: each in its turn.
//! Invariant: one is under way at a time; requests of the file without a client that wait are one.

use std::collections::VecDeque;

use super::{Ended, Request, Wanted};
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
    fn one_is_under_way_and_signals_that_wait_are_one() {
        let mut queue = ReloadQueue::default();
        assert!(queue.begin().is_none() && queue.is_idle());
        queue.ask(request(Cause::Signal));
        assert_eq!(queue.begin().map(|next| next.about.cause), Some(Cause::Signal));
        queue.ask(request(Cause::Signal));
        queue.ask(request(Cause::Watch));
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
            assert_eq!(queue.ask(Request { client: Some(1), ..request(Cause::Api) }), None);
        }
        assert_eq!(queue.ask(Request { client: Some(2), ..request(Cause::Api) }), Some(2));
        assert_eq!(queue.waiting.len(), MAX_WAITING);
    }

    #[test]
    fn a_way_back_is_no_signal_and_comes_after_what_waits() {
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
