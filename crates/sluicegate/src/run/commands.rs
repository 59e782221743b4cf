//! Commands of the admin API.
//!
//! In: commands. Out: each one's answer, at once or when the work that it began is done.
//! Not here: HTTP (`admin`), what an order means and which are refused (`control_plane::{orders, drain}`).

use std::time::{Instant, SystemTime};

use admin::view::{
    BackendChange, BackendRow, ConfigView, Confirmed, HealthView, MachineDrain, Refusal, RefusalKind, VipRow,
    WhereView, entity_tag,
};
use admin::{Answer, BackendAction, Command, OrderNote};
use admin::{CaptureOrder, CaptureStream, MachineAction, ReloadTerms};
use compile::OverrideKey;
use control_plane::digest::hex;
use control_plane::questions::{Filters, Taps};
use control_plane::reload::{About, Cause, Wanted};
use control_plane::{BackendOrder, CaptureBegun, Controller, Tapped, count_vips, locate_key, texts};

use super::lifecycle::HandOver;
use super::reload::Client;
use super::{Daemon, Inspections};
use crate::stats::{of_service, of_slot};

impl Daemon {
    /// Answers, or begins what will. A client who has gone needs no answer.
    pub(super) fn handle_command(&mut self, command: Command) {
        if self.lifecycle.hand_over == HandOver::Frozen {
            return; // unanswered, as by a balancer that is stopping: what it ordered would be lost
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
                _ = answer.send(self.order_backend(backend, action, note));
            }
            Command::Events { query, answer } => {
                _ = answer.send(self.api.logging.events.view(&query, &self.api.boot_id, SystemTime::now()));
            }
            Command::Log(answer) => _ = answer.send(self.api.logging.view(self.lifecycle.elapsed())),
            Command::OrderLog { order, answer } => {
                _ = answer.send(self.api.logging.order(order, self.lifecycle.elapsed()));
            }
            Command::Bgp(answer) => _ = answer.send(self.announcer.view()),
            Command::Machine { action, answer } => _ = answer.send(self.order_machine(action)),
            Command::Upgrade { binary, answer } => self.upgrade(binary, answer),
            other => self.handle_generations(other),
        }
    }

    /// What is configured, and was.
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

    /// Questions that packet threads answer.
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
            Command::Capture { order, answer } => self.capture(&order, answer),
            Command::HotKeys { order, answer } => self.count_keys(order, answer),
            Command::EndCapture(answer) => {
                _ = answer.send(self.inspections.captures.end().map(Into::into).map_err(Into::into))
            }
            other => tracing::warn!(?other, "a command that this version does not know"),
        }
    }

    fn capture(&mut self, order: &CaptureOrder, answer: Answer<Result<CaptureStream, Refusal>>) {
        let (plane, live, daemon) = (&self.forwarding.plane, self.publisher.live(), self.turns.handle());
        let (threads, batch) = (plane.packet_threads(), datapath::MAX_BATCH);
        let tapped = Tapped { threads, batch, origin: plane.origin, live };
        let Inspections { questions, captures, .. } = &mut self.inspections;
        match captures.begin(order, tapped, move || daemon.send(Self::capture_is_over)) {
            Ok((taps, stream)) => {
                questions.tap(taps, Some(Box::new(CaptureBegun { stream: CaptureStream(stream), answer })));
            }
            Err(refused) => _ = answer.send(Err(refused.into())),
        }
    }

    /// The taps are closed: their memory is fetched.
    fn capture_is_over(&mut self) {
        self.inspections.captures.is_over();
        self.inspections.questions.tap(Taps::new(), None);
    }

    /// The health thread's report may take some milliseconds: another thread awaits it.
    fn answer_backends(&self, answer: Answer<Vec<BackendRow>>) {
        let (report, daemon) = (self.checks.report(), self.turns.handle());
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

    fn answer_vips(&self, answer: Answer<Vec<VipRow>>) {
        let (threads, snapshot) = (&self.forwarding.plane.counters, self.publisher.current());
        let mut rows = self.controller.vip_rows(&snapshot, |id| of_service(threads, id.0));
        if let Some(counts) = self.inspections.counting.recent() {
            count_vips(&mut rows, counts, &snapshot);
        }
        _ = answer.send(rows);
    }

    fn answer_health(&self, answer: Answer<HealthView>) {
        let (report, own_fault) = (self.checks.report(), self.checks.local_failure());
        tokio::task::spawn_blocking(move || {
            _ = answer.send(HealthView { own_fault, targets: Controller::health_rows(&report()) });
        });
    }

    fn put_config(&mut self, text: String, if_match: Option<String>, about: About, answer: Client) {
        let etag = self.etag();
        // A reload under way would make another generation of what the operator started from.
        if !self.configuration.reloads.is_idle() {
            let words = "a reload is under way: read the configuration again";
            _ = answer.send(Err(Refusal::new(RefusalKind::Unavailable, words)));
        } else if if_match.is_some_and(|tag| tag != etag) {
            let words = format!("the generation in force is {etag}: read the configuration again");
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

    fn order_backend(
        &mut self,
        backend: OverrideKey,
        action: BackendAction,
        note: OrderNote,
    ) -> Result<BackendChange, Refusal> {
        let (order, current) = (BackendOrder { backend, action, note }, self.publisher.current());
        let now = self.lifecycle.elapsed();
        let (snapshot, change) = self.orders.answer(&mut self.controller, &order, &current, now)?;
        if let Some(snapshot) = snapshot {
            self.publish_states(snapshot);
        }
        self.inspections.counting.forget();
        Ok(change)
    }

    fn order_machine(&mut self, action: MachineAction) -> Result<MachineDrain, Refusal> {
        let seen = self.observed(Instant::now());
        let notes = self.lifecycle.order(action, seen, &mut self.announcer)?;
        Ok(self.lifecycle.shutdown.view(self.controller.machine(), &self.announcer, seen.now, notes))
    }
}

fn about(cause: Cause, ReloadTerms { by, confirm, force }: ReloadTerms) -> About {
    About { cause, by: Some(by), confirm, force }
}
