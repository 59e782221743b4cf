//! Routers and the drain: what the announcer is told, and the way out.
//!
//! In: what is seen of VIPs, configurations, signals and orders. Out: routes (by the announcer), and whether the process ends.
//! The order: a new VIP reaches snapshot, filter, routers; one that goes is withdrawn first, and filter and snapshot follow when
//! routers have had it. A drain: not ready at once; routes as about to go; withdrawn; the rest forwarded; the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use admin::MachineAction;
use admin::view::{MachineDrain, Refusal, RefusalKind};
use control_plane::announce::{Seen, ServiceSeen, Stage};
use control_plane::controller::Done;
use control_plane::stage_shown;

use super::work::Finished;
use super::{AFTER_DRAIN, Balancer};
use crate::shutdown::Drain;

impl Balancer {
    /// The announcer decides by what is seen now.
    pub(super) fn announce(&mut self, services: BTreeMap<String, Vec<ServiceSeen>>) {
        let state = self.liveness.state();
        let fault = (!state.health.is_healthy()).then(|| state.health.to_string());
        let seen = Seen { forwarder_fault: fault, set_up: state.set_up, services };
        self.announcer.look(&seen, self.origin.elapsed());
    }

    /// The configuration in force, once snapshot and filter have it.
    pub(super) fn follow_announcements(&mut self) {
        let config = Arc::clone(self.controller.config());
        if let Some(machine) = config.machine(self.controller.machine()) {
            self.announcer.configure(&config, machine);
        }
        self.look_at_vips();
    }

    /// Routes that a new configuration does not have go before it comes: it waits until routers have heard.
    pub(super) fn retire_routes(&mut self, done: Done) {
        let next = self.reloads.loaded().map(|loaded| Arc::clone(&loaded.config));
        let told = next.and_then(|next| {
            let machine = next.machine(self.controller.machine())?;
            self.announcer.retire(&next, machine)
        });
        let Some(told) = told else { return self.take_compiled(done, true) };
        let finished = self.finished.0.clone();
        tokio::spawn(async move {
            told.wait().await;
            let _ = finished.send(Finished::Retired(Box::new(done))); // nobody listens: the balancer has ended
        });
    }

    /// What is configured and only a start brings.
    pub(super) fn needs_restart(&self) -> Vec<String> {
        let mut pending = self.running.pending(self.controller.config(), self.controller.machine());
        pending.extend(self.announcer.needs_restart());
        pending
    }

    /// The first signal begins the drain, the second ends it.
    pub(super) fn ends_at_once(&mut self) -> bool {
        if let Some(drain) = self.drain.as_mut().filter(|drain| drain.may_be_taken_back) {
            // An operator's drain goes on, and now the service manager waits for its end.
            drain.may_be_taken_back = false;
            let at_most = drain.longest();
            self.manager.stopping(at_most + AFTER_DRAIN, "draining");
            return false;
        }
        if self.drain.is_some() {
            tracing::info!("a second signal: the drain ends");
            return true;
        }
        let at_most = self.begin_drain(false, Instant::now());
        self.manager.stopping(at_most + AFTER_DRAIN, "draining");
        at_most.is_zero()
    }

    /// How long it takes at most.
    fn begin_drain(&mut self, may_be_taken_back: bool, now: Instant) -> Duration {
        // Before anything else is done: whoever asks or follows sends nothing new.
        self.liveness.drain();
        let at_most = self.controller.config().cluster().drain_time();
        let notice = if at_most.is_zero() { Duration::ZERO } else { self.announcer.notice() };
        self.announcer.set_stage(if notice.is_zero() { Stage::Left } else { Stage::Leaving });
        let end = if may_be_taken_back { "" } else { "; a second signal ends at once" };
        tracing::info!(?notice, ?at_most, "not ready any more, draining{end}");
        let mut drain = Drain::begin(now, notice, at_most, self.forwarded());
        drain.may_be_taken_back = may_be_taken_back;
        self.drain = Some(drain);
        notice + at_most
    }

    /// Whether a drain is over.
    pub(super) fn look_at_drain(&mut self, now: Instant, forwarded: u64) -> bool {
        let Some(drain) = &mut self.drain else { return false };
        let over = drain.look(now, forwarded);
        if drain.withdraws(now) && self.announcer.stage() == Stage::Leaving {
            tracing::info!("routes are withdrawn");
            self.announcer.set_stage(Stage::Left);
        }
        if let Some(why) = over {
            tracing::info!(%why, "drained");
            self.manager.stopping(AFTER_DRAIN, "drained");
        }
        over.is_some()
    }

    pub(super) fn order_machine(&mut self, action: MachineAction) -> Result<MachineDrain, Refusal> {
        let (mut notes, now) = (Vec::new(), Instant::now());
        match (action, &self.drain) {
            (MachineAction::Drain, None) => _ = self.begin_drain(true, now),
            (MachineAction::Drain, Some(drain)) => {
                let (notice, rest) = drain.left(now);
                let left = (notice + rest).as_secs_f64();
                notes.push(format!("it drains already: {left:.0} s are left at most"));
            }
            (MachineAction::Undrain, None) => {
                return Err(Refusal::new(RefusalKind::Conflict, "the machine does not drain"));
            }
            (MachineAction::Undrain, Some(drain)) if !drain.may_be_taken_back => {
                let words = "a signal asked for the end: it can't be taken back";
                return Err(Refusal::new(RefusalKind::Conflict, words));
            }
            (MachineAction::Undrain, Some(_)) => {
                self.drain = None;
                self.liveness.undrain();
                self.announcer.set_stage(Stage::Serving);
                tracing::info!("the drain is taken back");
            }
        }
        let (notice, at_most) = self.drain.as_ref().map_or_else(Default::default, |drain| drain.left(now));
        if self.drain.is_some() && !self.announcer.is_at_work() {
            notes.push("no router is told: the file has no peers for this machine".to_owned());
        }
        Ok(MachineDrain {
            machine: self.controller.machine().to_owned(),
            stage: stage_shown(self.announcer.stage()),
            notice_seconds: notice.as_secs_f64(),
            drain_seconds: at_most.as_secs_f64(),
            notes,
        })
    }
}
