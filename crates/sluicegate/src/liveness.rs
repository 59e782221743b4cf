//! Tracks the health and readiness of the process for `/healthz`, `/readyz`, BGP announcements, the
//! service manager and the log.
//!
//! The control loop checks the data plane at intervals of [`EVERY`]. Each change is logged once and
//! published as a [`State`]. The process sends heartbeats to the service manager only while the
//! forwarder is healthy. A heartbeat therefore shows that the control loop and the packet threads
//! are making progress.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use admin::metrics::Readiness;
use admin::view::DownView;
use config::words::{LogLine, count_of, log_lines};
use control_plane::announce::Fault;
use datapath::{Health, Pause};
use tokio::sync::watch;

use crate::notify::Notifier;

/// The health and readiness of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// The health of the data plane.
    pub(crate) health: Health,
    /// `true` after a drain has started.
    pub(crate) draining: bool,
    /// `true` if all health checks have a first result, or if the wait for first results has timed
    /// out.
    pub(crate) set_up: bool,
    /// The VIPs of the machine. The map value is `true` if every service of the VIP has a backend.
    pub(crate) vips: BTreeMap<String, bool>,
}

impl State {
    /// Returns `true` if this machine should receive traffic.
    pub(crate) fn is_ready(&self) -> bool {
        self.health.is_healthy() && !self.draining && self.set_up && self.vips_without().next().is_none()
    }

    /// Returns the fault of the forwarder for the announcement decisions. `stalled` is the time for
    /// which stuck threads have been the only problem.
    pub(crate) fn fault(&self, stalled: Option<Duration>) -> Option<Fault> {
        (!self.health.is_healthy()).then(|| Fault { why: self.health.to_string(), stalled })
    }

    /// Returns the VIPs that have a service without a backend.
    pub(crate) fn vips_without(&self) -> impl Iterator<Item = &String> {
        self.vips.iter().filter(|(_, served)| !**served).map(|(vip, _)| vip)
    }

    /// Returns the reasons why the machine is not ready. The list contains a limited number of
    /// VIPs.
    pub(crate) fn why_not(&self) -> Vec<String> {
        let vips = self.vips_without().take(DownView::MOST).map(|vip| format!("no backend serves VIP {vip}"));
        let more = self.vips_without().count().saturating_sub(DownView::MOST);
        let more = (more > 0).then(|| format!("no backend serves {}", count_of(more, "more VIP")));
        self.why_nothing().into_iter().chain(vips).chain(more).collect()
    }

    /// Returns the reasons that concern the whole machine and not a single VIP.
    fn why_nothing(&self) -> Vec<String> {
        let mut why = Vec::new();
        if !self.health.is_healthy() {
            why.push(self.health.to_string());
        }
        if self.draining {
            why.push("draining".to_owned());
        }
        if !self.set_up {
            why.push("waiting for the first results of health checks".to_owned());
        }
        why
    }
}

/// Updates the [`State`] and informs the service manager.
#[derive(Debug)]
pub(crate) struct Liveness {
    state: State,
    readiness: watch::Sender<Readiness>,
    manager: Rc<Notifier>,
    heart: Option<Heart>,
    /// The time of the last check of the data plane.
    taken: Option<Instant>,
    /// The total time for which the forwarder was unhealthy.
    unhealthy: Duration,
}

impl Liveness {
    /// Creates a healthy state.
    pub(crate) fn new(manager: Rc<Notifier>) -> Self {
        let heart = manager.watchdog_time().map(Heart::new);
        let (state, readiness) = (State::default(), watch::Sender::new(Readiness::default()));
        Self { state, readiness, manager, heart, taken: None, unhealthy: Duration::ZERO }
    }

