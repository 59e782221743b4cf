//! `sluicegate run`: both planes, wired.
//!
//! In: a configuration, signals, next hops, verdicts of health checks, commands of the admin API. Out: a running balancer.
//! Each part owns its state; [`Daemon`] is all of them on one loop. Modules: `commands` and `status` (the API), `reload` (its
//! steps), `configuration`, `first_generation`, `checks` with `health_tunnel`, `forwarding` with `links` and `reports`, `lifecycle`,
//! `hot_keys`, `value_caches`, `counting`, `settings`, `turns` (work of other threads), `upgrade` (a new process in this one's place)
//! with `predecessor`.
//! Not here: any decision about a packet, a configuration, health, an order or a drain (`control_plane`).
//! Invariant: nothing that takes more than a few milliseconds runs on the control loop.

mod checks;
mod commands;
mod configuration;
mod counting;
mod first_generation;
mod forwarding;
mod health_tunnel;
mod hot_keys;
mod lifecycle;
mod links;
mod predecessor;
mod reload;
mod reports;
mod settings;
mod status;
mod turns;
mod upgrade;
mod value_caches;

use std::cell::LazyCell;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use admin::Command;
use admin::view::VipRow;
use compile::{Compiler, find_machine};
use config::words::few;
use config::{Config, NextHop};
use control_plane::announce::{Announcer, Seen};
use control_plane::digest::Digests;
use control_plane::publisher::Publisher;
use control_plane::questions::Questions;
use control_plane::reload::Cause;
use control_plane::{Captures, Controller, Observed, Orders, Paths, log_changes, log_flushed, services_seen};
use datapath::DataPlane;
use forwarder::{Notice, Slot, Snapshot};
use health::{Event, Flushed};
use next_hop::Table;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};

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
use self::settings::inspected;
use self::turns::Turns;
use self::upgrade::Coming;
use crate::listeners::{self, Listeners};
use crate::logging::Logging;
use crate::stats::most_drops;
use crate::{Source, config_check, liveness, logging, privileges};
use admin_client::EndSignals;

/// Runs until SIGTERM or SIGINT, and then until the drain is over; a second signal ends it at once.
pub(crate) fn run(source: &Source) -> anyhow::Result<()> {
    if !source.take_over {
        return run_by(source, None);
    }
    let (coming, refusing) = Coming::receive()?;
    run_by(source, Some(coming)).inspect_err(|error| refusing.refuse(error))
}

/// `coming`: in the place of another process.
fn run_by(source: &Source, coming: Option<Coming>) -> anyhow::Result<()> {
    let (config, warnings) = config_check::read(&source.config)?;
    let logging = logging::start(config.log())?;
    for warning in reload::sentences(&warnings) {
        tracing::warn!("{warning}");
    }
    privileges::seal();
    let machine = source.machine()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        // Before the start, so that none ends the process without its final counters.
        let signals = Signals::catch()?;
        let config = Arc::new(config);
        let configuration = Configuration::new(source.config.clone(), &config, &machine, warnings)?;
        let mut daemon = match coming {
            None => Daemon::start(configuration, config, &machine, logging).await?,
            Some(coming) => Daemon::come(configuration, config, &machine, logging, coming).await?,
        };
        let ended = daemon.serve(signals).await;
        daemon.close().await;
        ended
    });
    // A file system that does not answer must not keep the process.
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

/// The parts, on one loop.
struct Daemon {
    configuration: Configuration,
    controller: Controller,
    orders: Orders,
    publisher: Publisher,
    announcer: Announcer,
    paths: Paths,
    forwarding: Forwarding,
    checks: Checks,
    inspections: Inspections,
    lifecycle: Lifecycle,
    api: Api,
    turns: Turns<Self>,
}

/// What the operator asks of packet threads.
#[derive(Default)]
struct Inspections {
    questions: Questions,
    captures: Captures,
    counting: Counting,
    /// Keys are being counted.
    counts_keys: bool,
    /// Bytes of the caches that packet threads have, or are being given.
    cached: usize,
}

