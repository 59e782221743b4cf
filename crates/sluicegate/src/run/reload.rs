//! Implements the steps of a reload for `control_plane::reload`, which calls them. Slow steps run
//! on other threads, and short steps run on the control loop. This module also rebuilds tables
//! after health state changes, because these rebuilds use the same compiler.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use admin::Answer;
use admin::view::{Refusal, ReloadReport};
use compile::CompileError;
use config::{Config, Problems};
use control_plane::publisher::{Generation, Publisher, Withdrawn};
use control_plane::reload::{
    About, Cause, Ended, Host, InForce, Kept, Loaded, Origin, Place, Request, Wanted, guard, read, reload,
    too_many,
};
use control_plane::{Done, Job, Refused, Version};
use forwarder::Snapshot;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::Daemon;
use super::loop_tasks::Handle;
use crate::listeners::{self, Bound};

/// Gives a reload access to the daemon.
struct ReloadHost {
    daemon: Handle<Daemon>,
    compiling: Arc<Mutex<()>>,
    about: About,
}

/// A compiled configuration. This value owns the compiler until the configuration is published or
/// rejected.
struct Compiled {
    done: Done,
    listeners: Bound,
    _compiling: OwnedMutexGuard<()>,
}

/// The API client that requested the reload and receives its result.
pub(super) type Client = Answer<Result<ReloadReport, Refusal>>;

impl Host for ReloadHost {
    type Compiled = Compiled;
    type Before = Version;
    type Client = Client;

    async fn read(&self, wanted: Wanted, origin: Origin) -> Result<Loaded, Refused> {
        let (place, tunnel) = self.daemon.turn(Daemon::begin_reload).await;
        let mut loaded = read(place, wanted, origin).await?;
        tunnel.open(&loaded.config).await.map_err(Refused::conflict)?;
        let next_hops = std::mem::take(&mut loaded.next_hops);
        self.daemon.turn(|daemon| daemon.paths.add(next_hops)).await;
        Ok(loaded)
    }

    async fn keep(&self, loaded: &Loaded) -> Option<u64> {
        let (config, origin) = (Arc::clone(&loaded.config), loaded.origin);
        let (warnings, about) = (sentences(&loaded.warnings), self.about.clone());
        let keep = move |daemon: &mut Daemon| {
            let (now, configuration) = (daemon.lifecycle.elapsed(), &mut daemon.configuration);
            if config.is_same_text_as(daemon.controller.config()) {
                configuration.comes_from(origin, daemon.controller.config());
                configuration.warnings = warnings;
                configuration.generations.unchanged(about.cause, about.confirm, now);
            } else if about.cause == Cause::Watch && configuration.generations.is_undone(&config) {
                // log: The file was not reloaded, because it still contains the configuration that
                // was rolled back. Fix the file.
                tracing::info!("rolled-back file ignored until its next change");
            } else {
                return None;
            }
            Some(daemon.controller.generation().0)
        };
        self.daemon.turn(keep).await
    }

    async fn guard(&self, config: Arc<Config>) -> Result<(), Refused> {
        let here = |daemon: &mut Daemon| {
            (Arc::clone(daemon.controller.config()), daemon.controller.machine().to_owned())
        };
        let (in_force, machine) = self.daemon.turn(here).await;
        let guarded = tokio::task::spawn_blocking(move || guard(&in_force, &config, &machine)).await;
        guarded.map_err(|error| Refused::Unavailable(error.to_string()))?
    }

    async fn compile(&self, config: Arc<Config>) -> Result<Compiled, Refused> {
        let here =
            |daemon: &mut Daemon| (daemon.controller.machine().to_owned(), daemon.api.listeners.existing());
        let (machine, existing) = self.daemon.turn(here).await;
        let listeners = listeners::bind(&config, &machine, &existing).await;
        let listeners = listeners.map_err(|error| Refused::Conflict(format!("{error:#}")))?;
        let compiling = Arc::clone(&self.compiling).lock_owned().await;
        let done = match self.daemon.turn(|daemon| daemon.job(Some(config))).await {
            Some(job) => run(job).await,
            None => None,
        };
        let done =
            done.ok_or_else(|| Refused::Unavailable("tables are being built, try again".to_owned()))?;
        let Some(refused) = done.error().map(Refused::conflict) else {
            return Ok(Compiled { done, listeners, _compiling: compiling });
        };
        // This call returns the compiler to the controller.
        let _ = self.daemon.turn(|daemon| daemon.finish(done).map(drop)).await;
        Err(refused)
    }

    async fn withdraw(&self, config: Arc<Config>) -> Withdrawn {
        let withdraw = move |daemon: &mut Daemon| {
            Publisher::withdraw(&config, daemon.controller.machine(), &mut daemon.announcer)
        };
        self.daemon.turn(withdraw).await.wait().await
    }

