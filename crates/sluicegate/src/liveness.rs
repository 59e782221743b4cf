//! Tracks the health and readiness of the process for `/healthz`, `/readyz`, BGP announcements, the
//! service manager and the log.
//!
//! The control loop checks the data plane at intervals of [`EVERY`]. Each change is logged once and
//! published as a [`Readiness`]. The process sends heartbeats to the service manager only while the
//! forwarder is healthy. A heartbeat therefore shows that the control loop and the packet threads
//! are making progress.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use admin::view::InterfaceRow;
use admin::{Machine, Readiness, VipState};
use config::words::{LogLine, log_lines};
use control_plane::announce::Fault;
use datapath::{Health, Pause, Problem};
use tokio::sync::watch;

use crate::notify::Notifier;

/// Updates the [`Readiness`] and informs the service manager.
#[derive(Debug)]
pub(crate) struct Liveness {
    health: Health,
    /// The time at which the current stall of a packet thread is considered over, unless another
    /// stall follows. The value is `None` if no thread is stalled.
    steady_at: Option<Instant>,
    machine: Machine,
    vips: BTreeMap<String, VipState>,
    readiness: watch::Sender<Readiness>,
    manager: Rc<Notifier>,
    heart: Option<Heart>,
    /// The time of the last data plane check.
    taken: Option<Instant>,
    /// The total time for which the forwarder was unhealthy.
    unhealthy: Duration,
    /// The reasons why the machine was not ready, when [`Liveness::news`] was last called.
    reported: Vec<String>,
}

impl Liveness {
    /// Creates the state of a process whose forwarder is healthy.
    pub(crate) fn new(manager: Rc<Notifier>) -> Self {
        let heart = manager.watchdog_time().map(Heart::new);
        Self {
            health: Health::default(),
            steady_at: None,
            machine: Machine::default(),
            vips: BTreeMap::new(),
            readiness: watch::Sender::new(Readiness::default()),
            manager,
            heart,
            taken: None,
            unhealthy: Duration::ZERO,
            reported: Readiness::default().not_ready(),
        }
    }

