//! Creates the value caches of packet threads with their configured size. Memory is allocated on
//! another thread. Packet threads receive the new caches only if the configured size has not
//! changed in the meantime. The crate `kv-switch` implements the caches.

use control_plane::questions::Caches;
use control_plane::value_caches;
use forwarder::{Snapshot, ThreadCounters};

use super::Daemon;

impl Daemon {
    /// Publishes a new snapshot of the same configuration. Discards the cached values of backends
    /// whose state has changed, because such a backend may have been flushed or restarted while it
    /// was down.
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

    /// Returns a warning if fetches for the caches receive no response.
    pub(super) fn cache_warning(&self) -> Option<String> {
        self.publisher.current().caches()?;
        let threads = &self.forwarding.plane.counters;
        let sum = |count: fn(&ThreadCounters) -> u64| threads.iter().map(|thread| count(thread)).sum::<u64>();
        let unanswered = sum(|thread| thread.cache_unanswered.read());
        let is_filled = sum(|thread| thread.cache_fills.read()) > 0;
        (unanswered >= MANY && !is_filled).then(|| {
            format!(
                "no value is cached, because servers did not reply to {unanswered} fetches; they need the meta commands \
                 of memcached 1.6 and a route to this machine"
            )
        })
    }

    /// Replaces the caches of all packet threads if the configured size has changed. All cached
    /// values are lost.
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
        let (threads, daemon) = (self.forwarding.plane.packet_threads(), self.tasks.handle());
        tokio::task::spawn_blocking(move || {
            let caches = value_caches(bytes, &epochs, threads, datapath::advise_large_pages);
            daemon.send(move |daemon| {
                // Another reload may have changed the size in the meantime.
                if daemon.inspections.cached == bytes {
                    daemon.inspections.questions.cache(caches);
                }
            });
        });
    }
}

/// The number of unanswered fetches at which a fault is assumed.
const MANY: u64 = 10;
