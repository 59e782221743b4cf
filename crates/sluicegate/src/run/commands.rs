//! Handles the commands of the admin API. The response is sent immediately, or when the work that
//! the command started is complete. The crate `admin` implements HTTP, and
//! `control_plane::{overrides, drain}` contain the rules for overrides and drains.

use std::time::{Instant, SystemTime};

use admin::view::{
    BackendChange, BackendRow, ConfigView, Confirmed, HealthView, MachineDrain, Refusal, RefusalKind,
    VipChange, VipRow, WhereView, entity_tag,
};
use admin::{Answer, BackendAction, Command, OverrideNote, VipAction};
use admin::{CaptureCommand, CaptureStream, MachineAction, ReloadTerms};
use compile::{OverrideKey, find_machine};
use control_plane::digest::hex;
use control_plane::questions::{Filters, Taps};
use control_plane::reload::{About, Cause, Wanted};
use control_plane::{
    BackendOverride, CaptureBegun, Controller, Refused, Tapped, count_vips, locate_key, texts,
};

use super::lifecycle::HandOver;
use super::reload::Client;
use super::{Daemon, Inspections};
use crate::stats::{of_service, of_slot};

impl Daemon {
    /// Handles a command. Errors while sending the response are ignored, because the client may
    /// have disconnected.
    pub(super) fn handle_command(&mut self, command: Command) {
        if self.lifecycle.hand_over == HandOver::Frozen {
            // The effect of the command would be lost, because the state has already been handed
            // over to the new process. The client gets no response, as if the process were
            // stopping.
            return;
        }
        match command {
            Command::Status(answer) => self.answer_status(answer),
            Command::Vips(answer) => self.when_counted(move |daemon| daemon.answer_vips(answer)),
            Command::Backends(answer) => self.answer_backends(answer),
            Command::Health(answer) => self.answer_health(answer),
            Command::Stats(answer) => {
                let (snapshot, index) = (self.publisher.current(), self.controller.index());
                _ = answer.send(self.forwarding.stats(&snapshot, index));
            }
            Command::Backend { name, pool, action, note, answer } => {
                let backend = OverrideKey { backend: name.into(), pool: pool.map(Into::into) };
                _ = answer.send(self.override_backend(backend, action, note));
            }
            Command::Events { query, answer } => {
                _ = answer.send(self.api.logging.events.view(&query, &self.api.boot_id, SystemTime::now()));
            }
            Command::Log(answer) => _ = answer.send(self.api.logging.view(self.lifecycle.elapsed())),
            Command::OverrideLog { command, answer } => {
                _ = answer.send(self.api.logging.override_level(command, self.lifecycle.elapsed()));
            }
            Command::Bgp(answer) => _ = answer.send(self.announcer.view()),
            Command::Vip { name, action, note, answer } => {
                _ = answer.send(self.override_vip(name.as_deref(), action, &note));
            }
            Command::Machine { action, answer } => _ = answer.send(self.command_machine(action)),
            Command::Upgrade { binary, answer } => self.upgrade(binary, answer),
            other => self.handle_generations(other),
        }
    }

    /// Handles commands that read or change the configuration, including earlier generations.
    fn handle_generations(&mut self, command: Command) {
        let generations = &mut self.configuration.generations;
        match command {
            Command::Reload { terms, answer } => {
                self.ask_for_reload(about(Cause::Api, terms), Wanted::File, Some(answer));
            }
            Command::PutConfig { text, if_match, terms, answer } => {
                self.put_config(text, if_match, about(Cause::Put, terms), answer);
            }
            Command::Rollback { generation, terms, answer } => match generations.find(generation).cloned() {
                Ok(kept) => {
                    self.ask_for_reload(about(Cause::Rollback, terms), Wanted::Kept(kept), Some(answer));
                }
                Err(refused) => _ = answer.send(Err(refused.into())),
            },
            Command::Confirm(answer) => {
                let confirmed = generations.confirm().map(|generation| Confirmed { generation });
                _ = answer.send(confirmed.map_err(Into::into));
            }
            Command::Config(answer) => _ = answer.send(self.config_view()),
            Command::History(answer) => _ = answer.send(generations.view()),
            Command::Generation { generation, answer } => {
                _ = answer.send(generations.view_of(generation).map_err(Into::into));
            }
            question => self.ask_threads(question),
        }
    }

    /// Sends requests to the packet threads, whose replies become the response.
    fn ask_threads(&mut self, command: Command) {
        let snapshot = self.publisher.current();
        let questions = &mut self.inspections.questions;
        match command {
            Command::Flows { filter, limit, answer } => match Filters::of(&filter, &snapshot) {
                Ok(filters) => questions.list(filters, limit, Box::new(answer)),
                Err(refused) => _ = answer.send(Err(refused.into())),
            },
            Command::PurgeFlows { filter, answer } => match Filters::of(&filter, &snapshot) {
                Ok(filters) => questions.purge(filters, Box::new(answer)),
                Err(refused) => _ = answer.send(Err(refused.into())),
            },
            Command::Where { source, destination, protocol, key: None, answer } => {
                questions.locate(source, destination, protocol, answer);
            }
            Command::Where { source, destination, protocol, key: Some(key), answer } => {
                let threads = self.forwarding.plane.packet_threads();
                let view = WhereView { source, destination, protocol, threads: Vec::new() };
                _ = answer.send(locate_key(view, &key, threads, &snapshot));
            }
            Command::Capture { command, answer } => self.capture(&command, answer),
            Command::HotKeys { command, answer } => self.count_keys(command, answer),
            Command::EndCapture(answer) => {
                _ = answer.send(self.inspections.captures.end().map(Into::into).map_err(Into::into))
            }
            // log: A client sent an API command that this version does not support. Use the command
            // line tool of this version.
            other => tracing::warn!(?other, "unknown API command"),
        }
    }

