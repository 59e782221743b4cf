//! Orders to backends and to the machine: what the API answers, and the overrides that its status lists.

use std::time::{Duration, Instant};

use admin::view::{BackendChange, MachineDrain, MembershipChange, OverrideRow, Refusal};
use forwarder::Snapshot;

use super::{shown, stage_shown};
use crate::announce::Announcer;
use crate::controller::Controller;
use crate::drain::Shutdown;
use crate::orders::{BackendOrder, Ordered, Orders};
use compile::{Override, OverrideKey};

impl Orders {
    /// Carries an order out as [`Orders::give`], and says what it changed; with the snapshot to publish, if a state has.
    ///
    /// # Errors
    /// As [`Orders::give`].
    pub fn answer(
        &mut self,
        controller: &mut Controller,
        order: &BackendOrder,
        current: &Snapshot,
        now: Duration,
    ) -> Result<(Option<Snapshot>, BackendChange), Refusal> {
        let backend = &order.backend;
        let before = controller.stand(backend, current);
        let Ordered { snapshot, changed, notes } = self.give(controller, order, current, now)?;
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

    /// The overrides in force.
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
            })
        };
        controller.runtime_state().overrides.iter().filter_map(row).collect()
    }
}

impl Shutdown {
    /// How the drain of `machine` stands.
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
            notes.push("no route is withdrawn: the file has no peers for this machine".to_owned());
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
