//! `sluicegate run`: both planes, wired.
//!
//! In: a configuration, signals, changes of next hops, verdicts of health checks, orders of the admin API. Out: a running
//! balancer. Rooms: `reload`, `announce` (routes and the drain), `answers` (the API), `capture`, `flows` (questions to packet threads), `links`, `next_hops`, `settings`, `files`, `filter`, `tunnel`,
//! `verdicts` (their lines in the log), `reports` (of the packet tracer), `work` (done elsewhere).
//! Not here: any decision about a packet, any rule about a configuration or about health.
//! Invariants: a new VIP reaches the threads, then the filter, then routers; one that goes leaves routers, filter and threads. Nothing
//! that takes more than a few milliseconds runs on the control loop.

mod announce;
mod answers;
mod capture;
mod files;
mod filter;
mod flows;
mod links;
mod next_hops;
mod reload;
mod reports;
mod settings;
mod tunnel;
mod unable;
mod verdicts;
mod work;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use admin::command::Command;
use admin::view::ConfigSource;
use config::words::count_of;
use config::{self, Config, Source as ConfigFile};
use control_plane::announce::Announcer;
use control_plane::compile::{destinations, find_machine, refresh_next_hops};
use control_plane::controller::{Controller, Running};
use control_plane::digest::Digests;
use control_plane::next_hop::{self, Wanted};
use control_plane::path_mtu::PathMtus;
use control_plane::services_seen;
use control_plane::standing::OverrideKey;
use datapath::DataPlane;
use datapath::interface::{Interface, InterfaceError};
use forwarder::{Live, Notice, Snapshot, TraceEvent};
use health::{Event, Events, Health};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use self::files::FileWatch;
use self::flows::Walks;
use self::links::Links;
pub(crate) use self::next_hops::next_hops;
pub(crate) use self::reports::unix_micros;
pub(crate) use self::settings::fragments;

use self::next_hops::{merge, wanted, watch_next_hops};
use self::reload::Reloads;
use self::reports::Reports;
use self::settings::{inspected, settings};
use self::tunnel::Way;
use self::unable::Unable;
use self::work::Finished;
use crate::doors::{self, Doors};
use crate::liveness::{self, Liveness};
use crate::notify::Notifier;
use crate::shutdown::Drain;
use crate::stats::stats;
use crate::{Source, config_check, doctor, logging, privileges};

/// Runs until SIGTERM or SIGINT, and then until the drain is over; a second signal ends it at once.
pub(crate) fn run(source: &Source) -> anyhow::Result<()> {
    let (config, warnings) = config_check::read(&source.config)?;
    logging::start(config.log())?;
    let warnings = work::sentences(&warnings);
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    privileges::seal();
    let machine = source.machine()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        // Before the start, so that none ends the process without its farewell.
        let signals = Signals::catch()?;
        let mut balancer = Balancer::start(source.config.clone(), machine, config).await?;
        balancer.warnings = warnings;
        let ended = balancer.serve(signals).await;
        balancer.close().await;
        ended
    });
    // A file system that does not answer must not keep the process.
    runtime.shutdown_background();
    ended
}

struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn catch() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

struct Balancer {
    file: PathBuf,
    controller: Controller,
    next_hops: Arc<next_hop::Table>,
    path_mtus: PathMtus,
    live: Live,
    plane: DataPlane,
    health: Arc<Health>,
    events: Events,
    way: Way,
    reloads: Reloads,
    walks: Walks,
    capture: Option<capture::Running>,
    reports: Reports,
    finished: (mpsc::UnboundedSender<Finished>, mpsc::UnboundedReceiver<Finished>),
    origin: Instant,
    started: SystemTime,
    digests: Arc<Digests>,
    boot_id: String,
    source: ConfigSource,
    /// The settings of the start, which a reload does not change.
    running: Running,
    /// The files of the last configuration that came from the file.
    file_sources: Vec<ConfigFile>,
    files: Option<FileWatch>,
    /// When each operator's order was given.
    ordered: HashMap<OverrideKey, Instant>,
    own_fault: Option<Instant>,
    unable: Unable,
    links: Links,
    /// Why checks through the tunnel can't be made.
    tunnel_fault: Option<String>,
    keeping: bool,
    warnings: Vec<String>,
    wanted: watch::Sender<Wanted>,
    found: mpsc::Receiver<next_hop::Table>,
    commands: mpsc::Receiver<Command>,
    admin: Option<Doors>,
    max_vips: u32,
    /// This machine's addresses.
    own: BTreeSet<IpAddr>,
    manager: Rc<Notifier>,
    liveness: Liveness,
    announcer: Announcer,
    drain: Option<Drain>,
    ready_by: Option<Instant>,
}