    /// Returns a receiver of state changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Readiness> {
        self.readiness.subscribe()
    }

    /// Updates the health of the data plane. A stall of a packet thread ends when the thread has
    /// made progress for [`STEADY`]. Otherwise a thread that repeatedly stalls for a moment would
    /// change the routes several times a second.
    pub(crate) fn take(&mut self, health: Health, now: Instant) {
        if health.is_healthy() {
            self.beat(now);
        }
        let health = self.steady(health, now);
        let before = self.taken.replace(now).filter(|_| !self.health.is_healthy());
        self.unhealthy += before.map_or(Duration::ZERO, |before| now.saturating_duration_since(before));
        if self.health == health {
            return;
        }
        match &health {
            // log: The fault of the forwarder that was logged before has ended.
            Health::Healthy => tracing::info!(change = "machine", "forwarder healthy again"),
            // log: A packet thread is stuck, or a socket or XDP program is lost; see `why`. While a
            // thread is stuck for less than `bgp.max_stall`, routes have the graceful-shutdown
            // community. Otherwise routes are withdrawn. The service manager restarts the process
            // if the fault persists.
            unhealthy => tracing::error!(change = "machine", why = %unhealthy, "forwarder unhealthy"),
        }
        self.machine.fault = (!health.is_healthy()).then(|| health.to_string());
        self.health = health;
        self.publish();
    }

    fn steady(&mut self, health: Health, now: Instant) -> Health {
        match &health {
            Health::Healthy if self.steady_at.is_some_and(|at| now < at) => return self.health.clone(),
            Health::Unhealthy(problems) if !problems.iter().any(Problem::is_certain) => {
                self.steady_at = Some(now + STEADY);
            }
            _ => self.steady_at = None,
        }
        health
    }

    /// Logs a period in which the process did not run. The state of the forwarder stays unchanged.
    pub(crate) fn paused(&self, pause: Option<Pause>) {
        let Some(pause) = pause else { return };
        let seconds = format!("{:.1}", pause.lasted.as_secs_f64());
        // log: The whole process did not run for the time in `seconds`. This machine forwarded no
        // packets during that time, and routers may have lost BFD sessions. If `why` reports too
        // little processor time, look for other programs on the processors of the process. If `why`
        // reports that the process or the machine was stopped, check whether the virtual machine
        // was suspended, or whether the process received a SIGSTOP signal.
        tracing::warn!(change = "machine", %seconds, why = %pause, "process did not run");
    }

    /// Returns the total time for which the forwarder was unhealthy.
    pub(crate) fn unhealthy(&self) -> Duration {
        self.unhealthy
    }

    /// Sends a heartbeat if one is due.
    pub(crate) fn beat(&mut self, now: Instant) {
        if self.heart.as_mut().is_some_and(|heart| heart.beats(now)) {
            self.manager.heartbeat();
        }
    }

    pub(crate) fn readiness(&self) -> watch::Ref<'_, Readiness> {
        self.readiness.borrow()
    }

    /// Returns `true` if all health checks have a first result, or if the wait has timed out.
    pub(crate) fn has_results(&self) -> bool {
        self.machine.set_up
    }

    /// Returns the fault of the forwarder for the announcement decisions. `stalled` is the time for
    /// which stuck threads have been the only problem. A thread that makes progress again has been
    /// stuck for no time.
    pub(crate) fn fault(&self, stalled: Option<Duration>) -> Option<Fault> {
        let stalled = stalled.or(self.steady_at.map(|_| Duration::ZERO));
        self.machine.fault.clone().map(|why| Fault { why, stalled })
    }

    /// Updates the states of the interfaces and VIPs, and logs each VIP that gets or loses its
    /// backends.
    pub(crate) fn look(&mut self, interfaces: &[InterfaceRow], vips: BTreeMap<String, VipState>) {
        let why = |vip: &str, of: &BTreeMap<String, VipState>| of.get(vip)?.unserved.clone();
        let changed_to = |served: bool| {
            let changed = vips.iter().filter(|(vip, state)| {
                state.unserved.is_none() == served && why(vip, &self.vips).is_none() != served
            });
            log_lines(changed.map(|(vip, _)| vip).collect(), |vip| *vip)
        };
        for LogLine { names: vip, count: more, first } in changed_to(false) {
            let why = more.is_none().then(|| why(first, &vips));
            // log: Clients of this VIP get no response from some services, unless a fallback pool
            // or another cluster serves them. Check the backends that are down. If more than eight
            // VIPs changed together, they share this line, and `vips` is their number.
            tracing::warn!(change = "vip", vip, vips = more, why = why.flatten(), "VIP not served");
        }
        for LogLine { names: vip, count: more, .. } in changed_to(true) {
            // log: All services of the VIP have a backend again.
            tracing::info!(change = "vip", vip, vips = more, "VIP served again");
        }
        self.machine.take_links(interfaces);
        self.vips = vips;
        self.publish();
    }

    /// Records that the first health checks are complete.
    pub(crate) fn is_set_up(&mut self) {
        self.machine.set_up = true;
        self.publish();
    }

    /// Sets or clears the draining state.
    pub(crate) fn set_draining(&mut self, draining: bool) {
        self.machine.draining = draining;
        self.publish();
    }

    /// Logs a change of the machine's readiness. Returns `true` if the readiness has changed since
    /// the last call.
    pub(crate) fn news(&mut self) -> bool {
        let now = self.readiness.borrow().not_ready();
        if now == self.reported || !self.has_results() {
            return false;
        }
        if now.is_empty() {
            // log: The machine is ready: it can forward packets, and routers can find it.
            tracing::info!(change = "machine", "machine ready");
        } else {
            // log: The machine is not ready for the reasons in `why`, and `/readyz` returns status
            // 503. `sluicegate status` shows more.
            tracing::warn!(change = "machine", why = now.join("; "), "machine not ready");
        }
        self.reported = now;
        true
    }

    fn publish(&mut self) {
        let next = Readiness::of(&self.machine, self.vips.clone());
        self.readiness.send_if_modified(|readiness| {
            let differs = *readiness != next;
            *readiness = next;
            differs
        });
    }
}

/// The schedule of heartbeats.
#[derive(Debug)]
struct Heart {
    every: Duration,
    last: Option<Instant>,
}

impl Heart {
    /// Creates a schedule with two heartbeats per watchdog timeout. The control loop checks the
    /// schedule only once per [`EVERY`], so the interval is shortened by this time.
    fn new(watchdog_time: Duration) -> Self {
        Self { every: (watchdog_time / 2).saturating_sub(EVERY), last: None }
    }

    fn beats(&mut self, now: Instant) -> bool {
        let due = self.last.is_none_or(|last| now.duration_since(last) >= self.every);
        if due {
            self.last = Some(now);
        }
        due
    }
}

