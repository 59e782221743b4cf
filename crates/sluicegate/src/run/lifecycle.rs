//! Tracks the state of the process from startup through readiness to a drain or an upgrade, and
//! notifies the service manager of each change. `control_plane::Shutdown` implements the drain, and
//! the module `liveness` defines readiness.

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

/// The progress of an upgrade, as seen by the old process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandOver {
    /// No upgrade is running.
    None,
    /// The new process is starting. This process works as usual.
    Begun,
    /// The state is being handed over. Changes in this process would be lost, so commands are not
    /// handled.
    Frozen,
    /// The new process has taken over everything.
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
    /// The old process from which this process has taken over.
    pub(super) predecessor: Option<Arc<Predecessor>>,
    /// The deadline for the first health check results. The process becomes ready at this time even
    /// if results are missing. `None` after the process has become ready.
    ready_by: Option<Instant>,
}

impl Lifecycle {
    pub(super) fn new() -> Self {
        Self::since(Instant::now())
    }

    /// Creates the state. The argument `epoch` is the start time of the first process in a chain of
    /// upgrades.
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

    /// Returns the time since the start of the first process in a chain of upgrades. The controller
    /// and the announcer use this clock.
    pub(super) fn elapsed(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Returns the time since the start of this process.
    pub(super) fn uptime(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn manager(&self) -> &Notifier {
        &self.manager
    }

    /// Records that the first health checks have started, and sets the deadline for their results.
    pub(super) fn await_checks(&mut self, config: &Config) {
        self.ready_by = Some(Instant::now() + longest_first_check(config));
    }

    /// Returns `true` exactly once, when the process becomes ready. The process becomes ready when
    /// all checks have a first result and the tables include these results, or when the deadline
    /// has passed.
    pub(super) fn becomes_ready(&mut self, controller: &Controller) -> bool {
        let Some(by) = self.ready_by else { return false };
        let unknown = controller.unknown();
        let settled = unknown == 0 && !controller.wants_job() && !controller.is_at_work();
        if !settled && Instant::now() < by {
            return false;
        }
        if unknown > 0 {
            // log: Some backends had no health check result when the startup wait ended. These
            // backends stay out of service until their first result. `sluicegate health list` shows
            // these backends.
            tracing::warn!(unknown, "first health checks timed out");
        }
        self.ready_by = None;
        true
    }

    /// Handles SIGTERM or SIGINT. Returns `true` if the process must end now.
    pub(super) fn signal(&mut self, seen: Observed, announcer: &mut Announcer) -> bool {
        let mut parts = Parts { liveness: &mut self.liveness, manager: &self.manager, announcer };
        self.shutdown.signal(seen, &mut parts)
    }

    /// Starts or cancels a drain of the machine. Returns notes for the response.
    pub(super) fn command(
        &mut self,
        action: MachineAction,
        seen: Observed,
        announcer: &mut Announcer,
    ) -> Result<Vec<String>, Refused> {
        let mut parts = Parts { liveness: &mut self.liveness, manager: &self.manager, announcer };
        self.shutdown.command(action, seen, &mut parts)
    }

    /// Advances a running drain. Returns `true` if the drain is complete.
    pub(super) fn advance_drain(&mut self, seen: Observed, announcer: &mut Announcer) -> bool {
        let mut parts = Parts { liveness: &mut self.liveness, manager: &self.manager, announcer };
        self.shutdown.advance(seen, &mut parts)
    }
}

/// The components that take part in a drain.
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

/// Returns the time limit for the first check results. The limit is the longest timeout of any
/// check, plus the time over which first checks are spread.
fn longest_first_check(config: &Config) -> Duration {
    let checks = config.members().flat_map(|member| member.checks.iter());
    let longest = checks.map(|check| check.timeout).max();
    longest.map_or(Duration::ZERO, |timeout| (timeout + FIRST_SPREAD).min(FIRST_CHECKS))
}

/// The maximum wait for first results. This wait must be shorter than the start timeout of the
/// service manager.
const FIRST_CHECKS: Duration = Duration::from_secs(30);
/// The time over which first checks are spread, with a safety margin.
const FIRST_SPREAD: Duration = Duration::from_secs(2);
