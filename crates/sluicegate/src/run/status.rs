//! Collects the status of the daemon for the API, the service manager and the log.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use admin::Answer;
use admin::view::{DownView, Drift, ForwarderView, Status, VipTotals};
use config::Source;
use config::words::count_of;
use control_plane::digest::hex;
use control_plane::reload::Origin;

use super::Daemon;

impl Daemon {
    /// Sends the status. Files are read and tables are hashed on another thread, so that the
    /// control loop is not blocked.
    pub(super) fn answer_status(&mut self, answer: Answer<Status>) {
        self.refresh_readiness();
        let (status, origin) = (self.status(), self.configuration.origin);
        let sources = match origin {
            Origin::Kept => self.controller.config().sources().to_vec(),
            _ => self.configuration.file_sources.clone(),
        };
        let (config, machine) = (Arc::clone(self.controller.config()), self.controller.machine().to_owned());
        let (digests, snapshot) = (Arc::clone(&self.api.digests), self.publisher.current());
        tokio::task::spawn_blocking(move || {
            let digests = digests.view(&config, &machine, &snapshot);
            drop(snapshot);
            let drift = match (origin, sources.iter().all(Source::is_unchanged)) {
                (Origin::Api, _) => Drift::Api,
                (_, true) => Drift::InSync,
                (Origin::Kept, false) => Drift::RolledBack,
                (Origin::File, false) => Drift::FileChanged,
            };
            _ = answer.send(Status { drift, digests, ..status });
        });
    }

    /// Returns the status without digests and without a comparison with the files on disk.
    fn status(&self) -> Status {
        let (snapshot, readiness) = (self.publisher.current(), self.lifecycle.liveness.readiness());
        let not_ready: Vec<String> = readiness.vips_not_ready().map(str::to_owned).collect();
        let total = readiness.vips().len();
        let (backends, down) = self.controller.state_totals(&snapshot);
        Status {
            generation: self.controller.generation().0,
            generation_sha256: hex(&self.controller.config().digest()),
            config_file: self.configuration.file.display().to_string(),
            ready: readiness.is_ready(),
            not_ready: readiness.not_ready(),
            vip_faults: readiness.vip_faults(DownView::MOST),
            stopping: self.is_draining(),
            forwarder: ForwarderView {
                healthy: readiness.forwarder_fault().is_none(),
                why: readiness.forwarder_fault().map(str::to_owned).into_iter().collect(),
                unhealthy_seconds: self.lifecycle.liveness.unhealthy().as_secs_f64(),
            },
            interfaces: self.forwarding.links.rows().to_vec(),
            vips: VipTotals { total, ready: total - not_ready.len() },
            backends,
            bgp: self.announcer.totals(),
            down: DownView {
                backends: down,
                vips: not_ready.into_iter().take(DownView::MOST).collect(),
                routers: self.announcer.without_session(),
            },
            overrides: self.overrides.rows(&self.controller, self.lifecycle.elapsed()),
            vip_overrides: self.announcer.override_rows(),
            log_level_override: self.api.logging.override_row(self.lifecycle.elapsed()),
            last_reload: self.configuration.reloads.last().map(Into::into),
            confirmation: self.configuration.generations.confirmation_row(self.lifecycle.elapsed()),
            own_fault: self.checks.local_failure(),
            needs_restart: self.needs_restart(),
            checks_unable: self.checks.unable(),
            warnings: self.warnings(),
            ..self.process_status()
        }
    }

    /// Returns the status fields that describe the process and its data plane.
    fn process_status(&self) -> Status {
        let plane = &self.forwarding.plane;
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: self.controller.machine().to_owned(),
            cluster: self.controller.config().cluster().name().to_owned(),
            boot_id: self.api.boot_id.clone(),
            started_unix_seconds: seconds_since_1970(self.lifecycle.started),
            uptime_seconds: self.lifecycle.uptime().as_secs_f64(),
            interface: self.forwarding.interface_names().join(", "),
            mode: plane.socket_mode.name().to_owned(),
            xdp_mode: plane.steers.mode().name().to_owned(),
            threads: plane.packet_threads(),
            io_threads: plane.counters.len() - plane.packet_threads(),
            ..Status::default()
        }
    }

    fn warnings(&self) -> Vec<String> {
        let links = self.forwarding.links.faults().iter().cloned();
        let file = self.configuration.warnings.iter().cloned();
        let daemon =
            links.chain(self.checks.warnings()).chain(file).chain(self.inspections.captures.running());
        let held = self.controller.held_pools();
        let held = held.iter().take(HELD_NAMED).map(ToString::to_string);
        let mut all: Vec<String> =
            daemon.chain(held).chain(self.announcer.warnings()).chain(self.cache_warning()).collect();
        let more = all.len().saturating_sub(WARNINGS_NAMED);
        if more > 0 {
            all.truncate(WARNINGS_NAMED);
            all.push(format!("and {}", count_of(more, "more warning")));
        }
        all
    }

    /// Returns the settings that were changed in the configuration but take effect only after a
    /// restart.
    pub(super) fn needs_restart(&self) -> Vec<String> {
        let (config, machine) = (self.controller.config(), self.controller.machine());
        let mut pending = self.configuration.running.pending(config, machine);
        pending.extend(self.announcer.needs_restart());
        pending.extend(self.api.listeners.fault());
        pending
    }

    /// Returns the status line for the service manager.
    pub(super) fn status_line(&self) -> String {
        let snapshot = self.publisher.current();
        let prefixes = match snapshot.filter_prefixes().len() {
            0 => String::new(),
            count => format!(" and {count} prefixes"),
        };
        let why = self.lifecycle.liveness.readiness().not_ready().join("; ");
        let ready = if why.is_empty() { "ready".to_owned() } else { format!("not ready ({why})") };
        format!(
            "{ready}, generation {}: {}{prefixes}, {} on {}",
            snapshot.generation().0,
            count_of(snapshot.filter().len(), "VIP address"),
            count_of(self.controller.index().backend_count(), "backend"),
            self.forwarding.interface_names().join(", ")
        )
    }

    /// Logs that the startup is complete.
    pub(super) fn log_startup(&self) {
        let (snapshot, plane) = (self.publisher.current(), &self.forwarding.plane);
        let unresolved: HashSet<IpAddr> =
            snapshot.slots().iter().filter(|slot| slot.next_hop.is_none()).map(|slot| slot.address).collect();
        // log: The startup is complete: health checks have results, and the machine may announce
        // VIPs. The fields describe the data plane and the configuration. The field `unresolved` is
        // the number of backends without a next hop.
        tracing::info!(
            change = "machine",
            machine = %self.controller.machine(),
            interface = %self.forwarding.interface_names().join(", "),
            queues = plane.queues(),
            threads = plane.packet_threads(),
            xdp_mode = plane.steers.mode().name(),
            socket_mode = plane.socket_mode.name(),
            largest_packet = plane.largest_packet,
            generation = snapshot.generation().0,
            vips = snapshot.filter().len(),
            prefixes = snapshot.filter_prefixes().len(),
            backends = self.controller.index().backend_count(),
            unresolved = unresolved.len(),
            "startup completed"
        );
    }
}

fn seconds_since_1970(time: std::time::SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The maximum number of warnings in the status. A large configuration file may have a warning on
/// every line.
const WARNINGS_NAMED: usize = 32;
/// The maximum number of pools in the list of pools whose health states are held by `max_down`. One
/// failed rack can affect the pools of many VIPs.
const HELD_NAMED: usize = 8;
