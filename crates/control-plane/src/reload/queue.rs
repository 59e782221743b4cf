//! The reloads that wait, one under way, and how the last one ended.
//!
//! In: requests. Out: each in its turn.
//! Invariant: one is under way at a time; requests without a client that wait are one.

use std::collections::VecDeque;

use admin::view::{LastReload, Refusal, RefusalKind};

use super::Request;

/// See the module's header.
#[derive(Debug, Default)]
pub struct ReloadQueue {
    waiting: VecDeque<Request>,
    is_under_way: bool,
    last: Option<LastReload>,
}

impl ReloadQueue {
    /// Enters a request. One too many is refused.
    pub fn ask(&mut self, request: Request) {
        match request.answer {
            None if self.waiting.iter().any(|other| other.answer.is_none()) => {}
            Some(answer) if self.waiting.len() >= MAX_WAITING => {
                let refusal = Refusal::new(RefusalKind::Unavailable, "too many reloads wait already");
                let _ = answer.send(Err(refusal)); // a client who has gone needs no answer
            }
            _ => self.waiting.push_back(request),
        }
    }

    /// The next one, if none is under way: it is from now on.
    pub fn begin(&mut self) -> Option<Request> {
        if self.is_under_way {
            return None;
        }
        let next = self.waiting.pop_front();
        self.is_under_way = next.is_some();
        next
    }

    /// The one under way has ended.
    pub fn end(&mut self, last: LastReload) {
        (self.is_under_way, self.last) = (false, Some(last));
    }

    /// Whether none is under way or waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.is_under_way && self.waiting.is_empty()
    }

    /// How the last one ended.
    #[must_use]
    pub fn last(&self) -> Option<&LastReload> {
        self.last.as_ref()
    }
}

const MAX_WAITING: usize = 16;

#[cfg(test)]
mod tests {
    use admin::view::ReloadOutcome;
    use tokio::sync::oneshot;

    use super::*;

    fn last() -> LastReload {
        LastReload {
            unix_seconds: 1,
            outcome: ReloadOutcome::Unchanged,
            took_ms: 1.0,
            message: String::new(),
        }
    }

    fn request(why: &'static str) -> Request {
        Request { why, text: None, answer: None }
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
        let ask = |queue: &mut ReloadQueue| {
            let (answer, told) = oneshot::channel();
            queue.ask(Request { answer: Some(answer), ..request("api") });
            told
        };
        let waiting: Vec<_> = (0..MAX_WAITING).map(|_| ask(&mut queue)).collect();
        let refused = ask(&mut queue).try_recv().unwrap().unwrap_err();
        assert_eq!(refused.kind, RefusalKind::Unavailable);
        assert_eq!((queue.waiting.len(), waiting.len()), (MAX_WAITING, MAX_WAITING));
    }
}
