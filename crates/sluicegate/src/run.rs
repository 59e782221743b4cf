//! Implements `sluicegate run`: starts the control plane and the data plane, and connects them in
//! one control loop.
//!
//! [`Daemon`] contains all components, and each component owns its state. The submodules `commands`
//! and `status` handle the API, `first_generation` handles startup, and `reload` and
//! `configuration` handle reloads. Health checks are in `checks` and `health_tunnel`, the data
//! plane is in `forwarding`, `links` and `reports`, and upgrades are in `upgrade` and
//! `predecessor`. Work that takes more than a few milliseconds runs on other threads, which send
//! results to the control loop through `loop_tasks`.

mod checks;
mod commands;
mod configuration;
mod counting;
mod first_generation;
mod forwarding;
mod health_events;
mod health_tunnel;
mod hot_keys;
mod lifecycle;
mod links;
mod loop_tasks;
mod next_hops;
mod predecessor;
mod reload;
mod reports;
mod settings;
mod status;
mod upgrade;
mod value_caches;
mod warnings;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use admin::Command;
use admin::view::VipRow;
use compile::{Compiler, find_machine};
use config::{Config, NextHop};
use control_plane::announce::{Announcer, Seen};
use control_plane::digest::Digests;
use control_plane::publisher::Publisher;
use control_plane::questions::Questions;
use control_plane::reload::Cause;
use control_plane::{Captures, Controller, Observed, Overrides, Paths, log_changes, services_seen};
use datapath::DataPlane;
use forwarder::{Notice, Slot, Snapshot};
use health::Event;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

pub(crate) use self::forwarding::{ends, filter};
pub(crate) use self::reports::unix_micros;
pub(crate) use self::settings::settings;

use self::checks::Checks;
use self::configuration::Configuration;
use self::counting::Counting;
use self::first_generation::{FIRST_NEXT_HOPS, first_generation, first_next_hops};
use self::forwarding::Forwarding;
use self::health_tunnel::HealthTunnel;
use self::lifecycle::{HandOver, Lifecycle};
use self::loop_tasks::LoopTasks;
use self::settings::inspected;
use self::upgrade::NewProcess;
use crate::listeners::{self, Listeners};
use crate::logging::Logging;
use crate::stats::most_drops;
use crate::{Source, config_check, liveness, logging, privileges};
use admin_client::EndSignals;

/// Runs until a drain that a signal has started is complete. A second signal ends the process
/// immediately.
pub(crate) fn run(source: &Source) -> anyhow::Result<()> {
    if !source.take_over {
        return run_by(source, None);
    }
    let (new_process, refusing) = NewProcess::receive()?;
    run_by(source, Some(new_process)).inspect_err(|error| refusing.refuse(error))
}

fn run_by(source: &Source, new_process: Option<NewProcess>) -> anyhow::Result<()> {
    let (config, warnings) = config_check::read(&source.config)?;
    let logging = logging::start(config.log())?;
    warnings::log(&reload::sentences(&warnings));
    privileges::seal();
    let machine = source.machine()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        // Signals are caught before the startup, so that the final counters are always logged.
        let signals = Signals::catch()?;
        let config = Arc::new(config);
        let configuration = Configuration::new(source.config.clone(), &config, &machine, warnings)?;
        let mut daemon = match new_process {
            None => Daemon::start(configuration, config, &machine, logging).await?,
            Some(new_process) => Daemon::come(configuration, config, &machine, logging, new_process).await?,
        };
        let ended = daemon.serve(signals).await;
        daemon.close().await;
        ended
    });
    // The process exits without waiting for blocked file accesses.
    runtime.shutdown_background();
    ended
}

struct Signals {
    hangup: Signal,
    end: EndSignals,
}

impl Signals {
    fn catch() -> std::io::Result<Self> {
        Ok(Self { hangup: signal(SignalKind::hangup())?, end: EndSignals::catch()? })
    }
}

struct Daemon {
    configuration: Configuration,
    controller: Controller,
    overrides: Overrides,
    publisher: Publisher,
    announcer: Announcer,
    paths: Paths,
    forwarding: Forwarding,
    checks: Checks,
    inspections: Inspections,
    lifecycle: Lifecycle,
    api: Api,
    tasks: LoopTasks<Self>,
}

#[derive(Default)]
struct Inspections {
    questions: Questions,
    captures: Captures,
    counting: Counting,
    /// `true` while packet threads count memcached keys for `kv top`.
    counts_keys: bool,
    /// The size in bytes of the value cache of each packet thread.
    cached: usize,
}