    async fn publish(
        &self,
        compiled: Compiled,
        withdrawn: Withdrawn,
        loaded: Loaded,
    ) -> Result<Version, Refused> {
        let about = self.about.clone();
        let change_over = move |daemon: &mut Daemon| {
            let before = daemon.change_over(compiled, withdrawn, &loaded)?;
            daemon.keep_generation(loaded, about);
            Ok::<_, Refused>(before)
        };
        self.daemon.turn(change_over).await
    }

    async fn compare(&self, before: Version) -> InForce {
        let after = |daemon: &mut Daemon| {
            let controller = &daemon.controller;
            let machine = controller.machine().to_owned();
            (
                Version::of(controller),
                daemon.configuration.running.clone(),
                machine,
                controller.generation().0,
            )
        };
        let (after, running, machine, generation) = self.daemon.turn(after).await;
        // Comparing tables takes two memory loads per table entry, so it does not run on the
        // control loop.
        let counted = tokio::task::spawn_blocking(move || before.changes(&after, &running, &machine));
        let changes = counted.await.unwrap_or_default();
        for setting in &changes.needs_restart {
            // log: A reload cannot change this setting. Plan a restart, see
            // [upgrade](../how-to/upgrade.md).
            tracing::warn!(%setting, "restart needed");
        }
        InForce { generation, changed: changes.sentences }
    }

    async fn report(&self, ended: Ended, client: Option<Client>) {
        let cause = self.about.cause;
        let end = move |daemon: &mut Daemon| {
            if cause == Cause::Unconfirmed && ended.outcome.is_err() {
                daemon.configuration.generations.not_returned(daemon.lifecycle.elapsed());
            }
            if let Some(client) = client {
                let report = ended.outcome.clone().map(|now| daemon.reload_report(now, ended.took));
                // An error means that the client has disconnected.
                let _ = client.send(report.map_err(Refusal::from));
            }
            daemon.configuration.reloads.end(ended);
            daemon.lifecycle.manager().ready(&daemon.status_line());
        };
        self.daemon.turn(end).await;
    }
}

impl Daemon {
    /// Adds a reload to the queue.
    pub(super) fn ask_for_reload(&mut self, about: About, wanted: Wanted, client: Option<Client>) {
        if let Some(client) = self.configuration.reloads.ask(Request { about, wanted, client }) {
            let _ = client.send(Err(too_many().into()));
        }
    }

    /// Adds a reload of the configuration file to the queue.
    pub(super) fn read_file(&mut self, cause: Cause) {
        self.ask_for_reload(About::plain(cause), Wanted::File, None);
    }

    /// Starts a rollback if the current generation was not confirmed in time.
    pub(super) fn go_back_when_due(&mut self) {
        let Some(to) = self.configuration.generations.due(self.lifecycle.elapsed()) else { return };
        // log: A new configuration was not confirmed in time and is rolled back. Fix the file and
        // reload.
        tracing::warn!(
            change = "reload",
            generation = self.controller.generation().0,
            returns_to = to.generation,
            "configuration not confirmed, rolling back"
        );
        self.ask_for_reload(About::plain(Cause::Unconfirmed), Wanted::Kept(to), None);
    }

    /// Stores a new generation, so that a later rollback can return to it.
    fn keep_generation(&mut self, loaded: Loaded, about: About) {
        let (now, generation) = (self.lifecycle.elapsed(), self.controller.generation().0);
        let About { cause, by, confirm, .. } = about;
        let Loaded { config, warnings, .. } = loaded;
        let next = Kept { generation, at: SystemTime::now(), cause, by, config, warnings };
        let generations = &mut self.configuration.generations;
        generations.published(next, confirm, now);
        if let (Some(_), Some(row)) = (confirm, generations.confirmation_row(now)) {
            let within = Duration::from_secs_f64(row.ends_in_seconds);
            // log: A reload with `--confirm` has succeeded. Run `sluicegate config confirm` if the
            // new configuration works as expected.
            tracing::warn!(
                change = "reload",
                generation,
                returns_to = row.returns_to,
                ?within,
                "configuration is awaiting confirmation"
            );
        }
    }

    fn reload_report(&self, now: InForce, took: Duration) -> ReloadReport {
        let warnings = self.configuration.warnings.iter().cloned();
        ReloadReport {
            generation: now.generation,
            took_ms: took.as_secs_f64() * 1e3,
            changed: now.changed,
            needs_restart: self.needs_restart(),
            warnings: warnings.chain(self.announcer.faults()).collect(),
            confirmation: self.configuration.generations.confirmation_row(self.lifecycle.elapsed()),
        }
    }

