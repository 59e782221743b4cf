//! Caches for packet threads, as the configuration in force has them.
//!
//! In: the snapshot in force. Out: caches on their way to the threads, or an end to those that are there, or to a backend's copies.
//! Not here: what they hold (`kv-switch`), how they reach the threads (`control_plane::questions`).
//! Invariant: memory is taken beside the control loop, and given to threads only while it is what the configuration says.

use control_plane::questions::Caches;
use control_plane::value_caches;
use forwarder::{Snapshot, ThreadCounters};

use super::Daemon;

impl Daemon {
    /// Puts another snapshot of the same configuration in force. Backends whose state changes by it lose their copies: one that was away
    /// may have been emptied, or have begun anew.
    pub(super) fn renew(&mut self, snapshot: Snapshot) {
        let before = self.publisher.current();
        self.publisher.renew(snapshot);
        let current = self.publisher.current();
        let Some((_, epochs)) = current.caches() else { return };
        let now = self.forwarding.plane.now().nanos();
        let states = before.states().iter().zip(current.states());
        for (slot, _) in (0..).zip(states).filter(|(_, (before, now))| before != now) {
            epochs.server_changed(now, slot);
        }
    }

    /// Of a cache that no server fills.
    pub(super) fn cache_warning(&self) -> Option<String> {
        self.publisher.current().caches()?;
        let threads = &self.forwarding.plane.counters;
        let sum = |count: fn(&ThreadCounters) -> u64| threads.iter().map(|thread| count(thread)).sum::<u64>();
        let unanswered = sum(|thread| thread.cache_unanswered.read());
        let is_filled = sum(|thread| thread.cache_fills.read()) > 0;
        (unanswered >= MANY && !is_filled).then(|| {
            format!(
                "no value is cached: servers answered none of {unanswered} fetches; they need memcached's meta \
                 commands (1.6) and a route to this machine"
            )
        })
    }

    /// Gives threads caches of another size where that has changed, and with it whatever copies they had an end.
    pub(super) fn follow_caches(&mut self) {
        let wanted = self.publisher.current().caches();
        let bytes = wanted.as_ref().map_or(0, |(bytes, _)| *bytes);
        if std::mem::replace(&mut self.inspections.cached, bytes) == bytes {
            return;
        }
        let Some((_, epochs)) = wanted else {
            self.inspections.questions.cache(Caches::new());
            return;
        };
        let (threads, daemon) = (self.forwarding.plane.packet_threads(), self.turns.handle());
        tokio::task::spawn_blocking(move || {
            let caches = value_caches(bytes, &epochs, threads, datapath::advise_large_pages);
            daemon.send(move |daemon| {
                // Another reload may have overtaken it.
                if daemon.inspections.cached == bytes {
                    daemon.inspections.questions.cache(caches);
                }
            });
        });
    }
}

/// Fetches without an answer that are no accident.
const MANY: u64 = 10;
