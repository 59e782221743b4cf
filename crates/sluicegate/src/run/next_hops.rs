//! Applies new next hops to the snapshot. The kernel reports routes, links and neighbors, and the
//! health checks report next hops that do not reach a backend. `control_plane::Paths` combines the
//! reports of the kernel and of the health checks.

use health::FailingHops;
use next_hop::Table;

use super::Daemon;

impl Daemon {
    pub(super) fn take_next_hops(&mut self, table: Table) {
        self.paths.take(table, self.controller.config(), self.controller.machine());
        self.renew_paths();
    }

    pub(super) fn take_failing_hops(&mut self, changed: Vec<FailingHops>) {
        if self.paths.take_failing_hops(changed) {
            self.renew_paths();
        }
    }

    /// Publishes the current snapshot with the current next hops and path MTUs.
    pub(super) fn renew_paths(&mut self) {
        let (config, machine) = (self.controller.config(), self.controller.machine());
        match self.paths.renewed(&self.publisher.current(), config, machine) {
            Ok(snapshot) => self.publisher.renew(snapshot),
            // log: New next hops could not be applied, so the previous next hops remain in use
            // until the next change. Report a bug if the line is repeated.
            Err(error) => tracing::error!(%error, "next hops not updated"),
        }
        self.follow_own_addresses();
    }
}
