//! A reload's steps in the daemon, as `control_plane::reload` asks for them.
//!
//! In: a configuration. Out: what became of it; here what takes time runs off the control loop, and the rest in turns of it.
//! Beside it: tables that follow states, which take the same compiler.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use admin::Answer;
use admin::view::{Refusal, ReloadReport};
use compile::{CompileError, Index};
use config::{Config, Problem, Problems};
use control_plane::publisher::{Generation, Publisher, Withdrawn};
use control_plane::reload::{
    About, Cause, Ended, Host, InForce, Kept, Loaded, Origin, Place, Request, Wanted, guard, read, reload,
    too_many,
};
use control_plane::{Done, Job, Refused, Side, changes};
use forwarder::Snapshot;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::Daemon;
use super::turns::Handle;
use crate::listeners::{self, Bound};

/// The daemon, as a reload sees it.
struct ReloadHost {
    daemon: Handle<Daemon>,
    compiling: Arc<Mutex<()>>,
    about: About,
}

/// A compiled configuration; the compiler is taken until it is published or refused.
struct Compiled {
    done: Done,
    listeners: Bound,
    _compiling: OwnedMutexGuard<()>,
}

/// What was in force before.
struct Before {
    config: Arc<Config>,
    index: Arc<Index>,
}

/// Who asked for a reload by the API.
pub(super) type Client = Answer<Result<ReloadReport, Refusal>>;

impl Host for ReloadHost {
    type Compiled = Compiled;
    type Before = Before;
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
                tracing::info!(
                    "the file still says what was taken back: it waits for its next change, or for a reload"
                );
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
        let done = done.ok_or_else(|| Refused::Unavailable("the compiler is not there".to_owned()))?;
        let Some(refused) = done.error().map(Refused::conflict) else {
            return Ok(Compiled { done, listeners, _compiling: compiling });
        };
        let _ = self.daemon.turn(|daemon| daemon.finish(done).map(drop)).await; // the compiler goes home
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
    ) -> Result<Before, Refused> {
        let about = self.about.clone();
        let change_over = move |daemon: &mut Daemon| {
            let before = daemon.change_over(compiled, withdrawn, &loaded)?;
            daemon.keep_generation(loaded, about);
            Ok::<_, Refused>(before)
        };
        self.daemon.turn(change_over).await
    }

    async fn compare(&self, before: Before) -> InForce {
        let after = |daemon: &mut Daemon| {
            let controller = &daemon.controller;
            let after =
                Before { config: Arc::clone(controller.config()), index: Arc::clone(controller.index()) };
            let machine = controller.machine().to_owned();
            (after, daemon.configuration.running.clone(), machine, controller.generation().0)
        };
        let (after, running, machine, generation) = self.daemon.turn(after).await;
        // Two loads a slot of each table: not on the loop.
        let counted = tokio::task::spawn_blocking(move || {
            let old = Side { config: &before.config, index: &before.index };
            let new = Side { config: &after.config, index: &after.index };
            changes(&running, old, new, &machine)
        });
        let changes = counted.await.unwrap_or_default();
        for setting in &changes.needs_restart {
            tracing::warn!("takes effect at the next start: {setting}");
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
                let _ = client.send(report.map_err(Refusal::from)); // a client who has gone needs no answer
            }
            daemon.configuration.reloads.end(ended);
            daemon.lifecycle.manager().ready(&daemon.status_line());
        };
        self.daemon.turn(end).await;
    }
}

impl Daemon {
    /// Asks for a reload.
    pub(super) fn ask_for_reload(&mut self, about: About, wanted: Wanted, client: Option<Client>) {
        if let Some(client) = self.configuration.reloads.ask(Request { about, wanted, client }) {
            let _ = client.send(Err(too_many().into()));
        }
    }

    /// Asks for a reload of the file.
    pub(super) fn read_file(&mut self, cause: Cause) {
        self.ask_for_reload(About::plain(cause), Wanted::File, None);
    }

    /// Goes back to the generation before, when nobody has confirmed what came after it in time.
    pub(super) fn go_back_when_due(&mut self) {
        let Some(to) = self.configuration.generations.due(self.lifecycle.elapsed()) else { return };
        tracing::warn!(
            change = "reload",
            generation = self.controller.generation().0,
            returns_to = to.generation,
            "not confirmed in time: what was in force before comes back"
        );
        self.ask_for_reload(About::plain(Cause::Unconfirmed), Wanted::Kept(to), None);
    }

    /// What has come into force is there to be gone back to.
    fn keep_generation(&mut self, loaded: Loaded, about: About) {
        let (now, generation) = (self.lifecycle.elapsed(), self.controller.generation().0);
        let About { cause, by, confirm, .. } = about;
        let Loaded { config, warnings, .. } = loaded;
        let next = Kept { generation, at: SystemTime::now(), cause, by, config, warnings };
        let generations = &mut self.configuration.generations;
        generations.published(next, confirm, now);
        if let (Some(_), Some(row)) = (confirm, generations.confirmation_row(now)) {
            let within = Duration::from_secs_f64(row.ends_in_seconds);
            tracing::warn!(
                change = "reload",
                generation,
                returns_to = row.returns_to,
                ?within,
                "waits for a confirmation, or what was in force before comes back"
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

    /// Begins what can begin: the next reload, tables that follow states.
    pub(super) fn begin_waiting_work(&mut self) {
        if let Some(request) = self.configuration.reloads.begin() {
            let compiling = Arc::clone(self.turns.compiling());
            let host = ReloadHost { daemon: self.turns.handle(), compiling, about: request.about.clone() };
            tokio::spawn(async move { reload(&host, request).await });
        }
        if !self.controller.wants_job() {
            return;
        }
        let Ok(compiling) = Arc::clone(self.turns.compiling()).try_lock_owned() else { return };
        let Some(job) = self.job(None) else { return };
        let daemon = self.turns.handle();
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

    /// A job's snapshot over the paths of now.
    pub(super) fn finish(&mut self, done: Done) -> Result<Snapshot, CompileError> {
        let has_paths = self.paths.are_those_of(done.next_hops());
        let snapshot = self.controller.finish(done, self.lifecycle.elapsed())?;
        if has_paths {
            return Ok(snapshot);
        }
        self.paths.renewed(&snapshot, self.controller.config(), self.controller.machine())
    }

    fn take_tables(&mut self, done: Done) {
        match self.finish(done) {
            Ok(snapshot) => self.publish_states(snapshot),
            Err(error) => tracing::error!(%error, "tables not rebuilt"),
        }
    }

    /// The turn in which a configuration comes into force.
    fn change_over(
        &mut self,
        compiled: Compiled,
        withdrawn: Withdrawn,
        loaded: &Loaded,
    ) -> Result<Before, Refused> {
        let before = Before {
            config: Arc::clone(self.controller.config()),
            index: Arc::clone(self.controller.index()),
        };
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
            // `read` checked that it fits: what is left is the kernel refusing a map update.
            Err(error) => {
                tracing::error!(%error, generation, "the XDP filter could not follow the new generation");
            }
        }
        self.api.listeners.take(self.controller.config(), self.controller.machine(), compiled.listeners);
        self.follow_configuration(loaded);
        Ok(before)
    }

    /// What else follows the configuration in force.
    fn follow_configuration(&mut self, loaded: &Loaded) {
        let (config, machine) = (self.controller.config(), self.controller.machine());
        let current = self.publisher.current();
        // What an operator has ordered meanwhile stays.
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

/// For a place where it is clear that these are warnings.
pub(super) fn sentences(warnings: &Problems) -> Vec<String> {
    warnings.iter().map(Problem::sentence).collect()
}
