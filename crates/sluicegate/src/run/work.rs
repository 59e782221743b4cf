//! What other threads and tasks do for the control loop, and what becomes of it.
//!
//! In: configurations that were read, tables that were built, changes that were counted, reports, the state of the checks'
//! tunnel. Out: new generations, answers. Not here: the work itself.

use std::sync::Arc;

use admin::command::Answer;
use admin::view::{BackendRow, ConfigSource, HealthView, Refusal, RefusalKind, ReloadReport};
use config::{Config, Problem, Problems};
use control_plane::compile::{CompileError, Index, refresh_next_hops};
use control_plane::controller::{Changes, Done, Side, changes};
use forwarder::Snapshot;
use health::TargetReport;

use super::Balancer;
use super::files::FileWatch;
use super::next_hops::wanted;
use super::reload::{self, Loaded, Origin};
use super::tunnel::Kept;

/// What other threads have finished for the control loop.
#[derive(Debug)]
pub(super) enum Finished {
    Loaded(Box<Result<Loaded, Refusal>>),
    Compiled(Box<Done>, bool),
    Told(Changes),
    Kept(Kept),
    Reported(Vec<TargetReport>, Wanting),
    Captured,
    /// Routers know of the routes that go with this configuration.
    Retired(Box<Done>),
}

/// Whom a report of the health thread is for.
#[derive(Debug)]
pub(super) enum Wanting {
    Backends(Answer<Vec<BackendRow>>),
    Health(Answer<HealthView>),
}

impl Balancer {
    /// Begins what can begin: the next reload, a new configuration's tables, or those that must follow states.
    pub(super) fn advance(&mut self) {
        if let Some(text) = self.reloads.begin() {
            self.manager.reloading();
            let known = self.next_hops.next_hops.keys().copied().collect();
            let (file, done, max_vips) = (self.file.clone(), self.finished.0.clone(), self.max_vips);
            let (way, machine) = (self.way.clone(), self.controller.machine().to_owned());
            let (interfaces, live) = (self.interface_names(), self.live.clone());
            tokio::spawn(async move {
                let mut loaded = reload::load(file, text, &machine, known, max_vips).await;
                if let Ok(new) = &loaded
                    && let Err(error) = way.open(&new.config, &machine, &interfaces, &live).await
                {
                    loaded = Err(Refusal::new(RefusalKind::Conflict, error.to_string()));
                }
                let _ = done.send(Finished::Loaded(Box::new(loaded))); // nobody listens: the balancer has ended
            });
        }
        let config = self.reloads.loaded().map(|loaded| Arc::clone(&loaded.config));
        if config.is_none() && !self.controller.wants_job() {
            self.ready_when_checked();
            return;
        }
        let (states, new) = (self.live.current().states().to_vec(), config.is_some());
        let next_hops = Arc::clone(&self.next_hops);
        if let Some(job) = self.controller.job(config, next_hops, states, self.origin.elapsed()) {
            let done = self.finished.0.clone();
            tokio::task::spawn_blocking(move || {
                let _ = done.send(Finished::Compiled(Box::new(job.run()), new));
            });
        }
    }

    pub(super) fn ask_for_reload(&mut self, why: &'static str) {
        self.reloads.ask(Origin::Here(why));
        self.advance();
    }

    pub(super) fn take_finished(&mut self, finished: Finished) {
        match finished {
            Finished::Loaded(loaded) => match *loaded {
                Ok(mut loaded) => {
                    Arc::make_mut(&mut self.next_hops).next_hops.extend(loaded.next_hops.drain());
                    if loaded.config.is_same_text_as(self.controller.config()) {
                        self.keep_configuration(&loaded);
                    } else if let Some(reload) = self.reloads.current() {
                        reload.loaded = Some(loaded);
                    }
                }
                Err(refusal) => self.end_reload(Err(refusal)),
            },
            Finished::Compiled(done, true) => self.retire_routes(*done),
            Finished::Compiled(done, false) => self.take_compiled(*done, false),
            Finished::Retired(done) => self.take_compiled(*done, true),
            Finished::Told(told) => self.take_changes(told),
            Finished::Kept(kept) => self.take_kept(kept),
            Finished::Reported(reports, wanting) => self.tell_health(&reports, wanting),
            Finished::Captured => self.capture_is_over(),
        }
        self.advance();
    }

    pub(super) fn take_compiled(&mut self, done: Done, new: bool) {
        let (before, old) = (Arc::clone(self.controller.config()), Arc::clone(self.controller.index()));
        let has_ways = Arc::ptr_eq(done.next_hops(), &self.next_hops) && self.path_mtus.is_empty();
        let next = self.controller.finish(done, self.origin.elapsed());
        let next = next.and_then(|next| {
            if has_ways {
                return Ok(next);
            }
            let (config, machine) = (self.controller.config(), self.controller.machine());
            refresh_next_hops(&next, config, machine, &self.next_hops, &self.path_mtus)
        });
        match next {
            Ok(snapshot) if new => self.take_configuration(snapshot, before, old),
            Ok(snapshot) => self.publish_states(snapshot),
            Err(error) if new => {
                self.announcer.keep();
                self.end_reload(Err(cannot(&error)));
            }
            Err(error) => tracing::error!(%error, "tables not rebuilt"),
        }
    }