    /// Starts the next queued reload. If the queue is empty and health states have changed, starts
    /// a rebuild of the tables.
    pub(super) fn begin_waiting_work(&mut self) {
        if let Some(request) = self.configuration.reloads.begin() {
            let compiling = Arc::clone(self.tasks.compiling());
            let host = ReloadHost { daemon: self.tasks.handle(), compiling, about: request.about.clone() };
            tokio::spawn(async move { reload(&host, request).await });
        }
        if !self.controller.wants_job() {
            return;
        }
        let Ok(compiling) = Arc::clone(self.tasks.compiling()).try_lock_owned() else { return };
        let Some(job) = self.job(None) else { return };
        let daemon = self.tasks.handle();
        tokio::spawn(async move {
            let Some(done) = run(job).await else { return };
            daemon.turn(|daemon| daemon.take_tables(done)).await;
            drop(compiling);
        });
    }

    fn begin_reload(&mut self) -> (Place, super::health_tunnel::HealthTunnel) {
        self.lifecycle.manager().reloading();
        let place = Place {
            file: self.configuration.file.clone(),
            machine: self.controller.machine().to_owned(),
            known: self.paths.table().next_hops.keys().copied().collect(),
            max_vips: self.configuration.max_vips,
        };
        (place, self.checks.tunnel().clone())
    }

    pub(super) fn job(&mut self, config: Option<Arc<Config>>) -> Option<Job> {
        let states = self.publisher.current().states().to_vec();
        self.controller.job(config, Arc::clone(self.paths.table()), states, self.lifecycle.elapsed())
    }

    /// Returns the compiled snapshot, updated with the current next hops.
    pub(super) fn finish(&mut self, done: Done) -> Result<Snapshot, CompileError> {
        let has_paths = self.paths.are_those_of(done.next_hops());
        let snapshot = self.controller.finish(done, self.lifecycle.elapsed())?;
        if has_paths {
            return Ok(snapshot);
        }
        self.paths.renewed(&snapshot, self.controller.config(), self.controller.machine())
    }

    fn take_tables(&mut self, done: Done) {
        let leaving = self.controller.leaving().count();
        match self.finish(done) {
            Ok(snapshot) => {
                self.publish_states(snapshot);
                // The new tables leave out removed backends whose drains have ended.
                if self.controller.leaving().count() != leaving {
                    let (config, machine) = (self.controller.config(), self.controller.machine());
                    self.paths.follow(config, machine, &self.publisher.current());
                    self.checks.watch(&self.controller);
                }
            }
            // log: New tables could not be built for the reason in `error`, and the previous tables
            // remain in use. Reload the configuration. Report a bug if the line is repeated.
            Err(error) => tracing::error!(%error, "tables not rebuilt"),
        }
    }

    /// Activates a compiled configuration within one iteration of the control loop.
    fn change_over(
        &mut self,
        compiled: Compiled,
        withdrawn: Withdrawn,
        loaded: &Loaded,
    ) -> Result<Version, Refused> {
        let before = Version::of(&self.controller);
        let snapshot = self.finish(compiled.done).map_err(|error| {
            self.announcer.keep();
            Refused::conflict(error)
        })?;
        let generation = snapshot.generation().0;
        let (config, machine) = (self.controller.config(), self.controller.machine());
        let next = Generation { snapshot, config, machine, interfaces: super::addresses_here() };
        let changed = self.publisher.change_over(withdrawn, next, &mut self.forwarding, &mut self.announcer);
        match changed {
            Ok(()) => {
                self.look_at_vips();
                self.follow_caches();
            }
            // The step `read` has already checked the capacity. An error can therefore only mean
            // that the kernel refused an update of a BPF map.
            Err(error) => {
                // log: The kernel refused an update of a BPF map, so new VIPs may receive no
                // packets. Check the available memory and `io.max_vips`, and restart.
                tracing::error!(%error, generation, "generation not applied to the XDP filter");
            }
        }
        self.api.listeners.take(self.controller.config(), self.controller.machine(), compiled.listeners);
        self.follow_configuration(loaded);
        Ok(before)
    }

    /// Applies the settings that are not part of the snapshot.
    fn follow_configuration(&mut self, loaded: &Loaded) {
        let (config, machine) = (self.controller.config(), self.controller.machine());
        let current = self.publisher.current();
        // If the log level is overridden, the override stays in force.
        self.api.logging.follow(config.log().level);
        self.checks.watch(&self.controller);
        super::warn_of_small_mtus(config, &current);
        self.paths.follow(config, machine, &current);
        self.configuration.follow(config, loaded.origin, sentences(&loaded.warnings));
    }
}

async fn run(job: Job) -> Option<Done> {
    tokio::task::spawn_blocking(|| job.run()).await.ok()
}

/// Formats the warnings without the prefix "warning".
pub(super) fn sentences(warnings: &Problems) -> Vec<String> {
    warnings.iter().map(ToString::to_string).collect()
}
