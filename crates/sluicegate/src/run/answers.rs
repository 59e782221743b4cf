//! Answers to the admin API.
//!
//! In: commands. Out: each one's answer, at once or when the work that it began is done.
//! Not here: HTTP (`admin`).

use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use admin::command::{Answer, BackendAction, Command, FlowQuery};
use admin::view::{
    BackendChange, ConfigSource, ConfigText, ConfigView, DigestView, Drift, ForwarderView, HealthView,
    MembershipChange, OverrideRow, Refusal, RefusalKind, Status, VipTotals, entity_tag,
};
use config::Source;
use control_plane::controller::Controller;
use control_plane::digest::hex;
use control_plane::shown;
use control_plane::standing::{Mode, Override, OverrideKey};
use forwarder::Flow;
use health::TargetReport;

use super::Balancer;
use super::capture::Running;
use super::flows::Filters;
use super::reload::Origin;
use super::work::{Finished, Wanting};
use crate::stats::{of_service, of_slot, stats};

impl Balancer {
    /// Answers, or begins what will. An asker who has gone needs no answer.
    pub(super) fn obey(&mut self, command: Command) {
        let snapshot = self.live.current();
        match command {
            Command::Status(answer) => self.tell_status(answer),
            Command::Vips(answer) => {
                let threads = self.plane.counters();
                _ = answer.send(self.controller.vip_rows(&snapshot, |id| of_service(threads, id.0)));
            }
            Command::Backends(answer) => self.ask_health(Wanting::Backends(answer)),
            Command::Health(answer) => self.ask_health(Wanting::Health(answer)),
            Command::Stats(answer) => _ = answer.send(stats(&mut self.plane, &snapshot)),
            Command::Backend { name, pool, action, answer } => {
                let whom = (Arc::from(name.as_str()), pool.as_deref().map(Arc::from));
                _ = answer.send(self.order(whom, action));
            }
            Command::Reload(answer) => self.reloads.ask(Origin::Asked(answer)),
            Command::PutConfig { text, if_match, answer } => self.put(text, if_match, answer),
            Command::Config(answer) => _ = answer.send(self.config_view()),
            Command::Flows { filter, limit, answer } => match self.filters(&filter) {
                Ok(filters) => self.walks.list(filters, limit, answer),
                Err(refusal) => _ = answer.send(Err(refusal)),
            },
            Command::PurgeFlows { filter, answer } => match self.filters(&filter) {
                Ok(filters) => self.walks.purge(filters, answer),
                Err(refusal) => _ = answer.send(Err(refusal)),
            },
            Command::Bgp(answer) => _ = answer.send(self.announcer.view()),
            Command::Machine { action, answer } => _ = answer.send(self.order_machine(action)),
            Command::Capture { order, answer } => self.capture(order, answer),
            Command::EndCapture(answer) => self.end_capture(answer),
            Command::Where { source, destination, protocol, answer } => {
                let ends = |socket: std::net::SocketAddr| (socket.ip(), socket.port());
                match Flow::new(ends(source), ends(destination), protocol) {
                    Some(flow) => self.walks.locate((source, destination, protocol), flow, answer),
                    None => {
                        let words = "source and destination are of different families";
                        _ = answer.send(Err(Refusal::new(RefusalKind::Conflict, words)));
                    }
                }
            }
            other => tracing::warn!(?other, "an order that this version does not know"),
        }
        self.advance();
    }

    /// The health thread's report may take some milliseconds: it is awaited elsewhere.
    fn ask_health(&self, wanting: Wanting) {
        let (health, done) = (Arc::clone(&self.health), self.finished.0.clone());
        tokio::task::spawn_blocking(move || {
            let _ = done.send(Finished::Reported(health.report(), wanting)); // nobody listens: the balancer has ended
        });
    }

    pub(super) fn tell_health(&self, reports: &[TargetReport], wanting: Wanting) {
        match wanting {
            Wanting::Backends(answer) => {
                let (threads, snapshot) = (self.plane.counters(), self.live.current());
                let rows = self.controller.backend_rows(&snapshot, |slot| of_slot(threads, slot.0), reports);
                _ = answer.send(rows);
            }
            Wanting::Health(answer) => {
                _ = answer.send(HealthView {
                    own_fault: self.own_fault.map(|since| own_fault_words(since.elapsed())),
                    targets: Controller::health_rows(reports),
                });
            }
        }
    }