impl Balancer {
    async fn start(file: PathBuf, machine: String, config: Config) -> anyhow::Result<Self> {
        let (origin, config) = (Instant::now(), Arc::new(config));
        let interfaces = inspected(&config, &machine)?;
        let next_hops = next_hops(&destinations(&config, &machine, None), FIRST_NEXT_HOPS).await?;
        if let Err(error) = doctor::warn_at_start(&config, &machine, &next_hops).await {
            tracing::warn!(error = %format!("{error:#}"), "the machine was not looked at");
        }
        let next_hops = next_hop::Table { next_hops, ..next_hop::Table::default() };
        let next_hops = Arc::new(next_hops.by(interfaces.iter().map(|interface| interface.index).collect()));
        let (controller, snapshot) =
            Controller::start(Arc::clone(&config), &machine, Arc::clone(&next_hops), origin.elapsed())?;
        let live = Live::new(snapshot);
        live.clock().set(unix_seconds());
        let plane = DataPlane::start(interfaces, &settings(&config), &live)?;
        let manager = Rc::new(Notifier::from_environment());
        let liveness = Liveness::new(Rc::clone(&manager));
        let (orders, commands) = mpsc::channel(ADMIN_QUEUE);
        let admin = doors::open(&config, &machine, orders, liveness.subscribe()).await?;
        let (wanted, found) = watch_next_hops(wanted(&config, &machine, &plane, &live))?;
        // While ports below 1,024 may still be listened at.
        let mut announcer = Announcer::open(&config, find_machine(&config, &machine)?)?;
        let mut plane = plane;
        if let Err(error) = privileges::give_up(|| plane.steer().may_change()) {
            tracing::warn!(%error, "capabilities that only the start needs are not given up");
        }
        // From here on threads have no more capabilities than this one.
        announcer.begin()?;
        let links = Links::new(plane.interfaces(), plane.largest_packet());
        Way::clear().await;
        let way = Way::default();
        way.open(&config, &machine, &names(&plane), &live).await?;
        let (health, events) = Health::start(way.dialers())?;
        let mut balancer = Self {
            max_vips: config.io().max_vips(),
            own: BTreeSet::new(),
            files: FileWatch::start(&config)?,
            file_sources: config.sources().to_vec(),
            file,
            controller,
            next_hops,
            path_mtus: PathMtus::default(),
            live,
            plane,
            health: Arc::new(health),
            events,
            way,
            reloads: Reloads::default(),
            walks: Walks::default(),
            capture: None,
            reports: Reports::default(),
            finished: mpsc::unbounded_channel(),
            origin,
            started: SystemTime::now(),
            digests: Arc::default(),
            boot_id: boot_id(),
            source: ConfigSource::File,
            running: Running::of(&config, &machine),
            ordered: HashMap::new(),
            own_fault: None,
            unable: Unable::default(),
            links,
            tunnel_fault: None,
            keeping: false,
            warnings: Vec::new(),
            wanted,
            found,
            commands,
            admin,
            manager,
            liveness,
            announcer,
            drain: None,
            ready_by: Some(Instant::now() + longest_first_check(&config)),
        };
        balancer.await_gateways().await;
        balancer.own = balancer.own_addresses();
        balancer.open_filter()?;
        balancer.watch();
        balancer.say_what_will_not_fit();
        balancer.ready_when_checked();
        Ok(balancer)
    }

