//! Counts requested memcached keys for `kv top`. This module starts the counters on all packet
//! threads, waits for the requested time, and collects the counters.
//!
//! Only one client can count at a time. If the client disconnects, the counters are collected
//! immediately. The counters are allocated and summed on another thread, because the time for this
//! work grows with the number of threads and keys. The crate `kv-switch` counts the keys, and
//! `control_plane::rows` builds the response.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::time::Instant;

use admin::view::{HotKeysView, Refusal, RefusalKind};
use admin::{Answer, HotKeysCommand};
use compile::Index;
use control_plane::questions::{Client, Counters};
use control_plane::{hot_key_counters, hot_keys_view};
use forwarder::Snapshot;

use super::Daemon;
use super::loop_tasks::Handle;

impl Daemon {
    pub(super) fn count_keys(&mut self, asked: HotKeysCommand, answer: Answer<Result<HotKeysView, Refusal>>) {
        if self.inspections.counts_keys {
            let words = "another client is counting keys, try again later";
            _ = answer.send(Err(Refusal::new(RefusalKind::Conflict, words)));
            return;
        }
        self.inspections.counts_keys = true;
        let (threads, snapshot) = (self.forwarding.plane.packet_threads(), self.publisher.current());
        let count = KeyCount { asked, answer, daemon: self.tasks.handle() };
        tokio::task::spawn_blocking(move || match hot_key_counters(&count.asked, threads, &snapshot) {
            Ok(counters) => count.daemon.clone().send(move |daemon| {
                daemon.inspections.questions.count_keys(counters, Box::new(Begun(count)));
            }),
            Err(refused) => count.end(Err(refused.into())),
        });
    }

    /// Collects the counters after the requested time, or when the client disconnects.
    fn fetch_keys(&mut self, count: KeyCount, since: Instant) {
        let ended = Ended { count, since, snapshot: self.publisher.current() };
        self.inspections.questions.count_keys(Counters::new(), Box::new(ended));
    }
}

struct KeyCount {
    asked: HotKeysCommand,
    answer: Answer<Result<HotKeysView, Refusal>>,
    daemon: Handle<Daemon>,
}

impl KeyCount {
    /// Sends the response and allows another client to count.
    fn end(self, result: Result<HotKeysView, Refusal>) {
        self.daemon.send(|daemon| daemon.inspections.counts_keys = false);
        let _ = self.answer.send(result); // The client may have disconnected.
    }
}

impl Debug for KeyCount {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.asked.fmt(f)
    }
}

/// Receives the confirmation that all threads have started counting.
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

/// Receives the counters of all threads.
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
