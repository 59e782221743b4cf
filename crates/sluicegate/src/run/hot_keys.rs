//! Counting keys for an operator: put in place, awaited, fetched.
//!
//! In: an order of the API. Out: its answer, when the time is over.
//! Not here: how keys are counted (`kv-switch`), rows (`control_plane::hot_keys`).
//! Invariant: for one client at a time. When that has gone, the counters are fetched at once; their memory is freed here.

use std::fmt::{self, Debug, Formatter};
use std::time::Instant;

use admin::view::{HotKeysView, Refusal, RefusalKind};
use admin::{Answer, HotKeysOrder};
use compile::Index;
use control_plane::hot_keys::counters;
use control_plane::hot_keys_view;
use control_plane::questions::{Client, Counters};
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
        let threads = self.forwarding.plane.packet_threads();
        match counters(&asked, threads, &self.publisher.current()) {
            Ok(counters) => {
                self.inspections.counts_keys = true;
                let order = Order { asked, answer, daemon: self.turns.handle() };
                self.inspections.questions.count_keys(counters, Box::new(Begun(order)));
            }
            Err(refused) => _ = answer.send(Err(refused.into())),
        }
    }

    /// The time is over, or the client has gone.
    fn fetch_keys(&mut self, order: Order, since: Instant) {
        self.inspections.questions.count_keys(Counters::new(), Box::new(Ended { order, since }));
    }
}

struct Order {
    asked: HotKeysOrder,
    answer: Answer<Result<HotKeysView, Refusal>>,
    daemon: Handle<Daemon>,
}

impl Debug for Order {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.asked.fmt(f)
    }
}

/// Awaits that all threads count.
#[derive(Debug)]
struct Begun(Order);

impl Client<Counters> for Begun {
    fn has_gone(&self) -> bool {
        self.0.answer.is_closed()
    }

    fn answer(self: Box<Self>, _: Counters, _: &Snapshot, _: &Index) {
        let (mut order, since) = (self.0, Instant::now());
        tokio::spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(order.asked.within) => {}
                () = order.answer.closed() => {}
            }
            let daemon = order.daemon.clone();
            daemon.send(move |daemon| daemon.fetch_keys(order, since));
        });
    }
}

/// Awaits what they have counted.
#[derive(Debug)]
struct Ended {
    order: Order,
    since: Instant,
}

impl Client<Counters> for Ended {
    fn has_gone(&self) -> bool {
        self.order.answer.is_closed()
    }

    fn answer(self: Box<Self>, counters: Counters, snapshot: &Snapshot, _: &Index) {
        let Order { asked, answer, daemon } = self.order;
        let _ = answer.send(Ok(hot_keys_view(
            &counters,
            self.since.elapsed().as_secs_f64(),
            asked.limit,
            snapshot,
        )));
        daemon.send(|daemon| daemon.inspections.counts_keys = false);
    }
}
