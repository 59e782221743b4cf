//! Counting keys for an operator: put in place, awaited, fetched.
//!
//! In: an order of the API. Out: its answer, when the time is over.
//! Not here: how keys are counted (`kv-switch`), rows (`control_plane::rows`).
//! Invariant: for one client at a time. When that has gone, the counters are fetched at once. What takes as long as there are
//! threads and keys (memory for counters, their sum) is done beside the control loop.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::time::Instant;

use admin::view::{HotKeysView, Refusal, RefusalKind};
use admin::{Answer, HotKeysOrder};
use compile::Index;
use control_plane::questions::{Client, Counters};
use control_plane::{hot_key_counters, hot_keys_view};
use forwarder::Snapshot;

use super::Daemon;
use super::turns::Handle;

impl Daemon {
    pub(super) fn count_keys(&mut self, asked: HotKeysOrder, answer: Answer<Result<HotKeysView, Refusal>>) {
        if self.inspections.counts_keys {
            let words = "keys are being counted for another client: try again";
            _ = answer.send(Err(Refusal::new(RefusalKind::Conflict, words)));
            return;
        }
        self.inspections.counts_keys = true;
        let (threads, snapshot) = (self.forwarding.plane.packet_threads(), self.publisher.current());
        let count = KeyCount { asked, answer, daemon: self.turns.handle() };
        tokio::task::spawn_blocking(move || match hot_key_counters(&count.asked, threads, &snapshot) {
            Ok(counters) => count.daemon.clone().send(move |daemon| {
                daemon.inspections.questions.count_keys(counters, Box::new(Begun(count)));
            }),
            Err(refused) => count.end(Err(refused.into())),
        });
    }

    /// The time is over, or the client has gone.
    fn fetch_keys(&mut self, count: KeyCount, since: Instant) {
        let ended = Ended { count, since, snapshot: self.publisher.current() };
        self.inspections.questions.count_keys(Counters::new(), Box::new(ended));
    }
}

struct KeyCount {
    asked: HotKeysOrder,
    answer: Answer<Result<HotKeysView, Refusal>>,
    daemon: Handle<Daemon>,
}

impl KeyCount {
    /// Answers, and lets the next client ask.
    fn end(self, result: Result<HotKeysView, Refusal>) {
        self.daemon.send(|daemon| daemon.inspections.counts_keys = false);
        let _ = self.answer.send(result); // the client may have gone
    }
}

impl Debug for KeyCount {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.asked.fmt(f)
    }
}

/// Awaits that all threads count.
#[derive(Debug)]
struct Begun(KeyCount);

impl Client<Counters> for Begun {
    fn has_gone(&self) -> bool {
        self.0.answer.is_closed()
    }

    fn answer(self: Box<Self>, _: Counters, _: &Snapshot, _: &Index) {
        let (mut count, since) = (self.0, Instant::now());
        tokio::spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(count.asked.within) => {}
                () = count.answer.closed() => {}
            }
            let daemon = count.daemon.clone();
            daemon.send(move |daemon| daemon.fetch_keys(count, since));
        });
    }
}

/// Awaits what they have counted.
#[derive(Debug)]
struct Ended {
    count: KeyCount,
    since: Instant,
    snapshot: Arc<Snapshot>,
}

impl Client<Counters> for Ended {
    fn has_gone(&self) -> bool {
        self.count.answer.is_closed()
    }

    fn answer(self: Box<Self>, counters: Counters, _: &Snapshot, _: &Index) {
        let Self { count, since, snapshot } = *self;
        let seconds = since.elapsed().as_secs_f64();
        tokio::task::spawn_blocking(move || {
            let view = hot_keys_view(&counters, seconds, count.asked.limit, &snapshot);
            count.end(Ok(view));
        });
    }
}