    fn capture(&mut self, command: &CaptureCommand, answer: Answer<Result<CaptureStream, Refusal>>) {
        let (plane, live, daemon) = (&self.forwarding.plane, self.publisher.live(), self.tasks.handle());
        let (threads, batch) = (plane.packet_threads(), datapath::MAX_BATCH);
        let tapped = Tapped { threads, batch, origin: plane.origin, live };
        let Inspections { questions, captures, .. } = &mut self.inspections;
        match captures.begin(command, tapped, move || daemon.send(Self::capture_is_over)) {
            Ok((taps, stream)) => {
                questions.tap(taps, Some(Box::new(CaptureBegun { stream: CaptureStream(stream), answer })));
            }
            Err(refused) => _ = answer.send(Err(refused.into())),
        }
    }

    /// Ends a capture. The memory of the capture is freed after the packet threads have stopped
    /// using it.
    fn capture_is_over(&mut self) {
        self.inspections.captures.is_over();
        self.inspections.questions.tap(Taps::new(), None);
    }

    /// Sends the list of backends. The report of the health thread is collected on another thread,
    /// because this may take a few milliseconds.
    fn answer_backends(&self, answer: Answer<Vec<BackendRow>>) {
        let (report, daemon) = (self.checks.report(), self.tasks.handle());
        tokio::task::spawn_blocking(move || {
            let reports = report();
            daemon.send(|daemon| {
                daemon.when_counted(move |daemon| {
                    let (threads, snapshot) = (&daemon.forwarding.plane.counters, daemon.publisher.current());
                    let traffic = |slot: forwarder::SlotId| of_slot(threads, slot.0);
                    let flows = daemon.inspections.counting.recent();
                    _ = answer.send(daemon.controller.backend_rows(&snapshot, traffic, flows, &reports));
                });
            });
        });
    }

    fn answer_vips(&mut self, answer: Answer<Vec<VipRow>>) {
        self.refresh_readiness();
        let (threads, snapshot) = (&self.forwarding.plane.counters, self.publisher.current());
        let mut rows = self.controller.vip_rows(&snapshot, |id| of_service(threads, id.0));
        self.lifecycle.liveness.readiness().fill(&mut rows);
        if let Some(counts) = self.inspections.counting.recent() {
            count_vips(&mut rows, counts, &snapshot);
        }
        _ = answer.send(rows);
    }

    fn answer_health(&self, answer: Answer<HealthView>) {
        let (report, own_fault) = (self.checks.report(), self.checks.local_failure());
        let config = self.controller.config().clone();
        let machine = self.controller.machine().to_owned();
        tokio::task::spawn_blocking(move || {
            let targets = Controller::health_rows(&report(), &config, &machine);
            _ = answer.send(HealthView { own_fault, targets });
        });
    }

    fn put_config(&mut self, text: String, if_match: Option<String>, about: About, answer: Client) {
        let etag = self.etag();
        // The client has edited the current generation, but a running reload is about to replace
        // that generation.
        if !self.configuration.reloads.is_idle() {
            let words = "a reload is in progress, read the configuration again afterwards";
            _ = answer.send(Err(Refusal::new(RefusalKind::Unavailable, words)));
        } else if if_match.is_some_and(|tag| tag != etag) {
            let words = format!(
                "the entity tag is out of date, the current tag is {etag}; read the configuration again"
            );
            _ = answer.send(Err(Refusal::new(RefusalKind::Stale, words)));
        } else {
            self.ask_for_reload(about, Wanted::Text(text), Some(answer));
        }
    }

    fn etag(&self) -> String {
        entity_tag(&self.api.boot_id, self.controller.generation().0)
    }

    fn config_view(&self) -> ConfigView {
        let config = self.controller.config();
        ConfigView {
            etag: self.etag(),
            sha256: hex(&config.digest()),
            source: self.configuration.origin.into(),
            files: texts(config),
        }
    }

    fn override_backend(
        &mut self,
        backend: OverrideKey,
        action: BackendAction,
        note: OverrideNote,
    ) -> Result<BackendChange, Refusal> {
        let (command, current) = (BackendOverride { backend, action, note }, self.publisher.current());
        let now = self.lifecycle.elapsed();
        let (snapshot, change) = self.overrides.answer(&mut self.controller, &command, &current, now)?;
        if let Some(snapshot) = snapshot {
            self.publish_states(snapshot);
        }
        self.inspections.counting.forget();
        Ok(change)
    }

    fn override_vip(
        &mut self,
        name: Option<&str>,
        action: VipAction,
        note: &OverrideNote,
    ) -> Result<VipChange, Refusal> {
        let machine = find_machine(self.controller.config(), self.controller.machine());
        let is_known = |name: &str| {
            machine
                .is_ok_and(|machine| self.controller.config().vips_of(machine).any(|vip| *vip.name == *name))
        };
        if let Some(unknown) = name.filter(|name| !is_known(name)) {
            return Err(Refused::NotFound(format!("no VIP \"{unknown}\" on this machine")).into());
        }
        self.look_at_vips();
        let vips = self.announcer.give(name, action, note)?;
        self.look_at_vips();
        Ok(self.announcer.change(&vips))
    }

    fn command_machine(&mut self, action: MachineAction) -> Result<MachineDrain, Refusal> {
        let seen = self.observed(Instant::now());
        let notes = self.lifecycle.command(action, seen, &mut self.announcer)?;
        Ok(self.lifecycle.shutdown.view(self.controller.machine(), &self.announcer, seen.now, notes))
    }
}

fn about(cause: Cause, ReloadTerms { by, confirm, force }: ReloadTerms) -> About {
    About { cause, by: Some(by), confirm, force }
}