struct Api {
    commands: mpsc::Receiver<Command>,
    listeners: Listeners,
    boot_id: String,
    digests: Arc<Digests>,
    logging: Logging,
}

impl Api {
    async fn open(
        config: &Config,
        machine: &str,
        readiness: watch::Receiver<admin::Readiness>,
        logging: Logging,
    ) -> anyhow::Result<Self> {
        let mut api = Self::closed(machine, readiness, logging);
        let bound = listeners::bind(config, machine, &api.listeners.existing()).await?;
        api.listeners.take(config, machine, bound);
        Ok(api)
    }

    fn closed(machine: &str, readiness: watch::Receiver<admin::Readiness>, logging: Logging) -> Self {
        let (overrides, commands) = mpsc::channel(COMMANDS_WAITING);
        let listeners = Listeners::new(machine, overrides, readiness);
        Self { commands, listeners, boot_id: boot_id(), digests: Arc::default(), logging }
    }
}

impl Daemon {
    async fn start(
        configuration: Configuration,
        config: Arc<Config>,
        machine: &str,
        logging: Logging,
    ) -> anyhow::Result<Self> {
        let lifecycle = Lifecycle::new();
        let interfaces = inspected(&config, machine)?;
        let next_hops = first_next_hops(&config, machine, &interfaces).await?;
        let (controller, live) =
            first_generation(Compiler::default(), &config, machine, &next_hops, lifecycle.elapsed())?;
        let settings = settings(&config, &interfaces);
        let plane = DataPlane::start(interfaces, &settings, &live)?;
        let mut forwarding = Forwarding::new(plane, config.io().source_ports.clone());
        let api = Api::open(&config, machine, lifecycle.liveness.subscribe(), logging).await?;
        let paths = Paths::open(next_hops, &config, machine, &live.current())?;
        let announcer = open_announcer(&config, machine, &mut forwarding)?;
        let tunnel =
            HealthTunnel::new(machine, forwarding.interface_names(), live.clone(), paths.check_hops());
        let mut daemon = Self {
            configuration,
            controller,
            overrides: Overrides::default(),
            publisher: Publisher::new(live),
            announcer,
            paths,
            forwarding,
            checks: Checks::start(tunnel, &config).await?,
            inspections: Inspections::default(),
            lifecycle,
            api,
            tasks: LoopTasks::new(),
        };
        daemon.begin().await?;
        Ok(daemon)
    }

    async fn begin(&mut self) -> anyhow::Result<()> {
        self.know_gateways().await;
        let config = Arc::clone(self.controller.config());
        let machine = self.controller.machine();
        self.publisher.open(&config, machine, addresses_here(), &mut self.forwarding)?;
        self.begin_checks();
        Ok(())
    }

    /// Looks up the next hops first, because with `next_hop = "reflect"` packets from unknown
    /// gateways are dropped.
    async fn know_gateways(&mut self) {
        if self.controller.config().io().next_hop == NextHop::Reflect
            && let Ok(Some(table)) = tokio::time::timeout(FIRST_NEXT_HOPS, self.paths.found()).await
        {
            self.take_next_hops(table);
        }
    }

    /// Resumes the BGP announcements of the previous process before the first session starts.
    fn speak_again(&mut self) -> anyhow::Result<()> {
        let config = Arc::clone(self.controller.config());
        let machine = find_machine(&config, self.controller.machine())?;
        self.announcer = std::mem::take(&mut self.announcer).resume(&config, machine)?;
        if let Err(error) = privileges::give_up(|| self.forwarding.plane.steers.may_change()) {
            // log: The kernel refused to drop capabilities, so the process has more privileges than
            // it needs. Start the process with the packaged systemd unit.
            tracing::warn!(%error, "capabilities not dropped");
        }
        self.look_at_vips();
        self.announcer.begin()?;
        Ok(())
    }

    fn begin_checks(&mut self) {
        let config = Arc::clone(self.controller.config());
        self.lifecycle.await_checks(&config);
        self.checks.watch(&self.controller);
        self.follow_caches();
        warn_of_small_mtus(&config, &self.publisher.current());
        self.become_ready_when_checked();
    }