    /// `reflect` drops what no known gateway sent: the first look comes before the first packet.
    async fn await_gateways(&mut self) {
        if self.controller.config().io().next_hop() == config::NextHop::Reflect
            && let Ok(Some(table)) = tokio::time::timeout(FIRST_NEXT_HOPS, self.found.recv()).await
        {
            self.take_next_hops(table);
        }
    }

    /// Ready once every check has had its first result and the tables have followed, or the time for that is over.
    fn ready_when_checked(&mut self) {
        let Some(by) = self.ready_by else { return };
        let unknown = self.controller.unknown();
        let settled = unknown == 0 && !self.controller.wants_job() && !self.controller.is_at_work();
        if !settled && Instant::now() < by {
            return;
        }
        if unknown > 0 {
            tracing::warn!(unknown, "backends whose checks have not answered once stay out");
        }
        self.ready_by = None;
        self.look_at_vips();
        self.liveness.is_set_up();
        self.look_at_vips();
        self.say_ready();
    }

    fn say_ready(&self) {
        let snapshot = self.live.current();
        let unresolved: HashSet<IpAddr> =
            snapshot.slots().iter().filter(|slot| slot.next_hop.is_none()).map(|slot| slot.address).collect();
        tracing::info!(
            machine = %self.controller.machine(),
            interface = %self.interface_names().join(", "),
            queues = self.plane.counters().len(),
            xdp = self.plane.attach_mode().name(),
            sockets = self.plane.socket_mode().name(),
            largest_packet = self.plane.largest_packet(),
            generation = snapshot.generation().0,
            vips = snapshot.filter().len(),
            prefixes = snapshot.filter_prefixes().len(),
            backends = snapshot.slots().len(),
            unresolved = unresolved.len(),
            "ready"
        );
        self.manager.ready(&self.status());
    }

    fn status(&self) -> String {
        let snapshot = self.live.current();
        let prefixes = match snapshot.filter_prefixes().len() {
            0 => String::new(),
            count => format!(" and {count} prefixes"),
        };
        format!(
            "generation {}: {}{prefixes}, {} on {}",
            snapshot.generation().0,
            count_of(snapshot.filter().len(), "VIP address"),
            count_of(snapshot.slots().len(), "backend"),
            self.interface_names().join(", ")
        )
    }

    fn interface_names(&self) -> Vec<String> {
        names(&self.plane)
    }

    /// Signals, verdicts, next hops and orders, one at a time.
    ///
    /// # Errors
    /// When an interface is gone.
    async fn serve(&mut self, mut signals: Signals) -> anyhow::Result<()> {
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        let mut looks = tokio::time::interval(liveness::EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut steps = tokio::time::interval(WALK_EVERY);
        steps.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let ended = loop {
            tokio::select! {
                biased; // verdicts first: a dead backend gets no packet ten milliseconds later
                Some(event) = self.events.recv() => self.take_event(event),
                _ = signals.terminate.recv() => if self.ends_at_once() { break Ok(()) },
                _ = signals.interrupt.recv() => if self.ends_at_once() { break Ok(()) },
                _ = looks.tick() => if self.look() { break Ok(()) },
                _ = signals.hangup.recv(), if self.drain.is_none() => self.ask_for_reload("SIGHUP"),
                Some(done) = self.finished.1.recv() => self.take_finished(done),
                Some(table) = self.found.recv() => self.take_next_hops(table),
                Some(command) = self.commands.recv() => self.obey(command),
                _ = steps.tick(), if !self.walks.is_idle() => {
                    let index = Arc::clone(self.controller.index());
                    self.walks.step(&mut self.plane, &self.live.current(), &index);
                }
                _ = housekeeping.tick() => if let Err(error) = self.keep_house() {
                    break Err(error);
                },
            }
        };
        self.say_farewell();
        ended
    }

    fn watch(&self) {
        self.health.watch(self.way.reachable(self.controller.watched()));
    }

    fn take_event(&mut self, event: Event) {
        match event {
            Event::Changed(changed) => {
                let now = self.origin.elapsed();
                let verdicts: Vec<_> =
                    changed.iter().map(|turned| (turned.key.clone(), turned.state)).collect();
                match self.controller.verdicts(&verdicts, &self.live.current(), now) {
                    Ok(Some(snapshot)) => self.publish_states(snapshot),
                    Ok(None) => {}
                    Err(error) => tracing::error!(%error, "verdicts not taken over"),
                }
                verdicts::log(&self.controller, &changed);
            }
            Event::LocalFailure(true) => {
                self.own_fault = Some(Instant::now());
                tracing::error!(
                    "no check of any backend passes: taken for this machine's own fault, the last states stay"
                );
            }
            Event::LocalFailure(false) => {
                self.own_fault = None;
                tracing::info!("checks pass again: verdicts go on");
            }
            Event::Unable(news) => self.unable.take(news, Instant::now()),
        }
        self.advance();
    }

    /// Other states under the same tables: nothing of the filter changes.
    fn publish_states(&mut self, snapshot: Snapshot) {
        self.live.publish(snapshot);
        self.look_at_vips();
    }

    /// # Errors
    /// When an interface is gone: program and sockets went with it, and only a new start can bring them back.
    fn keep_house(&mut self) -> anyhow::Result<()> {
        let now: Vec<Interface> = self.plane.interfaces().iter().map(seen_again).collect::<Result<_, _>>()?;
        self.links.take(&now);
        match self.controller.tick(&self.live.current(), self.origin.elapsed()) {
            Ok(Some(snapshot)) => {
                self.publish_states(snapshot);
                let config = Arc::clone(self.controller.config());
                let machine = self.controller.machine();
                self.wanted.send_replace(wanted(&config, machine, &self.plane, &self.live));
                tracing::info!("a drain time or a fallback's hold has passed");
            }
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "draining not ended"),
        }
        self.live.reclaim();
        self.follow_own_addresses();
        self.keep_way();
        self.advance();
        Ok(())
    }