    /// Returns a receiver of state changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Readiness> {
        self.readiness.subscribe()
    }

    /// Updates the health of the data plane.
    pub(crate) fn take(&mut self, health: Health, now: Instant) {
        if health.is_healthy() {
            self.beat(now);
        }
        let before = self.taken.replace(now).filter(|_| !self.state.health.is_healthy());
        self.unhealthy += before.map_or(Duration::ZERO, |before| now.saturating_duration_since(before));
        if self.state.health == health {
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
        self.manager.status(&health.to_string());
        self.change(|state| state.health = health);
    }

    /// Logs a period in which the process did not run. The state of the forwarder stays unchanged.
    pub(crate) fn paused(&self, pause: Option<Pause>) {
        let Some(pause) = pause else { return };
        let seconds = format!("{:.1}", pause.lasted.as_secs_f64());
        // log: The whole process did not run for the time in `seconds`. This machine forwarded no
        // packets during that time, and routers may have lost BFD sessions. If `why` reports too
        // little processor time, look for other programs on the processors of the process.
        // Otherwise, look for a suspended VM or a signal.
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

    /// Returns the current state.
    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Updates the readiness of the VIPs and logs each change. The map value of a VIP is `true` if
    /// every service of the VIP has a backend. The closure `without` returns the names of services
    /// without a backend.
    pub(crate) fn vips(&mut self, vips: BTreeMap<String, bool>, without: impl Fn(&str) -> String) {
        if self.state.vips == vips {
            return;
        }
        let was_served = |vip: &String| self.state.vips.get(vip) != Some(&false);
        let changed_to = |to: bool| {
            let changed = vips.iter().filter(|(vip, served)| **served == to && was_served(vip) != to);
            log_lines(changed.map(|(vip, _)| vip).collect(), |vip| *vip)
        };
        for LogLine { names: vip, count: vips, first } in changed_to(false) {
            let service = vips.is_none().then(|| without(first));
            // log: Clients of this service get no response, unless a fallback pool or another
            // cluster serves it. Check the backends that are down. If more than eight VIPs changed
            // together, they share this line, and `vips` is their number.
            tracing::warn!(change = "vip", vip, vips, service, "VIP not ready");
        }
        for LogLine { names: vip, count: vips, .. } in changed_to(true) {
            // log: All services of the VIP have a backend again.
            tracing::info!(change = "vip", vip, vips, "VIP ready again");
        }
        self.change(|state| state.vips = vips);
    }

    /// Records that the first health checks are complete.
    pub(crate) fn is_set_up(&mut self) {
        self.change(|state| state.set_up = true);
    }

    /// Sets or clears the draining state.
    pub(crate) fn set_draining(&mut self, draining: bool) {
        self.change(|state| state.draining = draining);
    }

    fn change(&mut self, change: impl FnOnce(&mut State)) {
        change(&mut self.state);
        let fault = (!self.state.health.is_healthy()).then(|| self.state.health.to_string());
        let (not_ready, vips) = (self.state.why_nothing(), self.state.vips.clone());
        self.readiness.send_replace(Readiness { forwarder_fault: fault, not_ready, vips });
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
        assert!(!liveness.state().is_ready() && !readiness.borrow().not_ready.is_empty());
        liveness.is_set_up();
        assert!(liveness.state().is_ready() && readiness.borrow().not_ready.is_empty());
        liveness.take(ill(), Instant::now());
        assert!(!liveness.state().is_ready() && liveness.state().health == ill());
        assert!(readiness.borrow().forwarder_fault.is_some() && readiness.borrow().not_ready.len() == 1);
        liveness.take(Health::Healthy, Instant::now());
        assert!(liveness.state().is_ready());
        liveness.set_draining(true);
        assert!(!liveness.state().is_ready() && readiness.borrow().forwarder_fault.is_none());
        assert_eq!(readiness.borrow().not_ready, ["draining"]);
        liveness.vips([("www".to_owned(), false), ("mail".to_owned(), true)].into(), str::to_owned);
        assert_eq!(liveness.state().why_not(), ["draining", "no backend serves VIP www"]);
        liveness.vips((0..1_000).map(|n| (format!("v{n:03}"), n == 5)).collect(), str::to_owned);
        let why = liveness.state().why_not();
        let ends = (why.len(), &*why[10], &*why[11]);
        assert_eq!(ends, (12, "no backend serves VIP v010", "no backend serves 989 more VIPs"));
        liveness.vips([("www".to_owned(), false)].into(), str::to_owned);
        assert_eq!(
            (&*readiness.borrow().not_ready, readiness.borrow().vips["www"]),
            (&["draining".to_owned()][..], false)
        );
    }

    // Promise: log-volume
    #[test]
    fn readiness_of_2000_vips_is_logged_in_one_line() {
        let (mut liveness, vips) = (Liveness::new(Rc::default()), |ready| {
            (0..2_000).map(move |n| (format!("v{n:04}"), ready)).collect()
        });
        let lines = logged(|| {
            liveness.vips(vips(false), |_| "v tcp 80".to_owned());
            liveness.vips(vips(true), str::to_owned);
            liveness.vips([("v0000".to_owned(), false)].into(), |_| "v0000 tcp 80".to_owned());
        });
        let all = "change=vip vip=\"v0000, v0001, v0002 and 1997 more\" vips=2000";
        let one = "change=vip vip=v0000 service=\"v0000 tcp 80\"";
        let wanted = [
            format!(" WARN VIP not ready {all}"),
            format!(" INFO VIP ready again {all}"),
            format!(" WARN VIP not ready {one}"),
        ];
        assert_eq!(lines, wanted);
    }

    #[test]
    fn subscribers_receive_changes_only() {
        let mut liveness = Liveness::new(Rc::default());
        let mut readiness = liveness.subscribe();
        for (health, news) in
            [(Health::Healthy, false), (ill(), true), (ill(), false), (Health::Healthy, true)]
        {
            liveness.take(health, Instant::now());
            assert_eq!(readiness.has_changed().unwrap(), news);
            readiness.mark_unchanged();
        }
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