/// The interval between two checks of the data plane.
pub(crate) const EVERY: Duration = Duration::from_millis(250);
/// The time for which a thread must make progress after a stall.
const STEADY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use datapath::{Problem, StallReason, ThreadName};

    use super::*;
    use crate::logging::fields::tests::logged;

    fn ill() -> Health {
        Health::Unhealthy(vec![Problem::ThreadStuck(ThreadName::Packet(0), StallReason::Stopped)])
    }

    #[test]
    fn ready_is_healthy_checked_and_not_draining() {
        // A line that is first logged without a subscriber could stay off in other tests.
        logged(become_ready);
    }

    fn become_ready() {
        let mut liveness = Liveness::new(Rc::default());
        let readiness = liveness.subscribe();
        let why = || readiness.borrow().not_ready();
        assert_eq!(why(), ["starting"]);
        liveness.is_set_up();
        assert_eq!((why(), liveness.news(), liveness.news()), (vec![], true, false));
        let now = Instant::now();
        liveness.take(ill(), now);
        assert_eq!((why().len(), readiness.borrow().forwarder_fault().is_some()), (1, true));
        assert!(liveness.fault(None).is_some() && liveness.news());
        liveness.take(Health::Healthy, now + STEADY);
        assert!(readiness.borrow().is_ready() && liveness.fault(None).is_none() && liveness.news());
        liveness.set_draining(true);
        assert_eq!((why(), readiness.borrow().forwarder_fault()), (vec!["draining".to_owned()], None));
        liveness.set_draining(false);
        let link = |link| InterfaceRow { name: "eth0".to_owned(), link, ..InterfaceRow::default() };
        liveness.look(&[link(false)], BTreeMap::new());
        assert_eq!(why(), ["eth0 down or without carrier"]);
        let unserved =
            VipState { unserved: Some("no backend for www tcp 80".to_owned()), announcement: None };
        liveness.look(&[link(true)], [("www".to_owned(), unserved)].into());
        assert!(readiness.borrow().is_ready(), "a VIP without backends does not concern the machine");
        assert_eq!(readiness.borrow().vips_not_ready().collect::<Vec<_>>(), ["www"]);
    }

    // Promise: log-volume
    #[test]
    fn readiness_of_2000_vips_is_logged_in_one_line() {
        let mut liveness = Liveness::new(Rc::default());
        let vips = |count, why: Option<&str>| {
            let state = VipState { unserved: why.map(str::to_owned), announcement: None };
            (0..count).map(|n| (format!("v{n:04}"), state.clone())).collect::<BTreeMap<_, _>>()
        };
        let why = Some("no backend for v tcp 80");
        let lines = logged(|| {
            liveness.look(&[], vips(2_000, why));
            liveness.look(&[], vips(2_000, None));
            liveness.look(&[], vips(1, why));
        });
        let all = "change=vip vip=\"v0000, v0001, v0002 and 1997 more\" vips=2000";
        let wanted = [
            format!(" WARN VIP not served {all}"),
            format!(" INFO VIP served again {all}"),
            " WARN VIP not served change=vip vip=v0000 why=\"no backend for v tcp 80\"".to_owned(),
        ];
        assert_eq!(lines, wanted);
    }

    #[test]
    fn subscribers_receive_changes_only() {
        let mut liveness = Liveness::new(Rc::default());
        let mut readiness = liveness.subscribe();
        let changes = [(Health::Healthy, false), (ill(), true), (ill(), false), (Health::Healthy, true)];
        for (after, (health, news)) in (0..).zip(changes) {
            liveness.take(health, Instant::now() + STEADY * after);
            assert_eq!(readiness.has_changed().unwrap(), news);
            readiness.mark_unchanged();
        }
    }

    #[test]
    fn repeated_stalls_are_one_fault_that_withdraws_nothing() {
        // A line that is first logged without a subscriber could stay off in other tests.
        let lines = logged(|| {
            let (mut liveness, start) = (Liveness::new(Rc::default()), Instant::now());
            // The thread makes an iteration every 0.6 s, so it is stuck for a sixth of the time.
            for tenth in 0_u32..=60 {
                let health = if tenth % 6 == 5 { ill() } else { Health::Healthy };
                let stalled = (tenth % 6 == 5).then_some(Duration::from_millis(500));
                liveness.take(health, start + Duration::from_millis(100) * tenth);
                let fault = liveness.fault(stalled).map(|fault| fault.stalled);
                assert_eq!(fault, (tenth >= 5).then(|| Some(stalled.unwrap_or_default())), "{tenth}");
            }
            let last = start + Duration::from_millis(5_900);
            liveness.take(Health::Healthy, last + STEADY - Duration::from_millis(1));
            assert!(liveness.fault(None).is_some());
            liveness.take(Health::Healthy, last + STEADY);
            assert_eq!(liveness.fault(None), None);
        });
        assert_eq!(lines.len(), 2, "{lines:?}");
    }

    #[test]
    fn certain_fault_ends_a_stall_and_ends_at_once() {
        let (mut liveness, now) = (Liveness::new(Rc::default()), Instant::now());
        liveness.take(ill(), now);
        liveness.take(Health::Unhealthy(vec![Problem::ProgramMissing("eth0".into())]), now);
        assert_eq!(liveness.fault(None).map(|fault| fault.stalled), Some(None));
        liveness.take(Health::Healthy, now);
        assert_eq!(liveness.fault(None), None);
    }

    #[test]
    fn unhealthy_time_is_the_sum_of_all_faults() {
        let (mut liveness, start) = (Liveness::new(Rc::default()), Instant::now());
        for (second, health) in [(0, ill()), (4, ill()), (6, Health::Healthy), (9, ill()), (10, ill())] {
            liveness.take(health, start + Duration::from_secs(second));
        }
        assert_eq!(liveness.unhealthy(), Duration::from_secs(7));
    }

    #[test]
    fn heartbeat_interval_is_at_most_half_the_watchdog_time() {
        for millis in [1, 400, 500, 2_000, 3_100, 10_000, 30_000] {
            let (watchdog, start) = (Duration::from_millis(millis), Instant::now());
            let mut heart = Heart::new(watchdog);
            let beats: Vec<Duration> =
                (0..400).map(|n| EVERY * n).filter(|since| heart.beats(start + *since)).collect();
            let apart = beats.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
            assert!(beats[0].is_zero() && apart <= (watchdog / 2).max(EVERY), "{millis} ms: {apart:?}");
        }
    }
}