    /// Looks at the data plane. Whether a drain is over.
    fn look(&mut self) -> bool {
        let (now, forwarded) = (Instant::now(), self.forwarded());
        self.liveness.take(self.plane.health(), now);
        self.live.clock().set(unix_seconds());
        self.take_notices();
        self.look_at_vips();
        self.ready_when_checked();
        if self.drain.is_none() && self.files.as_mut().is_some_and(|files| files.look(now)) {
            self.ask_for_reload("the file has changed");
        }
        self.look_at_drain(now, forwarded)
    }

    /// A VIP without a backend makes the machine not ready, as the documents say.
    fn look_at_vips(&mut self) {
        let rows = self.controller.vip_rows(&self.live.current(), |_| Default::default());
        let seen = services_seen(&rows);
        let without = rows.into_iter().filter(|vip| !vip.ready).map(|vip| vip.name).collect();
        self.liveness.vips_without(without);
        self.announce(seen);
    }

    fn forwarded(&self) -> u64 {
        self.plane.counters().iter().map(|thread| thread.tx.read()).sum()
    }

    /// Takes leave of routers, detaches, and takes away what checks needed.
    async fn close(self) {
        let Self { way, health, plane, announcer, .. } = self;
        // Routers first: what they send until they have heard is still forwarded.
        announcer.close(FAREWELL).await;
        drop(health);
        plane.stop();
        way.close().await;
    }

    fn say_farewell(&mut self) {
        let stats = stats(&mut self.plane, &self.live.current());
        self.admin = None;
        let stats = serde_json::to_string(&stats).unwrap_or_default();
        tracing::info!(event = "final_counters", counters = %stats, "stopping");
    }

    /// Full-size packets of clients grow by the outer header: the way to a backend must take that.
    fn say_what_will_not_fit(&self) {
        let clients = self.controller.config().cluster().mtu().clients() as usize;
        let snapshot = self.live.current();
        let tight = |slot: &&forwarder::Slot| {
            slot.next_hop.is_some() && usize::from(slot.mtu) < clients + slot.encap_overhead()
        };
        if let Some(slot) = snapshot.slots().iter().find(tight) {
            tracing::warn!(
                backend = %slot.backend,
                mtu = slot.mtu,
                wanted = clients + slot.encap_overhead(),
                count = snapshot.slots().iter().filter(tight).count(),
                "full-size packets for such backends do not fit: clients are told to send smaller ones, or their packets are \
                 cut; raise the MTU towards these backends"
            );
        }
    }