    /// Runs the control loop, one event at a time. Fails if an interface no longer exists.
    async fn serve(&mut self, mut signals: Signals) -> anyhow::Result<()> {
        let mut housekeeping = interval(HOUSEKEEPING);
        let [mut looks, mut steps] = [liveness::EVERY, QUESTION_STEPS].map(|every| {
            let mut ticks = interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        let ended = loop {
            let due = self.stall_is_due().map(tokio::time::Instant::from_std);
            tokio::select! {
                // Health states are handled first, because a backend that is down must get no
                // packets.
                biased;
                Some(event) = self.checks.next() => self.take_event(event),
                () = signals.end.recv() => if self.is_to_end() { break Ok(()) },
                _ = looks.tick() => if self.look() { break Ok(()) },
                () = sleep_until(due.unwrap_or_else(tokio::time::Instant::now)), if due.is_some() => {
                    if self.look() { break Ok(()) }
                }
                _ = signals.hangup.recv(), if !self.is_draining() => self.read_file(Cause::Signal),
                Some(turn) = self.tasks.next() => turn(self),
                Some(table) = self.paths.found() => self.take_next_hops(table),
                Some(command) = self.api.commands.recv() => self.handle_command(command),
                _ = steps.tick(), if !self.inspections.questions.is_idle() => self.step_questions(),
                _ = housekeeping.tick() => if let Err(error) = self.housekeeping() {
                    break Err(error);
                },
            }
            if self.lifecycle.hand_over == HandOver::Over {
                break Ok(());
            }
            self.begin_waiting_work();
            self.checks.flush(&self.controller);
            self.become_ready_when_checked();
        };
        self.log_final_counters();
        ended
    }

    fn take_event(&mut self, event: Event) {
        if let Event::Flushed(outcomes) = &event {
            self.take_flushed(outcomes);
        }
        if let Event::Advised(advised) = &event {
            self.take_advice(advised);
        }
        if let Event::Hops(changed) = event {
            return self.take_failing_hops(changed);
        }
        let Some(turned) = self.checks.take(event) else { return };
        let health_states: Vec<_> = turned.iter().map(|turned| (turned.key.clone(), turned.state)).collect();
        let now = self.lifecycle.elapsed();
        match self.controller.health_states(&health_states, &self.publisher.current(), now) {
            Ok(Some(snapshot)) => self.publish_states(snapshot),
            Ok(None) => {}
            // log: New health states could not be applied. The next change of a health state also
            // applies these states. Report a bug if the line is repeated.
            Err(error) => tracing::error!(%error, "health states not applied"),
        }
        log_changes(&self.controller, &turned);
    }

    /// Publishes changed health states or tables. The XDP filter stays unchanged.
    fn publish_states(&mut self, snapshot: Snapshot) {
        self.renew(snapshot);
        self.look_at_vips();
    }

    fn follow_own_addresses(&mut self) {
        let (config, machine) = (self.controller.config(), self.controller.machine());
        let filter = &mut self.forwarding;
        match self.publisher.follow_own_addresses(config, machine, addresses_here, filter) {
            Ok(false) => {}
            Ok(true) => {
                // log: An address of this machine was added or removed. Packets to the new
                // addresses are passed to the kernel.
                tracing::info!(change = "machine", "machine addresses changed");
            }
            // log: The kernel refused an update of a BPF map. A new address of this machine may not
            // be reachable if it is in a prefix group. Plan a restart.
            Err(error) => tracing::error!(%error, "machine addresses not applied to the XDP filter"),
        }
    }

    fn step_questions(&mut self) {
        let (snapshot, index) = (self.publisher.current(), self.controller.index());
        self.inspections.questions.step(&mut self.forwarding, &snapshot, index);
    }

    /// Runs the periodic tasks, once per second. Fails if an interface no longer exists.
    fn housekeeping(&mut self) -> anyhow::Result<()> {
        if self.lifecycle.hand_over == HandOver::Frozen {
            return Ok(());
        }
        self.forwarding.look_at_links()?;
        let (current, now) = (self.publisher.current(), self.lifecycle.elapsed());
        match self.overrides.expire(&mut self.controller, &current, now) {
            Ok(Some(snapshot)) => self.publish_states(snapshot),
            Ok(None) => {}
            // log: An override has expired but could not be removed. Remove it with `backend
            // undrain`, `backend up` or `backend weight NAME file`.
            Err(error) => tracing::error!(%error, "expired override not removed"),
        }
        self.api.logging.expire(now);
        match self.controller.tick(&self.publisher.current(), self.lifecycle.elapsed()) {
            Ok(Some(snapshot)) => {
                self.publish_states(snapshot);
                let (config, machine) = (self.controller.config(), self.controller.machine());
                self.paths.follow(config, machine, &self.publisher.current());
                self.checks.watch(&self.controller);
                // log: The drain time of a backend or the hold time of a fallback pool has elapsed,
                // and the tables are rebuilt.
                tracing::info!("drain or fallback time elapsed");
            }
            Ok(None) => {}
            // log: The drain time of a backend has elapsed, but the backend could not be removed
            // from the tables. The removal will be retried. Report a bug if the line is repeated.
            Err(error) => tracing::error!(%error, "drained backend not removed"),
        }
        self.publisher.live().reclaim();
        self.follow_own_addresses();
        self.repair_tunnel();
        Ok(())
    }

    fn repair_tunnel(&mut self) {
        // A running reload may be opening the tunnel at this moment.
        if !self.configuration.reloads.is_idle() {
            return;
        }
        let Some(repair) = self.checks.begin_repair(Arc::clone(self.controller.config())) else { return };
        let daemon = self.tasks.handle();
        tokio::spawn(async move {
            let found = repair.await;
            daemon.send(|daemon| daemon.checks.repaired(found, &daemon.controller));
        });
    }

    /// Returns the time at which a thread becomes stuck, or at which a stall withdraws VIPs. The
    /// decisions are made immediately, not at the next regular check.
    fn stall_is_due(&self) -> Option<Instant> {
        let max_stall = self.controller.config().bgp().map_or(Duration::MAX, |bgp| bgp.max_stall);
        let left = self.forwarding.plane.due_in(max_stall)?;
        (self.lifecycle.hand_over != HandOver::Frozen).then(|| Instant::now() + left)
    }

    /// Checks the data plane, four times per second. Returns `true` if a drain is complete.
    fn look(&mut self) -> bool {
        if self.lifecycle.hand_over == HandOver::Frozen {
            // During a hand-over some packet threads already run in the new process and cannot be
            // checked. The service manager still expects heartbeats from this process.
            self.lifecycle.liveness.beat(Instant::now());
            return false;
        }
        let seen = self.observed(Instant::now());
        self.lifecycle.liveness.take(self.forwarding.plane.health(), seen.now);
        self.lifecycle.liveness.paused(self.forwarding.plane.pause());
        self.publisher.live().clock().set(unix_seconds());
        self.take_notices();
        self.look_at_vips();
        if !self.is_draining() {
            if self.configuration.has_changed(seen.now) {
                self.read_file(Cause::Watch);
            }
            self.go_back_when_due();
        }
        self.lifecycle.advance_drain(seen, &mut self.announcer)
    }

    fn take_notices(&mut self) {
        let now = self.lifecycle.elapsed();
        let mut changed = self.paths.expire(now);
        let (mut events, mut partial, mut lowered) = (Vec::new(), Vec::new(), 0_usize);
        for notice in self.forwarding.plane.notices() {
            match notice {
                Notice::PathMtu { destination, mtu } => {
                    if self.paths.learn(destination, mtu, now) {
                        lowered += 1;
                        if lowered <= PATHS_NAMED {
                            // log: An ICMP error reported a path MTU below the MTU of the link.
                            // Larger packets are fragmented, or the sender receives a
                            // packet-too-big error.
                            tracing::info!(address = %destination, mtu, "path MTU lowered");
                        }
                    }
                }
                Notice::Trace(event) => events.push(event),
                Notice::PartialChecksum { interface } => partial.push(interface),
            }
        }
        for interface in partial {
            self.forwarding.links.saw_partial(interface);
        }
        if let Some(more) = lowered.checked_sub(PATHS_NAMED).filter(|more| *more > 0) {
            // log: More path MTUs were lowered at the same time than the log shows. The field
            // `more` contains the number of path MTUs that are not shown.
            tracing::info!(more, "more path MTUs lowered");
        }
        changed |= lowered > 0;
        if changed {
            self.renew_paths();
        }
        self.forwarding.report(&events, &self.publisher.current(), &self.controller);
    }

    /// Updates the BGP announcements and the readiness of the VIPs.
    fn look_at_vips(&mut self) {
        let rows = self.controller.vip_rows(&self.publisher.current(), |_| Default::default());
        let services = services_seen(&rows);
        let liveness = &mut self.lifecycle.liveness;
        let fault = liveness.fault(self.forwarding.plane.stalled());
        let seen = Seen { fault, set_up: liveness.has_results(), services };
        self.announcer.look(&seen, self.lifecycle.elapsed());
        self.look_at_readiness(&rows);
    }

    /// Updates the readiness for a response, so that it agrees with the BGP state in the same
    /// response.
    fn refresh_readiness(&mut self) {
        let rows = self.controller.vip_rows(&self.publisher.current(), |_| Default::default());
        self.look_at_readiness(&rows);
    }

    /// Updates the readiness of the machine and its VIPs.
    fn look_at_readiness(&mut self, rows: &[VipRow]) {
        let vips = self.announcer.vip_states(rows);
        self.lifecycle.liveness.look(self.forwarding.links.rows(), vips);
        if self.lifecycle.liveness.news() && !self.is_draining() {
            self.lifecycle.manager().status(&self.status_line());
        }
    }

    fn become_ready_when_checked(&mut self) {
        if !self.lifecycle.becomes_ready(&self.controller) {
            return;
        }
        self.lifecycle.liveness.is_set_up();
        self.log_startup();
        self.look_at_vips();
        self.lifecycle.manager().ready(&self.status_line());
    }

    fn is_draining(&self) -> bool {
        self.lifecycle.shutdown.is_draining()
    }

    /// Handles SIGTERM or SIGINT. Returns `true` if the process must end now.
    fn is_to_end(&mut self) -> bool {
        let seen = self.observed(Instant::now());
        self.lifecycle.signal(seen, &mut self.announcer)
    }

    fn observed(&self, now: Instant) -> Observed {
        let drain_time = self.controller.config().cluster().drain_time;
        Observed { now, drain_time, forwarded: self.forwarding.forwarded() }
    }

    fn log_final_counters(&mut self) {
        let total = self.forwarding.stats(&self.publisher.current(), self.controller.index()).total;
        self.api.listeners.close();
        // log: The process is stopping. The fields contain the final counters of the process.
        tracing::info!(
            event = "final_counters",
            received = total.rx,
            forwarded = total.tx,
            answered = total.replies,
            dropped = total.drops.values().sum::<u64>(),
            drops = %most_drops(&total),
            "stopping"
        );
    }

    /// Closes the BGP sessions, detaches from the interfaces and removes the health check tunnel.
    async fn close(self) {
        let Self { checks, forwarding, announcer, .. } = self;
        // BGP is closed first, so packets that routers still send until then are forwarded.
        announcer.close(FAREWELL).await;
        let tunnel = checks.stop();
        drop(forwarding.plane);
        tunnel.close().await;
    }
}

/// Starts BGP and drops capabilities. The BGP listeners are opened first, because they may use
/// privileged ports. The BGP sessions start after capabilities have been dropped.
fn open_announcer(config: &Config, machine: &str, forwarding: &mut Forwarding) -> anyhow::Result<Announcer> {
    let mut announcer = Announcer::open(config, find_machine(config, machine)?)?;
    if let Err(error) = privileges::give_up(|| forwarding.plane.steers.may_change()) {
        // log: The kernel refused to drop capabilities, so the process has more privileges than it
        // needs. Start the process with the packaged systemd unit.
        tracing::warn!(%error, "capabilities not dropped");
    }
    // Threads that start from now on inherit the reduced capabilities of this thread.
    announcer.begin()?;
    Ok(announcer)
}

/// Warns if the path MTU to a backend is too small for full-size client packets.
fn warn_of_small_mtus(config: &Config, snapshot: &Snapshot) {
    let clients = config.cluster().mtu.clients as usize;
    let wanted = |slot: &Slot| clients + slot.encap_overhead();
    let tight = |slot: &&Slot| slot.next_hop.is_some() && usize::from(slot.mtu) < wanted(slot);
    if let Some(slot) = snapshot.slots().iter().find(tight) {
        // log: The path MTU to a backend is too small for full-size client packets plus the outer
        // headers. Such packets are fragmented or rejected with an ICMP error. Raise the MTU toward
        // the backends (`doctor` measures the path) or lower `cluster.mtu.clients`.
        tracing::warn!(
            backend = %slot.backend,
            mtu = slot.mtu,
            wanted = wanted(slot),
            backends = snapshot.slots().iter().filter(tight).count(),
            "path MTU too small"
        );
    }
}

fn addresses_here() -> BTreeSet<IpAddr> {
    diagnosis::addresses_here().collect()
}

fn unix_seconds() -> u64 {
    unix_micros(SystemTime::now()) / 1_000_000
}

fn boot_id() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{:x}{:x}", since, std::process::id())
}

/// The shutdown communication (RFC 9003) that is sent to BGP routers.
const FAREWELL: &str = "sluicegate is stopping";
const COMMANDS_WAITING: usize = 64;
const HOUSEKEEPING: Duration = Duration::from_secs(1);
const QUESTION_STEPS: Duration = Duration::from_millis(1);
/// The maximum number of log lines for path MTUs that are lowered at the same time.
const PATHS_NAMED: usize = 8;
