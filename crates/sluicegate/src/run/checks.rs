//! Runs the health checks. This module owns the health thread, the tunnel for checks with `via =
//! "vip"`, and cache flushes on backends. The crate `health` schedules the attempts, and
//! `Controller` applies the resulting health states.

use std::sync::Arc;
use std::time::Instant;

use config::Config;
use control_plane::{Controller, Unable, log_flushes};
use health::{Event, Events, FailingHops, Flush, Flushed, Health, StateChange, TargetReport};

use super::health_tunnel::{Found, HealthTunnel, TunnelFault};

#[derive(Debug)]
pub(super) struct Checks {
    engine: Arc<Health>,
    events: Events,
    tunnel: HealthTunnel,
    /// The cache flushes that are in progress.
    flushes: Vec<Flush>,
    /// The servers that were flushed while the state of this process was frozen for an upgrade.
    held: Vec<Flushed>,
    tunnel_fault: TunnelFault,
    /// `true` while a repair of the tunnel is running.
    is_repairing: bool,
    /// The time at which a local failure began. Health states are frozen until the local failure
    /// ends.
    local_failure: Option<Instant>,
    unable: Unable,
}

impl Checks {
    /// Starts the health thread. First opens the tunnel if the configuration needs a tunnel.
    pub(super) async fn start(tunnel: HealthTunnel, config: &Config) -> anyhow::Result<Self> {
        HealthTunnel::clear().await;
        tunnel.open(config).await?;
        if !tunnel.hops().is_empty() {
            // Checks that do not need the tunnel still work, and the next repair of the tunnel
            // reports the error.
            let _ = tunnel.create(config).await;
        }
        Self::before_tunnel(tunnel)
    }

    /// Starts the health thread of a new process while the old process still owns the tunnel.
    pub(super) fn before_tunnel(tunnel: HealthTunnel) -> anyhow::Result<Self> {
        let (engine, events) = Health::start(tunnel.dialers(), tunnel.hops())?;
        Ok(Self {
            engine: Arc::new(engine),
            events,
            tunnel,
            flushes: Vec::new(),
            held: Vec::new(),
            tunnel_fault: TunnelFault::default(),
            is_repairing: false,
            local_failure: None,
            unable: Unable::default(),
        })
    }

    pub(super) fn tunnel(&self) -> &HealthTunnel {
        &self.tunnel
    }

    /// Returns the next event. This function is cancel safe.
    pub(super) async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// Starts checking the targets of the current configuration.
    pub(super) fn watch(&self, controller: &Controller) {
        self.engine.watch(self.tunnel.reachable(controller.watched()));
    }

    /// Sets the next hops through which checks failed in the previous process.
    pub(super) fn know_failing_hops(&self, known: Vec<FailingHops>) {
        self.engine.know_failing_hops(known);
    }

    /// Starts the cache flushes that the controller requests.
    pub(super) fn flush(&mut self, controller: &Controller) {
        let wanted = controller.flushes();
        if wanted == self.flushes {
            return;
        }
        let begun: Vec<Flush> = wanted.iter().filter(|one| !self.flushes.contains(one)).copied().collect();
        log_flushes(controller, &begun);
        self.engine.flush(wanted.clone());
        self.flushes = wanted;
    }

    /// Stores the results of successful flushes until [`Self::held`] is called.
    pub(super) fn hold(&mut self, outcomes: &[Flushed]) {
        self.held.extend(outcomes.iter().filter(|flushed| flushed.result.is_ok()).cloned());
    }

    /// Returns and removes the stored results of flushes.
    pub(super) fn held(&mut self) -> Vec<Flushed> {
        std::mem::take(&mut self.held)
    }

    /// Handles an event, and returns the health states that have changed.
    pub(super) fn take(&mut self, event: Event) -> Option<Vec<StateChange>> {
        match event {
            Event::Changed(changed) => return Some(changed),
            Event::LocalFailure(true) => {
                self.local_failure = Some(Instant::now());
                // log: No health check passes any more. The cause is probably on this machine, so
                // health states are frozen until a check passes. Check the links, routes and
                // firewall of this machine.
                tracing::error!(change = "backend", "health states frozen, no check passes");
            }
            Event::LocalFailure(false) => {
                self.local_failure = None;
                // log: Health checks pass again, and health states are no longer frozen.
                tracing::info!(change = "backend", "health checks pass again");
            }
            Event::Unable(news) => self.unable.take(news, Instant::now()),
            // The caller handles these events before it calls this function.
            Event::Flushed(_) | Event::Advised(_) | Event::Hops(_) => {}
        }
        None
    }

    /// Returns a closure that collects the reports of all targets. The closure may take some time,
    /// so run it on another thread.
    pub(super) fn report(&self) -> impl FnOnce() -> Vec<TargetReport> + Send + 'static {
        let engine = Arc::clone(&self.engine);
        move || engine.report()
    }

    /// Starts to check and repair the tunnel, because another program may have removed its rules,
    /// routes or device. Returns `None` if a repair is already running.
    pub(super) fn begin_repair(
        &mut self,
        config: Arc<Config>,
    ) -> Option<impl Future<Output = Found> + Send + 'static> {
        if self.is_repairing {
            return None;
        }
        self.is_repairing = true;
        let (tunnel, was_well) = (self.tunnel.clone(), self.tunnel_fault.warning().is_none());
        Some(async move { tunnel.repair(was_well, &config).await })
    }

    /// Applies the result of a tunnel repair.
    pub(super) fn repaired(&mut self, found: Found, controller: &Controller) {
        self.is_repairing = false;
        let is_new = self.tunnel_fault.take(&found);
        match found {
            Found::Well => {}
            Found::New => {
                // Running checks use the old tunnel, so all tunneled checks are restarted.
                let direct = controller.watched().into_iter().filter(|one| one.key.through.is_none());
                self.engine.watch(direct.collect());
                self.watch(controller);
                // log: Another program removed the device, a rule or a route of the health check
                // tunnel. The tunnel was created again. Find out which program removed it.
                tracing::warn!("health check tunnel recreated");
            }
            Found::Broken { error, .. } => {
                if is_new {
                    // log: The health check tunnel could not be created. Health states of checks
                    // with `via = "vip"` no longer change, and backends with several next hops are
                    // checked through one of them. Run `sluicegate doctor` for the cause.
                    tracing::error!(%error, "health check tunnel not available");
                    self.watch(controller);
                }
            }
        }
    }

    /// Describes the local failure, or returns `None` if there is none.
    pub(super) fn local_failure(&self) -> Option<String> {
        let seconds = self.local_failure?.elapsed().as_secs_f64();
        Some(format!(
            "no health check has passed for {seconds:.0} s, so a fault of this machine is assumed and the last health states are kept"
        ))
    }

    /// Returns the number of targets that cannot be checked because of an error on this machine.
    pub(super) fn unable(&self) -> usize {
        self.unable.count()
    }

    /// Returns warnings for the status page.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        self.tunnel_fault.warning().into_iter().cloned().chain(self.unable.warning(Instant::now()))
    }

    /// Stops the health thread and waits until it has ended. Returns the tunnel, which the caller
    /// closes.
    pub(super) fn stop(self) -> HealthTunnel {
        self.tunnel
    }
}