/// The admin API's end in the daemon.
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
        readiness: watch::Receiver<admin::metrics::Readiness>,
        logging: Logging,
    ) -> anyhow::Result<Self> {
        let mut api = Self::closed(machine, readiness, logging);
        let bound = listeners::bind(config, machine, &api.listeners.existing()).await?;
        api.listeners.take(config, machine, bound);
        Ok(api)
    }

    /// Before its listeners are open.
    fn closed(
        machine: &str,
        readiness: watch::Receiver<admin::metrics::Readiness>,
        logging: Logging,
    ) -> Self {
        let (orders, commands) = mpsc::channel(COMMANDS_WAITING);
        let listeners = Listeners::new(machine, orders, readiness);
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
        let plane = DataPlane::start(interfaces, &settings(&config), &live)?;
        let mut forwarding = Forwarding::new(plane, config.io().own_ports.clone());
        let api = Api::open(&config, machine, lifecycle.liveness.subscribe(), logging).await?;
        let paths = Paths::open(next_hops, &config, machine, &live.current())?;
        let announcer = open_announcer(&config, machine, &mut forwarding)?;
        let tunnel = HealthTunnel::new(machine, forwarding.interface_names(), live.clone());
        let mut daemon = Self {
            configuration,
            controller,
            orders: Orders::default(),
            publisher: Publisher::new(live),
            announcer,
            paths,
            forwarding,
            checks: Checks::start(tunnel, &config).await?,
            inspections: Inspections::default(),
            lifecycle,
            api,
            turns: Turns::new(),
        };
        daemon.begin().await?;
        Ok(daemon)
    }

    /// The first packets, the first checks.
    async fn begin(&mut self) -> anyhow::Result<()> {
        self.know_gateways().await;
        let config = Arc::clone(self.controller.config());
        let machine = self.controller.machine();
        self.publisher.open(&config, machine, addresses_here(), &mut self.forwarding)?;
        self.begin_checks();
        Ok(())
    }

    /// `reflect` drops what no known gateway sent: the first look comes before the first packet.
    async fn know_gateways(&mut self) {
        if self.controller.config().io().next_hop == NextHop::Reflect
            && let Ok(Some(table)) = tokio::time::timeout(FIRST_NEXT_HOPS, self.paths.found()).await
        {
            self.take_next_hops(table);
        }
    }

    /// Announces as another process did on this machine until now: what is announced is known before the first session.
    fn speak_again(&mut self) -> anyhow::Result<()> {
        let config = Arc::clone(self.controller.config());
        let machine = find_machine(&config, self.controller.machine())?;
        self.announcer = std::mem::take(&mut self.announcer).resume(&config, machine)?;
        if let Err(error) = privileges::give_up(|| self.forwarding.plane.steers.may_change()) {
            tracing::warn!(%error, "capabilities that only the start needs are not given up");
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

    /// Signals, verdicts, next hops and commands, one at a time.
    ///
    /// # Errors
    /// When an interface is gone.
    async fn serve(&mut self, mut signals: Signals) -> anyhow::Result<()> {
        let mut housekeeping = interval(HOUSEKEEPING);
        let [mut looks, mut steps] = [liveness::EVERY, QUESTION_STEPS].map(|every| {
            let mut ticks = interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        let ended = loop {
            tokio::select! {
                biased; // verdicts first: a dead backend gets no packet ten milliseconds later
                Some(event) = self.checks.next() => self.take_event(event),
                () = signals.end.recv() => if self.is_to_end() { break Ok(()) },
                _ = looks.tick() => if self.look() { break Ok(()) },
                _ = signals.hangup.recv(), if !self.is_draining() => self.read_file(Cause::Signal),
                Some(turn) = self.turns.next() => turn(self),
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
        let Some(turned) = self.checks.take(event) else { return };
        let verdicts: Vec<_> = turned.iter().map(|turned| (turned.key.clone(), turned.state)).collect();
        let now = self.lifecycle.elapsed();
        match self.controller.verdicts(&verdicts, &self.publisher.current(), now) {
            Ok(Some(snapshot)) => self.publish_states(snapshot),
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "verdicts not taken over"),
        }
        log_changes(&self.controller, &turned);
    }

    /// What came of emptying servers.
    fn take_flushed(&mut self, outcomes: &[Flushed]) {
        log_flushed(&self.controller, outcomes);
        match self.controller.flushed(outcomes, &self.publisher.current(), self.lifecycle.elapsed()) {
            Ok(Some(snapshot)) => self.publish_states(snapshot),
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "what came of emptying backends not taken over"),
        }
    }

    /// Other states or tables of the same configuration: nothing of the filter changes.
    fn publish_states(&mut self, snapshot: Snapshot) {
        self.renew(snapshot);
        self.look_at_vips();
    }

    fn take_next_hops(&mut self, table: Table) {
        self.paths.take(table);
        self.renew_paths();
    }

    /// The same snapshot over the paths that are known now.
    fn renew_paths(&mut self) {
        let (config, machine) = (self.controller.config(), self.controller.machine());
        match self.paths.renewed(&self.publisher.current(), config, machine) {
            Ok(snapshot) => self.publisher.renew(snapshot),
            Err(error) => tracing::error!(%error, "next hops not taken over"),
        }
        self.follow_own_addresses();
    }

    fn follow_own_addresses(&mut self) {
        let (config, machine) = (self.controller.config(), self.controller.machine());
        let filter = &mut self.forwarding;
        match self.publisher.follow_own_addresses(config, machine, addresses_here, filter) {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!(
                    change = "machine",
                    "this machine's addresses have changed: the kernel keeps those of now"
                );
            }
            Err(error) => tracing::error!(%error, "the XDP filter could not follow this machine's addresses"),
        }
    }

    fn step_questions(&mut self) {
        let (snapshot, index) = (self.publisher.current(), self.controller.index());
        self.inspections.questions.step(&mut self.forwarding, &snapshot, index);
    }

    /// What the time alone brings, once a second.
    ///
    /// # Errors
    /// When an interface is gone.
    fn housekeeping(&mut self) -> anyhow::Result<()> {
        if self.lifecycle.hand_over == HandOver::Frozen {
            return Ok(());
        }
        self.forwarding.look_at_links()?;
        let (current, now) = (self.publisher.current(), self.lifecycle.elapsed());
        match self.orders.expire(&mut self.controller, &current, now) {
            Ok(Some(snapshot)) => self.publish_states(snapshot),
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "an order has not ended by its time"),
        }
        self.api.logging.expire(now);
        match self.controller.tick(&self.publisher.current(), self.lifecycle.elapsed()) {
            Ok(Some(snapshot)) => {
                self.publish_states(snapshot);
                let (config, machine) = (self.controller.config(), self.controller.machine());
                self.paths.follow(config, machine, &self.publisher.current());
                tracing::info!("a drain time or a fallback's hold has passed");
            }
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "draining not ended"),
        }
        self.publisher.live().reclaim();
        self.follow_own_addresses();
        self.mend_tunnel();
        Ok(())
    }

    fn mend_tunnel(&mut self) {
        // A reload may be opening it.
        if !self.configuration.reloads.is_idle() {
            return;
        }
        let Some(mending) = self.checks.begin_mending(Arc::clone(self.controller.config())) else { return };
        let daemon = self.turns.handle();
        tokio::spawn(async move {
            let found = mending.await;
            daemon.send(|daemon| daemon.checks.mended(found, &daemon.controller));
        });
    }

    /// Looks at the data plane, four times a second. Whether a drain is over.
    fn look(&mut self) -> bool {
        if self.lifecycle.hand_over == HandOver::Frozen {
            // Half of the threads are another process's, and this one is the manager's still.
            self.lifecycle.liveness.beat(Instant::now());
            return false;
        }
        let seen = self.observed(Instant::now());
        self.lifecycle.liveness.take(self.forwarding.plane.health(), seen.now);
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

    /// What packet threads have noticed since the last look.
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
                            tracing::info!(backend = %destination, mtu, "a router says what the path takes");
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
            tracing::info!(more, "routers say what more paths take");
        }
        changed |= lowered > 0;
        if changed {
            self.renew_paths();
        }
        self.forwarding.report(&events, &self.publisher.current(), &self.controller);
    }

    /// The machine is not ready while a VIP has no backend; and the announcer decides by what is seen of VIPs now.
    fn look_at_vips(&mut self) {
        let rows = self.controller.vip_rows(&self.publisher.current(), |_| Default::default());
        let services = services_seen(&rows);
        let vips = rows.iter().map(|vip| (vip.name.clone(), vip.ready)).collect();
        let by_name = LazyCell::new(|| rows.iter().map(|row| (&*row.name, row)).collect::<HashMap<_, _>>());
        self.lifecycle.liveness.vips(vips, |vip| services_without(by_name.get(vip).copied()));
        let state = self.lifecycle.liveness.state();
        let forwarder_fault = (!state.health.is_healthy()).then(|| state.health.to_string());
        let seen = Seen { forwarder_fault, set_up: state.set_up, services };
        self.announcer.look(&seen, self.lifecycle.elapsed());
    }

    fn become_ready_when_checked(&mut self) {
        if !self.lifecycle.becomes_ready(&self.controller) {
            return;
        }
        self.look_at_vips();
        self.lifecycle.liveness.is_set_up();
        self.look_at_vips();
        self.log_ready();
        self.lifecycle.manager().ready(&self.status_line());
    }

    fn is_draining(&self) -> bool {
        self.lifecycle.shutdown.is_draining()
    }

    /// SIGTERM or SIGINT: whether the process ends now.
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

    /// Ends sessions with routers, detaches, and takes away what checks needed.
    async fn close(self) {
        let Self { checks, forwarding, announcer, .. } = self;
        // Routers first: what they send until they have heard is still forwarded.
        announcer.close(FAREWELL).await;
        let tunnel = checks.stop();
        drop(forwarding.plane);
        tunnel.close().await;
    }
}

