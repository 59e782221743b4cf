//! The daemon's own state: since when it runs, whether it is ready, healthy, drains, is replaced.
//!
//! In: looks at the forwarder and at VIPs, signals, orders. Out: readiness, the service manager's messages.
//! Not here: how a drain goes (`control_plane::Shutdown`), what readiness is made of (`liveness`).

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use admin::MachineAction;
use config::Config;
use control_plane::announce::{Announcer, Stage};
use control_plane::{Controller, Departure, Observed, Refused, Shutdown};

use super::predecessor::Predecessor;
use crate::liveness::Liveness;
use crate::notify::Notifier;

/// How far the hand-over to a new process in this one's place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandOver {
    /// There is none.
    None,
    /// The new process sets itself up; this one goes on as ever.
    Begun,
    /// What would change here would be lost.
    Frozen,
    /// The new process has everything.
    Over,
}

#[derive(Debug)]
pub(super) struct Lifecycle {
    epoch: Instant,
    start: Instant,
    pub(super) started: SystemTime,
    pub(super) liveness: Liveness,
    manager: Rc<Notifier>,
    pub(super) shutdown: Shutdown,
    pub(super) hand_over: HandOver,
    /// Which handed over to this process.
    pub(super) predecessor: Option<Arc<Predecessor>>,
    /// When it is ready whatever checks have answered; `None`: it has been.
    ready_by: Option<Instant>,
}

impl Lifecycle {
    pub(super) fn new() -> Self {
        Self::since(Instant::now())
    }

    /// One that counts on from where the process before it began.
    pub(super) fn since(epoch: Instant) -> Self {
        let manager = Rc::new(Notifier::from_environment());
        Self {
            epoch,
            start: Instant::now(),
            started: SystemTime::now(),
            liveness: Liveness::new(Rc::clone(&manager)),
            manager,
            shutdown: Shutdown::default(),
            hand_over: HandOver::None,
            predecessor: None,
            ready_by: None,
        }
    }

    /// Since the start of the process, or of the first of those that handed over to it: the controller's and the announcer's time.
    pub(super) fn elapsed(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Since the start of the process.
    pub(super) fn uptime(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn manager(&self) -> &Notifier {
        &self.manager
    }

    /// First checks have begun.
    pub(super) fn await_checks(&mut self, config: &Config) {
        self.ready_by = Some(Instant::now() + longest_first_check(config));
    }

    /// Ready once every check has had its first result and the tables have followed, or the time for that is over. Whether it
    /// has just become so.
    pub(super) fn becomes_ready(&mut self, controller: &Controller) -> bool {
        let Some(by) = self.ready_by else { return false };
        let unknown = controller.unknown();
        let settled = unknown == 0 && !controller.wants_job() && !controller.is_at_work();
        if !settled && Instant::now() < by {
            return false;
        }
        if unknown > 0 {
            tracing::warn!(unknown, "backends whose checks have not answered once stay out");
        }
        self.ready_by = None;
        true
    }

    /// SIGTERM or SIGINT. Whether the process ends now.
    pub(super) fn signal(&mut self, seen: Observed, announcer: &mut Announcer) -> bool {
        let mut parts = Parts { liveness: &mut self.liveness, manager: &self.manager, announcer };
        self.shutdown.signal(seen, &mut parts)
    }

    /// An operator's order to the machine. Notes for the answer.
    pub(super) fn order(
        &mut self,
        action: MachineAction,
        seen: Observed,
        announcer: &mut Announcer,
    ) -> Result<Vec<String>, Refused> {
        let mut parts = Parts { liveness: &mut self.liveness, manager: &self.manager, announcer };
        self.shutdown.order(action, seen, &mut parts)
    }

    /// Whether a drain is over.
    pub(super) fn advance_drain(&mut self, seen: Observed, announcer: &mut Announcer) -> bool {
        let mut parts = Parts { liveness: &mut self.liveness, manager: &self.manager, announcer };
        self.shutdown.advance(seen, &mut parts)
    }
}

/// What a drain does something to.
struct Parts<'a> {
    liveness: &'a mut Liveness,
    manager: &'a Notifier,
    announcer: &'a mut Announcer,
}

impl Departure for Parts<'_> {
    fn set_draining(&mut self, draining: bool) {
        self.liveness.set_draining(draining);
    }

    fn set_stage(&mut self, stage: Stage) {
        self.announcer.set_stage(stage);
    }

    fn stage(&self) -> Stage {
        self.announcer.stage()
    }

    fn notice(&self) -> Duration {
        self.announcer.notice()
    }

    fn stopping(&mut self, at_most: Duration, status: &str) {
        self.manager.stopping(at_most, status);
    }
}

/// How long the first results may take: the slowest check's attempts.
fn longest_first_check(config: &Config) -> Duration {
    let checks = config.members().flat_map(|member| member.checks.iter());
    let longest = checks.map(|check| check.timeout).max();
    longest.map_or(Duration::ZERO, |timeout| (timeout + FIRST_SPREAD).min(FIRST_CHECKS))
}

/// A service manager does not wait for ever.
const FIRST_CHECKS: Duration = Duration::from_secs(30);
/// Over how long first checks are spread, and some more.
const FIRST_SPREAD: Duration = Duration::from_secs(2);
