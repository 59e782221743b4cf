//! Health checks in the daemon: the thread that makes them, their tunnel, and what keeps them from being made.
//!
//! In: configurations, the health thread's events. Out: verdicts for the controller, reports, warnings.
//! Not here: what follows from a verdict (`controller`), when a target is asked (`health`).

use std::sync::Arc;
use std::time::Instant;

use config::Config;
use control_plane::{Controller, Unable, log_flushes};
use health::{Event, Events, Flush, Health, StateChange, TargetReport};

use super::health_tunnel::{Found, HealthTunnel};

#[derive(Debug)]
pub(super) struct Checks {
    engine: Arc<Health>,
    events: Events,
    tunnel: HealthTunnel,
    /// Servers that are being emptied.
    flushes: Vec<Flush>,
    /// Why checks through the tunnel can't be made.
    tunnel_fault: Option<String>,
    /// The tunnel is being looked at.
    is_mending: bool,
    /// Since when verdicts are held.
    local_failure: Option<Instant>,
    unable: Unable,
}

impl Checks {
    /// Starts the health thread, once `tunnel` is open if `config` asks for it.
    pub(super) async fn start(tunnel: HealthTunnel, config: &Config) -> anyhow::Result<Self> {
        HealthTunnel::clear().await;
        tunnel.open(config).await?;
        Self::before_tunnel(tunnel)
    }

    /// Starts the health thread, while the tunnel is another process's.
    pub(super) fn before_tunnel(tunnel: HealthTunnel) -> anyhow::Result<Self> {
        let (engine, events) = Health::start(tunnel.dialers())?;
        Ok(Self {
            engine: Arc::new(engine),
            events,
            tunnel,
            flushes: Vec::new(),
            tunnel_fault: None,
            is_mending: false,
            local_failure: None,
            unable: Unable::default(),
        })
    }

    pub(super) fn tunnel(&self) -> &HealthTunnel {
        &self.tunnel
    }

    /// The next event. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// From now on the targets of the configuration in force are checked.
    pub(super) fn watch(&self, controller: &Controller) {
        self.engine.watch(self.tunnel.reachable(controller.watched()));
    }

    /// Has those servers emptied that the controller wants to be.
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

    /// Verdicts that turned, if that is the event.
    pub(super) fn take(&mut self, event: Event) -> Option<Vec<StateChange>> {
        match event {
            Event::Changed(changed) => return Some(changed),
            Event::LocalFailure(true) => {
                self.local_failure = Some(Instant::now());
                tracing::error!(
                    change = "backend",
                    "no check of any backend passes: taken for a local failure (a fault of this machine), and the last states stay"
                );
            }
            Event::LocalFailure(false) => {
                self.local_failure = None;
                tracing::info!(change = "backend", "checks pass again: verdicts go on");
            }
            Event::Unable(news) => self.unable.take(news, Instant::now()),
            // The daemon's own: it takes it in before all others.
            Event::Flushed(_) => {}
        }
        None
    }

    /// Asks the health thread what it knows of all targets, from another thread.
    pub(super) fn report(&self) -> impl FnOnce() -> Vec<TargetReport> + Send + 'static {
        let engine = Arc::clone(&self.engine);
        move || engine.report()
    }

    /// Begins a look after the tunnel, whose rules, routes or device another program may remove; `None`: one is under way.
    pub(super) fn begin_mending(
        &mut self,
        config: Arc<Config>,
    ) -> Option<impl Future<Output = Found> + Send + 'static> {
        if self.is_mending {
            return None;
        }
        self.is_mending = true;
        let (tunnel, was_well) = (self.tunnel.clone(), self.tunnel_fault.is_none());
        Some(async move { tunnel.mend(was_well, &config).await })
    }

    /// Takes over what a look after the tunnel found.
    pub(super) fn mended(&mut self, found: Found, controller: &Controller) {
        self.is_mending = false;
        match found {
            Found::Well => {}
            Found::New => {
                // Checks that were under way had the old one.
                let direct = controller.watched().into_iter().filter(|one| one.key.through.is_none());
                self.engine.watch(direct.collect());
                self.watch(controller);
                self.tunnel_fault = None;
                tracing::warn!("the checks' tunnel was taken away and is back: its checks begin anew");
            }
            Found::Broken(error) => {
                let words =
                    format!("checks through the tunnel can't be made, their last verdicts stay: {error}");
                if self.tunnel_fault.as_ref() != Some(&words) {
                    tracing::error!("{words}");
                    self.tunnel_fault = Some(words);
                    self.watch(controller);
                }
            }
        }
    }

    /// Why verdicts are held, if they are.
    pub(super) fn local_failure(&self) -> Option<String> {
        let seconds = self.local_failure?.elapsed().as_secs_f64();
        Some(format!(
            "for {seconds:.0} s no check of any backend has passed: taken for a local failure (a fault of this machine), and the last states stay"
        ))
    }

    /// How many targets can't be asked.
    pub(super) fn unable(&self) -> usize {
        self.unable.count()
    }

    /// What an operator should know, one sentence each.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        self.tunnel_fault.iter().cloned().chain(self.unable.warning(Instant::now()))
    }

    /// Ends the health thread and waits for it.
    pub(super) fn stop(self) -> HealthTunnel {
        self.tunnel
    }
}