/// Listens while ports below 1,024 may still be listened at, gives up what only the start needs, and begins to speak.
fn open_announcer(config: &Config, machine: &str, forwarding: &mut Forwarding) -> anyhow::Result<Announcer> {
    let mut announcer = Announcer::open(config, find_machine(config, machine)?)?;
    if let Err(error) = privileges::give_up(|| forwarding.plane.steers.may_change()) {
        tracing::warn!(%error, "capabilities that only the start needs are not given up");
    }
    // From here on threads have no more capabilities than this one.
    announcer.begin()?;
    Ok(announcer)
}

/// Full-size packets of clients grow by the outer header: the path to a backend must take that.
fn warn_of_small_mtus(config: &Config, snapshot: &Snapshot) {
    let clients = config.cluster().mtu.clients as usize;
    let wanted = |slot: &Slot| clients + slot.encap_overhead();
    let tight = |slot: &&Slot| slot.next_hop.is_some() && usize::from(slot.mtu) < wanted(slot);
    if let Some(slot) = snapshot.slots().iter().find(tight) {
        tracing::warn!(
            backend = %slot.backend,
            mtu = slot.mtu,
            wanted = wanted(slot),
            count = snapshot.slots().iter().filter(tight).count(),
            "full-size packets for such backends do not fit: clients get packet-too-big errors, or their packets are \
             cut; raise the MTU towards these backends"
        );
    }
}

/// The services of a VIP that nobody serves.
fn services_without(vip: Option<&VipRow>) -> String {
    let services = vip.into_iter().flat_map(|row| &row.services);
    few(services.filter(|service| !service.ready).map(|service| &service.name))
}

fn addresses_here() -> BTreeSet<IpAddr> {
    diagnosis::addresses_here().collect()
}

fn unix_seconds() -> u64 {
    unix_micros(SystemTime::now()) / 1_000_000
}

/// A number that no other start has.
fn boot_id() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{:x}{:x}", since, std::process::id())
}

/// What operators of routers read (RFC 9003).
const FAREWELL: &str = "sluicegate stops";
const COMMANDS_WAITING: usize = 64;
const HOUSEKEEPING: Duration = Duration::from_secs(1);
const QUESTION_STEPS: Duration = Duration::from_millis(1);
/// Lines of the log about paths, of one look.
const PATHS_NAMED: usize = 8;