    fn take_next_hops(&mut self, table: next_hop::Table) {
        let table = merge(&self.next_hops, table, &self.wanted.borrow());
        self.next_hops = Arc::new(table);
        self.renew_ways();
    }

    /// The same snapshot over the ways and paths that are known now.
    fn renew_ways(&mut self) {
        let (config, machine) = (self.controller.config(), self.controller.machine());
        match refresh_next_hops(&self.live.current(), config, machine, &self.next_hops, &self.path_mtus) {
            Ok(snapshot) => self.live.publish(snapshot),
            Err(error) => tracing::error!(%error, "next hops not taken over"),
        }
        self.follow_own_addresses();
    }

    /// What packet threads have seen since the last look.
    fn take_notices(&mut self) {
        let now = self.origin.elapsed();
        let mut changed = self.path_mtus.expire(now);
        let mut sighted = Vec::new();
        for notice in self.plane.notices() {
            match notice {
                Notice::PathMtu { destination, mtu } => {
                    if self.path_mtus.learn(destination, mtu, now) {
                        tracing::info!(backend = %destination, mtu, "a router says what the path takes");
                        changed = true;
                    }
                }
                Notice::Trace(sighting) => sighted.push(sighting),
            }
        }
        if changed {
            self.renew_ways();
        }
        self.report(&sighted);
    }

    fn report(&mut self, sighted: &[TraceEvent]) {
        let (snapshot, controller) = (self.live.current(), &self.controller);
        // Both clocks once, so that what one batch saw is told with one time.
        let (micros, now) = (unix_micros(SystemTime::now()), self.plane.now());
        for sighting in sighted {
            let ago = now.nanos().saturating_sub(sighting.at.nanos()) / 1_000;
            let seen = micros.saturating_sub(ago);
            self.reports.tell(sighting, seen, &snapshot, controller.config(), controller.machine());
        }
    }
}

fn names(plane: &DataPlane) -> Vec<String> {
    plane.interfaces().iter().map(|interface| interface.name.clone()).collect()
}

/// As it is now; as it was at the start when the kernel does not say.
fn seen_again(mine: &Interface) -> anyhow::Result<Interface> {
    match Interface::read(&mine.name) {
        Ok(found) if found.index == mine.index => Ok(found),
        // Gone, or another has taken its name.
        Ok(_) | Err(InterfaceError::Absent { .. }) => {
            anyhow::bail!("interface {} is gone, and the XDP program and the sockets with it", mine.name)
        }
        Err(_) => Ok(mine.clone()),
    }
}

fn unix_seconds() -> u64 {
    unix_micros(SystemTime::now()) / 1_000_000
}

/// A number that no other start has.
fn boot_id() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    format!("{:x}{:x}", since, std::process::id())
}

/// How long the first results may take: the slowest check's attempts.
fn longest_first_check(config: &Config) -> Duration {
    let checks = config.members().flat_map(|member| member.checks());
    let longest = checks.map(|check| check.timeout).max();
    longest.map_or(Duration::ZERO, |timeout| (timeout + FIRST_SPREAD).min(FIRST_CHECKS))
}

/// What operators of routers read (RFC 9003).
const FAREWELL: &str = "sluicegate stops";
const ADMIN_QUEUE: usize = 64;
/// IPv6 neighbours on a link that has just come up take some two seconds.
const FIRST_NEXT_HOPS: Duration = Duration::from_secs(4);
/// A service manager does not wait for ever.
const FIRST_CHECKS: Duration = Duration::from_secs(30);
/// Over how long first checks are spread, and some more.
const FIRST_SPREAD: Duration = Duration::from_secs(2);
/// What detaching takes at most, for the service manager.
const AFTER_DRAIN: Duration = Duration::from_secs(15);
const HOUSEKEEPING: Duration = Duration::from_secs(1);
const WALK_EVERY: Duration = Duration::from_millis(1);