    fn put(
        &mut self,
        text: String,
        if_match: Option<String>,
        answer: Answer<Result<admin::view::ReloadReport, Refusal>>,
    ) {
        let etag = self.etag();
        // A reload under way would make another generation of what the operator started from.
        if !self.reloads.is_idle() {
            let refusal =
                Refusal::new(RefusalKind::Unavailable, "a reload is under way: read the configuration again");
            _ = answer.send(Err(refusal));
        } else if if_match.is_some_and(|tag| tag != etag) {
            let words = format!("the generation in force is {etag}: read the configuration again");
            _ = answer.send(Err(Refusal::new(RefusalKind::Stale, words)));
        } else {
            self.reloads.ask(Origin::Put(text, answer));
        }
    }

    fn etag(&self) -> String {
        entity_tag(&self.boot_id, self.controller.generation().0)
    }

    fn config_view(&self) -> ConfigView {
        let config = self.controller.config();
        let text = |source: &Source| ConfigText {
            path: source.path().display().to_string(),
            text: source.text().to_string(),
        };
        ConfigView {
            etag: self.etag(),
            sha256: hex(&config.digest()),
            source: self.source,
            files: config.sources().iter().filter(|source| !source.is_list()).map(text).collect(),
        }
    }

    pub(super) fn filters(&self, query: &FlowQuery) -> Result<Filters, Refusal> {
        let snapshot = self.live.current();
        let absent =
            |what: &str, name: &str| Refusal::new(RefusalKind::NotFound, format!("no {what} \"{name}\""));
        match query {
            FlowQuery::All => Ok(Filters::All),
            FlowQuery::Vip(name) => {
                let of_vip = |service: &&forwarder::Service| {
                    service.name.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with(' '))
                };
                let ids: std::collections::HashSet<_> =
                    snapshot.services().iter().filter(of_vip).map(|service| service.id).collect();
                if ids.is_empty() { Err(absent("VIP", name)) } else { Ok(Filters::Services(ids)) }
            }
            FlowQuery::Backend(name) => {
                let slots: std::collections::HashSet<_> = (0..)
                    .zip(snapshot.slots())
                    .filter(|(_, slot)| *slot.backend == **name)
                    .map(|(number, _)| forwarder::SlotId(number))
                    .collect();
                if slots.is_empty() { Err(absent("backend", name)) } else { Ok(Filters::Slots(slots)) }
            }
        }
    }

    fn order(&mut self, whom: OverrideKey, action: BackendAction) -> Result<BackendChange, Refusal> {
        let snapshot = self.live.current();
        let before = self.controller.stand(&whom, &snapshot);
        if before.is_empty() {
            let pool = whom.1.as_ref().map(|pool| format!(" in pool \"{pool}\"")).unwrap_or_default();
            return Err(Refusal::new(RefusalKind::NotFound, format!("no backend \"{}\"{pool}", whom.0)));
        }
        let old = self.controller.standing().overrides.get(&whom).copied().unwrap_or_default();
        let new = match action {
            BackendAction::Drain => Override { mode: Some(Mode::Drain), ..old },
            BackendAction::Undrain => Override { mode: old.mode.filter(|mode| *mode != Mode::Drain), ..old },
            BackendAction::Down => Override { mode: Some(Mode::Down), ..old },
            BackendAction::Up => Override::default(),
            BackendAction::Weight(weight) => Override { weight, ..old },
        };
        let mut notes = Vec::new();
        if new.weight.is_some_and(|weight| weight > MAX_WEIGHT) {
            let words = format!("a weight is from 0 to {MAX_WEIGHT}");
            return Err(Refusal::new(RefusalKind::Conflict, words));
        }
        if matches!(action, BackendAction::Undrain) && old.mode == Some(Mode::Down) {
            notes.push("it stays down by an operator's order: `backend up` takes that back".to_owned());
        }
        let says = (new != Override::default()).then_some(new);
        self.ordered.retain(|key, _| *key != whom);
        if says.is_some() {
            self.ordered.insert(whom.clone(), Instant::now());
        }
        let next = self.controller.order(whom.clone(), says, &snapshot, self.origin.elapsed());
        if let Ok(Some(next)) = next {
            self.publish_states(next);
        }
        let now = self.live.current();
        let pairs = before.into_iter().zip(self.controller.stand(&whom, &now));
        let memberships: Vec<MembershipChange> = pairs
            .map(|(before, after)| MembershipChange {
                before: before.before,
                weight_before: before.weight_before,
                ..after
            })
            .collect();
        if memberships.iter().all(|change| change.overridden.is_some()) {
            notes.push("an order is lost at a restart: write it into the file if it is to last".to_owned());
        }
        Ok(BackendChange { backend: whom.0.to_string(), generation: now.generation().0, memberships, notes })
    }

    fn tell_status(&mut self, answer: Answer<Status>) {
        let (status, sources, by_api) =
            (self.status_view(), self.file_sources.clone(), self.source == ConfigSource::Api);
        let (config, machine) = (Arc::clone(self.controller.config()), self.controller.machine().to_owned());
        let (digests, snapshot) = (Arc::clone(&self.digests), self.live.current());
        // Files are read, and tables gone through, off the control loop.
        tokio::task::spawn_blocking(move || {
            let digests = digests.view(&config, &machine, &snapshot);
            drop(snapshot);
            let drift = match (by_api, sources.iter().all(Source::is_unchanged)) {
                (true, _) => Drift::Api,
                (false, true) => Drift::InSync,
                (false, false) => Drift::FileChanged,
            };
            _ = answer.send(Status { drift, digests, ..status });
        });
    }

    fn status_view(&self) -> Status {
        let snapshot = self.live.current();
        let threads = self.plane.counters();
        let vips = self.controller.vip_rows(&snapshot, |id| of_service(threads, id.0));
        let liveness = self.liveness.state();
        let config = self.controller.config();
        let override_row = |(whom, says): (&OverrideKey, &Override)| {
            Some(OverrideRow {
                backend: whom.0.to_string(),
                pool: whom.1.as_ref().map(ToString::to_string),
                says: shown(*says)?,
                since_seconds: self.ordered.get(whom).map_or(0.0, |since| since.elapsed().as_secs_f64()),
            })
        };
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: self.controller.machine().to_owned(),
            cluster: config.cluster().name().to_owned(),
            boot_id: self.boot_id.clone(),
            generation: self.controller.generation().0,
            generation_sha256: hex(&config.digest()),
            digests: DigestView::default(),
            config_file: self.file.display().to_string(),
            drift: Drift::default(),
            started_unix_seconds: self.started.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            uptime_seconds: self.origin.elapsed().as_secs_f64(),
            ready: liveness.is_ready(),
            not_ready: liveness.why_not(),
            stopping: liveness.draining,
            forwarder: ForwarderView {
                healthy: liveness.health.is_healthy(),
                why: if liveness.health.is_healthy() {
                    Vec::new()
                } else {
                    vec![liveness.health.to_string()]
                },
            },
            interface: self.interface_names().join(", "),
            interfaces: self.links.rows().to_vec(),
            mode: self.plane.socket_mode().name().to_owned(),
            xdp_mode: self.plane.attach_mode().name().to_owned(),
            threads: threads.len(),
            vips: VipTotals { total: vips.len(), ready: vips.iter().filter(|vip| vip.ready).count() },
            backends: self.controller.state_totals(&snapshot),
            bgp: self.announcer.totals(),
            overrides: self.controller.standing().overrides.iter().filter_map(override_row).collect(),
            last_reload: self.reloads.last.clone(),
            own_fault: self.own_fault.map(|since| own_fault_words(since.elapsed())),
            needs_restart: self.needs_restart(),
            checks_unable: self.unable.len(),
            warnings: {
                let unable = self.unable.warning(Instant::now());
                let capture = self.capture.as_ref().map(Running::told);
                let links = self.links.faults().iter().chain(&self.warnings);
                let all = links.chain(&self.tunnel_fault).cloned().chain(unable).chain(capture);
                all.chain(self.announcer.warnings()).collect()
            },
        }
    }
}

/// Why verdicts are held.
pub(super) fn own_fault_words(since: Duration) -> String {
    format!(
        "for {:.0} s no check of any backend has passed: taken for this machine's own fault, the last states stay",
        since.as_secs_f64()
    )
}

/// As in the file.
const MAX_WEIGHT: u32 = 65_535;
