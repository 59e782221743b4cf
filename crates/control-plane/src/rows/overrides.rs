//! Builds the API responses for overrides, and for commands that change a backend or the machine.

use std::time::{Duration, Instant};

use admin::view::{BackendChange, MachineDrain, MembershipChange, OverrideRow, Refusal};
use forwarder::Snapshot;

use super::{shown, stage_shown};
use crate::announce::Announcer;
use crate::controller::Controller;
use crate::drain::Shutdown;
use crate::overrides::{Applied, BackendOverride, Overrides};
use compile::{Override, OverrideKey};

impl Overrides {
    /// Applies a command with [`Overrides::give`]. Returns the snapshot to publish, or `None` if it
    /// does not change, and the changed states for the response.
    ///
    /// # Errors
    /// Returns the errors of [`Overrides::give`].
    pub fn answer(
        &mut self,
        controller: &mut Controller,
        command: &BackendOverride,
        current: &Snapshot,
        now: Duration,
    ) -> Result<(Option<Snapshot>, BackendChange), Refusal> {
        let backend = &command.backend;
        let before = controller.stand(backend, current);
        let Applied { snapshot, changed, notes } = self.give(controller, command, current, now)?;
        let current = snapshot.as_ref().unwrap_or(current);
        let pairs = before.into_iter().zip(controller.stand(backend, current));
        let changes = pairs.map(|(old, new)| MembershipChange {
            before: old.before,
            weight_before: old.weight_before,
            ..new
        });
        let (memberships, generation) = (changes.collect(), current.generation().0);
        let backend = backend.backend.to_string();
        let change = BackendChange { backend, generation, changed, memberships, notes };
        Ok((snapshot, change))
    }

    /// Returns the rows for all active overrides.
    #[must_use]
    pub fn rows(&self, controller: &Controller, now: Duration) -> Vec<OverrideRow> {
        let row = |(key, says): (&OverrideKey, &Override)| {
            let (note, until) = self.of(key)?;
            Some(OverrideRow {
                backend: key.backend.to_string(),
                pool: key.pool.as_ref().map(ToString::to_string),
                says: shown(*says)?,
                since_seconds: now.saturating_sub(note.at).as_secs_f64(),
                by: note.by.to_string(),
                reason: note.reason.as_ref().map(ToString::to_string),
                ends_in_seconds: until.map(|until| until.saturating_sub(now).as_secs_f64()),
                down_in_seconds: self.down_at(key).map(|at| at.saturating_sub(now).as_secs_f64()),
            })
        };
        controller.runtime_state().overrides.iter().filter_map(row).collect()
    }
}

impl Shutdown {
    /// Returns the drain state of the machine with the name `machine`.
    #[must_use]
    pub fn view(
        &self,
        machine: &str,
        announcer: &Announcer,
        now: Instant,
        mut notes: Vec<String>,
    ) -> MachineDrain {
        let left = self.left(now);
        if self.is_draining() && !announcer.is_at_work() {
            notes.push("no routes to withdraw, because this machine has no BGP peers".to_owned());
        }
        MachineDrain {
            machine: machine.to_owned(),
            stage: stage_shown(announcer.stage()),
            notice_seconds: left.notice.as_secs_f64(),
            drain_seconds: left.drain.as_secs_f64(),
            notes,
        }
    }
}