    pub(super) fn take_configuration(&mut self, snapshot: Snapshot, before: Arc<Config>, old: Arc<Index>) {
        let generation = snapshot.generation().0;
        match self.publish(snapshot) {
            Ok(()) => self.follow_announcements(),
            // The room was looked at before: what is left is the kernel refusing a map update. Routes that are new would lead
            // to nothing.
            Err(error) => {
                tracing::error!(%error, generation, "the XDP filter could not follow the new generation");
            }
        }
        let Some(reload) = self.reloads.current() else { return };
        reload.is_live();
        let warnings = reload.loaded.take().map(|loaded| sentences(&loaded.warnings));
        let (source, config) = (reload.source, Arc::clone(self.controller.config()));
        self.tell_changes(before, old);
        self.watch();
        self.say_what_will_not_fit();
        self.wanted.send_replace(wanted(&config, self.controller.machine(), &self.plane, &self.live));
        self.warnings = warnings.unwrap_or_default();
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
        if self.source == ConfigSource::Api && source == ConfigSource::File {
            tracing::warn!("the file has replaced a configuration that came by the API");
        }
        self.comes_from(source);
        if let Err(error) = FileWatch::follow(&mut self.files, &config) {
            tracing::warn!(%error, "changes of the file are not watched");
        }
    }

    fn comes_from(&mut self, source: ConfigSource) {
        self.source = source;
        if source == ConfigSource::File {
            self.file_sources = self.controller.config().sources().to_vec();
        }
    }

    /// What was read is what is in force: the generation keeps its number, and nobody who holds its tag is turned away.
    fn keep_configuration(&mut self, loaded: &Loaded) {
        let Some(reload) = self.reloads.current() else { return };
        reload.is_live();
        let (source, took) = (reload.source, reload.took());
        self.comes_from(source);
        self.warnings = sentences(&loaded.warnings);
        self.end_reload(Ok(ReloadReport {
            generation: self.controller.generation().0,
            took_ms: took.as_secs_f64() * 1e3,
            changed: Vec::new(),
            needs_restart: self.needs_restart(),
            warnings: self.reload_warnings(),
        }));
    }

    /// Of the file, and what it asks of routers' sessions and can't be had.
    fn reload_warnings(&self) -> Vec<String> {
        self.warnings.iter().cloned().chain(self.announcer.faults()).collect()
    }

    /// What is different is told once it is counted: two loads a slot of each table, elsewhere.
    pub(super) fn tell_changes(&self, before: Arc<Config>, old: Arc<Index>) {
        let (after, new) = (Arc::clone(self.controller.config()), Arc::clone(self.controller.index()));
        let (machine, done) = (self.controller.machine().to_owned(), self.finished.0.clone());
        let running = self.running.clone();
        tokio::task::spawn_blocking(move || {
            let (old, new) = (Side { config: &before, index: &old }, Side { config: &after, index: &new });
            let told = changes(&running, old, new, &machine);
            let _ = done.send(Finished::Told(told)); // nobody listens: the balancer has ended
        });
    }

    pub(super) fn take_changes(&mut self, told: Changes) {
        for setting in &told.needs_restart {
            tracing::warn!("takes effect at the next start: {setting}");
        }
        let took = self.reloads.current().map(|reload| reload.took()).unwrap_or_default();
        self.end_reload(Ok(ReloadReport {
            generation: self.controller.generation().0,
            took_ms: took.as_secs_f64() * 1e3,
            changed: told.sentences,
            needs_restart: self.needs_restart(),
            warnings: self.reload_warnings(),
        }));
    }

    pub(super) fn end_reload(&mut self, outcome: Result<ReloadReport, Refusal>) {
        self.reloads.end(outcome);
        self.manager.ready(&self.status());
    }

    /// Somebody may take the tunnel's rules, routes or device away: looked at once a second, elsewhere.
    pub(super) fn keep_way(&mut self) {
        // A reload may be opening it.
        if self.keeping || !self.reloads.is_idle() {
            return;
        }
        self.keeping = true;
        let (way, done, was) = (self.way.clone(), self.finished.0.clone(), self.tunnel_fault.is_none());
        let (config, machine) = (Arc::clone(self.controller.config()), self.controller.machine().to_owned());
        let (interfaces, live) = (self.interface_names(), self.live.clone());
        tokio::spawn(async move {
            let kept = way.keep(was, &config, &machine, &interfaces, &live).await;
            let _ = done.send(Finished::Kept(kept)); // nobody listens: the balancer has ended
        });
    }

    pub(super) fn take_kept(&mut self, kept: Kept) {
        self.keeping = false;
        match kept {
            Kept::Well => {}
            Kept::New => {
                // Those that were under way had the old one.
                let direct = self.controller.watched().into_iter().filter(|one| one.key.through.is_none());
                self.health.watch(direct.collect());
                self.watch();
                self.tunnel_fault = None;
                tracing::warn!("the checks' tunnel was taken away and is back: its checks begin anew");
            }
            Kept::Broken(error) => {
                let words =
                    format!("checks through the tunnel can't be made, their last verdicts stay: {error}");
                if self.tunnel_fault.as_ref() != Some(&words) {
                    tracing::error!("{words}");
                    self.tunnel_fault = Some(words);
                    self.watch();
                }
            }
        }
    }
}

/// For where it is said already that these are warnings.
pub(super) fn sentences(warnings: &Problems) -> Vec<String> {
    warnings.iter().map(Problem::sentence).collect()
}

fn cannot(error: &CompileError) -> Refusal {
    Refusal::new(RefusalKind::Conflict, error.to_string())
}
